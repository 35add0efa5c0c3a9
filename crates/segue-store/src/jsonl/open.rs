//! Opening a session for writing: its lease, then a judgement of its end, then a sync that everything after it rests on.

use segue_log::{Seq, line};

use super::draft::refuse_network;
use super::lease::Lease;
use super::load;
use super::place::{Place, Root, failed};
use super::scan::{Scanned, Verdict};
use super::{synced, torn};
use crate::error::{Result, StoreError};
use crate::files::{Access, OpenFile};
use crate::store::Cut;

const CHUNK: usize = 1 << 20;

/// A session whose log is sound and durable.
pub(super) struct Sound {
    /// Its place.
    pub place: Place,
    /// Its lease.
    pub lease: Lease,
    /// Its log, open for writing.
    pub log: Box<dyn OpenFile>,
    /// What the log says.
    pub scanned: Scanned,
    /// Cuts that no record names yet.
    pub cuts: Vec<Cut>,
    /// Bytes of a torn last line that were cut.
    pub torn_bytes: u64,
}

/// Opens a session for writing.
pub(super) fn open(root: &Root, id: segue_log::SessionId, surface: &str) -> Result<Sound> {
    let place = root.existing(id)?;
    refuse_network(root)?;
    let path = place.log();
    // Looked at before the lock is taken, so that a folder that is no session gets no lock file.
    match place.files.stat(&path) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(damaged(&place, 0, "its log is missing".into()));
        }
        Err(error) => return Err(failed("look at", &path)(error)),
    }
    let lease = Lease::take(&place, surface).map_err(|error| match error {
        StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => root.not_found(id),
        other => other,
    })?;
    let log = place.files.open(&path, Access::Write).map_err(failed("open", &path))?;
    let scanned = load::scan(&place, &*log)?;
    refuse_newer(&place, &scanned)?;

    let verdict = scanned.judge();
    let torn_bytes = match &verdict {
        Verdict::Damaged(what) => {
            let readable = if scanned.header.is_ok() { scanned.last() } else { 0 };
            return Err(damaged(&place, readable, what.clone()));
        }
        Verdict::Lost(what) => {
            torn::keep(&place, &*log, scanned.last(), scanned.end, what.clone())?;
            0
        }
        Verdict::Torn => scanned.size - scanned.end,
        Verdict::Sound => 0,
    };
    if scanned.size > scanned.end {
        log.truncate(scanned.end).map_err(failed("cut", &path))?;
    }
    write_again(&place, &*log, scanned.known_end.min(scanned.end), scanned.end)?;
    log.sync().map_err(failed("sync", &path))?;
    // Who made the session may have died before its place was durable. Costs next to nothing where nothing changed.
    place.files.sync_dir(&root.sessions).map_err(failed("sync", &root.sessions))?;
    mark(&place, scanned.last(), scanned.known > scanned.last())?;
    let cuts = torn::uncounted(&place, &scanned.records)?;
    Ok(Sound { place, lease, log, scanned, cuts, torn_bytes })
}

/// The error for a log that can only be read up to a record.
pub(super) fn damaged(place: &Place, readable: Seq, what: String) -> StoreError {
    StoreError::Damaged { id: place.id, path: place.log(), readable, what }
}

/// Refuses a log of a newer format.
pub(super) fn refuse_newer(place: &Place, scanned: &Scanned) -> Result<()> {
    match &scanned.header {
        Ok(header) if header.id != place.id => {
            Err(damaged(place, 0, format!("its header names another session, {}", header.id)))
        }
        Ok(header) if !line::is_writable(header) => {
            Err(StoreError::Newer { id: place.id, format: header.segue })
        }
        _ => Ok(()),
    }
}

/// Writes bytes of the log over themselves. After a failed sync the kernel may hold pages that it believes to be on the
/// disk and that are not; written again, the next sync takes them along.
fn write_again(place: &Place, log: &dyn OpenFile, mut from: u64, to: u64) -> Result<()> {
    let path = place.log();
    let mut buffer = vec![0; CHUNK];
    while from < to {
        let want = usize::try_from(to - from).unwrap_or(CHUNK).min(CHUNK);
        let Some(room) = buffer.get_mut(..want) else { break };
        let read = log.read_at(from, room).map_err(failed("read", &path))?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { break };
        log.write_at(from, bytes).map_err(failed("write", &path))?;
        from += read as u64;
    }
    Ok(())
}

/// Brings the `synced` file up to date after the log was synced. Raised, it may be lost again. Lowered, it has to be
/// durable before the next record: else, after a crash, it would count that record as one that is missing.
fn mark(place: &Place, last: Seq, lowered: bool) -> Result<()> {
    let path = place.synced();
    let file = match place.files.open(&path, Access::Write) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            place.files.create(&path).map_err(failed("create", &path))?
        }
        Err(error) => return Err(failed("open", &path)(error)),
    };
    file.write_at(0, synced::encode(last).as_bytes()).map_err(failed("write", &path))?;
    if lowered {
        file.sync().map_err(failed("sync", &path))?;
    }
    Ok(())
}
