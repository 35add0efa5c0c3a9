//! What the lines of a log amount to, and what a log that does not end well means. Pure: no files here.

use std::collections::VecDeque;
use std::sync::Arc;

use segue_log::line::BadLine;
use segue_log::{Header, Record, Seq};

/// Takes the lines of a log in order.
pub(crate) struct Scanner {
    floor: Seq,
    header: Option<Result<Header, String>>,
    records: Vec<Arc<Record>>,
    offset: u64,
    end: u64,
    bad: Option<Bad>,
    recent: VecDeque<(Seq, u64)>,
}

/// The first line that cannot be read, or is not the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bad {
    /// The seq that its place has.
    pub seq: Seq,
    /// What is wrong with it.
    pub what: String,
    /// The highest seq that a readable line after it calls durable.
    pub later: Seq,
}

/// The lines of a log, read to the end.
pub(crate) struct Scanned {
    /// The header, or what is wrong with it.
    pub header: Result<Header, String>,
    /// The records up to the end or the first bad line.
    pub records: Vec<Arc<Record>>,
    /// Where they end, in bytes.
    pub end: u64,
    /// Where the file ended.
    pub size: u64,
    /// The first bad line.
    pub bad: Option<Bad>,
    /// The highest seq known durable, from the records and the `synced` file.
    pub known: Seq,
    /// Where the first record above `known` begins; `end` if there is none.
    pub known_end: u64,
}

/// What the end of a log means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It ends with a whole record.
    Sound,
    /// Its last line is unfinished: no sync that covered it returned. The log before it is intact.
    Torn,
    /// Its end was lost: an unsynced tail after a power failure, or records that are missing altogether.
    Lost(String),
    /// Something that was durable cannot be read.
    Damaged(String),
}

impl Scanner {
    /// A scanner for a log whose `synced` file says `floor`; 0 if there is none.
    pub fn new(floor: Seq) -> Self {
        Self {
            floor,
            header: None,
            records: Vec::new(),
            offset: 0,
            end: 0,
            bad: None,
            recent: VecDeque::new(),
        }
    }

    /// Takes the first line, `len` bytes long with its newline.
    pub fn header(&mut self, len: u64, header: Result<Header, BadLine>) {
        self.offset += len;
        self.end = self.offset;
        self.header = Some(header.map_err(|bad| bad.to_string()));
    }

    /// True once the header was taken.
    pub fn has_header(&self) -> bool {
        self.header.is_some()
    }

    /// Takes the next complete line, `len` bytes long with its newline.
    pub fn line(&mut self, len: u64, record: Result<Record, BadLine>) {
        let start = self.offset;
        self.offset += len;
        let next = self.next();
        let what = match record {
            Ok(record) => {
                if let Some(bad) = &mut self.bad {
                    bad.later = bad.later.max(vouched(&record));
                    return;
                }
                if record.seq == next {
                    self.take(start, record);
                    return;
                }
                Bad {
                    seq: next,
                    what: format!("record {next} is missing: record {} stands in its place", record.seq),
                    later: vouched(&record),
                }
            }
            Err(bad) => Bad { seq: next, what: format!("record {next} cannot be read: {bad}"), later: 0 },
        };
        self.bad.get_or_insert(what);
    }

    fn next(&self) -> Seq {
        self.records.last().map_or(1, |record| record.seq + 1)
    }

    fn take(&mut self, start: u64, record: Record) {
        self.floor = self.floor.max(vouched(&record));
        self.recent.push_back((record.seq, start));
        while self.recent.front().is_some_and(|(seq, _)| *seq <= self.floor) {
            self.recent.pop_front();
        }
        self.records.push(Arc::new(record));
        self.end = self.offset;
    }

    /// Ends the scan; `rest` bytes follow the last newline.
    pub fn finish(self, rest: u64) -> Scanned {
        let known_end = self.recent.front().map_or(self.end, |(_, start)| *start);
        Scanned {
            header: self.header.unwrap_or_else(|| Err("it has no whole first line".into())),
            records: self.records,
            end: self.end,
            size: self.offset + rest,
            bad: self.bad,
            known: self.floor,
            known_end,
        }
    }
}

/// What a record says of durability. It cannot vouch for itself or for later ones.
fn vouched(record: &Record) -> Seq {
    record.synced.min(record.seq.saturating_sub(1))
}

impl Scanned {
    /// The last record; 0 if there is none.
    pub fn last(&self) -> Seq {
        self.records.last().map_or(0, |record| record.seq)
    }

