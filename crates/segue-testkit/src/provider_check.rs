//! Would a provider take this request? Written from what the providers document, apart from the code that builds the
//! requests, so that the one can be held against the other. Stricter than they are where they pass over nonsense.

use std::collections::HashSet;

use serde_json::Value;

type Checked = Result<(), String>;

/// Whether Anthropic's Messages API would take this body; else what is wrong with it.
pub fn check_anthropic(body: &Value) -> Checked {
    non_empty(&body["model"], "model")?;
    let max_tokens =
        body["max_tokens"].as_u64().filter(|n| *n > 0).ok_or("max_tokens: a positive number is required")?;
    anthropic::system(&body["system"])?;
    anthropic::tools(&body["tools"])?;
    let thinking = anthropic::thinking(body, max_tokens)?;
    let messages = array(&body["messages"], "messages")?;
    anthropic::messages(messages, thinking)?;
    if body["tools"].is_null() && messages.iter().any(anthropic::has_tool_block) {
        return Err("requests with tool_use or tool_result blocks must define tools".into());
    }
    match count_marks(body) {
        0..=4 => Ok(()),
        count => Err(format!("a maximum of 4 blocks with cache_control may be provided, found {count}")),
    }
}

/// Whether OpenAI's Chat Completions API would take this body; else what is wrong with it.
pub fn check_openai(body: &Value) -> Checked {
    non_empty(&body["model"], "model")?;
    if !body["stream_options"].is_null() && body["stream"] != true {
        return Err("stream_options: only allowed when stream is on".into());
    }
    for key in ["max_tokens", "max_completion_tokens"] {
        if !body[key].is_null() && body[key].as_u64().is_none_or(|n| n == 0) {
            return Err(format!("{key}: not a positive number"));
        }
    }
    if !body["max_tokens"].is_null() && !body["max_completion_tokens"].is_null() {
        return Err("max_tokens and max_completion_tokens exclude each other".into());
    }
    in_range(&body["temperature"], "temperature", 2.0)?;
    openai::tools(&body["tools"])?;
    openai::messages(array(&body["messages"], "messages")?)
}

mod anthropic {
    use super::{Checked, HashSet, Value, array, image, in_range, is_name, non_blank, non_empty, schema};

    pub(super) fn system(system: &Value) -> Checked {
        match system {
            Value::Null => Ok(()),
            Value::String(_) => non_blank(system, "system"),
            _ => array(system, "system")?.iter().enumerate().try_for_each(|(n, block)| {
                if block["type"] != "text" {
                    return Err(format!("system.{n}: not a text block"));
                }
                non_blank(&block["text"], &format!("system.{n}.text"))
            }),
        }
    }

    pub(super) fn tools(tools: &Value) -> Checked {
        if tools.is_null() {
            return Ok(());
        }
        let mut names = HashSet::new();
        for (n, tool) in array(tools, "tools")?.iter().enumerate() {
            let name = tool["name"].as_str().unwrap_or_default();
            if !is_name(name, 128) {
                return Err(format!("tools.{n}.name: {name:?} is no tool name"));
            }
            if !names.insert(name) {
                return Err(format!("tools: {name:?} is there twice"));
            }
            schema(&tool["input_schema"], &format!("tools.{n}.input_schema"))?;
        }
        Ok(())
    }

    /// True if thinking is on with a budget.
    pub(super) fn thinking(body: &Value, max_tokens: u64) -> Result<bool, String> {
        let thinking = &body["thinking"];
        in_range(&body["temperature"], "temperature", 1.0)?;
        match thinking["type"].as_str() {
            None if thinking.is_null() => return Ok(false),
            Some("disabled") => return Ok(false),
            Some("adaptive" | "enabled") => {}
            _ => return Err("thinking.type: not known".into()),
        }
        if body["temperature"].as_f64().is_some_and(|temperature| temperature != 1.0) {
            return Err("temperature: may only be 1 when thinking is on".into());
        }
        if thinking["type"] == "adaptive" {
            return Ok(false);
        }
        match thinking["budget_tokens"].as_u64() {
            Some(budget) if budget >= 1024 && budget < max_tokens => Ok(true),
            _ => Err("thinking.budget_tokens: must be at least 1024 and less than max_tokens".into()),
        }
    }

