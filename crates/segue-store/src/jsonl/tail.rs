//! The end of a log that is not durable yet, in memory, and how it gets into the file.
//!
//! Nothing here syncs: [`super::writer`] does, without holding the tail.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::Arc;

use segue_log::line::{self, Encoded};
use segue_log::{BlobHash, Event, Record, Seq, Time};

use crate::files::OpenFile;

/// A record that is not known to be durable.
pub(super) struct Entry {
    /// Counts appends, from 1; stays when records move down.
    ordinal: u64,
    record: Arc<Record>,
    line: Vec<u8>,
    blobs: Vec<(BlobHash, Arc<[u8]>)>,
}

/// The tail of one log.
///
/// *Invariant:* the file holds, as far as reads show, the durable records, then the first `written` entries up to
/// `written_end`, then perhaps rubbish up to `extent`.
pub(super) struct Tail {
    last: Seq,
    last_time: Time,
    next_ordinal: u64,
    durable: Seq,
    durable_end: u64,
    entries: VecDeque<Entry>,
    written: usize,
    written_end: u64,
    extent: u64,
    /// A sync failed: nothing above `durable` may be believed, whatever the file shows.
    poisoned: bool,
    /// Other records than before will stand from here on. The file has to be cut here, and the cut be durable, before
    /// they are written: else a power failure could leave a mixture that looks like a log.
    moved: Option<u64>,
    kept_blobs: HashSet<BlobHash>,
}

/// What a sync that begins now will make durable.
pub(super) struct Goal {
    entries: usize,
    end: u64,
}

impl Tail {
    /// The tail of a log that is durable up to record `last`, which ends at `end` and was written at `time`.
    pub fn new(last: Seq, end: u64, time: Time) -> Self {
        Self {
            last,
            last_time: time,
            next_ordinal: 1,
            durable: last,
            durable_end: end,
            entries: VecDeque::new(),
            written: 0,
            written_end: end,
            extent: end,
            poisoned: false,
            moved: None,
            kept_blobs: HashSet::new(),
        }
    }

    /// The highest durable seq.
    pub fn durable(&self) -> Seq {
        self.durable
    }

    /// The last record's seq.
    pub fn last(&self) -> Seq {
        self.last
    }

    /// The ordinal of the latest append.
    pub fn latest(&self) -> u64 {
        self.next_ordinal - 1
    }

    /// True if the append with that ordinal, and all before it, are durable or withdrawn.
    pub fn is_settled(&self, ordinal: u64) -> bool {
        self.entries.front().is_none_or(|entry| entry.ordinal > ordinal)
    }

    /// True if the file may hold, above the durable records, what is not in memory.
    pub fn needs_healing(&self) -> bool {
        self.poisoned || self.moved.is_some() || self.extent > self.written_end
    }

    /// True if the file holds nothing but durable records.
    pub fn is_clean(&self) -> bool {
        self.entries.is_empty() && !self.needs_healing()
    }

    /// Makes the next record of an event.
    pub fn encode(&self, event: Event) -> (Record, Encoded) {
        let time = Time::now().max(self.last_time);
        let (seq, synced) = (self.last + 1, self.durable);
        let encoded = line::encode(seq, time, &event, synced);
        (Record { seq, time, event, synced, blobs: encoded.moved.clone() }, encoded)
    }

    /// Adds a record that [`encode`](Self::encode) made, with those of its blobs that are not durable yet, and writes
    /// what can be written.
    pub fn push(&mut self, file: &dyn OpenFile, record: Record, encoded: Encoded) -> Arc<Record> {
        let record = Arc::new(record);
        let entry = self.entry(self.next_ordinal, Arc::clone(&record), encoded);
        self.entries.push_back(entry);
        self.next_ordinal += 1;
        self.last = record.seq;
        self.last_time = record.time;
        // Should this fail, the record waits in memory and the next sync tells.
        let _ = self.write_out(file);
        record
    }

    fn entry(&self, ordinal: u64, record: Arc<Record>, encoded: Encoded) -> Entry {
        let missing = encoded.blobs.into_iter().filter(|(hash, _)| !self.kept_blobs.contains(hash));
        Entry {
            ordinal,
            record,
            line: encoded.line.into_bytes(),
            blobs: missing.map(|(hash, bytes)| (hash, bytes.into())).collect(),
        }
    }

    /// A blob that has to be durable before more can be written.
    pub fn missing_blob(&self) -> Option<(BlobHash, Arc<[u8]>)> {
        self.entries.iter().find_map(|entry| entry.blobs.first().cloned())
    }

