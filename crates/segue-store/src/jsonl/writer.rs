//! The writer of one session: appends at once, syncs many callers with one sync of the log, heals after failures.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use segue_log::{BlobHash, Event, Record, Seq};
use tokio::sync::OwnedMutexGuard;
use tokio::task;

use super::lease::Lease;
use super::place::{Place, failed};
use super::tail::{Goal, Tail};
use super::{blobs, synced};
use crate::error::{Result, StoreError};
use crate::files::{Access, OpenFile};
use crate::store::Writer;

/// Adds records to one session's log.
pub(super) struct JsonlWriter {
    core: Arc<Core>,
    /// Held over an append, so that records keep their order while a blob of one is being written.
    order: tokio::sync::Mutex<()>,
    /// Held over an attempt to commit, by the thread that makes it.
    committing: Arc<tokio::sync::Mutex<()>>,
}

struct Core {
    place: Place,
    log: Box<dyn OpenFile>,
    mark: Option<Box<dyn OpenFile>>,
    state: Mutex<State>,
    /// One blob is written at a time.
    blobs: Mutex<()>,
}

struct State {
    tail: Tail,
    lease: Option<Lease>,
    /// How many attempts to commit were begun.
    attempts: u64,
    /// What the latest attempt failed with.
    failure: Option<Failure>,
}

/// A failure that several callers share.
#[derive(Clone)]
struct Failure {
    doing: &'static str,
    path: std::path::PathBuf,
    kind: io::ErrorKind,
    code: Option<i32>,
    text: String,
}

impl Failure {
    fn of(error: &StoreError) -> Option<Self> {
        let StoreError::Io { doing, path, source } = error else { return None };
        Some(Self {
            doing,
            path: path.clone(),
            kind: source.kind(),
            code: source.raw_os_error(),
            text: source.to_string(),
        })
    }

    fn error(self) -> StoreError {
        let source = match self.code {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(self.kind, self.text),
        };
        StoreError::Io { doing: self.doing, path: self.path, source }
    }
}

impl JsonlWriter {
    /// A writer for a log that is durable up to `tail`.
    pub fn new(place: Place, lease: Lease, log: Box<dyn OpenFile>, tail: Tail) -> Self {
        // Without this file opening again has less to go by; it is no reason not to write.
        let mark = place.files.open(&place.synced(), Access::Write).ok();
        let state = State { tail, lease: Some(lease), attempts: 0, failure: None };
        Self {
            core: Arc::new(Core { place, log, mark, state: Mutex::new(state), blobs: Mutex::new(()) }),
            order: tokio::sync::Mutex::new(()),
            committing: Arc::default(),
        }
    }

    async fn keep_blobs(&self, blobs: Vec<(BlobHash, Vec<u8>)>) -> Result<()> {
        let core = Arc::clone(&self.core);
        blocking(&self.core, move || blobs.iter().try_for_each(|(hash, bytes)| core.keep_blob(hash, bytes)))
            .await
    }

    async fn commit(&self, turn: OwnedMutexGuard<()>) -> Result<Seq> {
        let core = Arc::clone(&self.core);
        blocking(&self.core, move || {
            // The thread has the turn: it goes on, alone, also when the caller is gone.
            let _turn = turn;
            core.attempt()
        })
        .await
    }
}

#[async_trait]
impl Writer for JsonlWriter {
    async fn append(&self, event: Event) -> Result<Arc<Record>> {
        let _order = self.order.lock().await;
        let core = &*self.core;
        let (record, encoded) = {
            let state = core.open_state()?;
            let (record, encoded) = state.tail.encode(event);
            if encoded.blobs.iter().all(|(hash, _)| state.tail.has_blob(hash)) {
                let mut state = state;
                return Ok(state.tail.push(&*core.log, record, encoded));
            }
            (record, encoded)
        };
        // Should this fail, the record waits in memory with its blobs, and the next sync tells.
        let _ = self.keep_blobs(encoded.blobs.clone()).await;
        Ok(core.open_state()?.tail.push(&*core.log, record, encoded))
    }

