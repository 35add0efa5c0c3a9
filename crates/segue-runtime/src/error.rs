//! What can go wrong with a session.

use segue_log::{BadId, CallId, PromptId, SessionId};
use segue_store::StoreError;

/// A session operation's result.
pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

/// A failure of a session operation.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The store failed, or refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was asked for is not known to be stored, and so does not count: a boundary failed.
    #[error("{what} could not be stored and does not count: {source}")]
    NotStored {
        /// What was to be stored, such as `the prompt`.
        what: &'static str,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// The id was used for a prompt with other content.
    #[error("prompt id {0} was used for other content before; choose a new one")]
    PromptConflict(PromptId),
    /// A prompt without anything in it.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// No such prompt waits.
    #[error("no prompt {0} waits in the queue")]
    NotQueued(PromptId),
    /// No such call.
    #[error("session {session} has no call {call}")]
    NoSuchCall {
        /// The session.
        session: SessionId,
        /// The call.
        call: CallId,
    },
    /// Only unknown outcomes can be settled.
    #[error("the outcome of call {call} is not unknown: {state}")]
    NothingToSettle {
        /// The call.
        call: CallId,
        /// What is known of it.
        state: String,
    },
    /// No question waits for that call.
    #[error("no permission question waits for call {0}")]
    NoQuestion(CallId),
    /// The last turn ended as it should.
    #[error("there is nothing to finish: the last turn was not interrupted")]
    NothingToFinish,
    /// Nothing new that a summary could replace.
    #[error("there is nothing to compact yet")]
    NothingToCompact,
    /// Compaction failed.
    #[error("the conversation could not be compacted ({code}): {message}")]
    CompactionFailed {
        /// A stable code.
        code: String,
        /// In words.
        message: String,
    },
    /// The session was closed.
    #[error("session {0} is closed")]
    Closed(SessionId),
    /// The agent cannot be had.
    #[error("{0}")]
    Driver(String),
    /// Text that is no id.
    #[error(transparent)]
    BadId(#[from] BadId),
}
