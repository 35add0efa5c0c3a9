//! A conversation that an agent had before Segue, as the beginning of a session's log.

use std::path::Path;

use segue_log::{
    AgentBound, Block, CallId, EndReason, Event, MessageAssistant, Origin, Outcome, Policy, PromptFor,
    PromptId, PromptQueued, StepEnd, StepStart, ToolCall, ToolResult, TurnEnd, TurnStart, Usage, code,
    is_note, title_of,
};
use serde_json::Value;

use super::agent::{StartError, start_to_look};
use super::config::HostedConfig;
use super::permission::{effect, input, tool_name};
use super::replay::{Piece, pieces, returned};
use super::resume::{Failure, Way, classify, params};
use super::rpc::NoAnswer;

/// Why a conversation cannot be adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// There is no running agent.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It cannot show a past conversation.
    #[error("the agent {0} cannot load its past conversations, so they cannot be adopted")]
    NotSupported(String),
    /// It has no such conversation.
    #[error("the agent {name} has no conversation {id}: {words}")]
    Gone {
        /// The agent.
        name: String,
        /// The conversation.
        id: String,
        /// In its words.
        words: String,
    },
    /// It would not load it.
    #[error("the agent {name} would not load its conversation {id}: {words}")]
    Failed {
        /// The agent.
        name: String,
        /// The conversation.
        id: String,
        /// In its words.
        words: String,
    },
}

/// The records that a session begins with whose agent has had the conversation `id` so far: the binding, and its past as
/// the agent replays it. The agent is ended again; the first prompt resumes it.
///
/// # Errors
/// [`AdoptError`]; nothing is left running.
pub async fn adopt(
    shared: &HostedConfig,
    name: &str,
    id: &str,
    cwd: &Path,
) -> Result<Vec<Event>, AdoptError> {
    let (config, mut agent) = start_to_look(shared, name, cwd).await?;
    let about = agent.about.clone();
    if !about.can("/loadSession") {
        agent.end(&config).await;
        return Err(AdoptError::NotSupported(name.to_owned()));
    }
    let common = serde_json::json!({"cwd": config.path_there(cwd), "mcpServers": config.mcp_servers});
    let params = params(&common, &about, config.system_prompt.as_deref(), Some((Way::Load, id)));
    let loaded = agent.ask(Way::Load.method(), params, config.init_timeout).await;
    let result = match loaded {
        Ok((_, updates)) => Ok(events(name, &about.version, id, &updates)),
        Err(error) => {
            let failure = classify(id, &error);
            let words = match &error {
                NoAnswer::Refused(refusal) => refusal.words(),
                NoAnswer::Closed => format!("it ended{}", agent.account().await),
                NoAnswer::TimedOut => "it did not answer in time".into(),
            };
            let (name, id) = (name.to_owned(), id.to_owned());
            Err(match failure {
                Failure::NotSupported => AdoptError::NotSupported(name),
                Failure::Gone => AdoptError::Gone { name, id, words },
                _ => AdoptError::Failed { name, id, words },
            })
        }
    };
    agent.end(&config).await;
    result
}

/// The records of a conversation that was replayed like this.
fn events(name: &str, version: &str, id: &str, updates: &[Value]) -> Vec<Event> {
    let bound = AgentBound {
        agent: name.to_owned(),
        version: version.to_owned(),
        agent_session_id: id.to_owned(),
        how: "adopted".into(),
        owes: None,
    };
    let mut past = Adopting { events: vec![bound.into()], turn: 0, title: String::new() };
    for piece in pieces(updates) {
        match piece {
            Piece::Prompt(text) => past.prompt(&text),
            Piece::Said(text) => past.said(Block::text(text)),
            Piece::Call(call, said) => past.call(call, &said),
        }
    }
    past.end_turn();
    past.events
}

struct Adopting {
    events: Vec<Event>,
    turn: u64,
    title: String,
}

impl Adopting {
    fn prompt(&mut self, text: &str) {
        self.end_turn();
        let text: String = text.lines().filter(|line| !is_note(line)).collect::<Vec<_>>().join("\n");
        if self.turn == 0 {
            self.title = title_of(&text);
        }
        let prompt_id = PromptId::mint();
        let queued = PromptQueued {
            prompt_id: prompt_id.clone(),
            content: vec![Block::text(text)],
            source: "adopted".into(),
            target: PromptFor::Turn,
        };
        self.events.push(queued.into());
        self.begin_turn(vec![prompt_id]);
    }

    fn begin_turn(&mut self, prompt_ids: Vec<PromptId>) {
        self.turn += 1;
        let (turn, step) = (self.turn, 1);
        self.events.push(TurnStart { turn, prompt_ids, policy: Policy::Semantic, finish: None }.into());
        self.events.push(StepStart { turn, step, prompt_ids: Vec::new() }.into());
    }

    fn end_turn(&mut self) {
        if self.turn == 0 {
            return;
        }
        self.events.push(StepEnd { turn: self.turn, step: 1 }.into());
        let end = TurnEnd {
            turn: self.turn,
            reason: EndReason::Completed,
            code: None,
            message: None,
            title: self.title.clone(),
            turns: self.turn,
            usage: Usage::default(),
        };
        self.events.push(end.into());
    }

    fn said(&mut self, block: Block) {
        if self.turn == 0 {
            // A replay need not begin with a prompt.
            self.begin_turn(Vec::new());
        }
        let message = MessageAssistant {
            turn: self.turn,
            step: 1,
            attempt: 1,
            content: vec![block],
            usage: Usage::default(),
            stop: None,
            interrupted: false,
            replayed: true,
        };
        self.events.push(message.into());
    }

    fn call(&mut self, provider_id: String, said: &Value) {
        let call_id = CallId::mint();
        let (tool, input) = (tool_name(said).to_owned(), input(said));
        self.said(Block::ToolRequest {
            call_id: call_id.clone(),
            provider_id: provider_id.clone(),
            tool: tool.clone(),
            input: input.clone(),
        });
        let call = ToolCall {
            turn: self.turn,
            step: 1,
            call_id: call_id.clone(),
            provider_id,
            tool,
            input,
            effect: effect(said),
            expect: None,
            origin: Origin::Reported,
            host: String::new(),
            boot: String::new(),
            replayed: true,
        };
        self.events.push(call.into());
        let (outcome, code, content) = match said.get("status").and_then(Value::as_str) {
            Some("completed") => (Outcome::Ok, None, returned(said)),
            Some("failed") => (Outcome::Error, Some(code::FAILED), returned(said)),
            _ => {
                let text = "The agent's history has no outcome of this call.";
                (Outcome::Error, Some(code::OUTCOME_UNKNOWN), vec![Block::text(text)])
            }
        };
        let result = ToolResult {
            turn: self.turn,
            step: 1,
            call_id,
            outcome,
            code: code.map(str::to_owned),
            content,
            recovered: false,
            replayed: true,
        };
        self.events.push(result.into());
    }
}
