//! One turn: the prompt is sent once its record is durable, what comes back is recorded, questions and requests are
//! answered, and whatever ends it is told.

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use segue_log::{AgentBound, Block, EndReason, Finish, Origin, Outcome, StepEnd, StepStart, Usage, code};
use segue_runtime::permission::{Permit, Verdict};
use segue_runtime::{Boundary, Ended, RuntimeError, Stopped, TurnContext};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::agent::Agent;
use super::content::to_acp;
use super::driver::{Connected, Hosted, before_prompt};
use super::permission::{self, choice};
use super::resume::{Failure, classify};
use super::rpc::{Incoming, NoAnswer};
use super::sight::Sight;
use super::tell::{DIED, ENDED, cut_off_note, is_command, past, prompt_blocks};

/// The code of a turn whose agent said at the prompt that it has no such conversation.
pub(super) const GONE: &str = "AGENT_SESSION_GONE";

/// How often what is streaming is recorded.
const PARTIAL: Duration = Duration::from_millis(250);

/// Requests of the agent that are worked on at once; further ones wait.
const AT_ONCE: usize = 64;

/// The most of a file that an agent is given, in bytes.
const READ: u64 = 16 * 1024 * 1024;

/// The log takes no more records.
pub(super) fn not_stored(error: &RuntimeError) -> Ended {
    Ended::failed(code::CHECKPOINT_FAILED, error.to_string())
}

/// Runs a turn. Tells why it ended, and whether the agent can be used for another.
pub(super) async fn run(
    turn: &TurnContext,
    hosted: &Hosted,
    agent: &mut Agent,
    connected: Connected,
) -> (Ended, bool) {
    let mut connected = connected;
    // Steps that a conversation refused which turned out to be gone are in the log already.
    let mut step = turn.conversation(|conversation| {
        conversation.turn(turn.turn()).and_then(|held| held.steps.last()).map_or(0, |last| last.number)
    });
    let first = step + 1;
    loop {
        step += 1;
        let is_first = step == first;
        let (ended, is_usable) = match one_step(turn, hosted, agent, &mut connected, step, is_first).await {
            Ok(done) => done,
            Err(error) => (not_stored(&error), false),
        };
        if !is_usable {
            return (ended, false);
        }
        if let Err(error) = turn.append(StepEnd { turn: turn.turn(), step }).await {
            return (not_stored(&error), false);
        }
        // A prompt sent into the turn before its last step was over forces one more.
        if ended.reason != EndReason::Completed || turn.step_prompts().is_empty() {
            return (ended, true);
        }
    }
}

async fn one_step(
    turn: &TurnContext,
    hosted: &Hosted,
    agent: &mut Agent,
    connected: &mut Connected,
    step: u64,
    is_first: bool,
) -> Result<(Ended, bool), RuntimeError> {
    let prompt_ids = turn.step_prompts();
    turn.append(StepStart { turn: turn.turn(), step, prompt_ids: prompt_ids.clone() }).await?;
    let blocks = blocks(turn, connected, step, is_first, &prompt_ids);
    let prompt: Vec<Value> = blocks.iter().filter_map(|block| to_acp(block, &agent.about)).collect();
    if let Err(ended) = before_prompt(turn).await {
        // Nothing was sent: the agent is as it was.
        return Ok((ended, true));
    }
    let mut talk = Talk {
        turn,
        hosted,
        agent,
        sight: Sight::new(turn, step),
        step,
        jobs: FuturesUnordered::new(),
        cancel_by: None,
        session: connected.session.clone(),
    };
    let done = talk.prompt(prompt).await?;
    if connected.owes && matches!(done, (_, true)) && is_answered(&done.0) {
        let bound = AgentBound {
            agent: hosted.config.name.clone(),
            version: agent.about.version.clone(),
            agent_session_id: connected.session.clone(),
            how: "rehydrate".into(),
            owes: None,
        };
        turn.append(bound).await?;
        connected.owes = false;
    }
    connected.lacks = Some(Default::default());
    Ok(done)
}

