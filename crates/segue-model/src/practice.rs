//! `practice`: a rule-based stand-in for a model, which needs neither key nor network. It reads nothing but the messages
//! it is sent, so a right answer about the past proves that the past was sent.

use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use segue_log::{Block, Message, Usage, UserPart, is_note, text_of};

use crate::error::ModelError;
use crate::model::{Delta, Deltas, Model, Request, Stop};

/// The most words that "say N words" brings.
const MOST_WORDS: u64 = 100_000;
/// Other answers stream in pieces of about this many bytes.
const PIECE: usize = 1024;
/// How much of each result an answer repeats, in characters.
const RESULT_CHARS: usize = 200;

/// The model without a model.
#[derive(Debug, Clone)]
pub struct Practice {
    window: u64,
    pace: Duration,
}

impl Practice {
    /// The provider and the name of the model, as [`Model::name`] gives them.
    pub const NAME: &str = "practice/practice";

    /// One that streams "say N words" at about 500 words a second, slowly enough to be interrupted.
    pub fn new() -> Self {
        Self { window: 200_000, pace: Duration::from_millis(1) }
    }

    /// The same with another window, in tokens.
    pub fn with_window(self, window: u64) -> Self {
        Self { window, ..self }
    }

    /// The same with another pause before each word of "say N words".
    pub fn with_pace(self, pace: Duration) -> Self {
        Self { pace, ..self }
    }
}

impl Default for Practice {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Model for Practice {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn window(&self) -> u64 {
        self.window
    }

    async fn stream(&self, request: &Request) -> Result<Deltas, ModelError> {
        let answer = answer(request);
        let mut usage = Usage { input: tokens(input_chars(request)), ..Usage::default() };
        let mut deltas = vec![Delta::Usage(usage)];
        let mut pace = Duration::ZERO;
        let stop = match answer {
            Answer::Text(text) => {
                usage.output = tokens(text.len());
                deltas.extend(pieces(&text).map(|piece| Delta::Text(piece.to_owned())));
                Stop::End
            }
            Answer::Words(count) => {
                usage.output = count;
                pace = self.pace;
                deltas.extend((1..=count).map(|n| Delta::Text(word(n))));
                Stop::End
            }
            Answer::Calls(calls) => {
                for (index, Call { tool, input }) in calls.into_iter().enumerate() {
                    usage.output = usage.output.saturating_add(tokens(input.len()));
                    deltas.push(Delta::Request { index, provider_id: String::new(), tool });
                    deltas.extend(
                        pieces(&input).map(|piece| Delta::RequestInput { index, json: piece.to_owned() }),
                    );
                }
                Stop::Tools
            }
        };
        deltas.push(Delta::Usage(usage));
        deltas.push(Delta::Stop(stop));
        Ok(stream::iter(deltas)
            .then(move |delta| async move {
                if !pace.is_zero() && matches!(delta, Delta::Text(_)) {
                    tokio::time::sleep(pace).await;
                }
                Ok(delta)
            })
            .boxed())
    }
}

/// What the rules make of a request.
#[derive(Debug, PartialEq)]
enum Answer {
    Text(String),
    Words(u64),
    Calls(Vec<Call>),
}

#[derive(Debug, PartialEq)]
struct Call {
    tool: String,
    input: String,
}

/// The rules. Lines that call tools come first, as they are the most explicit thing that a text can say.
fn answer(request: &Request) -> Answer {
    if let Some(results) = last_results(&request.messages) {
        let shown: Vec<String> =
            results.iter().map(|text| text.chars().take(RESULT_CHARS).collect()).collect();
        return Answer::Text(format!("Results: {}", shown.join(" | ")));
    }
    let text = last_prompt(&request.messages).unwrap_or_default();
    let calls: Vec<Call> = text.lines().filter_map(|line| call(line, request)).collect();
    if !calls.is_empty() {
        return Answer::Calls(calls);
    }
    if let Some(number) = remembered(text) {
        return Answer::Text(format!("Noted: {number}."));
    }
    if asks_for_number(text) {
        let known = user_texts(&request.messages).rev().find_map(remembered);
        return Answer::Text(match known {
            Some(number) => format!("The number is {number}."),
            None => "I know no number.".to_owned(),
        });
    }
    if let Some(count) = words_wanted(text) {
        return Answer::Words(count);
    }
    Answer::Text(format!("You said: {text}"))
}

/// The texts of the results that the conversation ends with; none if a prompt follows them.
fn last_results(messages: &[Message]) -> Option<Vec<String>> {
    let Some(Message::User { parts }) = messages.last() else { return None };
    if parts.iter().any(|part| prompt_text(part).is_some()) {
        return None;
    }
    let results: Vec<String> = parts
        .iter()
        .filter_map(|part| match part {
            UserPart::Result { content, .. } => Some(text_of(content)),
            _ => None,
        })
        .collect();
    (!results.is_empty()).then_some(results)
}

fn last_prompt(messages: &[Message]) -> Option<&str> {
    user_parts(messages).rev().find_map(prompt_text)
}

/// The text of a part of a prompt; notes of ours are none, in whichever shape they come.
fn prompt_text(part: &UserPart) -> Option<&str> {
    match part {
        UserPart::Block(Block::Text { text }) if !is_note(text) => Some(text),
        _ => None,
    }
}

/// Prompts and notes: what a summary says counts as said. Results do not, they are not the user's words.
fn user_texts(messages: &[Message]) -> impl DoubleEndedIterator<Item = &str> {
    user_parts(messages).filter_map(|part| match part {
        UserPart::Block(Block::Text { text }) | UserPart::Note { text } => Some(text.as_str()),
        _ => None,
    })
}

fn user_parts(messages: &[Message]) -> impl DoubleEndedIterator<Item = &UserPart> {
    messages.iter().flat_map(|message| match message {
        Message::User { parts } => parts.as_slice(),
        Message::Assistant { .. } => &[],
    })
}

/// A line `use TOOL {json}`. JSON that is none is passed on as it stands. Prose that happens to begin with "use" is no
/// call unless it names a tool that is offered.
fn call(line: &str, request: &Request) -> Option<Call> {
    let (verb, rest) = line.trim().split_once(char::is_whitespace)?;
    if !verb.eq_ignore_ascii_case("use") {
        return None;
    }
    let rest = rest.trim_start();
    let (tool, input) = rest.split_once(char::is_whitespace).unwrap_or((rest, "{}"));
    let input = input.trim_start();
    let is_name =
        !tool.is_empty() && tool.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    let is_offered = request.tools.iter().any(|spec| spec.name == tool);
    let is_json_like = input.starts_with(['{', '[', '"']) && rest.len() > tool.len();
    (is_name && (is_json_like || is_offered)).then(|| Call { tool: tool.to_owned(), input: input.to_owned() })
}

/// The last N of "remember the number N" or 记住数字 N in a text.
fn remembered(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    ["remember the number", "记住数字"]
        .iter()
        .flat_map(|phrase| lower.match_indices(phrase))
        .filter_map(|(at, phrase)| Some((at, number(text.get(at + phrase.len()..)?)?)))
        .max_by_key(|(at, _)| *at)
        .map(|(_, number)| number)
}

/// The decimal number that a text begins with, spaces and a colon passed over.
fn number(text: &str) -> Option<&str> {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ':' | '：'));
    let digits = |from: usize| text.bytes().skip(from).take_while(u8::is_ascii_digit).count();
    let sign = usize::from(text.starts_with('-'));
    let whole = digits(sign);
    if whole == 0 {
        return None;
    }
    let mut end = sign + whole;
    if text.as_bytes().get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        end += if fraction > 0 { fraction + 1 } else { 0 };
    }
    text.get(..end)
}

