//! A conversation made ready for one provider, before it takes a wire shape.

use std::collections::{HashMap, HashSet};

use segue_log::{AssistantPart, Block, Message, UserPart};

/// What stands where a message would be empty otherwise.
pub(crate) const EMPTY: &str = "(empty)";

/// The messages without thinking that `provider` did not write, and without what is left empty by that. Neighbours of
/// one role become one message.
pub(crate) fn prepare(
    messages: &[Message],
    provider: &str,
    keeps: fn(&AssistantPart) -> bool,
) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match message {
            Message::User { parts } => match out.last_mut() {
                Some(Message::User { parts: before }) => before.extend(parts.iter().cloned()),
                _ => out.push(message.clone()),
            },
            Message::Assistant { parts, model } => {
                let is_own = model.as_deref().is_some_and(|name| provider_of(name) == provider);
                let mut parts: Vec<AssistantPart> = parts
                    .iter()
                    .filter(|part| keeps(part) && (is_own || !is_thinking(part)))
                    .cloned()
                    .collect();
                // Providers take no message that ends in thinking, let alone one of thinking alone.
                while parts.last().is_some_and(is_thinking) {
                    parts.pop();
                }
                match out.last_mut() {
                    _ if parts.is_empty() => {}
                    Some(Message::Assistant { parts: before, .. }) => before.extend(parts),
                    _ => out.push(Message::Assistant { parts, model: model.clone() }),
                }
            }
        }
    }
    out
}

/// The provider of a model's name as `provider/name`.
pub(crate) fn provider_of(name: &str) -> &str {
    name.split_once('/').map_or(name, |(provider, _)| provider)
}

pub(crate) fn is_thinking(part: &AssistantPart) -> bool {
    matches!(part, AssistantPart::Thinking { .. })
}

pub(crate) fn is_request(part: &AssistantPart) -> bool {
    matches!(part, AssistantPart::Request { .. })
}

/// True if a user message holds words of the user's, not only results and notes.
pub(crate) fn has_prompt(parts: &[UserPart]) -> bool {
    parts.iter().any(|part| matches!(part, UserPart::Block(_)))
}

/// A block as text, where the provider has nothing better for it; none for what says nothing.
pub(crate) fn as_text(block: &Block) -> Option<String> {
    let text = match block {
        Block::Text { text } => text.clone(),
        Block::Image { media_type, .. } => {
            format!("[an image of type {media_type} that cannot be shown here]")
        }
        Block::Resource { uri, text: Some(text), .. } => {
            format!("<resource uri=\"{uri}\">\n{text}\n</resource>")
        }
        Block::Resource { uri, text: None, .. } => format!("<resource uri=\"{uri}\" />"),
        Block::Unknown(value) => value.to_string(),
        Block::Thinking { .. } | Block::ToolRequest { .. } | Block::PartialRequest { .. } => return None,
    };
    (!text.trim().is_empty()).then_some(text)
}

/// True if the providers read such an image. One that they refuse would have every later request refused.
pub(crate) fn is_image(media_type: &str, data: &str) -> bool {
    let digits = data.trim_end_matches('=');
    matches!(media_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
        && !digits.is_empty()
        && data.len().is_multiple_of(4)
        && data.len() - digits.len() <= 2
        && digits.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
}

/// What an image is by its first bytes, in Base64; else what it is said to be. Providers refuse one that is said to be of
/// another type than it is, and every later request with it.
pub(crate) fn image_type<'a>(said: &'a str, data: &str) -> &'a str {
    let starts = |start: &str| data.starts_with(start);
    if starts("iVBORw0KGgo") {
        "image/png"
    } else if starts("/9j/") {
        "image/jpeg"
    } else if starts("R0lGODdh") || starts("R0lGODlh") {
        "image/gif"
    } else if starts("UklGR") && data.get(12..16) == Some("RUJQ") {
        "image/webp"
    } else {
        said
    }
}

/// A tool's name as providers accept it in a history: models also ask for tools that have impossible names.
pub(crate) fn tool_name(name: &str) -> String {
    let name: String = name.chars().take(64).map(|c| if is_id_char(c) { c } else { '_' }).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// The ids of requests as one provider accepts them: of its characters, not too long, unique.
pub(crate) struct WireIds {
    longest: usize,
    known: HashMap<String, String>,
    used: HashSet<String>,
}

impl WireIds {
    pub(crate) fn new(longest: usize) -> Self {
        Self { longest, known: HashMap::new(), used: HashSet::new() }
    }

    /// The id to send for one of the history's; the same for a request and its result.
    pub(crate) fn id(&mut self, id: &str) -> String {
        if let Some(known) = self.known.get(id) {
            return known.clone();
        }
        let fits = !id.is_empty() && id.len() <= self.longest && id.chars().all(is_id_char);
        let mut number = self.used.len();
        let mut wire = if fits { id.to_owned() } else { format!("call_{number}") };
        while !self.used.insert(wire.clone()) {
            number += 1;
            wire = format!("call_{number}");
        }
        self.known.insert(id.to_owned(), wire.clone());
        wire
    }
}

fn is_id_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_fit_and_stay_unique() {
        let mut ids = WireIds::new(8);
        let wire: Vec<String> =
            ["call_1", "f.x:0", "toolong_toolong", "f.x:0", "", "ok"].map(|id| ids.id(id)).into();
        assert_eq!(wire, ["call_1", "call_2", "call_3", "call_2", "call_4", "ok"]);
        let mut ids = WireIds::new(8);
        assert_eq!(["a b", "call_0"].map(|id| ids.id(id)), ["call_0", "call_2"]);
    }

    // A tool that returned a broken image had every later request of its session refused.
    #[test]
    fn only_images_that_can_be_read_are_sent_as_images() {
        for (media_type, data, expected) in [
            ("image/png", "AAAA", true),
            ("image/webp", "AA+/A A=", false),
            ("image/gif", "AA==", true),
            ("image/jpeg", "A===", false),
            ("image/jpeg", "AAA", false),
            ("image/png", "", false),
            ("image/png", "====", false),
            ("image/svg+xml", "AAAA", false),
        ] {
            assert_eq!(is_image(media_type, data), expected, "{media_type} {data}");
        }
    }

    // A server said of a JPEG file that it was PNG, and the provider refused all that came after.
    #[test]
    fn images_are_what_their_bytes_say() {
        for (data, expected) in [
            ("iVBORw0KGgoAAAANSUhEUg==", "image/png"),
            ("/9j/4AAQSkZJRg==", "image/jpeg"),
            ("R0lGODlhAQA=", "image/gif"),
            ("R0lGODdhAQA=", "image/gif"),
            ("UklGRiQBAABXRUJQVlA4IA==", "image/webp"),
            ("UklGRiQBAABXQVZFZm10IA==", "said"),
            ("AAAA", "said"),
            ("", "said"),
        ] {
            assert_eq!(image_type("said", data), expected, "{data}");
        }
    }

    #[test]
    fn tool_names_fit() {
        for (name, expected) in [("mcp__a__b", "mcp__a__b"), ("", "unknown"), ("a b.c", "a_b_c")] {
            assert_eq!(tool_name(name), expected);
        }
        assert_eq!(tool_name(&"x".repeat(100)).len(), 64);
    }
}
