//! What is seen of an agent's turn, as records: the one mapping from ACP updates into the log.

use std::collections::HashMap;

use segue_log::{
    AgentUpdate, Block, CallId, MessageAssistant, MessagePartial, Origin, Outcome, Plan, PlanEntry, ToolCall,
    ToolResult, Usage, code,
};
use segue_runtime::{DeltaKind, Result, TurnContext, Update};
use serde_json::{Value, json};

use super::content::{from_acp, of_call, returned};
use super::permission::{effect, input, tool_name};

/// A message that grows beyond this many characters is closed and goes on as another: what an agent pours out must not
/// pile up in memory.
const LONG: usize = 8 * 1024 * 1024;

/// One step of an agent's turn.
pub struct Sight<'a> {
    turn: &'a TurnContext,
    step: u64,
    /// What was said since the last message.
    open: Vec<Block>,
    /// The part of it that no partial record has yet.
    unkept: Vec<Block>,
    length: usize,
    /// The agent's id of the message that the last text belongs to.
    message_id: Value,
    calls: HashMap<String, Seen>,
}

/// A call of this step.
struct Seen {
    call_id: CallId,
    /// All that the agent said of it, newer fields over older ones.
    said: Value,
    is_running: bool,
    is_done: bool,
}

impl<'a> Sight<'a> {
    /// A step that begins.
    pub fn new(turn: &'a TurnContext, step: u64) -> Self {
        Self {
            turn,
            step,
            open: Vec::new(),
            unkept: Vec::new(),
            length: 0,
            message_id: Value::Null,
            calls: HashMap::new(),
        }
    }

    /// Takes one update.
    pub async fn update(&mut self, update: Value) -> Result<()> {
        let kind = update.get("sessionUpdate").and_then(Value::as_str).unwrap_or_default();
        match kind {
            "agent_message_chunk" | "agent_thought_chunk" => {
                let is_thought = kind == "agent_thought_chunk";
                if has_more(&update, &["sessionUpdate", "content", "messageId"]) {
                    self.raw(update.clone()).await?;
                }
                self.chunk(&update, is_thought).await
            }
            "tool_call" | "tool_call_update" => self.call(update).await,
            "plan" => self.plan(update).await,
            _ => self.raw(update).await,
        }
    }

    /// Keeps something as it is.
    pub async fn raw(&self, update: Value) -> Result<()> {
        self.turn.append(AgentUpdate { update }).await.map(drop)
    }

    async fn chunk(&mut self, update: &Value, is_thought: bool) -> Result<()> {
        let content = update.get("content").unwrap_or(&Value::Null);
        let block = match from_acp(content) {
            Block::Text { text } if is_thought => Block::Thinking { text, signature: None, redacted: None },
            block => block,
        };
        let (kind, text) = match &block {
            Block::Text { text } => (DeltaKind::Text, text.clone()),
            Block::Thinking { text, .. } => (DeltaKind::Thinking, text.clone()),
            _ => (DeltaKind::Text, String::new()),
        };
        if !text.is_empty() {
            self.turn.show(Update::Delta {
                turn: self.turn.turn(),
                step: self.step,
                kind,
                text: text.clone(),
            });
        }
        let message_id = update.get("messageId").cloned().unwrap_or_default();
        let is_new = message_id != self.message_id;
        self.message_id = message_id;
        self.length += text.len();
        push(&mut self.open, block.clone(), is_new);
        push(&mut self.unkept, block, is_new);
        if self.length > LONG { self.say(None, Said::default()).await } else { Ok(()) }
    }

    /// Records what was said since the last partial record.
    pub async fn keep_partial(&mut self) -> Result<()> {
        if self.unkept.is_empty() {
            return Ok(());
        }
        let content = std::mem::take(&mut self.unkept);
        let partial = MessagePartial { turn: self.turn.turn(), step: self.step, attempt: 1, content };
        self.turn.append(partial).await.map(drop)
    }

    /// Closes what was said, with a request if one ended it.
    async fn say(&mut self, request: Option<Block>, how: Said) -> Result<()> {
        let mut content = std::mem::take(&mut self.open);
        self.unkept.clear();
        self.length = 0;
        content.extend(request);
        if content.is_empty() {
            return Ok(());
        }
        let message = MessageAssistant {
            turn: self.turn.turn(),
            step: self.step,
            attempt: 1,
            content,
            usage: how.usage,
            stop: how.stop,
            interrupted: how.interrupted,
            replayed: false,
        };
        self.turn.append(message).await.map(drop)
    }

