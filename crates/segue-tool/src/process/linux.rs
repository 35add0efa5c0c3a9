//! Processes as `/proc` shows them.

use std::collections::HashSet;

use rustix::process::{Pid, Signal};

use super::ProcessRecord;

/// The id of this boot; empty if the kernel does not tell.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// When a process started, in ticks since boot; none if there is no such process.
pub(super) fn started(pid: u32) -> Option<u64> {
    stat(pid).map(|stat| stat.started)
}

struct Stat {
    pid: u32,
    parent: u32,
    group: u32,
    started: u64,
    /// It has ended and only waits for its parent to look.
    ended: bool,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // The name in parentheses may itself have spaces and parentheses.
    let (_, after) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    Some(Stat {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        ended: matches!(*fields.first()?, "Z" | "X" | "x"),
    })
}

/// The living processes of a command. Its number alone is never believed: a process with it counts only with the
/// same start time, and its group only while it is there to hold the number.
pub(super) fn tree(record: &ProcessRecord) -> Vec<Pid> {
    let this = std::process::id();
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if pid != this {
            all.extend(stat(pid));
        }
    }
    let first_is_there = all.iter().any(|stat| stat.pid == record.pid && stat.started == record.started);
    let mark = format!("{}={}", record.variable, record.token);
    let mut members: HashSet<u32> = HashSet::new();
    for stat in &all {
        let in_group = first_is_there && (stat.pid == record.pid || stat.group == record.pid);
        if in_group || (!stat.ended && carries(stat.pid, mark.as_bytes())) {
            members.insert(stat.pid);
        }
    }
    loop {
        let found: Vec<u32> = all
            .iter()
            .filter(|stat| members.contains(&stat.parent) && !members.contains(&stat.pid))
            .map(|stat| stat.pid)
            .collect();
        if found.is_empty() {
            break;
        }
        members.extend(found);
    }
    all.iter()
        .filter(|stat| !stat.ended && members.contains(&stat.pid))
        .filter_map(|stat| Pid::from_raw(i32::try_from(stat.pid).ok()?))
        .collect()
}

/// Sends a signal to all living processes of a command; false if there are none.
pub(super) fn signal(record: &ProcessRecord, signal: Signal) -> bool {
    let alive = tree(record);
    for pid in &alive {
        // One that is gone by now needs no signal; one that took another user's rights cannot be given any.
        let _ = rustix::process::kill_process(*pid, signal);
    }
    !alive.is_empty()
}

/// True if the environment that a process was started with has the token; false for those that may not be looked at.
fn carries(pid: u32, mark: &[u8]) -> bool {
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|variable| variable == mark))
}
