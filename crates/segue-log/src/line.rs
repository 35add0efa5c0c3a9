//! How headers and records stand in a log file: one line of JSON each, closed by a checksum of the line's bytes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::id::BlobHash;
use crate::record::{Event, FORMAT, Header, Record, Seq};
use crate::time::Time;

/// No line is longer, its newline included, in bytes.
pub const MAX_LINE: usize = 32 * 1024;

/// `,"crc":"xxxxxxxx"}`
const CRC_SUFFIX: usize = 18;

/// Why a line is not a record or a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// The line does not end in a checksum.
    #[error("the line has no checksum")]
    NoChecksum,
    /// The checksum does not fit the bytes.
    #[error("the checksum is wrong")]
    WrongChecksum,
    /// The bytes are intact but are no record.
    #[error("not a record: {0}")]
    NotARecord(String),
}

/// A record as it goes to disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// The line, its newline included.
    pub line: String,
    /// What must be durable before the line is written.
    pub blobs: Vec<(BlobHash, Vec<u8>)>,
    /// The fields that were moved out.
    pub moved: BTreeMap<String, BlobHash>,
}

/// The header's line, its newline included.
pub fn encode_header(header: &Header) -> String {
    let mut body = serde_json::to_string(header).unwrap_or_default();
    body.pop();
    seal(body)
}

/// Reads a header's line, with or without its newline. A newer format is no error here: look at `segue`.
pub fn decode_header(line: &[u8]) -> Result<Header, BadLine> {
    serde_json::from_str(open(line)?).map_err(|error| BadLine::NotARecord(error.to_string()))
}

/// True if this version may write to a log with that header.
pub fn is_writable(header: &Header) -> bool {
    header.segue <= FORMAT
}

/// Writes a record. The largest fields of its data move to blobs until the line fits into [`MAX_LINE`].
pub fn encode(seq: Seq, time: Time, event: &Event, synced: Seq) -> Encoded {
    let mut moved = BTreeMap::new();
    let mut blobs = Vec::new();
    let data = event.data_json();
    let mut line = assemble(seq, time, event.kind(), &data, &moved, synced);
    if line.len() > MAX_LINE
        && let Value::Object(mut fields) = event.data()
    {
        while line.len() > MAX_LINE {
            let Some((name, json)) = largest(&fields) else { break };
            let hash = BlobHash::of(json.as_bytes());
            fields.shift_remove(&name);
            moved.insert(name, hash);
            blobs.push((hash, json.into_bytes()));
            let data = Value::Object(fields.clone()).to_string();
            line = assemble(seq, time, event.kind(), &data, &moved, synced);
        }
    }
    Encoded { line, blobs, moved }
}

fn largest(fields: &Map<String, Value>) -> Option<(String, String)> {
    fields.iter().map(|(name, value)| (name.clone(), value.to_string())).max_by_key(|(_, json)| json.len())
}

