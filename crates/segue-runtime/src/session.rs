//! A handle on one open session. Every surface is a thin translation of these calls.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use segue_log::{
    Block, CallId, CallSettled, Conversation, EndReason, PromptFor, PromptId, PromptPlace, PromptQueued,
    PromptRemoved, Record, Seq, SessionConfig, SessionId, SessionTitle, Settlement, Time, TurnEnd, code,
};
use tokio::sync::{broadcast, oneshot};

use crate::core::Core;
use crate::error::{Result, RuntimeError};
use crate::permission::{Answer, Level};
use crate::runner::can_be_finished;
use crate::update::Update;

/// An open session. Clones are handles on the same one.
#[derive(Clone)]
pub struct Session {
    pub(crate) core: Arc<Core>,
}

/// A prompt to be accepted.
#[derive(Debug, Clone)]
pub struct NewPrompt {
    /// The client's own id, for the life of the session; none has one minted.
    pub id: Option<PromptId>,
    /// What it says.
    pub content: Vec<Block>,
    /// The surface.
    pub source: String,
    /// A turn of its own, or the running one.
    pub target: PromptFor,
}

/// A prompt that was accepted: it is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Its id.
    pub prompt_id: PromptId,
    /// True if it had been accepted before.
    pub again: bool,
}

/// How a prompt's turn ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The turn that claimed it.
    pub turn: u64,
    /// The turn's end.
    pub end: TurnEnd,
    /// If the end could not be made durable: why.
    pub not_stored: Option<String>,
}

/// Settings to change; absent ones stay.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// The model, as provider/name.
    pub model: Option<String>,
    /// The permission level.
    pub permissions: Option<Level>,
    /// The working folder.
    pub cwd: Option<PathBuf>,
    /// The title.
    pub title: Option<String>,
    /// Who changes them.
    pub by: String,
}

impl Session {
    /// The session's id.
    pub fn id(&self) -> SessionId {
        self.core.id
    }

    /// Reads the conversation. `read` must be quick: it holds the session.
    pub fn conversation<R>(&self, read: impl FnOnce(&Conversation) -> R) -> R {
        read(&self.core.state().conversation)
    }

    /// Accepts a prompt and runs the queue. The prompt is durable when this returns; an id that the session has
    /// already, with the same content, starts nothing new.
    ///
    /// # Errors
    /// [`RuntimeError::NotStored`] if it could not be made durable: it does not count, and its id is free.
    pub async fn prompt(&self, prompt: NewPrompt) -> Result<Accepted> {
        let accepted = self.queue(prompt).await?;
        self.core.start_runner();
        Ok(accepted)
    }

