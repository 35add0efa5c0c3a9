//! Files as `write` and `edit` change them: replaced whole, durable before the result, and so that a look at the file
//! afterwards tells whether it happened.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use segue_log::{BlobHash, CallId, Expect, code};
use sha2::{Digest, Sha256};

use crate::path::Place;
use crate::tool::{Failure, Known, OpenCall, ToolContext, ToolOutput};

/// Files above this many bytes are neither edited nor kept when they are overwritten.
pub(super) const KEPT: u64 = 50 * 1024 * 1024;

/// A failure of a tool, in words.
pub(super) fn failed(message: impl Into<String>) -> Failure {
    Failure { code: code::FAILED.to_owned(), message: message.into() }
}

/// Runs file work off the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| failed(format!("the work on the file was broken off: {error}")))
}

/// A file as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Current {
    /// The hash of its content.
    pub hash: BlobHash,
    /// Its content; none above [`KEPT`] bytes.
    pub content: Option<Vec<u8>>,
}

/// Looks at the regular file at `path`; none if nothing is there.
pub(super) fn look(path: &Path) -> io::Result<Option<Current>> {
    let mut file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() <= KEPT {
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        return Ok(Some(Current { hash: BlobHash::of(&content), content: Some(content) }));
    }
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(Some(Current { hash: finish(hasher)?, content: None }));
        }
        hasher.update(buffer.get(..read).unwrap_or_default());
    }
}

/// Opens a regular file for reading; anything else (a folder, a pipe that would block) is an error that names it.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let kind = std::fs::metadata(path)?;
    if kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    File::open(path)
}

/// The hash that was gathered piece by piece.
pub(super) fn finish(hasher: Sha256) -> io::Result<BlobHash> {
    let hex: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    hex.parse().map_err(io::Error::other)
}

/// A file change, worked out and not yet made.
#[derive(Debug)]
pub(super) struct Change {
    /// The file.
    pub place: Place,
    /// The file as it is.
    pub before: Option<Current>,
    /// The content it gets.
    pub after: Vec<u8>,
}

impl Change {
    fn hash_before(&self) -> Option<BlobHash> {
        self.before.as_ref().map(|current| current.hash)
    }

    /// What the log should hold of the change; keeps the old content.
    pub async fn expect(&self, context: &ToolContext) -> Result<Expect, Failure> {
        let kept = match self.before.as_ref().and_then(|current| current.content.clone()) {
            Some(content) => Some(context.host.put_blob(content).await?),
            None => None,
        };
        Ok(Expect {
            path: self.place.path.clone(),
            before: self.hash_before(),
            after: BlobHash::of(&self.after),
            kept,
        })
    }

    /// Makes the change. It is durable when this returns.
    pub async fn make(self, context: &ToolContext) -> Result<Made, Failure> {
        let now = Expect {
            path: self.place.path.clone(),
            before: self.hash_before(),
            after: BlobHash::of(&self.after),
            kept: None,
        };
        if let Some(said) = &context.expect
            && (said.path != now.path || said.before != now.before || said.after != now.after)
        {
            return Err(changed(&self.place));
        }
        let Self { place, before, after } = self;
        let call = context.call_id.clone();
        let done = blocking(move || {
            replace(&place.path, &after, now.before, &call).map_err(|error| match error {
                ReplaceError::Changed => changed(&place),
                other => failed(format!("cannot write {}: {other}", place.shown)),
            })?;
            Ok(Made { place, before, after, hash: now.after })
        });
        let made = done.await??;
        context.host.saw(&made.place.path, made.hash);
        Ok(made)
    }
}

/// A file change that was made.
pub(super) struct Made {
    /// The file.
    pub place: Place,
    /// What it was.
    pub before: Option<Current>,
    /// What it is.
    pub after: Vec<u8>,
    hash: BlobHash,
}

fn changed(place: &Place) -> Failure {
    failed(format!(
        "{} was changed by something else just before this call ran, so it was left as it is. Read it again and decide anew.",
        place.shown
    ))
}

/// Refuses a place that may not be changed.
pub(super) fn writable(place: &Place, context: &ToolContext) -> Result<(), Failure> {
    if place.inside || context.permitted {
        return Ok(());
    }
    Err(Failure {
        code: code::DENIED.to_owned(),
        message: format!("{} lies outside the working folder {}", place.shown, context.scope.cwd.display()),
    })
}

