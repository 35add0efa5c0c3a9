//! Language models: one trait, Anthropic Messages and OpenAI Chat Completions over HTTP, and `practice`, which needs
//! neither key nor network. The crate reads no environment: the launcher hands it keys and addresses.
//!
//! *Invariant:* an adapter sends nothing before its `stream` is called, and retries nothing by itself.

pub mod anthropic;
mod assemble;
mod error;
mod failure;
mod history;
mod model;
pub mod openai;
mod practice;
mod provider;
mod sse;
mod wire;

pub use assemble::{Assembled, Assembler};
pub use error::{ModelError, Secret};
pub use model::*;
pub use practice::Practice;
pub use provider::{Api, BUILT_IN, BuiltIn, ProviderConfig, ProviderError, built_in, connect, window_of};
