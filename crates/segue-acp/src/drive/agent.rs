//! One started agent: initialized, asked what it can, and spoken to between turns.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::config::{AgentConfig, HostedConfig};
use super::leftovers::stop;
use super::process::{AgentProcess, Start};
use super::rpc::{Incoming, NoAnswer, Peer};

/// What an agent says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct About {
    /// Its name, if it tells.
    pub name: String,
    /// Its version, if it tells.
    pub version: String,
    /// Its `agentCapabilities`, raw.
    pub capabilities: Value,
    /// Its `authMethods`, raw.
    pub auth_methods: Value,
}

impl About {
    /// From the result of `initialize`.
    pub fn of(result: &Value) -> Self {
        let info = |key: &str| {
            let text = result.get("agentInfo").and_then(|info| info.get(key)).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        Self {
            name: info("name"),
            version: info("version"),
            capabilities: result.get("agentCapabilities").cloned().unwrap_or(Value::Null),
            auth_methods: result.get("authMethods").cloned().unwrap_or(Value::Null),
        }
    }

    /// True if a capability is there: `true`, or an object.
    pub fn can(&self, pointer: &str) -> bool {
        self.capabilities
            .pointer(pointer)
            .is_some_and(|value| value.is_object() || *value == Value::Bool(true))
    }

    /// True for the adapters of Claude, which resume by `_meta` too.
    pub fn is_claude(&self) -> bool {
        self.name.contains("claude") || self.can("/_meta/claudeCode")
    }

    /// How one logs in, in the agent's own words.
    pub fn login_instructions(&self) -> String {
        let methods = self.auth_methods.as_array().into_iter().flatten();
        let lines: Vec<String> = methods
            .map(|method| {
                let text = |key: &str| method.get(key).and_then(Value::as_str).unwrap_or_default();
                let description = text("description");
                let more = if description.is_empty() { String::new() } else { format!(": {description}") };
                format!("  {} ({}){more}", text("name"), text("id"))
            })
            .collect();
        if lines.is_empty() {
            "It names no way to log in; run it by itself once and log in there.".to_owned()
        } else {
            format!("Its ways to log in:\n{}", lines.join("\n"))
        }
    }
}

/// Why there is no running agent.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program is not there.
    #[error("the agent {name} cannot be started: there is no program {command}")]
    NotInstalled {
        /// The agent.
        name: String,
        /// The program.
        command: String,
    },
    /// It cannot be run.
    #[error("the agent {name} cannot be started: {source}")]
    Io {
        /// The agent.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// It ended before it was ready.
    #[error("the agent {name} ended before it was ready{account}")]
    Died {
        /// The agent.
        name: String,
        /// How, and its last words.
        account: String,
    },
    /// It did not get ready in time.
    #[error("the agent {name} was not ready within {limit:?}; `init_timeout_ms` allows more{account}")]
    TimedOut {
        /// The agent.
        name: String,
        /// How long it was given.
        limit: Duration,
        /// Its last words.
        account: String,
    },
    /// It refused to be initialized or authenticated.
    #[error("the agent {name} refused {method}: {words}")]
    Refused {
        /// The agent.
        name: String,
        /// What it refused.
        method: &'static str,
        /// In its words.
        words: String,
    },
    /// It speaks another version.
    #[error("the agent {name} speaks version {version} of ACP, and this program only 1")]
    Version {
        /// The agent.
        name: String,
        /// The version it answered with.
        version: String,
    },
}

impl StartError {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotInstalled { .. } => "AGENT_NOT_INSTALLED",
            Self::Refused { method: "authenticate", .. } => "AGENT_LOGIN",
            Self::TimedOut { .. } => "AGENT_TIMED_OUT",
            _ => "AGENT_FAILED",
        }
    }
}

/// A running, initialized agent.
pub struct Agent {
    /// The way to it.
    pub peer: Peer,
    /// What it sends by itself.
    pub incoming: mpsc::Receiver<Incoming>,
    /// What it said of itself.
    pub about: About,
    /// The conversation that is active in it.
    pub session: Option<String>,
    /// Updates that came while nothing was asked of it.
    pub early: Vec<Value>,
    process: AgentProcess,
    token: String,
}

