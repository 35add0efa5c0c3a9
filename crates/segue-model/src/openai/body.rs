//! The body of a Chat Completions request.

use segue_log::{AssistantPart, Block, Message, UserPart};
use serde_json::{Map, Value, json};

use crate::history::{
    EMPTY, WireIds, as_text, has_prompt, image_type, is_image, is_request, prepare, tool_name,
};
use crate::model::Request;

/// The longest id of a request that OpenAI takes.
const LONGEST_ID: usize = 40;

/// The body of a streaming Chat Completions request. `provider` is the name under which the endpoint is known here:
/// reasoning that another one wrote is left out, and what only some endpoints understand goes by it.
pub fn body(request: &Request, provider: &str, model: &str) -> Value {
    let dialect = Dialect::of(provider, model);
    let mut body = Map::new();
    body.insert("model".into(), json!(model));
    body.insert("stream".into(), json!(true));
    body.insert("stream_options".into(), json!({"include_usage": true}));
    let parameters = &request.parameters;
    if let Some(tokens) = parameters.max_tokens {
        let name = if dialect.is_openai { "max_completion_tokens" } else { "max_tokens" };
        body.insert(name.into(), json!(tokens));
    }
    if let Some(temperature) = parameters.temperature {
        body.insert("temperature".into(), json!(temperature));
    }
    if let Some(effort) = &parameters.reasoning_effort {
        body.insert("reasoning_effort".into(), json!(effort));
    }
    if !request.tools.is_empty() {
        body.insert("tools".into(), tools(request));
    }
    body.insert("messages".into(), messages(request, provider, dialect));
    Value::Object(body)
}

/// What endpoints of this wire format differ in.
#[derive(Clone, Copy)]
struct Dialect {
    /// OpenAI itself: `max_completion_tokens`, and texts side by side. Elsewhere texts are joined, as not every server
    /// takes a list.
    is_openai: bool,
    /// DeepSeek refuses a message with calls that does not carry its reasoning, be it empty.
    wants_reasoning: bool,
}

impl Dialect {
    fn of(provider: &str, model: &str) -> Self {
        Self {
            is_openai: provider == "openai",
            wants_reasoning: provider == "deepseek" || model.contains("deepseek"),
        }
    }
}

fn tools(request: &Request) -> Value {
    let tool = |tool: &crate::ToolSpec| {
        json!({
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        })
    };
    request.tools.iter().map(tool).collect()
}

fn messages(request: &Request, provider: &str, dialect: Dialect) -> Value {
    let history = prepare(&request.messages, provider, is_sendable);
    let with_reasoning = with_reasoning(&history);
    let mut ids = WireIds::new(LONGEST_ID);
    let mut out = Vec::new();
    if !request.system.trim().is_empty() {
        out.push(json!({"role": "system", "content": request.system}));
    }
    for (message, with_reasoning) in history.iter().zip(with_reasoning) {
        match message {
            Message::User { parts } => user(parts, &mut ids, dialect, &mut out),
            Message::Assistant { parts, .. } => out.push(assistant(parts, &mut ids, dialect, with_reasoning)),
        }
    }
    Value::Array(out)
}

fn is_sendable(part: &AssistantPart) -> bool {
    match part {
        AssistantPart::Thinking { text, .. } => !text.is_empty(),
        AssistantPart::Text { text } => !text.trim().is_empty(),
        AssistantPart::Request { .. } => true,
    }
}

/// Which messages take their reasoning along: those of the running round, and those of earlier rounds in which tools
/// were called. DeepSeek requires the latter and passes over what comes from rounds without calls. A round is what
/// follows a prompt.
fn with_reasoning(history: &[Message]) -> Vec<bool> {
    let mut rounds = vec![false];
    let mut round_of = Vec::with_capacity(history.len());
    for message in history {
        match message {
            Message::User { parts } if has_prompt(parts) => rounds.push(false),
            Message::User { .. } => {}
            Message::Assistant { parts, .. } => {
                if let Some(called) = rounds.last_mut() {
                    *called |= parts.iter().any(is_request);
                }
            }
        }
        round_of.push(rounds.len() - 1);
    }
    if let Some(running) = rounds.last_mut() {
        *running = true;
    }
    round_of.into_iter().map(|round| rounds.get(round).copied().unwrap_or_default()).collect()
}

