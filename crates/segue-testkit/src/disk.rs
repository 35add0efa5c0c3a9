//! Files whose power, space and truth can be taken away: a [`SimDisk`] in memory that keeps over a power failure only what
//! was synced and a random part of the rest, and a [`Hook`] on any files, the real ones too, that sees every operation
//! before and after it and can make it fail.

mod model;
mod watch;

pub use model::SimDisk;
pub use watch::{Fault, Hook, Op, OpKind, Verdict, watched};
