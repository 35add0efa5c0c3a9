//! The header of a log and the events its records carry. `docs/log-format.md` describes them for readers of the files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::{Block, Usage};
use crate::id::{BlobHash, CallId, PromptId, SessionId};
use crate::time::Time;

/// A record's place in its log; the first is 1. 0 stands for "none yet".
pub type Seq = u64;

/// The format version this build writes.
pub const FORMAT: u32 = 1;

/// The first line of a log: what never changes about a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The format version; larger than [`FORMAT`] means written by a newer segue.
    pub segue: u32,
    /// The session's id.
    pub id: SessionId,
    /// When the session was made.
    pub created: Time,
    /// Its working folder at the time, absolute.
    pub cwd: PathBuf,
    /// For a fork: where it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
}

/// The session and the record that a fork was made at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The session forked from.
    pub id: SessionId,
    /// Its last record that the fork has too.
    pub seq: Seq,
}

/// One line of a log after the header.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its place.
    pub seq: Seq,
    /// When it was appended.
    pub time: Time,
    /// What it says.
    pub event: Event,
    /// The highest seq known durable when it was written.
    pub synced: Seq,
    /// Fields of its data that live in blobs.
    pub blobs: BTreeMap<String, BlobHash>,
}

/// Which boundaries a turn makes durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// All of them.
    #[default]
    Semantic,
    /// Accept and turn end only.
    Turn,
}

/// What a prompt is meant for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptFor {
    /// A turn of its own.
    #[default]
    Turn,
    /// The next step of the running turn.
    Step,
}

/// Why a request was sent to a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestFor {
    /// To go on with a turn.
    #[default]
    Step,
    /// To summarise what came before.
    Compaction,
}

/// What a tool may do to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing.
    Read,
    /// The same, however often it is called with the same input.
    Idempotent,
    /// Anything.
    Write,
}

/// Who ran a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// We entered its body.
    #[default]
    Dispatched,
    /// A hosted agent told us of it.
    Reported,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It did what it was asked.
    Ok,
    /// It did not; the result's code says why.
    Error,
}

/// Codes of failed results, as they stand in records.
pub mod code {
    /// Repair: the body was never entered.
    pub const NOT_STARTED: &str = "TOOL_NOT_STARTED";
    /// Repair: the body may have run; only the world knows.
    pub const OUTCOME_UNKNOWN: &str = "TOOL_OUTCOME_UNKNOWN";
    /// Repair: a look at the file shows that the change was not made.
    pub const NOT_APPLIED: &str = "TOOL_NOT_APPLIED";
    /// The record of the call could not be made durable; the body was not entered.
    pub const CHECKPOINT_FAILED: &str = "CHECKPOINT_FAILED";
    /// Cancelled while its record was being made durable; the body was not entered.
    pub const ABORTED: &str = "ABORTED_BEFORE_DISPATCH";
    /// Cancelled while its body ran; it may have had effects.
    pub const CANCELLED: &str = "TOOL_CANCELLED";
    /// Ended because it took too long; it may have had effects.
    pub const TIMED_OUT: &str = "TOOL_TIMED_OUT";
    /// The tool ran and reported a failure.
    pub const FAILED: &str = "TOOL_FAILED";
    /// No tool of that name.
    pub const UNKNOWN_TOOL: &str = "TOOL_UNKNOWN";
    /// The arguments do not fit the tool's schema.
    pub const INVALID_INPUT: &str = "TOOL_INPUT_INVALID";
    /// Not permitted.
    pub const DENIED: &str = "PERMISSION_DENIED";
    /// Of a turn: what it was about does not fit into the model's window.
    pub const CONTEXT_TOO_LONG: &str = "CONTEXT_TOO_LONG";
    /// The turn had no steps left.
    pub const MAX_STEPS: &str = "MAX_STEPS";
}

/// What a permission question was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionOutcome {
    /// This call only.
    AllowOnce,
    /// Whatever the rule matches, for this session.
    AllowSession,
    /// Whatever the rule matches, in this folder.
    AllowFolder,
    /// No.
    Deny,
}

