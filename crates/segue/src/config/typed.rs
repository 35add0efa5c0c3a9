//! The merged settings as a typed value, and what no single layer can show to be wrong.

use std::collections::BTreeMap;
use std::path::PathBuf;

use segue_model::{Parameters, Secret};
use segue_runtime::permission::Rule;

use super::layer::{KeyPath, Place, Problem, Value};
use super::{Rank, Setting};

/// A value with where it was said.
#[derive(Debug, Clone, PartialEq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub place: Place,
    /// The layer.
    pub rank: Rank,
}

/// The configuration that holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The model, if anybody named one.
    pub model: Option<Sourced<String>>,
    /// The agent.
    pub agent: Sourced<String>,
    /// Where sessions are kept, if anybody said so.
    pub store: Option<Sourced<String>>,
    /// The permission level's word.
    pub level: String,
    /// Rules that allow.
    pub allow: Vec<Sourced<String>>,
    /// Rules that deny.
    pub deny: Vec<Sourced<String>>,
    /// The checkpoint policy's word.
    pub policy: String,
    /// What happens to survivors.
    pub on_survivor: String,
    /// Whether commands are sandboxed.
    pub sandbox: String,
    /// How long a command may run by default, in milliseconds.
    pub bash_timeout_ms: u64,
    /// When to compact, as a part of the window.
    pub compact_at: f64,
    /// Model requests per turn.
    pub max_steps: u64,
    /// Request parameters.
    pub parameters: Parameters,
    /// Model providers by name.
    pub providers: BTreeMap<String, Provider>,
    /// MCP servers by name.
    pub mcp: BTreeMap<String, McpServer>,
    /// Hosted agents by name.
    pub agents: BTreeMap<String, Agent>,
}

/// A hosted agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// The program.
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, with references to ours.
    pub env: BTreeMap<String, String>,
    /// Its folder.
    pub cwd: Option<PathBuf>,
    /// The word of the way it is resumed by.
    pub resume_by: String,
    /// The command that ends what was started elsewhere.
    pub stop: Vec<String>,
    /// Folders here, and where it sees them.
    pub path_map: BTreeMap<String, String>,
    /// The authentication method.
    pub auth: Option<String>,
    /// How long it may take to get ready, in milliseconds.
    pub init_timeout_ms: u64,
    /// How long a cancelled turn may take to end, in milliseconds.
    pub cancel_timeout_ms: u64,
    /// How long it is kept running without a prompt, in milliseconds.
    pub idle_timeout_ms: u64,
    /// Names of MCP servers.
    pub mcp: Vec<String>,
    /// Its mode.
    pub mode: Option<String>,
    /// Its options.
    pub options: BTreeMap<String, String>,
    /// An addition to its system prompt.
    pub system_prompt: Option<String>,
    /// Whether a lost conversation goes on in a new one.
    pub enable_fallback: bool,
    /// Further tries of a resume.
    pub max_retries: u64,
    /// Whether it is told of its servers on a resume.
    pub preserve_mcp_servers: bool,
    /// Whether a new conversation is told the past.
    pub rehydrate: bool,
}

/// A model provider.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Provider {
    /// What it speaks: `anthropic` or `openai`.
    pub api: String,
    /// Its address.
    pub base_url: String,
    /// The variable that holds the key.
    pub key_env: Option<String>,
    /// The key itself.
    pub key: Option<Secret>,
    /// The default model.
    pub model: Option<String>,
    /// The window of its models, in tokens.
    pub window: Option<u64>,
    /// Further headers.
    pub headers: BTreeMap<String, String>,
}

/// An MCP server.
#[derive(Debug, Clone, PartialEq)]
pub struct McpServer {
    /// The program, for one on stdio.
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its folder.
    pub cwd: Option<PathBuf>,
    /// The address, for one over HTTP.
    pub url: Option<String>,
    /// HTTP headers.
    pub headers: BTreeMap<String, String>,
    /// Effects by tool name.
    pub effects: BTreeMap<String, String>,
    /// The longest call, in milliseconds.
    pub timeout_ms: u64,
}

type Settings = BTreeMap<KeyPath, Vec<Setting>>;

/// The settings below one path.
struct View<'a> {
    settings: &'a Settings,
    path: KeyPath,
}