    async fn plan(&self, update: Value) -> Result<()> {
        let entries = update.get("entries").and_then(Value::as_array).into_iter().flatten();
        let text =
            |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let entries: Vec<PlanEntry> = entries
            .map(|entry| PlanEntry { text: text(entry, "content"), state: text(entry, "status") })
            .collect();
        self.turn.append(Plan { entries }).await?;
        let listed = update.get("entries").and_then(Value::as_array).into_iter().flatten();
        let known = ["content", "status"];
        let says_more = has_more(&update, &["sessionUpdate", "entries"]);
        if says_more || listed.into_iter().any(|entry| has_more(entry, &known)) {
            self.raw(update).await?;
        }
        Ok(())
    }

    /// Takes what is said of a call; the first word of it makes it one.
    async fn call(&mut self, update: Value) -> Result<()> {
        let Some(id) = update.get("toolCallId").and_then(Value::as_str).map(str::to_owned) else {
            return self.raw(update).await;
        };
        let is_update = update.get("sessionUpdate").and_then(Value::as_str) == Some("tool_call_update");
        if is_update && !self.calls.contains_key(&id) && self.is_earlier(&id) {
            return self.late(&id, update).await;
        }
        // What has no place in our records of a call is kept beside them.
        let known =
            ["sessionUpdate", "toolCallId", "title", "kind", "status", "rawInput", "rawOutput", "content"];
        let is_first = !self.calls.contains_key(&id);
        if has_more(&update, &known) || is_first && update.get("title").is_some() {
            self.raw(update.clone()).await?;
        }
        self.see(&id, &update).await?;
        match update.get("status").and_then(Value::as_str) {
            None | Some("pending") => Ok(()),
            Some("in_progress") => {
                self.show_progress(&id, &update);
                self.running(&id).await
            }
            Some("completed") => self.done(&id, Outcome::Ok, None, None).await,
            Some("failed") => self.done(&id, Outcome::Error, Some(code::FAILED), None).await,
            Some(_) => self.raw(update).await,
        }
    }

    /// Notes what is said of a call, and records its request when it is new. Gives our id for it.
    pub async fn see(&mut self, id: &str, said: &Value) -> Result<CallId> {
        if let Some(seen) = self.calls.get_mut(id) {
            merge(&mut seen.said, said);
            return Ok(seen.call_id.clone());
        }
        let call_id = CallId::mint();
        let tool = tool_name(said).to_owned();
        let request = Block::ToolRequest {
            call_id: call_id.clone(),
            provider_id: id.to_owned(),
            tool: tool.clone(),
            input: input(said),
        };
        self.say(Some(request), Said::default()).await?;
        self.turn.show(Update::Calling { call_id: call_id.clone(), tool });
        let mut all = json!({});
        merge(&mut all, said);
        let seen = Seen { call_id: call_id.clone(), said: all, is_running: false, is_done: false };
        self.calls.insert(id.to_owned(), seen);
        Ok(call_id)
    }

    /// All that was said of a call.
    pub fn said_of(&self, id: &str) -> Value {
        self.calls.get(id).map(|seen| seen.said.clone()).unwrap_or_default()
    }

    /// Records that a call runs.
    pub async fn running(&mut self, id: &str) -> Result<()> {
        self.entered(id, Origin::Reported).await
    }

    /// Records that a call is about to be run, by the agent or by us.
    pub async fn entered(&mut self, id: &str, origin: Origin) -> Result<()> {
        let Some(seen) = self.calls.get_mut(id).filter(|seen| !seen.is_running && !seen.is_done) else {
            return Ok(());
        };
        seen.is_running = true;
        let machine = self.turn.machine();
        let record = ToolCall {
            turn: self.turn.turn(),
            step: self.step,
            call_id: seen.call_id.clone(),
            provider_id: id.to_owned(),
            tool: tool_name(&seen.said).to_owned(),
            input: input(&seen.said),
            effect: effect(&seen.said),
            expect: None,
            origin,
            host: machine.host.clone(),
            boot: machine.boot.clone(),
            replayed: false,
        };
        self.turn.append(record).await.map(drop)
    }

