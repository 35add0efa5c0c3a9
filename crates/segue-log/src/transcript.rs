//! A conversation as text for people.

use crate::content::{Block, text_of};
use crate::conversation::Conversation;
use crate::id::PromptId;
use crate::message::is_note;
use crate::record::{Event, Outcome, PermissionOutcome};
use crate::text::strip_controls;
use crate::turn::{Call, Step, Turn};

/// How much a transcript shows.
#[derive(Debug, Clone, Copy)]
pub struct TranscriptOptions {
    /// Show the model's reasoning.
    pub thinking: bool,
    /// The most characters shown of one call's arguments or result.
    pub detail: usize,
}

impl Default for TranscriptOptions {
    fn default() -> Self {
        Self { thinking: false, detail: 2_000 }
    }
}

/// The conversation as Markdown: prompts quoted, answers as they are, calls as short blocks, what a crash or a
/// cancel did in words. Terminal controls are gone.
pub fn transcript(conversation: &Conversation, options: &TranscriptOptions) -> String {
    let mut out = Out { text: String::new(), options: *options };
    for turn in conversation.turns() {
        out.turn(conversation, turn);
    }
    let mut waiting = conversation.queue().peekable();
    if waiting.peek().is_some() {
        out.line("*Waiting in the queue:*");
        for (_, prompt) in waiting {
            out.quote(&text_of(prompt.content()));
        }
    }
    out.text
}

struct Out {
    text: String,
    options: TranscriptOptions,
}

impl Out {
    fn turn(&mut self, conversation: &Conversation, turn: &Turn) {
        if turn.finish.is_some() {
            self.line(&format!("*Turn {}: the interrupted work was taken up again.*", turn.number));
        }
        self.prompts(conversation, &turn.prompt_ids);
        for step in &turn.steps {
            self.prompts(conversation, &step.prompt_ids);
            self.step(step);
        }
        match &turn.end {
            Some((_, end)) if end.reason != crate::EndReason::Completed => {
                let more = match (&end.code, &end.message) {
                    (Some(code), Some(message)) => format!(" ({code}: {message})"),
                    (Some(code), None) => format!(" ({code})"),
                    _ => String::new(),
                };
                self.line(&format!("*Turn {} ended: {}{more}.*", turn.number, end.reason.as_str()));
            }
            Some(_) => {}
            None => self.line(&format!("*Turn {} has not ended.*", turn.number)),
        }
    }

    fn prompts(&mut self, conversation: &Conversation, ids: &[PromptId]) {
        for id in ids {
            match conversation.prompt(id) {
                Some(prompt) => {
                    let mut text = text_of(prompt.content());
                    for block in prompt.content() {
                        match block {
                            Block::Image { media_type, .. } => {
                                text.push_str(&format!("\n[image: {media_type}]"))
                            }
                            Block::Resource { uri, .. } => text.push_str(&format!("\n[{uri}]")),
                            _ => {}
                        }
                    }
                    self.quote(text.trim_start_matches('\n'));
                }
                None => self.line("*A prompt that can no longer be read.*"),
            }
        }
    }

    fn step(&mut self, step: &Step) {
        for said in &step.messages {
            let Some(message) = said.message() else { continue };
            self.content(&message.content);
            if message.interrupted {
                self.line("*(cut off)*");
            }
            for call in step.calls.iter().filter(|call| call.requested == said.record.seq) {
                self.call(call);
            }
        }
        for call in step.calls.iter().filter(|call| call.is_unrequested()) {
            self.call(call);
        }
        if let Some((_, content)) = step.streamed() {
            self.content(&content);
            self.line("*(not finished)*");
        }
    }

    fn content(&mut self, content: &[Block]) {
        for block in content {
            match block {
                Block::Text { text } if !is_note(text) && !text.trim().is_empty() => self.line(text.trim()),
                Block::Thinking { text, .. } if self.options.thinking && !text.trim().is_empty() => {
                    self.line(&format!("*Thinking:* {}", text.trim()));
                }
                Block::PartialRequest { tool, .. } => {
                    self.line(&format!("*(a half-made request of {tool})*"))
                }
                _ => {}
            }
        }
    }

    fn call(&mut self, call: &Call) {
        let input = match call.input() {
            serde_json::Value::String(raw) => raw.clone(),
            value => value.to_string(),
        };
        let mut text = format!("- **{}** `{}` ({})", call.tool, self.cut(&input), call.call_id);
        match call.decided {
            Some(PermissionOutcome::Deny) => text.push_str("\n  denied"),
            Some(_) => text.push_str("\n  permitted"),
            None => {}
        }
        match call.result() {
            Some(result) => {
                let word = match (result.outcome, &result.code) {
                    (Outcome::Ok, _) => "ok",
                    (Outcome::Error, Some(code)) => code,
                    (Outcome::Error, None) => "error",
                };
                let found = if result.recovered { ", found out after a crash" } else { "" };
                text.push_str(&format!("\n  {word}{found}"));
                let body = self.cut(text_of(&result.content).trim()).replace('\n', "\n      ");
                if !body.is_empty() {
                    text.push_str(&format!("\n\n      {body}"));
                }
            }
            None => text.push_str("\n  no result yet"),
        }
        for record in &call.settled {
            if let Event::CallSettled(data) = &record.event {
                let how = serde_json::to_value(data.how).ok();
                let how = how.as_ref().and_then(|value| value.as_str()).unwrap_or_default();
                text.push_str(&format!("\n  settled: {how} {}", data.note));
            }
        }
        self.line(&text);
    }

    fn cut(&self, text: &str) -> String {
        if text.chars().count() <= self.options.detail {
            return text.to_owned();
        }
        let head: String = text.chars().take(self.options.detail).collect();
        format!("{head}… ({} characters in all)", text.chars().count())
    }

    fn quote(&mut self, text: &str) {
        let text = text.trim_end().lines().map(|line| format!("> {line}")).collect::<Vec<_>>().join("\n");
        self.line(&text);
    }

    fn line(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(&strip_controls(text));
        self.text.push('\n');
    }
}
