//! Where the files of a session are, and access to them that names what failed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use segue_log::{BlobHash, SessionId};

use super::synced;
use crate::error::{Result, StoreError};
use crate::files::{Files, read_up_to};

/// The log's name in its session's folder.
pub(super) const LOG: &str = "log.jsonl";
/// The lock's name.
pub(super) const LOCK: &str = "lock";
/// The blobs' folder.
pub(super) const BLOBS: &str = "blobs";

/// Names the file that an operation failed on.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { doing, path, source }
}

/// A store's folder and the way to it.
#[derive(Clone)]
pub(super) struct Root {
    /// Access to the files.
    pub files: Arc<dyn Files>,
    /// `<data>/sessions`.
    pub sessions: PathBuf,
}

/// One session's folder.
#[derive(Clone)]
pub(super) struct Place {
    /// Access to the files.
    pub files: Arc<dyn Files>,
    /// The session.
    pub id: SessionId,
    /// Its folder.
    pub dir: PathBuf,
}

impl Root {
    /// The folder of a session, there or not.
    pub fn place(&self, id: SessionId) -> Place {
        Place { files: Arc::clone(&self.files), id, dir: self.sessions.join(id.to_string()) }
    }

    /// The folder of a session that is there.
    pub fn existing(&self, id: SessionId) -> Result<Place> {
        let place = self.place(id);
        match self.files.stat(&place.dir) {
            Ok(stat) if stat.dir => Ok(place),
            Ok(_) => Err(self.not_found(id)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.not_found(id)),
            Err(error) => Err(failed("look at", &place.dir)(error)),
        }
    }

    /// The error for a session that is not there.
    pub fn not_found(&self, id: SessionId) -> StoreError {
        StoreError::NotFound { id, place: self.sessions.display().to_string() }
    }

    /// The ids of all sessions, in no order, and the names that are none.
    pub fn names(&self) -> Result<(Vec<SessionId>, Vec<PathBuf>)> {
        let names = match self.files.list(&self.sessions) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed("list", &self.sessions)(error)),
        };
        let mut ids = Vec::with_capacity(names.len());
        let mut foreign = Vec::new();
        for name in names {
            match name.to_str().and_then(|name| name.parse().ok()) {
                Some(id) => ids.push(id),
                None => foreign.push(self.sessions.join(name)),
            }
        }
        Ok((ids, foreign))
    }
}

impl Place {
    /// The log.
    pub fn log(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// The `synced` file.
    pub fn synced(&self) -> PathBuf {
        self.dir.join(synced::NAME)
    }

    /// The lock file.
    pub fn lock(&self) -> PathBuf {
        self.dir.join(LOCK)
    }

    /// The folder of the blobs.
    pub fn blobs(&self) -> PathBuf {
        self.dir.join(BLOBS)
    }

    /// A blob's file.
    pub fn blob(&self, hash: &BlobHash) -> PathBuf {
        self.blobs().join(hash.to_string())
    }

    /// What the `synced` file says. Whatever keeps it from being read only makes it too low.
    pub fn read_synced(&self) -> u64 {
        read_up_to(&*self.files, &self.synced(), 64).map_or(0, |bytes| synced::decode(&bytes))
    }

    /// A blob's bytes; none if it is missing, cannot be read, or does not have its name's hash.
    pub fn read_blob(&self, hash: &BlobHash) -> Option<Vec<u8>> {
        let read = || read_up_to(&*self.files, &self.blob(hash), u64::MAX);
        let bytes = match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            // What fails in passing is not lost.
            Err(_) => read(),
            read => read,
        };
        bytes.ok().filter(|bytes| BlobHash::of(bytes) == *hash)
    }
}