    async fn sync(&self) -> Result<Seq> {
        let (wanted, begun) = {
            let state = self.core.open_state()?;
            (state.tail.latest(), state.attempts)
        };
        let turn = Arc::clone(&self.committing).lock_owned().await;
        {
            let state = self.core.open_state()?;
            // An attempt that began after this call speaks for it too.
            if state.attempts > begun
                && let Some(failure) = state.failure.clone()
            {
                return Err(failure.error());
            }
            if state.tail.is_settled(wanted) && !state.tail.needs_healing() {
                return Ok(state.tail.durable());
            }
        }
        self.commit(turn).await
    }

    async fn withdraw(&self, seq: Seq) -> Result<Option<Vec<Arc<Record>>>> {
        let _order = self.order.lock().await;
        let _turn = self.committing.lock().await;
        let mut state = self.core.open_state()?;
        let last = state.tail.last();
        if seq == 0 || seq > last {
            return Err(StoreError::NoSuchSeq { id: self.core.place.id, seq, last });
        }
        Ok(state.tail.withdraw(seq))
    }

    fn durable(&self) -> Seq {
        self.core.state().tail.durable()
    }

    async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash> {
        drop(self.core.open_state()?);
        let core = Arc::clone(&self.core);
        blocking(&self.core, move || {
            let hash = BlobHash::of(&bytes);
            core.keep_blob(&hash, &bytes).map(|()| hash)
        })
        .await
    }

    async fn close(&self) -> Result<()> {
        let _order = self.order.lock().await;
        let turn = Arc::clone(&self.committing).lock_owned().await;
        let core = Arc::clone(&self.core);
        blocking(&self.core, move || {
            let _turn = turn;
            let clean = core.open_state()?.tail.is_clean();
            let result = if clean { Ok(()) } else { core.attempt().map(|_| ()) };
            drop(core.state().lease.take());
            result
        })
        .await
    }
}

impl Core {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_state(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.lease.is_some() { Ok(state) } else { Err(StoreError::Closed { id: self.place.id }) }
    }

    fn keep_blob(&self, hash: &BlobHash, bytes: &[u8]) -> Result<()> {
        let _one = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state().tail.has_blob(hash) {
            return Ok(());
        }
        blobs::write(&self.place, hash, bytes)?;
        self.state().tail.blob_kept(*hash);
        Ok(())
    }

    /// One attempt to make everything in memory durable.
    fn attempt(&self) -> Result<Seq> {
        {
            let mut state = self.state();
            state.attempts += 1;
            state.failure = None;
        }
        let result = self.try_commit();
        if let Err(error) = &result {
            self.state().failure = Failure::of(error);
        }
        result
    }

    fn try_commit(&self) -> Result<Seq> {
        let path = self.place.log();
        loop {
            let missing = self.state().tail.missing_blob();
            let Some((hash, bytes)) = missing else { break };
            self.keep_blob(&hash, &bytes)?;
        }
        let cut = self.state().tail.cut_moved(&*self.log).map_err(failed("cut", &path))?;
        if cut {
            self.sync_log()?;
            self.state().tail.cut_confirmed();
        }
        let goal = {
            let mut state = self.state();
            state.tail.begin_again();
            state.tail.write_for_sync(&*self.log).map_err(failed("write", &path))?
        };
        self.sync_log()?;
        Ok(self.confirm(&goal))
    }

    fn sync_log(&self) -> Result<()> {
        self.log.sync().map_err(|error| {
            self.state().tail.poison();
            failed("sync", &self.place.log())(error)
        })
    }

    fn confirm(&self, goal: &Goal) -> Seq {
        let mut state = self.state();
        state.tail.confirmed(goal);
        // What came while the log was being healed waits in memory; should this fail, the next sync tells.
        let _ = state.tail.write_out(&*self.log);
        let durable = state.tail.durable();
        drop(state);
        if let Some(mark) = &self.mark {
            // Can be too low, so nothing hangs on this write.
            let _ = mark.write_at(0, synced::encode(durable).as_bytes());
        }
        durable
    }
}

/// Runs what blocks on a thread that may block.
async fn blocking<T: Send + 'static>(
    core: &Core,
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match task::spawn_blocking(run).await {
        Ok(result) => result,
        Err(error) => Err(failed("run a thread for", &core.place.dir)(io::Error::other(error))),
    }
}
