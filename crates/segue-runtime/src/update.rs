//! What a subscriber of a session sees.

use std::sync::Arc;

use segue_log::{CallId, Record};

use crate::permission::Question;

/// One thing that happened.
#[derive(Debug, Clone)]
pub enum Update {
    /// A record, once it is durable. Records come in order, without gaps.
    Record(Arc<Record>),
    /// A piece of an answer as it streams; the message that holds it comes as a record later.
    Delta {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
        /// What it is a piece of.
        kind: DeltaKind,
        /// The text.
        text: String,
    },
    /// A tool request is being streamed, or its call has begun.
    Calling {
        /// The call.
        call_id: CallId,
        /// The tool.
        tool: String,
    },
    /// Output of a running call.
    Progress {
        /// The call.
        call_id: CallId,
        /// The text.
        text: String,
    },
    /// A person is asked; answer through `Session::answer`.
    Question(Box<Question>),
    /// Something a person should know that is no record: a retry, a store that fails.
    Notice {
        /// A stable code.
        code: String,
        /// In words.
        message: String,
    },
}

/// What a delta is a piece of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaKind {
    /// The answer.
    Text,
    /// The model's reasoning.
    Thinking,
}
