//! The seam between the agent and language models.

use async_trait::async_trait;
use futures::stream::BoxStream;
use segue_log::{Message, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ModelError;

/// A language model.
#[async_trait]
pub trait Model: Send + Sync + 'static {
    /// Its name as `provider/name`.
    fn name(&self) -> &str;

    /// How many tokens its window holds.
    fn window(&self) -> u64;

    /// Sends a request and streams the answer. The stream ends after [`Delta::Stop`]; one that ends without it,
    /// or yields an error, is a broken answer. Dropping the stream ends the request.
    async fn stream(&self, request: &Request) -> Result<Deltas, ModelError>;
}

/// An answer as it arrives.
pub type Deltas = BoxStream<'static, Result<Delta, ModelError>>;

/// What a model is asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// The system prompt.
    pub system: String,
    /// The conversation, as `segue_log` builds it.
    pub messages: Vec<Message>,
    /// The tools it may ask for.
    pub tools: Vec<ToolSpec>,
    /// The rest.
    pub parameters: Parameters,
}

/// A tool as a model is told of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON schema of its arguments; an object.
    pub input_schema: Value,
}

/// Request parameters; absent ones are the provider's defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// The longest answer, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Randomness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Tokens that the model may spend on thinking; turns thinking on where the provider wants that said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking_tokens: Option<u64>,
    /// The effort of reasoning models, in the provider's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
}

/// A piece of an answer. Blocks arrive in order: text and thinking are continued by the next delta of their kind
/// until another kind comes; a request is one `Request` followed by `RequestInput`s.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// More text.
    Text(String),
    /// More thinking.
    Thinking(String),
    /// The seal of the thinking block that just ended.
    Signature(String),
    /// A thinking block that only the provider can read.
    Redacted(String),
    /// A tool request begins.
    Request {
        /// Which of the message's requests, from 0.
        index: usize,
        /// The provider's id; may be empty.
        provider_id: String,
        /// The tool's name.
        tool: String,
    },
    /// More of a request's arguments, as JSON text.
    RequestInput {
        /// Which request.
        index: usize,
        /// The text.
        json: String,
    },
    /// Tokens used so far; the last one counts.
    Usage(Usage),
    /// The answer is whole.
    Stop(Stop),
}

/// Why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It had said all.
    End,
    /// It wants tools called.
    Tools,
    /// The answer hit its length limit.
    MaxTokens,
    /// It will not answer.
    Refused,
    /// The provider's own word; treated as the end, or as tools where requests came.
    Other(String),
}

impl Stop {
    /// The word that records keep.
    pub fn as_str(&self) -> &str {
        match self {
            Self::End => "end",
            Self::Tools => "tools",
            Self::MaxTokens => "max_tokens",
            Self::Refused => "refused",
            Self::Other(word) => word,
        }
    }
}
