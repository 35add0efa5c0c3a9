//! What the tests have in common: a model at the test server, and conversations to send.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use segue_log::{AssistantPart, Block, Message, UserPart, note};
use segue_model::{Api, Delta, Model, ModelError, ProviderConfig, Request, Secret, ToolSpec, connect};
use segue_testkit::ModelServer;
use serde_json::{Value, json};

/// The key that every test model has; no error text may hold it.
pub const KEY: &str = "sk-secret-0123456789";

pub fn config(server: &ModelServer, api: Api, provider: &str) -> ProviderConfig {
    ProviderConfig {
        key: Some(Secret::new(KEY)),
        key_variable: Some("TEST_KEY".into()),
        ..ProviderConfig::new(provider, api, server.url())
    }
}

pub fn model(server: &ModelServer, api: Api, provider: &str) -> Arc<dyn Model> {
    connect(&config(server, api, provider), "model-1", None).unwrap()
}

/// How long [`impatient`] models wait: enough for a busy machine to answer.
pub const SOON: Duration = Duration::from_secs(2);

/// One that gives up soon when nothing comes.
pub fn impatient(server: &ModelServer, api: Api) -> Arc<dyn Model> {
    let config = ProviderConfig { idle_timeout: SOON, ..config(server, api, "acme") };
    connect(&config, "model-1", None).unwrap()
}

/// The deltas of an answer, and the error that it ended with if it did.
pub async fn ask(model: &dyn Model, request: &Request) -> (Vec<Delta>, Option<ModelError>) {
    let mut stream = match model.stream(request).await {
        Ok(stream) => stream,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut deltas = Vec::new();
    while let Some(next) = stream.next().await {
        match next {
            Ok(delta) => deltas.push(delta),
            Err(error) => {
                assert!(stream.next().await.is_none(), "something came after {error}");
                return (deltas, Some(error));
            }
        }
    }
    (deltas, None)
}

pub fn request(messages: Vec<Message>) -> Request {
    Request { messages, ..Request::default() }
}

pub fn hello() -> Request {
    request(vec![user("hello")])
}

pub fn read_tool() -> ToolSpec {
    ToolSpec {
        name: "read".into(),
        description: "Reads a file.".into(),
        input_schema: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
    }
}

pub fn block(text: &str) -> UserPart {
    UserPart::Block(Block::text(text))
}

pub fn noted(text: &str) -> UserPart {
    UserPart::Note { text: note(text) }
}

pub fn image() -> Block {
    Block::Image { media_type: "image/png".into(), data: "iVBORw0KGgo=".into() }
}

pub fn result(id: &str, content: Vec<Block>) -> UserPart {
    UserPart::Result { wire_id: id.into(), error: false, content }
}

pub fn failed(id: &str, text: &str) -> UserPart {
    UserPart::Result { wire_id: id.into(), error: true, content: vec![Block::text(text)] }
}

pub fn user(text: &str) -> Message {
    from_user(vec![block(text)])
}

pub fn from_user(parts: Vec<UserPart>) -> Message {
    Message::User { parts }
}

pub fn assistant(model: &str, parts: Vec<AssistantPart>) -> Message {
    Message::Assistant { parts, model: Some(model.into()) }
}

pub fn text(text: &str) -> AssistantPart {
    AssistantPart::Text { text: text.into() }
}

pub fn thought(text: &str, signature: Option<&str>) -> AssistantPart {
    AssistantPart::Thinking { text: text.into(), signature: signature.map(str::to_owned), redacted: None }
}

pub fn redacted(data: &str) -> AssistantPart {
    AssistantPart::Thinking { text: String::new(), signature: None, redacted: Some(data.into()) }
}

pub fn call(id: &str, tool: &str, input: Value) -> AssistantPart {
    AssistantPart::Request { wire_id: id.into(), tool: tool.into(), input }
}