/// Why a file could not be replaced.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplaceError {
    /// Its content is no longer what it was.
    #[error("its content changed")]
    Changed,
    /// The system refused.
    #[error("{doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
}

/// Puts `content` at `path` in one step, if the file still has the hash `before` (none: does not exist). When this
/// returns, content and name are on the disk; until the rename the old file is untouched.
fn replace(path: &Path, content: &[u8], before: Option<BlobHash>, call: &CallId) -> Result<(), ReplaceError> {
    let at = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| ReplaceError::Io { doing, path, source }
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    make_folders(folder).map_err(at("making the folder", folder))?;
    let old = match std::fs::metadata(path) {
        Ok(old) => {
            // A rename would get past a read-only mark, which is there to be respected.
            rustix::fs::access(path, rustix::fs::Access::WRITE_OK)
                .map_err(|e| at("writing to", path)(e.into()))?;
            Some(old)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(at("looking at", path)(error)),
    };
    let (temporary, mut file) = create_beside(folder, call).map_err(at("making a file in", folder))?;
    let filled = (|| {
        file.write_all(content)?;
        if let Some(old) = &old {
            let new = file.metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                // Only root may give a file away; anybody else keeps the new file and its bits.
                match fchown(&file, Some(old.uid()), Some(old.gid())) {
                    Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
                    _ => {}
                }
            }
            file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        }
        file.sync_all()
    })();
    let renamed = filled.map_err(at("writing", &temporary)).and_then(|()| {
        let now = look(path).map_err(at("looking at", path))?.map(|current| current.hash);
        if now != before {
            return Err(ReplaceError::Changed);
        }
        std::fs::rename(&temporary, path).map_err(at("renaming a new file to", path))
    });
    if renamed.is_err() {
        // Nothing is lost if it stays: it carries the call's name and evidence clears it away.
        let _ = std::fs::remove_file(&temporary);
    }
    renamed?;
    sync_folder(folder)
        .map_err(at("(the file has its new content, but may lose it in a power failure) syncing", folder))
}

/// How a call's temporary files start, so that they can be told from all others.
fn temporary_prefix(call: &CallId) -> String {
    format!(".segue-{call}-")
}

fn create_beside(folder: &Path, call: &CallId) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{}{number}.tmp", temporary_prefix(call)));
        match OpenOptions::new().write(true).create_new(true).mode(0o666).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes the folders that are missing on the way to `folder`, each durable in the one above it.
fn make_folders(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
    for new in missing.into_iter().rev() {
        match std::fs::create_dir(new) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if let Some(above) = new.parent() {
            sync_folder(above)?;
        }
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// What a look at the file says of a change that a crash left without a result. `end` also clears away what the call
/// left half done.
pub(super) async fn evidence(call: &OpenCall, end: bool) -> Known {
    let Some(expect) = call.expect.clone() else { return Known::Nothing };
    let call_id = call.call_id.clone();
    let looked = blocking(move || {
        if end {
            clear_leftovers(&expect.path, &call_id);
        }
        (look(&expect.path).map(|current| current.map(|current| current.hash)), expect)
    });
    let Ok((Ok(now), expect)) = looked.await else { return Known::Nothing };
    let path = expect.path.display();
    if now == Some(expect.after) {
        let text = if expect.before == Some(expect.after) {
            format!("{path} has the intended content; it had it before the call, too.")
        } else {
            format!("{path} has the intended content: the change was made.")
        };
        Known::Result(ToolOutput::ok(text))
    } else if now == expect.before {
        let state =
            if now.is_some() { "is as it was before the call" } else { "does not exist, as before the call" };
        Known::Result(ToolOutput::error(
            code::NOT_APPLIED,
            format!("{path} {state}: the change was not made. It may be tried again if still wanted."),
        ))
    } else {
        Known::Nothing
    }
}

fn clear_leftovers(path: &Path, call: &CallId) {
    let prefix = temporary_prefix(call);
    let entries =
        path.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
        // One that cannot be removed harms nothing.
        let _ = std::fs::remove_file(entry.path());
    }
}
