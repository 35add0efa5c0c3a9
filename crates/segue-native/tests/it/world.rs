//! A session's whole world for tests: a folder with data and work, a model server, tools that leave traces, and short
//! ways to prompt, to wait and to read the log back from disk.

mod sim;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use segue_log::{
    Block, CallId, Conversation, PermissionOutcome, Policy, PromptFor, PromptId, Record, SessionId,
};
use segue_model::{Api, Model, Parameters, ProviderConfig, connect};
use segue_native::{Models, NativeConfig, NativeDrivers, RetryPolicy};
use segue_runtime::permission::{Answer, Asker, Level, Question, Rules};
use segue_runtime::{Machine, NewPrompt, NewSession, Options, Outcome, Session, Sessions};
use segue_store::{Files, JsonlStore, ReadLog, RealFiles, Store};
use segue_testkit::disk::{Hook, Op, OpKind, Verdict, watched};
use segue_testkit::{ModelServer, Wire};
use segue_tool::{BuiltinOptions, Tool, builtin_tools};
use tempfile::TempDir;

pub use sim::{Sim, calm};
pub use tools::{Count, Gate, Look, Moments, Relay, Slow};

/// How long anything is waited for before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The machine that test calls run on.
pub const HOST: &str = "test-host";

/// A folder and a model server of their own.
pub struct World {
    /// Ends with the world.
    _folder: TempDir,
    /// Answers requests.
    pub server: ModelServer,
    /// Where everything is.
    pub place: Place,
}

impl World {
    /// A world on real files.
    pub fn new(wire: Wire) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = ModelServer::start_blocking();
        let place = Place::new(folder.path(), server.url(), wire);
        Self { _folder: folder, server, place }
    }

    /// Sessions with default parts and everything permitted.
    pub fn sessions(&self) -> Sessions {
        self.place.sessions(Parts::default())
    }

    /// Sessions with these parts.
    pub fn sessions_with(&self, parts: Parts) -> Sessions {
        self.place.sessions(parts)
    }

    /// The lines that calls of `count` and `look` left, in order: what really ran.
    pub fn ran(&self) -> Vec<String> {
        self.place.ran()
    }

    /// The session's log as it stands on disk.
    pub async fn log(&self, id: SessionId) -> ReadLog {
        self.place.log(id).await
    }

    /// The fold of the session's log as it stands on disk.
    pub async fn conversation(&self, id: SessionId) -> Conversation {
        fold(&self.log(id).await)
    }

    /// How many syncs of logs there were so far.
    pub fn syncs(&self) -> usize {
        self.place.syncs.count()
    }
}

/// Where a world is: all that another process needs to enter it.
#[derive(Clone)]
pub struct Place {
    /// The store's folder.
    pub data: PathBuf,
    /// The working folder.
    pub work: PathBuf,
    /// The model server's address.
    pub url: String,
    /// What it is spoken to in.
    pub wire: Wire,
    /// The store's files.
    pub files: Arc<dyn Files>,
    /// Counts the syncs of logs.
    pub syncs: Arc<CountSyncs>,
}

impl Place {
    /// The place below `root`; its folders are made.
    pub fn new(root: &Path, url: String, wire: Wire) -> Self {
        let syncs = Arc::new(CountSyncs::default());
        let (data, work) = (root.join("data"), root.join("work"));
        std::fs::create_dir_all(&work).unwrap();
        Self { data, work, url, wire, files: watched(Arc::new(RealFiles), syncs.clone()), syncs }
    }

    /// The store.
    pub fn store(&self) -> JsonlStore {
        JsonlStore::with_files(&self.data, self.files.clone())
    }