/// True if the agent took the prompt and answered it, however the answer ended.
fn is_answered(ended: &Ended) -> bool {
    !matches!(ended.reason, EndReason::Failed | EndReason::Interrupted)
}

/// What the agent is sent: the prompts of this step, and what it has to be told beside them.
fn blocks(
    turn: &TurnContext,
    connected: &Connected,
    step: u64,
    is_first: bool,
    step_prompts: &[segue_log::PromptId],
) -> Vec<Block> {
    turn.conversation(|conversation| {
        let held = conversation.turn(turn.turn());
        let mut ids: Vec<segue_log::PromptId> = Vec::new();
        let mut notes: Vec<Block> = Vec::new();
        let mut said: Vec<Block> = Vec::new();
        if is_first {
            ids.extend(held.map(|held| held.prompt_ids.clone()).unwrap_or_default());
            let refused = held.into_iter().flat_map(|held| &held.steps).filter(|held| held.number < step);
            ids.extend(refused.flat_map(|held| held.prompt_ids.clone()));
            if connected.owes {
                notes.push(Block::text(past(conversation, turn.turn())));
            } else {
                let note = cut_off_note(conversation, turn.turn(), connected.lacks);
                notes.extend(note.map(Block::text));
            }
            if let Some(Finish::Note(note)) = held.and_then(|held| held.finish.as_ref()) {
                said.push(Block::text(note));
            }
        }
        ids.extend_from_slice(step_prompts);
        let prompts = ids.iter().filter_map(|id| conversation.prompt(id));
        said.extend(prompts.flat_map(|prompt| prompt.content().to_vec()));
        let said = prompt_blocks(said);
        // A command of the agent is one only at the beginning.
        if is_command(&said) {
            said.into_iter().chain(notes).collect()
        } else {
            notes.into_iter().chain(said).collect()
        }
    })
}

/// A request of the agent that was decided on.
enum Done {
    /// Its question about a call of its own.
    Asked { id: Value, call: String, options: Value, permit: Permit },
    /// Its wish to have a file touched by us.
    File { id: Value, call: String, file: File, permit: Permit },
    /// It is answered.
    Answered,
}

/// What is to be done with a file.
#[derive(Clone)]
enum File {
    Read { path: PathBuf, line: Option<u64>, limit: Option<u64> },
    Write { path: PathBuf, content: String },
}

/// The talk about one prompt.
struct Talk<'a> {
    turn: &'a TurnContext,
    hosted: &'a Hosted,
    agent: &'a mut Agent,
    sight: Sight<'a>,
    step: u64,
    jobs: FuturesUnordered<BoxFuture<'static, Done>>,
    /// When a cancelled prompt must have ended.
    cancel_by: Option<Instant>,
    session: String,
}

