//! The raw medium: plain files, written and synced with nothing between.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A file that is appended to and synced.
pub struct RawFile {
    file: File,
    end: u64,
}

impl RawFile {
    /// A new file.
    pub fn create(path: &Path) -> std::io::Result<Self> {
        Ok(Self { file: File::options().create_new(true).write(true).open(path)?, end: 0 })
    }

    /// Appends and syncs; how long that took.
    pub fn checkpoint(&mut self, bytes: &[u8]) -> std::io::Result<Duration> {
        let begun = Instant::now();
        self.file.write_all_at(bytes, self.end)?;
        self.file.sync_data()?;
        self.end += bytes.len() as u64;
        Ok(begun.elapsed())
    }
}

/// The middle value.
pub fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
