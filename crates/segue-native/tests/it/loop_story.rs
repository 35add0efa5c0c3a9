//! Short ways to say what happened: request bodies in short, replies that wait, logs that a killed process left.

use std::sync::{Mutex, mpsc};

use segue_log::*;
use segue_runtime::{DeltaKind, Subscription, Update};
use segue_store::Store;
use segue_testkit::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::world::*;

/// Both wire formats.
pub const BOTH: [segue_testkit::Wire; 2] = [segue_testkit::Wire::Anthropic, segue_testkit::Wire::OpenAi];

/// The messages of a request in short, the same for both wire formats: `role: part | part`, where `=…` is a result,
/// `tool{…}` a request, `(…)` the beginning of a note of ours.
pub fn sent(body: &Value) -> Vec<String> {
    let mut out: Vec<(String, Vec<String>)> = Vec::new();
    for message in body["messages"].as_array().into_iter().flatten() {
        let role = match message["role"].as_str().unwrap_or_default() {
            "system" => continue,
            "tool" => "user",
            role => role,
        };
        let mut parts = match (&message["content"], message["role"] == "tool") {
            (Value::String(text), true) => vec![format!("={}", short(text))],
            (Value::String(text), false) => vec![short(text)],
            (content, _) => content.as_array().into_iter().flatten().map(part).collect(),
        };
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            parts.push(format!(
                "{}{}",
                function["name"].as_str().unwrap_or_default(),
                function["arguments"].as_str().unwrap_or_default()
            ));
        }
        match out.last_mut() {
            Some((last, before)) if last == role => before.extend(parts),
            _ => out.push((role.to_owned(), parts)),
        }
    }
    out.into_iter().map(|(role, parts)| format!("{role}: {}", parts.join(" | "))).collect()
}

fn short(text: &str) -> String {
    match text.strip_prefix("<segue-note>") {
        Some(note) => format!("({})", note.chars().take(24).collect::<String>()),
        None => text.lines().next().unwrap_or_default().chars().take(60).collect(),
    }
}

fn part(block: &Value) -> String {
    match block["type"].as_str().unwrap_or_default() {
        "text" => short(block["text"].as_str().unwrap_or_default()),
        "tool_use" => format!("{}{}", block["name"].as_str().unwrap_or_default(), block["input"]),
        "tool_result" => {
            let texts = block["content"].as_array().into_iter().flatten();
            let texts: Vec<&str> = texts.filter_map(|block| block["text"].as_str()).collect();
            format!("={}", short(&texts.join("\n")))
        }
        "thinking" => "~".into(),
        kind => format!("[{kind}]"),
    }
}

/// The last request in short.
pub fn last_sent(server: &ModelServer) -> Vec<String> {
    server.bodies().last().map(sent).unwrap_or_default()
}

/// A reply that waits until this is dropped or told to go.
pub struct Held(mpsc::Sender<()>);

impl Held {
    /// The next request for which the script has nothing is answered with `reply`, once it may.
    pub fn reply(server: &ModelServer, reply: Reply) -> Self {
        let (sender, receiver) = mpsc::channel::<()>();
        let once = Mutex::new(Some((reply, receiver)));
        server.respond_with(move |_| {
            let (reply, receiver) = once.lock().unwrap().take()?;
            // An error says that the sender is gone, which lets it through too.
            receiver.recv().ok();
            Some(reply)
        });
        Self(sender)
    }

    /// Lets it through.
    pub fn go(self) {
        drop(self.0);
    }
}

/// Reads until a live piece of text ends with `end`.
pub async fn streamed(subscription: &mut Subscription, end: &str) {
    let mut seen = String::new();
    while !seen.ends_with(end) {
        let update = within(subscription.next()).await.expect("the session is open");
        if let Update::Delta { kind: DeltaKind::Text, text, .. } = update {
            seen.push_str(&text);
        }
    }
}

/// Reads until `find` finds something.
pub async fn update<T>(subscription: &mut Subscription, mut find: impl FnMut(Update) -> Option<T>) -> T {
    loop {
        if let Some(found) = find(within(subscription.next()).await.expect("the session is open")) {
            return found;
        }
    }
}

/// A log as a killed process left it; the session is closed.
pub async fn left_behind(world: &World, events: Vec<Event>) -> SessionId {
    let header = Header {
        segue: FORMAT,
        id: SessionId::mint(),
        created: Time::now(),
        cwd: world.place.work.clone(),
        parent: None,
    };
    let opened = world.place.store().create(header.clone(), "test").await.unwrap();
    for event in events {
        opened.writer.append(event).await.unwrap();
    }
    opened.writer.sync().await.unwrap();
    opened.writer.close().await.unwrap();
    header.id
}

/// A turn with one prompt, up to its first request.
pub fn begun(text: &str) -> Vec<Event> {
    let (turn, step, prompt_ids) = (1, 1, vec![prompt_id("p1")]);
    let content = vec![Block::text(text)];
    let queued =
        PromptQueued { prompt_id: prompt_id("p1"), content, source: "test".into(), target: PromptFor::Turn };
    vec![
        queued.into(),
        TurnStart { turn, prompt_ids, policy: Policy::Semantic, finish: None }.into(),
        StepStart { turn, step, prompt_ids: vec![] }.into(),
    ]
}

/// The message of that turn that calls `count` once.
pub fn wants_count(line: &str) -> Event {
    let request = Block::ToolRequest {
        call_id: call_id("c1"),
        provider_id: "toolu_1".into(),
        tool: "count".into(),
        input: json!({"line": line}),
    };
    MessageAssistant {
        turn: 1,
        step: 1,
        attempt: 1,
        content: vec![request],
        usage: Usage::default(),
        stop: Some("tools".into()),
        interrupted: false,
        replayed: false,
    }
    .into()
}

/// The call of that message, entered.
pub fn entered(line: &str) -> Event {
    ToolCall {
        turn: 1,
        step: 1,
        call_id: call_id("c1"),
        provider_id: "toolu_1".into(),
        tool: "count".into(),
        input: json!({"line": line}),
        effect: Effect::Write,
        expect: None,
        origin: Origin::Dispatched,
        host: HOST.into(),
        boot: "test-boot".into(),
        replayed: false,
    }
    .into()
}

/// Its result.
pub fn returned(text: &str) -> Event {
    ToolResult {
        turn: 1,
        step: 1,
        call_id: call_id("c1"),
        outcome: Outcome::Ok,
        code: None,
        content: vec![Block::text(text)],
        recovered: false,
        replayed: false,
    }
    .into()
}

/// A call's id.
pub fn call_id(id: &str) -> CallId {
    id.parse().unwrap()
}

/// The last turn's end must come after a result for every request of it.
pub fn is_truthful(conversation: &Conversation) {
    for turn in conversation.turns() {
        let (end, _) = turn.end.as_ref().expect("every turn has ended");
        for call in turn.calls() {
            let first = call.results.first().unwrap_or_else(|| panic!("{} has no result", call.call_id));
            assert!(first.seq < *end, "{} was answered after its turn's end", call.call_id);
        }
    }
}
