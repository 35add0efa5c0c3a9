//! Segue's own agent: the turn loop, its context, compaction. It is a [`segue_runtime::Driver`]; its only output is the log.
//!
//! *Invariant:* no request is sent and no tool body entered before its boundary has been passed.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod calls;
mod compact;
mod config;
mod context;
mod driver;
mod request;
mod shorten;
mod turn;

pub use config::{Models, MoreTools, NativeConfig, RetryPolicy};
pub use driver::{AGENT, NativeDrivers};