impl<'a> View<'a> {
    fn last(&self, key: &str) -> Option<&'a Setting> {
        self.settings.get(&self.path.with(key)).and_then(|held| held.last())
    }

    fn below(&self, key: &str) -> View<'a> {
        View { settings: self.settings, path: self.path.with(key) }
    }

    fn sourced(&self, key: &str) -> Option<Sourced<String>> {
        let setting = self.last(key)?;
        let Value::Text(text) = &setting.entry.value else { return None };
        Some(Sourced { value: text.clone(), place: setting.entry.place.clone(), rank: setting.rank })
    }

    fn text(&self, key: &str) -> Option<String> {
        self.sourced(key).map(|sourced| sourced.value)
    }

    fn whole(&self, key: &str) -> Option<u64> {
        match self.last(key)?.entry.value {
            Value::Whole(number) => number.try_into().ok(),
            _ => None,
        }
    }

    fn number(&self, key: &str) -> Option<f64> {
        match self.last(key)?.entry.value {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    fn flag(&self, key: &str) -> Option<bool> {
        match self.last(key)?.entry.value {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    fn texts(&self, key: &str) -> Vec<String> {
        match self.last(key).map(|setting| &setting.entry.value) {
            Some(Value::Texts(texts)) => texts.clone(),
            _ => Vec::new(),
        }
    }

    fn rules(&self, key: &str) -> Vec<Sourced<String>> {
        let mut rules = Vec::new();
        for setting in self.settings.get(&self.path.with(key)).into_iter().flatten() {
            if let Value::Texts(texts) = &setting.entry.value {
                rules.extend(texts.iter().map(|text| Sourced {
                    value: text.clone(),
                    place: setting.entry.place.clone(),
                    rank: setting.rank,
                }));
            }
        }
        rules
    }

    /// The names of the tables and values just below this path.
    fn names(&self) -> Vec<String> {
        let depth = self.path.0.len();
        let mut names: Vec<String> = self
            .settings
            .keys()
            .filter(|path| path.0.starts_with(&self.path.0))
            .filter_map(|path| path.0.get(depth).cloned())
            .collect();
        names.dedup();
        names
    }

    fn map(&self, key: &str) -> BTreeMap<String, String> {
        let below = self.below(key);
        below.names().into_iter().filter_map(|name| Some((name.clone(), below.text(&name)?))).collect()
    }

    /// Where this table was begun, for messages about the whole of it.
    fn place(&self) -> Place {
        let held = self.settings.iter().filter(|(path, _)| path.0.starts_with(&self.path.0));
        held.flat_map(|(_, held)| held)
            .max_by_key(|setting| setting.rank)
            .map_or(Place::BuiltIn, |setting| setting.entry.place.clone())
    }
}

impl Config {
    /// Reads the settings, which hold a value for every key that has a default.
    pub fn from_settings(settings: &Settings) -> Self {
        let root = View { settings, path: KeyPath(Vec::new()) };
        let word = |table: &str, key: &str| root.below(table).text(key).unwrap_or_default();
        let parameters = root.below("model_parameters");
        Self {
            model: root.sourced("model"),
            agent: root.sourced("agent").unwrap_or(Sourced {
                value: "segue".into(),
                place: Place::BuiltIn,
                rank: Rank::BuiltIn,
            }),
            store: root.sourced("store"),
            level: word("permissions", "level"),
            allow: root.below("permissions").rules("allow"),
            deny: root.below("permissions").rules("deny"),
            policy: word("checkpoints", "policy"),
            on_survivor: word("tools", "on_survivor"),
            sandbox: word("tools", "sandbox"),
            bash_timeout_ms: root.below("tools").whole("bash_timeout_ms").unwrap_or(120_000),
            compact_at: root.below("compaction").number("at").unwrap_or(0.8),
            max_steps: root.below("limits").whole("max_steps").unwrap_or(100),
            parameters: Parameters {
                max_tokens: parameters.whole("max_tokens"),
                temperature: parameters.number("temperature"),
                thinking_tokens: parameters.whole("thinking_tokens"),
                reasoning_effort: parameters.text("reasoning_effort"),
            },
            providers: tables(&root.below("providers"), provider),
            mcp: tables(&root.below("mcp"), mcp_server),
            agents: tables(&root.below("agents"), agent),
        }
    }
}

fn tables<T>(view: &View<'_>, read: impl Fn(&View<'_>) -> T) -> BTreeMap<String, T> {
    view.names().into_iter().map(|name| (name.clone(), read(&view.below(&name)))).collect()
}

fn provider(view: &View<'_>) -> Provider {
    Provider {
        api: view.text("api").unwrap_or_default(),
        base_url: view.text("base_url").unwrap_or_default(),
        key_env: view.text("key_env"),
        key: view.text("key").map(Secret::new),
        model: view.text("model"),
        window: view.whole("window"),
        headers: view.map("headers"),
    }
}

fn mcp_server(view: &View<'_>) -> McpServer {
    McpServer {
        command: view.text("command"),
        args: view.texts("args"),
        env: view.map("env"),
        cwd: view.text("cwd").map(PathBuf::from),
        url: view.text("url"),
        headers: view.map("headers"),
        effects: view.map("effects"),
        timeout_ms: view.whole("timeout_ms").unwrap_or(120_000),
    }
}

fn agent(view: &View<'_>) -> Agent {
    Agent {
        command: view.text("command"),
        args: view.texts("args"),
        env: view.map("env"),
        cwd: view.text("cwd").map(PathBuf::from),
        resume_by: view.text("resume_by").unwrap_or_else(|| "auto".into()),
        stop: view.texts("stop"),
        path_map: view.map("path_map"),
        auth: view.text("auth"),
        init_timeout_ms: view.whole("init_timeout_ms").unwrap_or(60_000),
        cancel_timeout_ms: view.whole("cancel_timeout_ms").unwrap_or(5_000),
        idle_timeout_ms: view.whole("idle_timeout_ms").unwrap_or(600_000),
        mcp: view.texts("mcp"),
        mode: view.text("mode"),
        options: view.map("options"),
        system_prompt: view.text("system_prompt"),
        enable_fallback: view.flag("enable_fallback").unwrap_or(true),
        max_retries: view.whole("max_retries").unwrap_or(2),
        preserve_mcp_servers: view.flag("preserve_mcp_servers").unwrap_or(true),
        rehydrate: view.flag("rehydrate").unwrap_or(true),
    }
}

/// What is wrong with the whole although each value is right.
pub fn inconsistencies(settings: &Settings) -> Vec<Problem> {
    let root = View { settings, path: KeyPath(Vec::new()) };
    let mut problems = Vec::new();
    let mut wrong = |view: &View<'_>, message: &str| {
        problems.push(Problem { place: view.place(), message: format!("{} {message}", view.path) });
    };

    let providers = root.below("providers");
    for name in providers.names() {
        let view = providers.below(&name);
        let provider = provider(&view);
        if name.is_empty() || name.contains('/') || name == "practice" {
            wrong(&view, "cannot be named so: a model is PROVIDER/NAME, and practice is built in");
        }
        if provider.api.is_empty() {
            wrong(&view, "needs `api`: \"anthropic\" or \"openai\"");
        }
        if provider.base_url.is_empty() {
            wrong(&view, "needs `base_url`, the address of its endpoint");
        }
    }

    let agents = root.below("agents");
    for name in agents.names() {
        let view = agents.below(&name);
        let agent = agent(&view);
        let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if name.is_empty() || !is_plain || name == "segue" {
            wrong(&view, "cannot be named so: letters, digits, _ and - make a name, and segue is built in");
        }
        if agent.command.is_none() {
            wrong(&view, "needs `command`, the program that speaks ACP");
        }
        let servers = root.below("mcp").names();
        if let Some(missing) = agent.mcp.iter().find(|server| !servers.contains(server)) {
            wrong(&view, &format!("names the MCP server {missing:?}, and there is no [mcp.{missing}]"));
        }
    }

    let permissions = root.below("permissions");
    for rule in permissions.rules("allow").into_iter().chain(permissions.rules("deny")) {
        if let Err(error) = rule.value.parse::<Rule>() {
            problems.push(Problem { place: rule.place, message: error.to_string() });
        }
    }
    let mut wrong = |view: &View<'_>, message: &str| {
        problems.push(Problem { place: view.place(), message: format!("{} {message}", view.path) });
    };

    let servers = root.below("mcp");
    for name in servers.names() {
        let view = servers.below(&name);
        let server = mcp_server(&view);
        let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if name.is_empty() || !is_plain || name.contains("__") {
            wrong(
                &view,
                "cannot be named so: its tools are called mcp__NAME__TOOL; use letters, digits, - and single _",
            );
        }
        match (&server.command, &server.url) {
            (None, None) => wrong(&view, "needs `command` (a program) or `url` (an address)"),
            (Some(_), Some(_)) => wrong(&view, "has both `command` and `url`; one server is one of them"),
            (None, Some(url)) if !url.starts_with("http://") && !url.starts_with("https://") => {
                wrong(&view, "has a `url` that is no http:// or https:// address");
            }
            _ => {}
        }
    }
    problems
}
