//! Where session logs are kept. A [`Store`] holds sessions; opening one for writing takes its lease and gives a
//! [`Writer`]. The crate knows nothing of turns, models or tools.
//!
//! *Invariant:* a store gives out no record that it did not read or write whole, and calls nothing durable
//! before the medium has confirmed it.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod error;
mod files;
mod jsonl;
mod machine;
mod network;
mod store;

pub use error::{Result, StoreError};
pub use files::{Access, Files, Lock, OpenFile, RealFiles, Stat};
pub use jsonl::JsonlStore;
pub use machine::{boot_id, host_name};
pub use store::*;
