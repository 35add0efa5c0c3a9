//! What prompts, messages and results are made of.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::CallId;

/// One piece of a prompt, a message or a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Block {
    /// Plain text, or Markdown where a model wrote it.
    Text {
        /// The text.
        text: String,
    },
    /// A model's reasoning. Goes back only to the provider that wrote it.
    Thinking {
        /// The readable part; empty when the provider hides it.
        #[serde(default)]
        text: String,
        /// The provider's seal on the text, needed to send it back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
        /// Reasoning that only the provider can read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        redacted: Option<String>,
    },
    /// An image.
    Image {
        /// Its MIME type, such as `image/png`.
        media_type: String,
        /// Its bytes in Base64.
        data: String,
    },
    /// A file or other resource, by address and perhaps with its text.
    Resource {
        /// Where it is.
        uri: String,
        /// Its MIME type.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        media_type: Option<String>,
        /// Its text, when it came along.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// A model's request that a tool be called.
    ToolRequest {
        /// Segue's id for the call.
        call_id: CallId,
        /// The provider's id for it, used on the wire only.
        #[serde(default)]
        provider_id: String,
        /// The tool's name.
        tool: String,
        /// The arguments: an object, or the raw text where it was no JSON.
        input: Value,
    },
    /// A piece of a tool request that was still being streamed; never a request.
    PartialRequest {
        /// The tool's name, as far as known.
        #[serde(default)]
        tool: String,
        /// The arguments' text that arrived.
        #[serde(default)]
        input: String,
    },
    /// A block of a kind that this version does not know, kept as it was.
    #[serde(untagged)]
    Unknown(Value),
}

impl Block {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// The text of a text block.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            _ => None,
        }
    }
}

/// The text blocks of `content`, joined by newlines.
pub fn text_of(content: &[Block]) -> String {
    let mut out = String::new();
    for text in content.iter().filter_map(Block::as_text) {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(text);
    }
    out
}

/// Tokens that a request or a turn used, as the provider counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Tokens read, those from a cache left out.
    pub input: u64,
    /// Tokens written, reasoning included.
    pub output: u64,
    /// Tokens read from the provider's cache.
    pub cache_read: u64,
    /// Tokens written to the provider's cache.
    pub cache_write: u64,
}

impl Usage {
    /// All tokens that the request put into the model's window.
    pub fn context(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
            .saturating_add(self.output)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
    }
}
