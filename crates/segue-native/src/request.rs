//! One model request: recorded before it is sent, sent again where that may help, its answer recorded as it streams.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use segue_log::{CallId, EndReason, MessageAssistant, MessagePartial, Record, RequestFor, RequestHeader};
use segue_model::{Assembled, Assembler, Delta, ModelError, Request, Stop};
use segue_runtime::{Boundary, DeltaKind, Ended, Update};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::turn::{Turn, stored_failure};

/// How often what is streaming is recorded.
const PARTIAL: Duration = Duration::from_millis(250);

/// Why there is no message to act on.
pub(crate) enum NoMessage {
    /// The turn is over.
    Ended(Ended),
    /// The history does not fit into the model's window; the provider's word.
    TooLong(String),
}

/// How one attempt failed.
enum Failed {
    Model(ModelError),
    Cancelled,
    Store(Ended),
}

impl Turn {
    /// Asks the model to go on. The message is in the log when this returns well; of one that broke off or was
    /// cancelled, what came is in the log too.
    pub(crate) async fn request(&self, step: u64) -> Result<Arc<Record>, NoMessage> {
        // Of several attempts, the last that streamed anything is the one that counts.
        let mut streamed: Option<(u64, Assembled)> = None;
        // Attempts are counted on across a compaction within the step.
        let before = self.turn.conversation(|conversation| {
            let steps =
                conversation.turn(self.turn.turn()).map(|turn| turn.steps.as_slice()).unwrap_or_default();
            steps.iter().rev().find(|held| held.number == step).map_or(0, |held| held.attempt)
        });
        for tried in 1.. {
            let attempt = before + tried;
            if let Err(ended) = self.announce(Some(step), attempt, RequestFor::Step).await {
                self.keep_cut(step, streamed).await?;
                return Err(NoMessage::Ended(ended));
            }
            let mut assembler = Assembler::new(CallId::mint);
            let failed = match self.attempt(step, attempt, &mut assembler).await {
                Ok(()) => {
                    let message = self.message(step, attempt, assembler.finish(), false);
                    return self
                        .turn
                        .append(message)
                        .await
                        .map_err(|error| NoMessage::Ended(stored_failure(&error)));
                }
                Err(failed) => failed,
            };
            if !assembler.is_empty() {
                streamed = Some((attempt, assembler.cut()));
            }
            let error = match failed {
                Failed::Model(error) => error,
                Failed::Cancelled => {
                    self.keep_cut(step, streamed).await?;
                    return Err(NoMessage::Ended(Ended::because(EndReason::Cancelled)));
                }
                Failed::Store(ended) => {
                    self.keep_cut(step, streamed).await?;
                    return Err(NoMessage::Ended(ended));
                }
            };
            if let ModelError::TooLong { .. } = error {
                return Err(NoMessage::TooLong(error.to_string()));
            }
            let Some(wait) = self.wait_after(tried, &error) else {
                self.keep_cut(step, streamed).await?;
                return Err(NoMessage::Ended(Ended::failed(error.code(), error.to_string())));
            };
            tokio::select! {
                () = self.turn.cancel().cancelled() => {
                    self.keep_cut(step, streamed).await?;
                    return Err(NoMessage::Ended(Ended::because(EndReason::Cancelled)));
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
        Err(NoMessage::Ended(Ended::failed("INTERNAL", "the request was never sent")))
    }

    /// Records that a request is about to be sent and passes the boundary before it. The request's fixed part is written
    /// whole at first and on change.
    pub(crate) async fn announce(
        &self,
        step: Option<u64>,
        attempt: u64,
        purpose: RequestFor,
    ) -> Result<(), Ended> {
        let model = self.model.name().to_owned();
        let parameters = serde_json::to_value(self.parameters()).ok();
        let tools = serde_json::to_value(&self.specs).ok();
        // Only a durable record keeps its seq for good.
        let same_as = self.turn.conversation(|conversation| {
            let (seq, whole) = conversation.last_request()?;
            let is_same = whole.model.as_ref() == Some(&model)
                && whole.parameters == parameters
                && whole.system.as_ref() == Some(&self.system)
                && whole.tools == tools;
            (is_same && seq <= self.turn.durable()).then_some(seq)
        });
        let mut header = RequestHeader {
            turn: Some(self.turn.turn()).filter(|turn| *turn > 0),
            step,
            attempt,
            purpose,
            same_as,
            model: None,
            parameters: None,
            system: None,
            tools: None,
        };
        if same_as.is_none() {
            header.model = Some(model);
            header.parameters = parameters;
            header.system = Some(self.system.clone());
            header.tools = tools;
        }
        self.turn.append(header).await.map_err(|error| stored_failure(&error))?;
        self.turn.boundary(Boundary::Request).await.map_err(Ended::from)
    }

    async fn attempt(&self, step: u64, attempt: u64, assembler: &mut Assembler) -> Result<(), Failed> {
        let request = Request {
            system: self.system.clone(),
            messages: self.turn.conversation(|conversation| conversation.history()),
            tools: self.specs.clone(),
            parameters: self.parameters().clone(),
        };
        let cancel = self.turn.cancel();
        let mut stream = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Failed::Cancelled),
            stream = self.model.stream(&request) => stream.map_err(Failed::Model)?,
        };
        let mut ticks = interval_at(Instant::now() + PARTIAL, PARTIAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            let delta = tokio::select! {
                biased;
                () = cancel.cancelled() => break Err(Failed::Cancelled),
                _ = ticks.tick() => {
                    if let Err(ended) = self.keep_partial(step, attempt, assembler).await {
                        break Err(Failed::Store(ended));
                    }
                    continue;
                }
                delta = stream.next() => delta,
            };
            match delta {
                Some(Ok(delta)) => {
                    self.show(step, &delta);
                    let is_over = matches!(delta, Delta::Stop(_));
                    assembler.push(delta);
                    if is_over {
                        return Ok(());
                    }
                }
                Some(Err(error)) => break Err(Failed::Model(error)),
                None => {
                    break Err(Failed::Model(ModelError::Broken {
                        provider: self.model.name().to_owned(),
                        message: "it ended in the middle".into(),
                    }));
                }
            }
        };
        if let Err(ended) = self.keep_partial(step, attempt, assembler).await {
            return Err(Failed::Store(ended));
        }
        ended
    }

    fn show(&self, step: u64, delta: &Delta) {
        let (kind, text) = match delta {
            Delta::Text(text) => (DeltaKind::Text, text),
            Delta::Thinking(text) => (DeltaKind::Thinking, text),
            _ => return,
        };
        self.turn.show(Update::Delta { turn: self.turn.turn(), step, kind, text: text.clone() });
    }

    async fn keep_partial(&self, step: u64, attempt: u64, assembler: &mut Assembler) -> Result<(), Ended> {
        let content = assembler.take_new();
        if content.is_empty() {
            return Ok(());
        }
        let partial = MessagePartial { turn: self.turn.turn(), step, attempt, content };
        self.turn.append(partial).await.map(drop).map_err(|error| stored_failure(&error))
    }

    /// Records what came of a message that broke off.
    async fn keep_cut(&self, step: u64, streamed: Option<(u64, Assembled)>) -> Result<(), NoMessage> {
        let Some((attempt, assembled)) = streamed.filter(|(_, assembled)| !assembled.content.is_empty())
        else {
            return Ok(());
        };
        let message = self.message(step, attempt, assembled, true);
        self.turn.append(message).await.map(drop).map_err(|error| NoMessage::Ended(stored_failure(&error)))
    }

    fn message(&self, step: u64, attempt: u64, assembled: Assembled, interrupted: bool) -> MessageAssistant {
        MessageAssistant {
            turn: self.turn.turn(),
            step,
            attempt,
            content: assembled.content,
            usage: assembled.usage,
            stop: assembled.stop.as_ref().map(|stop| stop.as_str().to_owned()),
            interrupted,
            replayed: false,
        }
    }

    /// A request of its own, outside the conversation: the answer's text, or why there is none. Sent again as any other.
    pub(crate) async fn ask_aside(&self, step: Option<u64>, request: &Request) -> Result<String, Ended> {
        for attempt in 1.. {
            self.announce(step, attempt, RequestFor::Compaction).await?;
            let answer = tokio::select! {
                biased;
                () = self.turn.cancel().cancelled() => return Err(Ended::because(EndReason::Cancelled)),
                answer = self.whole_answer(request) => answer,
            };
            let error = match answer {
                Ok(answer) if answer.stop == Some(Stop::Refused) => {
                    return Err(Ended::failed("MODEL_REFUSED", "the model refused to answer"));
                }
                Ok(answer) => return Ok(segue_log::text_of(&answer.content)),
                Err(error) => error,
            };
            let Some(wait) = self.wait_after(attempt, &error) else {
                return Err(Ended::failed(error.code(), error.to_string()));
            };
            tokio::select! {
                () = self.turn.cancel().cancelled() => return Err(Ended::because(EndReason::Cancelled)),
                () = tokio::time::sleep(wait) => {}
            }
        }
        Err(Ended::failed("INTERNAL", "the request was never sent"))
    }

    async fn whole_answer(&self, request: &Request) -> Result<Assembled, ModelError> {
        let mut stream = self.model.stream(request).await?;
        let mut assembler = Assembler::new(CallId::mint);
        while let Some(delta) = stream.next().await {
            let delta = delta?;
            let is_over = matches!(delta, Delta::Stop(_));
            assembler.push(delta);
            if is_over {
                return Ok(assembler.finish());
            }
        }
        Err(ModelError::Broken {
            provider: self.model.name().to_owned(),
            message: "it ended in the middle".into(),
        })
    }

    /// How long to wait before a request is sent again; none if that would not help.
    fn wait_after(&self, attempt: u64, error: &ModelError) -> Option<Duration> {
        if !error.is_retryable() {
            return None;
        }
        let wait = self.driver.config.retry.wait(attempt, error.retry_after(), rand::random::<f64>())?;
        self.turn.show(Update::Notice {
            code: error.code().into(),
            message: format!("{error}; trying again in {:.1} s", wait.as_secs_f64()),
        });
        Some(wait)
    }
}
