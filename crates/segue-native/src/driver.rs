//! The agent as a driver: what stays the same from turn to turn of one session.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use segue_log::{BlobHash, Call, CallId, Conversation, EndReason, Evidence, Finding, SessionId};
use segue_model::Model;
use segue_runtime::{Driver, Drivers, Ended, Machine, Result, RuntimeError, Stopped, TurnContext, Update};
use segue_tool::{Known, OpenCall, Registry, Scope};

use crate::compact::stopped;
use crate::config::NativeConfig;
use crate::turn::Turn;

/// The name of this agent.
pub const AGENT: &str = "segue";

/// Makes drivers for sessions of our own agent.
pub struct NativeDrivers {
    config: Arc<NativeConfig>,
    machine: Machine,
}

impl NativeDrivers {
    /// Drivers with these parts, on this machine.
    pub fn new(config: NativeConfig, machine: Machine) -> Self {
        Self { config: Arc::new(config), machine }
    }
}

#[async_trait]
impl Drivers for NativeDrivers {
    async fn driver(&self, conversation: &Conversation) -> Result<Arc<dyn Driver>> {
        if let Some(agent) = conversation.settings().agent.as_deref().filter(|agent| *agent != AGENT) {
            return Err(RuntimeError::Driver(format!(
                "this session's agent is {agent}, which this version cannot run; it can be read and exported"
            )));
        }
        let model = self.model(conversation)?;
        Ok(Arc::new(NativeDriver(Arc::new(Inner {
            session: conversation.header().id,
            config: self.config.clone(),
            machine: self.machine.clone(),
            built_in: Arc::new(Registry::new(self.config.tools.clone())),
            model: Mutex::new(model),
            seen: Mutex::default(),
            told: Mutex::default(),
        }))))
    }
}

impl NativeDrivers {
    fn model(&self, conversation: &Conversation) -> Result<Arc<dyn Model>> {
        let name = conversation.settings().model.as_deref();
        self.config.models.model(name).map_err(RuntimeError::Driver)
    }
}

pub(crate) struct NativeDriver(Arc<Inner>);

pub(crate) struct Inner {
    session: SessionId,
    pub(crate) config: Arc<NativeConfig>,
    machine: Machine,
    built_in: Arc<Registry>,
    model: Mutex<Arc<dyn Model>>,
    /// Files as the model last saw them.
    seen: Mutex<HashMap<PathBuf, BlobHash>>,
    /// What was told of tools that could not be had, so that it is told once.
    told: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(crate) fn model(&self) -> Arc<dyn Model> {
        lock(&self.model).clone()
    }

    pub(crate) fn saw(&self, path: PathBuf, content: BlobHash) {
        lock(&self.seen).insert(path, content);
    }

    pub(crate) fn seen(&self, path: &std::path::Path) -> Option<BlobHash> {
        lock(&self.seen).get(path).copied()
    }

    pub(crate) fn scope(&self, cwd: PathBuf) -> Scope {
        Scope { cwd, extra: self.config.extra_folders.clone(), calls: self.config.calls.clone() }
    }

    /// All tools as of now. What could not be started is told to people once.
    pub(crate) async fn tools(&self, turn: &TurnContext) -> Arc<Registry> {
        let Some(more) = &self.config.more_tools else { return self.built_in.clone() };
        let (tools, problems) = more.tools().await;
        for problem in problems {
            let mut told = lock(&self.told);
            if !told.contains(&problem) {
                turn.show(Update::Notice { code: "TOOLS_MISSING".into(), message: problem.clone() });
                told.push(problem);
            }
        }
        Arc::new(Registry::new(self.config.tools.iter().cloned().chain(tools)))
    }

    /// Removes what crashed calls left outside the log, once their results are durable.
    fn clear_answered(&self, turn: &TurnContext) {
        let folder = self.config.calls.join(self.session.to_string());
        // No folder is the ordinary case: a call that ends takes its own along.
        let Ok(entries) = std::fs::read_dir(&folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(call_id) = name.to_str().and_then(|name| name.parse::<CallId>().ok()) else { continue };
            let is_answered = turn.conversation(|conversation| {
                conversation
                    .call(&call_id)
                    .and_then(|call| call.results.last())
                    .is_some_and(|result| result.seq <= turn.durable())
            });
            if is_answered {
                // What cannot be removed now is tried again with the next turn.
                std::fs::remove_dir_all(entry.path()).ok();
            }
        }
        std::fs::remove_dir(&folder).ok();
    }

    fn open_call(&self, call: &Call) -> Option<OpenCall> {
        let entered = call.tool_call()?;
        Some(OpenCall {
            session: self.session,
            call_id: call.call_id.clone(),
            tool: entered.tool.clone(),
            input: entered.input.clone(),
            expect: entered.expect.clone(),
            host: entered.host.clone(),
            boot: entered.boot.clone(),
        })
    }
}

impl NativeDriver {
    /// A turn with its tools; none if it is cancelled before they have started.
    async fn begin(&self, turn: &TurnContext) -> Option<Turn> {
        tokio::select! {
            biased;
            () = turn.cancel().cancelled() => None,
            ready = Turn::new(turn.clone(), self.0.clone()) => Some(ready),
        }
    }
}

#[async_trait]
impl Driver for NativeDriver {
    async fn run(&self, turn: &TurnContext) -> Ended {
        self.0.clear_answered(turn);
        match self.begin(turn).await {
            Some(ready) => ready.run().await,
            None => Ended::because(EndReason::Cancelled),
        }
    }

    async fn compact(&self, turn: &TurnContext) -> Result<bool> {
        match self.begin(turn).await {
            Some(ready) => ready.compact(None).await,
            None => Err(stopped(Stopped::Cancelled)),
        }
    }

    async fn evidence(&self, conversation: &Conversation, end: bool) -> Evidence {
        let scope = self.0.scope(conversation.cwd().to_owned());
        let mut evidence = Evidence::default();
        for call in conversation.open_calls().filter(|call| !call.open_in_parent) {
            let Some(open) = self.0.open_call(call) else { continue };
            // Another machine's files and processes are not ours to judge by.
            if !open.host.is_empty() && open.host != self.0.machine.host {
                continue;
            }
            let Ok(tool) = self.0.built_in.get(&open.tool) else { continue };
            let finding = match tool.evidence(&open, &scope, end).await {
                Known::Nothing => continue,
                Known::Result(output) => {
                    Finding::Result { outcome: output.outcome, code: output.code, content: output.content }
                }
                Known::Running { .. } => Finding::Running,
                Known::Ended { output, by_us: true } => Finding::Stopped { output },
                Known::Ended { output, by_us: false } => Finding::Gone { output },
            };
            evidence.calls.insert(open.call_id, finding);
        }
        evidence
    }

    async fn configure(&self, conversation: &Conversation) -> Result<()> {
        let name = conversation.settings().model.as_deref();
        let model = self.0.config.models.model(name).map_err(RuntimeError::Driver)?;
        *lock(&self.0.model) = model;
        Ok(())
    }

    async fn close(&self) {
        if let Some(more) = &self.0.config.more_tools {
            more.close().await;
        }
    }
}
