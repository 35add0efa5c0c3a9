//! Language models: one trait, Anthropic Messages and OpenAI Chat Completions over HTTP, and `practice`, which needs
//! neither key nor network. The crate reads no environment: the launcher hands it keys and addresses.
//!
//! *Invariant:* an adapter sends nothing before its `stream` is called, and retries nothing by itself.

mod assemble;
mod error;
mod model;
mod practice;

pub use assemble::{Assembled, Assembler};
pub use error::{ModelError, Secret};
pub use model::*;
pub use practice::Practice;
