//! Every key of the configuration as data: its type, what it means, who may set it. Checks, errors, `config show` and
//! `docs/configuration.md` come from this list.

use std::fmt;

/// A key as a path of tables; `*` stands for a name that the person chooses.
#[derive(Debug)]
pub struct Key {
    /// Its path, such as `providers.*.base_url`.
    pub path: &'static str,
    /// What its value must be.
    pub kind: Kind,
    /// What holds when no layer says anything; as it is written in TOML.
    pub default: Option<&'static str>,
    /// Whether a project's file may set it.
    pub project: InProject,
    /// What it means.
    pub doc: &'static str,
}

/// What a value must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A string that is not empty.
    Text,
    /// A string that is never shown.
    Secret,
    /// A whole number within bounds.
    Whole(i64, i64),
    /// A number within bounds.
    Number(f64, f64),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// True or false.
    Flag,
    /// A list of strings; restating it replaces it.
    Texts,
    /// A list of strings that adds to the layers below.
    Rules,
    /// A table of strings under names that the person chooses; its values are never shown.
    SecretMap,
    /// Such a table whose values are shown.
    TextMap,
    /// Such a table whose values are among these words, and shown.
    MapOf(&'static [&'static str]),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text | Self::Secret => f.write_str("a string"),
            Self::Whole(least, i64::MAX) => write!(f, "a whole number, at least {least}"),
            Self::Whole(least, most) => write!(f, "a whole number from {least} to {most}"),
            Self::Number(least, most) => write!(f, "a number from {least} to {most}"),
            Self::OneOf(words) => {
                write!(
                    f,
                    "one of {}",
                    words.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(", ")
                )
            }
            Self::Flag => f.write_str("true or false"),
            Self::Texts | Self::Rules => f.write_str("a list of strings"),
            Self::SecretMap | Self::TextMap => f.write_str("a table of strings"),
            Self::MapOf(words) => write!(
                f,
                "a table whose values are {}",
                words.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(" or ")
            ),
        }
    }
}

/// What a project's file may do with a key. A project is other people's text until the person trusts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InProject {
    /// Set it.
    Free,
    /// Set it once the folder is trusted.
    Trusted,
    /// Move it towards the front of its words; towards the back once the folder is trusted.
    Tighten,
    /// Never set it, for this reason.
    Never(&'static str),
}

const fn key(path: &'static str, kind: Kind, project: InProject, doc: &'static str) -> Key {
    Key { path, kind, default: None, project, doc }
}

const fn with_default(
    path: &'static str,
    kind: Kind,
    default: &'static str,
    project: InProject,
    doc: &'static str,
) -> Key {
    Key { path, kind, default: Some(default), project, doc }
}

use InProject::{Free, Never, Tighten, Trusted};
use Kind::{Flag, MapOf, Number, OneOf, Rules, Secret, SecretMap, Text, TextMap, Texts, Whole};

