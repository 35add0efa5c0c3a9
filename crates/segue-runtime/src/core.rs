//! One open session: its records in memory, its writer, and who watches. Everything that appends goes through here, so
//! that what subscribers see is in order and durable.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_log::{Conversation, Event, Policy, Prompt, PromptId, Record, Seq, SessionId};
use segue_store::{StoreError, Writer};
use tokio::sync::{broadcast, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::boundary::{Boundary, Stopped, durable};
use crate::driver::{Driver, Ended};
use crate::error::{Result, RuntimeError};
use crate::permission::{Answer, Level};
use crate::sessions::Options;
use crate::update::Update;

/// How long a finished message or result may stay unsynced.
const FINISHED_UNSYNCED: Duration = Duration::from_millis(250);

/// Updates that a subscriber may lag behind before it catches up from memory.
const LIVE_UPDATES: usize = 1024;

pub(crate) struct Core {
    pub(crate) id: SessionId,
    pub(crate) writer: Arc<dyn Writer>,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) options: Arc<Options>,
    /// Held from the append to the fold, so that records are folded in their order.
    appending: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// Made for the first subscriber and let go after the last: its room is most of what an idle session would take.
    /// Locked after the state, where both are.
    updates: Mutex<Option<broadcast::Sender<Update>>>,
    changed: watch::Sender<u64>,
    /// Held while the session is being closed; true once it is.
    pub(crate) closing: tokio::sync::Mutex<bool>,
    /// Ends once it is.
    pub(crate) closed: CancellationToken,
}

/// What is known of the session at this moment.
pub(crate) struct State {
    pub(crate) records: Vec<Arc<Record>>,
    pub(crate) conversation: Conversation,
    /// Records up to here have been shown to subscribers.
    pub(crate) published: Seq,
    pub(crate) level: Level,
    /// The running turn.
    pub(crate) running: Option<Running>,
    /// True while a runner task lives.
    pub(crate) has_runner: bool,
    pub(crate) finish_wanted: bool,
    pub(crate) compaction_wanted: bool,
    pub(crate) compaction_waiters: Vec<oneshot::Sender<Result<bool>>>,
    /// Ends of turns that could not be made durable, told live.
    pub(crate) unstored_ends: HashMap<u64, (Ended, String)>,
    /// Questions that wait for an answer from a surface.
    pub(crate) questions: HashMap<segue_log::CallId, oneshot::Sender<Answer>>,
    /// True from a failed sync until a good one.
    pub(crate) is_failing: bool,
    pub(crate) is_closed: bool,
    timer_runs: bool,
}

pub(crate) struct Running {
    pub(crate) turn: u64,
    pub(crate) cancel: CancellationToken,
}

impl Core {
    pub(crate) fn new(
        writer: Arc<dyn Writer>,
        driver: Arc<dyn Driver>,
        options: Arc<Options>,
        records: Vec<Arc<Record>>,
        conversation: Conversation,
    ) -> Arc<Self> {
        let level = conversation.settings().permissions.as_ref().and_then(|text| text.parse().ok());
        let state = State {
            published: writer.durable(),
            level: options.level.or(level).unwrap_or_default(),
            records,
            running: None,
            has_runner: false,
            finish_wanted: false,
            compaction_wanted: false,
            compaction_waiters: Vec::new(),
            unstored_ends: HashMap::new(),
            questions: HashMap::new(),
            is_failing: false,
            is_closed: false,
            timer_runs: false,
            conversation,
        };
        Arc::new(Self {
            id: state.conversation.header().id,
            writer,
            driver,
            options,
            appending: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
            updates: Mutex::default(),
            changed: watch::Sender::new(0),
            closing: tokio::sync::Mutex::new(false),
            closed: CancellationToken::new(),
        })
    }