    /// Says what the end means.
    pub fn judge(&self) -> Verdict {
        if let Err(what) = &self.header {
            return Verdict::Damaged(format!("its header cannot be read: {what}"));
        }
        let last = self.last();
        match &self.bad {
            Some(bad) if bad.seq <= self.known.max(bad.later) => Verdict::Damaged(bad.what.clone()),
            Some(bad) => Verdict::Lost(bad.what.clone()),
            None if self.known > last => {
                Verdict::Lost(format!("records {} to {} were durable and are missing", last + 1, self.known))
            }
            None if self.size > self.end => Verdict::Torn,
            None => Verdict::Sound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use segue_log::{Event, Time};

    enum Line {
        Good(Seq, Seq),
        Bad,
    }
    use Line::{Bad as Broken, Good};

    fn scan(floor: Seq, lines: &[Line], rest: u64) -> Scanned {
        let mut scanner = Scanner::new(floor);
        scanner.header(
            100,
            Ok(Header {
                segue: 1,
                id: "0190a8c0-0000-7000-8000-000000000000".parse().unwrap(),
                created: Time::from_millis(0),
                cwd: "/".into(),
                parent: None,
            }),
        );
        for line in lines {
            let record = match line {
                Good(seq, synced) => Ok(Record {
                    seq: *seq,
                    time: Time::from_millis(0),
                    event: Event::Unknown { kind: "x".into(), data: serde_json::Value::Null },
                    synced: *synced,
                    blobs: Default::default(),
                }),
                Broken => Err(BadLine::WrongChecksum),
            };
            scanner.line(10, record);
        }
        scanner.finish(rest)
    }

    #[test]
    fn every_end_means_what_the_format_says() {
        let sound = Verdict::Sound;
        let bad = |seq: Seq| format!("record {seq} cannot be read: the checksum is wrong");
        // (synced file, lines, bytes after the last newline) → (verdict, last, end, known, end of the known)
        type Case<'a> = (Seq, &'a [Line], u64, Verdict, Seq, u64, Seq, u64);
        let cases: &[Case<'_>] = &[
            (0, &[], 0, sound.clone(), 0, 100, 0, 100),
            (0, &[Good(1, 0), Good(2, 0)], 0, sound.clone(), 2, 120, 0, 100),
            (1, &[Good(1, 0), Good(2, 0)], 0, sound.clone(), 2, 120, 1, 110),
            (0, &[Good(1, 0), Good(2, 1)], 0, sound.clone(), 2, 120, 1, 110),
            (2, &[Good(1, 0), Good(2, 1)], 0, sound, 2, 120, 2, 120),
            // A torn last line costs nothing …
            (1, &[Good(1, 0)], 5, Verdict::Torn, 1, 110, 1, 110),
            // … unless it was durable once.
            (
                2,
                &[Good(1, 0)],
                5,
                Verdict::Lost("records 2 to 2 were durable and are missing".into()),
                1,
                110,
                2,
                110,
            ),
            (
                3,
                &[Good(1, 0)],
                0,
                Verdict::Lost("records 2 to 3 were durable and are missing".into()),
                1,
                110,
                3,
                110,
            ),
            // A bad line above everything durable: a tail that was never synced.
            (1, &[Good(1, 0), Broken], 0, Verdict::Lost(bad(2)), 1, 110, 1, 110),
            (0, &[Good(1, 0), Broken, Good(3, 1)], 7, Verdict::Lost(bad(2)), 1, 110, 0, 100),
            // The same line, called durable by the file or by a later record.
            (2, &[Good(1, 0), Broken], 0, Verdict::Damaged(bad(2)), 1, 110, 2, 110),
            (0, &[Good(1, 0), Broken, Good(3, 2)], 0, Verdict::Damaged(bad(2)), 1, 110, 0, 100),
            (0, &[Broken, Broken, Good(3, 1)], 0, Verdict::Damaged(bad(1)), 0, 100, 0, 100),
            // A gap, and a repetition.
            (
                0,
                &[Good(1, 0), Good(3, 2)],
                0,
                Verdict::Damaged("record 2 is missing: record 3 stands in its place".into()),
                1,
                110,
                0,
                100,
            ),
            (
                0,
                &[Good(1, 0), Good(1, 0)],
                0,
                Verdict::Lost("record 2 is missing: record 1 stands in its place".into()),
                1,
                110,
                0,
                100,
            ),
            // A record cannot vouch for itself.
            (0, &[Good(1, 5), Good(2, 7)], 0, Verdict::Sound, 2, 120, 1, 110),
        ];
        for (at, (floor, lines, rest, verdict, last, end, known, known_end)) in cases.iter().enumerate() {
            let found = scan(*floor, lines, *rest);
            assert_eq!(
                (found.judge(), found.last(), found.end, found.known, found.known_end),
                (verdict.clone(), *last, *end, *known, *known_end),
                "case {at}"
            );
        }
    }

    #[test]
    fn a_log_without_a_header_is_damaged() {
        for (header, what) in [
            (None, "its header cannot be read: it has no whole first line"),
            (Some(BadLine::NoChecksum), "its header cannot be read: the line has no checksum"),
        ] {
            let mut scanner = Scanner::new(0);
            if let Some(bad) = header {
                scanner.header(10, Err(bad));
            }
            assert_eq!(scanner.finish(4).judge(), Verdict::Damaged(what.into()));
        }
    }
}
