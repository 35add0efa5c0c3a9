//! `read`: lines of a text file, or an image.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek};
use std::path::Path;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use segue_log::{Action, BlobHash, Block, Effect, Outcome};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::file::{KEPT, blocking, failed, finish, open_regular};
use super::{nearest, parse, unread};
use crate::limit::IMAGE_LIMIT;
use crate::path::Place;
use crate::tool::{Failure, Scope, Tool, ToolContext, ToolOutput};

const DESCRIPTION: &str = "Reads a file. Text comes as numbered lines (number, tab, line), at most 2000 of them unless \
`limit` says otherwise; `offset` names the first. PNG, JPEG, GIF and WebP files come as images; of other binary files \
only size and kind are told. Paths are relative to the working folder.";

/// Lines shown when the call names no limit.
const LINES: u64 = 2000;

/// The most bytes of one line that are shown.
const LINE: usize = 2000;

/// The most bytes of text shown by one call.
const SHOWN: usize = 90 * 1024;

/// Bytes at the start of a file by which its kind is told.
const SNIFFED: usize = 8 * 1024;

pub(super) struct Read {
    schema: Value,
}

#[derive(Deserialize)]
struct Input {
    path: String,
    #[serde(default)]
    offset: Option<u64>,
    #[serde(default)]
    limit: Option<u64>,
}

impl Read {
    pub fn new() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "The file."},
                "offset": {"type": "integer", "minimum": 1, "description": "The first line to show, from 1. Default 1."},
                "limit": {"type": "integer", "minimum": 1, "description": "How many lines to show. Default 2000."}
            },
            "required": ["path"],
            "additionalProperties": false
        });
        Self { schema }
    }
}

#[async_trait]
impl Tool for Read {
    fn name(&self) -> &str {
        "read"
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
        let Ok(place) = place else { return unread("read", input) };
        Action {
            kind: place.reading(),
            shown: format!("read {}", place.shown),
            rule: place.folder_rule("read"),
            subject: place.shown,
        }
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        match read(input, context).await {
            Ok(output) => output,
            Err(failure) => failure.into(),
        }
    }
}

async fn read(input: Value, context: &ToolContext) -> Result<ToolOutput, Failure> {
    let input: Input = parse(input)?;
    let scope = context.scope.clone();
    let (place, shown) = blocking(move || {
        let place = Place::find(&scope, &input.path)?;
        let shown = show(&place.path, input.offset.unwrap_or(1), input.limit.unwrap_or(LINES))
            .map_err(|error| failed(cannot(&place, &error)))?;
        Ok::<_, Failure>((place, shown))
    })
    .await??;
    if let Some(hash) = shown.hash {
        context.host.saw(&place.path, hash);
    }
    Ok(ToolOutput { outcome: Outcome::Ok, code: None, content: shown.content })
}

fn cannot(place: &Place, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::IsADirectory => format!("{} is a folder; use `list`", place.shown),
        io::ErrorKind::NotFound => {
            let name =
                place.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let beside = place
                .path
                .parent()
                .and_then(|folder| std::fs::read_dir(folder).ok())
                .into_iter()
                .flatten()
                .flatten();
            let names: Vec<String> =
                beside.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            match nearest(&name, names.iter().map(String::as_str)) {
                Some(near) => format!("{} does not exist; there is {near} in the same folder", place.shown),
                None => format!("{} does not exist", place.shown),
            }
        }
        _ => format!("cannot read {}: {error}", place.shown),
    }
}

/// What the model is shown, and the hash of the whole file as far as it was read to its end.
struct Shown {
    content: Vec<Block>,
    hash: Option<BlobHash>,
}

fn show(path: &Path, offset: u64, limit: u64) -> io::Result<Shown> {
    let mut file = open_regular(path)?;
    let size = file.metadata()?.len();
    let mut start = Vec::new();
    file.by_ref().take(SNIFFED as u64).read_to_end(&mut start)?;
    file.rewind()?;
    if let Some(media_type) = image_type(&start) {
        return image(file, size, media_type);
    }
    if start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]) {
        return Ok(told(format!(
            "A text file in UTF-16, {size} bytes. Convert it first, for example with iconv."
        )));
    }
    if start.contains(&0) {
        let hex: Vec<String> = start.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        return Ok(told(format!("A binary file, {size} bytes; it starts with {}.", hex.join(" "))));
    }
    text(file, size, offset, limit)
}

fn told(text: String) -> Shown {
    Shown { content: vec![Block::text(text)], hash: None }
}

