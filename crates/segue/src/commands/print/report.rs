//! What `-p` tells on stdout: the answer, or the one object that says how the turn went.

use segue_log::{AgentResumed, EndReason, SessionId, Usage};
use segue_native::AGENT;
use segue_runtime::{DeltaKind, OpenReport, Update};
use serde_json::{Value, json};

use crate::args::RunOutput;
use crate::commands::sessions::record_json;
use crate::error::{Error, Result};
use crate::{output, wiring};

/// How the turn went, as far as it is known.
#[derive(Debug, Default)]
pub struct Report {
    format: RunOutput,
    /// The session.
    pub session: Option<SessionId>,
    /// The turn that answered.
    pub turn: Option<u64>,
    /// Why it ended.
    pub status: Option<EndReason>,
    /// The answer.
    pub text: Option<String>,
    /// The model, as provider/name.
    pub model: Option<String>,
    /// The agent.
    pub agent: Option<String>,
    /// True if the session was there before.
    pub is_resumed: bool,
    /// For a hosted agent: how it was brought back into its conversation, if it was.
    pub agent_resumed: Option<AgentResumed>,
    /// Calls that repair answered.
    repaired: Vec<Value>,
    /// Tokens of the turn.
    pub usage: Option<Usage>,
    error: Option<Value>,
}

impl Report {
    /// Nothing is known yet.
    pub fn new(format: RunOutput) -> Self {
        Self { format, ..Self::default() }
    }

    /// Takes over what opening the session found.
    pub fn opened(&mut self, report: &OpenReport) {
        self.repaired = report
            .repaired
            .iter()
            .map(|(call, tool, outcome)| {
                json!({"callId": call, "tool": tool, "outcome": wiring::repair_word(*outcome)})
            })
            .collect();
    }

    /// Takes over what went wrong; the first failure counts.
    pub fn error(&mut self, error: &Error) {
        self.error.get_or_insert_with(|| error.to_json());
    }

    /// The first line of a stream, once the session is durable.
    pub fn begin(&self, session: SessionId) -> Result<()> {
        match self.format {
            RunOutput::StreamJson => output::print_json(&json!({"type": "session", "id": session})),
            RunOutput::Text | RunOutput::Json => Ok(()),
        }
    }

    /// One thing that happened, for a stream.
    pub fn update(&self, update: &Update) -> Result<()> {
        if self.format != RunOutput::StreamJson {
            return Ok(());
        }
        match update {
            Update::Record(record) => output::print_json(&record_json(record)),
            Update::Delta { kind, text, .. } => {
                let kind = match kind {
                    DeltaKind::Text => "text",
                    DeltaKind::Thinking => "thinking",
                };
                output::print_json(&json!({"type": "delta", "kind": kind, "text": text}))
            }
            Update::Calling { .. }
            | Update::Progress { .. }
            | Update::Question(_)
            | Update::Notice { .. } => Ok(()),
        }
    }

    /// Prints the answer, or the object.
    pub fn print(&self) -> Result<()> {
        match self.format {
            RunOutput::Text => match self.text.as_deref() {
                None | Some("") => Ok(()),
                Some(text) => output::print(text),
            },
            RunOutput::Json => output::print_json(&self.object()),
            RunOutput::StreamJson => {
                let mut object = json!({"type": "result"});
                if let (Some(to), Value::Object(from)) = (object.as_object_mut(), self.object()) {
                    to.extend(from);
                }
                output::print_json(&object)
            }
        }
    }

    fn object(&self) -> Value {
        let is_native = self.agent.as_deref().is_none_or(|agent| agent == AGENT);
        let resume = match &self.agent_resumed {
            Some(resumed) => json!({"outcome": resumed.outcome, "reason": resumed.reason}),
            None if self.is_resumed && is_native => {
                json!({"outcome": "resumed", "reason": "its history comes from the session's log"})
            }
            None => Value::Null,
        };
        let mut object = json!({
            "session": self.session,
            "turn": self.turn,
            "status": self.status.map(EndReason::as_str),
            "text": self.text,
            "model": self.model,
            "agent": self.agent,
            "resume": resume,
            "repaired": self.repaired,
            "usage": self.usage,
        });
        if let Some(error) = &self.error {
            object["error"] = error.clone();
        }
        object
    }
}