    /// The session's state. Held for moments only, never across an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everybody who waits for a change to look again.
    pub(crate) fn tell_change(&self) {
        self.changed.send_modify(|version| *version = version.wrapping_add(1));
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Subscribes, together with a look at the state, so that nothing falls between.
    pub(crate) fn subscribe_at<R>(&self, look: impl FnOnce(&State) -> R) -> (R, broadcast::Receiver<Update>) {
        let state = self.state();
        let mut updates = self.updates.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = updates.get_or_insert_with(|| broadcast::Sender::new(LIVE_UPDATES));
        (look(&state), sender.subscribe())
    }

    pub(crate) fn show(&self, update: Update) {
        let mut updates = self.updates.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody watching is no fault: what matters is in the log.
        if let Some(sender) = &*updates
            && sender.send(update).is_err()
        {
            *updates = None;
        }
    }

    pub(crate) async fn append(self: &Arc<Self>, event: Event) -> Result<Arc<Record>> {
        self.append_after(|_| Ok(event)).await
    }

    /// Appends what `look` makes of the state: no other record comes between the look and this one.
    pub(crate) async fn append_after(
        self: &Arc<Self>,
        look: impl FnOnce(&State) -> Result<Event> + Send,
    ) -> Result<Arc<Record>> {
        let record = {
            let _order = self.appending.lock().await;
            let event = look(&self.state())?;
            let record = self.writer.append(event).await?;
            let mut state = self.state();
            state.conversation.apply(&record);
            state.records.push(record.clone());
            record
        };
        self.tell_change();
        if matches!(record.event, Event::MessageAssistant(_) | Event::ToolResult(_)) {
            self.sync_soon();
        }
        Ok(record)
    }

    /// Sees to it that what was just finished is durable within a quarter second, also while a question waits.
    fn sync_soon(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().timer_runs, true) {
            return;
        }
        let core = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(FINISHED_UNSYNCED).await;
            let waits =
                {
                    let mut state = core.state();
                    state.timer_runs = false;
                    let durable = core.writer.durable();
                    state.records.iter().rev().take_while(|record| record.seq > durable).any(|record| {
                        matches!(record.event, Event::MessageAssistant(_) | Event::ToolResult(_))
                    }) && !state.is_closed
                };
            if waits && let Err(error) = core.sync().await {
                core.show(Update::Notice { code: "STORE_FAILED".into(), message: error.to_string() });
            }
        });
    }

    /// Makes everything appended so far durable and shows it. Runs to its end even if the caller goes away.
    pub(crate) async fn sync(self: &Arc<Self>) -> Result<(), StoreError> {
        {
            let state = self.state();
            // After a failure the writer has to show that it can sync, whether or not there is anything new.
            if !state.is_failing && self.writer.durable() >= state.conversation.last() {
                return Ok(());
            }
        }
        let core = self.clone();
        let task = tokio::spawn(async move {
            let result = core.writer.sync().await;
            core.state().is_failing = result.is_err();
            if let Ok(durable) = result {
                core.publish(durable);
            }
            result.map(|_| ())
        });
        match task.await {
            Ok(result) => result,
            Err(_) => Err(StoreError::Closed { id: self.id }),
        }
    }

    fn publish(&self, durable: Seq) {
        let mut state = self.state();
        let from = state.published;
        if durable <= from {
            return;
        }
        let start = state.records.partition_point(|record| record.seq <= from);
        let end = state.records.partition_point(|record| record.seq <= durable);
        for record in state.records.get(start..end).unwrap_or_default() {
            self.show(Update::Record(record.clone()));
        }
        state.published = durable;
        drop(state);
        self.tell_change();
    }

    pub(crate) async fn boundary(
        self: &Arc<Self>,
        policy: Policy,
        boundary: Boundary,
        cancel: &CancellationToken,
    ) -> Result<(), Stopped> {
        if cancel.is_cancelled() && boundary != Boundary::TurnEnd {
            return Err(Stopped::Cancelled);
        }
        if !durable(policy, boundary) {
            return Ok(());
        }
        if boundary == Boundary::TurnEnd {
            return Ok(self.sync().await?);
        }
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Stopped::Cancelled),
            result = self.sync() => {
                result?;
                if cancel.is_cancelled() { Err(Stopped::Cancelled) } else { Ok(()) }
            }
        }
    }

    /// Appends a record that counts only once it is durable. If it cannot be made so it is taken out again.
    pub(crate) async fn accept(self: &Arc<Self>, what: &'static str, event: Event) -> Result<Arc<Record>> {
        self.accept_after(what, |_| Ok(event)).await
    }

    /// The same for what `look` makes of the state, with no other record in between.
    pub(crate) async fn accept_after(
        self: &Arc<Self>,
        what: &'static str,
        look: impl FnOnce(&State) -> Result<Event> + Send,
    ) -> Result<Arc<Record>> {
        let record = self.append_after(look).await?;
        let Err(source) = self.sync().await else { return Ok(record) };
        let _order = self.appending.lock().await;
        // Another sync may have covered it meanwhile, and records below it may have been taken out: look for it itself.
        let seq = self.state().records.iter().rev().find(|held| is_same(held, &record)).map(|held| held.seq);
        let Some(seq) = seq else { return Err(RuntimeError::NotStored { what, source }) };
        match self.writer.withdraw(seq).await? {
            None => {
                self.publish(self.writer.durable());
                Ok(record)
            }
            Some(tail) => {
                let mut state = self.state();
                let durable = self.writer.durable();
                state.records.retain(|held| held.seq <= durable);
                state.records.extend(tail);
                let header = state.conversation.header().clone();
                state.conversation = Conversation::of(header, &state.records);
                drop(state);
                self.tell_change();
                Err(RuntimeError::NotStored { what, source })
            }
        }
    }

    /// Waits until `ready` gives something, looking again after each change.
    pub(crate) async fn wait_for<R>(&self, mut ready: impl FnMut(&State) -> Option<R>) -> R {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            if let Some(result) = ready(&self.state()) {
                return result;
            }
            // The sender lives as long as this core.
            changes.changed().await.ok();
        }
    }

    /// Prompts that a turn may claim, in order: one that is still being stored may be taken out again.
    pub(crate) fn waiting<'a>(
        &self,
        conversation: &'a Conversation,
    ) -> impl Iterator<Item = (&'a PromptId, &'a Prompt)> + use<'a> {
        let durable = self.writer.durable();
        conversation.queue().filter(move |(_, prompt)| prompt.record.seq <= durable)
    }

    /// The next prompt to run.
    pub(crate) fn next_prompt(&self, state: &State) -> Option<PromptId> {
        self.waiting(&state.conversation).next().map(|(id, _)| id.clone())
    }
}

fn is_same(held: &Record, record: &Record) -> bool {
    held.time == record.time && held.event == record.event
}
