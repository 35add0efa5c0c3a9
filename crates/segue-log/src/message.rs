//! A conversation as a model is sent it, in no provider's shape.

use serde::Serialize;
use serde_json::Value;

use crate::content::Block;

/// One message. Roles alternate, the first and the last are the user's, and every request of an assistant message
/// has its result, in order, at the start of the user message after it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// What the user's side says: results first, then prompts and notes.
    User {
        /// Its parts.
        parts: Vec<UserPart>,
    },
    /// What the model said.
    Assistant {
        /// Its parts; never empty.
        parts: Vec<AssistantPart>,
        /// The model that wrote it, as provider/name; thinking goes back to no other provider.
        model: Option<String>,
    },
}

/// A part of a user message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum UserPart {
    /// A tool's result.
    Result {
        /// The id of the request on the wire, unique in the history.
        wire_id: String,
        /// True if the call failed.
        error: bool,
        /// What it returned: texts and images; never empty.
        content: Vec<Block>,
    },
    /// A piece of a prompt: text, an image, a resource.
    Block(
        /// The piece.
        Block,
    ),
    /// A note of Segue's own, in its `<segue-note>` already.
    Note {
        /// The text, tags included.
        text: String,
    },
}

/// A part of an assistant message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AssistantPart {
    /// Text; never only white space.
    Text {
        /// The text.
        text: String,
    },
    /// Reasoning.
    Thinking {
        /// The readable part.
        text: String,
        /// The provider's seal.
        signature: Option<String>,
        /// Reasoning that only the provider can read.
        redacted: Option<String>,
    },
    /// A tool request; a result follows.
    Request {
        /// The id on the wire, unique in the history.
        wire_id: String,
        /// The tool.
        tool: String,
        /// The arguments: an object, or the raw text where it was no JSON.
        input: Value,
    },
}

/// Puts one of our notes into its tags.
pub fn note(text: &str) -> String {
    format!("<segue-note>{text}</segue-note>")
}

/// True if a text is one of our notes.
pub fn is_note(text: &str) -> bool {
    text.starts_with("<segue-note>") && text.ends_with("</segue-note>")
}
