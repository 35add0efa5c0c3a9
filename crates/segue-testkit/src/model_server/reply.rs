//! What the server says, and how each wire format says it.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Wire, responses};

/// A scripted reply. Start with [`Reply::text`], [`Reply::call`], [`Reply::new`] or [`Reply::error`] and go on from there.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    before: Vec<Step>,
    parts: Vec<Part>,
    stop: Option<String>,
    usage: [u64; 4],
    end: End,
    plain: bool,
    body: Option<Vec<u8>>,
    pace: Option<Duration>,
    bytes_a_chunk: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    Text(String),
    Thinking { text: String, signature: Option<String> },
    Redacted(String),
    Refusal(String),
    Call { id: Option<String>, tool: String, input: String },
    Event(Value),
    Raw(Vec<u8>),
    Pause(Duration),
}

#[derive(Debug, Clone, PartialEq)]
enum End {
    /// With a stop, as it should.
    Whole,
    /// Politely, but without a stop.
    Early,
    Drop,
    Hang,
}

/// What happens on the connection.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Status and headers leave.
    Head,
    Bytes(Vec<u8>),
    Pause(Duration),
    Hang,
    Drop,
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}

impl Reply {
    /// An empty answer.
    pub fn new() -> Self {
        Self {
            status: 200,
            headers: Vec::new(),
            before: Vec::new(),
            parts: Vec::new(),
            stop: None,
            usage: [10, 5, 0, 0],
            end: End::Whole,
            plain: false,
            body: None,
            pace: None,
            bytes_a_chunk: None,
        }
    }