    pub(super) fn messages(messages: &[Value], thinking: bool) -> Checked {
        let mut ids = HashSet::new();
        let mut open: Vec<&str> = Vec::new();
        for (n, message) in messages.iter().enumerate() {
            let at = format!("messages.{n}");
            let expected = if n % 2 == 0 { "user" } else { "assistant" };
            if message["role"] != expected {
                return Err(format!("{at}.role: {} where {expected} is due", message["role"]));
            }
            if let Value::String(_) = message["content"] {
                non_blank(&message["content"], &format!("{at}.content"))?;
                if !open.is_empty() {
                    return Err(format!("{at}: tool_use ids without tool_result: {open:?}"));
                }
                continue;
            }
            let content = array(&message["content"], &format!("{at}.content"))?;
            if expected == "user" {
                user(content, &at, &open)?;
                open.clear();
            } else {
                open = assistant(content, &at, &mut ids)?;
            }
        }
        if messages.len().is_multiple_of(2) {
            return Err("messages: the conversation must end with a user message".into());
        }
        if thinking {
            begins_with_thinking(messages)?;
        }
        Ok(())
    }

    pub(super) fn has_tool_block(message: &Value) -> bool {
        let mut blocks = message["content"].as_array().into_iter().flatten();
        blocks.any(|block| block["type"] == "tool_use" || block["type"] == "tool_result")
    }

    /// With thinking on, a running round of tool calls has to begin with thinking.
    fn begins_with_thinking(messages: &[Value]) -> Checked {
        let Some(last) = messages.iter().rev().find(|message| message["role"] == "assistant") else {
            return Ok(());
        };
        let Some(content) = last["content"].as_array() else { return Ok(()) };
        let calls = content.iter().any(|block| block["type"] == "tool_use");
        let thinks = matches!(content[0]["type"].as_str(), Some("thinking" | "redacted_thinking"));
        if calls && !thinks {
            return Err(
                "expected thinking or redacted_thinking at the start of the last assistant message".into()
            );
        }
        Ok(())
    }

    fn user(content: &[Value], at: &str, open: &[&str]) -> Checked {
        let mut answered = Vec::new();
        let mut other = false;
        for (n, block) in content.iter().enumerate() {
            let at = format!("{at}.content.{n}");
            match block["type"].as_str().unwrap_or_default() {
                "text" => non_blank(&block["text"], &format!("{at}.text"))?,
                "image" => image(&block["source"], &at)?,
                "tool_result" => {
                    if other {
                        return Err(format!("{at}: a tool_result after other content"));
                    }
                    let id = block["tool_use_id"].as_str().unwrap_or_default();
                    if !open.contains(&id) {
                        return Err(format!("{at}: no tool_use {id:?} in the message before"));
                    }
                    if answered.contains(&id) {
                        return Err(format!("{at}: a second tool_result for {id:?}"));
                    }
                    answered.push(id);
                    result(block, &at)?;
                }
                kind => return Err(format!("{at}: a user message holds no {kind:?}")),
            }
            other |= block["type"] != "tool_result";
        }
        match open.iter().find(|id| !answered.contains(*id)) {
            Some(id) => Err(format!("{at}: tool_use {id:?} has no tool_result here")),
            None => Ok(()),
        }
    }

    fn result(block: &Value, at: &str) -> Checked {
        let content = &block["content"];
        match content {
            Value::Null if block["is_error"] != true => Ok(()),
            Value::String(text) if block["is_error"] != true || !text.is_empty() => Ok(()),
            Value::Array(blocks) => blocks.iter().try_for_each(|block| match block["type"].as_str() {
                Some("text") => non_blank(&block["text"], &format!("{at}.content")),
                Some("image") => image(&block["source"], at),
                _ => Err(format!("{at}.content: {} is not allowed in a tool_result", block["type"])),
            }),
            _ => Err(format!("{at}.content: missing or of the wrong type")),
        }
    }