/// All keys there are.
pub const KEYS: &[Key] = &[
    key(
        "model",
        Text,
        Free,
        "The model that answers, as `provider/name`, or a provider alone for its default model. Without it the first provider whose key is found answers; with no key either, `practice`.",
    ),
    with_default("agent", Text, "\"segue\"", Free, "The agent that answers."),
    key(
        "store",
        Text,
        Never("a session must be found from every folder"),
        "Where sessions are kept: `jsonl:DIR`.",
    ),
    with_default(
        "permissions.level",
        OneOf(&["read", "ask", "edit", "all"]),
        "\"ask\"",
        Tighten,
        "What the agent may do without asking: `read` (write nothing, run no commands), `ask` (ask for each), `edit` (writes inside the working folder and sandboxed commands go through), `all`.",
    ),
    key(
        "permissions.allow",
        Rules,
        Trusted,
        "Rules for what goes through without asking, such as `bash(cargo *)` or `mcp__docs__*`. Layers add up.",
    ),
    key(
        "permissions.deny",
        Rules,
        Free,
        "Rules for what is always refused; they win over `allow`. Layers add up.",
    ),
    with_default(
        "checkpoints.policy",
        OneOf(&["semantic", "turn"]),
        "\"semantic\"",
        Tighten,
        "What is made durable: every request and tool call before it happens (`semantic`), or only accepted prompts and ended turns (`turn`).",
    ),
    with_default(
        "tools.on_survivor",
        OneOf(&["stop", "wait"]),
        "\"stop\"",
        Tighten,
        "What happens to a command that still runs when its session is opened after a crash: it is ended, or its result is waited for.",
    ),
    with_default(
        "tools.sandbox",
        OneOf(&["auto", "off"]),
        "\"auto\"",
        Tighten,
        "Whether commands that nobody was asked about are held by the kernel's sandbox where it has one. With `off` every command is asked about, but at level `all`.",
    ),
    with_default(
        "tools.bash_timeout_ms",
        Whole(1, 600_000),
        "120000",
        Free,
        "How long a command may run if the model asks for no other time, in milliseconds.",
    ),
    with_default(
        "compaction.at",
        Number(0.1, 0.95),
        "0.8",
        Free,
        "The part of the model's window that may fill before the conversation is summarised for the model. The log keeps everything.",
    ),
    with_default(
        "limits.max_steps",
        Whole(1, i64::MAX),
        "100",
        Free,
        "How many model requests one turn may take.",
    ),
    key("model_parameters.max_tokens", Whole(1, i64::MAX), Free, "The longest answer, in tokens."),
    key("model_parameters.temperature", Number(0.0, 2.0), Free, "Randomness of the answers."),
    key(
        "model_parameters.thinking_tokens",
        Whole(1, i64::MAX),
        Free,
        "Tokens that the model may spend on thinking.",
    ),
    key(
        "model_parameters.reasoning_effort",
        Text,
        Free,
        "The effort of reasoning models, in the provider's word, such as `high`.",
    ),
    key(
        "providers.*.api",
        OneOf(&["anthropic", "openai"]),
        Trusted,
        "What the endpoint speaks: Anthropic Messages or OpenAI Chat Completions.",
    ),
    key("providers.*.base_url", Text, Trusted, "The endpoint's address."),
    key(
        "providers.*.key_env",
        Text,
        Trusted,
        "The environment variable that holds the key. An endpoint without it and without `key` is sent no key.",
    ),
    key(
        "providers.*.key",
        Secret,
        Never("a key does not belong into a project's files"),
        "The key itself. Better is `key_env`; only the user's own file may hold it.",
    ),
    key("providers.*.model", Text, Trusted, "The model that a provider's bare name stands for."),
    key(
        "providers.*.window",
        Whole(1000, i64::MAX),
        Trusted,
        "How many tokens the window of its models holds, where Segue does not know it.",
    ),
    key(
        "providers.*.headers",
        SecretMap,
        Trusted,
        "Further HTTP headers for each request. Values are never shown.",
    ),
    key("mcp.*.command", Text, Trusted, "The program of an MCP server that speaks over stdio."),
    key("mcp.*.args", Texts, Trusted, "Its arguments."),
    key("mcp.*.env", SecretMap, Trusted, "Environment variables for it. Values are never shown."),
    key("mcp.*.cwd", Text, Trusted, "The folder it runs in; the session's working folder if none is named."),
    key("mcp.*.url", Text, Trusted, "The address of an MCP server that speaks over HTTP."),
    key("mcp.*.headers", SecretMap, Trusted, "HTTP headers for it. Values are never shown."),
    key(
        "mcp.*.effects",
        MapOf(&["read", "idempotent", "write"]),
        Trusted,
        "What its tools may do to the world, by tool name; `write` for those not named. Decides what repair says of a call that a crash cut off.",
    ),
    with_default(
        "mcp.*.timeout_ms",
        Whole(1, i64::MAX),
        "120000",
        Trusted,
        "How long one call of it may take, in milliseconds.",
    ),
    key("agents.*.command", Text, Trusted, "The program of a hosted agent, which speaks ACP over stdio."),
    key("agents.*.args", Texts, Trusted, "Its arguments."),
    key(
        "agents.*.env",
        SecretMap,
        Trusted,
        "Its environment, beside a few plain variables such as `PATH` and `HOME`. `$NAME` stands for the variable of that name, which is left out if it is not set; `$$` for a dollar. Values are never shown.",
    ),
    key(
        "agents.*.cwd",
        Text,
        Trusted,
        "The folder it runs in; the session's working folder if none is named.",
    ),
    with_default(
        "agents.*.resume_by",
        OneOf(&["auto", "resume", "load", "meta", "rehydrate", "none"]),
        "\"auto\"",
        Trusted,
        "The way by which it is resumed: what it says it can (`auto`), `session/resume`, `session/load`, `session/new` with the id in `_meta`, a new conversation that is told the past (`rehydrate`), or one that is not (`none`).",
    ),
    key(
        "agents.*.stop",
        Texts,
        Trusted,
        "A command, with its arguments, that ends what was started elsewhere, in a container or on another machine. `SEGUE_AGENT_TOKEN` in its environment names the start.",
    ),
    key("agents.*.path_map", TextMap, Trusted, "Folders here, and where the agent sees them."),
    key(
        "agents.*.auth",
        Text,
        Trusted,
        "The id of the authentication method to use when it has been started.",
    ),
    with_default(
        "agents.*.init_timeout_ms",
        Whole(1, i64::MAX),
        "60000",
        Trusted,
        "How long it may take to start, and to make or find a conversation, in milliseconds.",
    ),
    with_default(
        "agents.*.cancel_timeout_ms",
        Whole(1, i64::MAX),
        "5000",
        Trusted,
        "How long a cancelled turn may take to end before the agent is ended, in milliseconds.",
    ),
    with_default(
        "agents.*.idle_timeout_ms",
        Whole(1, i64::MAX),
        "600000",
        Trusted,
        "How long it is kept running without a prompt, in milliseconds.",
    ),
    key("agents.*.mcp", Texts, Trusted, "Names of servers in `[mcp.NAME]` that it is told of."),
    key("agents.*.mode", Text, Trusted, "The mode that its conversations begin in."),
    key("agents.*.options", TextMap, Trusted, "Values of its config options, by their ids."),
    key("agents.*.system_prompt", Text, Trusted, "What it adds to its system prompt, if it takes anything."),
    with_default(
        "agents.*.enable_fallback",
        Flag,
        "true",
        Trusted,
        "Whether a conversation that it has lost goes on in a new one; else that is an error.",
    ),
    with_default(
        "agents.*.max_retries",
        Whole(0, 100),
        "2",
        Trusted,
        "Further tries of a resume after a passing failure.",
    ),
    with_default(
        "agents.*.preserve_mcp_servers",
        Flag,
        "true",
        Trusted,
        "Whether it is told of its MCP servers again when it is resumed.",
    ),
    with_default("agents.*.rehydrate", Flag, "true", Trusted, "Whether a new conversation is told the past."),
];