fn asks_for_number(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ["what number", "which number", "数字是多少"].iter().any(|phrase| lower.contains(phrase))
}

/// The N of "say N words".
fn words_wanted(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let words: Vec<&str> =
        lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.windows(3).find_map(|three| match three {
        ["say", count, "word" | "words"] => count.parse::<u64>().ok().map(|count| count.min(MOST_WORDS)),
        _ => None,
    })
}

fn word(n: u64) -> String {
    if n == 1 { "word1".to_owned() } else { format!(" word{n}") }
}

/// A text in pieces, cut between characters; at least two where it has two characters.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let size = PIECE.min(text.len().div_ceil(2)).max(1);
    let mut rest = text;
    std::iter::from_fn(move || {
        let cut = (size..rest.len()).find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(cut);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// About four bytes make a token; near enough for compaction to be practised too.
fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(4)).unwrap_or(u64::MAX)
}

fn input_chars(request: &Request) -> usize {
    let messages = serde_json::to_string(&request.messages).map_or(0, |json| json.len());
    let tools = serde_json::to_string(&request.tools).map_or(0, |json| json.len());
    request.system.len() + messages + tools
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ToolSpec;
    use segue_log::{AssistantPart, note};

    fn user(text: &str) -> Message {
        Message::User { parts: vec![UserPart::Block(Block::text(text))] }
    }

    fn said(text: &str) -> Message {
        Message::Assistant { parts: vec![AssistantPart::Text { text: text.into() }], model: None }
    }

    fn result(id: &str, text: &str) -> UserPart {
        UserPart::Result { wire_id: id.into(), error: false, content: vec![Block::text(text)] }
    }

    fn noted(text: &str) -> UserPart {
        UserPart::Note { text: note(text) }
    }

    fn text(text: &str) -> Answer {
        Answer::Text(text.into())
    }

    fn calls(calls: &[(&str, &str)]) -> Answer {
        Answer::Calls(
            calls.iter().map(|(tool, input)| Call { tool: (*tool).into(), input: (*input).into() }).collect(),
        )
    }

    fn check(messages: Vec<Message>, expected: Answer) {
        let bash = ToolSpec {
            name: "bash".into(),
            description: String::new(),
            input_schema: serde_json::json!({"type": "object"}),
        };
        let request = Request { messages, tools: vec![bash], ..Request::default() };
        assert_eq!(answer(&request), expected, "{:?}", request.messages);
    }

    #[test]
    fn one_prompt_is_answered_by_its_rule() {
        for (prompt, expected) in [
            ("remember the number 42", text("Noted: 42.")),
            ("Please Remember the number 42.", text("Noted: 42.")),
            ("remember the number -3.5, thanks", text("Noted: -3.5.")),
            ("记住数字 42", text("Noted: 42.")),
            ("请记住数字42。", text("Noted: 42.")),
            ("remember the number of my house", text("You said: remember the number of my house")),
            ("what number did I name?", text("I know no number.")),
            ("Which number was it?", text("I know no number.")),
            ("我让你记住的数字是多少？", text("I know no number.")),
            ("say 3 words", Answer::Words(3)),
            ("Say 1 word, please", Answer::Words(1)),
            ("say 999999999 words", Answer::Words(MOST_WORDS)),
            ("say some words", text("You said: say some words")),
            ("hello\nyou", text("You said: hello\nyou")),
            (r#"use read {"path":"a b"}"#, calls(&[("read", r#"{"path":"a b"}"#)])),
            (
                "first\nuse bash {\"command\":\"ls\"}\n  use no_such {}\nlast",
                calls(&[("bash", r#"{"command":"ls"}"#), ("no_such", "{}")]),
            ),
            ("use bash {\"command\":", calls(&[("bash", "{\"command\":")])),
            ("use bash not json", calls(&[("bash", "not json")])),
            ("use bash", calls(&[("bash", "{}")])),
            ("use read [1]", calls(&[("read", "[1]")])),
            ("use your head", text("You said: use your head")),
            (
                r#"use write {"content":"remember the number 5"}"#,
                calls(&[("write", r#"{"content":"remember the number 5"}"#)]),
            ),
        ] {
            check(vec![user(prompt)], expected);
        }
    }

    #[test]
    fn the_last_number_of_the_conversation_counts() {
        check(
            vec![
                user("remember the number 1"),
                said("Noted: 1."),
                user("remember the number 2"),
                said("Noted: 2."),
                user("what number?"),
            ],
            text("The number is 2."),
        );
        let summary = Message::User {
            parts: vec![noted("Earlier: remember the number 7"), UserPart::Block(Block::text("数字是多少"))],
        };
        check(vec![summary], text("The number is 7."));
        let foreign = Message::User {
            parts: vec![result("a", "remember the number 9"), UserPart::Block(Block::text("what number"))],
        };
        check(vec![user("use read {}"), said("reading"), foreign], text("I know no number."));
    }

    #[test]
    fn results_are_repeated_unless_a_prompt_follows_them() {
        let long = "é".repeat(300);
        let results = |more: Vec<UserPart>| {
            let parts = [vec![result("a", &long), result("b", "two")], more].concat();
            vec![user("use bash {}"), said("calling"), Message::User { parts }]
        };
        let repeated = text(&format!("Results: {} | two", "é".repeat(200)));
        check(results(vec![]), text(&format!("Results: {} | two", "é".repeat(200))));
        check(results(vec![noted("late")]), repeated);
        check(results(vec![UserPart::Block(Block::text("and now?"))]), text("You said: and now?"));
    }

    #[test]
    fn notes_are_passed_over() {
        let with_note = |text: &str| Message::User { parts: vec![noted(text)] };
        check(vec![user("hello"), said("You"), with_note("remember the number 3")], text("You said: hello"));
        let as_text = Message::User {
            parts: vec![UserPart::Block(Block::text("hi")), UserPart::Block(Block::text(note("x")))],
        };
        check(vec![as_text], text("You said: hi"));
        check(vec![with_note("alone")], text("You said: "));
    }

    #[test]
    fn pieces_are_the_text() {
        for text in ["", "a", "ab", "éé", "数字是多少", &"x".repeat(5000)] {
            let pieces: Vec<&str> = pieces(text).collect();
            assert_eq!(pieces.concat(), text);
            assert!(text.chars().count() < 2 || pieces.len() >= 2, "{text:?}");
        }
    }

    #[tokio::test]
    async fn words_come_one_by_one_and_end_with_a_stop() {
        let model = Practice::new().with_pace(Duration::ZERO);
        let request = Request { messages: vec![user("say 3 words")], ..Request::default() };
        let deltas: Vec<Delta> = model.stream(&request).await.unwrap().map(Result::unwrap).collect().await;
        let input = tokens(input_chars(&request));
        assert_eq!(
            deltas,
            [
                Delta::Usage(Usage { input, ..Usage::default() }),
                Delta::Text("word1".into()),
                Delta::Text(" word2".into()),
                Delta::Text(" word3".into()),
                Delta::Usage(Usage { input, output: 3, ..Usage::default() }),
                Delta::Stop(Stop::End),
            ]
        );
    }
}