    /// Sessions with these parts.
    pub fn sessions(&self, parts: Parts) -> Sessions {
        let machine = Machine { host: HOST.into(), boot: "test-boot".into() };
        let model = parts.model.clone().unwrap_or_else(|| self.model(parts.window));
        let mut tools = builtin_tools(BuiltinOptions::default());
        let moments = parts.moments.clone();
        let ran = self.ran_file();
        tools.push(Arc::new(Count { ran: ran.clone(), moments: moments.clone() }));
        tools.push(Arc::new(Look { ran, moments, gate: parts.gate.clone() }));
        tools.push(Arc::new(Slow));
        tools.push(Arc::new(Relay));
        tools.extend(parts.tools.iter().cloned());
        let config = NativeConfig {
            models: Arc::new(OneModel(model)),
            tools,
            more_tools: None,
            parameters: parts.parameters.clone(),
            max_steps: parts.max_steps,
            compact_at: parts.compact_at,
            retry: parts.retry,
            extra_folders: Vec::new(),
            calls: self.data.join("calls"),
        };
        let options = Options {
            surface: "test".into(),
            policy: parts.policy,
            level: parts.level,
            rules: parts.rules,
            asker: parts.asker,
            machine: machine.clone(),
            wait_for_survivors: parts.wait_for_survivors,
        };
        Sessions::new(Arc::new(self.store()), Arc::new(NativeDrivers::new(config, machine)), options)
    }

    /// The model that the server plays.
    pub fn model(&self, window: u64) -> Arc<dyn Model> {
        let (provider, api) = match self.wire {
            Wire::Anthropic => ("anthropic", Api::Anthropic),
            Wire::OpenAi => ("openai", Api::OpenAi),
            Wire::Responses => unreachable!("only hosted agents speak it"),
        };
        connect(&ProviderConfig::new(provider, api, &self.url), "test", Some(window)).unwrap()
    }

    /// The file that `count` and `look` append to.
    pub fn ran_file(&self) -> PathBuf {
        self.work.join("ran.txt")
    }

    /// Its lines.
    pub fn ran(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.ran_file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The ids of the calls of `count` and `look` that ran, in order.
    pub fn ran_calls(&self) -> Vec<CallId> {
        let text = std::fs::read_to_string(tools::calls_file(&self.ran_file())).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// The session's log as it stands on disk.
    pub async fn log(&self, id: SessionId) -> ReadLog {
        self.store().read(id, 1).await.unwrap()
    }

    /// The id of the one session of the store; none if there is none.
    pub async fn only_session(&self) -> Option<SessionId> {
        let ids = self.store().ids_with_prefix("", 2).await.unwrap();
        assert!(ids.len() < 2, "{ids:?}");
        ids.first().copied()
    }

    /// The log file of a session.
    pub fn log_file(&self, id: SessionId) -> PathBuf {
        self.store().folder(id).join("log.jsonl")
    }

    /// A session to be made here.
    pub fn new_session(&self) -> NewSession {
        NewSession {
            id: None,
            cwd: self.work.clone(),
            agent: "segue".into(),
            model: Some("test/test".into()),
        }
    }

    /// Makes a session here.
    pub async fn create(&self, sessions: &Sessions) -> Session {
        sessions.create(self.new_session()).await.unwrap()
    }
}

/// What sessions are made of, where it differs from test to test.
pub struct Parts {
    /// Which boundaries are made durable.
    pub policy: Policy,
    /// The permission level.
    pub level: Option<Level>,
    /// Permission rules.
    pub rules: Rules,
    /// Who is asked.
    pub asker: Option<Arc<dyn Asker>>,
    /// The model; none is the server's.
    pub model: Option<Arc<dyn Model>>,
    /// The server model's window, in tokens.
    pub window: u64,
    /// Further tools.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Told of moments inside tool bodies.
    pub moments: Moments,
    /// What `look` waits for.
    pub gate: Gate,
    /// Request parameters.
    pub parameters: Parameters,
    /// The most steps of a turn.
    pub max_steps: u64,
    /// The part of the window that brings a compaction.
    pub compact_at: f64,
    /// How failed requests are sent again.
    pub retry: RetryPolicy,
    /// True if survivors of a crash are waited for.
    pub wait_for_survivors: bool,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            policy: Policy::Semantic,
            level: Some(Level::All),
            rules: Rules::default(),
            asker: None,
            model: None,
            window: 200_000,
            tools: Vec::new(),
            moments: Moments::default(),
            gate: Gate::default(),
            parameters: Parameters::default(),
            max_steps: 20,
            compact_at: 0.8,
            retry: RetryPolicy {
                attempts: 3,
                base: Duration::from_millis(2),
                longest: Duration::from_millis(50),
            },
            wait_for_survivors: false,
        }
    }
}

