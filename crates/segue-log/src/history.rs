//! What a model is sent: always valid for its provider, whatever the log went through.

use std::collections::HashSet;

use serde_json::Value;

use crate::content::Block;
use crate::conversation::Conversation;
use crate::id::PromptId;
use crate::message::{AssistantPart, Message, UserPart, note};
use crate::record::{EndReason, Event, Outcome, Record, Seq, Settlement, code};
use crate::repair::unknown_text;
use crate::turn::{Call, Said, Step, Turn};

/// Ends a history that would end with the model's own words.
const GO_ON: &str = "Nothing was added since. Go on with what was asked.";

impl Conversation {
    /// The conversation as a model is sent it.
    pub fn history(&self) -> Vec<Message> {
        let compacted = self.compaction();
        let mut builder = Builder {
            after: compacted.map_or(0, |data| data.up_to),
            messages: Vec::new(),
            wire_ids: HashSet::new(),
            notes: self.notes().into_iter().peekable(),
        };
        if let Some(data) = compacted {
            builder.user(UserPart::Note {
                text: note(&format!("The conversation so far, in short:\n\n{}", data.summary)),
            });
        }
        let unanswered = self.unanswered(builder.after);
        for (at, turn) in self.turns().iter().enumerate() {
            builder.turn(self, turn, at >= unanswered);
        }
        builder.finish()
    }

    /// Of the turns that ended up to `after`, where those begin whose prompts nothing has answered: they broke off, and
    /// no later one came to its end.
    fn unanswered(&self, after: Seq) -> usize {
        let is_answer = |turn: &Turn| {
            turn.end.as_ref().is_some_and(|(seq, end)| {
                *seq <= after && matches!(end.reason, EndReason::Completed | EndReason::Refused)
            })
        };
        self.turns().iter().rposition(is_answer).map_or(0, |at| at + 1)
    }

    /// Our notes with the seq that each belongs at.
    fn notes(&self) -> Vec<(Seq, String)> {
        let after = self.compaction().map_or(0, |data| data.up_to);
        let mut notes = Vec::new();
        for record in self.repairs() {
            notes.push((record.seq, cut_note(record)));
        }
        for record in self.settlements() {
            if let Event::CallSettled(data) = &record.event {
                let tool = self.call(&data.call_id).map_or("unknown tool", |call| &call.tool);
                notes.push((record.seq, settled_note(tool, data.call_id.as_str(), data.how, &data.note)));
            }
        }
        for call in self.turns().iter().flat_map(Turn::calls).filter(|call| call.requested <= after) {
            let late = call.results.iter().filter(|record| record.seq > after);
            notes.extend(late.map(|record| (record.seq, late_note(call, record))));
        }
        notes.retain(|(seq, _)| *seq > after);
        notes.sort_by_key(|(seq, _)| *seq);
        notes
    }
}

fn cut_note(record: &Record) -> String {
    let at = match &record.event {
        Event::SessionRepaired(data) => data.cut_at,
        _ => 0,
    };
    format!(
        "The end of this conversation's log was lost in a crash (after record {at}). Things may have been said and done \
         after that which are not in this history. Look before you repeat anything."
    )
}

fn settled_note(tool: &str, call: &str, how: Settlement, note: &str) -> String {
    let word = match how {
        Settlement::Done => "it was done; do not call it again for this",
        Settlement::Skip => "it was not done and is no longer wanted; do not call it again",
        Settlement::Retry => "it may be called again if it is still wanted; nothing was run for it",
    };
    let more = if note.is_empty() { String::new() } else { format!(" They add: {note}") };
    format!("The person settled the outcome of the call of {tool} ({call}): {word}.{more}")
}

fn late_note(call: &Call, record: &Record) -> String {
    let Event::ToolResult(data) = &record.event else { return String::new() };
    let how = if data.outcome == Outcome::Ok { "succeeded" } else { "failed" };
    let text = crate::content::text_of(&data.content);
    format!(
        "The result of an earlier call of {} ({}) is known now. It {how}:\n{text}",
        call.tool, call.call_id
    )
}

struct Builder {
    /// Records up to here are replaced by the summary.
    after: Seq,
    messages: Vec<Message>,
    wire_ids: HashSet<String>,
    notes: std::iter::Peekable<std::vec::IntoIter<(Seq, String)>>,
}

impl Builder {
    fn turn(&mut self, conversation: &Conversation, turn: &Turn, is_unanswered: bool) {
        let is_over = turn.end.as_ref().is_some_and(|(end, _)| *end <= self.after);
        // Prompts that were not answered at the compaction are kept word for word, unless no model can read them.
        let fits =
            turn.end.as_ref().is_none_or(|(_, end)| end.code.as_deref() != Some(code::CONTEXT_TOO_LONG));
        let is_unanswered = is_unanswered && fits;
        if !is_over || is_unanswered {
            self.prompts(conversation, &turn.prompt_ids, turn.start);
        }
        if is_over {
            let is_bare = |step: &&Step| !step.messages.iter().any(|said| said.is_whole());
            for step in turn.steps.iter().filter(is_bare).filter(|_| is_unanswered) {
                self.prompts(conversation, &step.prompt_ids, step.start);
            }
            return;
        }
        for step in &turn.steps {
            self.prompts(conversation, &step.prompt_ids, step.start);
            let after = self.after;
            for said in step.messages.iter().filter(|said| said.record.seq > after) {
                // A note that came while the model was answering was not told to it: it follows the answer.
                self.notes_before(said.asked.unwrap_or(said.record.seq));
                self.message(step, said);
            }
            if step.messages.is_empty() {
                self.unrequested(step);
            }
        }
    }

