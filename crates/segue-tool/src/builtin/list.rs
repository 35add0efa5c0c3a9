//! `list`: what is in a folder.

use std::fs::Metadata;
use std::path::Path;

use async_trait::async_trait;
use segue_log::{Action, Effect};
use serde::Deserialize;
use serde_json::{Value, json};

use super::file::{blocking, failed};
use super::glob::{cancelled, here};
use super::walk::walk;
use super::{parse, unread};
use crate::path::Place;
use crate::tool::{Failure, Scope, Tool, ToolContext, ToolOutput};

const DESCRIPTION: &str = "Lists what is in a folder: folders end in /, files have their size in bytes, links their \
target. With a `depth` above 1 folders below it are listed, too, without what .gitignore names. At most 1000 entries.";

/// Entries listed by one call.
const LISTED: usize = 1000;

pub(super) struct List {
    schema: Value,
}

#[derive(Deserialize)]
struct Input {
    #[serde(default = "here")]
    path: String,
    #[serde(default)]
    depth: Option<usize>,
}

impl List {
    pub fn new() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "The folder. Default: the working folder."},
                "depth": {"type": "integer", "minimum": 1, "maximum": 10, "description": "How many levels to show. Default 1."}
            },
            "additionalProperties": false
        });
        Self { schema }
    }
}

#[async_trait]
impl Tool for List {
    fn name(&self) -> &str {
        "list"
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
        let place = parse::<Input>(input.clone()).and_then(|input| Place::find(scope, &input.path));
        let Ok(place) = place else { return unread("list", input) };
        let shown = format!("list {}", place.shown);
        place.looked_at("list", shown)
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        let (scope, cancel) = (context.scope.clone(), context.cancel.clone());
        let listed = blocking(move || {
            let input: Input = parse(input)?;
            let place = Place::find(&scope, &input.path)?;
            let mut lines = Lines { shown: Vec::new(), more: 0 };
            match input.depth.unwrap_or(1) {
                1 => one_level(&place, &mut lines)?,
                depth => {
                    if !place.path.is_dir() {
                        return Err(failed(format!("{} is no folder", place.shown)));
                    }
                    for entry in walk(&place.path, Some(depth)).flatten().filter(|entry| entry.depth() > 0) {
                        if cancel.is_cancelled() {
                            return Err(cancelled());
                        }
                        let below = entry
                            .path()
                            .strip_prefix(&place.path)
                            .unwrap_or(entry.path())
                            .display()
                            .to_string();
                        lines.add(&below, entry.path(), entry.metadata().ok().as_ref());
                    }
                }
            }
            Ok(lines.text())
        })
        .await;
        match listed.and_then(|listed| listed) {
            Ok(text) => ToolOutput::ok(text),
            Err(failure) => failure.into(),
        }
    }
}

fn one_level(place: &Place, lines: &mut Lines) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| failed(format!("cannot list {}: {error}", place.shown));
    let mut entries = std::fs::read_dir(&place.path)
        .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
        .map_err(cannot)?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        lines.add(&entry.file_name().to_string_lossy(), &entry.path(), entry.metadata().ok().as_ref());
    }
    Ok(())
}

struct Lines {
    shown: Vec<String>,
    more: usize,
}

impl Lines {
    fn add(&mut self, name: &str, path: &Path, metadata: Option<&Metadata>) {
        if self.shown.len() >= LISTED {
            self.more += 1;
            return;
        }
        self.shown.push(match metadata {
            Some(metadata) if metadata.is_dir() => format!("{name}/"),
            Some(metadata) if metadata.is_symlink() => match std::fs::read_link(path) {
                Ok(target) => format!("{name} -> {}", target.display()),
                Err(_) => format!("{name} -> ?"),
            },
            Some(metadata) => format!("{name} ({})", metadata.len()),
            None => name.to_owned(),
        });
    }

    fn text(mut self) -> String {
        if self.shown.is_empty() {
            return "The folder is empty.".to_owned();
        }
        if self.more > 0 {
            self.shown.push(format!("[{} entries more]", self.more));
        }
        self.shown.join("\n")
    }
}
