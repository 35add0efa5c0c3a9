//! What the server says without a script: it knows nothing but the request.

use serde_json::Value;

use super::{Recorded, Reply, Wire, responses};

const REMEMBER: &str = "remember the number ";

/// Repeats the results that the request ends with; else obeys the last prompt: calls the tools that its lines
/// `use TOOL {json}` name, tells the number that it asks for, or repeats it.
pub(super) fn answer(request: &Recorded) -> Reply {
    let messages = messages(request);
    let results = last_results(&messages);
    if !results.is_empty() {
        let shown: Vec<String> = results.iter().map(|text| text.chars().take(200).collect()).collect();
        return Reply::text(format!("Results: {}", shown.join(" | ")));
    }
    let said: Vec<String> =
        messages.iter().filter(|message| message["role"] == "user").flat_map(texts).collect();
    let last =
        said.iter().rev().map(|text| without_notes(text)).find(|text| !text.is_empty()).unwrap_or_default();
    let calls: Vec<(&str, Value)> = last.lines().filter_map(call).collect();
    if !calls.is_empty() {
        return calls.into_iter().fold(Reply::new(), |reply, (tool, input)| reply.and_call(tool, input));
    }
    Reply::text(words(&said))
}

fn messages(request: &Recorded) -> Vec<Value> {
    match request.wire {
        Wire::Responses => responses::as_chat(&request.body),
        Wire::Anthropic | Wire::OpenAi => request.body["messages"].as_array().cloned().unwrap_or_default(),
    }
}

impl Recorded {
    /// The texts of what the person said, in order, notes and all.
    pub fn prompts(&self) -> Vec<String> {
        messages(self).iter().filter(|message| message["role"] == "user").flat_map(texts).collect()
    }

    /// The last words of the person without our notes; none if results of calls are what the request ends with.
    pub fn last_words(&self) -> Option<String> {
        if !last_results(&messages(self)).is_empty() {
            return None;
        }
        self.prompts().iter().rev().map(|text| without_notes(text)).find(|text| !text.is_empty())
    }
}

/// What is said to the last of these prompts: the number that it asks for, that it was noted, or the prompt again.
pub(crate) fn words(said: &[String]) -> String {
    let last =
        said.iter().rev().map(|text| without_notes(text)).find(|text| !text.is_empty()).unwrap_or_default();
    // A prompt may bring a whole conversation along: what it ends with is what it wants.
    if last.rfind("what number") > last.rfind(REMEMBER) {
        return match said.iter().rev().find_map(|text| remembered(text)) {
            Some(number) => format!("The number is {number}."),
            None => "I know no number.".to_owned(),
        };
    }
    match remembered(&last) {
        Some(number) => format!("Noted: {number}."),
        None => format!("You said: {last}"),
    }
}

/// The results after the last words of the model, unless a prompt follows them.
fn last_results(messages: &[Value]) -> Vec<String> {
    let said = messages.iter().rposition(|message| message["role"] == "assistant").map_or(0, |at| at + 1);
    let mut results = Vec::new();
    for message in messages.get(said..).unwrap_or_default() {
        if message["role"] == "tool" {
            results.push(message["content"].as_str().unwrap_or_default().to_owned());
            continue;
        }
        for block in
            message["content"].as_array().into_iter().flatten().filter(|b| b["type"] == "tool_result")
        {
            results.push(texts(block).join("\n"));
        }
        if texts(message).iter().any(|text| !without_notes(text).is_empty()) {
            return Vec::new();
        }
    }
    results
}

/// The texts of a message or a result, be its content a string or a list.
fn texts(message: &Value) -> Vec<String> {
    match &message["content"] {
        Value::String(text) => vec![text.clone()],
        content => {
            let blocks = content.as_array().into_iter().flatten();
            blocks.filter_map(|block| block["text"].as_str().map(str::to_owned)).collect()
        }
    }
}

/// What is left of a text without the notes that Segue put into it or beside it.
fn without_notes(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("<segue-note>") {
        out.push_str(before);
        rest = after.split_once("</segue-note>").map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    out.trim().to_owned()
}

fn call(line: &str) -> Option<(&str, Value)> {
    let (tool, input) = line.trim().strip_prefix("use ")?.split_once(' ')?;
    Some((tool, serde_json::from_str(input).ok()?))
}

fn remembered(text: &str) -> Option<String> {
    let (_, after) = text.rsplit_once(REMEMBER)?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    (!digits.is_empty()).then_some(digits)
}
