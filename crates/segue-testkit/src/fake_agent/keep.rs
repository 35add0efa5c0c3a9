//! The agent's own sessions: a folder with a file for each, so that they outlive its processes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A session as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kept {
    pub id: String,
    pub cwd: Value,
    /// Its mode and options, as they were last set.
    pub settings: Value,
    /// All updates that a load replays, prompts among them.
    pub updates: Vec<Value>,
}

/// The folder.
#[derive(Debug, Clone)]
pub(super) struct Keeper {
    folder: PathBuf,
}

impl Keeper {
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// The file of a session, if its id can be the name of one.
    fn path(&self, id: &str) -> Option<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        (!id.is_empty() && id.chars().all(plain)).then(|| self.folder.join(format!("{id}.jsonl")))
    }

    /// What is kept of a session.
    pub fn read(&self, id: &str) -> Option<Kept> {
        let text = std::fs::read_to_string(self.path(id)?).ok()?;
        let mut kept = Kept { id: id.to_owned(), cwd: Value::Null, settings: json!({}), updates: Vec::new() };
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if line.get("cwd").is_some() {
                kept.cwd = line["cwd"].clone();
            } else if line.get("settings").is_some() {
                kept.settings = line["settings"].clone();
            } else {
                kept.updates.push(line["update"].clone());
            }
        }
        Some(kept)
    }

    /// Whether anything is kept of a session.
    pub fn has(&self, id: &str) -> bool {
        self.path(id).is_some_and(|path| path.exists())
    }

    /// Every session, by id.
    pub fn all(&self) -> Vec<Kept> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut ids: Vec<String> =
            names.filter_map(|name| name.strip_suffix(".jsonl").map(str::to_owned)).collect();
        ids.sort();
        ids.iter().filter_map(|id| self.read(id)).collect()
    }

    /// Appends lines to a session, which this begins if it is new.
    pub fn append(&self, id: &str, cwd: &Value, lines: &[Value]) -> io::Result<()> {
        let Some(path) = self.path(id) else { return Ok(()) };
        let mut text = String::new();
        if !path.exists() {
            text.push_str(&format!("{}\n", json!({"cwd": cwd})));
        }
        for line in lines {
            text.push_str(&format!("{line}\n"));
        }
        append(&path, &text)
    }

    /// Forgets a session.
    pub fn remove(&self, id: &str) {
        if let Some(path) = self.path(id) {
            // That it is gone already is as good.
            drop(std::fs::remove_file(path));
        }
    }

    /// Takes a session for this process alone; none if another has it.
    pub fn take(&self, id: &str) -> io::Result<Option<File>> {
        let Some(path) = self.path(id) else { return Ok(None) };
        let file = OpenOptions::new().create(true).append(true).open(path.with_extension("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Appends a text to a file in one write.
pub(super) fn append(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())
}