impl Talk<'_> {
    /// Sends the prompt and stays with it to its end.
    async fn prompt(&mut self, prompt: Vec<Value>) -> Result<(Ended, bool), RuntimeError> {
        let params = json!({"sessionId": self.session, "prompt": prompt});
        let mut answer = self.agent.peer.request("session/prompt", params).await;
        let mut ticks = interval_at(Instant::now() + PARTIAL, PARTIAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_open = true;
        let cancel = self.turn.cancel().clone();
        let result = loop {
            let may_take_more = is_open && self.jobs.len() < AT_ONCE;
            tokio::select! {
                biased;
                () = cancel.cancelled(), if self.cancel_by.is_none() => {
                    self.cancel_by = Some(Instant::now() + self.hosted.config.cancel_timeout);
                    let cancel = json!({"sessionId": self.session});
                    // An agent that reads nothing is ended at the deadline.
                    tokio::time::timeout(
                        Duration::from_secs(1),
                        self.agent.peer.notify("session/cancel", cancel),
                    )
                    .await
                    .ok();
                }
                () = until(self.cancel_by) => {
                    self.sight.keep_partial().await?;
                    let message = "the agent did not stop in time and was ended".to_owned();
                    let ended = Ended {
                        reason: EndReason::Cancelled,
                        code: Some(ENDED.into()),
                        message: Some(message),
                    };
                    return Ok((ended, false));
                }
                _ = ticks.tick() => self.sight.keep_partial().await?,
                Some(done) = self.jobs.next(), if !self.jobs.is_empty() => self.decided(done).await?,
                message = self.agent.incoming.recv(), if may_take_more => match message {
                    Some(message) => self.take(message).await?,
                    None => is_open = false,
                },
                result = answer.wait() => {
                    while let Ok(message) = self.agent.incoming.try_recv() {
                        self.take(message).await?;
                    }
                    break result;
                }
            }
        };
        self.over(result).await
    }

    /// What the end of a prompt means for the turn.
    async fn over(&mut self, result: Result<Value, NoAnswer>) -> Result<(Ended, bool), RuntimeError> {
        match result {
            Ok(result) => {
                let stop = result.get("stopReason").and_then(Value::as_str).unwrap_or_default().to_owned();
                let reason = match stop.as_str() {
                    "end_turn" => EndReason::Completed,
                    "max_tokens" => EndReason::MaxTokens,
                    "max_turn_requests" => EndReason::MaxSteps,
                    "refusal" => EndReason::Refused,
                    "cancelled" => EndReason::Cancelled,
                    _ => {
                        // It ended, and of a reason that is newer than this program only that is known.
                        self.sight.raw(json!({"response": result})).await?;
                        EndReason::Completed
                    }
                };
                self.sight.close(&stop, usage(&result), reason == EndReason::Cancelled).await?;
                Ok((Ended::because(reason), true))
            }
            Err(NoAnswer::Refused(refusal)) => {
                self.sight.close("error", Usage::default(), false).await?;
                let failure = classify(&self.session, &NoAnswer::Refused(refusal.clone()));
                let (code, message) = match failure {
                    Failure::Gone => (GONE, refusal.words()),
                    Failure::Login => ("AGENT_LOGIN", refusal.words()),
                    Failure::RateLimit => ("AGENT_RATE_LIMIT", refusal.words()),
                    Failure::InUse => ("AGENT_SESSION_IN_USE", refusal.words()),
                    _ => ("AGENT_FAILED", format!("the prompt failed: {}", refusal.words())),
                };
                if failure == Failure::Gone {
                    // It is no longer in the conversation; the next prompt finds the way back, or out.
                    self.agent.session = None;
                }
                let instructions = self.agent.about.login_instructions();
                Ok((self.hosted.told(code, message, &instructions), true))
            }
            Err(NoAnswer::Closed | NoAnswer::TimedOut) => {
                self.sight.keep_partial().await?;
                let account = self.agent.account().await;
                let name = &self.hosted.config.name;
                if self.cancel_by.is_some() {
                    let message = format!("{name} ended when it was cancelled{account}");
                    let code = Some(ENDED.to_owned());
                    return Ok((Ended { reason: EndReason::Cancelled, code, message: Some(message) }, false));
                }
                Ok((Ended::failed(DIED, format!("{name} ended in the middle of the turn{account}")), false))
            }
        }
    }

    async fn take(&mut self, message: Incoming) -> Result<(), RuntimeError> {
        match message {
            Incoming::Notification { method, mut params } if method == "session/update" => {
                let is_ours = params.get("sessionId").and_then(Value::as_str) == Some(&self.session);
                match params.get_mut("update").map(Value::take) {
                    Some(update) if is_ours => self.sight.update(update).await,
                    Some(update) => self.sight.raw(json!({"params": params, "update": update})).await,
                    None => self.sight.raw(params).await,
                }
            }
            Incoming::Notification { method, params } => {
                self.sight.raw(json!({"method": method, "params": params})).await
            }
            Incoming::Request { id, method, params } => self.request(id, &method, params).await,
        }
    }

    async fn request(&mut self, id: Value, method: &str, params: Value) -> Result<(), RuntimeError> {
        match method {
            "session/request_permission" => self.asked(id, params).await,
            "fs/read_text_file" | "fs/write_text_file" => self.file(id, method, &params).await,
            "elicitation/create" => {
                self.answer(&id, Ok(json!({"action": "decline"}))).await;
                self.sight.raw(json!({"method": method, "params": params})).await
            }
            _ => {
                self.answer(&id, Err((-32601, format!("{method} is not supported")))).await;
                self.sight.raw(json!({"method": method, "params": params})).await
            }
        }
    }

    /// The agent asks whether a call of its own may run.
    async fn asked(&mut self, id: Value, mut params: Value) -> Result<(), RuntimeError> {
        let said = params.get_mut("toolCall").map(Value::take).unwrap_or_default();
        let options = params.get_mut("options").map(Value::take).unwrap_or_default();
        let call = said.get("toolCallId").and_then(Value::as_str).map(str::to_owned);
        // A question about nothing that has a name is a call of its own.
        let call = call.unwrap_or_else(|| format!("question-{id}"));
        let call_id = self.sight.see(&call, &said).await?;
        let all = self.sight.said_of(&call);
        let tool = permission::tool_name(&all);
        let action = permission::action(&all, &self.hosted.config, &self.turn.cwd());
        let (turn, step) = (self.turn.clone(), self.step);
        self.jobs.push(Box::pin(async move {
            let permit = turn.permit(step, &call_id, tool, &action).await;
            Done::Asked { id, call, options, permit }
        }));
        Ok(())
    }

    /// The agent wants a file read or written by us. What the level lets it read is read; the rest is a call of ours.
    async fn file(&mut self, id: Value, method: &str, params: &Value) -> Result<(), RuntimeError> {
        let Some(path) = params.get("path").and_then(Value::as_str) else {
            self.answer(&id, Err((-32602, "the path is missing".into()))).await;
            return Ok(());
        };
        let path = self.hosted.config.path_here(path);
        let number = |key: &str| params.get(key).and_then(Value::as_u64);
        let text = |key: &str| params.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, file) = match method {
            "fs/read_text_file" => {
                ("read", File::Read { path, line: number("line"), limit: number("limit") })
            }
            _ => ("edit", File::Write { path, content: text("content") }),
        };
        let shown_path = params.get("path").cloned().unwrap_or_default();
        let said = json!({
            "title": format!("{method} {}", shown_path.as_str().unwrap_or_default()),
            "kind": kind,
            "rawInput": params,
            "locations": [{"path": shown_path}],
        });
        let action = permission::action(&said, &self.hosted.config, &self.turn.cwd());
        if let File::Read { .. } = file
            && let Verdict::Allow { .. } = self.turn.verdict(kind, &action)
        {
            let peer = self.agent.peer.clone();
            self.jobs.push(Box::pin(async move {
                peer.answer(&id, touch(&file).await.map_err(|why| (-32603, why))).await;
                Done::Answered
            }));
            return Ok(());
        }
        let call = format!("segue-{kind}-{id}");
        let call_id = self.sight.see(&call, &said).await?;
        let (turn, step) = (self.turn.clone(), self.step);
        self.jobs.push(Box::pin(async move {
            let permit = turn.permit(step, &call_id, kind, &action).await;
            Done::File { id, call, file, permit }
        }));
        Ok(())
    }

    async fn decided(&mut self, done: Done) -> Result<(), RuntimeError> {
        match done {
            Done::Answered => Ok(()),
            Done::Asked { id, call, options, permit } => {
                let granted = match self.granted(&call, permit, Origin::Reported).await? {
                    Ok(()) => choice(&options, true).ok_or("the agent offers no way to allow this once"),
                    Err(why) if why.is_cancelled => Ok(permission::cancelled()),
                    Err(_) => Ok(choice(&options, false).unwrap_or_else(permission::cancelled)),
                };
                let answer = match granted {
                    Ok(answer) => answer,
                    Err(why) => {
                        self.sight.done(&call, Outcome::Error, Some(code::DENIED), Some(why.into())).await?;
                        permission::cancelled()
                    }
                };
                self.answer(&id, Ok(answer)).await;
                Ok(())
            }
            Done::File { id, call, file, permit } => {
                let answer = match self.granted(&call, permit, Origin::Dispatched).await? {
                    Ok(()) => {
                        let touched = touch(&file).await;
                        let (outcome, code, text) = match &touched {
                            Ok(_) => (Outcome::Ok, None, "done".to_owned()),
                            Err(why) => (Outcome::Error, Some(code::FAILED), why.clone()),
                        };
                        self.sight.done(&call, outcome, code, Some(text)).await?;
                        touched.map_err(|why| (-32603, why))
                    }
                    Err(why) => Err((-32603, why.text)),
                };
                self.answer(&id, answer).await;
                Ok(())
            }
        }
    }

    /// Records that a call may run, durably, before that is told; or why it may not.
    async fn granted(
        &mut self,
        call: &str,
        permit: Permit,
        origin: Origin,
    ) -> Result<Result<(), Refused>, RuntimeError> {
        let refused = match permit {
            Permit::Allowed { .. } => {
                self.sight.entered(call, origin).await?;
                match self.turn.boundary(Boundary::Dispatch).await {
                    Ok(()) => return Ok(Ok(())),
                    Err(Stopped::Cancelled) => Refused::cancelled(),
                    Err(Stopped::Failed(error)) => Refused::not_stored(&error.to_string()),
                }
            }
            Permit::Denied { why } => Refused { code: code::DENIED, text: why, is_cancelled: false },
            Permit::Cancelled => Refused::cancelled(),
            Permit::NotStored { why } => Refused::not_stored(&why),
        };
        self.sight.done(call, Outcome::Error, Some(refused.code), Some(refused.text.clone())).await?;
        Ok(Err(refused))
    }

    async fn answer(&mut self, id: &Value, answer: Result<Value, (i64, String)>) {
        self.agent.peer.answer(id, answer).await;
    }
}