    /// True if a blob is durable already.
    pub fn has_blob(&self, hash: &BlobHash) -> bool {
        self.kept_blobs.contains(hash)
    }

    /// Notes that a blob is durable.
    pub fn blob_kept(&mut self, hash: BlobHash) {
        self.kept_blobs.insert(hash);
        for entry in &mut self.entries {
            entry.blobs.retain(|(missing, _)| *missing != hash);
        }
    }

    /// Cuts the file where records moved. True if that has to be synced, and then told to
    /// [`cut_confirmed`](Self::cut_confirmed), before anything is written.
    pub fn cut_moved(&mut self, file: &dyn OpenFile) -> io::Result<bool> {
        let Some(at) = self.moved else { return Ok(false) };
        file.truncate(at)?;
        self.extent = at;
        Ok(true)
    }

    /// Notes that the cut of [`cut_moved`](Self::cut_moved) is durable.
    pub fn cut_confirmed(&mut self) {
        self.moved = None;
    }

    /// After a failed sync: all that is in memory is to be written again, at the same place.
    pub fn begin_again(&mut self) {
        if self.poisoned {
            self.written = 0;
            self.written_end = self.durable_end;
        }
    }

    /// Writes the entries that the file does not hold, unless a failed sync or a withdrawal has to be healed first.
    pub fn write_out(&mut self, file: &dyn OpenFile) -> io::Result<()> {
        if self.poisoned || self.moved.is_some() { Ok(()) } else { self.write_entries(file) }
    }

    /// Writes what [`write_out`](Self::write_out) writes, also in order to heal, and says what a sync makes durable.
    pub fn write_for_sync(&mut self, file: &dyn OpenFile) -> io::Result<Goal> {
        self.write_entries(file)?;
        self.cut_back(file)?;
        Ok(Goal { entries: self.written, end: self.written_end })
    }

    fn write_entries(&mut self, file: &dyn OpenFile) -> io::Result<()> {
        while let Some(entry) = self.entries.get(self.written).filter(|entry| entry.blobs.is_empty()) {
            let end = self.written_end + entry.line.len() as u64;
            if let Err(error) = file.write_at(self.written_end, &entry.line) {
                self.extent = self.extent.max(end);
                if !self.poisoned {
                    // The file is left with whole records. If even that fails, the same bytes are written over the half one, or it
                    // is cut before the next sync.
                    let _ = self.cut_back(file);
                }
                return Err(error);
            }
            self.written += 1;
            self.written_end = end;
            self.extent = self.extent.max(end);
        }
        Ok(())
    }

    fn cut_back(&mut self, file: &dyn OpenFile) -> io::Result<()> {
        if self.extent > self.written_end {
            file.truncate(self.written_end)?;
            self.extent = self.written_end;
        }
        Ok(())
    }

    /// Notes that a sync of `goal` succeeded.
    pub fn confirmed(&mut self, goal: &Goal) {
        for entry in self.entries.drain(..goal.entries.min(self.entries.len())) {
            self.durable = entry.record.seq;
        }
        self.durable_end = goal.end;
        self.written -= goal.entries.min(self.written);
        self.poisoned = false;
    }

    /// Notes that a sync failed.
    pub fn poison(&mut self) {
        self.poisoned = true;
    }

    /// Takes a record out; those above it move down. Returns the records that are not durable, or none if that
    /// one is. The record must be there.
    pub fn withdraw(&mut self, seq: Seq) -> Option<Vec<Arc<Record>>> {
        let index = usize::try_from(seq.checked_sub(self.durable + 1)?).ok()?;
        let start =
            self.durable_end + self.entries.iter().take(index).map(|e| e.line.len() as u64).sum::<u64>();
        self.entries.remove(index)?;
        let later: Vec<Entry> = self.entries.drain(index..).collect();
        for entry in later {
            let mut record = (*entry.record).clone();
            record.seq -= 1;
            let encoded = line::encode(record.seq, record.time, &record.event, record.synced);
            record.blobs = encoded.moved.clone();
            let moved = self.entry(entry.ordinal, Arc::new(record), encoded);
            self.entries.push_back(moved);
        }
        self.last -= 1;
        if index < self.written {
            self.written = index;
            self.written_end = start;
        }
        if self.extent > start {
            self.moved = Some(self.moved.map_or(start, |at| at.min(start)));
        }
        Some(self.entries.iter().map(|entry| Arc::clone(&entry.record)).collect())
    }
}
