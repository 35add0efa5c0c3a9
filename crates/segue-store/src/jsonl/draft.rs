//! A session in the making: built in a folder with another name and put in its place in one step, so that it is
//! there as a whole or not at all.

use std::io;
use std::path::Path;

use segue_log::{Header, Seq, SessionId, line};

use super::lease::Lease;
use super::place::{Place, Root, failed};
use super::synced;
use crate::error::{Result, StoreError};
use crate::files::{Files, OpenFile};

/// How names of folders begin that hold a session in the making.
pub(super) const NEW: &str = ".new-";
const PENDING: usize = 1 << 20;

/// A session that nobody can see yet. Its lease is held from the start.
pub(super) struct Draft {
    /// Where it is built.
    pub place: Place,
    target: Place,
    root: Root,
    log: Box<dyn OpenFile>,
    written: u64,
    pending: Vec<u8>,
    lease: Option<Lease>,
    has_blobs: bool,
}

/// A session that was just put in its place.
pub(super) struct Published {
    /// Its place.
    pub place: Place,
    /// Its lease.
    pub lease: Lease,
    /// The length of its log.
    pub end: u64,
}

impl Draft {
    /// Begins a session.
    pub fn begin(root: &Root, header: &Header, surface: &str) -> Result<Self> {
        let id: SessionId = header.id;
        if header.cwd.to_str().is_none() {
            return Err(StoreError::Unsuitable(format!(
                "the working folder {} has a name that is not UTF-8, which a log cannot hold; rename it, or work in another",
                header.cwd.display()
            )));
        }
        make_root(root)?;
        refuse_network(root)?;
        let target = root.place(id);
        if root.files.stat(&target.dir).is_ok() {
            return Err(StoreError::Exists { id });
        }
        let place = make_folder(root, id)?;
        let draft = Self::fill(root, target, place.clone(), header, surface);
        if draft.is_err() {
            discard(&place);
        }
        draft
    }

    fn fill(root: &Root, target: Place, place: Place, header: &Header, surface: &str) -> Result<Self> {
        let lease = Lease::take(&place, surface)?;
        let blobs = place.blobs();
        place.files.create_dir(&blobs).map_err(failed("create", &blobs))?;
        let log = place.files.create(&place.log()).map_err(failed("create", &place.log()))?;
        Ok(Self {
            place,
            target,
            root: root.clone(),
            log,
            written: 0,
            pending: line::encode_header(header).into_bytes(),
            lease: Some(lease),
            has_blobs: false,
        })
    }

    /// Adds a line as it is, newline included.
    pub fn line(&mut self, line: &[u8]) -> Result<()> {
        self.pending.extend_from_slice(line);
        if self.pending.len() >= PENDING { self.flush() } else { Ok(()) }
    }

    /// Adds a blob.
    pub fn blob(&mut self, hash: &segue_log::BlobHash, bytes: &[u8]) -> Result<()> {
        self.has_blobs = true;
        super::blobs::write_unsynced_entry(&self.place, hash, bytes)
    }

    /// Adds a file.
    pub fn file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.place.dir.join(name);
        let file = self.place.files.create(&path).map_err(failed("create", &path))?;
        file.write_at(0, bytes).map_err(failed("write", &path))?;
        file.sync().map_err(failed("sync", &path))
    }

    /// Makes everything durable and puts the session in its place, durably too. `last` is its last record.
    pub fn publish(mut self, last: Seq) -> Result<Published> {
        let published = self.finish(last);
        if published.is_err() {
            // Nobody was told of it.
            discard(&self.place);
        }
        published
    }

    fn finish(&mut self, last: Seq) -> Result<Published> {
        self.flush()?;
        let files = &*self.root.files;
        self.log.sync().map_err(failed("sync", &self.place.log()))?;
        if self.has_blobs {
            let blobs = self.place.blobs();
            files.sync_dir(&blobs).map_err(failed("sync", &blobs))?;
        }
        let path = self.place.synced();
        let mark = files.create(&path).map_err(failed("create", &path))?;
        mark.write_at(0, synced::encode(last).as_bytes()).map_err(failed("write", &path))?;
        files.sync_dir(&self.place.dir).map_err(failed("sync", &self.place.dir))?;
        files.publish(&self.place.dir, &self.target.dir).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => {
                StoreError::Exists { id: self.target.id }
            }
            _ => failed("put in place", &self.target.dir)(error),
        })?;
        // From here on the folder has its own name, also for taking it away again.
        self.place = self.target.clone();
        let sessions = &self.root.sessions;
        files.sync_dir(sessions).map_err(failed("sync", sessions))?;
        let lease = self.lease.take().ok_or(StoreError::Closed { id: self.target.id })?;
        Ok(Published { place: self.target.clone(), lease, end: self.written })
    }

    fn flush(&mut self) -> Result<()> {
        self.log.write_at(self.written, &self.pending).map_err(failed("write", &self.place.log()))?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Gives the attempt up.
    pub fn abandon(self) {
        discard(&self.place);
    }
}

/// What is left if this fails is passed over by everything but `check`, which names it.
fn discard(place: &Place) {
    let _ = place.files.remove_dir_all(&place.dir);
}

fn make_folder(root: &Root, id: SessionId) -> Result<Place> {
    let mut attempt = 0u32;
    loop {
        let dir = root.sessions.join(format!("{NEW}{id}-{attempt}"));
        match root.files.create_dir(&dir) {
            Ok(()) => return Ok(Place { files: root.files.clone(), id, dir }),
            // Left by a process that died; not ours to remove.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
            Err(error) => return Err(failed("create", &dir)(error)),
        }
    }
}

/// Makes the store's folder, with those above it, and makes each durable in its parent. Of those that are there already
/// only the lowest may not be durable yet: who made it may have died before, but synced each above it first.
fn make_root(root: &Root) -> Result<()> {
    make_dirs(&*root.files, &root.sessions)
}

fn make_dirs(files: &dyn Files, path: &Path) -> Result<()> {
    let parent =
        path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    let Some(parent) = parent else { return Ok(()) };
    match files.stat(path) {
        Ok(stat) if stat.dir => {
            return match files.sync_dir(parent) {
                // Nothing was made by us in a folder that we may not read.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                other => other.map_err(failed("sync", parent)),
            };
        }
        Ok(_) => return Err(failed("use as a folder", path)(io::ErrorKind::NotADirectory.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("look at", path)(error)),
    }
    make_dirs(files, parent)?;
    match files.create_dir(path) {
        Ok(()) => {}
        // Another process came first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("create", path)(error)),
    }
    files.sync_dir(parent).map_err(failed("sync", parent))
}

/// Refuses to write where locks and syncs cannot be relied on.
pub(super) fn refuse_network(root: &Root) -> Result<()> {
    match root.files.network(&root.sessions) {
        Ok(None) => Ok(()),
        Ok(Some(kind)) => Err(StoreError::Unsuitable(format!(
            "{} lies on a network file system ({kind}), whose locks and syncs cannot be relied on: sessions there can be \
             read but not written; keep them on a local disk, or in Postgres with --store postgres://…",
            root.sessions.display()
        ))),
        Err(error) => Err(failed("look at the file system of", &root.sessions)(error)),
    }
}