    /// An answer of text, streamed word by word.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new().and_text(text)
    }

    /// An answer that calls a tool.
    pub fn call(tool: &str, input: Value) -> Self {
        Self::new().and_call(tool, input)
    }

    /// An error: its HTTP status and body.
    pub fn error(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: Some(body.into()), ..Self::new() }
    }

    /// An error in the provider's own shape.
    pub fn refusal(status: u16, kind: &str, message: &str) -> Self {
        let error = json!({"type": "error", "error": {"type": kind, "code": kind, "message": message}});
        Self::error(status, error.to_string()).header("content-type", "application/json")
    }

    /// These bytes instead of anything that the wire format knows.
    pub fn body(bytes: impl Into<Vec<u8>>) -> Self {
        Self::error(200, bytes)
    }

    /// The connection is dropped before any header.
    pub fn dropped() -> Self {
        Self { before: vec![Step::Drop], ..Self::new() }
    }

    /// Nothing ever comes, not even headers.
    pub fn silent() -> Self {
        Self { before: vec![Step::Hang], ..Self::new() }
    }

    /// Further text.
    pub fn and_text(self, text: impl Into<String>) -> Self {
        self.and(Part::Text(text.into()))
    }

    /// A further call, with an id of the server's making.
    pub fn and_call(self, tool: &str, input: Value) -> Self {
        self.and(Part::Call { id: None, tool: tool.to_owned(), input: input.to_string() })
    }

    /// A further call with a given id (that of another call, or an empty one, as some endpoints do) and the arguments
    /// as raw text, JSON or not.
    pub fn and_raw_call(self, id: &str, tool: &str, input: &str) -> Self {
        self.and(Part::Call { id: Some(id.to_owned()), tool: tool.to_owned(), input: input.to_owned() })
    }

    /// Thinking; Anthropic seals it, elsewhere it is reasoning content.
    pub fn and_thinking(self, text: &str) -> Self {
        self.and(Part::Thinking {
            text: text.to_owned(),
            signature: Some(format!("seal of {} bytes", text.len())),
        })
    }

    /// Thinking that only Anthropic can read.
    pub fn and_redacted(self, data: &str) -> Self {
        self.and(Part::Redacted(data.to_owned()))
    }

    /// A refusal in words, as OpenAI gives it; text and the stop reason elsewhere.
    pub fn and_refusal(self, text: &str) -> Self {
        self.and(Part::Refusal(text.to_owned()))
    }

    /// An event of the script's making.
    pub fn and_event(self, data: Value) -> Self {
        self.and(Part::Event(data))
    }

    /// Bytes in the middle of the stream.
    pub fn and_raw(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.and(Part::Raw(bytes.into()))
    }

    /// A pause in the middle of the stream.
    pub fn and_pause(self, time: Duration) -> Self {
        self.and(Part::Pause(time))
    }

    /// A pause before the headers.
    pub fn after(mut self, time: Duration) -> Self {
        self.before.push(Step::Pause(time));
        self
    }

    /// A pause before each piece of text.
    pub fn pace(self, time: Duration) -> Self {
        Self { pace: Some(time), ..self }
    }

    /// The stop reason, in the provider's word.
    pub fn stop(self, word: &str) -> Self {
        Self { stop: Some(word.to_owned()), ..self }
    }

    /// Stops for the length limit, in either provider's word.
    pub fn max_tokens(self) -> Self {
        self.stop("max_tokens")
    }

    /// Tokens used: read (without the cache), written, read from the cache, written to the cache.
    pub fn usage(self, input: u64, output: u64, cache_read: u64, cache_write: u64) -> Self {
        Self { usage: [input, output, cache_read, cache_write], ..self }
    }

    /// A header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// After the parts so far nothing comes any more, and the connection stays open.
    pub fn then_hang(self) -> Self {
        Self { end: End::Hang, ..self }
    }

    /// After the parts so far the connection is dropped.
    pub fn then_drop(self) -> Self {
        Self { end: End::Drop, ..self }
    }

    /// After the parts so far the answer ends politely, but without a stop.
    pub fn then_end(self) -> Self {
        Self { end: End::Early, ..self }
    }

    /// In one piece of JSON, as endpoints answer that do not stream.
    pub fn plain(self) -> Self {
        Self { plain: true, ..self }
    }

    /// Cuts the stream into chunks of so many bytes, through events and characters.
    pub fn chunks(self, bytes: usize) -> Self {
        Self { bytes_a_chunk: Some(bytes.max(1)), ..self }
    }

    fn and(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn headers(&self) -> Vec<(String, String)> {
        let kind = if self.plain { "application/json" } else { "text/event-stream" };
        let mut headers = self.headers.clone();
        if self.body.is_none() {
            headers.push(("content-type".into(), kind.into()));
        }
        headers
    }

    /// What happens, in order. `number` makes the ids of this reply's calls.
    pub(super) fn steps(&self, wire: Wire, number: u64) -> VecDeque<Step> {
        let mut steps: Vec<Step> = self.before.clone();
        steps.push(Step::Head);
        if let Some(body) = &self.body {
            steps.push(Step::Bytes(body.clone()));
        } else if self.plain {
            steps.push(Step::Bytes(self.message(wire, number).to_string().into_bytes()));
        } else {
            self.stream(wire, number, &mut steps);
        }
        match self.end {
            End::Hang => steps.push(Step::Hang),
            End::Drop => steps.push(Step::Drop),
            End::Whole | End::Early => {}
        }
        let Some(size) = self.bytes_a_chunk else { return steps.into() };
        let cut = |step| match step {
            Step::Bytes(bytes) => bytes.chunks(size).map(|chunk| Step::Bytes(chunk.to_vec())).collect(),
            other => vec![other],
        };
        steps.into_iter().flat_map(cut).collect()
    }

    fn stop_word(&self, wire: Wire) -> String {
        let calls = self.parts.iter().any(|part| matches!(part, Part::Call { .. }));
        let refused = self.parts.iter().any(|part| matches!(part, Part::Refusal(_)));
        match (wire, self.stop.as_deref()) {
            (Wire::OpenAi, Some("max_tokens")) => "length",
            (Wire::Responses, Some("max_tokens")) => "max_output_tokens",
            (_, Some(word)) => word,
            (Wire::Anthropic, None) if calls => "tool_use",
            (Wire::Anthropic, None) if refused => "refusal",
            (Wire::Anthropic, None) => "end_turn",
            (Wire::OpenAi, None) if calls => "tool_calls",
            (Wire::OpenAi, None) => "stop",
            (Wire::Responses, None) => "completed",
        }
        .to_owned()
    }

    fn usage_value(&self, wire: Wire) -> Value {
        let [input, output, read, write] = self.usage;
        match wire {
            Wire::Anthropic => json!({
                "input_tokens": input,
                "output_tokens": output,
                "cache_read_input_tokens": read,
                "cache_creation_input_tokens": write,
            }),
            Wire::OpenAi => json!({
                "prompt_tokens": input + read,
                "completion_tokens": output,
                "total_tokens": input + read + output,
                "prompt_tokens_details": {"cached_tokens": read},
            }),
            Wire::Responses => json!({
                "input_tokens": input + read,
                "input_tokens_details": {"cached_tokens": read},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": input + read + output,
            }),
        }
    }

    /// The answer in one piece.
    fn message(&self, wire: Wire, number: u64) -> Value {
        let usage = self.usage_value(wire);
        let stop = self.stop_word(wire);
        let mut calls = 0;
        match wire {
            Wire::Anthropic => {
                let block = |part: &Part| match part {
                    Part::Text(text) | Part::Refusal(text) => Some(json!({"type": "text", "text": text})),
                    Part::Thinking { text, signature } => {
                        Some(json!({"type": "thinking", "thinking": text, "signature": signature}))
                    }
                    Part::Redacted(data) => Some(json!({"type": "redacted_thinking", "data": data})),
                    Part::Call { id, tool, input } => {
                        calls += 1;
                        let input: Value = serde_json::from_str(input).unwrap_or(Value::Null);
                        let id = id.clone().unwrap_or_else(|| format!("toolu_{number}_{calls}"));
                        Some(json!({"type": "tool_use", "id": id, "name": tool, "input": input}))
                    }
                    _ => None,
                };
                let content: Vec<Value> = self.parts.iter().filter_map(block).collect();
                json!({
                    "id": format!("msg_{number}"), "type": "message", "role": "assistant", "model": "test",
                    "content": content, "stop_reason": stop, "usage": usage,
                })
            }
            Wire::OpenAi => {
                let mut message = json!({"role": "assistant", "content": null});
                for part in &self.parts {
                    match part {
                        Part::Text(text) => message["content"] = json!(text),
                        Part::Refusal(text) => message["refusal"] = json!(text),
                        Part::Thinking { text, .. } => message["reasoning_content"] = json!(text),
                        Part::Call { id, tool, input } => {
                            calls += 1;
                            let id = id.clone().unwrap_or_else(|| format!("call_{number}_{calls}"));
                            let call = json!({
                                "id": id, "type": "function", "function": {"name": tool, "arguments": input},
                            });
                            match message["tool_calls"].as_array_mut() {
                                Some(list) => list.push(call),
                                None => message["tool_calls"] = json!([call]),
                            }
                        }
                        _ => {}
                    }
                }
                json!({
                    "id": format!("chatcmpl-{number}"), "object": "chat.completion", "model": "test",
                    "choices": [{"index": 0, "message": message, "finish_reason": stop}], "usage": usage,
                })
            }
            Wire::Responses => {
                let items = self.parts.iter().enumerate();
                let output: Vec<Value> =
                    items.filter_map(|(at, part)| responses::item(part, number, at)).collect();
                responses::whole(number, &stop, output, &usage)
            }
        }
    }

    /// The answer as a stream of events.
    fn stream(&self, wire: Wire, number: u64, steps: &mut Vec<Step>) {
        let mut out = Events { wire, number, pace: self.pace, blocks: 0, calls: 0, steps };
        if wire == Wire::Anthropic {
            let [input, _, read, write] = self.usage;
            out.event(json!({"type": "message_start", "message": {
                "id": format!("msg_{number}"), "type": "message", "role": "assistant", "content": [], "model": "test",
                "usage": {
                    "input_tokens": input, "output_tokens": 1,
                    "cache_read_input_tokens": read, "cache_creation_input_tokens": write,
                },
            }}));
            out.event(json!({"type": "ping"}));
        } else if wire == Wire::Responses {
            let response = json!({"id": format!("resp_{number}"), "status": "in_progress"});
            out.event(json!({"type": "response.created", "response": response}));
        } else {
            out.chunk(json!({"role": "assistant", "content": ""}), None);
        }
        for part in &self.parts {
            out.part(part);
        }
        if self.end != End::Whole {
            return;
        }
        let stop = self.stop_word(wire);
        match wire {
            Wire::Anthropic => {
                let usage = json!({"output_tokens": self.usage[1]});
                let delta = json!({"stop_reason": stop, "stop_sequence": null});
                out.event(json!({"type": "message_delta", "delta": delta, "usage": usage}));
                out.event(json!({"type": "message_stop"}));
            }
            Wire::OpenAi => {
                out.chunk(json!({}), Some(&stop));
                out.event(json!({"id": format!("chatcmpl-{number}"), "choices": [], "usage": self.usage_value(wire)}));
                out.bytes(b"data: [DONE]\n\n");
            }
            Wire::Responses => {
                let whole = self.message(wire, number);
                let kind = format!("response.{}", whole["status"].as_str().unwrap_or_default());
                out.event(json!({"type": kind, "response": whole}));
            }
        }
    }
}

