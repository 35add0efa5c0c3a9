//! Open sessions. [`Sessions`] makes, opens and lists them; a [`Session`] is a handle on one. A [`Driver`] runs the turns of
//! one; this crate names the boundaries of a turn, awaits them, and asks for permission. It knows the store and the log, and
//! nothing of models, tools or surfaces.
//!
//! *Invariant:* nothing reaches a subscriber as a record before it is durable, and nothing is acknowledged before it is.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod boundary;
mod core;
mod driver;
mod error;
pub mod permission;
mod permit;
mod runner;
mod session;
mod sessions;
mod update;

pub use boundary::{Boundary, Stopped, durable};
pub use driver::{Driver, Drivers, Ended, Machine, TurnContext};
pub use error::{Result, RuntimeError};
pub use session::{Accepted, Change, NewPrompt, Outcome, Session, Subscription};
pub use sessions::{NewSession, OpenReport, Options, Sessions};
pub use update::{DeltaKind, Update};