/// Results become messages of their own; the images in them follow in the user's message, as results hold only text.
fn user(parts: &[UserPart], ids: &mut WireIds, dialect: Dialect, out: &mut Vec<Value>) {
    let mut content = Vec::new();
    for part in parts {
        let UserPart::Result { wire_id, content: blocks, .. } = part else { continue };
        let id = ids.id(wire_id);
        let texts: Vec<String> =
            blocks.iter().filter(|block| !has_image(block)).filter_map(as_text).collect();
        let images: Vec<Value> =
            blocks.iter().filter(|block| has_image(block)).filter_map(part_value).collect();
        let text = match (texts.is_empty(), images.is_empty()) {
            (false, _) => texts.join("\n"),
            (true, true) => EMPTY.to_owned(),
            (true, false) => "(the image follows)".to_owned(),
        };
        out.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
        if !images.is_empty() {
            content.push(text_part(&format!("Images from the result of {id}:")));
            content.extend(images);
        }
    }
    content.extend(parts.iter().filter_map(|part| match part {
        UserPart::Result { .. } => None,
        UserPart::Block(block) => part_value(block),
        UserPart::Note { text } => Some(text_part(text)),
    }));
    let has_results = parts.iter().any(|part| matches!(part, UserPart::Result { .. }));
    if content.is_empty() && has_results {
        return;
    }
    out.push(json!({"role": "user", "content": content_value(content, dialect)}));
}

/// One text is sent as such; so are several where a list might not be understood.
fn content_value(parts: Vec<Value>, dialect: Dialect) -> Value {
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    if texts.is_empty() && parts.is_empty() {
        return json!(EMPTY);
    }
    if texts.len() == parts.len() && (texts.len() == 1 || !dialect.is_openai) {
        return json!(texts.join("\n\n"));
    }
    Value::Array(parts)
}

fn assistant(parts: &[AssistantPart], ids: &mut WireIds, dialect: Dialect, with_reasoning: bool) -> Value {
    let mut texts = Vec::new();
    let mut reasoning = String::new();
    let mut calls = Vec::new();
    for part in parts {
        match part {
            AssistantPart::Text { text } => texts.push(text.as_str()),
            AssistantPart::Thinking { text, .. } => reasoning.push_str(text),
            AssistantPart::Request { wire_id, tool, input } => calls.push(json!({
                "id": ids.id(wire_id),
                "type": "function",
                "function": {"name": tool_name(tool), "arguments": arguments(input)},
            })),
        }
    }
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    message.insert("content".into(), if texts.is_empty() { Value::Null } else { json!(texts.join("\n")) });
    if with_reasoning && (!reasoning.is_empty() || dialect.wants_reasoning) {
        message.insert("reasoning_content".into(), json!(reasoning));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), Value::Array(calls));
    }
    Value::Object(message)
}

/// Arguments are text on this wire, so what was no JSON goes back as it came.
fn arguments(input: &Value) -> String {
    match input {
        Value::String(raw) => raw.clone(),
        other => other.to_string(),
    }
}

fn has_image(block: &Block) -> bool {
    matches!(block, Block::Image { media_type, data } if is_image(image_type(media_type, data), data))
}

fn part_value(block: &Block) -> Option<Value> {
    match block {
        Block::Image { media_type, data } if has_image(block) => Some(json!({
            "type": "image_url",
            "image_url": {"url": format!("data:{};base64,{data}", image_type(media_type, data))},
        })),
        other => as_text(other).map(|text| text_part(&text)),
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}
