//! What an agent's replay says of a turn that was cut off, taken over into our log: aligned on the prompts we sent, last
//! first. If nothing aligns nothing is taken over.

use segue_log::{
    Block, Call, CallId, Conversation, MessageAssistant, Origin, Outcome, ToolCall, ToolResult, Turn, code,
    text_of,
};
use segue_runtime::{Result, TurnContext};
use serde_json::Value;

use super::content;
pub use super::content::returned;
use super::permission::{effect, input, tool_name};
use super::tell::{Lacks, cut_off};

/// One thing of a replay.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// A prompt, or whatever the agent shows as one.
    Prompt(String),
    /// Something that it said.
    Said(String),
    /// A call, with all that is said of it.
    Call(String, Value),
}

/// A replay's prompts, messages and calls, in order.
pub fn pieces(updates: &[Value]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut message_id = &Value::Null;
    for update in updates {
        let text = || content::text_of(update.get("content").unwrap_or(&Value::Null)).to_owned();
        let id = update.get("messageId").unwrap_or(&Value::Null);
        match update.get("sessionUpdate").and_then(Value::as_str) {
            Some("user_message_chunk") => match pieces.last_mut() {
                Some(Piece::Prompt(all)) => {
                    all.push('\n');
                    all.push_str(&text());
                }
                _ => pieces.push(Piece::Prompt(text())),
            },
            Some("agent_message_chunk") => match pieces.last_mut() {
                Some(Piece::Said(all)) if id == message_id => all.push_str(&text()),
                _ => pieces.push(Piece::Said(text())),
            },
            Some("tool_call" | "tool_call_update") => {
                let Some(call) = update.get("toolCallId").and_then(Value::as_str) else { continue };
                let held = pieces.iter_mut().find_map(|piece| match piece {
                    Piece::Call(id, said) if id == call => Some(said),
                    _ => None,
                });
                match (held, update.as_object()) {
                    (Some(Value::Object(said)), Some(more)) => {
                        said.extend(
                            more.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())),
                        );
                    }
                    _ => pieces.push(Piece::Call(call.to_owned(), update.clone())),
                }
            }
            _ => continue,
        }
        message_id = id;
    }
    pieces
}

/// What was taken over of a replay.
#[derive(Debug, Default, PartialEq)]
pub struct TakenOver {
    /// What the replay lacks of the turn that was cut off.
    pub lacks: Lacks,
    /// True if no prompt of ours was found in it.
    pub nothing_aligned: bool,
}

/// Takes over what a replay has of the turn that was cut off before turn `context.turn()`.
///
/// # Errors
/// If the log takes no more records.
pub async fn take_over(context: &TurnContext, updates: &[Value]) -> Result<TakenOver> {
    let pieces = pieces(updates);
    let (found, events) = context.conversation(|conversation| {
        let turn = cut_off(conversation, context.turn()).next();
        turn.map_or_else(Default::default, |turn| align(conversation, turn, &pieces))
    });
    for event in events {
        context.append(event).await?;
    }
    Ok(found)
}

/// What is added to a turn that was cut off, and what the replay lacks of it.
fn align(conversation: &Conversation, turn: &Turn, pieces: &[Piece]) -> (TakenOver, Vec<segue_log::Event>) {
    let prompt = prompt_of(conversation, turn);
    let Some(at) = find(pieces, &prompt) else {
        let earlier = conversation.turns().iter().rev().filter(|held| held.number < turn.number);
        let aligns = earlier.into_iter().any(|held| find(pieces, &prompt_of(conversation, held)).is_some());
        let lacks = Lacks { prompt: true, answer: true };
        return (TakenOver { lacks, nothing_aligned: !aligns }, Vec::new());
    };
    let tail = pieces.get(at + 1..).unwrap_or_default();
    let mut taking =
        Taking { turn, step: turn.steps.last().map_or(1, |step| step.number), events: Vec::new() };
    for piece in tail {
        match piece {
            Piece::Prompt(_) => {}
            Piece::Said(text) => taking.said(text),
            Piece::Call(id, said) => taking.call(id, said),
        }
    }
    let replayed: String = tail
        .iter()
        .filter_map(|piece| match piece {
            Piece::Said(text) => Some(squeezed(text)),
            _ => None,
        })
        .collect();
    let answer = ours(turn).any(|message| !replayed.contains(&squeezed(&text_of(&message.content))));
    (TakenOver { lacks: Lacks { prompt: false, answer }, nothing_aligned: false }, taking.events)
}

