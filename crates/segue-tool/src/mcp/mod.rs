//! Tools of MCP servers: child processes that speak MCP over stdio, and servers reached by streamable HTTP.
//!
//! Each tool of a server is offered as `mcp__<server>__<tool>`. A call carries Segue's idempotency key,
//! `<session>/<callId>`, in the request's `_meta` under [`IDEMPOTENCY_KEY`], so that a server that keeps it can tell a
//! repeated call from a new one. A server that died is told of in the result of the call that found out, and started
//! again by the next.
//!
//! *Invariant:* a server is asked to run a tool only from [`Tool::run`], once for each call.

mod config;
mod connection;
mod content;
mod name;
mod process;
mod server;
mod tool;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use self::config::{ServerConfig, Transport};
use self::server::Server;
use self::tool::McpTool;
use crate::Tool;

/// The key of `_meta` in a `tools/call` request that holds the call's idempotency key.
pub const IDEMPOTENCY_KEY: &str = "segue/idempotencyKey";

/// Something about a server that the person should know; the session goes on without what it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The server's name in the config.
    pub server: String,
    /// What is wrong; may have several lines (the end of the server's stderr).
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MCP server {}: {}", self.server, self.message)
    }
}

/// The servers of a session.
///
/// Dropping it kills the servers that run as child processes; [`McpServers::close`] lets them leave by themselves first.
pub struct McpServers {
    servers: Vec<Arc<Server>>,
}

impl McpServers {
    /// Starts or connects to all of them at once and lists their tools. One that fails keeps nobody from working:
    /// [`McpServers::problems`] says why it offers nothing.
    pub async fn start(configs: Vec<ServerConfig>) -> Self {
        let servers: Vec<Arc<Server>> =
            configs.into_iter().map(|config| Arc::new(Server::new(config))).collect();
        futures::future::join_all(servers.iter().map(|server| server.start())).await;
        Self { servers }
    }

    /// The tools as the servers list them now; a server may change its list at any time. In the order of the configs and
    /// of each server's list.
    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        self.offers().0.into_iter().map(|tool| tool as Arc<dyn Tool>).collect()
    }

    /// What is wrong now: servers that could not be started, tools whose names collide, effects declared for tools that
    /// are not there.
    pub fn problems(&self) -> Vec<Problem> {
        self.offers().1
    }

    /// Closes the servers' input, waits a little for them to leave, and ends what is left of their process groups.
    pub async fn close(self) {
        futures::future::join_all(self.servers.iter().map(|server| server.close())).await;
    }

    fn offers(&self) -> (Vec<Arc<McpTool>>, Vec<Problem>) {
        let mut tools: Vec<Arc<McpTool>> = Vec::new();
        let mut problems = Vec::new();
        let mut taken: BTreeMap<String, String> = BTreeMap::new();
        for server in &self.servers {
            let mut problem =
                |message: String| problems.push(Problem { server: server.name().to_owned(), message });
            if let Some(fault) = server.listing().fault() {
                problem(fault);
            }
            let listed = server.listing().tools();
            for tool in listed.iter() {
                let offered = name::offered(server.name(), &tool.name);
                let whose = format!("{:?} of {}", tool.name, server.name());
                if let Some(first) = taken.get(&offered) {
                    problem(format!("tool {whose} is left out: its name {offered} is taken by {first}"));
                    continue;
                }
                taken.insert(offered.clone(), whose);
                tools.push(Arc::new(McpTool::new(offered, Arc::clone(server), tool)));
            }
            if server.listing().is_known() {
                for tool in server.config().effects.keys() {
                    if !listed.iter().any(|listed| listed.name == *tool) {
                        problem(format!(
                            "an effect is declared for {tool:?}, but the server has no such tool"
                        ));
                    }
                }
            }
        }
        (tools, problems)
    }
}
