//! A history made shorter, so that a summary of it can be asked for although it no longer fits into the window.

use segue_log::{AssistantPart, Block, Message, UserPart};
use serde_json::json;

/// Cuts the middle out of every text longer than `longest` bytes. Reasoning and images are left out; every request keeps
/// its result, and our notes are kept as they are.
pub(crate) fn shorten(messages: &mut [Message], longest: usize) {
    for message in messages {
        match message {
            Message::User { parts } => parts.iter_mut().for_each(|part| match part {
                UserPart::Result { content, .. } => {
                    content.iter_mut().for_each(|block| shorten_block(block, longest));
                }
                UserPart::Block(block) => shorten_block(block, longest),
                UserPart::Note { .. } => {}
            }),
            Message::Assistant { parts, .. } => {
                parts.retain(|part| !matches!(part, AssistantPart::Thinking { .. }));
                for part in parts {
                    match part {
                        AssistantPart::Text { text } => shorten_text(text, longest),
                        AssistantPart::Request { input, .. } => {
                            let len = input.to_string().len();
                            if len > longest {
                                *input = json!({ "left_out": format!("{len} bytes of arguments") });
                            }
                        }
                        AssistantPart::Thinking { .. } => {}
                    }
                }
            }
        }
    }
}

fn shorten_block(block: &mut Block, longest: usize) {
    match block {
        Block::Text { text } | Block::Resource { text: Some(text), .. } => shorten_text(text, longest),
        Block::Image { media_type, .. } => *block = Block::text(format!("[an image of type {media_type}]")),
        Block::Unknown(value) => {
            let len = value.to_string().len();
            if len > longest {
                *block = Block::text(format!("[{len} bytes left out]"));
            }
        }
        _ => {}
    }
}

fn shorten_text(text: &mut String, longest: usize) {
    if text.len() <= longest {
        return;
    }
    let head = text.floor_char_boundary(longest * 3 / 4);
    let tail = text.ceil_char_boundary(text.len() - longest / 4);
    text.replace_range(head..tail, &format!("\n[{} bytes left out]\n", tail - head));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_lose_their_middle_and_requests_keep_their_results() {
        let (wire_id, tool) = ("c".to_owned(), "write".to_owned());
        let request = |input| AssistantPart::Request { wire_id: wire_id.clone(), tool: tool.clone(), input };
        let result = |text: &str| UserPart::Result {
            wire_id: "c".into(),
            error: false,
            content: vec![Block::text(text)],
        };
        let image = UserPart::Block(Block::Image { media_type: "image/png".into(), data: "AAAA".into() });
        let note = UserPart::Note { text: "n".repeat(50) };
        let thinking = AssistantPart::Thinking { text: "hm".into(), signature: None, redacted: None };
        let mut messages = vec![
            Message::User { parts: vec![UserPart::Block(Block::text("short")), image] },
            Message::Assistant { parts: vec![thinking, request(json!({"a": "x".repeat(30)}))], model: None },
            Message::User { parts: vec![result(&"é".repeat(20)), note.clone()] },
        ];
        shorten(&mut messages, 10);
        let expected = vec![
            Message::User {
                parts: vec![
                    UserPart::Block(Block::text("short")),
                    UserPart::Block(Block::text("[an image of type image/png]")),
                ],
            },
            Message::Assistant {
                parts: vec![request(json!({"left_out": "38 bytes of arguments"}))],
                model: None,
            },
            Message::User { parts: vec![result("ééé\n[32 bytes left out]\né"), note] },
        ];
        assert_eq!(messages, expected);
    }
}