/// The built-in layer: the providers known by name.
pub fn built_in_providers() -> String {
    let mut text = String::new();
    for known in segue_model::BUILT_IN {
        let api = match known.api {
            segue_model::Api::Anthropic => "anthropic",
            segue_model::Api::OpenAi => "openai",
        };
        let key =
            known.key_variable.map(|variable| format!("key_env = \"{variable}\"\n")).unwrap_or_default();
        text.push_str(&format!(
            "[providers.{}]\napi = \"{api}\"\nbase_url = \"{}\"\nmodel = \"{}\"\n{key}",
            known.name, known.base_url, known.default_model
        ));
    }
    text
}

/// A hosted agent known by name.
pub struct KnownAgent {
    /// Its name.
    pub name: &'static str,
    /// Its program and arguments.
    pub command: &'static [&'static str],
    /// Variables of ours that it gets.
    pub variables: &'static [&'static str],
    /// How it is installed.
    pub install: &'static str,
}

/// The hosted agents known by name.
pub const AGENTS: &[KnownAgent] = &[
    KnownAgent {
        name: "claude",
        command: &["claude-agent-acp"],
        variables: &[
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_BASE_URL",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CONFIG_DIR",
        ],
        install: "npm install -g @agentclientprotocol/claude-agent-acp (Node 22.13 or newer)",
    },
    KnownAgent {
        name: "codex",
        command: &["codex-acp"],
        variables: &["OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_HOME"],
        install: "npm install -g @agentclientprotocol/codex-acp (Node 22.13 or newer)",
    },
    KnownAgent {
        name: "gemini",
        command: &["gemini", "--acp"],
        variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT"],
        install: "npm install -g @google/gemini-cli",
    },
    KnownAgent {
        name: "opencode",
        command: &["opencode", "acp"],
        variables: &["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT"],
        install: "npm install -g opencode-ai",
    },
];

