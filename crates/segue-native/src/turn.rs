//! One turn: steps until the model has nothing more to do, or something ends it.

use std::sync::Arc;

use segue_log::{EndReason, Event, MessageAssistant, StepEnd};
use segue_model::{Model, Parameters, ToolSpec};
use segue_runtime::{Ended, TurnContext};
use segue_tool::Registry;

use crate::context::system_prompt;
use crate::driver::Inner;

pub(crate) struct Turn {
    pub(crate) turn: TurnContext,
    pub(crate) driver: Arc<Inner>,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) tools: Arc<Registry>,
    pub(crate) specs: Vec<ToolSpec>,
    pub(crate) system: String,
    /// A compaction failed in this turn: it is not tried again by itself.
    compaction_failed: bool,
}

/// How a step went.
enum Step {
    /// The model wants to go on.
    More,
    /// The turn is over.
    Last(Ended),
    /// The history did not fit; it is shorter now.
    Again,
}

impl Turn {
    pub(crate) async fn new(turn: TurnContext, driver: Arc<Inner>) -> Self {
        let tools = driver.tools(&turn).await;
        let specs = tools.specs().into_iter().map(|spec| ToolSpec {
            name: spec.name,
            description: spec.description,
            input_schema: spec.input_schema,
        });
        let system = system_prompt(&turn.cwd());
        Self {
            model: driver.model(),
            turn,
            driver,
            tools,
            specs: specs.collect(),
            system,
            compaction_failed: false,
        }
    }

    pub(crate) fn parameters(&self) -> &Parameters {
        &self.driver.config.parameters
    }

    pub(crate) async fn run(mut self) -> Ended {
        let mut step = 0;
        loop {
            if step >= self.driver.config.max_steps {
                return Ended::because(EndReason::MaxSteps);
            }
            step += 1;
            if let Some(ended) = self.compact_if_due().await {
                return ended;
            }
            let mut went = self.step(step).await;
            if matches!(went, Step::Again) {
                went = match self.compact(Some(step)).await {
                    Ok(true) => self.ask_and_act(step).await,
                    Ok(false) => Step::Last(Ended::failed(segue_log::code::CONTEXT_TOO_LONG, TOO_LONG)),
                    Err(error) => Step::Last(compaction_failure(&error)),
                };
            }
            let closed = self.turn.append(StepEnd { turn: self.turn.turn(), step }).await;
            match (went, closed) {
                (_, Err(error)) => return stored_failure(&error),
                (Step::More, _) => {}
                (Step::Again, _) => return Ended::failed(segue_log::code::CONTEXT_TOO_LONG, TOO_LONG),
                (Step::Last(ended), _) => {
                    // A prompt sent into the turn before its last step was over forces one more.
                    let goes_on =
                        ended.reason == EndReason::Completed && !self.turn.step_prompts().is_empty();
                    if !goes_on {
                        return ended;
                    }
                }
            }
        }
    }

    async fn step(&mut self, step: u64) -> Step {
        if let Err(error) = self.turn.start_step(step).await {
            return Step::Last(stored_failure(&error));
        }
        self.ask_and_act(step).await
    }

    async fn ask_and_act(&mut self, step: u64) -> Step {
        let message = match self.request(step).await {
            Ok(message) => message,
            Err(crate::request::NoMessage::Ended(ended)) => return Step::Last(ended),
            Err(crate::request::NoMessage::TooLong(_)) if !self.compaction_failed => return Step::Again,
            Err(crate::request::NoMessage::TooLong(message)) => {
                return Step::Last(Ended::failed(segue_log::code::CONTEXT_TOO_LONG, message));
            }
        };
        let Event::MessageAssistant(message) = &message.event else {
            return Step::Last(Ended::failed("INTERNAL", "a message was recorded as something else"));
        };
        if let Some(reason) = cut_short(message) {
            return Step::Last(Ended::because(reason));
        }
        let calls = self.turn.conversation(|conversation| {
            let turn = conversation.turn(self.turn.turn());
            let calls = turn.into_iter().flat_map(|turn| turn.calls());
            calls.filter(|call| call.step == step && call.is_open()).cloned().collect::<Vec<_>>()
        });
        if calls.is_empty() {
            return Step::Last(Ended::because(EndReason::Completed));
        }
        match self.act(step, calls).await {
            Ok(()) if self.turn.cancel().is_cancelled() => Step::Last(Ended::because(EndReason::Cancelled)),
            Ok(()) => Step::More,
            Err(error) => Step::Last(stored_failure(&error)),
        }
    }

    /// Compacts between two steps where the window is filled or somebody asked. A failure of ours to do so is told, and
    /// the turn goes on for as long as the provider lets it.
    async fn compact_if_due(&mut self) -> Option<Ended> {
        let is_wanted = self.turn.takes_compaction();
        if !is_wanted && (self.compaction_failed || !self.is_filled()) {
            return None;
        }
        let result = self.compact(None).await;
        if is_wanted {
            self.turn.compacted(&result);
        }
        if self.turn.cancel().is_cancelled() {
            return Some(Ended::because(EndReason::Cancelled));
        }
        match result {
            Ok(_) => None,
            Err(error @ segue_runtime::RuntimeError::NotStored { .. }) => Some(stored_failure(&error)),
            Err(error) => {
                self.compaction_failed = true;
                self.turn.show(segue_runtime::Update::Notice {
                    code: "COMPACTION_FAILED".into(),
                    message: error.to_string(),
                });
                None
            }
        }
    }
}

const TOO_LONG: &str =
    "The conversation no longer fits into the model's window, and nothing of it can be summarised.";

fn cut_short(message: &MessageAssistant) -> Option<EndReason> {
    match message.stop.as_deref() {
        Some("max_tokens") => Some(EndReason::MaxTokens),
        Some("refused") => Some(EndReason::Refused),
        _ => None,
    }
}

pub(crate) fn stored_failure(error: &segue_runtime::RuntimeError) -> Ended {
    Ended::failed(segue_log::code::CHECKPOINT_FAILED, error.to_string())
}

fn compaction_failure(error: &segue_runtime::RuntimeError) -> Ended {
    match error {
        segue_runtime::RuntimeError::NotStored { .. } => stored_failure(error),
        _ => Ended::failed("COMPACTION_FAILED", error.to_string()),
    }
}
