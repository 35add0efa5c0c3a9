//! `edit`: one piece of a file's text replaced by another.

use async_trait::async_trait;
use memchr::memmem;
use segue_log::{Action, Effect, Expect, code};
use serde::Deserialize;
use serde_json::{Value, json};

use super::diff::diff;
use super::file::{Change, Current, blocking, evidence, failed, look, writable};
use super::{no_place, parse};
use crate::path::Place;
use crate::tool::{Failure, Known, OpenCall, Scope, Tool, ToolContext, ToolOutput};

const DESCRIPTION: &str = "Replaces text in a file. `old_string` must occur in the file exactly as given, white space \
included, and only once; otherwise add lines around it, or set `replace_all`. The file must have been read before with \
`read` and be unchanged since. Do not include the line numbers that `read` shows. The file is on the disk when this \
returns.";

/// Lines named when text occurs more than once.
const NAMED: usize = 20;

pub(super) struct Edit {
    schema: Value,
}

#[derive(Deserialize)]
struct Input {
    path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

impl Edit {
    pub fn new() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "The file."},
                "old_string": {"type": "string", "minLength": 1, "description": "The text to replace."},
                "new_string": {"type": "string", "description": "The text to put there; empty to delete."},
                "replace_all": {"type": "boolean", "description": "Replace every occurrence. Default false."}
            },
            "required": ["path", "old_string", "new_string"],
            "additionalProperties": false
        });
        Self { schema }
    }

    async fn prepare(input: Value, context: &ToolContext) -> Result<Change, Failure> {
        let input: Input = parse(input)?;
        let scope = context.scope.clone();
        let path = input.path.clone();
        let (place, before) = blocking(move || {
            let place = Place::find(&scope, &path)?;
            let before =
                look(&place.path).map_err(|error| failed(format!("cannot edit {}: {error}", place.shown)))?;
            Ok::<_, Failure>((place, before))
        })
        .await??;
        writable(&place, context)?;
        let Some(before) = before else {
            return Err(failed(format!("{} does not exist; use `write` to make it", place.shown)));
        };
        match context.host.seen(&place.path) {
            Some(seen) if seen == before.hash => {}
            Some(_) => {
                return Err(failed(format!(
                    "{} has changed since you last read it; read it again before editing it",
                    place.shown
                )));
            }
            None => return Err(failed(format!("{} must be read before it is edited", place.shown))),
        }
        let after = replaced(&place, &before, &input)?;
        Ok(Change { place, before: Some(before), after })
    }
}

/// The file's content with the replacement made. Works on bytes, so that what is no UTF-8 elsewhere in it survives.
fn replaced(place: &Place, before: &Current, input: &Input) -> Result<Vec<u8>, Failure> {
    let Some(content) = &before.content else {
        return Err(failed(format!("{} is too large to be edited; use `bash`", place.shown)));
    };
    let invalid =
        |message: &str| Failure { code: code::INVALID_INPUT.to_owned(), message: message.to_owned() };
    if input.old_string.is_empty() {
        return Err(invalid("old_string is empty; use `write` to make a file or to replace all of it"));
    }
    if input.old_string == input.new_string {
        return Err(invalid("old_string and new_string are the same; nothing would change"));
    }
    let (old, new) = with_line_ends_of(content, input);
    let found: Vec<usize> = memmem::find_iter(content, old.as_bytes()).collect();
    match found.len() {
        0 => return Err(failed(not_found(place, content, &input.old_string))),
        1 => {}
        _ if input.replace_all => {}
        count => {
            let lines = lines_at(content, found.iter().take(NAMED).copied());
            let more = if count > NAMED { ", …" } else { "" };
            return Err(failed(format!(
                "old_string occurs {count} times in {} (lines {lines}{more}); add lines around it until it is unique, or set replace_all",
                place.shown
            )));
        }
    }
    let mut after = Vec::with_capacity(content.len());
    let mut rest = content.as_slice();
    let mut at = 0;
    for start in found {
        let (kept, tail) = rest.split_at(start - at);
        after.extend_from_slice(kept);
        after.extend_from_slice(new.as_bytes());
        rest = tail.split_at(old.len()).1;
        at = start + old.len();
    }
    after.extend_from_slice(rest);
    Ok(after)
}

/// The two strings with the file's line ends. `read` shows lines without them, so a model writes `\n` for a file that
/// has `\r\n` throughout.
fn with_line_ends_of(content: &[u8], input: &Input) -> (String, String) {
    let as_given = || (input.old_string.clone(), input.new_string.clone());
    let breaks = memchr::memchr_iter(b'\n', content).count();
    let windows = breaks > 0 && memmem::find_iter(content, b"\r\n").count() == breaks;
    if !windows || input.old_string.contains("\r\n") {
        return as_given();
    }
    let convert = |text: &str| text.replace("\r\n", "\n").replace('\n', "\r\n");
    (convert(&input.old_string), convert(&input.new_string))
}

fn lines_at(content: &[u8], offsets: impl Iterator<Item = usize>) -> String {
    let line = |offset: usize| memchr::memchr_iter(b'\n', content.split_at(offset).0).count() + 1;
    offsets.map(|offset| line(offset).to_string()).collect::<Vec<_>>().join(", ")
}

fn not_found(place: &Place, content: &[u8], old: &str) -> String {
    let mut message =
        format!("old_string does not occur in {}; it must match exactly, white space included", place.shown);
    let Some(first) = old.lines().map(str::trim).find(|line| !line.is_empty()) else { return message };
    let near: Vec<usize> = memmem::find_iter(content, first.as_bytes()).take(NAMED).collect();
    if !near.is_empty() {
        let lines = lines_at(content, near.into_iter());
        message.push_str(&format!(". Its first line, apart from white space around it, is at line {lines}"));
    }
    message
}

#[async_trait]
impl Tool for Edit {
    fn name(&self) -> &str {
        "edit"
    }

    fn description(&self) -> &str {
        DESCRIPTION
    }

    fn input_schema(&self) -> &Value {
        &self.schema
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn action(&self, input: &Value, scope: &Scope) -> Action {
        let Ok(input_) = parse::<Input>(input.clone()) else { return no_place("edit", input) };
        let Ok(place) = Place::find(scope, &input_.path) else { return no_place("edit", input) };
        let before = look(&place.path).ok().flatten();
        let change = match before.as_ref().map(|current| (current, replaced(&place, current, &input_))) {
            Some((current, Ok(after))) => diff(&place.shown, current.content.as_deref(), &after),
            // It will fail; the person sees what was asked for.
            _ => diff(&place.shown, Some(input_.old_string.as_bytes()), input_.new_string.as_bytes()),
        };
        Action {
            kind: place.writing(),
            shown: format!("edit {}\n{change}", place.shown),
            rule: place.folder_rule("edit"),
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
                let old = made.before.and_then(|current| current.content);
                let change = diff(&made.place.shown, old.as_deref(), &made.after);
                ToolOutput::ok(format!("Edited {}.\n{change}", made.place.shown))
            }
            Err(failure) => failure.into(),
        }
    }

    async fn evidence(&self, call: &OpenCall, _scope: &Scope, end: bool) -> Known {
        evidence(call, end).await
    }
}
