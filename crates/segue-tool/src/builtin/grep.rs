//! `grep`: text in files.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use grep::regex::RegexMatcherBuilder;
use grep::searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use segue_log::{Action, Effect, code};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::file::{blocking, failed};
use super::glob::{cancelled, here};
use super::walk::{is_file, matcher, name, walk};
use super::{parse, unread};
use crate::limit::clip;
use crate::path::Place;
use crate::tool::{Failure, Scope, Tool, ToolContext, ToolOutput};

const DESCRIPTION: &str = "Searches files for a regular expression (Rust syntax, one line at a time). Matches come as \
path:line:text, lines around them as path-line-text. Files that .gitignore names and binary files are passed over. \
`path` is a folder or a file; `glob` limits the files by name, such as *.rs. At most `limit` matches (default 200).";

/// Matches shown when the call does not say.
const MATCHES: usize = 200;

/// Bytes of one line that are shown.
const LINE: usize = 500;

/// Bytes of text shown by one call.
const SHOWN: usize = 40 * 1024;

/// Memory for one line of a searched file; a file with a longer one is passed over.
const HEAP: usize = 64 * 1024 * 1024;

pub(super) struct Grep {
    schema: Value,
}

#[derive(Deserialize)]
struct Input {
    pattern: String,
    #[serde(default = "here")]
    path: String,
    #[serde(default)]
    glob: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default)]
    context: usize,
    #[serde(default)]
    files_only: bool,
    #[serde(default)]
    limit: Option<usize>,
}

impl Grep {
    pub fn new() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "description": "The regular expression."},
                "path": {"type": "string", "minLength": 1, "description": "Where to search. Default: the working folder."},
                "glob": {"type": "string", "minLength": 1, "description": "Only files whose path below `path` matches."},
                "ignore_case": {"type": "boolean", "description": "Take small and capital letters as the same. Default false."},
                "context": {"type": "integer", "minimum": 0, "maximum": 20, "description": "Lines shown before and after each match. Default 0."},
                "files_only": {"type": "boolean", "description": "Only name the files that match. Default false."},
                "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "How many matches or files at most. Default 200."}
            },
            "required": ["pattern"],
            "additionalProperties": false
        });
        Self { schema }
    }
}

#[async_trait]
impl Tool for Grep {
    fn name(&self) -> &str {
        "grep"
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
        let Ok(asked) = parse::<Input>(input.clone()) else { return unread("grep", input) };
        let Ok(place) = Place::find(scope, &asked.path) else { return unread("grep", input) };
        let shown = format!("grep {} in {}", asked.pattern, place.shown);
        place.looked_at("grep", shown)
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        let (scope, cancel) = (context.scope.clone(), context.cancel.clone());
        let found = blocking(move || parse(input).and_then(|input| search(&input, &scope, &cancel))).await;
        match found.and_then(|found| found) {
            Ok(text) => ToolOutput::ok(text),
            Err(failure) => failure.into(),
        }
    }
}

fn search(input: &Input, scope: &Scope, cancel: &CancellationToken) -> Result<String, Failure> {
    let wrong = |error: grep::regex::Error| Failure {
        code: code::INVALID_INPUT.to_owned(),
        message: format!("the pattern is no regular expression: {error}"),
    };
    let pattern = RegexMatcherBuilder::new()
        .case_insensitive(input.ignore_case)
        .line_terminator(Some(b'\n'))
        .build(&input.pattern)
        .map_err(wrong)?;
    let only = input.glob.as_deref().map(matcher).transpose()?;
    let root = Place::find(scope, &input.path)?;
    let cwd = Place::find(scope, ".")?.path;
    if !root.path.exists() {
        return Err(failed(format!("{} does not exist", root.shown)));
    }
    let mut searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(HEAP))
        .before_context(if input.files_only { 0 } else { input.context })
        .after_context(if input.files_only { 0 } else { input.context })
        .build();
    let mut found = Found::new(input, cancel);
    for entry in walk(&root.path, None).flatten().filter(is_file) {
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        let below = entry.path().strip_prefix(&root.path).unwrap_or(entry.path());
        let below = if below.as_os_str().is_empty() { Path::new(entry.file_name()) } else { below };
        if only.as_ref().is_some_and(|only| !only.is_match(below)) {
            continue;
        }
        found.file = name(&cwd, entry.path());
        found.fresh = true;
        if searcher.search_path(&pattern, entry.path(), &mut found).is_err() {
            found.unread.push(entry.into_path());
        }
        if found.full {
            break;
        }
    }
    if cancel.is_cancelled() {
        return Err(cancelled());
    }
    Ok(found.text(&root.shown, &input.pattern))
}

/// What was found so far.
struct Found<'a> {
    files_only: bool,
    limit: usize,
    context: bool,
    cancel: &'a CancellationToken,
    text: String,
    /// Matches, or files in the files-only mode.
    count: usize,
    /// The file being searched.
    file: String,
    /// Nothing of this file is in the text yet.
    fresh: bool,
    /// There is no room for more.
    full: bool,
    /// Files that could not be searched.
    unread: Vec<PathBuf>,
}

impl<'a> Found<'a> {
    fn new(input: &Input, cancel: &'a CancellationToken) -> Self {
        Self {
            files_only: input.files_only,
            limit: input.limit.unwrap_or(MATCHES),
            context: input.context > 0,
            cancel,
            text: String::new(),
            count: 0,
            file: String::new(),
            fresh: true,
            full: false,
            unread: Vec::new(),
        }
    }

    fn add(&mut self, mark: char, number: Option<u64>, bytes: &[u8]) {
        let line = String::from_utf8_lossy(bytes);
        let line = clip(line.trim_end_matches(['\n', '\r']), LINE);
        if self.context && self.fresh && !self.text.is_empty() {
            self.text.push_str("--\n");
        }
        self.fresh = false;
        let number = number.unwrap_or(0);
        self.text.push_str(&format!("{}{mark}{number}{mark}{line}\n", self.file));
    }

    fn text(self, root: &str, pattern: &str) -> String {
        let mut text = match self.count {
            0 => format!("Nothing in {root} matches {pattern}."),
            _ => self.text.trim_end().to_owned(),
        };
        if self.full {
            text.push_str(&format!("\n[stopped after {}; there may be more]", self.count));
        }
        if let Some(first) = self.unread.first() {
            text.push_str(&format!(
                "\n[{} files could not be searched, such as {}]",
                self.unread.len(),
                first.display()
            ));
        }
        text
    }
}

impl Sink for &mut Found<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        if self.count >= self.limit || self.text.len() >= SHOWN || self.cancel.is_cancelled() {
            self.full = true;
            return Ok(false);
        }
        self.count += 1;
        if self.files_only {
            self.text.push_str(&format!("{}\n", self.file));
            return Ok(false);
        }
        self.add(':', found.line_number(), found.bytes());
        Ok(true)
    }

    fn context(&mut self, _searcher: &Searcher, around: &SinkContext<'_>) -> Result<bool, Self::Error> {
        self.add('-', around.line_number(), around.bytes());
        Ok(true)
    }

    fn context_break(&mut self, _searcher: &Searcher) -> Result<bool, Self::Error> {
        self.fresh = true;
        Ok(true)
    }
}
