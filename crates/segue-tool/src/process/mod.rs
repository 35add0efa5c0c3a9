//! Processes of a command: which they are, whether they live, and their end.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(not(target_os = "linux"))]
use other as system;

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

pub(crate) use system::boot_id;

/// The variable by which every process of a call is found, whatever its parent or group became.
pub(crate) const TOKEN: &str = "SEGUE_CALL";

fn call_variable() -> String {
    TOKEN.to_owned()
}

/// How long processes that were asked to end are waited for before they are killed.
const GRACE: Duration = Duration::from_secs(2);

/// How long killed processes are waited for. Longer only if the kernel holds one fast.
const GONE: Duration = Duration::from_secs(5);

/// A command's first process, as it is remembered beyond the life of this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Its id, which is its group's id, too.
    pub pid: u32,
    /// When it started, in the kernel's ticks since boot.
    pub started: u64,
    /// The boot of the machine.
    pub boot: String,
    /// The machine.
    pub host: String,
    /// The variable of its environment by which its processes are found; that of calls if the record names none.
    #[serde(default = "call_variable")]
    pub variable: String,
    /// The value of that variable.
    pub token: String,
}

impl ProcessRecord {
    /// The record of a process of a call that runs here and now.
    pub(crate) fn of(pid: u32, token: &str) -> Self {
        Self::unstarted(TOKEN, token).started_as(pid)
    }

    /// The record of a process that is about to be started here with `variable` set to `token`: by that alone it and
    /// its descendants are found, should nobody live to note its id.
    pub fn unstarted(variable: &str, token: &str) -> Self {
        Self {
            pid: 0,
            started: 0,
            boot: boot_id(),
            host: host_name(),
            variable: variable.to_owned(),
            token: token.to_owned(),
        }
    }

    /// The same once it runs.
    pub fn started_as(self, pid: u32) -> Self {
        Self { pid, started: system::started(pid).unwrap_or(0), ..self }
    }

    /// True if it was made on this machine since it was started.
    pub fn is_of_this_boot(&self) -> bool {
        self.is_of_this_host() && !self.boot.is_empty() && self.boot == boot_id()
    }

    /// True if it was made on this machine, since it was started or before.
    pub fn is_of_this_host(&self) -> bool {
        self.host == host_name()
    }

    /// Writes it to `path` in one step. It need not survive a power failure, which its process does not survive either.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let temporary = path.with_extension("new");
        std::fs::write(&temporary, serde_json::to_vec(self)?)?;
        std::fs::rename(temporary, path)
    }

    /// Writes it to `path` so that it survives a power failure.
    ///
    /// # Errors
    /// Whatever the file system says; the record is then not known to be there.
    pub fn store(&self, path: &Path) -> std::io::Result<()> {
        use std::io::Write as _;
        let temporary = path.with_extension("new");
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        std::fs::rename(temporary, path)?;
        match path.parent() {
            Some(folder) => std::fs::File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }

    /// Reads it back; none if it is not there or is none.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Its living processes: itself, its group, their descendants, and all that carry its token.
    fn alive(&self) -> Vec<Pid> {
        system::tree(self)
    }

    /// True if any process of it lives.
    pub fn is_alive(&self) -> bool {
        !self.alive().is_empty()
    }

    /// Those of its processes that live beside the first one.
    pub fn others(&self) -> Vec<u32> {
        self.alive()
            .into_iter()
            .map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
            .filter(|pid| *pid != self.pid)
            .collect()
    }

    /// Ends all its processes: asks, waits a little, kills. Blocks until they are gone; false if some would not go.
    pub fn end(&self) -> bool {
        system::signal(self, Signal::TERM);
        // A stopped process acts on nothing but a kill.
        system::signal(self, Signal::CONT);
        let asked = Instant::now();
        while asked.elapsed() < GRACE {
            if !self.is_alive() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill()
    }

    /// Kills all its processes, again and again while they start new ones. Blocks until they are gone; false if some
    /// would not go.
    pub fn kill(&self) -> bool {
        let begun = Instant::now();
        while system::signal(self, Signal::KILL) {
            if begun.elapsed() > GONE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

/// This machine's name.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
