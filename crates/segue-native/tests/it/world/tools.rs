//! Tools that leave traces, so that a test can tell what really ran.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use segue_log::{Action, ActionKind, Effect, code};
use segue_tool::{Scope, Tool, ToolContext, ToolOutput};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Is told of moments inside tool bodies, such as `count before a` and `count after a`. A crash test ends its own
/// process here.
#[derive(Clone)]
pub struct Moments(pub Arc<dyn Fn(&str) + Send + Sync>);

impl Default for Moments {
    fn default() -> Self {
        Self(Arc::new(|_| {}))
    }
}

/// What calls of `look` with `"wait":true` wait for.
#[derive(Clone)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Gate {
    /// Lets all calls through that wait, now and later.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    async fn opened(&self) {
        // The sender lives as long as this.
        self.0.subscribe().wait_for(|open| *open).await.unwrap();
    }
}

static LINE: LazyLock<Value> = LazyLock::new(
    || json!({"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]}),
);

static LOOK: LazyLock<Value> = LazyLock::new(|| {
    let properties = json!({"line": {"type": "string"}, "wait": {"type": "boolean"}});
    json!({"type": "object", "properties": properties, "required": ["line"]})
});

static NOTHING: LazyLock<Value> = LazyLock::new(|| json!({"type": "object"}));

static RELAYED: LazyLock<Value> = LazyLock::new(|| {
    let properties = json!({"tool": {"type": "string"}, "input": {"type": "object"}});
    json!({"type": "object", "properties": properties, "required": ["tool", "input"]})
});

fn action(tool: &str, kind: ActionKind, input: &Value) -> Action {
    Action { kind, subject: String::new(), shown: format!("{tool} {input}"), rule: tool.to_owned() }
}

/// The file beside `ran` that holds the id of each call that ran.
pub fn calls_file(ran: &Path) -> PathBuf {
    ran.with_extension("calls")
}

fn line(input: &Value) -> String {
    input["line"].as_str().unwrap_or_default().to_owned()
}

/// Notes that a call ran: its line, and beside it its id.
fn leave(ran: &Path, line: &str, context: &ToolContext) {
    append(&calls_file(ran), context.call_id.as_str());
    append(ran, line);
}

fn append(file: &Path, line: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// `count {"line":…}`: appends the line to a file. Its effect is `write`.
pub struct Count {
    /// The file.
    pub ran: PathBuf,
    /// Told before and after the line is there.
    pub moments: Moments,
}

#[async_trait]
impl Tool for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn description(&self) -> &str {
        "Appends a line to a file."
    }

    fn input_schema(&self) -> &Value {
        &LINE
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn action(&self, input: &Value, _scope: &Scope) -> Action {
        action("count", ActionKind::Other, input)
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        let line = line(&input);
        (self.moments.0)(&format!("count before {line}"));
        leave(&self.ran, &line, context);
        (self.moments.0)(&format!("count after {line}"));
        ToolOutput::ok(format!("counted {line}"))
    }
}

/// `look {"line":…,"wait":…}`: says that it only reads, runs beside others, and appends the line all the same.
pub struct Look {
    /// The file.
    pub ran: PathBuf,
    /// Told before and after the line is there.
    pub moments: Moments,
    /// What it waits for, the line written, if `wait` is true.
    pub gate: Gate,
}

#[async_trait]
impl Tool for Look {
    fn name(&self) -> &str {
        "look"
    }

    fn description(&self) -> &str {
        "Looks."
    }

    fn input_schema(&self) -> &Value {
        &LOOK
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn action(&self, input: &Value, _scope: &Scope) -> Action {
        action("look", ActionKind::Read, input)
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        let line = line(&input);
        (self.moments.0)(&format!("look before {line}"));
        leave(&self.ran, &line, context);
        (self.moments.0)(&format!("look after {line}"));
        if input["wait"] == true {
            tokio::select! {
                () = context.cancel.cancelled() => {
                    return ToolOutput::error(code::CANCELLED, "Cancelled; it may have had effects.");
                }
                () = self.gate.opened() => {}
            }
        }
        ToolOutput::ok(format!("saw {line}"))
    }
}

/// `slow {}`: comes back only when it is cancelled.
pub struct Slow;

#[async_trait]
impl Tool for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn description(&self) -> &str {
        "Takes its time."
    }

    fn input_schema(&self) -> &Value {
        &NOTHING
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn action(&self, input: &Value, _scope: &Scope) -> Action {
        action("slow", ActionKind::Other, input)
    }

    async fn run(&self, _input: Value, context: &ToolContext) -> ToolOutput {
        context.host.progress("begun");
        context.cancel.cancelled().await;
        ToolOutput::error(code::CANCELLED, "Cancelled; it may have had effects.")
    }
}

/// `relay {"tool":…,"input":…}`: calls another tool through its context.
pub struct Relay;

#[async_trait]
impl Tool for Relay {
    fn name(&self) -> &str {
        "relay"
    }

    fn description(&self) -> &str {
        "Calls another tool."
    }

    fn input_schema(&self) -> &Value {
        &RELAYED
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn action(&self, input: &Value, _scope: &Scope) -> Action {
        action("relay", ActionKind::Other, input)
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        let tool = input["tool"].as_str().unwrap_or_default().to_owned();
        context.host.call(&tool, input["input"].clone(), context).await
    }
}
