//! The body of a Messages request.

use segue_log::{AssistantPart, Block, Message, UserPart};
use serde_json::{Map, Value, json};

use crate::history::{
    EMPTY, WireIds, as_text, image_type, is_image, is_request, is_thinking, prepare, tool_name,
};
use crate::model::{Request, ToolSpec};

/// The smallest thinking budget that the API takes, in tokens.
const LEAST_THINKING: u64 = 1024;
/// The longest id of a request that we send.
const LONGEST_ID: usize = 64;

/// The body of a streaming Messages request. `provider` is the name under which the endpoint is known here: thinking
/// that another one wrote is left out.
pub fn body(request: &Request, provider: &str, model: &str) -> Value {
    let history = prepare(&request.messages, provider, is_sendable);
    let thinking = Thinking::of(request, model, &history);
    let mut body = Map::new();
    body.insert("model".into(), json!(model));
    body.insert("max_tokens".into(), json!(thinking.max_tokens(request, model)));
    body.insert("stream".into(), json!(true));
    if !request.system.trim().is_empty() {
        let mut block = text_block(&request.system);
        mark(&mut block);
        body.insert("system".into(), json!([block]));
    }
    if !request.tools.is_empty() {
        body.insert("tools".into(), tools(&request.tools));
    } else if let Some(known) = tools_of(&history) {
        // Calls in a history are refused where no tools are, as in the request for a summary.
        body.insert("tools".into(), tools(&known));
        body.insert("tool_choice".into(), json!({"type": "none"}));
    }
    body.insert("messages".into(), messages(&history));
    match thinking {
        Thinking::Off => {
            if let Some(temperature) = request.parameters.temperature {
                body.insert("temperature".into(), json!(temperature));
            }
        }
        // With thinking on, the API wants the temperature left alone.
        Thinking::Adaptive => {
            body.insert("thinking".into(), json!({"type": "adaptive"}));
        }
        Thinking::Budget(tokens) => {
            body.insert("thinking".into(), json!({"type": "enabled", "budget_tokens": tokens}));
        }
    }
    if let Some(effort) = &request.parameters.reasoning_effort {
        body.insert("output_config".into(), json!({"effort": effort}));
    }
    Value::Object(body)
}

/// How thinking is asked for.
enum Thinking {
    Off,
    Adaptive,
    Budget(u64),
}

impl Thinking {
    fn of(request: &Request, model: &str, history: &[Message]) -> Self {
        let budget = request.parameters.thinking_tokens.filter(|tokens| *tokens > 0);
        if !takes_budget(model) {
            let wanted = budget.is_some() || request.parameters.reasoning_effort.is_some();
            return if wanted { Self::Adaptive } else { Self::Off };
        }
        match budget {
            Some(tokens) if can_think(history) => Self::Budget(tokens.max(LEAST_THINKING)),
            _ => Self::Off,
        }
    }

    /// `max_tokens`, which the API requires and which counts thinking too.
    fn max_tokens(&self, request: &Request, model: &str) -> u64 {
        let answer = request.parameters.max_tokens.unwrap_or_else(|| longest_answer(model)).max(1);
        match self {
            Self::Budget(tokens) if answer <= *tokens => tokens.saturating_add(answer),
            _ => answer,
        }
    }
}

/// True for models whose thinking is turned on with a budget; later ones think as they see fit and refuse a budget.
fn takes_budget(model: &str) -> bool {
    const BUDGETED: [&str; 10] = [
        "claude-3",
        "claude-opus-4-0",
        "claude-opus-4-1",
        "claude-opus-4-2025",
        "claude-opus-4-5",
        "claude-sonnet-4-0",
        "claude-sonnet-4-2025",
        "claude-sonnet-4-5",
        "claude-haiku-4",
        "claude-2",
    ];
    !model.contains("claude") || BUDGETED.iter().any(|known| model.contains(known))
}

/// With a budget the API refuses a running round of tool calls that did not begin with thinking.
fn can_think(history: &[Message]) -> bool {
    match history.iter().rev().find(|message| matches!(message, Message::Assistant { .. })) {
        Some(Message::Assistant { parts, .. }) if parts.iter().any(is_request) => {
            parts.first().is_some_and(is_thinking)
        }
        _ => true,
    }
}

/// The longest answer to ask for where the person names none, in tokens.
fn longest_answer(model: &str) -> u64 {
    if model.contains("claude-3-5") {
        8_192
    } else if model.contains("claude-3-") && !model.contains("claude-3-7") {
        4_096
    } else {
        32_000
    }
}