/// A person's word on a call whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settlement {
    /// It did happen.
    Done,
    /// It did not happen and is no longer wanted.
    Skip,
    /// It may be called again.
    Retry,
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The model had nothing more to do.
    Completed,
    /// Somebody cancelled it.
    Cancelled,
    /// Something failed; the turn's code says what.
    Failed,
    /// The model's answer hit its length limit.
    MaxTokens,
    /// The turn used up its steps.
    MaxSteps,
    /// The model would not answer.
    Refused,
    /// The process died; written by repair.
    Interrupted,
}

impl EndReason {
    /// The reason as records write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::MaxTokens => "max_tokens",
            Self::MaxSteps => "max_steps",
            Self::Refused => "refused",
            Self::Interrupted => "interrupted",
        }
    }
}

/// One entry of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// What is to be done.
    pub text: String,
    /// `pending`, `in_progress` or `completed`; other words are kept.
    pub state: String,
}

/// What the log of a file change holds so that its outcome can be settled by a look, and be taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Expect {
    /// The file, absolute.
    pub path: PathBuf,
    /// The hash of its content before; none if there was no file.
    pub before: Option<BlobHash>,
    /// The hash of the content that the call makes.
    pub after: BlobHash,
    /// The blob that keeps the old content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<BlobHash>,
}

/// How `finish` took up an interrupted turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Finish {
    /// Our own agent: the history says it all.
    Resumed(bool),
    /// A hosted agent: the note that it was sent.
    Note(String),
}

fn is_false(flag: &bool) -> bool {
    !flag
}