    /// Accepts a prompt without running anything.
    pub async fn queue(&self, prompt: NewPrompt) -> Result<Accepted> {
        if prompt.content.iter().all(|block| block.as_text().is_some_and(|text| text.trim().is_empty())) {
            return Err(RuntimeError::EmptyPrompt);
        }
        self.must_be_open()?;
        let prompt_id = prompt.id.unwrap_or_else(PromptId::mint);
        let queued = PromptQueued {
            prompt_id: prompt_id.clone(),
            content: prompt.content,
            source: prompt.source,
            target: prompt.target,
        };
        loop {
            let known = self.conversation(|conversation| {
                let held = conversation.prompt(&prompt_id)?;
                Some((held.content() == queued.content, held.record.seq <= self.core.writer.durable()))
            });
            match known {
                Some((false, _)) => return Err(RuntimeError::PromptConflict(prompt_id)),
                Some((true, true)) => return Ok(Accepted { prompt_id, again: true }),
                Some((true, false)) => {
                    let stored = self.core.sync().await;
                    // The first one may have been taken out again because it could not be stored.
                    if self.conversation(|conversation| conversation.prompt(&prompt_id).is_some()) {
                        stored.map_err(|source| RuntimeError::NotStored { what: "the prompt", source })?;
                        return Ok(Accepted { prompt_id, again: true });
                    }
                }
                None => {}
            }
            let accepted =
                self.core.accept_after("the prompt", |state| match state.conversation.prompt(&prompt_id) {
                    None => Ok(queued.clone().into()),
                    Some(_) => Err(RuntimeError::PromptConflict(prompt_id.clone())),
                });
            match accepted.await {
                Ok(_) => return Ok(Accepted { prompt_id, again: false }),
                // Somebody else came first with this id: what they said is looked at.
                Err(RuntimeError::PromptConflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a prompt back that no turn has claimed.
    pub async fn unqueue(&self, prompt_id: &PromptId, by: &str) -> Result<()> {
        let removed = PromptRemoved { prompt_id: prompt_id.clone(), by: by.to_owned() };
        let accepted = self.core.accept_after("the removal", |state| {
            let waits = state.conversation.queue().any(|(id, _)| id == prompt_id);
            if waits { Ok(removed.into()) } else { Err(RuntimeError::NotQueued(prompt_id.clone())) }
        });
        let had_runner = self.core.state().has_runner;
        let taken_back = accepted.await.map(drop);
        if taken_back.is_err() && had_runner {
            // It may have left meanwhile, as there seemed to be nothing to do.
            self.core.start_runner();
        }
        taken_back
    }

    /// Takes up the turn that was interrupted, without a made-up prompt, then runs the queue. Gives the number of the
    /// turn that goes on with it.
    pub async fn finish(&self) -> Result<u64> {
        self.must_be_open()?;
        let turn = {
            let mut state = self.core.state();
            let Some(last) = state.conversation.turns().last() else {
                return Err(RuntimeError::NothingToFinish);
            };
            // A turn that runs ends by itself; one that has just ended is still held for a moment.
            let runs = state.running.as_ref().is_some_and(|running| {
                running.turn > last.number || (running.turn == last.number && last.end.is_none())
            });
            if runs || last.end.as_ref().is_some_and(|(_, end)| !can_be_finished(end.reason)) {
                return Err(RuntimeError::NothingToFinish);
            }
            let turn = state.conversation.next_turn();
            state.finish_wanted = true;
            turn
        };
        self.core.start_runner();
        Ok(turn)
    }

    /// Runs the queue as it stands.
    pub fn run_queue(&self) {
        self.core.start_runner();
    }

    /// Cancels the running turn and waits for its real end. Does nothing between turns.
    pub async fn cancel(&self) {
        let running =
            self.core.state().running.as_ref().map(|running| (running.turn, running.cancel.clone()));
        if let Some((turn, cancel)) = running {
            cancel.cancel();
            self.core
                .wait_for(|state| {
                    state.running.as_ref().is_none_or(|running| running.turn != turn).then_some(())
                })
                .await;
        }
    }

    /// Answers a permission question. The answer is durable before it counts.
    pub async fn answer(&self, call_id: &CallId, answer: Answer) -> Result<()> {
        self.core.answer(call_id, answer).await
    }

    /// A person's word on a call whose outcome is unknown. Runs nothing.
    pub async fn settle(&self, call_id: &CallId, how: Settlement, note: &str, by: &str) -> Result<()> {
        self.must_be_open()?;
        let settled = self.conversation(|conversation| {
            let Some(call) = conversation.call(call_id) else {
                return Err(RuntimeError::NoSuchCall { session: self.id(), call: call_id.clone() });
            };
            let state = match call.result() {
                None => "it has no result yet".to_owned(),
                Some(result) if result.code.as_deref() == Some(code::OUTCOME_UNKNOWN) => {
                    return Ok(CallSettled {
                        turn: call.turn,
                        step: call.step,
                        call_id: call_id.clone(),
                        how,
                        note: note.to_owned(),
                        by: by.to_owned(),
                    });
                }
                Some(result) => match &result.code {
                    Some(code) => format!("it failed with {code}"),
                    None => "it succeeded".to_owned(),
                },
            };
            Err(RuntimeError::NothingToSettle { call: call_id.clone(), state })
        })?;
        self.core.accept("the settlement", settled.into()).await?;
        Ok(())
    }

    /// Replaces the past by a summary for the model, now or after the running step. True if it did.
    pub async fn compact(&self) -> Result<bool> {
        self.must_be_open()?;
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.core.state();
            // Looked at once more, now that nobody can close it in between.
            if state.is_closed {
                return Err(RuntimeError::Closed(self.id()));
            }
            state.compaction_wanted = true;
            state.compaction_waiters.push(sender);
        }
        self.core.start_runner();
        receiver.await.unwrap_or(Err(RuntimeError::Closed(self.id())))
    }

    /// Changes settings; durable when this returns.
    pub async fn configure(&self, change: Change) -> Result<()> {
        self.must_be_open()?;
        if let Some(title) = change.title {
            let title = SessionTitle { title: segue_log::title_of(&title), by: change.by.clone() };
            self.core.accept("the title", title.into()).await?;
        }
        if change.model.is_none() && change.permissions.is_none() && change.cwd.is_none() {
            return Ok(());
        }
        let config = SessionConfig {
            agent: None,
            model: change.model,
            permissions: change.permissions.map(|level| level.to_string()),
            cwd: change.cwd,
            by: change.by,
        };
        // First the agent, which may refuse: a session whose log names a model that cannot be had opens no more.
        let mut wanted = self.core.state().conversation.clone();
        wanted.apply(&Arc::new(Record {
            seq: wanted.last() + 1,
            time: Time::now(),
            event: config.clone().into(),
            synced: 0,
            blobs: BTreeMap::new(),
        }));
        self.core.driver.configure(&wanted).await?;
        if let Err(error) = self.core.accept("the setting", config.into()).await {
            let as_it_is = self.core.state().conversation.clone();
            self.core.driver.configure(&as_it_is).await?;
            return Err(error);
        }
        if let Some(level) = change.permissions {
            self.core.state().level = level;
        }
        Ok(())
    }

    /// Waits for the end of a prompt's turn; none if the prompt was taken back.
    pub async fn wait(&self, prompt_id: &PromptId) -> Option<Outcome> {
        let turn = self
            .core
            .wait_for(|state| match state.conversation.prompt(prompt_id).map(|prompt| prompt.place) {
                Some(PromptPlace::Claimed { turn }) => Some(Some(turn)),
                Some(PromptPlace::Queued) if !state.is_closed => None,
                _ => Some(None),
            })
            .await?;
        self.wait_turn(turn).await
    }

    /// Waits for the end of a turn; none if the session closes before it.
    pub async fn wait_turn(&self, turn: u64) -> Option<Outcome> {
        self.core
            .wait_for(|state| {
                let held = state.conversation.turn(turn);
                if let Some((seq, end)) = held.and_then(|held| held.end.as_ref())
                    && *seq <= state.published
                {
                    return Some(Some(Outcome { turn, end: end.clone(), not_stored: None }));
                }
                if let Some((ended, why)) = state.unstored_ends.get(&turn) {
                    let end = TurnEnd {
                        turn,
                        reason: ended.reason,
                        code: ended.code.clone(),
                        message: ended.message.clone(),
                        title: state.conversation.title(),
                        turns: turn,
                        usage: held.map(|held| held.usage()).unwrap_or_default(),
                    };
                    return Some(Some(Outcome { turn, end, not_stored: Some(why.clone()) }));
                }
                // A turn that is being cancelled by the close still has its real end to come.
                let runs = state.running.as_ref().is_some_and(|running| running.turn == turn);
                (state.is_closed && !runs).then_some(None)
            })
            .await
    }

    /// Waits until nothing runs and nothing can: the queue is empty, or the store fails.
    pub async fn wait_idle(&self) {
        self.core.wait_for(|state| (!state.has_runner && state.running.is_none()).then_some(())).await;
    }

    /// The answer that a turn gave: the text of its last message that has any.
    pub fn answer_text(&self, turn: u64) -> String {
        self.conversation(|conversation| {
            let messages = conversation
                .turn(turn)
                .into_iter()
                .flat_map(|turn| &turn.steps)
                .flat_map(|step| &step.messages);
            let texts = messages.filter_map(|said| Some(segue_log::text_of(&said.message()?.content)));
            texts.filter(|text| !text.is_empty()).fold(String::new(), |_, text| text)
        })
    }

    /// Everything from record `from` on (1 is the first): durable records in order, then live.
    pub fn subscribe(&self, from: Seq) -> Subscription {
        let next = from.max(1);
        let (backlog, live) = self.core.subscribe_at(|state| backlog(&state.records, next, state.published));
        Subscription { core: self.core.clone(), next, backlog, live }
    }

    /// Ends the session in order: the running turn is cancelled and ends in the log, what is in memory is stored, the
    /// lease is given back. Who closes a session that is closed, or being closed, waits for that and is told the same.
    pub async fn close(&self) -> Result<()> {
        self.core.state().is_closed = true;
        let mut was_closed = self.core.closing.lock().await;
        if *was_closed {
            return Ok(self.core.sync().await?);
        }
        self.cancel().await;
        self.core.tell_change();
        self.wait_idle().await;
        self.core.state().compaction_waiters.clear();
        self.core.driver.close().await;
        let stored = self.core.sync().await;
        let closed = self.core.writer.close().await;
        *was_closed = true;
        self.core.closed.cancel();
        closed?;
        Ok(stored?)
    }

    fn must_be_open(&self) -> Result<()> {
        if self.core.state().is_closed { Err(RuntimeError::Closed(self.id())) } else { Ok(()) }
    }
}

impl Outcome {
    /// The reason as the command line and the APIs tell it: a turn whose end is not on disk has failed.
    pub fn reason(&self) -> EndReason {
        if self.not_stored.is_some() { EndReason::Failed } else { self.end.reason }
    }
}

fn backlog(records: &[Arc<Record>], from: Seq, to: Seq) -> VecDeque<Arc<Record>> {
    let start = records.partition_point(|record| record.seq < from);
    let end = records.partition_point(|record| record.seq <= to);
    records.get(start..end).unwrap_or_default().iter().cloned().collect()
}

/// A reader of one session. A slow one loses live pieces, never records.
pub struct Subscription {
    core: Arc<Core>,
    next: Seq,
    backlog: VecDeque<Arc<Record>>,
    live: broadcast::Receiver<Update>,
}

impl Subscription {
    /// The next thing that happens; none once the session is closed and everything was told.
    pub async fn next(&mut self) -> Option<Update> {
        loop {
            if let Some(record) = self.backlog.pop_front() {
                self.next = record.seq + 1;
                return Some(Update::Record(record));
            }
            let update = tokio::select! {
                biased;
                update = self.live.recv() => update,
                () = self.core.closed.cancelled() => return None,
            };
            match update {
                Ok(Update::Record(record)) if record.seq < self.next => {}
                Ok(Update::Record(record)) => {
                    self.next = record.seq + 1;
                    return Some(Update::Record(record));
                }
                Ok(update) => return Some(update),
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    let state = self.core.state();
                    self.backlog = backlog(&state.records, self.next, state.published);
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}
