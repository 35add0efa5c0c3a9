//! The task that runs a session's queue: one turn after another, in order, each to a durable end.

use std::sync::Arc;
use std::time::Duration;

use segue_log::{EndReason, Event, Evidence, PromptId, TurnEnd, TurnStart, repair};
use tokio_util::sync::CancellationToken;

use crate::boundary::Boundary;
use crate::core::{Core, Running, State};
use crate::driver::{Ended, TurnContext};
use crate::error::{Result, RuntimeError};
use crate::update::Update;

/// How often calls that were left running are looked at.
const SURVIVOR_POLL: Duration = Duration::from_millis(500);

/// How long to wait before a failing store is tried again, at first and at most.
const STORE_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

enum Job {
    Turn { prompt: Option<PromptId> },
    Compact,
}

impl Core {
    /// Starts the runner if there is work and none runs.
    pub(crate) fn start_runner(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.has_runner || state.is_closed {
                return;
            }
            state.has_runner = true;
        }
        let core = self.clone();
        tokio::spawn(async move { core.run().await });
    }

    async fn run(self: Arc<Self>) {
        self.wait_for_survivors().await;
        let mut retry = STORE_RETRY.0;
        loop {
            // Nothing is claimed while the writer cannot sync.
            if self.state().is_failing && self.sync().await.is_err() {
                let goes_on = {
                    let mut state = self.state();
                    let goes_on = !state.is_closed && self.has_work(&state);
                    state.has_runner = goes_on;
                    goes_on
                };
                self.tell_change();
                if !goes_on {
                    return;
                }
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(STORE_RETRY.1);
                continue;
            }
            retry = STORE_RETRY.0;
            let cancel = CancellationToken::new();
            let job = {
                let mut state = self.state();
                match self.next_job(&mut state) {
                    Some(job) if !state.is_closed => {
                        let turn = match job {
                            Job::Compact => 0,
                            Job::Turn { .. } => state.conversation.next_turn(),
                        };
                        state.running = Some(Running { turn, cancel: cancel.clone() });
                        Some((job, turn))
                    }
                    _ => {
                        state.has_runner = false;
                        None
                    }
                }
            };
            let Some((job, turn)) = job else {
                self.tell_change();
                return;
            };
            let context =
                TurnContext { core: self.clone(), turn, policy: self.options.policy, cancel: cancel.clone() };
            match job {
                Job::Turn { prompt } => self.turn(&context, prompt).await,
                Job::Compact => self.compaction(&context).await,
            }
            self.state().running = None;
            self.tell_change();
            self.answer_left_over();
        }
    }

    async fn turn(self: &Arc<Self>, context: &TurnContext, prompt: Option<PromptId>) {
        let finish = prompt.is_none().then(|| self.driver.finish(&self.state().conversation));
        let start = TurnStart {
            turn: context.turn,
            finish,
            prompt_ids: prompt.into_iter().collect(),
            policy: context.policy,
        };
        let claimed = self.append_after(|state| {
            let waits = |id: &PromptId| self.waiting(&state.conversation).any(|(held, _)| held == id);
            match start.prompt_ids.iter().find(|id| !waits(id)) {
                None => Ok(start.into()),
                Some(id) => Err(RuntimeError::NotQueued(id.clone())),
            }
        });
        let ended = match claimed.await {
            // It was taken back since it was chosen.
            Err(RuntimeError::NotQueued(_)) => return,
            Ok(_) => {
                let (driver, inner) = (self.driver.clone(), context.clone());
                match tokio::spawn(async move { driver.run(&inner).await }).await {
                    Ok(ended) => ended,
                    Err(error) => Ended::failed("INTERNAL", format!("the agent failed: {error}")),
                }
            }
            Err(error) => Ended::failed(segue_log::code::CHECKPOINT_FAILED, error.to_string()),
        };
        let stored = match self.end_turn(context, &ended).await {
            Ok(()) => self
                .boundary(context.policy, Boundary::TurnEnd, &context.cancel)
                .await
                .map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(message) = stored {
            self.show(Update::Notice {
                code: segue_log::code::CHECKPOINT_FAILED.into(),
                message: message.clone(),
            });
            self.state().unstored_ends.insert(context.turn, (ended, message));
        }
    }

    /// Closes whatever the driver left open, then the turn.
    async fn end_turn(self: &Arc<Self>, context: &TurnContext, ended: &Ended) -> Result<()> {
        let left = repair(&self.state().conversation, &Evidence::default());
        for event in left.into_iter().filter(|event| !matches!(event, Event::TurnEnd(_))) {
            self.append(event).await?;
        }
        let end = {
            let state = self.state();
            let turn = state.conversation.turn(context.turn);
            TurnEnd {
                turn: context.turn,
                reason: ended.reason,
                code: ended.code.clone(),
                message: ended.message.clone(),
                title: state.conversation.title(),
                turns: context.turn,
                usage: turn.map(|turn| turn.usage()).unwrap_or_default(),
            }
        };
        self.append(end.into()).await?;
        Ok(())
    }

    async fn compaction(self: &Arc<Self>, context: &TurnContext) {
        let (driver, inner) = (self.driver.clone(), context.clone());
        // A task of its own: an agent that fails takes no more with it than this.
        let task = tokio::spawn(async move { driver.compact(&inner).await });
        let mut result = task.await.unwrap_or_else(|error| Err(agent_failed(&error.to_string())));
        if let Ok(true) = result
            && let Err(source) = self.sync().await
        {
            result = Err(RuntimeError::NotStored { what: "the compaction", source });
        }
        self.tell_compaction(&result);
    }

    /// Answers those who asked for a compaction.
    pub(crate) fn tell_compaction(&self, result: &Result<bool>) {
        let waiters = std::mem::take(&mut self.state().compaction_waiters);
        for waiter in waiters {
            let answer = match result {
                Ok(done) => Ok(*done),
                Err(RuntimeError::CompactionFailed { code, message }) => {
                    Err(RuntimeError::CompactionFailed { code: code.clone(), message: message.clone() })
                }
                Err(error) => Err(RuntimeError::CompactionFailed {
                    code: "COMPACTION_FAILED".into(),
                    message: error.to_string(),
                }),
            };
            // A waiter that went away has lost nothing: the compaction is in the log.
            waiter.send(answer).ok();
        }
    }

    /// Nobody waits for ever for a compaction that a failed turn took upon itself.
    fn answer_left_over(&self) {
        let is_left_over = {
            let state = self.state();
            !state.compaction_wanted && !state.compaction_waiters.is_empty()
        };
        if is_left_over {
            self.tell_compaction(&Err(agent_failed("it ended before it did so")));
        }
    }

    /// With `on_survivor = "wait"` a turn stays open after a crash until the calls that still run have ended.
    async fn wait_for_survivors(self: &Arc<Self>) {
        loop {
            let conversation = {
                let state = self.state();
                if state.is_closed || state.conversation.open_turn().is_none() {
                    return;
                }
                state.conversation.clone()
            };
            let evidence = self.driver.evidence(&conversation, false).await;
            for event in repair(&conversation, &evidence) {
                if self.append(event).await.is_err() {
                    return;
                }
            }
            if self.sync().await.is_ok() && self.state().conversation.open_turn().is_none() {
                return;
            }
            tokio::time::sleep(SURVIVOR_POLL).await;
        }
    }
}

impl Core {
    fn has_work(&self, state: &State) -> bool {
        state.finish_wanted || state.compaction_wanted || self.next_prompt(state).is_some()
    }

    fn next_job(&self, state: &mut State) -> Option<Job> {
        if std::mem::take(&mut state.finish_wanted) {
            return Some(Job::Turn { prompt: None });
        }
        if std::mem::take(&mut state.compaction_wanted) {
            return Some(Job::Compact);
        }
        self.next_prompt(state).map(|prompt| Job::Turn { prompt: Some(prompt) })
    }
}

fn agent_failed(how: &str) -> RuntimeError {
    RuntimeError::CompactionFailed { code: "INTERNAL".into(), message: format!("the agent failed: {how}") }
}

/// True for reasons that `finish` can take up.
pub(crate) fn can_be_finished(reason: EndReason) -> bool {
    !matches!(reason, EndReason::Completed | EndReason::Refused)
}
