//! What a hosted agent is, and how it is gone on with.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

/// One agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Its name in the configuration.
    pub name: String,
    /// The program.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its whole environment; nothing else is passed on.
    pub env: BTreeMap<OsString, OsString>,
    /// The folder its process starts in; the session's if none is named.
    pub cwd: Option<PathBuf>,
    /// The one way by which it is resumed, where not what it says of itself decides.
    pub resume_by: ResumeBy,
    /// A command that ends what was started elsewhere (a container, another machine). The token of the start is in its
    /// environment.
    pub stop: Vec<String>,
    /// Folders here and where the agent sees them.
    pub path_map: Vec<(PathBuf, String)>,
    /// The authentication method to use right after `initialize`.
    pub auth: Option<String>,
    /// How long it may take to start and to make or find a session.
    pub init_timeout: Duration,
    /// How long a cancelled turn may take to end before the agent is ended.
    pub cancel_timeout: Duration,
    /// How long it is kept running without a prompt.
    pub idle_timeout: Duration,
    /// MCP servers that it is told of, as ACP writes them.
    pub mcp_servers: Vec<Value>,
    /// The mode that its sessions run in.
    pub mode: Option<String>,
    /// Values of its config options by their ids.
    pub options: BTreeMap<String, String>,
    /// Text that it adds to its system prompt, if it takes any.
    pub system_prompt: Option<String>,
    /// How a lost conversation is gone on with.
    pub policy: ResumePolicy,
}

impl AgentConfig {
    /// An agent run by this command, with an empty environment and defaults.
    pub fn new(name: impl Into<String>, command: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            resume_by: ResumeBy::Auto,
            stop: Vec::new(),
            path_map: Vec::new(),
            auth: None,
            init_timeout: Duration::from_secs(60),
            cancel_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(600),
            mcp_servers: Vec::new(),
            mode: None,
            options: BTreeMap::new(),
            system_prompt: None,
            policy: ResumePolicy::default(),
        }
    }

    /// True if the command only reaches for another place, where its processes cannot be seen from here.
    pub fn runs_elsewhere(&self) -> bool {
        const REACHING: [&str; 6] = ["ssh", "docker", "podman", "nerdctl", "kubectl", "mosh"];
        let name = self.command.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        !self.path_map.is_empty() || !self.stop.is_empty() || REACHING.contains(&name)
    }

    /// Where the agent sees a path.
    pub fn path_there(&self, path: &Path) -> String {
        for (here, there) in &self.path_map {
            if let Ok(rest) = path.strip_prefix(here) {
                let there = there.trim_end_matches('/');
                return match rest.to_str() {
                    Some("") => there.to_owned(),
                    _ => format!("{there}/{}", rest.display()),
                };
            }
        }
        path.display().to_string()
    }

    /// Where a path of the agent is here.
    pub fn path_here(&self, path: &str) -> PathBuf {
        for (here, there) in &self.path_map {
            if let Ok(rest) = Path::new(path).strip_prefix(there) {
                return here.join(rest);
            }
        }
        PathBuf::from(path)
    }
}

/// The way an agent is resumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ResumeBy {
    /// What the agent says it can, the cheapest first.
    #[default]
    Auto,
    /// `session/resume`.
    Resume,
    /// `session/load`.
    Load,
    /// `session/new` that names the conversation in `_meta`, as Claude's adapters take it.
    Meta,
    /// A new conversation that is told the past.
    Rehydrate,
    /// A new conversation that is told nothing.
    None,
}

/// What is done when an agent cannot go on where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumePolicy {
    /// A conversation that the agent has lost is gone on with in a new one; else that is an error.
    pub enable_fallback: bool,
    /// Further tries of the same way after a passing failure.
    pub max_retries: u32,
    /// The MCP servers are told again on every way.
    pub preserve_mcp_servers: bool,
    /// A new conversation is told the past.
    pub rehydrate: bool,
}

impl Default for ResumePolicy {
    fn default() -> Self {
        Self { enable_fallback: true, max_retries: 2, preserve_mcp_servers: true, rehydrate: true }
    }
}

/// All agents, and what their drivers share.
#[derive(Debug, Clone)]
pub struct HostedConfig {
    /// By name.
    pub agents: BTreeMap<String, AgentConfig>,
    /// Where what must outlive this process is noted: which agents run, and what an agent turned out not to support.
    pub folder: PathBuf,
    /// What an agent's command line is put behind: a program that calls [`exec_agent`](super::exec_agent) with the rest
    /// of its arguments. Without one an agent gets a group of its own but no session, and outlives a killed host.
    pub exec: Vec<OsString>,
    /// This program's version, as agents are told it.
    pub version: String,
}
