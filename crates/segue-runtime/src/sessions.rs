//! All sessions that are open here, and the way to the others.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use segue_log::{
    CallId, Conversation, Event, FORMAT, Header, Policy, RepairOutcome, Seq, SessionConfig, SessionId,
    SessionRepaired, Time, repair, repair_summary,
};
use segue_store::{Cut, Listing, Opened, Query, ReadLog, Store, StoreError};

use crate::core::Core;
use crate::driver::{Drivers, Machine};
use crate::error::Result;
use crate::permission::{Asker, Level, Rules};
use crate::session::Session;

/// What holds for all sessions opened here.
#[derive(Default)]
pub struct Options {
    /// The surface, as leases name it.
    pub surface: String,
    /// Which boundaries are made durable.
    pub policy: Policy,
    /// The permission level, if this invocation names one; else the session's own, else the default.
    pub level: Option<Level>,
    /// Permission rules from the config.
    pub rules: Rules,
    /// Who puts questions to a person; none where nobody can be asked.
    pub asker: Option<Arc<dyn Asker>>,
    /// The machine's name and boot.
    pub machine: Machine,
    /// True if calls that survived a crash are waited for rather than ended.
    pub wait_for_survivors: bool,
}

/// A session to be made.
#[derive(Debug, Clone, Default)]
pub struct NewSession {
    /// Its id; none has one minted.
    pub id: Option<SessionId>,
    /// Its working folder, absolute.
    pub cwd: PathBuf,
    /// Its agent; `segue` is our own.
    pub agent: String,
    /// Its model, as provider/name.
    pub model: Option<String>,
}

/// What opening a session found and did.
#[derive(Debug, Clone, Default)]
pub struct OpenReport {
    /// Calls that a crash had left open, and what became of them.
    pub repaired: Vec<(CallId, String, RepairOutcome)>,
    /// True if a turn was open.
    pub was_interrupted: bool,
    /// Ends of the log that were lost and cut away.
    pub cuts: Vec<Cut>,
    /// Bytes of a half-written last line that were dropped; it was never part of the log.
    pub torn_bytes: u64,
    /// Prompts that wait in the queue.
    pub queued: usize,
}

/// All sessions of one store that are open in this process.
pub struct Sessions {
    store: Arc<dyn Store>,
    drivers: Arc<dyn Drivers>,
    options: Arc<Options>,
    open: Mutex<HashMap<SessionId, Weak<Core>>>,
}

impl Sessions {
    /// Sessions kept in `store`, run by `drivers`.
    pub fn new(store: Arc<dyn Store>, drivers: Arc<dyn Drivers>, options: Options) -> Self {
        Self { store, drivers, options: Arc::new(options), open: Mutex::default() }
    }

    /// Where the sessions are kept.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Makes a session. It is durable before its id is given out.
    pub async fn create(&self, new: NewSession) -> Result<Session> {
        self.create_with(new, Vec::new()).await
    }

    /// Makes a session that begins with these records, such as a conversation that an agent had before. All of it is durable
    /// before its id is given out.
    pub async fn create_with(&self, new: NewSession, past: Vec<Event>) -> Result<Session> {
        let header = Header {
            segue: FORMAT,
            id: new.id.unwrap_or_else(SessionId::mint),
            created: Time::now(),
            cwd: new.cwd,
            parent: None,
        };
        let config = SessionConfig {
            agent: Some(new.agent),
            model: new.model,
            permissions: None,
            cwd: None,
            by: self.options.surface.clone(),
        };
        let mut conversation = Conversation::new(header.clone());
        // The driver is made first: a session whose agent cannot be had is not made at all.
        let preview = segue_log::Record {
            seq: 1,
            time: header.created,
            event: config.clone().into(),
            synced: 0,
            blobs: Default::default(),
        };
        conversation.apply(&Arc::new(preview));
        let driver = self.drivers.driver(&conversation).await?;
        let opened = self.store.create(header.clone(), &self.options.surface).await?;
        let core =
            Core::new(opened.writer, driver, self.options.clone(), Vec::new(), Conversation::new(header));
        core.append(config.into()).await?;
        if !past.is_empty() {
            for event in past {
                core.append(event).await?;
            }
            core.sync().await?;
        }
        Ok(self.keep(core))
    }

    /// Opens a session for writing: takes its lease, repairs what a crash left, and only then hands it out. Runs nothing.
    pub async fn open(&self, id: SessionId) -> Result<(Session, OpenReport)> {
        if let Some(session) = self.opened(id) {
            return Ok((session, OpenReport::default()));
        }
        let opened = self.store.open(id, &self.options.surface).await?;
        let conversation = Conversation::of(opened.header.clone(), &opened.records);
        self.take(opened, conversation).await
    }

    /// Goes on from a session that the caller has opened in the store, and its conversation as its records tell it. For
    /// callers that have to look at the log before they know how it is to be run.
    pub async fn take(
        &self,
        opened: Opened,
        mut conversation: Conversation,
    ) -> Result<(Session, OpenReport)> {
        let mut records = opened.records;
        let writer = opened.writer;
        for cut in &opened.cuts {
            let event = SessionRepaired { cut_at: cut.cut_at, files: cut.files.clone() };
            let record = writer.append(event.into()).await?;
            conversation.apply(&record);
            records.push(record);
        }
        let driver = match self.drivers.driver(&conversation).await {
            Ok(driver) => driver,
            Err(error) => {
                writer.close().await?;
                return Err(error);
            }
        };
        let was_interrupted = conversation.open_turn().is_some();
        let evidence = driver.evidence(&conversation, !self.options.wait_for_survivors).await;
        let made = repair(&conversation, &evidence);
        let repaired = repair_summary(&conversation, &made);
        let core = Core::new(writer, driver, self.options.clone(), records, conversation);
        for event in made {
            core.append(event).await?;
        }
        if let Err(error) = core.sync().await {
            core.writer.close().await.ok();
            return Err(error.into());
        }
        let report = OpenReport {
            repaired,
            was_interrupted,
            cuts: opened.cuts,
            torn_bytes: opened.torn_bytes,
            queued: core.state().conversation.queue().count(),
        };
        Ok((self.keep(core), report))
    }

    /// A session that is open here.
    pub fn opened(&self, id: SessionId) -> Option<Session> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let core = open.get(&id)?.upgrade().filter(|core| !core.state().is_closed)?;
        Some(Session { core })
    }

    /// Reads a session without opening it.
    pub async fn read(&self, id: SessionId, from: Seq) -> Result<ReadLog> {
        Ok(self.store.read(id, from).await?)
    }

    /// Lists sessions.
    pub async fn list(&self, query: &Query) -> Result<Listing> {
        Ok(self.store.list(query).await?)
    }

    /// Copies a session up to record `at`, or all of it, into a new one. Gives the new header; open it to go on.
    pub async fn fork(&self, id: SessionId, at: Option<Seq>) -> Result<Header> {
        Ok(self.store.fork(id, at, SessionId::mint()).await?)
    }

    /// Deletes a session that nobody has open.
    pub async fn delete(&self, id: SessionId) -> Result<()> {
        if self.opened(id).is_some() {
            return Err(StoreError::InUse { id, holder: None }.into());
        }
        Ok(self.store.delete(id).await?)
    }

    fn keep(&self, core: Arc<Core>) -> Session {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, core| core.strong_count() > 0);
        open.insert(core.id, Arc::downgrade(&core));
        Session { core }
    }
}
