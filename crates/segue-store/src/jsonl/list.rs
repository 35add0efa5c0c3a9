//! Listing: the folders by the time of their logs' last change, then the two ends of as many logs as a page needs.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;

use segue_log::line::{self, MAX_LINE};
use segue_log::{Header, Record, SessionId, Time};

use super::lease::holder_of;
use super::place::{Place, Root, failed};
use super::row::{Ends, row};
use crate::error::Result;
use crate::files::{Access, OpenFile};
use crate::store::{Cursor, Listing, Query, Row, State};

/// At most so much is read of each end, and less at first.
const END: u64 = MAX_LINE as u64;
const FIRST_LOOK: u64 = 4 * 1024;

/// One page of sessions.
pub(super) fn list(root: &Root, query: &Query) -> Result<Listing> {
    let (ids, _) = root.names()?;
    let mut candidates: Vec<(Time, SessionId)> =
        ids.into_iter().filter_map(|id| latest(&root.place(id)).map(|time| (time, id))).collect();
    candidates.sort_unstable_by_key(|candidate| Reverse(*candidate));
    let limit = if query.limit == 0 { usize::MAX } else { query.limit };
    // Rows found so far, newest first. One more than asked for tells whether there is a next page.
    let mut rows: BTreeMap<Reverse<(Time, SessionId)>, Row> = BTreeMap::new();
    for (bound, id) in candidates {
        // No log's last record is younger than `bound`, so all that follow are older than every row that is wanted.
        if rows.len() > limit
            && rows.last_key_value().is_some_and(|(Reverse((oldest, _)), _)| *oldest > bound)
        {
            break;
        }
        let Some(row) = look(&root.place(id), query) else { continue };
        rows.insert(Reverse((row.updated, row.id)), row);
        if rows.len() > limit.saturating_add(1) {
            rows.pop_last();
        }
    }
    let more = rows.len() > limit;
    let rows: Vec<Row> = rows.into_values().take(limit).collect();
    let next = rows.last().filter(|_| more).map(|row| Cursor { updated: row.updated, id: row.id });
    Ok(Listing { rows, next })
}

/// No record of the log is younger than this; none for what is no session.
fn latest(place: &Place) -> Option<Time> {
    let modified = match place.files.stat(&place.log()) {
        Ok(stat) => stat.modified,
        // Still listed, with a mark: at its folder's time.
        Err(_) => place.files.stat(&place.dir).ok().filter(|stat| stat.dir)?.modified,
    };
    // The kernel's clock for files runs a few milliseconds behind, on some file systems in whole seconds.
    let slack = if modified.subsec_nanos() == 0 { 2_000 } else { 20 };
    let millis = i64::try_from(modified.as_millis()).unwrap_or(i64::MAX);
    Some(Time::from_millis(millis.saturating_add(slack)))
}

/// The row of a session if the query asks for it. One that cannot be read has a row too, and harms no other.
fn look(place: &Place, query: &Query) -> Option<Row> {
    let row = match ends(place) {
        Ok((header, ends)) => {
            if !query.empty && ends.damage.is_none() && ends.is_empty() {
                return None;
            }
            row(&header, &ends, holder_of(place), &mut |hash| place.read_blob(hash))
        }
        Err(what) => Row {
            id: place.id,
            title: String::new(),
            cwd: Default::default(),
            agent: String::new(),
            created: made(place.id),
            updated: latest(place).unwrap_or_else(|| made(place.id)),
            turns: 0,
            state: State::Damaged,
            usage: Default::default(),
            holder: holder_of(place),
            damage: Some(what),
        },
    };
    let wanted = query.cwd.as_ref().is_none_or(|cwd| *cwd == row.cwd)
        && query.text.as_ref().is_none_or(|text| row.title.to_lowercase().contains(&text.to_lowercase()))
        && query.after.as_ref().is_none_or(|after| (row.updated, row.id) < (after.updated, after.id));
    wanted.then_some(row)
}

/// When a session was made, from its id: a UUIDv7 begins with the milliseconds since 1970.
fn made(id: SessionId) -> Time {
    let text = id.to_string();
    let digits = text.get(..8).zip(text.get(9..13)).map(|(high, low)| format!("{high}{low}"));
    Time::from_millis(digits.and_then(|hex| i64::from_str_radix(&hex, 16).ok()).unwrap_or(0))
}

