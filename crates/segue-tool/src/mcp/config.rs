//! What is said of a server in the config.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use segue_log::Effect;

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Its name, the middle part of its tools' names.
    pub name: String,
    /// How it is reached.
    pub transport: Transport,
    /// What its tools may do to the world, by the server's own names for them; a tool not named here may do anything. What
    /// the server says of itself is not believed.
    pub effects: BTreeMap<String, Effect>,
    /// Variables of this process that a child does not inherit, such as those that hold the keys of models.
    pub hidden_env: Vec<String>,
    /// How long a call may take.
    pub timeout: Duration,
    /// How long the server may take to start and list its tools.
    pub start_timeout: Duration,
}

impl ServerConfig {
    /// How long a call may take where the config says nothing.
    pub const TIMEOUT: Duration = Duration::from_secs(120);
    /// How long a start may take.
    pub const START_TIMEOUT: Duration = Duration::from_secs(30);

    /// A server of which nothing more is said.
    pub fn new(name: impl Into<String>, transport: Transport) -> Self {
        Self {
            name: name.into(),
            transport,
            effects: BTreeMap::new(),
            hidden_env: Vec::new(),
            timeout: Self::TIMEOUT,
            start_timeout: Self::START_TIMEOUT,
        }
    }

    /// What a tool of it may do.
    pub fn effect(&self, tool: &str) -> Effect {
        self.effects.get(tool).copied().unwrap_or(Effect::Write)
    }
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// A child process that speaks MCP on its standard input and output.
    Stdio {
        /// The program; looked up in `PATH` unless it has a slash.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables added to the environment that it inherits; a hidden one can be given back here.
        env: BTreeMap<String, String>,
        /// Its working folder; none for that of this process.
        cwd: Option<PathBuf>,
    },
    /// A server that speaks streamable HTTP.
    Http {
        /// Its address.
        url: String,
        /// Headers of every request. Their values are never shown.
        headers: BTreeMap<String, String>,
    },
}
