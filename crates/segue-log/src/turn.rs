//! What a conversation is made of: prompts, turns, steps, messages and calls, and what became of each.

use std::sync::Arc;

use serde_json::Value;

use crate::content::{Block, Usage};
use crate::id::{CallId, PromptId};
use crate::record::*;

/// A prompt and what became of it.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Its `prompt/queued` record.
    pub record: Arc<Record>,
    /// Where it is.
    pub place: PromptPlace,
}

/// Where a prompt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptPlace {
    /// In the queue.
    Queued,
    /// Claimed by a turn.
    Claimed {
        /// The turn.
        turn: u64,
    },
    /// Taken back.
    Removed,
}

impl Prompt {
    /// What it says.
    pub fn content(&self) -> &[Block] {
        match &self.record.event {
            Event::PromptQueued(data) => &data.content,
            _ => &[],
        }
    }

    /// What it is meant for.
    pub fn target(&self) -> PromptFor {
        match &self.record.event {
            Event::PromptQueued(data) => data.target,
            _ => PromptFor::Turn,
        }
    }

    /// The surface that accepted it.
    pub fn source(&self) -> &str {
        match &self.record.event {
            Event::PromptQueued(data) => &data.source,
            _ => "",
        }
    }
}

/// One turn.
#[derive(Debug, Clone)]
pub struct Turn {
    /// Its number.
    pub number: u64,
    /// The seq of its start.
    pub start: Seq,
    /// The prompts that its start claimed.
    pub prompt_ids: Vec<PromptId>,
    /// The checkpoint policy it ran under.
    pub policy: Policy,
    /// Set when `finish` started it.
    pub finish: Option<Finish>,
    /// True if a hosted agent ran it.
    pub hosted: bool,
    /// Its steps.
    pub steps: Vec<Step>,
    /// Its end.
    pub end: Option<(Seq, TurnEnd)>,
    /// True if records of it were cut away or cannot be read: absence in it is no evidence.
    pub has_gaps: bool,
}

/// One step.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its number.
    pub number: u64,
    /// The seq of its start.
    pub start: Seq,
    /// The prompts that its start claimed.
    pub prompt_ids: Vec<PromptId>,
    /// Its messages: one for our own agent, any number for a hosted one.
    pub messages: Vec<Said>,
    /// What was streamed since the last message, by attempt.
    pub partials: Vec<Arc<Record>>,
    /// Its calls, in the model's order.
    pub calls: Vec<Call>,
    /// The seq of its end.
    pub end: Option<Seq>,
    /// The model its last request went to.
    pub model: Option<String>,
    /// Its last attempt.
    pub attempt: u64,
    /// The seq of its last request.
    pub asked: Option<Seq>,
}

/// A message and where it came from.
#[derive(Debug, Clone)]
pub struct Said {
    /// Its `message/assistant` record.
    pub record: Arc<Record>,
    /// The model that said it.
    pub model: Option<String>,
    /// The seq of the last request before it: what came after that, the model had not been told.
    pub asked: Option<Seq>,
}

impl Said {
    /// The message.
    pub fn message(&self) -> Option<&MessageAssistant> {
        match &self.record.event {
            Event::MessageAssistant(data) => Some(data),
            _ => None,
        }
    }

    /// True if the message was not cut short.
    pub fn is_whole(&self) -> bool {
        self.message().is_some_and(|message| !message.is_cut_short())
    }
}

impl MessageAssistant {
    /// True if the message was cut short: its requests are no requests and its thinking stays here.
    pub fn is_cut_short(&self) -> bool {
        self.interrupted || matches!(self.stop.as_deref(), Some("max_tokens" | "refused"))
    }
}

/// One call: a tool request and what became of it.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its turn.
    pub turn: u64,
    /// Its step.
    pub step: u64,
    /// Its id.
    pub call_id: CallId,
    /// The provider's id for it.
    pub provider_id: String,
    /// The tool.
    pub tool: String,
    /// The seq of the message that requests it.
    pub requested: Seq,
    pub(crate) request: Arc<Record>,
    /// The seq of a permission question.
    pub asked: Option<Seq>,
    /// What the question was answered with.
    pub decided: Option<PermissionOutcome>,
    /// Its `tool/call` record.
    pub dispatched: Option<Arc<Record>>,
    /// Its results, in the order they came.
    pub results: Vec<Arc<Record>>,
    /// A person's words on it.
    pub settled: Vec<Arc<Record>>,
    /// True if it was open where this session was forked off its parent.
    pub open_in_parent: bool,
}

impl Call {
    /// Its arguments.
    pub fn input(&self) -> &Value {
        const NONE: &Value = &Value::Null;
        if let Some(call) = self.tool_call() {
            return &call.input;
        }
        let Event::MessageAssistant(message) = &self.request.event else { return NONE };
        message
            .content
            .iter()
            .find_map(|block| match block {
                Block::ToolRequest { call_id, input, .. } if *call_id == self.call_id => Some(input),
                _ => None,
            })
            .unwrap_or(NONE)
    }

    /// Its `tool/call`.
    pub fn tool_call(&self) -> Option<&ToolCall> {
        match &self.dispatched.as_ref()?.event {
            Event::ToolCall(data) => Some(data),
            _ => None,
        }
    }

    /// The result that counts: the first that knows the outcome, else the first.
    pub fn result(&self) -> Option<&ToolResult> {
        let known = self.results.iter().find(|record| match &record.event {
            Event::ToolResult(data) => data.code.as_deref() != Some(code::OUTCOME_UNKNOWN),
            _ => false,
        });
        match &known.or(self.results.first())?.event {
            Event::ToolResult(data) => Some(data),
            _ => None,
        }
    }

    /// True if the message that asked for it is lost.
    pub fn is_unrequested(&self) -> bool {
        !matches!(self.request.event, Event::MessageAssistant(_))
    }

    /// True if it has no result.
    pub fn is_open(&self) -> bool {
        self.results.is_empty()
    }
}

impl Step {
    pub(crate) fn new(number: u64, start: Seq, prompt_ids: Vec<PromptId>) -> Self {
        Self {
            number,
            start,
            prompt_ids,
            messages: Vec::new(),
            partials: Vec::new(),
            calls: Vec::new(),
            end: None,
            model: None,
            attempt: 0,
            asked: None,
        }
    }
}

impl Turn {
    /// Tokens its messages used.
    pub fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        for said in self.steps.iter().flat_map(|step| &step.messages) {
            if let Some(message) = said.message() {
                sum += message.usage;
            }
        }
        sum
    }

    /// Its calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.steps.iter().flat_map(|step| &step.calls)
    }
}