    fn prompts(&mut self, conversation: &Conversation, ids: &[PromptId], at: Seq) {
        self.notes_before(at);
        for id in ids {
            for block in conversation.prompt(id).map_or(&[][..], |prompt| prompt.content()) {
                if !is_blank(block) {
                    self.user(UserPart::Block(block.clone()));
                }
            }
        }
    }

    fn notes_before(&mut self, seq: Seq) {
        while let Some((_, text)) = self.notes.next_if(|(at, _)| *at < seq) {
            self.user(UserPart::Note { text: note(&text) });
        }
    }

    fn message(&mut self, step: &Step, said: &Said) {
        let Some(data) = said.message() else { return };
        let mut parts = Vec::new();
        let mut results = Vec::new();
        for block in &data.content {
            match block {
                Block::Text { text } if !text.trim().is_empty() => {
                    parts.push(AssistantPart::Text { text: text.clone() });
                }
                Block::Thinking { text, signature, redacted } if !data.is_cut_short() => {
                    parts.push(AssistantPart::Thinking {
                        text: text.clone(),
                        signature: signature.clone(),
                        redacted: redacted.clone(),
                    });
                }
                Block::ToolRequest { call_id, input, .. } if !data.is_cut_short() => {
                    let here = |call: &&Call| call.call_id == *call_id && call.requested == said.record.seq;
                    if let Some(call) = step.calls.iter().find(here) {
                        let wire_id = self.wire_id(call);
                        parts.push(AssistantPart::Request {
                            wire_id: wire_id.clone(),
                            tool: call.tool.clone(),
                            input: input.clone(),
                        });
                        results.push(result_part(wire_id, call));
                    }
                }
                _ => {}
            }
        }
        if step.messages.last().is_some_and(|last| last.record.seq == said.record.seq) {
            self.add_unrequested(step, &mut parts, &mut results);
        }
        // Thinking alone is not a message that a provider takes back.
        if parts.iter().all(|part| matches!(part, AssistantPart::Thinking { .. })) {
            return;
        }
        self.assistant(parts, said.model.clone());
        for result in results {
            self.user(result);
        }
    }

    /// Calls whose message is lost, in a message of their own: they ran, and what is known of them is told.
    fn unrequested(&mut self, step: &Step) {
        let (mut parts, mut results) = (Vec::new(), Vec::new());
        self.add_unrequested(step, &mut parts, &mut results);
        if !parts.is_empty() {
            self.notes_before(step.start);
            self.assistant(parts, step.model.clone());
        }
        for result in results {
            self.user(result);
        }
    }

    fn add_unrequested(&mut self, step: &Step, parts: &mut Vec<AssistantPart>, results: &mut Vec<UserPart>) {
        let after = self.after;
        for call in step.calls.iter().filter(|call| call.is_unrequested() && call.requested > after) {
            let wire_id = self.wire_id(call);
            parts.push(AssistantPart::Request {
                wire_id: wire_id.clone(),
                tool: call.tool.clone(),
                input: call.input().clone(),
            });
            results.push(result_part(wire_id, call));
        }
    }

    /// The provider's own id where it can stand for the call, else ours.
    fn wire_id(&mut self, call: &Call) -> String {
        let fits = |id: &str| {
            !id.is_empty()
                && id.len() <= 64
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        };
        for candidate in [call.provider_id.as_str(), call.call_id.as_str()] {
            if fits(candidate) && self.wire_ids.insert(candidate.to_owned()) {
                return candidate.to_owned();
            }
        }
        let mut number = self.wire_ids.len();
        loop {
            let candidate = format!("call_{number}");
            if self.wire_ids.insert(candidate.clone()) {
                return candidate;
            }
            number += 1;
        }
    }

    fn user(&mut self, part: UserPart) {
        if let Some(Message::User { parts }) = self.messages.last_mut() {
            parts.push(part);
        } else {
            self.messages.push(Message::User { parts: vec![part] });
        }
    }

    fn assistant(&mut self, parts: Vec<AssistantPart>, model: Option<String>) {
        self.needs_user();
        self.messages.push(Message::Assistant { parts, model });
    }

    /// Sees to it that the last message is the user's. The note stands in every later history too, so that what was
    /// sent once is sent again unchanged.
    fn needs_user(&mut self) {
        if !matches!(self.messages.last(), Some(Message::User { .. })) {
            self.user(UserPart::Note { text: note(GO_ON) });
        }
    }

    fn finish(mut self) -> Vec<Message> {
        self.notes_before(Seq::MAX);
        self.needs_user();
        self.messages
    }
}

fn result_part(wire_id: String, call: &Call) -> UserPart {
    let (error, content) = match call.result() {
        Some(result) => (result.outcome == Outcome::Error, result.content.clone()),
        None => (true, vec![Block::text(unknown_text(call))]),
    };
    let mut content: Vec<Block> = content.into_iter().filter(|block| !is_blank(block)).collect();
    if content.is_empty() {
        content.push(Block::text("(no output)"));
    }
    UserPart::Result { wire_id, error, content }
}

fn is_blank(block: &Block) -> bool {
    match block {
        Block::Text { text } => text.trim().is_empty(),
        Block::Image { data, .. } => data.is_empty(),
        Block::Resource { .. } => false,
        Block::Unknown(value) => *value == Value::Null,
        Block::Thinking { .. } | Block::ToolRequest { .. } | Block::PartialRequest { .. } => true,
    }
}
