//! Access to files, behind a trait so that tests can take power, space and truth away from it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The file operations that a store on files needs. All of them block.
///
/// What is promised of the medium stands in `docs/log-format.md`: a write or a truncation is kept once
/// [`OpenFile::sync`] has returned, an entry of a folder once [`Files::sync_dir`] has.
pub trait Files: Send + Sync + 'static {
    /// Makes a folder, readable to its owner only. Fails with `AlreadyExists` if there is something.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Opens a file that exists.
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn OpenFile>>;

    /// Makes a file, or empties the one that is there, for reading and writing by its owner only.
    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Takes the lock of a file, which is made if it is missing; none if somebody else has it. The lock ends
    /// when the value is dropped or its process dies, however it dies.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>>;

    /// Moves a file; one that is at `to` is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Moves a folder. Fails with `AlreadyExists` if there is something at `to`.
    fn publish(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a folder with all that is in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the entries of a folder durable.
    #[must_use = "an entry that is not confirmed may be gone after a power failure"]
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder, in no order.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// What is at a path.
    fn stat(&self, path: &Path) -> io::Result<Stat>;

    /// The name of the network file system that a path lies on; none if it is local.
    fn network(&self, path: &Path) -> io::Result<Option<String>>;
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
}

/// A file that is open. Offsets and lengths are in bytes.
pub trait OpenFile: Send + Sync {
    /// Reads at an offset; fewer bytes than asked for only at the file's end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes at an offset. After a failure any part of them may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Sets the file's length.
    fn truncate(&self, len: u64) -> io::Result<()>;

    /// Makes the file's bytes and length durable. After a failure nothing written since the last success may
    /// be believed, whatever a read shows.
    #[must_use = "bytes that are not confirmed may be gone after a power failure"]
    fn sync(&self) -> io::Result<()>;

    /// The file's length.
    fn size(&self) -> io::Result<u64>;
}

/// A lock that is held.
pub trait Lock: Send {
    /// Replaces the text in the lock's file, which others read to learn who holds it.
    fn describe(&self, text: &str) -> io::Result<()>;
}

/// What is known of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// True for a folder.
    pub dir: bool,
    /// The length in bytes.
    pub len: u64,
    /// When it was last changed, since 1970.
    pub modified: Duration,
}

/// The machine's own files.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFiles;

impl Files for RealFiles {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn OpenFile>> {
        // A pipe that has the name of a log would block whoever opens it, and with it the list of all sessions.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let file = OpenOptions::new().read(true).write(access == Access::Write).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        // The file may be moved away with its session between opening and locking it; then the lock means nothing.
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let ours = file.metadata()?;
            match fs::metadata(path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                    return Ok(Some(Box::new(RealLock(file))));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTSUP) => {
                // Not every file system knows the flag. A plain rename replaces nothing but an empty folder.
                if fs::symlink_metadata(to).is_ok() {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                fs::rename(from, to)
            }
            other => other.map_err(io::Error::from),
        }
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let found = fs::metadata(path)?;
        let modified =
            found.modified()?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::from_secs(0));
        Ok(Stat { dir: found.is_dir(), len: found.len(), modified })
    }

    fn network(&self, path: &Path) -> io::Result<Option<String>> {
        crate::network::kind_of(path)
    }
}

struct RealFile(File);

impl OpenFile for RealFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

struct RealLock(File);

impl Lock for RealLock {
    fn describe(&self, text: &str) -> io::Result<()> {
        self.0.write_all_at(text.as_bytes(), 0)?;
        self.0.set_len(text.len() as u64)
    }
}

impl Drop for RealLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that another thread is just starting has a copy of the descriptor
        // until it becomes another program, and the lock would live as long. Should this fail, it does.
        let _ = self.0.unlock();
    }
}

/// Reads at most `limit` bytes from the start of a file.
pub(crate) fn read_up_to(files: &dyn Files, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = files.open(path, Access::Read)?;
    let len = usize::try_from(file.size()?.min(limit)).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

    use super::*;

    /// A session that was closed while another thread started a command was "in use" for a moment, by nobody: the
    /// command's process had a copy of the lock's descriptor until its exec.
    #[test]
    fn a_lock_that_is_given_back_is_free_though_a_copy_of_its_descriptor_lives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = RealFiles.lock(&path).unwrap().unwrap();
        let is_the_lock =
            |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|target| target == path);
        let open =
            fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap()).find(is_the_lock).unwrap();
        let number = open.file_name().into_string().unwrap().parse().unwrap();
        let me = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let copy = pidfd_getfd(me, number, PidfdGetfdFlags::empty()).unwrap();
        assert!(RealFiles.lock(&path).unwrap().is_none());
        drop(lock);
        assert!(RealFiles.lock(&path).unwrap().is_some());
        drop(copy);
    }
}
