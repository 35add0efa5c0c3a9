//! `todo`: the agent's plan, for people to see.

use async_trait::async_trait;
use segue_log::{Action, ActionKind, Effect, PlanEntry};
use serde::Deserialize;
use serde_json::{Value, json};

use super::parse;
use crate::tool::{Failure, Scope, Tool, ToolContext, ToolOutput};

const DESCRIPTION: &str = "Shows the person your plan for a task of several steps and how far it is. Give the whole \
plan each time; it replaces the one before. Keep exactly one entry in_progress while you work, and mark entries \
completed as soon as they are. Not needed for simple tasks.";

pub(super) struct Todo {
    schema: Value,
}

#[derive(Deserialize)]
struct Input {
    items: Vec<PlanEntry>,
}

impl Todo {
    pub fn new() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "items": {
                    "type": "array",
                    "maxItems": 200,
                    "description": "The whole plan, in order.",
                    "items": {
                        "type": "object",
                        "properties": {
                            "text": {"type": "string", "minLength": 1, "description": "What is to be done."},
                            "state": {"enum": ["pending", "in_progress", "completed"]}
                        },
                        "required": ["text", "state"],
                        "additionalProperties": false
                    }
                }
            },
            "required": ["items"],
            "additionalProperties": false
        });
        Self { schema }
    }
}

#[async_trait]
impl Tool for Todo {
    fn name(&self) -> &str {
        "todo"
    }

    fn description(&self) -> &str {
        DESCRIPTION
    }

    fn input_schema(&self) -> &Value {
        &self.schema
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn action(&self, input: &Value, _scope: &Scope) -> Action {
        let entries = parse::<Input>(input.clone()).map(|input| input.items).unwrap_or_default();
        Action {
            kind: ActionKind::Read,
            subject: String::new(),
            shown: format!("todo\n{}", listed(&entries)),
            rule: "todo".to_owned(),
        }
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        match plan(input, context).await {
            Ok(text) => ToolOutput::ok(text),
            Err(failure) => failure.into(),
        }
    }
}

async fn plan(input: Value, context: &ToolContext) -> Result<String, Failure> {
    let Input { items } = parse(input)?;
    let done = items.iter().filter(|entry| entry.state == "completed").count();
    let text = match items.len() {
        0 => "The plan is empty now.".to_owned(),
        count => format!("The plan has {count} entries, {done} completed.\n{}", listed(&items)),
    };
    context.host.plan(items).await?;
    Ok(text)
}

fn listed(entries: &[PlanEntry]) -> String {
    let mark = |entry: &PlanEntry| match entry.state.as_str() {
        "completed" => 'x',
        "in_progress" => '>',
        _ => ' ',
    };
    entries.iter().map(|entry| format!("[{}] {}", mark(entry), entry.text)).collect::<Vec<_>>().join("\n")
}
