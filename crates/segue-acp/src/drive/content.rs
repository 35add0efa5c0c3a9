//! Content blocks: ours as ACP writes them, and the other way.

use segue_log::Block;
use serde_json::{Value, json};

use super::agent::About;

/// A block of ours for an agent that can take so much. What it cannot take is named in words.
pub fn to_acp(block: &Block, about: &About) -> Option<Value> {
    Some(match block {
        Block::Text { text } => json!({"type": "text", "text": text}),
        Block::Image { media_type, data } if about.can("/promptCapabilities/image") => {
            json!({"type": "image", "mimeType": media_type, "data": data})
        }
        Block::Image { media_type, .. } => {
            json!({"type": "text", "text": format!("[an image ({media_type}) that this agent cannot be shown]")})
        }
        Block::Resource { uri, media_type, text: Some(text) } => {
            if about.can("/promptCapabilities/embeddedContext") {
                let mut resource = json!({"uri": uri, "text": text});
                if let (Some(media_type), Value::Object(resource)) = (media_type, &mut resource) {
                    resource.insert("mimeType".into(), json!(media_type));
                }
                json!({"type": "resource", "resource": resource})
            } else {
                json!({"type": "text", "text": format!("{uri}:\n{text}")})
            }
        }
        Block::Resource { uri, .. } => {
            let name = uri.rsplit('/').next().unwrap_or(uri);
            json!({"type": "resource_link", "uri": uri, "name": name})
        }
        Block::Unknown(value) => value.clone(),
        Block::Thinking { .. } | Block::ToolRequest { .. } | Block::PartialRequest { .. } => return None,
    })
}

/// A content block of an agent. One of a kind that is not known is kept as it is.
pub fn from_acp(content: &Value) -> Block {
    let text = |key: &str| content.get(key).and_then(Value::as_str).map(str::to_owned);
    let known = match content.get("type").and_then(Value::as_str) {
        Some("text") => text("text").map(|text| Block::Text { text }),
        Some("image") => {
            text("mimeType").zip(text("data")).map(|(media_type, data)| Block::Image { media_type, data })
        }
        Some("resource_link") => {
            text("uri").map(|uri| Block::Resource { uri, media_type: text("mimeType"), text: None })
        }
        Some("resource") => content.get("resource").and_then(|resource| {
            let text = |key: &str| resource.get(key).and_then(Value::as_str).map(str::to_owned);
            Some(Block::Resource {
                uri: text("uri")?,
                media_type: text("mimeType"),
                text: Some(text("text")?),
            })
        }),
        _ => None,
    };
    known.unwrap_or_else(|| Block::Unknown(content.clone()))
}

/// The content of a tool call: what it returned, in blocks. Diffs and terminals are told in words.
pub fn of_call(content: &Value) -> Vec<Block> {
    let parts = content.as_array().into_iter().flatten();
    parts
        .map(|part| match part.get("type").and_then(Value::as_str) {
            Some("content") => part.get("content").map_or_else(|| Block::Unknown(part.clone()), from_acp),
            Some("diff") => {
                let text = |key: &str| part.get(key).and_then(Value::as_str).unwrap_or_default();
                let (path, old, new) = (text("path"), text("oldText"), text("newText"));
                Block::text(format!("{path}:\n--- before\n{old}\n+++ after\n{new}"))
            }
            _ => Block::Unknown(part.clone()),
        })
        .collect()
}

/// The text of an agent's content block, the resource in it included.
pub fn text_of(content: &Value) -> &str {
    let own = content.get("text").and_then(Value::as_str);
    own.or_else(|| content.pointer("/resource/text").and_then(Value::as_str)).unwrap_or_default()
}

/// What a call returned: its content, else its raw output.
pub fn returned(said: &Value) -> Vec<Block> {
    let content = of_call(said.get("content").unwrap_or(&Value::Null));
    if !content.is_empty() {
        return content;
    }
    match said.get("rawOutput") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![Block::text(text)],
        Some(output) => match text_of(output) {
            "" => vec![Block::text(output.to_string())],
            text => vec![Block::text(text)],
        },
    }
}