/// The built-in layer: the agents known by name.
pub fn built_in_agents() -> String {
    let mut text = String::new();
    for known in AGENTS {
        let (command, args) = known.command.split_first().unwrap_or((&"", &[]));
        let args: Vec<String> = args.iter().map(|arg| format!("{arg:?}")).collect();
        text.push_str(&format!(
            "[agents.{}]\ncommand = \"{command}\"\nargs = [{}]\n",
            known.name,
            args.join(", ")
        ));
        let variables: Vec<String> =
            known.variables.iter().map(|name| format!("{name} = \"${name}\"")).collect();
        text.push_str(&format!("env = {{ {} }}\n", variables.join(", ")));
    }
    text
}

/// Variables that other programs use too and that Segue honours, and the keys they set.
pub fn shared_variables() -> impl Iterator<Item = (String, String)> {
    segue_model::BUILT_IN
        .iter()
        .map(|known| (known.base_url_variable.to_owned(), format!("providers.{}.base_url", known.name)))
}

/// Keys that are refused with a reason of their own.
pub const REFUSED: &[(&[&str], &str)] = &[
    (
        &[
            "session",
            "session_id",
            "sessions",
            "resume",
            "resume_session_id",
            "resume_id",
            "continue",
            "fork",
        ],
        "which session an invocation is for is said on its command line (--resume ID or --continue); a file would carry it into the next invocation",
    ),
    (
        &["resume_command", "resume_line", "goodbye", "exit_line", "exit_message"],
        "the line printed at exit is made from how this invocation was started; -q silences it",
    ),
    (&["prompt", "prompt_id"], "a prompt belongs to one invocation: segue -p PROMPT, --prompt-id ID"),
    (
        &["api_key", "anthropic_api_key", "openai_api_key"],
        "keys come from the environment, or from `key` in [providers.NAME] of the user's own file",
    ),
    (&["checkpoint_policy"], "write `policy` under [checkpoints]"),
    (&["max_steps"], "write `max_steps` under [limits]"),
    (&["sandbox", "on_survivor"], "write it under [tools]"),
    (&["allow", "deny"], "write it under [permissions]"),
    (&["mcpServers", "mcp_servers"], "write each server as a table of its own: [mcp.NAME]"),
];

impl Key {
    /// The path's parts.
    pub fn parts(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.path.split('.')
    }

    /// True if the key itself stands for one value of a fixed name: those have an environment variable.
    pub fn variable(&self) -> Option<String> {
        let fixed =
            !self.path.contains('*') && !matches!(self.kind, Texts | Rules | SecretMap | TextMap | MapOf(_));
        fixed.then(|| format!("SEGUE_{}", self.path.replace('.', "_").to_uppercase()))
    }

    /// True if its values are never shown.
    pub fn is_secret(&self) -> bool {
        matches!(self.kind, Secret | SecretMap)
    }
}

/// What stands at a path.
pub enum At {
    /// A key.
    Key(&'static Key),
    /// A table that holds keys.
    Section,
    /// Nothing that is known.
    Nothing,
}

fn fits<'a>(pattern: impl Iterator<Item = &'a str>, path: &[String]) -> bool {
    pattern.zip(path).all(|(pattern, part)| pattern == "*" || pattern == part)
}

/// What the schema has at `path`.
pub fn at(path: &[String]) -> At {
    let mut found = At::Nothing;
    for key in KEYS {
        let length = key.parts().count();
        if !fits(key.parts(), path) || length < path.len() {
            continue;
        }
        if length == path.len() {
            return At::Key(key);
        }
        found = At::Section;
    }
    found
}

/// The names that may stand in the table at `path`; empty if any may.
pub fn names_in(path: &[String]) -> Vec<&'static str> {
    let mut names: Vec<&str> = KEYS
        .iter()
        .filter(|key| key.parts().count() > path.len() && fits(key.parts(), path))
        .filter_map(|key| key.parts().nth(path.len()))
        .filter(|name| *name != "*")
        .collect();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_keys_and_sections() {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        assert!(matches!(at(&path("providers.mine.api")), At::Key(key) if key.path == "providers.*.api"));
        assert!(matches!(at(&path("providers.mine")), At::Section));
        assert!(matches!(at(&path("providers")), At::Section));
        assert!(matches!(at(&path("provider")), At::Nothing));
        assert!(matches!(at(&path("model.name")), At::Nothing));
        assert_eq!(names_in(&path("permissions")), ["level", "allow", "deny"]);
        assert_eq!(names_in(&path("mcp")), [] as [&str; 0]);
    }
}
