//! Stands in for Landlock on systems without it.

use std::ffi::OsString;

/// Why a command was not started in the sandbox.
#[derive(Debug, thiserror::Error)]
pub enum RestrictError {
    /// This system has no Landlock.
    #[error("this system has no Landlock")]
    Unsupported,
}

/// Refuses: nothing of the command has run.
pub fn restrict_and_exec(_arguments: impl IntoIterator<Item = OsString>) -> RestrictError {
    RestrictError::Unsupported
}
