//! The tools that come with Segue.

mod bash;
mod diff;
mod edit;
mod file;
mod glob;
mod grep;
mod list;
mod read;
mod todo;
mod walk;
mod write;

use std::sync::Arc;
use std::time::Duration;

use segue_log::{Action, ActionKind, code, literal_rule};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::tool::{Failure, Tool};

/// How the built-in tools work.
#[derive(Debug, Clone, Default)]
pub struct BuiltinOptions {
    /// Holds commands that nobody gave permission for; none runs them as they are.
    pub sandbox: Option<Sandbox>,
    /// Environment variables that commands do not get, such as those with a provider's key: what a command prints
    /// ends in the log.
    pub hidden_env: Vec<String>,
    /// How long a command may run when its call does not say, at most ten minutes; none is two minutes.
    pub command_timeout: Option<Duration>,
}

/// The built-in tools: `read`, `write`, `edit`, `bash`, `glob`, `grep`, `list` and `todo`.
pub fn builtin_tools(options: BuiltinOptions) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(read::Read::new()),
        Arc::new(write::Write::new()),
        Arc::new(edit::Edit::new()),
        Arc::new(bash::Bash::new(options)),
        Arc::new(glob::Glob::new()),
        Arc::new(grep::Grep::new()),
        Arc::new(list::List::new()),
        Arc::new(todo::Todo::new()),
    ]
}

/// A tool's arguments as its own type.
fn parse<T: DeserializeOwned>(input: Value) -> Result<T, Failure> {
    serde_json::from_value(input).map_err(|error| Failure {
        code: code::INVALID_INPUT.to_owned(),
        message: format!("the arguments do not fit: {error}"),
    })
}

/// The action of a call whose arguments lead nowhere: it will fail without an effect, and until then counts as the worst.
fn no_place(tool: &str, input: &Value) -> Action {
    let subject = input.get("path").and_then(Value::as_str).unwrap_or("?").to_owned();
    Action {
        kind: ActionKind::WriteOutside,
        shown: format!("{tool} {input}"),
        rule: literal_rule(tool, &subject),
        subject,
    }
}

/// The action of a reading call whose arguments lead nowhere.
fn unread(tool: &str, input: &Value) -> Action {
    Action { kind: ActionKind::ReadOutside, ..no_place(tool, input) }
}

/// The one of `names` that is most like `wrong`, if it is at all.
pub(crate) fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (strsim::damerau_levenshtein(wrong, name), name))
        .filter(|(distance, name)| *distance <= name.chars().count().max(3) / 3)
        .min()
        .map(|(_, name)| name)
}
