//! New sessions made of others, and taking sessions away.

use segue_log::{BlobHash, FORMAT, Header, Parent, Record, Seq, SessionDamaged, SessionId, Time, line};

use super::draft::Draft;
use super::lease::Lease;
use super::load;
use super::open::{damaged, refuse_newer};
use super::place::{Place, Root, failed};
use super::scan::Verdict;
use super::torn;
use crate::error::{Result, StoreError};
use crate::files::{Access, read_up_to};
use crate::store::RepairReport;

/// How names of folders begin that hold a session on its way out.
pub(super) const DELETED: &str = ".deleted-";
/// The surface that copies name as theirs for the moment that they take.
const SURFACE: &str = "copy";
/// Characters of an unreadable line that a repaired copy keeps.
const KEPT_CHARACTERS: usize = 1_000;

/// Copies records 1 to `at` (all, if none) and their blobs into a new session.
pub(super) fn fork(root: &Root, id: SessionId, at: Option<Seq>, new: SessionId) -> Result<Header> {
    let place = root.existing(id)?;
    let scanned = load::load(&place)?;
    refuse_newer(&place, &scanned)?;
    let last = scanned.last();
    let verdict = scanned.judge();
    let source = scanned.header.map_err(|what| damaged(&place, 0, what))?;
    let at = match (at, verdict) {
        (Some(at), _) if at <= last => at,
        (_, Verdict::Damaged(what)) => return Err(damaged(&place, last, what)),
        (Some(seq), _) => return Err(StoreError::NoSuchSeq { id, seq, last }),
        (None, _) => last,
    };
    let header = Header {
        segue: FORMAT,
        id: new,
        created: Time::now(),
        cwd: source.cwd,
        parent: Some(Parent { id, seq: at }),
    };
    let count = usize::try_from(at).unwrap_or(usize::MAX);
    let records = scanned.records.iter().take(count);
    let hashes = records.flat_map(|record| record.blobs.values()).copied();
    let mut draft = Draft::begin(root, &header, SURFACE)?;
    let copied = copy_blobs(&place, &mut draft, hashes).and_then(|()| copy_lines(&place, &mut draft, at));
    if let Err(error) = copied {
        draft.abandon();
        return Err(error);
    }
    draft.publish(at)?;
    Ok(header)
}

fn copy_blobs(place: &Place, draft: &mut Draft, hashes: impl Iterator<Item = BlobHash>) -> Result<()> {
    let hashes: std::collections::BTreeSet<BlobHash> = hashes.collect();
    for hash in hashes {
        // One that is lost is lost in the copy too.
        if let Some(bytes) = place.read_blob(&hash) {
            draft.blob(&hash, &bytes)?;
        }
    }
    Ok(())
}

/// Copies the lines of records 1 to `at` as they are.
fn copy_lines(place: &Place, draft: &mut Draft, at: Seq) -> Result<()> {
    let path = place.log();
    let file = place.files.open(&path, Access::Read).map_err(failed("open", &path))?;
    let mut line_number = 0;
    let mut result = Ok(());
    load::for_each_block(place, &*file, |lines| {
        for (bytes, _) in lines {
            // Line 0 is the header.
            if (1..=at).contains(&line_number) && result.is_ok() {
                result = draft.line(bytes);
            }
            line_number += 1;
        }
    })?;
    result
}

/// Makes a new session of what can be read of a damaged one.
pub(super) fn repair(root: &Root, id: SessionId, new: SessionId) -> Result<RepairReport> {
    let place = root.existing(id)?;
    let path = place.log();
    let file = place.files.open(&path, Access::Read).map_err(failed("open", &path))?;
    let mut source = None;
    let mut lines = 0u64;
    // The header first: the new one is made of it.
    load::for_each_block(&place, &*file, |block| {
        if lines == 0
            && let Some((bytes, _)) = block.first()
        {
            source = line::decode_header(bytes).ok();
        }
        lines += block.len() as u64;
    })?;
    if let Some(header) = source.as_ref().filter(|header| !line::is_writable(header)) {
        return Err(StoreError::Newer { id, format: header.segue });
    }
    let header = Header {
        segue: FORMAT,
        id: new,
        created: source.as_ref().map_or_else(Time::now, |header| header.created),
        cwd: source.as_ref().map_or_else(|| "/".into(), |header| header.cwd.clone()),
        // Every record keeps its seq, and what a fork does not inherit it does not inherit here either.
        parent: source.and_then(|header| header.parent),
    };
    let mut draft = Draft::begin(root, &header, SURFACE)?;
    let mut salvage = Salvage::new(&place);
    let filled = (|| -> Result<()> {
        let mut first = true;
        let mut result = Ok(());
        let rest = load::for_each_block(&place, &*file, |block| {
            for (bytes, len) in block {
                if !std::mem::take(&mut first) && result.is_ok() {
                    result = salvage.line(&mut draft, bytes, *len);
                }
            }
        })?;
        result?;
        salvage.end(&mut draft, place.read_synced(), rest)?;
        copy_blobs(&place, &mut draft, std::mem::take(&mut salvage.blobs).into_iter())?;
        for name in torn::names(&place)? {
            let from = place.dir.join(&name);
            let bytes = read_up_to(&*place.files, &from, u64::MAX).map_err(failed("read", &from))?;
            draft.file(&name, &bytes)?;
        }
        Ok(())
    })();
    if let Err(error) = filled {
        draft.abandon();
        return Err(error);
    }
    draft.publish(salvage.last)?;
    Ok(RepairReport { header, kept: salvage.kept, damaged: salvage.damaged })
}