macro_rules! events {
    ($( $(#[$doc:meta])* $name:ident = $kind:literal { $( $(#[$fmeta:meta])* $field:ident : $ty:ty ),* $(,)? } )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
            #[serde(rename_all = "camelCase")]
            pub struct $name { $( $(#[$fmeta])* pub $field: $ty ),* }

            impl From<$name> for Event {
                fn from(data: $name) -> Self { Event::$name(data) }
            }
        )*

        /// What a record says.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Event {
            $( #[doc = concat!("A `", $kind, "` record.")] $name($name), )*
            /// A record of a type that this version does not know, or whose data it cannot read; kept as it was.
            Unknown {
                /// The record's type.
                kind: String,
                /// Its data.
                data: Value,
            },
        }

        impl Event {
            /// The record's type, as the log writes it.
            pub fn kind(&self) -> &str {
                match self {
                    $( Self::$name(_) => $kind, )*
                    Self::Unknown { kind, .. } => kind,
                }
            }

            /// True if this version knows the type: a record of it that is [`Event::Unknown`] cannot be read.
            pub fn knows(kind: &str) -> bool {
                matches!(kind, $( $kind )|*)
            }

            /// The record's data as JSON.
            pub fn data(&self) -> Value {
                match self {
                    $( Self::$name(data) => serde_json::to_value(data).unwrap_or(Value::Null), )*
                    Self::Unknown { data, .. } => data.clone(),
                }
            }

            /// The record's data as JSON text.
            pub fn data_json(&self) -> String {
                match self {
                    $( Self::$name(data) => serde_json::to_string(data).unwrap_or_else(|_| "null".into()), )*
                    Self::Unknown { data, .. } => data.to_string(),
                }
            }

            /// Reads a record's data. A known type with data that does not fit is kept as [`Event::Unknown`].
            pub fn parse(kind: &str, data: &str) -> serde_json::Result<Self> {
                let known = match kind {
                    $( $kind => serde_json::from_str::<$name>(data).map(Self::$name), )*
                    _ => return Ok(Self::Unknown { kind: kind.to_owned(), data: serde_json::from_str(data)? }),
                };
                match known {
                    Ok(event) => Ok(event),
                    Err(_) => Ok(Self::Unknown { kind: kind.to_owned(), data: serde_json::from_str(data)? }),
                }
            }
        }
    };
}

events! {
    /// A prompt was accepted.
    PromptQueued = "prompt/queued" {
        /// Its id.
        prompt_id: PromptId,
        /// What it says.
        content: Vec<Block>,
        /// The surface that accepted it.
        #[serde(default)]
        source: String,
        /// A turn of its own, or the running one.
        #[serde(default, rename = "for")]
        target: PromptFor,
    }
    /// A prompt was taken back before a turn claimed it.
    PromptRemoved = "prompt/removed" {
        /// Its id.
        prompt_id: PromptId,
        /// Who took it back.
        #[serde(default)]
        by: String,
    }
    /// A turn began and took its prompts out of the queue.
    TurnStart = "turn/start" {
        /// The turn's number, from 1.
        turn: u64,
        /// The prompts it claims.
        #[serde(default)]
        prompt_ids: Vec<PromptId>,
        /// The checkpoint policy in force.
        #[serde(default)]
        policy: Policy,
        /// Set when `finish` took up an interrupted turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish: Option<Finish>,
    }
    /// A step began: one model request and its calls.
    StepStart = "step/start" {
        /// The turn.
        turn: u64,
        /// The step's number in its turn, from 1.
        step: u64,
        /// Prompts sent into the running turn that it claims.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        prompt_ids: Vec<PromptId>,
    }
    /// A step ended: every call of it has a result.
    StepEnd = "step/end" {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
    }
    /// A model request is about to be sent.
    RequestHeader = "request/header" {
        /// The turn; none for a compaction between turns.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<u64>,
        /// The step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<u64>,
        /// Which attempt this is, from 1.
        attempt: u64,
        /// Why it is sent.
        #[serde(default, rename = "for")]
        purpose: RequestFor,
        /// The record whose model, parameters, system and tools hold here too.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        same_as: Option<Seq>,
        /// The model, as provider/name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// Request parameters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parameters: Option<Value>,
        /// The system prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        system: Option<String>,
        /// The tools offered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tools: Option<Value>,
    }
    /// What a streaming answer brought since the previous such record.
    MessagePartial = "message/partial" {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
        /// The attempt.
        attempt: u64,
        /// What came.
        content: Vec<Block>,
    }
    /// A model's message, whole or cut off.
    MessageAssistant = "message/assistant" {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
        /// The attempt.
        #[serde(default)]
        attempt: u64,
        /// Text, thinking and tool requests.
        content: Vec<Block>,
        /// Tokens used.
        #[serde(default)]
        usage: Usage,
        /// Why the model stopped, in the provider's word.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop: Option<String>,
        /// True if it was cut off: by a crash, a cancel or a broken stream.
        #[serde(default, skip_serializing_if = "is_false")]
        interrupted: bool,
        /// True if it was taken over from a hosted agent's own history.
        #[serde(default, skip_serializing_if = "is_false")]
        replayed: bool,
    }
    /// A person was asked.
    PermissionAsked = "permission/asked" {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
        /// The call.
        call_id: CallId,
        /// The tool.
        #[serde(default)]
        tool: String,
        /// What was shown: exactly what will run or change.
        shown: String,
        /// The literal rule that "for this session" would add.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
    }
    /// The answer to a permission question.
    PermissionDecided = "permission/decided" {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
        /// The call.
        call_id: CallId,
        /// What was answered.
        outcome: PermissionOutcome,
        /// Who answered.
        #[serde(default)]
        by: String,
        /// For a session or a folder: the literal rule that was shown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// For a no: why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// A tool's body is about to be entered.
    ToolCall = "tool/call" {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
        /// The call.
        call_id: CallId,
        /// The provider's id.
        #[serde(default)]
        provider_id: String,
        /// The tool.
        tool: String,
        /// Its arguments.
        input: Value,
        /// What it may do to the world.
        effect: Effect,
        /// For a file change: how its outcome can be told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<Expect>,
        /// Who runs it.
        #[serde(default)]
        origin: Origin,
        /// The machine it runs on.
        #[serde(default)]
        host: String,
        /// The boot of that machine.
        #[serde(default)]
        boot: String,
        /// True if it was taken over from a hosted agent's own history.
        #[serde(default, skip_serializing_if = "is_false")]
        replayed: bool,
    }
    /// A call's result.
    ToolResult = "tool/result" {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
        /// The call.
        call_id: CallId,
        /// How it ended.
        outcome: Outcome,
        /// For an error: its code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// What it returned.
        content: Vec<Block>,
        /// True if repair found it out after a crash.
        #[serde(default, skip_serializing_if = "is_false")]
        recovered: bool,
        /// True if it was taken over from a hosted agent's own history.
        #[serde(default, skip_serializing_if = "is_false")]
        replayed: bool,
    }
    /// A person's word on a call whose outcome is unknown.
    CallSettled = "call/settled" {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
        /// The call.
        call_id: CallId,
        /// What was decided.
        how: Settlement,
        /// What the person adds.
        #[serde(default)]
        note: String,
        /// Who decided.
        #[serde(default)]
        by: String,
    }
    /// The agent's plan, whole.
    Plan = "plan" {
        /// Its entries.
        entries: Vec<PlanEntry>,
    }
    /// A turn ended.
    TurnEnd = "turn/end" {
        /// The turn.
        turn: u64,
        /// Why.
        reason: EndReason,
        /// For `failed`: what failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// For `failed`: the same in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// The session's title.
        #[serde(default)]
        title: String,
        /// How many turns the session has.
        #[serde(default)]
        turns: u64,
        /// Tokens this turn used.
        #[serde(default)]
        usage: Usage,
    }
    /// What the model sees in place of everything up to a seq.
    Compaction = "compaction" {
        /// The last record replaced.
        up_to: Seq,
        /// What stands for them.
        summary: String,
    }
    /// A hosted agent's conversation was bound to this session.
    AgentBound = "agent/bound" {
        /// The agent's name in the config.
        agent: String,
        /// Its version.
        #[serde(default)]
        version: String,
        /// Its own id for the conversation.
        #[serde(default)]
        agent_session_id: String,
        /// The way it was bound.
        #[serde(default)]
        how: String,
        /// `transcript` until it has been told the past.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owes: Option<String>,
    }
    /// How a resume went.
    AgentResumed = "agent/resumed" {
        /// The way that was taken.
        strategy: String,
        /// `resumed`, `rehydrated` or `fresh`.
        outcome: String,
        /// Why.
        #[serde(default)]
        reason: String,
    }
    /// A hosted agent's update that has no counterpart here.
    AgentUpdate = "agent/update" {
        /// The update, raw.
        update: Value,
    }
    /// The session was given a title.
    SessionTitle = "session/title" {
        /// The title.
        title: String,
        /// Who gave it.
        #[serde(default)]
        by: String,
    }
    /// Settings changed; absent fields stay as they were.
    SessionConfig = "session/config" {
        /// The agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
        /// The model, as provider/name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// The permission level.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        permissions: Option<String>,
        /// The working folder, when it moved.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<PathBuf>,
        /// Who changed them.
        #[serde(default)]
        by: String,
    }
    /// The end of the log was lost and cut away.
    SessionRepaired = "session/repaired" {
        /// The last record before the cut.
        cut_at: Seq,
        /// The files that keep what was cut.
        #[serde(default)]
        files: Vec<String>,
    }
    /// A line that could not be read, in its place in a repaired copy.
    SessionDamaged = "session/damaged" {
        /// The line's bytes as text, cut to 1,000 characters.
        #[serde(default)]
        line: String,
        /// What was wrong with it.
        #[serde(default)]
        reason: String,
    }
}

impl Event {
    /// The turn that the record belongs to, where it names one.
    pub fn turn(&self) -> Option<u64> {
        match self {
            Self::TurnStart(data) => Some(data.turn),
            Self::StepStart(data) => Some(data.turn),
            Self::StepEnd(data) => Some(data.turn),
            Self::RequestHeader(data) => data.turn,
            Self::MessagePartial(data) => Some(data.turn),
            Self::MessageAssistant(data) => Some(data.turn),
            Self::PermissionAsked(data) => Some(data.turn),
            Self::PermissionDecided(data) => Some(data.turn),
            Self::ToolCall(data) => Some(data.turn),
            Self::ToolResult(data) => Some(data.turn),
            Self::CallSettled(data) => Some(data.turn),
            Self::TurnEnd(data) => Some(data.turn),
            _ => None,
        }
    }
}
