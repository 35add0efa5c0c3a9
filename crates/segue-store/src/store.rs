//! The seam between sessions and the media they are kept on.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use segue_log::{BlobHash, Event, Header, Record, Seq, SessionId, Time, Usage};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Holds sessions.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Makes a session and takes its lease. The header is durable, and its place in the store too, before this returns.
    async fn create(&self, header: Header, surface: &str) -> Result<Opened>;

    /// Opens a session for writing: takes the lease, judges damage, cuts and reports a lost tail. Repairs nothing.
    async fn open(&self, id: SessionId, surface: &str) -> Result<Opened>;

    /// Reads a session without its lease and without changing anything, from record `from` (1 is the first) on.
    async fn read(&self, id: SessionId, from: Seq) -> Result<ReadLog>;

    /// One page of the sessions that `query` asks for, newest first.
    async fn list(&self, query: &Query) -> Result<Listing>;

    /// Copies records 1 to `at` (all, if none) and their blobs into a new session, published atomically.
    async fn fork(&self, id: SessionId, at: Option<Seq>, new: SessionId) -> Result<Header>;

    /// Deletes a session. Needs its lease for a moment.
    async fn delete(&self, id: SessionId) -> Result<()>;

    /// Reads a blob of a session; none if it is missing or does not have its name's hash.
    async fn blob(&self, id: SessionId, hash: BlobHash) -> Result<Option<Vec<u8>>>;

    /// Makes a new session of what can be read of a damaged one: each unreadable line becomes an opaque
    /// `session/damaged` record in its place. The original stays as it is.
    async fn repair(&self, id: SessionId, new: SessionId) -> Result<RepairReport>;

    /// Looks at everything in the store and names what does not belong or cannot be read. Changes nothing.
    async fn check(&self) -> Result<CheckReport>;

    /// Ids that start with `prefix`, at most `limit` of them, without reading the sessions.
    async fn ids_with_prefix(&self, prefix: &str, limit: usize) -> Result<Vec<SessionId>>;

    /// Where the sessions are, for messages.
    fn place(&self) -> String;
}

/// A session opened for writing.
pub struct Opened {
    /// Its header.
    pub header: Header,
    /// All its records.
    pub records: Vec<Arc<Record>>,
    /// The way to add more. Dropping it gives the lease back.
    pub writer: Arc<dyn Writer>,
    /// Cuts that no durable `session/repaired` record names yet.
    pub cuts: Vec<Cut>,
    /// Bytes of a torn last line that were cut off; they were never part of the log.
    pub torn_bytes: u64,
}

/// An unsynced tail that was lost in a power failure and cut away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The last record before it.
    pub cut_at: Seq,
    /// The files that keep what was cut, relative to the session.
    pub files: Vec<String>,
}

/// Adds records to one session. All methods can be called from several tasks at once.
#[async_trait]
pub trait Writer: Send + Sync + 'static {
    /// Appends a record. It survives the death of the process within 250 ms, a power failure only after [`sync`](Self::sync).
    ///
    /// A medium that fails does not fail an append: the record stays in memory, in its place, and is written
    /// when the medium takes it again; the next `sync` tells. Fails only once the writer is closed. A caller that goes
    /// away before it is answered has appended nothing.
    async fn append(&self, event: Event) -> Result<Arc<Record>>;

    /// Makes everything appended before the call durable and returns the highest durable seq. Callers at the same
    /// time share one sync of the medium. After a failure the records above the last durable seq are written again
    /// from memory, at the same place, before anything counts.
    async fn sync(&self) -> Result<Seq>;

    /// Takes a record that is not durable out of the tail; those above it move down by one. Returns the new tail
    /// (all records above the durable seq), or none if the record proved to be durable.
    async fn withdraw(&self, seq: Seq) -> Result<Option<Vec<Arc<Record>>>>;

    /// The highest seq known durable.
    fn durable(&self) -> Seq;

    /// Keeps bytes as a blob, durable when this returns.
    async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash>;

    /// Gives the lease back after a last attempt to write what is in memory. Later calls fail.
    async fn close(&self) -> Result<()>;
}

/// A session read without its lease.
#[derive(Debug, Clone)]
pub struct ReadLog {
    /// Its header.
    pub header: Header,
    /// The records asked for, as far as they can be read.
    pub records: Vec<Arc<Record>>,
    /// The last record of the log that can be read.
    pub last: Seq,
    /// What is damaged after them, if anything is.
    pub damage: Option<String>,
    /// True if a newer segue wrote it.
    pub newer: bool,
    /// Who has it open for writing, if somebody has.
    pub holder: Option<Holder>,
}

/// Who holds a session's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The machine's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// When that process started, in the kernel's ticks since boot.
    pub started: u64,
    /// The boot of that machine.
    pub boot: String,
    /// Since when it holds the lease.
    pub since: Time,
    /// The surface it runs, such as `print`.
    pub surface: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {} ({}, since {})", self.pid, self.host, self.surface, self.since)
    }
}

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Only those of exactly this working folder.
    pub cwd: Option<PathBuf>,
    /// Only those whose title has this text, case ignored.
    pub text: Option<String>,
    /// Those without a prompt, too.
    pub empty: bool,
    /// How many at most; 0 is all.
    pub limit: usize,
    /// Where the previous page ended.
    pub after: Option<Cursor>,
}

/// Where a page of a listing ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// When the last session of the page was updated.
    pub updated: Time,
    /// Its id.
    pub id: SessionId,
}

/// One page of sessions.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The sessions, newest first.
    pub rows: Vec<Row>,
    /// Give this as `after` to get the next page; none at the end.
    pub next: Option<Cursor>,
}

/// What is known of a session from the ends of its log.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its id.
    pub id: SessionId,
    /// Its title, or the start of its first prompt; empty for one without prompts.
    pub title: String,
    /// Its working folder.
    pub cwd: PathBuf,
    /// Its agent; `segue` is our own.
    pub agent: String,
    /// When it was made.
    pub created: Time,
    /// When its last record was written.
    pub updated: Time,
    /// How many turns it has.
    pub turns: u64,
    /// What state it is in.
    pub state: State,
    /// Tokens of its last turn.
    pub usage: Usage,
    /// Who has it open for writing, if somebody has.
    pub holder: Option<Holder>,
    /// For a damaged one: what is wrong.
    pub damage: Option<String>,
}

/// What state a listed session is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its last turn ended.
    Idle,
    /// Its turn runs in a live process.
    Running,
    /// Its last turn did not end, or ended by a crash.
    Interrupted,
    /// Something in it cannot be read.
    Damaged,
}

/// What `repair` made.
#[derive(Debug, Clone)]
pub struct RepairReport {
    /// The new session.
    pub header: Header,
    /// Records that were copied.
    pub kept: u64,
    /// Lines that became `session/damaged`.
    pub damaged: u64,
}

/// What `check` found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Sessions that are whole.
    pub sound: u64,
    /// Everything else: a path and what about it.
    pub findings: Vec<(PathBuf, String)>,
}
