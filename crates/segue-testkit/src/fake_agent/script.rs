//! What a test tells the agent to be and to do.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What the agent is. The default is a well-behaved one that can load, resume, list, fork, close and delete, keeps a
/// session from its first prompt on, and answers from the messages that it was sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// The protocol version that it answers with.
    pub protocol_version: Value,
    /// Its `agentCapabilities`, true or not.
    pub capabilities: Value,
    /// Its `agentInfo`; null leaves it out.
    pub info: Value,
    /// Its `authMethods`.
    pub auth_methods: Value,
    /// The method that must have been authenticated with before any session call.
    pub login: Option<String>,
    /// What happens before anything is read.
    pub start: Vec<Step>,
    /// What it does on a method, in the order of the calls over all its starts. The last one stays. A `session/new` that
    /// names a session to resume is `session/new+resume`.
    pub methods: BTreeMap<String, Vec<Answer>>,
    /// What it does on a prompt: the first rule that fits. Without one it answers by itself.
    pub prompts: Vec<Rule>,
    /// Whether a session without a prompt outlives the process.
    pub keeps_unprompted: bool,
    /// When a turn is written down.
    pub keeps: Keeps,
    /// Whether `session/new` with `_meta.claudeCode.options.resume` resumes.
    pub meta_resume: bool,
    /// Whether a session can be had by one process only.
    pub exclusive: bool,
    /// `modes` of a session; null leaves them out.
    pub modes: Value,
    /// `configOptions` of a session; null leaves them out.
    pub config_options: Value,
    /// Whether modes and options fall back to the above when a session is resumed.
    pub forgets_settings: bool,
    /// What `session/load` replays instead of what was said.
    pub replay: Option<Vec<Value>>,
    /// How many of the last updates `session/load` replays.
    pub replay_last: Option<usize>,
    /// What `session/load` replays after all that.
    pub replay_then: Vec<Value>,
    /// What follows the answer to a call that made a session.
    pub greeting: Vec<Step>,
    /// Lives on when its input has ended.
    pub ignores_eof: bool,
    /// Goes on with its turn when it is told to cancel.
    pub ignores_cancel: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            protocol_version: json!(1),
            capabilities: json!({
                "loadSession": true,
                "promptCapabilities": {"image": true, "embeddedContext": true},
                "mcpCapabilities": {"http": true, "sse": false},
                "sessionCapabilities": {"resume": {}, "list": {}, "close": {}, "delete": {}, "fork": {}},
            }),
            info: json!({"name": "fake", "title": "Fake agent", "version": "1.0.0"}),
            auth_methods: json!([]),
            login: None,
            start: Vec::new(),
            methods: BTreeMap::new(),
            prompts: Vec::new(),
            keeps_unprompted: false,
            keeps: Keeps::AsSaid,
            meta_resume: false,
            exclusive: false,
            modes: Value::Null,
            config_options: Value::Null,
            forgets_settings: false,
            replay: None,
            replay_last: None,
            replay_then: Vec::new(),
            greeting: Vec::new(),
            ignores_eof: false,
            ignores_cancel: false,
        }
    }
}

impl Script {
    /// An agent that can load and nothing else.
    pub fn load_only() -> Self {
        Self::with_capabilities(json!({"loadSession": true}))
    }

    /// An agent that can resume and nothing else.
    pub fn resume_only() -> Self {
        Self::with_capabilities(json!({"sessionCapabilities": {"resume": {}}}))
    }

    /// An agent that can only make new sessions.
    pub fn new_only() -> Self {
        Self::with_capabilities(json!({}))
    }

    /// An agent with these capabilities.
    pub fn with_capabilities(capabilities: Value) -> Self {
        Self { capabilities, ..Self::default() }
    }

    /// Does this on a method, after what was already given for it.
    pub fn on(mut self, method: &str, answer: Answer) -> Self {
        self.methods.entry(method.to_owned()).or_default().push(answer);
        self
    }

    /// Does this on prompts that contain a text.
    pub fn prompt(mut self, contains: &str, steps: impl IntoIterator<Item = Step>) -> Self {
        self.prompts.push(Rule {
            contains: contains.to_owned(),
            steps: Vec::from_iter(steps),
            ..Rule::default()
        });
        self
    }

    /// Another rule on prompts.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.prompts.push(rule);
        self
    }
}

/// When a turn is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeps {
    /// The prompt before anything else, then each update before it is sent.
    AsSaid,
    /// The prompt at once, what it said when the turn ends.
    PromptFirst,
    /// All when the turn ends: a turn that was cut off leaves nothing.
    AtTheEnd,
    /// Nothing: it forgets when its process ends.
    Nothing,
}

/// What it does on one call of a method.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Answer {
    /// What happens before the answer.
    pub before: Vec<Step>,
    /// The answer.
    pub with: With,
    /// What happens after it.
    pub after: Vec<Step>,
    /// For how many calls; 0 is one.
    pub times: u32,
}

/// How a call is answered.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum With {
    /// As the agent would.
    #[default]
    Itself,
    /// With this result; nothing else is done.
    Result(Value),
    /// With this error object.
    Error(Value),
    /// Never.
    Nothing,
}

impl Answer {
    /// As the agent would.
    pub fn itself() -> Self {
        Self::default()
    }