    fn assistant<'a>(
        content: &'a [Value],
        at: &str,
        ids: &mut HashSet<&'a str>,
    ) -> Result<Vec<&'a str>, String> {
        let mut open = Vec::new();
        for (n, block) in content.iter().enumerate() {
            let at = format!("{at}.content.{n}");
            match block["type"].as_str().unwrap_or_default() {
                "text" => non_blank(&block["text"], &format!("{at}.text"))?,
                "thinking" => {
                    if !block["thinking"].is_string() {
                        return Err(format!("{at}.thinking: missing"));
                    }
                    non_empty(&block["signature"], &format!("{at}.signature"))?;
                }
                "redacted_thinking" => non_empty(&block["data"], &format!("{at}.data"))?,
                "tool_use" => {
                    let id = block["id"].as_str().unwrap_or_default();
                    if !is_name(id, usize::MAX) {
                        return Err(format!("{at}.id: {id:?} does not match the pattern"));
                    }
                    if !ids.insert(id) {
                        return Err(format!("{at}.id: {id:?} is not unique"));
                    }
                    if !is_name(block["name"].as_str().unwrap_or_default(), 200) {
                        return Err(format!("{at}.name: {} is no tool name", block["name"]));
                    }
                    if !block["input"].is_object() {
                        return Err(format!("{at}.input: not an object"));
                    }
                    open.push(id);
                }
                kind => return Err(format!("{at}: an assistant message holds no {kind:?}")),
            }
            if matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking")) {
                if !block["cache_control"].is_null() {
                    return Err(format!("{at}: thinking takes no cache_control"));
                }
                if n + 1 == content.len() {
                    return Err(format!("{at}: the last block of a message cannot be thinking"));
                }
            }
        }
        Ok(open)
    }
}

mod openai {
    use super::{Checked, HashSet, Value, array, is_name, non_blank, schema};

    pub(super) fn tools(tools: &Value) -> Checked {
        if tools.is_null() {
            return Ok(());
        }
        let mut names = HashSet::new();
        let tools = array(tools, "tools")?;
        for (n, tool) in tools.iter().enumerate() {
            let name = tool["function"]["name"].as_str().unwrap_or_default();
            if tool["type"] != "function" || !is_name(name, 64) {
                return Err(format!("tools.{n}: {name:?} is no function name"));
            }
            if !names.insert(name) {
                return Err(format!("tools: {name:?} is there twice"));
            }
            schema(&tool["function"]["parameters"], &format!("tools.{n}.function.parameters"))?;
        }
        Ok(())
    }

    pub(super) fn messages(messages: &[Value]) -> Checked {
        let mut ids = HashSet::new();
        let mut open: Vec<&str> = Vec::new();
        for (n, message) in messages.iter().enumerate() {
            let at = format!("messages.{n}");
            let role = message["role"].as_str().unwrap_or_default();
            if role != "tool" && !open.is_empty() {
                return Err(format!("{at}: these tool calls have no answer before it: {open:?}"));
            }
            match role {
                "system" | "developer" => non_blank(&message["content"], &format!("{at}.content"))?,
                "user" => user(&message["content"], &at)?,
                "assistant" => open = assistant(message, &at, &mut ids)?,
                "tool" => {
                    let id = message["tool_call_id"].as_str().unwrap_or_default();
                    let Some(found) = open.iter().position(|open| *open == id) else {
                        return Err(format!("{at}: answers no open tool call: {id:?}"));
                    };
                    open.remove(found);
                    if !message["content"].is_string() {
                        return Err(format!("{at}.content: not text"));
                    }
                }
                _ => return Err(format!("{at}.role: {} is not known", message["role"])),
            }
        }
        if !open.is_empty() {
            return Err(format!("messages: these tool calls have no answer: {open:?}"));
        }
        match messages.last().and_then(|message| message["role"].as_str()) {
            Some("user" | "tool") => Ok(()),
            role => Err(format!("messages: the conversation ends with {role:?}")),
        }
    }

