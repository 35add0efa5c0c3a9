//! Errors as a person or a script meets them: what happened, what to do, and the exit code.

use std::fmt;

use segue_runtime::RuntimeError;
use segue_store::StoreError;

/// The launcher's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure it is; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The command line is wrong, or asks for something that cannot be had.
    Usage,
    /// The configuration or the environment is wrong.
    Config,
    /// No such session.
    NotFound,
    /// The session is in use by another process.
    InUse,
    /// Storage failed or is damaged.
    Storage,
    /// The turn did not complete.
    Turn,
    /// A signal ended us.
    Signal(u8),
    /// A defect of ours, or the machine failing in a way that has no kind of its own.
    Internal,
}

impl Kind {
    /// The process's exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage | Self::Config => 2,
            Self::NotFound => 3,
            Self::InUse => 4,
            Self::Storage => 5,
            Self::Turn | Self::Internal => 1,
            Self::Signal(number) => 128u8.saturating_add(number),
        }
    }

    /// The stable code that JSON carries when the failure has none of its own.
    fn code(self) -> &'static str {
        match self {
            Self::Usage => "USAGE",
            Self::Config => "CONFIG_INVALID",
            Self::NotFound => "SESSION_NOT_FOUND",
            Self::InUse => "SESSION_IN_USE",
            Self::Storage => "STORAGE_FAILED",
            Self::Turn => "TURN_FAILED",
            Self::Signal(_) => "INTERRUPTED",
            Self::Internal => "INTERNAL",
        }
    }
}

/// A failure that ends the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Its kind.
    pub kind: Kind,
    /// A stable code for JSON.
    pub code: String,
    /// What happened; may have several lines.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Error {
    /// A failure of a kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, code: kind.code().to_owned(), message: message.into(), hint: None }
    }

    /// A mistake on the command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// A mistake in the configuration.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(Kind::Config, message)
    }

    /// The same with advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with a code of its own.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = code.into();
        self
    }

    /// The object that JSON output carries.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "code": self.code, "message": self.message })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::NotFound { .. } => Self::new(Kind::NotFound, message)
                .hint("`segue sessions list --all` names the sessions that there are"),
            StoreError::InUse { id, .. } => Self::new(Kind::InUse, message).hint(format!(
                "wait for it, read it with `segue sessions show {id}`, or go on in a copy: `segue sessions fork {id}`"
            )),
            StoreError::Damaged { .. } => Self::new(Kind::Storage, message).code("SESSION_DAMAGED"),
            StoreError::Newer { .. } => Self::new(Kind::Storage, message)
                .code("SESSION_NEWER")
                .hint("`segue sessions show` can still read it; a current segue can go on with it"),
            StoreError::NoSuchSeq { .. } => Self::usage(message),
            _ => Self::new(Kind::Storage, message),
        }
    }
}

impl From<RuntimeError> for Error {
    fn from(error: RuntimeError) -> Self {
        let message = error.to_string();
        match error {
            RuntimeError::Store(error) => error.into(),
            RuntimeError::NotStored { .. } => {
                Self::new(Kind::Storage, message).code(segue_log::code::CHECKPOINT_FAILED)
            }
            RuntimeError::PromptConflict(_)
            | RuntimeError::EmptyPrompt
            | RuntimeError::NotQueued(_)
            | RuntimeError::NoSuchCall { .. }
            | RuntimeError::NothingToSettle { .. }
            | RuntimeError::NoQuestion(_)
            | RuntimeError::NothingToFinish
            | RuntimeError::NothingToCompact
            | RuntimeError::BadId(_) => Self::usage(message),
            RuntimeError::CompactionFailed { code, .. } => Self::new(Kind::Turn, message).code(code),
            RuntimeError::Driver(_) => Self::config(message),
            RuntimeError::Closed(_) => Self::new(Kind::Turn, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_documented_exit_codes() {
        let expected = [
            (Kind::Turn, 1),
            (Kind::Internal, 1),
            (Kind::Usage, 2),
            (Kind::Config, 2),
            (Kind::NotFound, 3),
            (Kind::InUse, 4),
            (Kind::Storage, 5),
            (Kind::Signal(1), 129),
            (Kind::Signal(2), 130),
            (Kind::Signal(15), 143),
        ];
        for (kind, code) in expected {
            assert_eq!(kind.exit_code(), code, "{kind:?}");
        }
    }
}
