//! A world on a disk in memory, whose power and space can be taken away, with a model that needs no network. Its time is
//! virtual: what waits costs none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use segue_model::{Deltas, Model, ModelError, Practice, Request};
use segue_testkit::Wire;
use segue_testkit::disk::{Hook, SimDisk};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::{Parts, Place};

/// A disk in memory, and a real folder for what tools do.
pub struct Sim {
    folder: TempDir,
    /// The disk that the store is on.
    pub disk: SimDisk,
    /// The model.
    pub model: Arc<Watching>,
}

impl Sim {
    /// A world whose chance comes from `seed`, on a disk with pages of so many bytes.
    pub fn new(seed: u64, page: usize) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            disk: SimDisk::new(seed, page),
            model: Arc::new(Watching { model: Practice::new(), sent: AtomicUsize::new(0) }),
        }
    }

    /// The place, its files told of to `hook`.
    pub fn place(&self, hook: Arc<dyn Hook>) -> Place {
        let place = Place::new(self.folder.path(), String::new(), Wire::Anthropic);
        Place { files: self.disk.watched(hook), ..place }
    }

    /// The default parts with this world's model.
    pub fn parts(&self) -> Parts {
        Parts { model: Some(self.model.clone()), ..Parts::default() }
    }
}

/// `practice`, with its requests counted.
pub struct Watching {
    model: Practice,
    sent: AtomicUsize,
}

impl Watching {
    /// How many requests there were.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Model for Watching {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn window(&self) -> u64 {
        self.model.window()
    }

    async fn stream(&self, request: &Request) -> Result<Deltas, ModelError> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.model.stream(request).await
    }
}

/// A runtime with virtual time, which passes only while nothing runs.
pub fn calm() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}
