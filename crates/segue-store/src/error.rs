//! What can go wrong with a store.

use std::path::PathBuf;

use segue_log::{Seq, SessionId};

use crate::store::Holder;

/// A store's result.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A failure of a store: what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No session has that id.
    #[error("there is no session {id} in {place}")]
    NotFound {
        /// The id asked for.
        id: SessionId,
        /// Where it was looked for.
        place: String,
    },
    /// A session of that id is there already.
    #[error("there is a session {id} already")]
    Exists {
        /// The id.
        id: SessionId,
    },
    /// Another process, or another part of this one, has the session open for writing.
    #[error("session {id} is in use{}", .holder.as_ref().map(|h| format!(" by {h}")).unwrap_or_default())]
    InUse {
        /// The session.
        id: SessionId,
        /// Who has it, if that could be read and is still alive.
        holder: Option<Holder>,
    },
    /// The log is damaged below what was durable: it can be read up to there, and not be continued.
    #[error(
        "session {id} is damaged after record {readable}: {what} ({}); it can be read up to there; `segue sessions repair {id}` makes a copy that can be continued",
        .path.display()
    )]
    Damaged {
        /// The session.
        id: SessionId,
        /// The file.
        path: PathBuf,
        /// The last record that can be read.
        readable: Seq,
        /// What is wrong.
        what: String,
    },
    /// The log was written by a newer version.
    #[error(
        "session {id} was written by a newer segue (format {format}); it can be read but not continued by this one"
    )]
    Newer {
        /// The session.
        id: SessionId,
        /// The format it names.
        format: u32,
    },
    /// The medium failed.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried, such as `write`.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: std::io::Error,
    },
    /// The place cannot hold sessions that are written to.
    #[error("{0}")]
    Unsuitable(String),
    /// The writer was closed, or its lease is lost.
    #[error("session {id} is closed")]
    Closed {
        /// The session.
        id: SessionId,
    },
    /// A seq that the log does not have.
    #[error("session {id} has no record {seq}; its last is {last}")]
    NoSuchSeq {
        /// The session.
        id: SessionId,
        /// The seq asked for.
        seq: Seq,
        /// The last there is.
        last: Seq,
    },
}