    /// With this result.
    pub fn result(result: Value) -> Self {
        Self { with: With::Result(result), ..Self::default() }
    }

    /// With this error.
    pub fn error(code: i64, message: &str, data: Value) -> Self {
        let mut error = json!({"code": code, "message": message});
        if !data.is_null() {
            error["data"] = data;
        }
        Self { with: With::Error(error), ..Self::default() }
    }

    /// Never.
    pub fn hang() -> Self {
        Self { with: With::Nothing, ..Self::default() }
    }

    /// By ending before it has done anything.
    pub fn dies(code: i32) -> Self {
        Self::default().before(Step::Die { code })
    }

    /// As the agent would, and then it ends.
    pub fn then_dies(code: i32) -> Self {
        Self { after: vec![Step::Die { code }], ..Self::default() }
    }

    /// A step before the answer.
    pub fn before(mut self, step: Step) -> Self {
        self.before.push(step);
        self
    }

    /// For so many calls.
    pub fn times(self, times: u32) -> Self {
        Self { times, ..self }
    }
}

/// What it does on a prompt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// A part of the prompt's text; empty fits all.
    pub contains: String,
    /// For how many prompts over all starts; 0 is all.
    pub times: u32,
    /// What happens.
    pub steps: Vec<Step>,
    /// How the prompt is answered then: `{"stopReason":"end_turn"}` if not said.
    pub with: With,
}

/// One thing that happens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Answers by itself, from the messages it was sent.
    Practice,
    /// A chunk of the answer.
    Say(String),
    /// A chunk of the answer that belongs to a message.
    SayIn {
        /// The message's id.
        id: String,
        /// The text.
        text: String,
    },
    /// A chunk of thought.
    Think(String),
    /// Any `update`.
    Update(Value),
    /// Any notification; `$session` in its texts is the session's id.
    Notify {
        /// The method.
        method: String,
        /// Its params.
        params: Value,
    },
    /// Asks for permission. What follows hangs on the answer; a cancelled question cancels the turn.
    Ask {
        /// The `toolCall`.
        call: Value,
        /// The options; null is allow once, always and reject once.
        options: Value,
        /// What happens if an option of a kind `allow_…` was chosen.
        allowed: Vec<Step>,
        /// What happens if another was.
        refused: Vec<Step>,
    },
    /// Any request to the client; waits for its answer. `$session` in its texts is the session's id, a text `$answer/a/b`
    /// what lies there in the result of the request before.
    Request {
        /// The method.
        method: String,
        /// Its params.
        params: Value,
    },
    /// A pause in milliseconds.
    Wait(u64),
    /// Waits until there is a file.
    WaitFor(PathBuf),
    /// Appends a line to a file: something done to the world.
    Append {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
    /// Starts a command that it does not wait for; the program and its arguments.
    Spawn(Vec<String>),
    /// A line on stdout, whatever it is.
    Raw(String),
    /// A text on stderr, so many times.
    Stderr {
        /// The text.
        text: String,
        /// How many times.
        times: u32,
    },
    /// So many chunks of so many bytes, as fast as they are taken.
    Flood {
        /// How many.
        chunks: u32,
        /// Bytes in each.
        bytes: usize,
    },
    /// Nothing happens any more, until a cancel.
    Stall,
    /// Forgets the session for good.
    Forget,
    /// The process ends.
    Die {
        /// With this status.
        code: i32,
    },
    /// The process ends in so many milliseconds, and goes on until then.
    DieIn {
        /// Milliseconds.
        ms: u64,
        /// With this status.
        code: i32,
    },
}

impl Step {
    /// A chunk of the answer.
    pub fn say(text: &str) -> Self {
        Self::Say(text.to_owned())
    }

    /// A new call of a tool.
    pub fn tool_call(id: &str, title: &str, kind: &str, status: &str, input: Value) -> Self {
        Self::Update(json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": title, "kind": kind, "status": status,
            "rawInput": input,
        }))
    }

    /// What became of a call.
    pub fn tool_update(id: &str, status: &str, text: &str) -> Self {
        Self::Update(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id, "status": status,
            "content": [{"type": "content", "content": {"type": "text", "text": text}}],
        }))
    }

    /// Asks whether a call may run, and does this if it may; else the call fails.
    pub fn ask(
        id: &str,
        title: &str,
        kind: &str,
        input: Value,
        allowed: impl IntoIterator<Item = Self>,
    ) -> Self {
        Self::Ask {
            call: json!({
                "toolCallId": id, "title": title, "kind": kind, "status": "pending", "rawInput": input,
            }),
            options: Value::Null,
            allowed: Vec::from_iter(allowed),
            refused: vec![Self::tool_update(id, "failed", "refused by the person")],
        }
    }

    /// A request to the client.
    pub fn request(method: &str, params: Value) -> Self {
        Self::Request { method: method.to_owned(), params }
    }

    /// A line in a file.
    pub fn append(path: impl Into<PathBuf>, line: &str) -> Self {
        Self::Append { path: path.into(), line: line.to_owned() }
    }

    /// A command that it does not wait for.
    pub fn spawn<T: Into<String>>(command: impl IntoIterator<Item = T>) -> Self {
        Self::Spawn(command.into_iter().map(Into::into).collect())
    }
}
