//! The processes of a world: those whose environment names its home. Their parents and groups tell nothing, as agents
//! start theirs in groups of their own and outlive each other.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its parent's id.
    pub parent: i32,
    /// Its command line.
    pub command: String,
}

/// The processes whose environment has this home.
pub fn of_home(home: &Path) -> Vec<Process> {
    let mark = format!("HOME={}", home.display());
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).find(|entry| *entry == mark.as_bytes())?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        if fields.next()? == "Z" {
            return None;
        }
        let parent = fields.next()?.parse().ok()?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(Process { pid, parent, command: String::from_utf8_lossy(&command).replace('\0', " ") })
    })
    .collect()
}

/// Ends a process at once. One that is gone already is as good.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}
