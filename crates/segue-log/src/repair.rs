//! Repair after a crash: what to append so that the log tells the truth about what was left open.

use std::collections::HashMap;

use crate::content::Block;
use crate::conversation::Conversation;
use crate::id::CallId;
use crate::record::*;
use crate::turn::{Call, Step, Turn};

/// What is known of open calls from outside the log.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// By call; one that is missing here has left no trace.
    pub calls: HashMap<CallId, Finding>,
}

/// What is known of one open call.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// Its real result.
    Result {
        /// How it ended.
        outcome: Outcome,
        /// For an error: its code.
        code: Option<String>,
        /// What it returned.
        content: Vec<Block>,
    },
    /// It still runs, and is to be waited for: its turn stays open.
    Running,
    /// It was still running when the session was opened, and was ended then.
    Stopped {
        /// What it had written so far.
        output: String,
    },
    /// It ran and is gone; how it ended is not known.
    Gone {
        /// What it had written so far.
        output: String,
    },
}

/// How repair answered one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// Its body was never entered.
    NotStarted,
    /// Its real outcome was found.
    Recovered,
    /// It still runs.
    Running,
    /// Only the world knows.
    Unknown,
}

/// What must be appended to a conversation that a crash left open. Adds nothing to one that is whole, and nothing more
/// when its own output has been applied. Holes in old turns are closed too.
pub fn repair(conversation: &Conversation, evidence: &Evidence) -> Vec<Event> {
    let mut out = Vec::new();
    for turn in conversation.turns() {
        let is_open = turn.end.is_none();
        let mut waits = false;
        for step in &turn.steps {
            if is_open && let Some(message) = cut_message(turn, step) {
                out.push(message.into());
            }
            for call in step.calls.iter().filter(|call| call.is_open()) {
                match answer(turn, call, evidence.calls.get(&call.call_id)) {
                    Some(result) => out.push(result.into()),
                    None => waits = true,
                }
            }
            if is_open && step.end.is_none() && !waits {
                out.push(StepEnd { turn: turn.number, step: step.number }.into());
            }
        }
        if is_open && !waits {
            out.push(
                TurnEnd {
                    turn: turn.number,
                    reason: EndReason::Interrupted,
                    code: None,
                    message: None,
                    title: conversation.title(),
                    turns: conversation.turns().last().map_or(turn.number, |last| last.number),
                    usage: turn.usage(),
                }
                .into(),
            );
        }
    }
    out
}

/// What repair said of each call, from the records it made and those that still run.
pub fn repair_summary(conversation: &Conversation, made: &[Event]) -> Vec<(CallId, String, RepairOutcome)> {
    let mut out = Vec::new();
    for event in made {
        let Event::ToolResult(data) = event else { continue };
        let outcome = match data.code.as_deref() {
            _ if data.recovered => RepairOutcome::Recovered,
            Some(code::NOT_STARTED) => RepairOutcome::NotStarted,
            _ => RepairOutcome::Unknown,
        };
        let tool = conversation.call(&data.call_id).map(|call| call.tool.clone()).unwrap_or_default();
        out.push((data.call_id.clone(), tool, outcome));
    }
    let answered: Vec<CallId> = out.iter().map(|(id, ..)| id.clone()).collect();
    for call in conversation.open_calls().filter(|call| !answered.contains(&call.call_id)) {
        out.push((call.call_id.clone(), call.tool.clone(), RepairOutcome::Running));
    }
    out
}

/// The message that a killed stream leaves: what the last attempt that streamed anything had brought.
fn cut_message(turn: &Turn, step: &Step) -> Option<MessageAssistant> {
    let (attempt, content) = step.streamed()?;
    Some(MessageAssistant {
        turn: turn.number,
        step: step.number,
        attempt,
        content,
        usage: Default::default(),
        stop: None,
        interrupted: true,
        replayed: false,
    })
}

