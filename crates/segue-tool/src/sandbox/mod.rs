//! Holds a command to writing in given folders and keeps it off the network, as well as the kernel can.
//!
//! Commands that nobody was asked about run in here. What it is worth is the [`Level`]; which one a machine has is
//! found out by running a harmless command in it.

mod bubblewrap;
#[cfg(target_os = "linux")]
mod landlock;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod landlock;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

pub use landlock::{RestrictError, restrict_and_exec};

/// The launcher's hidden subcommand that hands its other arguments to [`restrict_and_exec`].
pub const SUBCOMMAND: &str = "sandbox-exec";

/// How well a command can be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// By bubblewrap: a read-only view of the file system with the given folders writable, no network, no other processes.
    Bubblewrap,
    /// By Landlock: writes only in the given folders, no TCP; no network at all where namespaces may be made.
    Landlock,
    /// Not at all.
    None,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bubblewrap => "bubblewrap",
            Self::Landlock => "Landlock",
            Self::None => "none",
        })
    }
}

/// The best sandbox of this machine. Clones share what was found.
#[derive(Debug, Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    helper: Option<PathBuf>,
    found: OnceLock<Found>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Bubblewrap,
    Landlock { helper: PathBuf, network_namespace: bool },
    None,
}

impl Sandbox {
    /// The sandbox of this machine. `helper` is a program that hands the arguments after [`SUBCOMMAND`] to
    /// [`restrict_and_exec`]; without one there is no Landlock. The machine is looked at when that is first needed,
    /// which takes some milliseconds and starts processes.
    pub fn detect(helper: Option<PathBuf>) -> Self {
        Self { inner: Arc::new(Inner { helper, found: OnceLock::new() }) }
    }

    /// How well it holds.
    pub fn level(&self) -> Level {
        match self.found() {
            Found::Bubblewrap => Level::Bubblewrap,
            Found::Landlock { .. } => Level::Landlock,
            Found::None => Level::None,
        }
    }

    /// The level and what it means, for a report.
    pub fn describe(&self) -> &'static str {
        match self.found() {
            Found::Bubblewrap => {
                "bubblewrap: writes only in the working folder, no network, no view of other processes"
            }
            Found::Landlock { network_namespace: true, .. } => {
                "Landlock: writes only in the working folder, no network"
            }
            Found::Landlock { .. } => {
                "Landlock: writes only in the working folder, no TCP; other networking is not held"
            }
            Found::None => "none: this machine has neither bubblewrap nor Landlock that could be used",
        }
    }

    /// The command line that runs `command` with writes only below `writable`; none if this machine has no sandbox.
    pub fn wrap(&self, writable: &[&Path], command: Vec<OsString>) -> Option<Vec<OsString>> {
        self.found().wrap(writable, command)
    }

    fn found(&self) -> &Found {
        self.inner.found.get_or_init(|| {
            let helper = self.inner.helper.iter().flat_map(|helper| {
                [true, false]
                    .map(|network_namespace| Found::Landlock { helper: helper.clone(), network_namespace })
            });
            std::iter::once(Found::Bubblewrap).chain(helper).find(Found::works).unwrap_or(Found::None)
        })
    }
}

impl Found {
    fn wrap(&self, writable: &[&Path], command: Vec<OsString>) -> Option<Vec<OsString>> {
        match self {
            Self::Bubblewrap => Some(bubblewrap::wrap(writable, command)),
            Self::Landlock { helper, network_namespace } => {
                let mut line: Vec<OsString> = Vec::new();
                if *network_namespace {
                    line.extend(
                        ["unshare", "--user", "--map-current-user", "--net", "--"].map(OsString::from),
                    );
                }
                line.extend([helper.into(), SUBCOMMAND.into()]);
                for folder in writable {
                    line.extend(["--write".into(), folder.into()]);
                }
                line.push("--".into());
                line.extend(command);
                Some(line)
            }
            Self::None => None,
        }
    }

    /// Runs `true` in it.
    fn works(&self) -> bool {
        let Some(line) = self.wrap(&[], vec!["true".into()]) else { return false };
        let Some((program, arguments)) = line.split_first() else { return false };
        Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}
