//! The Agent Client Protocol. [`drive`] hosts an agent that speaks it as a `segue_runtime::Driver`: a session of such an
//! agent is a Segue session like any other.
//!
//! The protocol's messages stay JSON here. Agents are newer and older than any schema, and what this version does not
//! know has to be kept rather than refused, so nothing is decoded into closed types.
//!
//! *Invariant:* no prompt is sent and no permission granted before the record that says so is durable.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

pub mod drive;