/// Sorts lines into those that are kept and those that are replaced.
struct Salvage<'a> {
    place: &'a Place,
    /// Unreadable lines since the last good one: the start of each, and what is wrong with it.
    pending: Vec<(String, String)>,
    last: Seq,
    synced: Seq,
    time: Time,
    kept: u64,
    damaged: u64,
    blobs: Vec<BlobHash>,
}

impl<'a> Salvage<'a> {
    fn new(place: &'a Place) -> Self {
        Self {
            place,
            pending: Vec::new(),
            last: 0,
            synced: 0,
            time: Time::from_millis(0),
            kept: 0,
            damaged: 0,
            blobs: Vec::new(),
        }
    }

    fn line(&mut self, draft: &mut Draft, bytes: &[u8], len: u64) -> Result<()> {
        match load::decode(self.place, bytes, len) {
            Ok(record) if record.seq > self.last => {
                // As many places as the seq says were there, whatever became of their line ends.
                self.fill(draft, record.seq - 1)?;
                draft.line(bytes)?;
                self.note(&record);
            }
            Ok(record) => {
                let what = format!("it is record {}, which was there already", record.seq);
                self.pending.push((start_of(bytes), what));
            }
            Err(bad) => self.pending.push((start_of(bytes), bad.to_string())),
        }
        Ok(())
    }

    fn note(&mut self, record: &Record) {
        self.last = record.seq;
        self.synced = record.synced;
        self.time = record.time;
        self.kept += 1;
        self.blobs.extend(record.blobs.values());
    }

    /// Puts a `session/damaged` record in each place up to `to`.
    fn fill(&mut self, draft: &mut Draft, to: Seq) -> Result<()> {
        let mut found = std::mem::take(&mut self.pending).into_iter();
        while self.last < to {
            let (line, reason) =
                found.next().unwrap_or_else(|| (String::new(), "the line is missing".into()));
            let event = SessionDamaged { line, reason }.into();
            self.last += 1;
            self.damaged += 1;
            draft.line(line::encode(self.last, self.time, &event, self.synced).line.as_bytes())?;
        }
        Ok(())
    }

    /// Ends the copy: unreadable lines at the end have a place each, and so has whatever else was durable.
    fn end(&mut self, draft: &mut Draft, synced: Seq, rest: u64) -> Result<()> {
        let mut to = self.last + self.pending.len() as u64;
        if synced > to {
            // A number that the log does not bear out may be wrong itself; beyond what could have been there it is.
            let room = self.place.files.stat(&self.place.log()).map_or(0, |stat| stat.len);
            to = synced.min(to + room.max(rest));
        }
        self.fill(draft, to)
    }
}

fn start_of(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim_end_matches('\n').chars().take(KEPT_CHARACTERS).collect()
}

/// Takes a session away: first out of sight, then off the disk.
pub(super) fn delete(root: &Root, id: SessionId) -> Result<()> {
    let place = root.existing(id)?;
    let lease = Lease::take(&place, "delete")?;
    let mut away = root.sessions.join(format!("{DELETED}{id}"));
    let mut attempt = 0u32;
    while root.files.stat(&away).is_ok() {
        attempt += 1;
        away = root.sessions.join(format!("{DELETED}{id}-{attempt}"));
    }
    root.files.publish(&place.dir, &away).map_err(failed("move away", &place.dir))?;
    root.files.sync_dir(&root.sessions).map_err(failed("sync", &root.sessions))?;
    drop(lease);
    root.files.remove_dir_all(&away).map_err(failed("remove", &away))
}