impl Agent {
    /// Starts an agent and gets it ready. `label` names this start in its token, `note` is where that is noted.
    pub async fn start(
        shared: &HostedConfig,
        config: &AgentConfig,
        cwd: &Path,
        label: &str,
        note: impl FnOnce(&str) -> std::io::Result<std::path::PathBuf>,
    ) -> Result<Self, StartError> {
        let name = || config.name.clone();
        let io = |source| StartError::Io { name: name(), source };
        let start_id = Uuid::new_v4().simple().to_string();
        let token = format!("{label}/{start_id}");
        let mut line = shared.exec.clone();
        if !line.is_empty() {
            line.push(std::process::id().to_string().into());
        }
        let Some(program) = find_program(config) else {
            let command = config.command.display().to_string();
            return Err(StartError::NotInstalled { name: name(), command });
        };
        line.push(program.into_os_string());
        line.extend(config.args.iter().map(OsString::from));
        let start = Start {
            line,
            makes_session: !shared.exec.is_empty(),
            cwd: config.cwd.as_deref().unwrap_or(cwd),
            env: config.env.iter().map(|(key, value)| (key.as_os_str(), value.as_os_str())).collect(),
            token: token.clone(),
            note: note(&start_id).map_err(io)?,
        };
        let (process, (stdin, stdout)) = AgentProcess::start(start).await.map_err(io)?;
        let words = process.words();
        let (peer, incoming) = Peer::new(stdin, stdout, move |line| words.noise(line));
        let nothing = About::of(&Value::Null);
        let mut agent =
            Self { peer, incoming, about: nothing, session: None, early: Vec::new(), process, token };
        match agent.get_ready(shared, config).await {
            Ok(()) => Ok(agent),
            Err(error) => {
                agent.kill(config).await;
                Err(error)
            }
        }
    }

    async fn get_ready(&mut self, shared: &HostedConfig, config: &AgentConfig) -> Result<(), StartError> {
        let hello = json!({
            "protocolVersion": 1,
            "clientCapabilities": {
                "fs": {"readTextFile": true, "writeTextFile": true},
                "terminal": false,
                "session": {"configOptions": {"boolean": {}}, "notices": {}, "compaction": {}},
            },
            "clientInfo": {"name": "segue", "title": "Segue", "version": shared.version},
        });
        let result = self.must("initialize", hello, config).await?;
        if result.get("protocolVersion") != Some(&json!(1)) {
            let version = result.get("protocolVersion").map(ToString::to_string).unwrap_or_default();
            return Err(StartError::Version { name: config.name.clone(), version });
        }
        self.about = About::of(&result);
        if let Some(method) = &config.auth {
            self.must("authenticate", json!({"methodId": method}), config).await?;
        }
        Ok(())
    }

    async fn must(
        &mut self,
        method: &'static str,
        params: Value,
        config: &AgentConfig,
    ) -> Result<Value, StartError> {
        let name = config.name.clone();
        match self.ask(method, params, config.init_timeout).await {
            Ok((result, _)) => Ok(result),
            Err(NoAnswer::Refused(refusal)) => {
                let mut words = refusal.words();
                if method == "authenticate" {
                    words = format!("{words}\n{}", self.about.login_instructions());
                }
                Err(StartError::Refused { name, method, words })
            }
            Err(NoAnswer::Closed) => Err(StartError::Died { name, account: self.account().await }),
            Err(NoAnswer::TimedOut) => {
                let account = self.account().await;
                Err(StartError::TimedOut { name, limit: config.init_timeout, account })
            }
        }
    }

    /// Asks something between turns. Gives the result and the updates of sessions that came before it, raw. Requests of
    /// the agent are refused: there is no turn that they could be part of.
    pub async fn ask(
        &mut self,
        method: &str,
        params: Value,
        limit: Duration,
    ) -> Result<(Value, Vec<Value>), NoAnswer> {
        let deadline = Instant::now() + limit;
        let mut updates = Vec::new();
        let mut answer = tokio::select! {
            answer = self.peer.request(method, params) => answer,
            () = sleep_until(deadline) => return Err(NoAnswer::TimedOut),
        };
        loop {
            tokio::select! {
                biased;
                Some(message) = self.incoming.recv() => self.take_between(message, &mut updates).await,
                result = answer.wait() => {
                    while let Ok(message) = self.incoming.try_recv() {
                        self.take_between(message, &mut updates).await;
                    }
                    return result.map(|result| (result, updates));
                }
                () = sleep_until(deadline) => return Err(NoAnswer::TimedOut),
            }
        }
    }

    async fn take_between(&self, message: Incoming, updates: &mut Vec<Value>) {
        match message {
            Incoming::Notification { method, mut params } if method == "session/update" => {
                updates.extend(params.get_mut("update").map(Value::take));
            }
            Incoming::Notification { method, params } => {
                updates.push(json!({"method": method, "params": params}));
            }
            Incoming::Request { id, method, .. } => {
                let answer = match method.as_str() {
                    "session/request_permission" => Ok(json!({"outcome": {"outcome": "cancelled"}})),
                    _ => Err((-32603, "no turn is running".to_owned())),
                };
                self.peer.answer(&id, answer).await;
            }
        }
    }

    /// Takes what came since the last turn; false if the agent is gone.
    pub async fn catch_up(&mut self) -> bool {
        let mut updates = Vec::new();
        let is_there = loop {
            match self.incoming.try_recv() {
                Ok(message) => self.take_between(message, &mut updates).await,
                Err(mpsc::error::TryRecvError::Empty) => break self.process.is_running(),
                Err(mpsc::error::TryRecvError::Disconnected) => break false,
            }
        };
        self.early.append(&mut updates);
        is_there
    }

    /// How it ended and its last words.
    pub async fn account(&mut self) -> String {
        if self.process.is_running() {
            // What it said is worth telling while it still runs, too.
            tokio::task::yield_now().await;
        }
        self.process.account().await
    }