/// Thinking without its seal is refused; so is text of white space.
fn is_sendable(part: &AssistantPart) -> bool {
    match part {
        AssistantPart::Thinking { signature, redacted, .. } => {
            [signature, redacted].into_iter().flatten().any(|seal| !seal.is_empty())
        }
        AssistantPart::Text { text } => !text.trim().is_empty(),
        AssistantPart::Request { .. } => true,
    }
}

fn tools(tools: &[ToolSpec]) -> Value {
    let mut tools: Vec<Value> = tools
        .iter()
        .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}))
        .collect();
    tools.last_mut().map(mark);
    Value::Array(tools)
}

/// The tools that a history calls, as far as it tells; none if it calls none.
fn tools_of(history: &[Message]) -> Option<Vec<ToolSpec>> {
    let mut names: Vec<String> = Vec::new();
    for message in history {
        let Message::Assistant { parts, .. } = message else { continue };
        for part in parts {
            if let AssistantPart::Request { tool, .. } = part
                && !names.contains(&tool_name(tool))
            {
                names.push(tool_name(tool));
            }
        }
    }
    let spec = |name| ToolSpec { name, description: String::new(), input_schema: json!({"type": "object"}) };
    (!names.is_empty()).then(|| names.into_iter().map(spec).collect())
}

fn messages(history: &[Message]) -> Value {
    let mut ids = WireIds::new(LONGEST_ID);
    let mut messages: Vec<Value> = history
        .iter()
        .map(|message| match message {
            Message::User { parts } => json!({"role": "user", "content": user(parts, &mut ids)}),
            Message::Assistant { parts, .. } => {
                let content: Vec<Value> = parts.iter().map(|part| assistant(part, &mut ids)).collect();
                json!({"role": "assistant", "content": content})
            }
        })
        .collect();
    // The end of this request is the cache's next beginning; the mark before it finds what the last request wrote.
    let users = messages.iter_mut().rev().filter(|message| message["role"] == "user");
    for message in users.take(2) {
        message["content"].as_array_mut().and_then(|content| content.last_mut()).map(mark);
    }
    Value::Array(messages)
}

fn user(parts: &[UserPart], ids: &mut WireIds) -> Vec<Value> {
    let (results, rest): (Vec<_>, Vec<_>) =
        parts.iter().partition(|part| matches!(part, UserPart::Result { .. }));
    let mut content: Vec<Value> = results
        .into_iter()
        .chain(rest)
        .filter_map(|part| match part {
            UserPart::Result { wire_id, error, content } => Some(result(&ids.id(wire_id), *error, content)),
            UserPart::Block(block) => block_value(block),
            UserPart::Note { text } => Some(text_block(text)),
        })
        .collect();
    if content.is_empty() {
        content.push(text_block(EMPTY));
    }
    content
}

fn result(id: &str, error: bool, content: &[Block]) -> Value {
    let mut content: Vec<Value> = content.iter().filter_map(block_value).collect();
    if content.is_empty() {
        content.push(text_block(EMPTY));
    }
    let mut value = json!({"type": "tool_result", "tool_use_id": id, "content": content});
    if error {
        value["is_error"] = json!(true);
    }
    value
}

fn block_value(block: &Block) -> Option<Value> {
    match block {
        Block::Image { media_type, data } if is_image(image_type(media_type, data), data) => Some(json!({
            "type": "image",
            "source": {"type": "base64", "media_type": image_type(media_type, data), "data": data},
        })),
        other => as_text(other).map(|text| text_block(&text)),
    }
}

fn assistant(part: &AssistantPart, ids: &mut WireIds) -> Value {
    match part {
        AssistantPart::Text { text } => text_block(text),
        AssistantPart::Thinking { redacted: Some(data), .. } => {
            json!({"type": "redacted_thinking", "data": data})
        }
        AssistantPart::Thinking { text, signature, .. } => {
            json!({"type": "thinking", "thinking": text, "signature": signature})
        }
        AssistantPart::Request { wire_id, tool, input } => {
            json!({"type": "tool_use", "id": ids.id(wire_id), "name": tool_name(tool), "input": object(input)})
        }
    }
}

/// The API takes objects only; what a model sent instead is shown to it under a telling name.
fn object(input: &Value) -> Value {
    match input {
        Value::Object(_) => input.clone(),
        Value::String(raw) => json!({"invalid_json": raw}),
        other => json!({"invalid_json": other.to_string()}),
    }
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Ends a stretch that the provider shall cache.
fn mark(block: &mut Value) {
    block["cache_control"] = json!({"type": "ephemeral"});
}
