//! Which folders' configuration the person trusts. Trust is bound to the folder and to the very content of its file:
//! a changed file must be read and trusted again.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use segue_log::BlobHash;

use super::layer::{Place, Problem};
use crate::error::{Error, Kind, Result};

/// How far a project's file is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// As it stands.
    Trusted,
    /// An earlier content of it was.
    Changed,
    /// Never.
    Unknown,
}

/// The file that remembers trusted folders: `trust.json` beside the user's configuration.
pub struct TrustFile {
    path: PathBuf,
}

impl TrustFile {
    /// The file beside the user's configuration file.
    pub fn beside(user_config: &Path) -> Self {
        Self { path: user_config.with_file_name("trust.json") }
    }

    /// What is remembered of a folder whose file has this content.
    pub fn look_up(&self, folder: &Path, content: &[u8]) -> std::result::Result<Trust, Problem> {
        let folders =
            self.read().map_err(|message| Problem { place: Place::whole_file(&self.path), message })?;
        Ok(match folders.get(&key(folder)) {
            Some(hash) if *hash == BlobHash::of(content).to_string() => Trust::Trusted,
            Some(_) => Trust::Changed,
            None => Trust::Unknown,
        })
    }

    /// Trusts a folder's file as it stands.
    pub fn trust(&self, folder: &Path, content: &[u8]) -> Result<()> {
        let mut folders =
            self.read().map_err(|message| Error::config(format!("{}: {message}", self.path.display())))?;
        folders.insert(key(folder), BlobHash::of(content).to_string());
        self.write(&folders).map_err(|error| {
            Error::new(Kind::Storage, format!("cannot write {}: {error}", self.path.display()))
        })
    }

    fn read(&self) -> std::result::Result<BTreeMap<String, String>, String> {
        match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                format!("cannot be understood: {error}; delete it to trust no folder, or mend it")
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(format!("cannot be read: {error}")),
        }
    }

    /// Replaces the file whole: a half-written one must not lose what was trusted before.
    fn write(&self, folders: &BTreeMap<String, String>) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer_pretty(&mut file, folders)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

/// A folder as the file names it. Bytes that are no UTF-8 are escaped, so that two folders never share a name.
fn key(folder: &Path) -> String {
    match folder.to_str() {
        Some(text) => text.to_owned(),
        None => format!("{folder:?}"),
    }
}
