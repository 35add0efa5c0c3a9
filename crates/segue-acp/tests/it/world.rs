//! A store, a working folder and a scripted agent of a test's own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use segue_acp::drive::{AgentConfig, HostedConfig, HostedDrivers};
use segue_log::{Block, Conversation, Event, PermissionOutcome, PromptFor, SessionId};
use segue_runtime::permission::{Answer, Asker, Level, Question, Rules};
use segue_runtime::{Machine, NewPrompt, NewSession, Options, Outcome, Session, Sessions};
use segue_store::{JsonlStore, Store};
use segue_testkit::fake_agent::{FakeAgent, Script};
use tempfile::TempDir;

/// How long anything is waited for before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct World {
    folder: TempDir,
    pub agent: FakeAgent,
    pub config: AgentConfig,
    pub level: Level,
    pub asker: Option<Arc<dyn Asker>>,
}

impl World {
    pub fn new(script: Script) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        let agent = FakeAgent::new(&folder.path().join("agent"), &script);
        let mut config = AgentConfig::new("fake", agent.program());
        config.args = agent.args();
        config.init_timeout = Duration::from_secs(20);
        config.cancel_timeout = Duration::from_secs(2);
        Self { folder, agent, config, level: Level::All, asker: None }
    }

    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work").canonicalize().unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn store(&self) -> Arc<dyn Store> {
        Arc::new(JsonlStore::open(&self.path("data")))
    }

    /// Sessions as another start of this program would have them.
    pub fn sessions(&self) -> Sessions {
        let hosted = HostedConfig {
            agents: BTreeMap::from([("fake".to_owned(), self.config.clone())]),
            folder: self.path("data/agents"),
            exec: Vec::new(),
            version: "test".into(),
        };
        let options = Options {
            surface: "test".into(),
            level: Some(self.level),
            rules: Rules::default(),
            asker: self.asker.clone(),
            machine: Machine { host: "test-host".into(), boot: "test-boot".into() },
            ..Options::default()
        };
        std::fs::create_dir_all(&hosted.folder).unwrap();
        Sessions::new(self.store(), Arc::new(HostedDrivers::new(hosted)), options)
    }

    pub async fn begin(&self) -> Session {
        let new = NewSession { cwd: self.work(), agent: "fake".into(), ..NewSession::default() };
        self.sessions().create(new).await.unwrap()
    }

    pub async fn reopen(&self, id: SessionId) -> Session {
        self.sessions().open(id).await.unwrap().0
    }

    /// The log as it stands on disk.
    pub async fn log(&self, id: SessionId) -> Conversation {
        let read = self.store().read(id, 1).await.unwrap();
        Conversation::of(read.header, &read.records)
    }

    /// The types of the records on disk, with what tells them apart.
    pub async fn records(&self, id: SessionId) -> Vec<String> {
        let read = self.store().read(id, 1).await.unwrap();
        read.records.iter().map(|record| brief(&record.event)).collect()
    }
}

fn brief(event: &Event) -> String {
    match event {
        Event::AgentBound(data) => match &data.owes {
            Some(owes) => format!("agent/bound {} owes {owes}", data.how),
            None => format!("agent/bound {}", data.how),
        },
        Event::AgentResumed(data) => format!("agent/resumed {} {}", data.strategy, data.outcome),
        Event::AgentUpdate(data) => {
            format!("agent/update {}", data.update["sessionUpdate"].as_str().unwrap_or("?"))
        }
        Event::ToolResult(data) => match &data.code {
            Some(code) => format!("tool/result {code}"),
            None => "tool/result ok".into(),
        },
        Event::TurnEnd(data) => match &data.code {
            Some(code) => format!("turn/end {} {code}", data.reason.as_str()),
            None => format!("turn/end {}", data.reason.as_str()),
        },
        event => event.kind().to_owned(),
    }
}

/// Prompts, and waits for the turn's end.
pub async fn ask(session: &Session, text: &str) -> Outcome {
    let prompt = NewPrompt {
        id: None,
        content: vec![Block::text(text)],
        source: "test".into(),
        target: PromptFor::Turn,
    };
    let accepted = session.prompt(prompt).await.unwrap();
    tokio::time::timeout(PATIENCE, session.wait(&accepted.prompt_id)).await.unwrap().unwrap()
}

/// Prompts, and gives the answer.
pub async fn answer(session: &Session, text: &str) -> String {
    let outcome = ask(session, text).await;
    assert_eq!(outcome.end.reason.as_str(), "completed", "{outcome:?}");
    session.answer_text(outcome.turn)
}

/// Says the same to every question.
pub struct Says(pub PermissionOutcome);

#[async_trait]
impl Asker for Says {
    async fn ask(&self, _question: &Question) -> Option<Answer> {
        Some(Answer { outcome: self.0, reason: None, by: "test".into() })
    }
}

/// True while a process of this id lives.
pub fn lives(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "not {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
