//! Sessions as files: one folder each, the log a file of JSON lines. The layout, and why it holds, stands in
//! `docs/log-format.md`.

mod blobs;
mod check;
mod copy;
mod draft;
mod lease;
mod list;
mod load;
mod open;
mod place;
mod row;
mod scan;
mod synced;
mod tail;
mod torn;
mod writer;

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use segue_log::{BlobHash, Header, Seq, SessionId, line};
use tokio::task;

use self::draft::Draft;
use self::place::{Root, failed};
use self::scan::Verdict;
use self::tail::Tail;
use self::writer::JsonlWriter;
use crate::error::{Result, StoreError};
use crate::files::{Access, Files, RealFiles};
use crate::store::{CheckReport, Listing, Opened, Query, ReadLog, RepairReport, Store};

/// Keeps sessions as files below a folder, in `sessions/<id>/`.
///
/// Making the value touches nothing; folders come with the first session. All work on files is done on threads
/// that may block, so methods need a Tokio runtime.
#[derive(Clone)]
pub struct JsonlStore {
    root: Root,
}

impl JsonlStore {
    /// The store in `data`, on this machine's files.
    pub fn open(data: &Path) -> Self {
        Self::with_files(data, Arc::new(RealFiles))
    }

    /// The same on other files: tests take power and space away there.
    pub fn with_files(data: &Path, files: Arc<dyn Files>) -> Self {
        Self { root: Root { files, sessions: data.join("sessions") } }
    }

    /// The folder of a session, there or not.
    pub fn folder(&self, id: SessionId) -> std::path::PathBuf {
        self.root.place(id).dir
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = self.root.clone();
        match task::spawn_blocking(move || work(&root)).await {
            Ok(result) => result,
            Err(error) => Err(failed("run a thread for", &self.root.sessions)(io::Error::other(error))),
        }
    }
}

#[async_trait]
impl Store for JsonlStore {
    async fn create(&self, header: Header, surface: &str) -> Result<Opened> {
        let surface = surface.to_owned();
        self.run(move |root| create(root, header, &surface)).await
    }

    async fn open(&self, id: SessionId, surface: &str) -> Result<Opened> {
        let surface = surface.to_owned();
        self.run(move |root| open(root, id, &surface)).await
    }

    async fn read(&self, id: SessionId, from: Seq) -> Result<ReadLog> {
        self.run(move |root| read(root, id, from)).await
    }

    async fn list(&self, query: &Query) -> Result<Listing> {
        let query = query.clone();
        self.run(move |root| list::list(root, &query)).await
    }

    async fn fork(&self, id: SessionId, at: Option<Seq>, new: SessionId) -> Result<Header> {
        self.run(move |root| copy::fork(root, id, at, new)).await
    }

    async fn delete(&self, id: SessionId) -> Result<()> {
        self.run(move |root| copy::delete(root, id)).await
    }

    async fn blob(&self, id: SessionId, hash: BlobHash) -> Result<Option<Vec<u8>>> {
        self.run(move |root| Ok(root.existing(id)?.read_blob(&hash))).await
    }

    async fn repair(&self, id: SessionId, new: SessionId) -> Result<RepairReport> {
        self.run(move |root| copy::repair(root, id, new)).await
    }

    async fn check(&self) -> Result<CheckReport> {
        self.run(check::check).await
    }

    async fn ids_with_prefix(&self, prefix: &str, limit: usize) -> Result<Vec<SessionId>> {
        let prefix = prefix.to_owned();
        self.run(move |root| {
            let (mut ids, _) = root.names()?;
            ids.retain(|id| id.to_string().starts_with(&prefix));
            ids.sort_unstable();
            ids.truncate(limit);
            Ok(ids)
        })
        .await
    }

    fn place(&self) -> String {
        self.root.sessions.display().to_string()
    }
}

fn create(root: &Root, header: Header, surface: &str) -> Result<Opened> {
    let published = Draft::begin(root, &header, surface)?.publish(0)?;
    let (place, lease) = (published.place, published.lease);
    let log = place.files.open(&place.log(), Access::Write).map_err(failed("open", &place.log()))?;
    let tail = Tail::new(0, published.end, header.created);
    let writer = Arc::new(JsonlWriter::new(place, lease, log, tail));
    Ok(Opened { header, records: Vec::new(), writer, cuts: Vec::new(), torn_bytes: 0 })
}

fn open(root: &Root, id: SessionId, surface: &str) -> Result<Opened> {
    let sound = open::open(root, id, surface)?;
    let (last, end) = (sound.scanned.last(), sound.scanned.end);
    let header = sound.scanned.header.map_err(|what| open::damaged(&sound.place, 0, what))?;
    let records = sound.scanned.records;
    let time = records.last().map_or(header.created, |record| record.time);
    let tail = Tail::new(last, end, time);
    let writer = Arc::new(JsonlWriter::new(sound.place, sound.lease, sound.log, tail));
    Ok(Opened { header, records, writer, cuts: sound.cuts, torn_bytes: sound.torn_bytes })
}

fn read(root: &Root, id: SessionId, from: Seq) -> Result<ReadLog> {
    let place = root.existing(id)?;
    let holder = lease::holder_of(&place);
    let scanned = load::load(&place).map_err(|error| match error {
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            open::damaged(&place, 0, "its log is missing".into())
        }
        other => other,
    })?;
    let verdict = scanned.judge();
    let last = scanned.last();
    let header = scanned.header.map_err(|what| open::damaged(&place, 0, what))?;
    let newer = !line::is_writable(&header);
    let damage = match verdict {
        Verdict::Damaged(what) => Some(what),
        _ if header.id != id => Some(format!("its header names another session, {}", header.id)),
        // Whoever writes at this moment may be in the middle of it.
        Verdict::Lost(what) if holder.is_none() => Some(format!("its end was lost: {what}")),
        Verdict::Lost(_) | Verdict::Torn | Verdict::Sound => None,
    };
    let mut records = scanned.records;
    let skip = usize::try_from(from.saturating_sub(1)).unwrap_or(usize::MAX).min(records.len());
    records.drain(..skip);
    Ok(ReadLog { header, records, last, damage, newer, holder })
}
