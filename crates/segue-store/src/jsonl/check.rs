//! A look at everything in the store.

use std::collections::BTreeSet;
use std::path::PathBuf;

use segue_log::line;

use super::copy::DELETED;
use super::draft::NEW;
use super::place::{BLOBS, LOCK, LOG, Place, Root};
use super::scan::Verdict;
use super::{lease, load, synced, torn};
use crate::error::{Result, StoreError};
use crate::store::CheckReport;

/// Names what does not belong or cannot be read. Changes nothing.
pub(super) fn check(root: &Root) -> Result<CheckReport> {
    let (mut ids, foreign) = root.names()?;
    ids.sort_unstable();
    let mut report = CheckReport::default();
    for path in foreign {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let what = if name.starts_with(NEW) {
            "left by a process that died while it made a session"
        } else if name.starts_with(DELETED) {
            "left of a session that was being deleted"
        } else {
            "not a session"
        };
        report.findings.push((path, what.into()));
    }
    for id in ids {
        let before = report.findings.len();
        session(&root.place(id), &mut report.findings);
        if report.findings.len() == before {
            report.sound += 1;
        }
    }
    report.findings.sort();
    Ok(report)
}

fn session(place: &Place, findings: &mut Vec<(PathBuf, String)>) {
    let names = match place.files.list(&place.dir) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            return findings.push((place.dir.clone(), "not a session".into()));
        }
        Err(error) => return findings.push((place.dir.clone(), format!("cannot be listed: {error}"))),
    };
    for name in &names {
        let text = name.to_string_lossy();
        if ![LOG, LOCK, BLOBS, synced::NAME].contains(&&*text) && !torn::is_ours(&text) {
            findings.push((place.dir.join(name), "not part of a session".into()));
        }
    }
    let scanned = match load::load(place) {
        Ok(scanned) => scanned,
        Err(StoreError::Io { doing, path, source }) => {
            return findings.push((path, format!("cannot {doing} it: {source}")));
        }
        Err(other) => return findings.push((place.log(), other.to_string())),
    };
    let hashes: BTreeSet<_> = scanned.records.iter().flat_map(|record| record.blobs.values()).collect();
    for hash in hashes {
        if place.read_blob(hash).is_none() {
            findings.push((place.blob(hash), "a blob that is missing or damaged".into()));
        }
    }
    let verdict = scanned.judge();
    let alive = lease::holder_of(place).is_some();
    match (verdict, &scanned.header) {
        (Verdict::Damaged(what), _) => findings.push((place.log(), format!("damaged: {what}"))),
        (_, Ok(header)) if header.id != place.id => {
            findings.push((place.log(), format!("its header names another session, {}", header.id)));
        }
        (_, Ok(header)) if !line::is_writable(header) => {
            findings.push((place.log(), format!("written by a newer segue (format {})", header.segue)));
        }
        (Verdict::Lost(what), _) if !alive => {
            findings.push((
                place.log(),
                format!("its end was lost: {what}; it is cut when the session is resumed"),
            ));
        }
        (Verdict::Torn, _) if !alive => {
            findings.push((
                place.log(),
                "its last line is unfinished; it is cut when the session is resumed".into(),
            ));
        }
        _ => {}
    }
}