/// The header and the two ends of a log, or what is wrong with it, its path named.
fn ends(place: &Place) -> std::result::Result<(Header, Ends), String> {
    let path = place.log();
    // Before the log, so that it cannot be ahead of what is read.
    let synced = place.read_synced();
    let open = || -> Result<_> {
        let file = place.files.open(&path, Access::Read).map_err(failed("open", &path))?;
        let size = file.size().map_err(failed("look at", &path))?;
        Ok((file, size))
    };
    let (file, size) = open().map_err(|error| error.to_string())?;
    let unreadable = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let mut head_len = FIRST_LOOK.min(size);
    let mut head = read(&*file, 0, head_len).map_err(unreadable)?;
    if head_len < END.min(size) && !has_prompt(&head) {
        head_len = END.min(size);
        head = read(&*file, 0, head_len).map_err(unreadable)?;
    }
    let mut head_lines = head.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let header = head_lines
        .next()
        .ok_or("it has no whole first line".to_owned())
        .and_then(|line| line::decode_header(line).map_err(|bad| bad.to_string()))
        .map_err(|what| format!("the header of {} cannot be read: {what}", path.display()))?;
    if header.id != place.id {
        return Err(format!("the header of {} names another session, {}", path.display(), header.id));
    }
    let head_records: Vec<Record> = head_lines.map_while(decode).collect();

    let mut tail_len = FIRST_LOOK.min(size);
    let mut tail = read(&*file, size - tail_len, tail_len).map_err(unreadable)?;
    if tail_len < END.min(size) && !has_turn_end(&tail) {
        tail_len = END.min(size);
        tail = read(&*file, size - tail_len, tail_len).map_err(unreadable)?;
    }
    let whole = tail_len == size;
    // Begins in the middle of a line, or with the header.
    let skip = memchr::memchr(b'\n', &tail).map_or(tail.len(), |at| at + 1);
    let lines = tail.get(skip..).unwrap_or_default().split_inclusive(|byte| *byte == b'\n');
    let found: Vec<Option<Record>> = lines.filter(|line| line.ends_with(b"\n")).map(decode).collect();
    let ends = judge(place, &header, found, head_records, whole, synced);
    Ok((header, ends))
}

/// Marks damage as far as the tail shows it. Bad lines that nothing calls durable are a lost end, which opening cuts.
fn judge(
    place: &Place,
    header: &Header,
    found: Vec<Option<Record>>,
    head: Vec<Record>,
    whole: bool,
    synced: u64,
) -> Ends {
    let mut tail: Vec<Record> = Vec::with_capacity(found.len());
    // The place of the first bad line. Of one before the first readable line only that tells it.
    let mut bad: Option<Option<u64>> = None;
    let mut known = synced;
    for record in found {
        let next = tail.last().map(|last| last.seq + 1).or(whole.then_some(1));
        match record {
            Some(record) if bad.is_none() && next.is_none_or(|next| next == record.seq) => tail.push(record),
            Some(record) => {
                known = known.max(record.synced);
                bad.get_or_insert(next).get_or_insert(record.seq.saturating_sub(1));
            }
            None => {
                bad.get_or_insert(next);
            }
        }
    }
    let newer = !line::is_writable(header);
    let damage = bad
        .flatten()
        .filter(|seq| *seq <= known && !newer)
        .map(|seq| format!("{} cannot be read from record {seq} on", place.log().display()));
    Ends { head, tail, whole, damage }
}

/// Blobs are left out: they may be large, and hardly one is ever needed here.
fn decode(line: &[u8]) -> Option<Record> {
    line::decode(line, &mut |_| None).ok()
}

fn read(file: &dyn OpenFile, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let read = file.read_at(offset, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

fn has_prompt(head: &[u8]) -> bool {
    whole_line_with(head, b"\"type\":\"prompt/queued\"")
}

fn has_turn_end(tail: &[u8]) -> bool {
    whole_line_with(tail, b"\"type\":\"turn/end\"")
}

fn whole_line_with(bytes: &[u8], what: &[u8]) -> bool {
    memchr::memmem::rfind(bytes, what)
        .and_then(|at| bytes.get(at..))
        .is_some_and(|rest| memchr::memchr(b'\n', rest).is_some())
}