/// The last place where a prompt stands: as it was sent, perhaps among notes and whatever the agent wraps around it.
fn find(pieces: &[Piece], prompt: &str) -> Option<usize> {
    let prompt = squeezed(prompt);
    if prompt.is_empty() {
        return None;
    }
    pieces.iter().rposition(|piece| matches!(piece, Piece::Prompt(text) if squeezed(text).contains(&prompt)))
}

fn prompt_of(conversation: &Conversation, turn: &Turn) -> String {
    let prompts = turn.prompt_ids.iter().filter_map(|id| conversation.prompt(id));
    let texts: Vec<String> = prompts.map(|prompt| text_of(prompt.content())).collect();
    let text = texts.join("\n");
    match (&turn.finish, text.strip_prefix("//")) {
        (Some(segue_log::Finish::Note(note)), _) if text.is_empty() => note.clone(),
        (_, Some(command)) => format!("/{command}"),
        _ => text,
    }
}

/// Text without its white space, which agents add and drop.
fn squeezed(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

fn ours(turn: &Turn) -> impl Iterator<Item = &MessageAssistant> {
    turn.steps.iter().flat_map(|step| &step.messages).filter_map(|said| said.message())
}

struct Taking<'a> {
    turn: &'a Turn,
    step: u64,
    events: Vec<segue_log::Event>,
}

impl Taking<'_> {
    /// A whole message, where ours is missing or cut off.
    fn said(&mut self, text: &str) {
        let replayed = squeezed(text);
        let is_known = ours(self.turn).any(|message| {
            let held = squeezed(&text_of(&message.content));
            held == replayed || (!message.interrupted && held.contains(&replayed))
        });
        if !is_known && !replayed.is_empty() {
            self.message(Block::text(text));
        }
    }

    fn message(&mut self, block: Block) {
        let message = MessageAssistant {
            turn: self.turn.number,
            step: self.step,
            attempt: 1,
            content: vec![block],
            usage: Default::default(),
            stop: None,
            interrupted: false,
            replayed: true,
        };
        self.events.push(message.into());
    }

    /// A call that we have not, or whose outcome we did not know. Only "completed" is taken for knowledge: some agents
    /// say "failed" of every call that was cut off.
    fn call(&mut self, id: &str, said: &Value) {
        let is_completed = said.get("status").and_then(Value::as_str) == Some("completed");
        let held: Option<&Call> = self.turn.calls().find(|call| call.provider_id == id);
        if let Some(call) = held {
            let is_unknown =
                call.result().is_none_or(|held| held.code.as_deref() == Some(code::OUTCOME_UNKNOWN));
            if is_unknown && is_completed {
                self.result(call.call_id.clone(), said, true);
            }
            return;
        }
        let call_id = CallId::mint();
        self.message(Block::ToolRequest {
            call_id: call_id.clone(),
            provider_id: id.to_owned(),
            tool: tool_name(said).to_owned(),
            input: input(said),
        });
        self.events.push(
            ToolCall {
                turn: self.turn.number,
                step: self.step,
                call_id: call_id.clone(),
                provider_id: id.to_owned(),
                tool: tool_name(said).to_owned(),
                input: input(said),
                effect: effect(said),
                expect: None,
                origin: Origin::Reported,
                host: String::new(),
                boot: String::new(),
                replayed: true,
            }
            .into(),
        );
        self.result(call_id, said, is_completed);
    }

    fn result(&mut self, call_id: CallId, said: &Value, is_known: bool) {
        let (outcome, code, content) = if is_known {
            (Outcome::Ok, None, returned(said))
        } else {
            let text = "The agent's own history has this call without an outcome: it may have happened wholly, in part or not at all.";
            (Outcome::Error, Some(code::OUTCOME_UNKNOWN.to_owned()), vec![Block::text(text)])
        };
        let result = ToolResult {
            turn: self.turn.number,
            step: self.step,
            call_id,
            outcome,
            code,
            content,
            recovered: false,
            replayed: true,
        };
        self.events.push(result.into());
    }
}
