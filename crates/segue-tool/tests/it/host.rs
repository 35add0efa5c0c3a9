//! A session as tools see one, in memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use async_trait::async_trait;
use segue_log::{BlobHash, PlanEntry, code};
use segue_tool::{Failure, ToolContext, ToolHost, ToolOutput};
use serde_json::Value;

/// Keeps what tools give it.
#[derive(Default)]
pub struct TestHost {
    pub blobs: Mutex<HashMap<BlobHash, Vec<u8>>>,
    pub progress: Mutex<String>,
    pub plans: Mutex<Vec<Vec<PlanEntry>>>,
    pub seen: Mutex<HashMap<PathBuf, BlobHash>>,
}

#[async_trait]
impl ToolHost for TestHost {
    async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash, Failure> {
        let hash = BlobHash::of(&bytes);
        self.blobs.lock().unwrap().insert(hash, bytes);
        Ok(hash)
    }

    fn progress(&self, text: &str) {
        self.progress.lock().unwrap().push_str(text);
    }

    async fn plan(&self, entries: Vec<PlanEntry>) -> Result<(), Failure> {
        self.plans.lock().unwrap().push(entries);
        Ok(())
    }

    async fn call(&self, tool: &str, _input: Value, _context: &ToolContext) -> ToolOutput {
        ToolOutput::error(code::UNKNOWN_TOOL, format!("no tool {tool} in here"))
    }

    fn saw(&self, path: &Path, content: BlobHash) {
        self.seen.lock().unwrap().insert(path.to_owned(), content);
    }

    fn seen(&self, path: &Path) -> Option<BlobHash> {
        self.seen.lock().unwrap().get(path).copied()
    }
}