/// Writes the events of one stream.
struct Events<'a> {
    wire: Wire,
    number: u64,
    pace: Option<Duration>,
    blocks: usize,
    calls: usize,
    steps: &'a mut Vec<Step>,
}

impl Events<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.steps.push(Step::Bytes(bytes.to_vec()));
    }

    fn event(&mut self, data: Value) {
        let name = match (self.wire, data["type"].as_str()) {
            (Wire::Anthropic | Wire::Responses, Some(kind)) => format!("event: {kind}\n"),
            _ => String::new(),
        };
        self.bytes(format!("{name}data: {data}\n\n").as_bytes());
    }

    fn chunk(&mut self, delta: Value, stop: Option<&str>) {
        self.event(json!({
            "id": format!("chatcmpl-{}", self.number), "object": "chat.completion.chunk", "model": "test",
            "choices": [{"index": 0, "delta": delta, "finish_reason": stop}],
        }));
    }

    fn part(&mut self, part: &Part) {
        match part {
            Part::Raw(bytes) => self.bytes(bytes),
            Part::Event(data) => self.event(data.clone()),
            Part::Pause(time) => self.steps.push(Step::Pause(*time)),
            part if self.wire == Wire::Anthropic => self.anthropic(part),
            part if self.wire == Wire::Responses => self.responses(part),
            part => self.openai(part),
        }
    }

    fn anthropic(&mut self, part: &Part) {
        let index = self.blocks;
        self.blocks += 1;
        let (start, deltas) = match part {
            Part::Text(text) | Part::Refusal(text) => {
                let deltas = words(text).map(|word| json!({"type": "text_delta", "text": word})).collect();
                (json!({"type": "text", "text": ""}), deltas)
            }
            Part::Thinking { text, signature } => {
                let mut deltas: Vec<Value> =
                    words(text).map(|word| json!({"type": "thinking_delta", "thinking": word})).collect();
                deltas.extend(
                    signature.iter().map(|seal| json!({"type": "signature_delta", "signature": seal})),
                );
                (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas)
            }
            Part::Redacted(data) => (json!({"type": "redacted_thinking", "data": data}), Vec::new()),
            Part::Call { id, tool, input } => {
                self.calls += 1;
                let id = id.clone().unwrap_or_else(|| format!("toolu_{}_{}", self.number, self.calls));
                let deltas = halves(input)
                    .into_iter()
                    .map(|half| json!({"type": "input_json_delta", "partial_json": half}))
                    .collect();
                (json!({"type": "tool_use", "id": id, "name": tool, "input": {}}), deltas)
            }
            Part::Event(_) | Part::Raw(_) | Part::Pause(_) => return,
        };
        self.event(json!({"type": "content_block_start", "index": index, "content_block": start}));
        for delta in deltas {
            self.steps.extend(self.pace.map(Step::Pause));
            self.event(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        self.event(json!({"type": "content_block_stop", "index": index}));
    }

    fn responses(&mut self, part: &Part) {
        let index = self.blocks;
        self.blocks += 1;
        let Some(item) = responses::item(part, self.number, index) else { return };
        self.event(json!({
            "type": "response.output_item.added", "output_index": index, "item": responses::opened(&item),
        }));
        if let Part::Text(text) | Part::Refusal(text) = part {
            for word in words(text) {
                self.steps.extend(self.pace.map(Step::Pause));
                self.event(json!({
                    "type": "response.output_text.delta", "output_index": index, "content_index": 0,
                    "item_id": item["id"], "delta": word,
                }));
            }
        }
        self.event(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
    }

    fn openai(&mut self, part: &Part) {
        let (key, text) = match part {
            Part::Text(text) => ("content", text),
            Part::Refusal(text) => ("refusal", text),
            Part::Thinking { text, .. } => ("reasoning_content", text),
            Part::Call { id, tool, input } => {
                let index = self.calls;
                self.calls += 1;
                let id = id.clone().unwrap_or_else(|| format!("call_{}_{}", self.number, self.calls));
                let function = json!({"name": tool, "arguments": ""});
                let call = json!({"index": index, "id": id, "type": "function", "function": function});
                self.chunk(json!({"tool_calls": [call]}), None);
                for half in halves(input) {
                    let piece = json!({"index": index, "function": {"arguments": half}});
                    self.chunk(json!({"tool_calls": [piece]}), None);
                }
                return;
            }
            Part::Redacted(_) | Part::Event(_) | Part::Raw(_) | Part::Pause(_) => return,
        };
        for word in words(text) {
            self.steps.extend(self.pace.map(Step::Pause));
            self.chunk(json!({key: word}), None);
        }
    }
}

/// A text in words, each with the space after it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

fn halves(text: &str) -> [&str; 2] {
    let middle = (text.len() / 2..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let (left, right) = text.split_at(middle);
    [left, right]
}
