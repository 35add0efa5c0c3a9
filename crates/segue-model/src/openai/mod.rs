//! The Chat Completions API of OpenAI, and of the many servers that speak it too.

mod body;
mod reader;

use std::sync::Arc;

use async_trait::async_trait;

pub use body::body;

use crate::error::ModelError;
use crate::model::{Deltas, Model, Request};
use crate::wire::Endpoint;

/// A model behind the Chat Completions API. [`crate::connect`] makes it.
#[derive(Debug)]
pub(crate) struct OpenAi {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) window: u64,
}

#[async_trait]
impl Model for OpenAi {
    fn name(&self) -> &str {
        &self.name
    }

    fn window(&self) -> u64 {
        self.window
    }

    async fn stream(&self, request: &Request) -> Result<Deltas, ModelError> {
        let body = body(request, &self.endpoint.who.provider, &self.model);
        self.endpoint.send(&body, reader::Reader::default()).await
    }
}
