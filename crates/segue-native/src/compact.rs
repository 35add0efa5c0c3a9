//! Compaction: the past replaced, for the model, by a summary. The log keeps everything.

use segue_log::{Compaction, Message, UserPart, note, text_of};
use segue_model::Request;
use segue_runtime::{Boundary, Ended, Result, RuntimeError};

use crate::shorten::shorten;
use crate::turn::Turn;

/// The most bytes of the person's own words that are kept beside the summary.
const OWN_WORDS: usize = 16 * 1024;

/// How long each text may be, in bytes, in further tries for a summary of what is too long.
const SHORTER: [usize; 3] = [8 * 1024, 1024, 128];

const ASK: &str = "\
The conversation has grown long. Everything so far will be replaced by what you write now, so write down all that \
is needed to go on without it: what the person wants and what they said about how; facts, names, numbers and \
decisions; what was done, with the files and commands that matter and their results; calls whose outcome is unknown; \
what remains to be done. Answer with the summary alone and call no tools.";

impl Turn {
    /// Asks the model for a summary and records it. False if there is nothing new to replace. Everything up to here is
    /// made durable first, so that the seq a summary names can never change.
    pub(crate) async fn compact(&self, step: Option<u64>) -> Result<bool> {
        if self.turn.conversation(|conversation| conversation.compactable()).is_none() {
            return Ok(false);
        }
        self.turn.store().await.map_err(stopped)?;
        let (up_to, mut messages, own_words) = self.turn.conversation(|conversation| {
            (conversation.compactable(), conversation.history(), own_words(conversation))
        });
        let Some(up_to) = up_to else { return Ok(false) };
        let ask = UserPart::Note { text: note(ASK) };
        match messages.last_mut() {
            Some(Message::User { parts }) => parts.push(ask),
            _ => messages.push(Message::User { parts: vec![ask] }),
        }
        // The tools go along although none may be called: providers want them defined wherever the history names them.
        let mut request = Request {
            system: self.system.clone(),
            messages,
            tools: self.specs.clone(),
            parameters: self.parameters().clone(),
        };
        self.turn.boundary(Boundary::Step).await.map_err(stopped)?;
        let mut answer = self.ask_aside(step, &request).await;
        // What no longer fits for the next step does not fit for its summary either: it has to do with the gist.
        for longest in SHORTER {
            if !is_too_long(&answer) {
                break;
            }
            shorten(&mut request.messages, longest);
            answer = self.ask_aside(step, &request).await;
        }
        let summary = answer.map_err(|ended| RuntimeError::CompactionFailed {
            code: ended.code.unwrap_or_else(|| ended.reason.as_str().to_uppercase()),
            message: ended.message.unwrap_or_else(|| "it was cancelled".into()),
        })?;
        if summary.trim().is_empty() {
            return Err(RuntimeError::CompactionFailed {
                code: "EMPTY_SUMMARY".into(),
                message: "the model gave no summary".into(),
            });
        }
        let summary = format!("{}\n\n{own_words}", summary.trim());
        self.turn.append(Compaction { up_to, summary }).await?;
        Ok(true)
    }

    /// True once the last answer, together with what it was an answer to, fills the given part of the model's window.
    pub(crate) fn is_filled(&self) -> bool {
        let used = self.turn.conversation(|conversation| {
            let after = conversation.compaction().map_or(0, |data| data.up_to);
            let last = conversation
                .turns()
                .iter()
                .rev()
                .flat_map(|turn| turn.steps.iter().rev())
                .flat_map(|step| step.messages.iter().rev())
                .find(|said| {
                    said.record.seq > after && !said.message().is_none_or(|message| message.interrupted)
                });
            match last.and_then(|said| said.message()).map(|message| message.usage.context()) {
                // A provider that does not count: four bytes of JSON make about one token.
                Some(0) => {
                    serde_json::to_string(&conversation.history()).map_or(0, |json| json.len() as u64 / 4)
                }
                Some(tokens) => tokens,
                None => 0,
            }
        });
        used as f64 >= self.model.window() as f64 * self.driver.config.compact_at
    }
}

fn is_too_long(answer: &Result<String, Ended>) -> bool {
    answer.as_ref().is_err_and(|ended| ended.code.as_deref() == Some(segue_log::code::CONTEXT_TOO_LONG))
}

pub(crate) fn stopped(stopped: segue_runtime::Stopped) -> RuntimeError {
    match stopped {
        segue_runtime::Stopped::Failed(source) => {
            RuntimeError::NotStored { what: "the conversation", source }
        }
        segue_runtime::Stopped::Cancelled => {
            RuntimeError::CompactionFailed { code: "CANCELLED".into(), message: "it was cancelled".into() }
        }
    }
}

/// The person's prompts word for word, the newest first to be kept: a summary may be wrong, these are not.
fn own_words(conversation: &segue_log::Conversation) -> String {
    let mut room = OWN_WORDS;
    let mut kept: Vec<String> = Vec::new();
    let ids = conversation
        .turns()
        .iter()
        .flat_map(|turn| turn.prompt_ids.iter().chain(turn.steps.iter().flat_map(|step| &step.prompt_ids)));
    for id in ids.collect::<Vec<_>>().into_iter().rev() {
        let text = conversation.prompt(id).map(|prompt| text_of(prompt.content())).unwrap_or_default();
        if text.len() > room {
            kept.push("(earlier ones are left out)".into());
            break;
        }
        room -= text.len();
        kept.push(format!("- {}", text.trim().replace('\n', "\n  ")));
    }
    kept.reverse();
    format!("The person's own words so far:\n{}", kept.join("\n"))
}
