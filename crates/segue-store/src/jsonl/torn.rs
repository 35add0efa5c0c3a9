//! What was cut off a log is kept beside it, in files `log.torn-1`, `log.torn-2` … Each begins with a line that says where it
//! was cut, and is durable before the log is cut, so that no crash in between can hide that something was lost.

use std::collections::{BTreeMap, BTreeSet};

use segue_log::{Event, Record, Seq};
use serde::{Deserialize, Serialize};

use super::place::{Place, failed};
use crate::error::Result;
use crate::files::{OpenFile, read_up_to};
use crate::store::Cut;

const PREFIX: &str = "log.torn-";
const UNFINISHED: &str = ".torn-unfinished";
const CHUNK: usize = 1 << 20;

/// The first line of such a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    /// The last record before the cut.
    cut_at: Seq,
    /// Where in the log the bytes that follow stood.
    offset: u64,
    /// What was wrong.
    reason: String,
}

/// Keeps everything of `log` from `offset` on in a new file, durable when this returns.
pub(super) fn keep(
    place: &Place,
    log: &dyn OpenFile,
    cut_at: Seq,
    offset: u64,
    reason: String,
) -> Result<()> {
    let number = numbers(place)?.last().map_or(1, |last| last + 1);
    let unfinished = place.dir.join(UNFINISHED);
    let path = place.dir.join(format!("{PREFIX}{number}"));
    let file = place.files.create(&unfinished).map_err(failed("create", &unfinished))?;
    let mut head = serde_json::to_string(&Head { cut_at, offset, reason }).unwrap_or_default();
    head.push('\n');
    file.write_at(0, head.as_bytes()).map_err(failed("write", &unfinished))?;
    let mut to = head.len() as u64;
    let mut from = offset;
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = log.read_at(from, &mut buffer).map_err(failed("read", &place.log()))?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { break };
        file.write_at(to, bytes).map_err(failed("write", &unfinished))?;
        from += read as u64;
        to += read as u64;
    }
    file.sync().map_err(failed("sync", &unfinished))?;
    // The lease is held and the number is free, so this replaces nothing.
    place.files.rename(&unfinished, &path).map_err(failed("rename", &unfinished))?;
    place.files.sync_dir(&place.dir).map_err(failed("sync", &place.dir))
}

/// The cuts that no `session/repaired` among `records`, which are all durable, names.
pub(super) fn uncounted(place: &Place, records: &[std::sync::Arc<Record>]) -> Result<Vec<Cut>> {
    let numbers = numbers(place)?;
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let counted: BTreeSet<&str> = records
        .iter()
        .filter_map(|record| match &record.event {
            Event::SessionRepaired(data) => Some(data.files.iter().map(String::as_str)),
            _ => None,
        })
        .flatten()
        .collect();
    let last = records.last().map_or(0, |record| record.seq);
    let mut cuts: BTreeMap<Seq, Vec<String>> = BTreeMap::new();
    for number in numbers {
        let name = format!("{PREFIX}{number}");
        if counted.contains(name.as_str()) {
            continue;
        }
        let path = place.dir.join(&name);
        let bytes = read_up_to(&*place.files, &path, CHUNK as u64).map_err(failed("read", &path))?;
        let head = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        // One that cannot be read still tells that something was cut; the end is the careful guess.
        let cut_at = serde_json::from_slice::<Head>(head).map_or(last, |head| head.cut_at.min(last));
        cuts.entry(cut_at).or_default().push(name);
    }
    Ok(cuts.into_iter().map(|(cut_at, files)| Cut { cut_at, files }).collect())
}

/// The files that keep what was cut, by name.
pub(super) fn names(place: &Place) -> Result<Vec<String>> {
    Ok(numbers(place)?.into_iter().map(|number| format!("{PREFIX}{number}")).collect())
}

/// True for the name of a file that this module makes.
pub(super) fn is_ours(name: &str) -> bool {
    name == UNFINISHED || number_of(name).is_some()
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

fn numbers(place: &Place) -> Result<BTreeSet<u64>> {
    let names = place.files.list(&place.dir).map_err(failed("list", &place.dir))?;
    Ok(names.iter().filter_map(|name| number_of(name.to_str()?)).collect())
}
