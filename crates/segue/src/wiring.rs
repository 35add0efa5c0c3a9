//! Puts the crates together: store, models, tools, the agent, sessions.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use segue_acp::drive::{HostedConfig, HostedDrivers, end_leftovers};
use segue_log::{Conversation, Effect, Policy, RepairOutcome, SessionId};
use segue_model::{Api, Model, Practice, ProviderConfig, Secret, connect};
use segue_native::{AGENT, Models, MoreTools, NativeConfig, NativeDrivers, RetryPolicy};
use segue_runtime::permission::{Level, Rule, Rules};
use segue_runtime::{Driver, Drivers, Machine, OpenReport, Options, Sessions};
use segue_store::{JsonlStore, Store};
use segue_tool::mcp::{McpServers, ServerConfig, Transport};
use segue_tool::sandbox::Sandbox;
use segue_tool::{BuiltinOptions, Tool, builtin_tools};

use crate::app::App;
use crate::config::{Config, Sourced};
use crate::environment::Environment;
use crate::error::{Error, Kind, Result};
use crate::models::{Choice, Endpoint, Reached, named};
use crate::output;
use crate::store_place::StorePlace;

/// The store at a place. Touches nothing.
pub fn store(place: &StorePlace) -> Arc<dyn Store> {
    Arc::new(JsonlStore::open(&place.folder))
}

/// Runs a command's asynchronous part on this thread.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    start(tokio::runtime::Builder::new_current_thread())?.block_on(work)
}

/// Runs a conversation, with a thread to spare: signals are heard while a tool keeps one busy.
pub fn block_on_threads<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2);
    let runtime = start(builder)?;
    let result = runtime.block_on(work);
    // Whatever still blocks a thread must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_millis(200));
    result
}

fn start(mut builder: tokio::runtime::Builder) -> Result<tokio::runtime::Runtime> {
    builder.enable_all().build().map_err(|error| {
        Error::new(Kind::Internal, format!("cannot start the asynchronous runtime: {error}"))
    })
}

/// What sessions are made of, beside their store.
pub struct Parts {
    /// The configuration for the session's folder.
    pub config: Config,
    /// Where models come from.
    pub models: Arc<dyn Models>,
    /// The session's folder.
    pub folder: PathBuf,
    /// The permission level, where this invocation decides it.
    pub level: Option<Level>,
    /// The surface, as leases and records name it.
    pub surface: &'static str,
}

/// Sessions of our own agent and of hosted ones.
pub fn sessions(app: &App, store: Arc<dyn Store>, parts: Parts) -> Result<Sessions> {
    let Parts { config, models, folder, level, surface } = parts;
    let machine = machine();
    let hosted = Arc::new(crate::agents::hosted(app, &config, &folder)?);
    let hidden_env = key_variables(&config);
    let sandbox = (config.sandbox != "off").then(|| Sandbox::detect(std::env::current_exe().ok()));
    let native = NativeConfig {
        models,
        tools: builtin_tools(BuiltinOptions {
            sandbox,
            hidden_env,
            command_timeout: Some(Duration::from_millis(config.bash_timeout_ms)),
        }),
        more_tools: mcp(&config, &folder),
        parameters: config.parameters.clone(),
        max_steps: config.max_steps,
        compact_at: config.compact_at,
        retry: RetryPolicy::default(),
        extra_folders: Vec::new(),
        calls: calls(app)?,
    };
    let options = Options {
        surface: surface.to_owned(),
        policy: if config.policy == "turn" { Policy::Turn } else { Policy::Semantic },
        level,
        rules: Rules { allow: rules(&config.allow)?, deny: rules(&config.deny)? },
        asker: None,
        machine: machine.clone(),
        wait_for_survivors: config.on_survivor == "wait",
    };
    let drivers = AllDrivers {
        native: NativeDrivers::new(native, machine),
        hosted: HostedDrivers::new(HostedConfig::clone(&hosted)),
        config: hosted,
    };
    Ok(Sessions::new(store, Arc::new(drivers), options))
}

/// Our own agent and the hosted ones, by the name that the log says.
struct AllDrivers {
    native: NativeDrivers,
    hosted: HostedDrivers,
    config: Arc<HostedConfig>,
}

#[async_trait]
impl Drivers for AllDrivers {
    async fn driver(&self, conversation: &Conversation) -> segue_runtime::Result<Arc<dyn Driver>> {
        match conversation.settings().agent.as_deref() {
            None | Some(AGENT) => {
                // A session that was carried over from a hosted agent: what that one left behind must not go on beside ours.
                if let Some(binding) = conversation.binding()
                    && !end_leftovers(&self.config, conversation.header().id, &binding.agent).await
                {
                    output::note("warning: the session's earlier agent may still be running");
                }
                self.native.driver(conversation).await
            }
            Some(_) => self.hosted.driver(conversation).await,
        }
    }
}

/// Where calls keep what must outlive the process, whatever store the sessions are in.
pub fn calls(app: &App) -> Result<PathBuf> {
    Ok(app.environment.data()?.join("calls"))
}

/// The variables that hold keys: what a model or a server runs gets none of them.
fn key_variables(config: &Config) -> Vec<String> {
    config.providers.values().filter_map(|provider| provider.key_env.clone()).collect()
}

fn rules(rules: &[Sourced<String>]) -> Result<Vec<Rule>> {
    let parse = |rule: &Sourced<String>| {
        rule.value.parse().map_err(|error| Error::config(format!("{}: {error}", rule.place)))
    };
    rules.iter().map(parse).collect()
}

fn machine() -> Machine {
    Machine { host: segue_store::host_name(), boot: segue_store::boot_id() }
}

