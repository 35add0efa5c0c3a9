//! What can go wrong with a model request.

use std::fmt;
use std::time::Duration;

/// A key. Never shown, never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key itself, for the wire only.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// `text` with every occurrence of the key blotted out.
    pub fn scrub(&self, text: &str) -> String {
        if self.0.is_empty() { text.to_owned() } else { text.replace(&self.0, "[key]") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[key]")
    }
}

/// A failure of a model request. No variant holds a key.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The provider refused the key.
    #[error("{provider} refused the key{}: {message}", .variable.as_ref().map(|v| format!(" in {v}")).unwrap_or_default())]
    Key {
        /// The provider.
        provider: String,
        /// The environment variable or config key that it came from.
        variable: Option<String>,
        /// The provider's word.
        message: String,
    },
    /// Too many requests.
    #[error("{provider} limits the rate of requests: {message}")]
    RateLimited {
        /// The provider.
        provider: String,
        /// How long it asks to wait.
        retry_after: Option<Duration>,
        /// The provider's word.
        message: String,
    },
    /// The provider failed: 5xx, overloaded.
    #[error("{provider} failed (HTTP {status}): {message}")]
    Server {
        /// The provider.
        provider: String,
        /// The HTTP status.
        status: u16,
        /// How long it asks to wait.
        retry_after: Option<Duration>,
        /// The provider's word.
        message: String,
    },
    /// The request cannot be answered as it is.
    #[error("{provider} rejects the request (HTTP {status}): {message}")]
    Rejected {
        /// The provider.
        provider: String,
        /// The HTTP status.
        status: u16,
        /// The provider's word.
        message: String,
    },
    /// The history no longer fits into the model's window.
    #[error("the conversation is too long for {provider}: {message}")]
    TooLong {
        /// The provider.
        provider: String,
        /// The provider's word.
        message: String,
    },
    /// No connection.
    #[error("cannot reach {url}: {message}")]
    Unreachable {
        /// The address, without user or query.
        url: String,
        /// What failed.
        message: String,
    },
    /// Nothing came for too long.
    #[error("{provider} sent nothing for {} s", .after.as_secs())]
    TimedOut {
        /// The provider.
        provider: String,
        /// How long nothing came.
        after: Duration,
    },
    /// The answer broke off or was no answer.
    #[error("the answer of {provider} broke off: {message}")]
    Broken {
        /// The provider.
        provider: String,
        /// What was wrong.
        message: String,
    },
}

impl ModelError {
    /// True if the same request may succeed a little later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::RateLimited { .. }
                | Self::Server { .. }
                | Self::Unreachable { .. }
                | Self::TimedOut { .. }
                | Self::Broken { .. }
        )
    }

    /// How long the provider asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Server { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// A stable code for records and JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Key { .. } => "MODEL_KEY_REFUSED",
            Self::RateLimited { .. } => "MODEL_RATE_LIMITED",
            Self::Server { .. } => "MODEL_FAILED",
            Self::Rejected { .. } => "MODEL_REQUEST_REJECTED",
            Self::TooLong { .. } => "CONTEXT_TOO_LONG",
            Self::Unreachable { .. } => "MODEL_UNREACHABLE",
            Self::TimedOut { .. } => "MODEL_TIMED_OUT",
            Self::Broken { .. } => "MODEL_STREAM_BROKEN",
        }
    }
}
