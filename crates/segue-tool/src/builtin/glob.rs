//! `glob`: files by name.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::time::SystemTime;

use async_trait::async_trait;
use segue_log::{Action, Effect, code};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::file::{blocking, failed};
use super::walk::{matcher, name, walk};
use super::{parse, unread};
use crate::path::Place;
use crate::tool::{Failure, Scope, Tool, ToolContext, ToolOutput};

const DESCRIPTION: &str = "Finds files by name, newest first. The pattern knows `*`, `**`, `?`, `[…]` and `{a,b}` and is \
matched against the path below `path`; one without a slash matches at any depth, such as `*.rs`. Files that .gitignore \
names are passed over. At most 200 are listed.";

/// Files listed by one call.
const LISTED: usize = 200;

pub(super) struct Glob {
    schema: Value,
}

#[derive(Deserialize)]
struct Input {
    pattern: String,
    #[serde(default = "here")]
    path: String,
}

pub(super) fn here() -> String {
    ".".to_owned()
}

impl Glob {
    pub fn new() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "description": "What to match, such as src/**/*.rs."},
                "path": {"type": "string", "minLength": 1, "description": "The folder to look in. Default: the working folder."}
            },
            "required": ["pattern"],
            "additionalProperties": false
        });
        Self { schema }
    }
}

#[async_trait]
impl Tool for Glob {
    fn name(&self) -> &str {
        "glob"
    }

    fn description(&self) -> &str {
        DESCRIPTION
    }

    fn input_schema(&self) -> &Value {
        &self.schema
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn action(&self, input: &Value, scope: &Scope) -> Action {
        let Ok(asked) = parse::<Input>(input.clone()) else { return unread("glob", input) };
        let Ok(place) = Place::find(scope, &asked.path) else { return unread("glob", input) };
        let shown = format!("glob {} in {}", asked.pattern, place.shown);
        place.looked_at("glob", shown)
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        let (scope, cancel) = (context.scope.clone(), context.cancel.clone());
        let found = blocking(move || parse(input).and_then(|input| find(&input, &scope, &cancel))).await;
        match found.and_then(|found| found) {
            Ok(text) => ToolOutput::ok(text),
            Err(failure) => failure.into(),
        }
    }
}

fn find(input: &Input, scope: &Scope, cancel: &CancellationToken) -> Result<String, Failure> {
    let matcher = matcher(&input.pattern)?;
    let root = Place::find(scope, &input.path)?;
    if !root.path.is_dir() {
        return Err(failed(format!("{} is no folder", root.shown)));
    }
    let cwd = Place::find(scope, ".")?.path;
    let mut found: Vec<(Reverse<SystemTime>, PathBuf)> = Vec::new();
    for entry in walk(&root.path, None) {
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        // A folder that cannot be read hides what is in it, as it would for a shell.
        let Ok(entry) = entry else { continue };
        let below = entry.path().strip_prefix(&root.path).unwrap_or(entry.path());
        if !entry.file_type().is_some_and(|kind| kind.is_dir()) && matcher.is_match(below) {
            let changed =
                entry.metadata().ok().and_then(|meta| meta.modified().ok()).unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((Reverse(changed), entry.into_path()));
        }
    }
    if found.is_empty() {
        return Ok(format!("No file matches {} in {}.", input.pattern, root.shown));
    }
    found.sort();
    let total = found.len();
    let mut lines: Vec<String> = found.into_iter().take(LISTED).map(|(_, path)| name(&cwd, &path)).collect();
    if total > LISTED {
        lines.push(format!("[{LISTED} of {total} files; make the pattern narrower to see the others]"));
    }
    Ok(lines.join("\n"))
}

/// A look that was cancelled; it had no effects.
pub(super) fn cancelled() -> Failure {
    Failure { code: code::CANCELLED.to_owned(), message: "cancelled; nothing was changed".to_owned() }
}
