//! Reading a log file: in blocks, split into lines, decoded on several threads where that pays.

use std::num::NonZero;
use std::thread;

use segue_log::Record;
use segue_log::line::{self, BadLine, MAX_LINE};

use super::place::{Place, failed};
use super::scan::{Scanned, Scanner};
use crate::error::Result;
use crate::files::{Access, OpenFile};

/// Bytes read at a time.
const BLOCK: usize = 4 << 20;
/// Below this many lines a block is decoded where it is.
const WORTH_THREADS: usize = 2_000;
const MOST_THREADS: usize = 8;

/// Reads a session's log to its end. Changes nothing.
pub(super) fn load(place: &Place) -> Result<Scanned> {
    let path = place.log();
    let file = place.files.open(&path, Access::Read).map_err(failed("open", &path))?;
    scan(place, &*file)
}

/// The same, from a file that is open already.
pub(super) fn scan(place: &Place, file: &dyn OpenFile) -> Result<Scanned> {
    let mut scanner = Scanner::new(place.read_synced());
    let rest = for_each_block(place, file, |lines| decode_block(place, &mut scanner, lines))?;
    Ok(scanner.finish(rest))
}

/// Gives all complete lines of a log, in order and in batches, to `take`. A line longer than any record is given cut
/// off, with its true length beside it. Returns how many bytes follow the last newline.
pub(super) fn for_each_block(
    place: &Place,
    file: &dyn OpenFile,
    mut take: impl FnMut(&[(&[u8], u64)]),
) -> Result<u64> {
    let path = place.log();
    let mut offset = 0u64;
    let size = file.size().map_err(failed("look at", &path))?;
    let mut buffer = vec![0u8; BLOCK.min(usize::try_from(size).unwrap_or(BLOCK).saturating_add(1))];
    // The start of a line whose newline has not come yet, and its length so far.
    let mut begun: Vec<u8> = Vec::new();
    let mut begun_len = 0u64;
    loop {
        let read = file.read_at(offset, &mut buffer).map_err(failed("read", &path))?;
        let Some(mut block) = buffer.get(..read).filter(|block| !block.is_empty()) else { break };
        offset += read as u64;
        if begun_len > 0 {
            let at = memchr::memchr(b'\n', block);
            let (head, rest) = block.split_at(at.map_or(block.len(), |at| at + 1));
            let room = (MAX_LINE + 1).saturating_sub(begun.len());
            begun.extend_from_slice(head.get(..room).unwrap_or(head));
            begun_len += head.len() as u64;
            block = rest;
            if at.is_some() {
                take(&[(&begun, begun_len)]);
                begun.clear();
                begun_len = 0;
            }
        }
        let mut lines = Vec::new();
        while let Some(at) = memchr::memchr(b'\n', block) {
            let (line, rest) = block.split_at(at + 1);
            lines.push((line.get(..=MAX_LINE).unwrap_or(line), line.len() as u64));
            block = rest;
        }
        if !lines.is_empty() {
            take(&lines);
        }
        if !block.is_empty() {
            begun.extend_from_slice(block.get(..=MAX_LINE).unwrap_or(block));
            begun_len += block.len() as u64;
        }
    }
    Ok(begun_len)
}

/// Decodes a line; `len` is its true length.
pub(super) fn decode(place: &Place, bytes: &[u8], len: u64) -> Result<Record, BadLine> {
    if len > MAX_LINE as u64 {
        return Err(BadLine::NotARecord(format!("the line has {len} bytes")));
    }
    line::decode(bytes, &mut |hash| place.read_blob(hash))
}

fn decode_block(place: &Place, scanner: &mut Scanner, mut lines: &[(&[u8], u64)]) {
    if !scanner.has_header()
        && let Some(((bytes, len), rest)) = lines.split_first()
    {
        scanner.header(*len, line::decode_header(bytes));
        lines = rest;
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    if threads == 1 || lines.len() < WORTH_THREADS {
        for (bytes, len) in lines {
            scanner.line(*len, decode(place, bytes, *len));
        }
        return;
    }
    let decode_all = |part: &[(&[u8], u64)]| {
        part.iter().map(|(bytes, len)| decode(place, bytes, *len)).collect::<Vec<_>>()
    };
    let decoded: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = lines
            .chunks(lines.len().div_ceil(threads))
            .map(|part| (part, scope.spawn(move || decode_all(part))))
            .collect();
        running.into_iter().map(|(part, thread)| thread.join().unwrap_or_else(|_| decode_all(part))).collect()
    });
    for ((_, len), record) in lines.iter().zip(decoded.into_iter().flatten()) {
        scanner.line(*len, record);
    }
}
