//! OpenAI's Responses: the items of its answers, and what its requests say.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::reply::Part;

/// The output item that a part of a reply makes, if it makes one.
pub(super) fn item(part: &Part, number: u64, at: usize) -> Option<Value> {
    Some(match part {
        Part::Text(text) | Part::Refusal(text) => json!({
            "type": "message", "id": format!("msg_{number}_{at}"), "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }),
        Part::Thinking { text, .. } => json!({
            "type": "reasoning", "id": format!("rs_{number}_{at}"),
            "summary": [{"type": "summary_text", "text": text}],
        }),
        Part::Call { id, tool, input } => json!({
            "type": "function_call", "id": format!("fc_{number}_{at}"), "status": "completed",
            "call_id": id.clone().unwrap_or_else(|| format!("call_{number}_{at}")), "name": tool, "arguments": input,
        }),
        Part::Redacted(_) | Part::Event(_) | Part::Raw(_) | Part::Pause(_) => return None,
    })
}

/// An item as it stands before anything of it has come.
pub(super) fn opened(item: &Value) -> Value {
    let mut opened = item.clone();
    opened["status"] = json!("in_progress");
    for (field, empty) in [("content", json!([])), ("summary", json!([])), ("arguments", json!(""))] {
        if opened.get(field).is_some() {
            opened[field] = empty;
        }
    }
    opened
}

/// The response in one piece. A stop that is not `completed` is the reason why it is incomplete.
pub(super) fn whole(number: u64, stop: &str, output: Vec<Value>, usage: &Value) -> Value {
    let (status, details) = match stop {
        "completed" => (stop, Value::Null),
        reason => ("incomplete", json!({"reason": reason})),
    };
    json!({
        "id": format!("resp_{number}"), "object": "response", "model": "test", "status": status,
        "incomplete_details": details, "output": output, "usage": usage,
    })
}

/// Whether the API would take a body, as far as the pairing of calls and results goes.
pub(super) fn check(body: &Value) -> Result<(), String> {
    let input = body["input"].as_array().ok_or("input: not a list")?;
    let mut calls = HashSet::new();
    let mut answered = HashSet::new();
    for item in input {
        let kind = item["type"].as_str().unwrap_or_default();
        let id = item["call_id"].as_str().unwrap_or_default();
        if kind.ends_with("_call") && !id.is_empty() {
            calls.insert(id);
        } else if kind.ends_with("_call_output") {
            if !calls.contains(id) {
                return Err(format!("No tool call found for function call output with call_id {id}."));
            }
            answered.insert(id);
        }
    }
    match calls.difference(&answered).next() {
        Some(open) => Err(format!("No tool output found for function call {open}.")),
        None => Ok(()),
    }
}

/// The input as messages of Chat Completions: enough to see who said what.
pub(super) fn as_chat(body: &Value) -> Vec<Value> {
    let items = body["input"].as_array().into_iter().flatten();
    let message = |item: &Value| match item["type"].as_str() {
        Some("function_call_output" | "custom_tool_call_output") => {
            let output = &item["output"];
            let text = output.as_str().map_or_else(|| output.to_string(), str::to_owned);
            Some(json!({"role": "tool", "content": text}))
        }
        Some("function_call" | "custom_tool_call") => Some(json!({"role": "assistant", "content": ""})),
        Some("message") | None => Some(json!({"role": item["role"], "content": item["content"]})),
        Some(_) => None,
    };
    items.filter_map(message).collect()
}
