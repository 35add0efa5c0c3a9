//! The hosted agents of a configuration, as their drivers want them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use segue_acp::drive::{AgentConfig, HostedConfig, ResumeBy, ResumePolicy, find_program};
use serde_json::{Value, json};

use crate::app::App;
use crate::config::{Agent, Config, McpServer};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::nearest::nearest;

/// The hidden command that becomes an agent.
pub const EXEC: &str = "agent-exec";

/// Variables of ours that every agent gets: what programs need to find their way about, and nothing that opens anything.
const PLAIN: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "TERM",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
    "XDG_RUNTIME_DIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Where what must outlive the process is noted of agents, whatever store the sessions are in.
pub fn folder(app: &App) -> Result<PathBuf> {
    Ok(app.environment.data()?.join("agents"))
}

/// All agents of the configuration.
pub fn hosted(app: &App, config: &Config, cwd: &Path) -> Result<HostedConfig> {
    let agents = config
        .agents
        .iter()
        .map(|(name, agent)| (name.clone(), one(name, agent, config, &app.environment, cwd)))
        .collect();
    let exec = match std::env::current_exe() {
        Ok(own) => vec![own.into_os_string(), EXEC.into()],
        Err(_) => Vec::new(),
    };
    Ok(HostedConfig { agents, folder: folder(app)?, exec, version: env!("CARGO_PKG_VERSION").into() })
}

fn one(name: &str, agent: &Agent, config: &Config, environment: &Environment, cwd: &Path) -> AgentConfig {
    let ms = Duration::from_millis;
    let servers = agent.mcp.iter().filter_map(|name| Some((name, config.mcp.get(name)?)));
    AgentConfig {
        args: agent.args.clone(),
        env: variables(&agent.env, environment),
        cwd: agent.cwd.as_ref().map(|folder| cwd.join(folder)),
        resume_by: match agent.resume_by.as_str() {
            "resume" => ResumeBy::Resume,
            "load" => ResumeBy::Load,
            "meta" => ResumeBy::Meta,
            "rehydrate" => ResumeBy::Rehydrate,
            "none" => ResumeBy::None,
            _ => ResumeBy::Auto,
        },
        stop: agent.stop.clone(),
        path_map: agent.path_map.iter().map(|(here, there)| (here.into(), there.clone())).collect(),
        auth: agent.auth.clone(),
        init_timeout: ms(agent.init_timeout_ms),
        cancel_timeout: ms(agent.cancel_timeout_ms),
        idle_timeout: ms(agent.idle_timeout_ms),
        mcp_servers: servers.map(|(name, server)| mcp(name, server)).collect(),
        mode: agent.mode.clone(),
        options: agent.options.clone(),
        system_prompt: agent.system_prompt.clone(),
        policy: ResumePolicy {
            enable_fallback: agent.enable_fallback,
            max_retries: u32::try_from(agent.max_retries).unwrap_or(u32::MAX),
            preserve_mcp_servers: agent.preserve_mcp_servers,
            rehydrate: agent.rehydrate,
        },
        ..AgentConfig::new(name, agent.command.clone().unwrap_or_default())
    }
}

/// An agent's whole environment. A reference to a variable that is not set says nothing.
fn variables(own: &BTreeMap<String, String>, environment: &Environment) -> BTreeMap<OsString, OsString> {
    let plain = PLAIN.iter().filter_map(|name| Some(((*name).into(), environment.get(name)?.to_owned())));
    let mut all: BTreeMap<OsString, OsString> = plain.collect();
    for (name, value) in own {
        let value = match value.strip_prefix('$') {
            Some(rest) if rest.starts_with('$') => Some(rest.into()),
            Some(reference) => environment.get(reference).map(ToOwned::to_owned),
            None => Some(value.into()),
        };
        if let Some(value) = value {
            all.insert(name.into(), value);
        }
    }
    all
}

/// An MCP server as ACP writes it.
fn mcp(name: &str, server: &McpServer) -> Value {
    let pairs = |map: &BTreeMap<String, String>| -> Vec<Value> {
        map.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    match (&server.command, &server.url) {
        (Some(command), _) => {
            json!({"name": name, "command": command, "args": server.args, "env": pairs(&server.env)})
        }
        (None, url) => json!({"type": "http", "name": name, "url": url, "headers": pairs(&server.headers)}),
    }
}

/// Sees to it that an agent is configured and its program is there.
pub fn must_be_there<'a>(hosted: &'a HostedConfig, name: &str) -> Result<&'a AgentConfig> {
    let Some(agent) = hosted.agents.get(name) else {
        let names = hosted.agents.keys().map(String::as_str).chain([segue_native::AGENT]);
        let hint = match nearest(name, names) {
            Some(near) => format!("did you mean {near}? `segue agents list` names the agents"),
            None => format!("`segue agents list` names the agents; [agents.{name}] adds one"),
        };
        return Err(Error::config(format!("no agent {name:?} is configured"))
            .code("UNKNOWN_AGENT")
            .hint(hint));
    };
    if find_program(agent).is_none() {
        let what =
            format!("the agent {name} is not installed: there is no program {}", agent.command.display());
        let error = Error::config(what).code("AGENT_NOT_INSTALLED");
        return Err(match install(name) {
            Some(how) => error.hint(how),
            None => error.hint(format!("`command` under [agents.{name}] says which program it is")),
        });
    }
    Ok(agent)
}

/// How a known agent is installed.
pub fn install(name: &str) -> Option<&'static str> {
    crate::config::schema::AGENTS.iter().find(|known| known.name == name).map(|known| known.install)
}
