//! A Segue session is an append-only log. This crate knows what its records say: their types, how a line is
//! written and read, the fold of records into a conversation, what a model is sent, repair after a crash, the
//! transcript as text. Pure functions: no I/O, no clock but the one that stamps new ids and times, no async.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod action;
mod content;
mod conversation;
mod history;
mod id;
pub mod line;
mod message;
mod record;
mod repair;
mod text;
mod time;
mod transcript;
mod turn;

pub use action::{Action, ActionKind, escape_rule, literal_rule};
pub use content::{Block, Usage, text_of};
pub use conversation::{Conversation, Settings};
pub use id::{BadId, BlobHash, CallId, PromptId, SessionId};
pub use message::{AssistantPart, Message, UserPart, is_note, note};
pub use record::*;
pub use repair::{Evidence, Finding, RepairOutcome, repair, repair_summary};
pub use text::{strip_controls, title_of, visible_controls};
pub use time::Time;
pub use transcript::{TranscriptOptions, transcript};
pub use turn::{Call, Prompt, PromptPlace, Said, Step, Turn};