    /// Records a call's result; `text` stands for what the agent said it returned. One that is done stays as it is.
    pub async fn done(
        &mut self,
        id: &str,
        outcome: Outcome,
        code: Option<&str>,
        text: Option<String>,
    ) -> Result<()> {
        if text.is_none() {
            // It ran, whether or not the agent said so before.
            self.running(id).await?;
        }
        let Some(seen) = self.calls.get_mut(id).filter(|seen| !seen.is_done) else { return Ok(()) };
        seen.is_done = true;
        let content = match text {
            Some(text) => vec![Block::text(text)],
            None => returned(&seen.said),
        };
        let result = ToolResult {
            turn: self.turn.turn(),
            step: self.step,
            call_id: seen.call_id.clone(),
            outcome,
            code: code.map(str::to_owned),
            content,
            recovered: false,
            replayed: false,
        };
        self.turn.append(result).await.map(drop)
    }

    fn show_progress(&self, id: &str, update: &Value) {
        let Some(seen) = self.calls.get(id) else { return };
        for block in of_call(update.get("content").unwrap_or(&Value::Null)) {
            if let Some(text) = block.as_text() {
                self.turn.show(Update::Progress { call_id: seen.call_id.clone(), text: text.to_owned() });
            }
        }
    }

    fn is_earlier(&self, id: &str) -> bool {
        self.turn.conversation(|conversation| earlier(conversation, id).is_some())
    }

    /// Word of a call of an earlier turn or step: its outcome, if we had none.
    async fn late(&self, id: &str, update: Value) -> Result<()> {
        let is_completed = update.get("status").and_then(Value::as_str) == Some("completed");
        let unknown = self.turn.conversation(|conversation| {
            let call = earlier(conversation, id)?;
            let is_unknown = call.result()?.code.as_deref() == Some(code::OUTCOME_UNKNOWN);
            is_unknown.then(|| (call.turn, call.step, call.call_id.clone()))
        });
        let Some((turn, step, call_id)) = unknown.filter(|_| is_completed) else {
            return self.raw(update).await;
        };
        let content = returned(&update);
        let result = ToolResult {
            turn,
            step,
            call_id,
            outcome: Outcome::Ok,
            code: None,
            content,
            recovered: true,
            replayed: false,
        };
        self.turn.append(result).await.map(drop)
    }

    /// Ends the step in order: what was said is closed, every call is answered.
    pub async fn close(&mut self, stop: &str, usage: Usage, was_cancelled: bool) -> Result<()> {
        let said = Said { usage, stop: Some(stop.to_owned()), interrupted: was_cancelled };
        self.say(None, said).await?;
        let mut left: Vec<String> =
            self.calls.iter().filter(|(_, seen)| !seen.is_done).map(|(id, _)| id.clone()).collect();
        left.sort();
        for id in left {
            let is_running = self.calls.get(&id).is_some_and(|seen| seen.is_running);
            let (code, text) = match (was_cancelled, is_running) {
                (true, true) => {
                    (code::CANCELLED, "Cancelled while the agent ran it; it may have had effects.")
                }
                (true, false) => (code::CANCELLED, "Cancelled; the agent did not say whether it had begun."),
                (false, _) => (
                    code::OUTCOME_UNKNOWN,
                    "The agent ended its turn without saying how this call went. It may have happened or not.",
                ),
            };
            self.done(&id, Outcome::Error, Some(code), Some(text.to_owned())).await?;
        }
        Ok(())
    }
}

/// How a message ended.
#[derive(Default)]
struct Said {
    usage: Usage,
    stop: Option<String>,
    interrupted: bool,
}

/// Adds a block: text goes on with text of the same message.
fn push(blocks: &mut Vec<Block>, block: Block, is_new: bool) {
    match (blocks.last_mut(), block) {
        (Some(Block::Text { text }), Block::Text { text: more }) if !is_new => text.push_str(&more),
        (Some(Block::Thinking { text, .. }), Block::Thinking { text: more, .. }) => text.push_str(&more),
        (_, block) => blocks.push(block),
    }
}

/// Newer fields over older ones; what is null or empty says nothing.
fn merge(all: &mut Value, said: &Value) {
    let (Some(all), Some(said)) = (all.as_object_mut(), said.as_object()) else { return };
    for (key, value) in said {
        let says_nothing = value.is_null()
            || value.as_object().is_some_and(serde_json::Map::is_empty)
            || value.as_array().is_some_and(Vec::is_empty);
        if !says_nothing {
            all.insert(key.clone(), value.clone());
        }
    }
}

fn earlier<'c>(conversation: &'c segue_log::Conversation, id: &str) -> Option<&'c segue_log::Call> {
    conversation.turns().iter().rev().flat_map(|turn| turn.calls()).find(|call| call.provider_id == id)
}

fn has_more(value: &Value, known: &[&str]) -> bool {
    value.as_object().is_some_and(|fields| fields.keys().any(|key| !known.contains(&key.as_str())))
}
