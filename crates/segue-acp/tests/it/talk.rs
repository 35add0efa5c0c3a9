//! A conversation of a test with a session, in words.

use std::path::Path;

use segue_log::{Block, Event, PromptFor, SessionId};
use segue_runtime::{NewPrompt, Outcome, Session};
use serde_json::{Value, json};

use crate::world::{PATIENCE, World, until};

pub const REMEMBER: &str = "remember the number 7";
pub const QUESTION: &str = "what number was it?";
/// How the question's turn ends when the past is there.
pub const KNOWS: &str = "completed: The number is 7.";

impl World {
    /// A session in which a number was told, closed again.
    pub async fn with_a_number(&self) -> SessionId {
        let session = self.begin().await;
        assert_eq!(self.say(&session, REMEMBER).await, "completed: Noted: 7.");
        session.close().await.unwrap();
        session.id()
    }

    /// Prompts, and gives how the turn ended: `completed: TEXT`, `cancelled`, `failed CODE: MESSAGE`.
    pub async fn say(&self, session: &Session, text: &str) -> String {
        let outcome = self.outcome(session, text).await;
        told(session, &outcome)
    }

    pub async fn outcome(&self, session: &Session, text: &str) -> Outcome {
        let accepted = session.prompt(prompt(text)).await.unwrap();
        tokio::time::timeout(PATIENCE, session.wait(&accepted.prompt_id))
            .await
            .unwrap_or_else(|_| panic!("the turn did not end; received: {:#?}", self.agent.received()))
            .unwrap()
    }

    /// Opens a session, prompts, and closes it.
    pub async fn say_in(&self, id: SessionId, text: &str) -> String {
        let session = self.reopen(id).await;
        let told = self.say(&session, text).await;
        session.close().await.unwrap();
        told
    }

    /// The records of a session on disk, as JSON.
    pub async fn json(&self, id: SessionId) -> Vec<Value> {
        let read = self.store().read(id, 1).await.unwrap();
        let value = |event: &Event| json!({"type": event.kind(), "data": event.data()});
        read.records.iter().map(|record| value(&record.event)).collect()
    }

    /// The data of its records of a type.
    pub async fn data(&self, id: SessionId, kind: &str) -> Vec<Value> {
        let of_kind = self.json(id).await.into_iter().filter(|record| record["type"] == kind);
        of_kind.map(|record| record["data"].clone()).collect()
    }

    /// How the resumes of a session went, in order: `STRATEGY OUTCOME`.
    pub async fn resumes(&self, id: SessionId) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resumed = self.data(id, "agent/resumed").await.into_iter();
        resumed.map(|data| format!("{} {}", text(&data["strategy"]), text(&data["outcome"]))).collect()
    }

    /// Its results, in order: `ok`, or the error's code.
    pub async fn results(&self, id: SessionId) -> Vec<String> {
        let name = |data: &Value| match data["code"].as_str() {
            Some(code) => code.to_owned(),
            None => data["outcome"].as_str().unwrap_or_default().to_owned(),
        };
        self.data(id, "tool/result").await.iter().map(name).collect()
    }
}

pub fn prompt(text: &str) -> NewPrompt {
    NewPrompt { id: None, content: vec![Block::text(text)], source: "test".into(), target: PromptFor::Turn }
}

pub fn told(session: &Session, outcome: &Outcome) -> String {
    let end = &outcome.end;
    let reason = serde_json::to_value(end.reason).unwrap();
    let reason = reason.as_str().unwrap();
    match (reason, &end.code) {
        ("completed", _) => format!("completed: {}", session.answer_text(outcome.turn)),
        (_, Some(code)) => format!("{reason} {code}: {}", end.message.clone().unwrap_or_default()),
        _ => reason.to_owned(),
    }
}

/// The process id that something wrote into a file.
pub async fn pid_in(file: &Path) -> u32 {
    let whole = || std::fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n'));
    until("a pid in the file", whole).await;
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}