/// Models by the names that logs, flags and files use.
pub struct ModelsByName {
    /// The configuration.
    pub config: Config,
    /// Where the keys are.
    pub environment: Environment,
    /// The model to take where none is named.
    pub choice: Choice,
    /// The model that the session's log names and `choice` takes the place of: it is asked for when the session opens,
    /// is never sent anything, and so need not be to be had any more.
    pub replaced: Option<String>,
}

impl Models for ModelsByName {
    fn model(&self, name: Option<&str>) -> Result<Arc<dyn Model>, String> {
        let other = match name {
            Some(name) if name != self.choice.full_name && self.replaced.as_deref() != Some(name) => {
                let found = named(&self.config, &self.environment, name, "the session");
                Some(found.map_err(|error| error.message)?)
            }
            _ => None,
        };
        reach(other.as_ref().unwrap_or(&self.choice)).map_err(|error| error.message)
    }
}

/// The model of a choice. Nothing is sent and nothing connected yet.
pub fn reach(choice: &Choice) -> Result<Arc<dyn Model>> {
    let Endpoint { provider, model, settings, key } = match &choice.reached {
        Reached::Practice => return Ok(Arc::new(Practice::new())),
        Reached::Endpoint(endpoint) => endpoint.as_ref(),
    };
    let api = if settings.api == "anthropic" { Api::Anthropic } else { Api::OpenAi };
    let mut endpoint = ProviderConfig::new(provider, api, &settings.base_url);
    if let Some((key, from)) = key {
        endpoint.key = Some(key.clone());
        endpoint.key_variable = Some(from.clone());
    }
    endpoint.headers =
        settings.headers.iter().map(|(name, value)| (name.clone(), Secret::new(value))).collect();
    connect(&endpoint, model, settings.window).map_err(|error| Error::config(error.to_string()))
}

/// Models for an invocation that sends no request: any name will do, and no key is needed.
pub struct NoRequests;

impl Models for NoRequests {
    fn model(&self, _name: Option<&str>) -> Result<Arc<dyn Model>, String> {
        Ok(Arc::new(Practice::new()))
    }
}

/// The MCP servers of the configuration, started when the first turn needs them.
struct McpTools {
    configs: Vec<ServerConfig>,
    started: tokio::sync::Mutex<Option<McpServers>>,
}

fn mcp(config: &Config, folder: &std::path::Path) -> Option<Arc<dyn MoreTools>> {
    let server = |(name, server): (&String, &crate::config::McpServer)| {
        let transport = match (&server.command, &server.url) {
            (Some(command), _) => Transport::Stdio {
                command: command.clone(),
                args: server.args.clone(),
                env: server.env.clone(),
                cwd: Some(folder.join(server.cwd.as_deref().unwrap_or(folder))),
            },
            (None, url) => {
                Transport::Http { url: url.clone().unwrap_or_default(), headers: server.headers.clone() }
            }
        };
        let effect = |word: &String| match word.as_str() {
            "read" => Effect::Read,
            "idempotent" => Effect::Idempotent,
            _ => Effect::Write,
        };
        ServerConfig {
            effects: server.effects.iter().map(|(tool, word)| (tool.clone(), effect(word))).collect(),
            timeout: Duration::from_millis(server.timeout_ms),
            hidden_env: key_variables(config),
            ..ServerConfig::new(name, transport)
        }
    };
    let configs: Vec<ServerConfig> = config.mcp.iter().map(server).collect();
    if configs.is_empty() {
        return None;
    }
    Some(Arc::new(McpTools { configs, started: tokio::sync::Mutex::new(None) }))
}

#[async_trait]
impl MoreTools for McpTools {
    async fn tools(&self) -> (Vec<Arc<dyn Tool>>, Vec<String>) {
        let mut started = self.started.lock().await;
        if started.is_none() {
            *started = Some(McpServers::start(self.configs.clone()).await);
        }
        match started.as_ref() {
            Some(servers) => (servers.tools(), servers.problems().iter().map(ToString::to_string).collect()),
            None => (Vec::new(), Vec::new()),
        }
    }

    async fn close(&self) {
        if let Some(servers) = self.started.lock().await.take() {
            servers.close().await;
        }
    }
}

/// Tells the person what opening a session found.
pub fn tell_report(session: SessionId, report: &OpenReport) {
    if report.was_interrupted {
        output::note("The last turn was interrupted; the model will be told.");
    }
    if report.torn_bytes > 0 {
        let bytes = report.torn_bytes;
        output::note(format!(
            "A record of which only {bytes} bytes had been written was dropped; the log is whole before it."
        ));
    }
    for cut in &report.cuts {
        output::note(format!(
            "warning: the end of the log was lost in a power failure and cut after record {}; kept in {}",
            cut.cut_at,
            cut.files.join(", ")
        ));
    }
    for (call, tool, outcome) in &report.repaired {
        let what = match outcome {
            RepairOutcome::NotStarted => "was not started",
            RepairOutcome::Recovered => "had finished; its result was found",
            RepairOutcome::Running => "still runs",
            RepairOutcome::Unknown => "may or may not have taken effect; nobody knows but the world",
        };
        output::note(format!("Repaired: {tool} ({call}) {what}."));
        if *outcome == RepairOutcome::Unknown {
            output::note(format!("  Once you know: segue sessions settle {session} {call} done|skip|retry"));
        }
    }
    match report.queued {
        0 => {}
        1 => output::note("1 prompt waits in the queue and runs first."),
        queued => output::note(format!("{queued} prompts wait in the queue and run first.")),
    }
}

/// A repair outcome's word in JSON.
pub fn repair_word(outcome: RepairOutcome) -> &'static str {
    match outcome {
        RepairOutcome::NotStarted => "not_started",
        RepairOutcome::Recovered => "recovered",
        RepairOutcome::Running => "running",
        RepairOutcome::Unknown => "unknown",
    }
}