    fn user(content: &Value, at: &str) -> Checked {
        if content.is_string() {
            return non_blank(content, &format!("{at}.content"));
        }
        for (n, part) in array(content, &format!("{at}.content"))?.iter().enumerate() {
            let at = format!("{at}.content.{n}");
            match part["type"].as_str().unwrap_or_default() {
                "text" => non_blank(&part["text"], &format!("{at}.text"))?,
                "image_url" => {
                    let url = part["image_url"]["url"].as_str().unwrap_or_default();
                    let is_image = ["png", "jpeg", "gif", "webp"]
                        .iter()
                        .any(|kind| url.starts_with(&format!("data:image/{kind};base64,")));
                    if !is_image && !url.starts_with("http") {
                        return Err(format!("{at}: not an image that can be read"));
                    }
                }
                kind => return Err(format!("{at}: {kind:?} is not known")),
            }
        }
        Ok(())
    }

    fn assistant<'a>(
        message: &'a Value,
        at: &str,
        ids: &mut HashSet<&'a str>,
    ) -> Result<Vec<&'a str>, String> {
        let content = &message["content"];
        if !content.is_null() {
            non_blank(content, &format!("{at}.content"))?;
        }
        if message["tool_calls"].is_null() {
            if content.is_null() {
                return Err(format!("{at}: neither content nor tool_calls"));
            }
            return Ok(Vec::new());
        }
        let mut open = Vec::new();
        for (n, call) in array(&message["tool_calls"], &format!("{at}.tool_calls"))?.iter().enumerate() {
            let at = format!("{at}.tool_calls.{n}");
            let id = call["id"].as_str().unwrap_or_default();
            if id.is_empty() || id.len() > 40 {
                return Err(format!("{at}.id: {id:?} is empty or longer than 40"));
            }
            if !ids.insert(id) {
                return Err(format!("{at}.id: {id:?} is not unique"));
            }
            if call["type"] != "function"
                || !is_name(call["function"]["name"].as_str().unwrap_or_default(), 64)
            {
                return Err(format!("{at}: not a function with a name"));
            }
            if !call["function"]["arguments"].is_string() {
                return Err(format!("{at}.function.arguments: not text"));
            }
            open.push(id);
        }
        Ok(open)
    }
}

fn array<'a>(value: &'a Value, at: &str) -> Result<&'a [Value], String> {
    match value.as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        Some(_) => Err(format!("{at}: empty")),
        None => Err(format!("{at}: not a list")),
    }
}

fn non_empty(value: &Value, at: &str) -> Checked {
    match value.as_str() {
        Some("") => Err(format!("{at}: empty")),
        Some(_) => Ok(()),
        None => Err(format!("{at}: text is required")),
    }
}

fn non_blank(value: &Value, at: &str) -> Checked {
    non_empty(value, at)?;
    match value.as_str() {
        Some(text) if text.trim().is_empty() => Err(format!("{at}: only white space")),
        _ => Ok(()),
    }
}

fn in_range(value: &Value, at: &str, most: f64) -> Checked {
    match value {
        Value::Null => Ok(()),
        value if value.as_f64().is_some_and(|number| (0.0..=most).contains(&number)) => Ok(()),
        _ => Err(format!("{at}: not between 0 and {most}")),
    }
}

fn is_name(name: &str, longest: usize) -> bool {
    !name.is_empty()
        && name.len() <= longest
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

fn schema(schema: &Value, at: &str) -> Checked {
    if schema["type"] == "object" { Ok(()) } else { Err(format!("{at}: not the schema of an object")) }
}

fn image(source: &Value, at: &str) -> Checked {
    let known = ["image/png", "image/jpeg", "image/gif", "image/webp"];
    if source["type"] != "base64" || !known.contains(&source["media_type"].as_str().unwrap_or_default()) {
        return Err(format!("{at}.source: not an image that can be read"));
    }
    let data = source["data"].as_str().unwrap_or_default();
    let is_base64 = data.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='));
    if data.is_empty() || !is_base64 { Err(format!("{at}.source.data: not Base64")) } else { Ok(()) }
}

/// How many blocks are marked for the cache; what tools and people said is not looked into.
fn count_marks(body: &Value) -> usize {
    let own = |block: &Value| usize::from(!block["cache_control"].is_null());
    let list = |value: &Value| value.as_array().map_or(0, |blocks| blocks.iter().map(own).sum());
    let messages = body["messages"]
        .as_array()
        .map_or(0, |messages| messages.iter().map(|message| list(&message["content"])).sum::<usize>());
    list(&body["system"]) + list(&body["tools"]) + messages
}

#[cfg(test)]
mod tests;
