//! The seam between sessions and the agents that run their turns.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use segue_log::{
    Action, BlobHash, CallId, Conversation, EndReason, Event, Evidence, Finish, Policy, PromptFor, PromptId,
    Record, SessionId, StepStart,
};
use tokio_util::sync::CancellationToken;

use crate::boundary::{Boundary, Stopped};
use crate::core::Core;
use crate::error::Result;
use crate::permission::Permit;
use crate::update::Update;

/// An agent, for one session. Its only output is the log.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Runs one turn and says why it ended. When it returns, every tool request of the turn has a result; `turn/end` is
    /// the runtime's to write.
    async fn run(&self, turn: &TurnContext) -> Ended;

    /// Replaces the past by a summary, between turns. True if it did, false if there was nothing to replace.
    async fn compact(&self, turn: &TurnContext) -> Result<bool>;

    /// What is known from outside the log of calls that a crash left open. `end` asks that what still runs be ended.
    async fn evidence(&self, conversation: &Conversation, end: bool) -> Evidence;

    /// How a turn that takes up the interrupted one is begun; recorded in its `turn/start`.
    fn finish(&self, _conversation: &Conversation) -> Finish {
        Finish::Resumed(true)
    }

    /// Settings of the session changed.
    async fn configure(&self, conversation: &Conversation) -> Result<()>;

    /// The session is being closed.
    async fn close(&self) {}
}

/// Makes the driver of a session.
#[async_trait]
pub trait Drivers: Send + Sync + 'static {
    /// The driver for a session whose log says this so far. Nothing is run.
    async fn driver(&self, conversation: &Conversation) -> Result<Arc<dyn Driver>>;
}

/// Why a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The reason.
    pub reason: EndReason,
    /// For `failed`: a stable code.
    pub code: Option<String>,
    /// For `failed`: in words.
    pub message: Option<String>,
}

impl Ended {
    /// Ended for a reason that needs no words.
    pub fn because(reason: EndReason) -> Self {
        Self { reason, code: None, message: None }
    }

    /// Failed.
    pub fn failed(code: &str, message: impl Into<String>) -> Self {
        Self { reason: EndReason::Failed, code: Some(code.to_owned()), message: Some(message.into()) }
    }
}

impl From<Stopped> for Ended {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Cancelled => Self::because(EndReason::Cancelled),
            Stopped::Failed(error) => Self::failed(segue_log::code::CHECKPOINT_FAILED, error.to_string()),
        }
    }
}

/// The machine that calls are entered on, as `tool/call` records name it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Its boot.
    pub boot: String,
}

/// A driver's way to its session while a turn runs.
#[derive(Clone)]
pub struct TurnContext {
    pub(crate) core: Arc<Core>,
    pub(crate) turn: u64,
    pub(crate) policy: Policy,
    pub(crate) cancel: CancellationToken,
}

impl TurnContext {
    /// The turn's number; 0 for a compaction between turns.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.core.id
    }

    /// Ends when the turn is cancelled.
    pub fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// The machine's name and boot.
    pub fn machine(&self) -> &Machine {
        &self.core.options.machine
    }

    /// Reads the conversation as of the last record appended. `read` must be quick: it holds the session.
    pub fn conversation<R>(&self, read: impl FnOnce(&Conversation) -> R) -> R {
        read(&self.core.state().conversation)
    }

    /// The present working folder.
    pub fn cwd(&self) -> PathBuf {
        self.conversation(|conversation| conversation.cwd().to_owned())
    }

    /// Appends a record. Not durable before the next boundary.
    pub async fn append(&self, event: impl Into<Event> + Send) -> Result<Arc<Record>> {
        self.core.append(event.into()).await
    }

    /// Passes a boundary: everything appended so far is durable when this returns well, as far as the policy asks.
    /// A turn that is cancelled does not pass one.
    pub async fn boundary(&self, boundary: Boundary) -> Result<(), Stopped> {
        self.core.boundary(self.policy, boundary, &self.cancel).await
    }

    /// Makes everything appended so far durable, whatever the policy.
    pub async fn store(&self) -> Result<(), Stopped> {
        self.core.boundary(Policy::Semantic, Boundary::Step, &self.cancel).await
    }

    /// Asks whether a call may run: rules first, then a person where there is one.
    pub async fn permit(&self, step: u64, call_id: &CallId, tool: &str, action: &Action) -> Permit {
        self.core.permit(self, step, call_id, tool, action).await
    }

    /// What the rules alone say; for calls inside a call, which ask nobody.
    pub fn verdict(&self, tool: &str, action: &Action) -> crate::permission::Verdict {
        self.core.verdict(tool, action)
    }

    /// Shows something to subscribers that is no record.
    pub fn show(&self, update: Update) {
        self.core.show(update);
    }

    /// Keeps bytes as a blob of the session, durable when this returns.
    pub async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash> {
        Ok(self.core.writer.put_blob(bytes).await?)
    }

    /// The highest seq known durable: nothing up to it can change its place.
    pub fn durable(&self) -> segue_log::Seq {
        self.core.writer.durable()
    }

    /// Starts a step, which claims the prompts that were sent into the turn and not taken back.
    pub async fn start_step(&self, step: u64) -> Result<Arc<Record>> {
        let start = |state: &crate::core::State| {
            let prompt_ids = self.step_prompts_in(&state.conversation);
            Ok(StepStart { turn: self.turn, step, prompt_ids }.into())
        };
        self.core.append_after(start).await
    }

    /// Prompts that were sent into the running turn and that its next step is to claim.
    pub fn step_prompts(&self) -> Vec<PromptId> {
        self.conversation(|conversation| self.step_prompts_in(conversation))
    }

    fn step_prompts_in(&self, conversation: &Conversation) -> Vec<PromptId> {
        let waiting = self.core.waiting(conversation);
        let for_step = waiting.filter(|(_, prompt)| prompt.target() == PromptFor::Step);
        for_step.map(|(id, _)| id.clone()).collect()
    }

    /// True if somebody asked for a compaction since the last call of this. Whoever is told true answers with
    /// [`compacted`](Self::compacted).
    pub fn takes_compaction(&self) -> bool {
        std::mem::take(&mut self.core.state().compaction_wanted)
    }

    /// Tells those who asked for a compaction how it went.
    pub fn compacted(&self, result: &Result<bool>) {
        self.core.tell_compaction(result);
    }
}
