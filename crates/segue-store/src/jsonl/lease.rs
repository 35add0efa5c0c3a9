//! The lease of a session: an advisory lock on its `lock` file, with the holder's details in it for others to read.

use std::io;

use segue_log::Time;

use super::place::{Place, failed};
use crate::error::{Result, StoreError};
use crate::files::{Lock, read_up_to};
use crate::machine::{boot_id, host_name};
use crate::store::Holder;

/// A session's lease. Given back when dropped.
pub(super) struct Lease {
    lock: Box<dyn Lock>,
}

impl Lease {
    /// Takes the lease, or says who has it.
    pub fn take(place: &Place, surface: &str) -> Result<Self> {
        let path = place.lock();
        let lock = place.files.lock(&path).map_err(failed("lock", &path))?;
        let Some(lock) = lock else {
            return Err(StoreError::InUse { id: place.id, holder: holder_of(place) });
        };
        let lease = Self { lock };
        let text = serde_json::to_string(&myself(surface)).unwrap_or_default();
        lease.lock.describe(&text).map_err(failed("write", &path))?;
        Ok(lease)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Should this fail, readers see a holder until its process ends; the lock itself is free all the same.
        let _ = self.lock.describe("");
    }
}

/// Who has a session's lease, as far as its lock file tells and the process it names is alive.
pub(super) fn holder_of(place: &Place) -> Option<Holder> {
    let bytes = read_up_to(&*place.files, &place.lock(), 4096).ok()?;
    let holder: Holder = serde_json::from_slice(&bytes).ok()?;
    is_alive(&holder).then_some(holder)
}

fn myself(surface: &str) -> Holder {
    let pid = std::process::id();
    Holder {
        host: host_name(),
        pid,
        started: started(pid).unwrap_or(0),
        boot: boot_id(),
        since: Time::now(),
        surface: surface.to_owned(),
    }
}

/// When a process started, in ticks since boot. A pid is used again, the pair is not.
fn started(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name stands in parentheses and may have blanks and parentheses itself. Field 22 is the 20th after it.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19))
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn is_alive(holder: &Holder) -> bool {
    if holder.boot != boot_id() || holder.host != host_name() {
        return false;
    }
    if cfg!(target_os = "linux") {
        return started(holder.pid).is_ok_and(|started| started == holder.started);
    }
    i32::try_from(holder.pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_alive_only_as_the_very_process_it_was() {
        let me = myself("test");
        assert!(is_alive(&me));
        for other in [
            Holder { pid: u32::MAX, ..me.clone() },
            Holder { started: me.started + 1, ..me.clone() },
            Holder { boot: "another".into(), ..me.clone() },
            Holder { host: "elsewhere".into(), ..me.clone() },
        ] {
            assert!(!is_alive(&other), "{other:?}");
        }
    }
}