impl Step {
    /// What was streamed since the last message: of several attempts only the last that streamed anything.
    pub fn streamed(&self) -> Option<(u64, Vec<Block>)> {
        let partials = || {
            self.partials.iter().filter_map(|record| match &record.event {
                Event::MessagePartial(data) if !data.content.is_empty() => Some(data),
                _ => None,
            })
        };
        let attempt = partials().map(|data| data.attempt).max()?;
        let mut content: Vec<Block> = Vec::new();
        for block in partials().filter(|data| data.attempt == attempt).flat_map(|data| &data.content) {
            match (content.last_mut(), block) {
                (Some(Block::Text { text }), Block::Text { text: more }) => text.push_str(more),
                (
                    Some(Block::Thinking { text, signature, .. }),
                    Block::Thinking { text: more, signature: seal, .. },
                ) => {
                    text.push_str(more);
                    if seal.is_some() {
                        signature.clone_from(seal);
                    }
                }
                (Some(Block::PartialRequest { input, .. }), Block::PartialRequest { tool, input: more })
                    if tool.is_empty() =>
                {
                    input.push_str(more);
                }
                _ => content.push(block.clone()),
            }
        }
        Some((attempt, content))
    }
}

/// The result of an open call; none if it is waited for.
fn answer(turn: &Turn, call: &Call, finding: Option<&Finding>) -> Option<ToolResult> {
    let result = |outcome, code: Option<&str>, content, recovered| ToolResult {
        turn: call.turn,
        step: call.step,
        call_id: call.call_id.clone(),
        outcome,
        code: code.map(str::to_owned),
        content,
        recovered,
        replayed: false,
    };
    let unknown =
        |text: String| result(Outcome::Error, Some(code::OUTCOME_UNKNOWN), vec![Block::text(text)], false);
    if call.open_in_parent {
        return Some(unknown(format!("This call was running in the parent session. {}", unknown_text(call))));
    }
    match finding {
        Some(Finding::Running) => None,
        Some(Finding::Result { outcome, code, content }) => {
            Some(result(*outcome, code.as_deref(), content.clone(), true))
        }
        Some(Finding::Stopped { output }) => Some(unknown(format!(
            "It was still running when the session was opened again, and was ended then. {}{}",
            unknown_text(call),
            so_far(output)
        ))),
        Some(Finding::Gone { output }) => Some(unknown(format!("{}{}", unknown_text(call), so_far(output)))),
        None if was_not_started(turn, call) => {
            Some(result(Outcome::Error, Some(code::NOT_STARTED), vec![Block::text(NOT_STARTED)], false))
        }
        None => Some(unknown(unknown_text(call))),
    }
}

/// Absence of a `tool/call` is evidence only where the policy would have made one durable and nothing was cut away.
/// What a hosted agent runs by itself leaves no record of ours, unless it was still asking us.
fn was_not_started(turn: &Turn, call: &Call) -> bool {
    let still_asking = call.asked.is_some() && call.decided.is_none();
    call.dispatched.is_none()
        && !turn.has_gaps
        && (if turn.hosted { still_asking } else { turn.policy == Policy::Semantic })
}

const NOT_STARTED: &str = "This call was not started: the process ended before its turn came. It may be called again if it is still wanted.";

/// What a model is told of a call whose outcome nobody knows.
pub(crate) fn unknown_text(call: &Call) -> String {
    let advice = match call.tool_call().map(|data| data.effect) {
        Some(Effect::Read) => "The tool only reads, so it can be called again.",
        Some(Effect::Idempotent) => {
            "The tool does the same however often it is called with the same input, so it can be called again with exactly that input."
        }
        Some(Effect::Write) | None => {
            "The tool may change things, so never call it again blindly: first look at what is there, or ask the person."
        }
    };
    format!(
        "The outcome of this call is unknown: the process ended while it may have been running. It may have happened wholly, in part or not at all. {advice}"
    )
}

fn so_far(output: &str) -> String {
    if output.trim().is_empty() { String::new() } else { format!("\n\nIts output so far:\n{output}") }
}