fn assemble(
    seq: Seq,
    time: Time,
    kind: &str,
    data: &str,
    moved: &BTreeMap<String, BlobHash>,
    synced: Seq,
) -> String {
    let kind = Value::from(kind);
    let mut body = format!(r#"{{"seq":{seq},"time":"{time}","type":{kind},"data":{data}"#);
    if !moved.is_empty() {
        body.push_str(r#","blobs":"#);
        body.push_str(&serde_json::to_string(moved).unwrap_or_default());
    }
    body.push_str(&format!(r#","synced":{synced}"#));
    seal(body)
}

fn seal(mut body: String) -> String {
    let crc = crc32c::crc32c(body.as_bytes());
    body.push_str(&format!(",\"crc\":\"{crc:08x}\"}}\n"));
    body
}

/// Checks a line's checksum and gives it back as text without its newline.
fn open(line: &[u8]) -> Result<&str, BadLine> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (body, suffix) = line
        .len()
        .checked_sub(CRC_SUFFIX)
        .and_then(|at| line.split_at_checked(at))
        .ok_or(BadLine::NoChecksum)?;
    let crc = suffix
        .strip_prefix(br#","crc":""#)
        .and_then(|rest| rest.strip_suffix(br#""}"#))
        .ok_or(BadLine::NoChecksum)?;
    if format!("{:08x}", crc32c::crc32c(body)).as_bytes() != crc {
        return Err(BadLine::WrongChecksum);
    }
    std::str::from_utf8(line).map_err(|error| BadLine::NotARecord(error.to_string()))
}

#[derive(Deserialize)]
struct Line<'a> {
    seq: Seq,
    time: Time,
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(default)]
    blobs: BTreeMap<String, BlobHash>,
    #[serde(default)]
    synced: Seq,
}

/// Reads a record's line, with or without its newline. `load` fetches the blobs it names; what cannot be
/// fetched, or does not have its name's hash, is shown as lost content.
pub fn decode(line: &[u8], load: &mut dyn FnMut(&BlobHash) -> Option<Vec<u8>>) -> Result<Record, BadLine> {
    let not_a_record = |error: serde_json::Error| BadLine::NotARecord(error.to_string());
    let parsed: Line<'_> = serde_json::from_str(open(line)?).map_err(not_a_record)?;
    let event = if parsed.blobs.is_empty() {
        Event::parse(&parsed.kind, parsed.data.get())
    } else {
        let mut data: Value = serde_json::from_str(parsed.data.get()).map_err(not_a_record)?;
        if let Some(fields) = data.as_object_mut() {
            for (name, hash) in &parsed.blobs {
                let found = load(hash)
                    .filter(|bytes| BlobHash::of(bytes) == *hash)
                    .and_then(|bytes| serde_json::from_slice(&bytes).ok());
                fields.insert(name.clone(), found.unwrap_or_else(|| lost(name, hash)));
            }
        }
        Event::parse(&parsed.kind, &data.to_string())
    };
    Ok(Record {
        seq: parsed.seq,
        time: parsed.time,
        event: event.map_err(not_a_record)?,
        synced: parsed.synced,
        blobs: parsed.blobs,
    })
}

/// Stands in for a field whose blob is missing or wrong, in the field's own shape.
fn lost(field: &str, hash: &BlobHash) -> Value {
    let text = format!("[content lost: blob {hash} is missing or damaged]");
    match field {
        "content" => serde_json::json!([{ "type": "text", "text": text }]),
        "entries" | "promptIds" | "files" => Value::Array(Vec::new()),
        "input" | "update" | "parameters" | "tools" => serde_json::json!({ "lost": text }),
        // Without it the outcome cannot be told from the file; the call itself stays.
        "expect" => Value::Null,
        _ => Value::String(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    use crate::{Block, Effect, Expect, Origin, PromptQueued, SessionId, ToolCall};

    fn prompt(text: &str) -> Event {
        PromptQueued {
            prompt_id: "p1".parse().unwrap(),
            content: vec![Block::text(text)],
            source: "test".into(),
            target: Default::default(),
        }
        .into()
    }

    fn time() -> Time {
        Time::from_millis(1_796_083_200_007)
    }

    #[test]
    fn a_line_is_what_the_format_says() {
        let encoded = encode(7, time(), &prompt("hi"), 6);
        let body = r#"{"seq":7,"time":"2026-12-01T00:00:00.007Z","type":"prompt/queued","data":{"promptId":"p1","content":[{"type":"text","text":"hi"}],"source":"test","for":"turn"},"synced":6"#;
        let crc = crc32c::crc32c(body.as_bytes());
        assert_eq!(encoded.line, format!("{body},\"crc\":\"{crc:08x}\"}}\n"));
        assert_eq!(encoded.blobs, vec![]);
        let record = decode(encoded.line.as_bytes(), &mut |_| None).unwrap();
        assert_eq!((record.seq, record.time, record.synced), (7, time(), 6));
        assert_eq!(record.event, prompt("hi"));
    }

    #[test]
    fn large_fields_move_to_blobs_and_come_back() {
        let event = prompt(&"x".repeat(100_000));
        let encoded = encode(1, time(), &event, 0);
        assert!(encoded.line.len() <= MAX_LINE);
        let [(hash, bytes)] = encoded.blobs.as_slice() else { panic!("one blob") };
        assert_eq!(encoded.moved.get("content"), Some(hash));
        let record = decode(encoded.line.as_bytes(), &mut |_| Some(bytes.clone())).unwrap();
        assert_eq!(record.event, event);
        for wrong in [None, Some(b"[]".to_vec())] {
            let record = decode(encoded.line.as_bytes(), &mut |_| wrong.clone()).unwrap();
            let Event::PromptQueued(data) = record.event else { panic!("still a prompt") };
            assert_eq!(
                data.content,
                vec![Block::text(format!("[content lost: blob {hash} is missing or damaged]"))]
            );
        }
    }

    // It was no call any more, so repair said of one that had been entered that it was not started.
    #[test]
    fn a_call_stays_a_call_without_its_largest_fields() {
        let path = PathBuf::from("/x".repeat(20_000));
        let expect = Expect { path, before: None, after: BlobHash::of(b""), kept: None };
        let event = ToolCall {
            turn: 1,
            step: 1,
            call_id: "c1".parse().unwrap(),
            provider_id: "p".into(),
            tool: "write".into(),
            input: serde_json::json!({"content": "x".repeat(40_000)}),
            effect: Effect::Idempotent,
            expect: Some(expect),
            origin: Origin::Dispatched,
            host: String::new(),
            boot: String::new(),
            replayed: false,
        };
        let encoded = encode(1, time(), &event.into(), 0);
        assert_eq!(encoded.moved.keys().collect::<Vec<_>>(), ["expect", "input"]);
        let record = decode(encoded.line.as_bytes(), &mut |_| None).unwrap();
        let Event::ToolCall(data) = record.event else { panic!("still a call") };
        assert_eq!((data.call_id.as_str(), data.expect), ("c1", None));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let line = encode(1, time(), &prompt("hello"), 0).line.into_bytes();
        for at in 0..line.len() - 1 {
            let mut bad = line.clone();
            bad[at] ^= 0x10;
            assert!(decode(&bad, &mut |_| None).is_err(), "byte {at}");
        }
        for end in 0..line.len() - 1 {
            assert!(decode(&line[..end], &mut |_| None).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn unknown_types_and_misfits_are_kept() {
        let event = Event::Unknown { kind: "future/thing".into(), data: serde_json::json!({"a": [1, 2]}) };
        let line = encode(3, time(), &event, 2).line;
        assert_eq!(decode(line.as_bytes(), &mut |_| None).unwrap().event, event);
        let misfit = Event::Unknown { kind: "turn/start".into(), data: serde_json::json!({"turn": "one"}) };
        let line = encode(3, time(), &misfit, 2).line;
        assert_eq!(decode(line.as_bytes(), &mut |_| None).unwrap().event, misfit);
    }

    #[test]
    fn headers_round_trip_and_newer_ones_can_be_read() {
        let header =
            Header { segue: 1, id: SessionId::mint(), created: time(), cwd: "/a b".into(), parent: None };
        let line = encode_header(&header);
        assert_eq!(decode_header(line.as_bytes()), Ok(header.clone()));
        let newer = encode_header(&Header { segue: 9, ..header });
        assert!(!is_writable(&decode_header(newer.as_bytes()).unwrap()));
    }
}