/// One model, whatever its name.
pub struct OneModel(pub Arc<dyn Model>);

impl Models for OneModel {
    fn model(&self, _name: Option<&str>) -> Result<Arc<dyn Model>, String> {
        Ok(self.0.clone())
    }
}

/// Counts the syncs of logs that succeeded.
#[derive(Default)]
pub struct CountSyncs(AtomicUsize);

impl CountSyncs {
    /// How many there were.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Hook for CountSyncs {
    fn before(&self, _op: &Op) -> Verdict {
        Verdict::Go
    }

    fn after(&self, op: &Op) {
        if op.kind == OpKind::Sync && op.path.file_name().is_some_and(|name| name == "log.jsonl") {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Answers every question in the same way.
pub struct Says(pub PermissionOutcome);

#[async_trait]
impl Asker for Says {
    async fn ask(&self, _question: &Question) -> Option<Answer> {
        Some(Answer { outcome: self.0, reason: None, by: "test".into() })
    }
}

/// Never answers.
pub struct Silent;

#[async_trait]
impl Asker for Silent {
    async fn ask(&self, _question: &Question) -> Option<Answer> {
        std::future::pending().await
    }
}

/// A prompt of text, for a turn of its own.
pub fn says(text: &str) -> NewPrompt {
    NewPrompt { id: None, content: vec![Block::text(text)], source: "test".into(), target: PromptFor::Turn }
}

/// The same with an id of its own.
pub fn says_as(id: &str, text: &str) -> NewPrompt {
    NewPrompt { id: Some(prompt_id(id)), ..says(text) }
}

/// A prompt's id.
pub fn prompt_id(id: &str) -> PromptId {
    id.parse().unwrap()
}

/// Prompts and waits for the turn's end.
pub async fn run(session: &Session, prompt: NewPrompt) -> Outcome {
    let accepted = session.prompt(prompt).await.unwrap();
    within(session.wait(&accepted.prompt_id)).await.expect("the session stays open until the turn's end")
}

/// Finishes the interrupted turn and waits for the end of the one that goes on with it.
pub async fn finish(session: &Session) -> Outcome {
    let turn = session.finish().await.unwrap();
    within(session.wait_turn(turn)).await.expect("the session stays open until the turn's end")
}

/// Waits for something, but not for ever.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes less than a minute")
}

/// Looks until there is something to see.
pub async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(since.elapsed() < PATIENCE, "it did not come within a minute");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The fold of a log.
pub fn fold(log: &ReadLog) -> Conversation {
    Conversation::of(log.header.clone(), &log.records)
}

/// The types of records, in order.
pub fn kinds(records: &[Arc<Record>]) -> Vec<&str> {
    records.iter().map(|record| record.event.kind()).collect()
}

/// The answer that a turn gave: the text of its last message that has any.
pub fn answer_of(conversation: &Conversation, turn: u64) -> String {
    let steps = conversation.turn(turn).into_iter().flat_map(|turn| &turn.steps);
    let messages = steps.flat_map(|step| &step.messages).filter_map(|said| said.message());
    let mut texts = messages.map(|message| segue_log::text_of(&message.content));
    texts.rfind(|text| !text.is_empty()).unwrap_or_default()
}
