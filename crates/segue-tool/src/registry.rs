//! The tools of a session by name.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use jsonschema::Validator;
use segue_log::{Effect, code};
use serde_json::Value;

use crate::builtin::nearest;
use crate::limit::clip;
use crate::tool::{Failure, Tool};

/// Mistakes in a call's arguments that are told at once.
const TOLD: usize = 8;

/// Bytes of a wrong value that are repeated to the model.
const REPEATED: usize = 200;

/// Tools by name, with the check of their arguments.
#[derive(Default)]
pub struct Registry {
    tools: BTreeMap<String, Entry>,
}

struct Entry {
    tool: Arc<dyn Tool>,
    /// Compiled at the first call. A schema that is none (an MCP server can send anything) lets everything through;
    /// the server will say what it does not like.
    schema: OnceLock<Option<Validator>>,
}

/// A tool as a model is told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON schema of its arguments.
    pub input_schema: Value,
    /// What a call may do to the world, at most.
    pub effect: Effect,
}

impl Registry {
    /// A registry of `tools`. Of two with the same name the later counts.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Self {
        let entry = |tool: Arc<dyn Tool>| (tool.name().to_owned(), Entry { tool, schema: OnceLock::new() });
        Self { tools: tools.into_iter().map(entry).collect() }
    }

    /// Adds a tool, in place of one with the same name.
    pub fn add(&mut self, tool: Arc<dyn Tool>) {
        self.tools.insert(tool.name().to_owned(), Entry { tool, schema: OnceLock::new() });
    }

    /// The tool of that name; the error, for the model, names the most similar ones.
    pub fn get(&self, name: &str) -> Result<&Arc<dyn Tool>, Failure> {
        self.entry(name).map(|entry| &entry.tool)
    }

    /// All tools, by name.
    pub fn tools(&self) -> impl Iterator<Item = &Arc<dyn Tool>> {
        self.tools.values().map(|entry| &entry.tool)
    }

    /// All tools as a model is told of them, by name: the same set gives the same list, which providers cache.
    pub fn specs(&self) -> Vec<Spec> {
        let spec = |tool: &Arc<dyn Tool>| Spec {
            name: tool.name().to_owned(),
            description: tool.description().to_owned(),
            input_schema: tool.input_schema().clone(),
            effect: tool.effect(),
        };
        self.tools().map(spec).collect()
    }

    /// The tool for a call, its arguments checked. The error is the call's result and says what is wrong, and where.
    pub fn check(&self, name: &str, input: &Value) -> Result<&Arc<dyn Tool>, Failure> {
        let entry = self.entry(name)?;
        let invalid = |message: String| Failure { code: code::INVALID_INPUT.to_owned(), message };
        match input {
            Value::Object(_) => {}
            Value::String(raw) => {
                let why = match serde_json::from_str::<Value>(raw) {
                    Err(error) => format!("are not JSON ({error})"),
                    Ok(Value::Object(_)) => "are a string with JSON in it, not a JSON object".to_owned(),
                    Ok(_) => "are not a JSON object".to_owned(),
                };
                return Err(invalid(format!("the arguments of {name} {why}: {}", clip(raw, REPEATED))));
            }
            other => {
                let other = other.to_string();
                return Err(invalid(format!(
                    "the arguments of {name} are not a JSON object: {}",
                    clip(&other, REPEATED)
                )));
            }
        }
        let validator =
            entry.schema.get_or_init(|| jsonschema::validator_for(entry.tool.input_schema()).ok());
        let mistakes: Vec<String> = validator
            .iter()
            .flat_map(|validator| validator.iter_errors(input))
            .take(TOLD)
            .map(|error| {
                let said = error.to_string();
                let said = clip(&said, REPEATED);
                match error.instance_path().to_string() {
                    whole if whole.is_empty() => format!("- {said}"),
                    at => format!("- at {at}: {said}"),
                }
            })
            .collect();
        if mistakes.is_empty() {
            return Ok(&entry.tool);
        }
        Err(invalid(format!("the arguments of {name} do not fit its schema:\n{}", mistakes.join("\n"))))
    }

    fn entry(&self, name: &str) -> Result<&Entry, Failure> {
        self.tools.get(name).ok_or_else(|| {
            let hint = match nearest(name, self.tools.keys().map(String::as_str)) {
                Some(near) => format!("did you mean {near}?"),
                None => format!(
                    "there are: {}",
                    self.tools.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
                ),
            };
            Failure {
                code: code::UNKNOWN_TOOL.to_owned(),
                message: format!("there is no tool {:?}; {hint}", clip(name, REPEATED)),
            }
        })
    }
}