    /// Ends it in order.
    pub async fn end(self, config: &AgentConfig) -> bool {
        let Self { peer, incoming, process, token, .. } = self;
        // The last handle on its input: it sees the end of it.
        drop((peer, incoming));
        let all_gone = process.end().await;
        after(config, &token).await;
        all_gone
    }

    /// Ends it at once.
    pub async fn kill(self, config: &AgentConfig) -> bool {
        let all_gone = self.process.kill().await;
        after(config, &self.token).await;
        all_gone
    }
}

/// What was started elsewhere does not always end with what reached for it.
async fn after(config: &AgentConfig, token: &str) {
    // It has been ended once already; a failure shows at the next resume, if at all.
    stop(config, token).await.map(Result::ok);
}

/// Where an agent's program is: as it is written, or a bare name in the agent's own `PATH`. None if it is not there.
pub fn find_program(config: &AgentConfig) -> Option<PathBuf> {
    let command = &config.command;
    if command.components().count() > 1 {
        return command.exists().then(|| command.clone());
    }
    let path = config.env.get(OsStr::new("PATH"))?;
    std::env::split_paths(path).map(|folder| folder.join(command)).find(|found| found.is_file())
}

/// What a look at an agent found.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// What it says of itself.
    pub about: About,
    /// The ways by which it says it can be resumed, in the order they are tried.
    pub ways: Vec<&'static str>,
    /// Its modes and options, as a new session tells them; or why there is none.
    pub session: Result<Value, String>,
}

/// Starts an agent, asks what it can, makes a session that is never prompted, and ends it.
///
/// # Errors
/// [`StartError`] if it does not get ready.
pub async fn inspect(shared: &HostedConfig, name: &str, cwd: &Path) -> Result<Inspection, StartError> {
    let (config, mut agent) = start_to_look(shared, name, cwd).await?;
    let about = agent.about.clone();
    let params = json!({"cwd": config.path_there(cwd), "mcpServers": []});
    let session = match agent.ask("session/new", params, config.init_timeout).await {
        Ok((result, _)) => Ok(result),
        Err(NoAnswer::Refused(refusal)) if refusal.code == -32000 => {
            Err(format!("login needed: {}\n{}", refusal.words(), about.login_instructions()))
        }
        Err(NoAnswer::Refused(refusal)) => Err(refusal.words()),
        Err(NoAnswer::Closed) => Err(format!("it ended{}", agent.account().await)),
        Err(NoAnswer::TimedOut) => Err("it did not answer in time".into()),
    };
    let ways = super::resume::ways_of(&about, &[]).into_iter().map(|way| way.as_str()).collect();
    agent.end(&config).await;
    Ok(Inspection { about, ways, session })
}

/// A conversation that an agent has of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// Its id.
    pub id: String,
    /// Its folder.
    pub cwd: String,
    /// Its title.
    pub title: String,
    /// When it was last changed, as the agent writes it.
    pub updated: String,
}

/// The agent's own past conversations of a folder, or of all; none if it cannot list them.
///
/// # Errors
/// [`StartError`] if it does not get ready or refuses.
pub async fn list_sessions(
    shared: &HostedConfig,
    name: &str,
    cwd: &Path,
    everywhere: bool,
) -> Result<Option<Vec<Listed>>, StartError> {
    let (config, mut agent) = start_to_look(shared, name, cwd).await?;
    if !agent.about.can("/sessionCapabilities/list") {
        agent.end(&config).await;
        return Ok(None);
    }
    let mut rows = Vec::new();
    let mut cursor = Value::Null;
    let result = loop {
        let mut params = json!({});
        if let Value::Object(params) = &mut params {
            if !everywhere {
                params.insert("cwd".into(), json!(config.path_there(cwd)));
            }
            if !cursor.is_null() {
                params.insert("cursor".into(), cursor.clone());
            }
        }
        let mut page = match agent.must("session/list", params, &config).await {
            Ok(page) => page,
            Err(error) => break Err(error),
        };
        for row in page.get("sessions").and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            rows.push(Listed {
                id: text("sessionId"),
                cwd: text("cwd"),
                title: text("title"),
                updated: text("updatedAt"),
            });
        }
        let next = page.get_mut("nextCursor").map(Value::take).unwrap_or_default();
        // One that does not move would never end.
        if next.is_null() || next == cursor {
            break Ok(Some(rows));
        }
        cursor = next;
    };
    agent.end(&config).await;
    result
}

pub(super) async fn start_to_look(
    shared: &HostedConfig,
    name: &str,
    cwd: &Path,
) -> Result<(AgentConfig, Agent), StartError> {
    let Some(config) = shared.agents.get(name).cloned() else {
        return Err(StartError::NotInstalled { name: name.to_owned(), command: name.to_owned() });
    };
    let folder = shared.folder.join("looks");
    let agent = Agent::start(shared, &config, cwd, "look", |start| {
        std::fs::create_dir_all(&folder)?;
        Ok(folder.join(format!("{start}.json")))
    })
    .await?;
    Ok((config, agent))
}