/// Why a call may not run.
struct Refused {
    code: &'static str,
    text: String,
    is_cancelled: bool,
}

impl Refused {
    fn cancelled() -> Self {
        let text = "Not started: the turn was cancelled before.".to_owned();
        Self { code: code::ABORTED, text, is_cancelled: true }
    }

    fn not_stored(why: &str) -> Self {
        let text = format!("Not started: that it is about to run could not be recorded ({why}).");
        Self { code: code::CHECKPOINT_FAILED, text, is_cancelled: false }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Reads or writes a file, as the protocol has it.
async fn touch(file: &File) -> Result<Value, String> {
    match file {
        File::Write { path, content } => {
            let told = |error: std::io::Error| format!("{}: {error}", path.display());
            if let Some(folder) = path.parent() {
                tokio::fs::create_dir_all(folder).await.map_err(told)?;
            }
            tokio::fs::write(path, content).await.map_err(told)?;
            Ok(json!({}))
        }
        File::Read { path, line, limit } => {
            let told = |error: std::io::Error| format!("{}: {error}", path.display());
            let length = tokio::fs::metadata(path).await.map_err(told)?.len();
            if length > READ {
                return Err(format!("{}: {length} bytes are more than is given at once", path.display()));
            }
            let text = tokio::fs::read_to_string(path).await.map_err(told)?;
            if line.is_none() && limit.is_none() {
                return Ok(json!({"content": text}));
            }
            let skip = usize::try_from(line.unwrap_or(1).saturating_sub(1)).unwrap_or(usize::MAX);
            let take = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
            let content: String = text.split_inclusive('\n').skip(skip).take(take).collect();
            Ok(json!({"content": content}))
        }
    }
}

/// The tokens of a turn, where the agent tells them.
fn usage(result: &Value) -> Usage {
    let Some(usage) = result.get("usage") else { return Usage::default() };
    let count = |key: &str| usage.get(key).and_then(Value::as_u64).unwrap_or(0);
    Usage {
        input: count("inputTokens"),
        output: count("outputTokens"),
        cache_read: count("cachedReadTokens"),
        cache_write: count("cachedWriteTokens"),
    }
}
