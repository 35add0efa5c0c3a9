//! A server's tool as one of ours.

use std::sync::Arc;

use async_trait::async_trait;
use segue_log::{Action, ActionKind, Effect};
use serde_json::Value;

use super::connection::Listed;
use super::server::Server;
use crate::{Scope, Tool, ToolContext, ToolOutput};

pub(super) struct McpTool {
    offered: String,
    effect: Effect,
    listed: Listed,
    server: Arc<Server>,
}

impl McpTool {
    pub(super) fn new(offered: String, server: Arc<Server>, listed: &Listed) -> Self {
        Self { offered, effect: server.config().effect(&listed.name), listed: listed.clone(), server }
    }
}

#[async_trait]
impl Tool for McpTool {
    fn name(&self) -> &str {
        &self.offered
    }

    fn description(&self) -> &str {
        &self.listed.description
    }

    fn input_schema(&self) -> &Value {
        &self.listed.schema
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn action(&self, input: &Value, _scope: &Scope) -> Action {
        let kind = match self.effect {
            Effect::Read => ActionKind::Read,
            Effect::Idempotent | Effect::Write => ActionKind::Other,
        };
        Action {
            kind,
            subject: input.to_string(),
            shown: format!("{} of MCP server {}: {input:#}", self.listed.name, self.server.name()),
            rule: self.offered.clone(),
        }
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        self.server.call(&self.listed.name, input, self.effect, context).await
    }
}
