//! A layer over files that tells a hook of each operation and does what the hook says.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use segue_store::{Access, Files, Lock, OpenFile, Stat};

/// Sees operations on files. A crash test ends its own process here.
pub trait Hook: Send + Sync + 'static {
    /// Called before an operation; says what becomes of it.
    fn before(&self, op: &Op) -> Verdict;

    /// Called after an operation that succeeded.
    fn after(&self, _op: &Op) {}
}

/// What becomes of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes ahead.
    Go,
    /// It fails and does nothing.
    Fail(Fault),
    /// For a write: so many bytes are written, then it fails.
    Torn(usize, Fault),
    /// It fails and does nothing, as the process is meant to be dead already: not even a failed sync has effects.
    Frozen,
}

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `ENOSPC`: the medium is full.
    NoSpace,
    /// `EIO`: the medium is broken.
    Io,
}

impl Fault {
    /// The system's error.
    pub fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Self::NoSpace => 28,
            Self::Io => 5,
        })
    }
}

/// An operation on a file or folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// What is done.
    pub kind: OpKind,
    /// To what; for a move, the new place.
    pub path: PathBuf,
    /// For a write to a log: the types of the records in it, in order.
    pub records: Vec<String>,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is named after the method it stands for")]
pub enum OpKind {
    CreateDir,
    Open,
    Create,
    Lock,
    Rename,
    Publish,
    RemoveDir,
    SyncDir,
    List,
    Stat,
    Read,
    Write,
    Truncate,
    Sync,
}

impl OpKind {
    /// True if it changes anything.
    pub fn changes(self) -> bool {
        !matches!(self, Self::Open | Self::List | Self::Stat | Self::Read)
    }

    fn name(self) -> &'static str {
        match self {
            Self::CreateDir => "create-dir",
            Self::Open => "open",
            Self::Create => "create",
            Self::Lock => "lock",
            Self::Rename => "rename",
            Self::Publish => "publish",
            Self::RemoveDir => "remove-dir",
            Self::SyncDir => "sync-dir",
            Self::List => "list",
            Self::Stat => "stat",
            Self::Read => "read",
            Self::Write => "write",
            Self::Truncate => "truncate",
            Self::Sync => "sync",
        }
    }
}

impl Op {
    /// A name without ids, such as `write log.jsonl tool/call`, `sync log.jsonl` or `sync-dir sessions`.
    pub fn name(&self) -> String {
        let file = self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let file = match file.len() {
            36 if file.parse::<segue_log::SessionId>().is_ok() => "session".to_owned(),
            64 if file.parse::<segue_log::BlobHash>().is_ok() => "blob".to_owned(),
            _ if file.starts_with(".new-") => "new".to_owned(),
            _ if file.starts_with(".deleted-") => "deleted".to_owned(),
            _ => file,
        };
        let mut name = format!("{} {file}", self.kind.name());
        for record in &self.records {
            name.push(' ');
            name.push_str(record);
        }
        name
    }
}

/// What is done besides failing when a sync fails.
pub(super) type OnFailedSync = Arc<dyn Fn(&Path) + Send + Sync>;

/// `files`, with `hook` told of each operation.
pub fn watched(files: Arc<dyn Files>, hook: Arc<dyn Hook>) -> Arc<dyn Files> {
    layer(files, hook, None)
}

pub(super) fn layer(
    files: Arc<dyn Files>,
    hook: Arc<dyn Hook>,
    on_failed_sync: Option<OnFailedSync>,
) -> Arc<dyn Files> {
    Arc::new(Watched { files, watch: Watch { hook, on_failed_sync } })
}

struct Watched {
    files: Arc<dyn Files>,
    watch: Watch,
}

#[derive(Clone)]
struct Watch {
    hook: Arc<dyn Hook>,
    on_failed_sync: Option<OnFailedSync>,
}

impl Watch {
    fn run<T>(&self, kind: OpKind, path: &Path, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let op = Op { kind, path: path.to_owned(), records: Vec::new() };
        match self.hook.before(&op) {
            Verdict::Go => {
                let done = run()?;
                self.hook.after(&op);
                Ok(done)
            }
            Verdict::Fail(fault) | Verdict::Torn(_, fault) => {
                if kind == OpKind::Sync
                    && let Some(act) = &self.on_failed_sync
                {
                    act(path);
                }
                Err(fault.error())
            }
            Verdict::Frozen => Err(Fault::Io.error()),
        }
    }

    fn file(&self, path: &Path, file: Box<dyn OpenFile>) -> Box<dyn OpenFile> {
        Box::new(WatchedFile { file, path: path.to_owned(), watch: self.clone() })
    }
}

impl Files for Watched {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.watch.run(OpKind::CreateDir, path, || self.files.create_dir(path))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn OpenFile>> {
        let file = self.watch.run(OpKind::Open, path, || self.files.open(path, access))?;
        Ok(self.watch.file(path, file))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let file = self.watch.run(OpKind::Create, path, || self.files.create(path))?;
        Ok(self.watch.file(path, file))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.watch.run(OpKind::Lock, path, || self.files.lock(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.watch.run(OpKind::Rename, to, || self.files.rename(from, to))
    }

    fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.watch.run(OpKind::Publish, to, || self.files.publish(from, to))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.watch.run(OpKind::RemoveDir, path, || self.files.remove_dir_all(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.watch.run(OpKind::SyncDir, path, || self.files.sync_dir(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.watch.run(OpKind::List, path, || self.files.list(path))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.watch.run(OpKind::Stat, path, || self.files.stat(path))
    }

    fn network(&self, path: &Path) -> io::Result<Option<String>> {
        self.files.network(path)
    }
}

struct WatchedFile {
    file: Box<dyn OpenFile>,
    path: PathBuf,
    watch: Watch,
}

impl OpenFile for WatchedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.watch.run(OpKind::Read, &self.path, || self.file.read_at(offset, buffer))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let op = Op { kind: OpKind::Write, path: self.path.clone(), records: types_in(bytes) };
        match self.watch.hook.before(&op) {
            Verdict::Go => {
                self.file.write_at(offset, bytes)?;
                self.watch.hook.after(&op);
                Ok(())
            }
            Verdict::Fail(fault) => Err(fault.error()),
            Verdict::Frozen => Err(Fault::Io.error()),
            Verdict::Torn(len, fault) => {
                self.file.write_at(offset, bytes.get(..len).unwrap_or(bytes))?;
                Err(fault.error())
            }
        }
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.watch.run(OpKind::Truncate, &self.path, || self.file.truncate(len))
    }

    fn sync(&self) -> io::Result<()> {
        self.watch.run(OpKind::Sync, &self.path, || self.file.sync())
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}

/// The types of the records whose lines are in `bytes`.
fn types_in(bytes: &[u8]) -> Vec<String> {
    bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| segue_log::line::decode(line, &mut |_| None).ok())
        .map(|record| record.event.kind().to_owned())
        .collect()
}
