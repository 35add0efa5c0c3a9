//! Plays the steps of a script.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::keep::append;
use super::process::{Agent, lock, text_of};
use super::script::{Keeps, Step};
use crate::model_server::practice_words;

/// How often a step that waits looks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(5);

/// Updates that are about the conversation's state and no part of it: no load replays them.
const NOT_REPLAYED: [&str; 6] = [
    "available_commands_update",
    "current_mode_update",
    "config_option_update",
    "session_info_update",
    "usage_update",
    "notice",
];

/// A turn of a session, or what happens outside of one.
pub(super) struct Turn<'a> {
    agent: &'a Arc<Agent>,
    session: String,
    cancelled: Arc<AtomicBool>,
}

impl<'a> Turn<'a> {
    pub fn outside(agent: &'a Arc<Agent>) -> Self {
        Self::of(agent, "")
    }

    pub fn of(agent: &'a Arc<Agent>, session: &str) -> Self {
        let cancelled = lock(&agent.sessions).get(session).map(|live| Arc::clone(&live.cancelled));
        Self { agent, session: session.to_owned(), cancelled: cancelled.unwrap_or_default() }
    }

    pub fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    pub fn play_all(&self, steps: &[Step]) {
        let mut answer = Value::Null;
        for step in steps {
            if self.cancelled() {
                return;
            }
            self.play(step, &mut answer);
        }
    }

    fn play(&self, step: &Step, answer: &mut Value) {
        match step {
            Step::Practice => self.practice(),
            Step::Say(text) => self.chunk("agent_message_chunk", text),
            Step::SayIn { id, text } => self.update(json!({
                "sessionUpdate": "agent_message_chunk", "messageId": id, "content": {"type": "text", "text": text},
            })),
            Step::Think(text) => self.chunk("agent_thought_chunk", text),
            Step::Update(update) => self.update(update.clone()),
            Step::Notify { method, params } => {
                self.agent.send(json!({"method": method, "params": self.filled(params, answer)}));
            }
            Step::Ask { call, options, allowed, refused } => self.ask(call, options, allowed, refused),
            Step::Request { method, params } => {
                let receiver = self.agent.ask(method, &self.filled(params, answer));
                *answer = self.wait(&receiver).unwrap_or_default();
            }
            Step::Wait(ms) => {
                let until = Instant::now() + Duration::from_millis(*ms);
                self.until(|| Instant::now() >= until);
            }
            Step::WaitFor(path) => self.until(|| path.exists()),
            Step::Append { path, line } => self.tell(append(path, &format!("{line}\n"))),
            Step::Spawn(command) => {
                if let Some((program, arguments)) = command.split_first() {
                    let mut command = Command::new(program);
                    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
                    self.tell(command.spawn().map(drop));
                }
            }
            Step::Raw(line) => self.agent.raw(line),
            Step::Stderr { text, times } => {
                let mut stderr = std::io::stderr().lock();
                for _ in 0..*times {
                    drop(stderr.write_all(text.as_bytes()));
                }
            }
            Step::Flood { chunks, bytes } => {
                for _ in 0..*chunks {
                    self.chunk("agent_message_chunk", &"x".repeat(*bytes));
                }
            }
            Step::Stall => self.until(|| false),
            Step::Forget => {
                lock(&self.agent.sessions).remove(&self.session);
                self.agent.keeper.remove(&self.session);
            }
            Step::Die { code } => std::process::exit(*code),
            Step::DieIn { ms, code } => {
                let (ms, code) = (*ms, *code);
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(ms));
                    std::process::exit(code);
                });
            }
        }
    }

    /// Answers from what the session holds, word by word.
    pub fn practice(&self) {
        let updates = lock(&self.agent.sessions)
            .get(&self.session)
            .map(|live| live.updates.clone())
            .unwrap_or_default();
        let mut said: Vec<String> = Vec::new();
        let mut goes_on = false;
        for update in updates {
            let is_prompt = update["sessionUpdate"] == "user_message_chunk";
            let text = text_of(&update["content"]);
            match said.last_mut() {
                Some(last) if is_prompt && goes_on => *last = format!("{last}\n{text}"),
                _ if is_prompt => said.push(text.to_owned()),
                _ => {}
            }
            goes_on = is_prompt;
        }
        for word in practice_words(&said).split_inclusive(' ') {
            self.chunk("agent_message_chunk", word);
        }
    }

    fn chunk(&self, kind: &str, text: &str) {
        self.update(json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}));
    }

    /// Keeps an update, then sends it.
    fn update(&self, update: Value) {
        self.keep(update.clone());
        let params = json!({"sessionId": self.session, "update": update});
        self.agent.send(json!({"method": "session/update", "params": params}));
    }

    /// Adds an update to the session's past.
    pub fn keep(&self, update: Value) {
        if update["sessionUpdate"].as_str().is_some_and(|kind| NOT_REPLAYED.contains(&kind)) {
            return;
        }
        if let Some(live) = lock(&self.agent.sessions).get_mut(&self.session) {
            live.unwritten.push(json!({"update": update}));
            live.updates.push(update);
        }
        if self.agent.script.keeps == Keeps::AsSaid {
            self.agent.write_down(&self.session);
        }
    }

    fn ask(&self, call: &Value, options: &Value, allowed: &[Step], refused: &[Step]) {
        let options = match options {
            Value::Null => json!([
                {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
                {"optionId": "always", "name": "Always allow", "kind": "allow_always"},
                {"optionId": "no", "name": "Reject", "kind": "reject_once"},
            ]),
            given => given.clone(),
        };
        let mut announced = call.clone();
        announced["sessionUpdate"] = json!("tool_call");
        self.update(announced);
        let params = json!({"sessionId": self.session, "toolCall": call, "options": options});
        let Some(answer) = self.wait(&self.agent.ask("session/request_permission", &params)) else { return };
        let outcome = &answer["outcome"];
        if outcome["outcome"] == "cancelled" {
            self.cancelled.store(true, Ordering::SeqCst);
            return;
        }
        let chosen = options.as_array().into_iter().flatten().find(|o| o["optionId"] == outcome["optionId"]);
        let may = chosen.and_then(|option| option["kind"].as_str()).is_some_and(|k| k.starts_with("allow_"));
        self.play_all(if may { allowed } else { refused });
    }

    /// Waits for the client's answer: its result, or its error object. None if cancelled meanwhile.
    fn wait(&self, answer: &Receiver<Value>) -> Option<Value> {
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(message) => {
                    return Some(message.get("result").or(message.get("error")).cloned().unwrap_or_default());
                }
                // The answer to a question comes also when the turn is cancelled; any other may not.
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn until(&self, done: impl Fn() -> bool) {
        while !self.cancelled() && !done() {
            std::thread::sleep(LOOK);
        }
    }

    /// Params with the session's id and the last answer filled in.
    fn filled(&self, params: &Value, answer: &Value) -> Value {
        match params {
            Value::String(text) => match text.strip_prefix("$answer") {
                Some(pointer) => answer.pointer(pointer).cloned().unwrap_or_default(),
                None => json!(text.replace("$session", &self.session)),
            },
            Value::Array(list) => list.iter().map(|value| self.filled(value, answer)).collect(),
            Value::Object(map) => {
                map.iter().map(|(key, value)| (key.clone(), self.filled(value, answer))).collect()
            }
            other => other.clone(),
        }
    }

    fn tell(&self, result: std::io::Result<()>) {
        if let Err(error) = result {
            eprintln!("the fake agent failed at a step: {error}");
        }
    }
}