/// The MIME type of an image that models take, by its first bytes.
fn image_type(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn image(mut file: File, size: u64, media_type: &str) -> io::Result<Shown> {
    if size.div_ceil(3).saturating_mul(4) > IMAGE_LIMIT as u64 {
        return Ok(told(format!(
            "An image ({media_type}), {size} bytes: too large to be shown. Make it smaller first."
        )));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let hash = BlobHash::of(&bytes);
    let block = Block::Image { media_type: media_type.to_owned(), data: STANDARD.encode(&bytes) };
    Ok(Shown { content: vec![block], hash: Some(hash) })
}

/// Reads through the file once, keeping only the lines asked for. A file too large to be edited is left at the end of
/// them; a smaller one is read to its end for its hash and the number of its lines.
fn text(file: File, size: u64, offset: u64, limit: u64) -> io::Result<Shown> {
    let whole = size <= KEPT;
    let mut lines = Lines { from: BufReader::with_capacity(64 * 1024, file), hasher: Sha256::new() };
    let last = offset.saturating_add(limit).saturating_sub(1);
    let mut shown = String::new();
    let (mut number, mut shown_to, mut full) = (0u64, None, false);
    let (mut foreign, mut windows) = (false, false);
    while whole || (number < last && !full) {
        let wanted = (offset..=last).contains(&(number + 1)) && !full;
        let Some(line) = lines.next(if wanted { LINE } else { 0 })? else { break };
        number += 1;
        if !wanted {
            continue;
        }
        let mut start = line.start.as_slice();
        if number == 1 {
            start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
        }
        if line.left_out == 0
            && let Some(bare) = start.strip_suffix(b"\r")
        {
            windows = true;
            start = bare;
        }
        let (text, lossy) = decode(start, line.left_out > 0);
        foreign |= lossy;
        let entry = match line.left_out {
            0 => format!("{number:>6}\t{text}\n"),
            more => format!("{number:>6}\t{text}… [{more} bytes more in this line]\n"),
        };
        if shown.len() + entry.len() > SHOWN && shown_to.is_some() {
            full = true;
            continue;
        }
        shown.push_str(&entry);
        shown_to = Some(number);
    }
    let hash = if whole { Some(finish(lines.hasher)?) } else { None };
    let mut notes = Vec::new();
    match shown_to {
        None if size == 0 => notes.push("The file is empty.".to_owned()),
        None => notes.push(format!("There is no line {offset}: the file has {number} lines.")),
        Some(to) if whole && to < number => notes.push(format!("Lines {offset} to {to} of {number}.")),
        Some(to) if !whole => {
            notes.push(format!("Lines {offset} to {to} of a file of {size} bytes, too large to be edited."))
        }
        Some(_) => {}
    }
    if windows {
        notes.push("The lines end in CR LF; `edit` keeps that.".to_owned());
    }
    if foreign {
        notes.push("Some bytes are not UTF-8 and are shown as \u{fffd}.".to_owned());
    }
    if !notes.is_empty() {
        shown.push_str(&format!("[{}]", notes.join(" ")));
    }
    Ok(Shown { content: vec![Block::text(shown)], hash })
}

/// Text of bytes, and whether something in them was no UTF-8. A character that the cut at `LINE` bytes split is dropped.
fn decode(bytes: &[u8], cut: bool) -> (String, bool) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), false),
        Err(error) if cut && error.error_len().is_none() => {
            (String::from_utf8_lossy(bytes.split_at(error.valid_up_to()).0).into_owned(), false)
        }
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), true),
    }
}

struct Lines {
    from: BufReader<File>,
    hasher: Sha256,
}

struct Line {
    /// Its first bytes, without the line feed.
    start: Vec<u8>,
    /// How many more it has.
    left_out: u64,
}

impl Lines {
    /// The next line, of which at most `keep` bytes are kept in memory.
    fn next(&mut self, keep: usize) -> io::Result<Option<Line>> {
        let mut line = Line { start: Vec::new(), left_out: 0 };
        let mut any = false;
        loop {
            let buffer = self.from.fill_buf()?;
            if buffer.is_empty() {
                return Ok(any.then_some(line));
            }
            any = true;
            let end = memchr::memchr(b'\n', buffer);
            let used = end.map_or(buffer.len(), |end| end + 1);
            let (taken, _) = buffer.split_at(used);
            self.hasher.update(taken);
            let (piece, _) = taken.split_at(end.unwrap_or(used));
            let (kept, rest) = piece.split_at(piece.len().min(keep.saturating_sub(line.start.len())));
            line.start.extend_from_slice(kept);
            line.left_out += rest.len() as u64;
            self.from.consume(used);
            if end.is_some() {
                return Ok(Some(line));
            }
        }
    }
}
