//! Blobs: contents too large for a line, in files named by their SHA-256.

use std::io;

use segue_log::BlobHash;

use super::place::{Place, failed};
use crate::error::Result;

/// Keeps bytes as a blob, durable when this returns. Not for two callers at once in one session.
///
/// One that is there already is written anew: it may be the work of a process that died before its sync, or whose
/// sync failed, and a read cannot tell.
pub(super) fn write(place: &Place, hash: &BlobHash, bytes: &[u8]) -> Result<()> {
    let folder = place.blobs();
    match place.files.create_dir(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("create", &folder)(error)),
    }
    // Costs next to nothing where nothing changed, and nobody knows whether who made the folder got as far.
    place.files.sync_dir(&place.dir).map_err(failed("sync", &place.dir))?;
    write_unsynced_entry(place, hash, bytes)?;
    place.files.sync_dir(&folder).map_err(failed("sync", &folder))
}

/// The same without making the folder and without syncing it: for many at once.
pub(super) fn write_unsynced_entry(place: &Place, hash: &BlobHash, bytes: &[u8]) -> Result<()> {
    let unfinished = place.blobs().join(".unfinished");
    let path = place.blob(hash);
    let file = place.files.create(&unfinished).map_err(failed("create", &unfinished))?;
    file.write_at(0, bytes).map_err(failed("write", &unfinished))?;
    file.sync().map_err(failed("sync", &unfinished))?;
    place.files.rename(&unfinished, &path).map_err(failed("rename", &unfinished))
}
