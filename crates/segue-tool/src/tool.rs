//! The seam between the agent and its tools.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use segue_log::{Action, BlobHash, Block, CallId, Effect, Expect, Outcome, PlanEntry, SessionId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// A tool.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Its name: letters, digits, `_` and `-`, at most 64.
    fn name(&self) -> &str;

    /// What it does, for the model.
    fn description(&self) -> &str;

    /// The JSON schema of its arguments; an object.
    fn input_schema(&self) -> &Value;

    /// What a call may do to the world, at most.
    fn effect(&self) -> Effect;

    /// True if calls of it may run beside other calls of the same message.
    fn is_parallel(&self) -> bool {
        self.effect() == Effect::Read
    }

    /// What a call with this (already checked) input would do, for the permission rules and the person asked. No effects.
    fn action(&self, input: &Value, scope: &Scope) -> Action;

    /// For a file change: how its outcome can be told later, the old content kept as a blob. No other effects.
    /// An error is the call's result; its body is not entered.
    async fn expect(&self, _input: &Value, _context: &ToolContext) -> Result<Option<Expect>, Failure> {
        Ok(None)
    }

    /// Runs the call. Must come back soon after `context.cancel`, with everything it started ended.
    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput;

    /// After a crash: what is known of a call whose `tool/call` stands in the log without a result.
    /// `end` asks that what still runs be ended.
    async fn evidence(&self, _call: &OpenCall, _scope: &Scope, _end: bool) -> Known {
        Known::Nothing
    }
}

/// Where calls of a session may work.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The working folder, absolute.
    pub cwd: PathBuf,
    /// Further folders that count as inside it.
    pub extra: Vec<PathBuf>,
    /// Where calls keep what must outlive this process: `<calls>/<session>/<callId>/`.
    pub calls: PathBuf,
}

/// What a call is given beside its input.
#[derive(Clone)]
pub struct ToolContext {
    /// The session.
    pub session: SessionId,
    /// The call.
    pub call_id: CallId,
    /// Where it may work.
    pub scope: Scope,
    /// True if permission was given for this very action: it may leave the working folder, and its command runs without the sandbox.
    pub permitted: bool,
    /// What [`Tool::expect`] gave for this call, as its `tool/call` record holds it. None inside another call.
    pub expect: Option<Expect>,
    /// Ends the call.
    pub cancel: CancellationToken,
    /// The rest of the session, as far as tools need it.
    pub host: Arc<dyn ToolHost>,
}

impl ToolContext {
    /// The idempotency key offered to tools: `<session>/<callId>`.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.session, self.call_id)
    }

    /// The folder that keeps what must outlive this process about this call. Not made yet.
    pub fn call_folder(&self) -> PathBuf {
        self.scope.call_folder(self.session, &self.call_id)
    }
}

impl Scope {
    /// The folder that keeps what must outlive this process about a call.
    pub fn call_folder(&self, session: SessionId, call: &CallId) -> PathBuf {
        self.calls.join(session.to_string()).join(call.as_str())
    }
}

/// What tools need of their session.
#[async_trait]
pub trait ToolHost: Send + Sync {
    /// Keeps bytes as a blob of the session, durable when this returns.
    async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash, Failure>;

    /// Live output, shown to people while the call runs; not logged.
    fn progress(&self, text: &str);

    /// Puts the agent's plan into the log.
    async fn plan(&self, entries: Vec<PlanEntry>) -> Result<(), Failure>;

    /// Calls another tool inside this call: permission rules hold, the outer call's checkpoint serves, nothing is
    /// recorded of it but what the outer call's result says.
    async fn call(&self, tool: &str, input: Value, context: &ToolContext) -> ToolOutput;

    /// Remembers the hash of a file's content as the model last saw it.
    fn saw(&self, path: &Path, content: BlobHash);

    /// The hash of a file's content as the model last saw it in this session.
    fn seen(&self, path: &Path) -> Option<BlobHash>;
}

/// A call's result.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// Whether it did what it was asked.
    pub outcome: Outcome,
    /// For an error: its code, one of [`segue_log::code`].
    pub code: Option<String>,
    /// What it returns; never empty.
    pub content: Vec<Block>,
}

impl ToolOutput {
    /// A good result of text.
    pub fn ok(text: impl Into<String>) -> Self {
        Self { outcome: Outcome::Ok, code: None, content: vec![Block::text(text)] }
    }

    /// A failed one.
    pub fn error(code: &str, text: impl Into<String>) -> Self {
        Self { outcome: Outcome::Error, code: Some(code.to_owned()), content: vec![Block::text(text)] }
    }
}

/// Why a call cannot go on; becomes its result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// One of [`segue_log::code`].
    pub code: String,
    /// In words, for the model.
    pub message: String,
}

impl From<Failure> for ToolOutput {
    fn from(failure: Failure) -> Self {
        Self::error(&failure.code, failure.message)
    }
}

/// A call that a crash left without a result.
#[derive(Debug, Clone)]
pub struct OpenCall {
    /// The session.
    pub session: SessionId,
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub tool: String,
    /// Its input.
    pub input: Value,
    /// What was expected of it.
    pub expect: Option<Expect>,
    /// The machine it was entered on.
    pub host: String,
    /// That machine's boot.
    pub boot: String,
}

/// What is known of an open call.
#[derive(Debug, Clone, PartialEq)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// Its real result.
    Result(ToolOutput),
    /// It still runs.
    Running {
        /// What it has written so far.
        output: String,
    },
    /// It still ran and was ended just now, or is known to have been ended without a result.
    Ended {
        /// What it had written.
        output: String,
        /// True if it still ran when we looked, and we ended it.
        by_us: bool,
    },
}
