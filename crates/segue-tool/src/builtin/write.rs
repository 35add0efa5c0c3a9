//! `write`: a file's whole content.

use async_trait::async_trait;
use segue_log::{Action, Effect, Expect};
use serde::Deserialize;
use serde_json::{Value, json};

use super::diff::diff;
use super::file::{Change, blocking, evidence, failed, look, writable};
use super::{no_place, parse};
use crate::path::Place;
use crate::tool::{Failure, Known, OpenCall, Scope, Tool, ToolContext, ToolOutput};

const DESCRIPTION: &str = "Writes a file: makes it, or replaces its whole content. Missing folders on the way are made. \
The file is on the disk when this returns. To change part of a file, use `edit`. Paths are relative to the working \
folder; files outside of it need permission.";

pub(super) struct Write {
    schema: Value,
}

#[derive(Deserialize)]
struct Input {
    path: String,
    content: String,
}

impl Write {
    pub fn new() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "The file."},
                "content": {"type": "string", "description": "Its whole new content."}
            },
            "required": ["path", "content"],
            "additionalProperties": false
        });
        Self { schema }
    }

    async fn prepare(input: Value, context: &ToolContext) -> Result<Change, Failure> {
        let Input { path, content } = parse(input)?;
        let scope = context.scope.clone();
        let (place, before) = blocking(move || {
            let place = Place::find(&scope, &path)?;
            let before = look(&place.path)
                .map_err(|error| failed(format!("cannot write {}: {error}", place.shown)))?;
            Ok((place, before))
        })
        .await??;
        writable(&place, context)?;
        Ok(Change { place, before, after: content.into_bytes() })
    }
}

#[async_trait]
impl Tool for Write {
    fn name(&self) -> &str {
        "write"
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

    fn action(&self, input: &Value, scope: &Scope) -> Action {
        let Ok(Input { path, content }) = parse(input.clone()) else { return no_place("write", input) };
        let Ok(place) = Place::find(scope, &path) else { return no_place("write", input) };
        let before = look(&place.path).ok().flatten();
        let change = match &before {
            Some(current) => match &current.content {
                Some(old) => diff(&place.shown, Some(old), content.as_bytes()),
                None => format!("replace a large file by {} bytes", content.len()),
            },
            None => diff(&place.shown, None, content.as_bytes()),
        };
        Action {
            kind: place.writing(),
            shown: format!("write {}\n{change}", place.shown),
            rule: place.folder_rule("write"),
            subject: place.shown,
        }
    }

    async fn expect(&self, input: &Value, context: &ToolContext) -> Result<Option<Expect>, Failure> {
        Self::prepare(input.clone(), context).await?.expect(context).await.map(Some)
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        let change = match Self::prepare(input, context).await {
            Ok(change) => change,
            Err(failure) => return failure.into(),
        };
        match change.make(context).await {
            Ok(made) => {
                let lines = made.after.split_inclusive(|byte| *byte == b'\n').count();
                let size = format!("{lines} lines, {} bytes", made.after.len());
                match made.before.map(|current| current.content) {
                    None => ToolOutput::ok(format!("Made {} ({size}).", made.place.shown)),
                    Some(None) => ToolOutput::ok(format!("Replaced {} ({size}).", made.place.shown)),
                    Some(Some(old)) => {
                        let change = diff(&made.place.shown, Some(&old), &made.after);
                        ToolOutput::ok(format!("Replaced {} ({size}).\n{change}", made.place.shown))
                    }
                }
            }
            Err(failure) => failure.into(),
        }
    }

    async fn evidence(&self, call: &OpenCall, _scope: &Scope, end: bool) -> Known {
        evidence(call, end).await
    }
}
