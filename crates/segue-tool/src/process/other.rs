//! Processes on systems without `/proc`: only a command's group can be seen, and nothing of it survives as evidence.

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::ProcessRecord;

/// Empty: without start times nothing remembered from before can be told from a stranger, so nothing is believed.
pub(crate) fn boot_id() -> String {
    String::new()
}

/// Not known here.
pub(super) fn started(_pid: u32) -> Option<u64> {
    None
}

/// The first process stands for its group while the group is there.
pub(super) fn tree(record: &ProcessRecord) -> Vec<Pid> {
    i32::try_from(record.pid)
        .ok()
        .and_then(Pid::from_raw)
        .filter(|pid| test_kill_process_group(*pid).is_ok())
        .into_iter()
        .collect()
}

/// Sends a signal to the group; false if there is none.
pub(super) fn signal(record: &ProcessRecord, signal: Signal) -> bool {
    tree(record).into_iter().any(|group| kill_process_group(group, signal).is_ok())
}
