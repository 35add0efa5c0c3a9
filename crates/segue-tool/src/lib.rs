//! Tools an agent can call: the trait, the built-in tools, MCP servers, the command sandbox. The crate knows nothing of
//! sessions: a [`ToolContext`] carries what a call needs of the one it belongs to.
//!
//! *Invariant:* a body is entered only through [`Tool::run`]; everything before it (checking input, saying what it will
//! do, working out what to expect) has no effect on the world.

mod builtin;
mod limit;
pub mod mcp;
mod path;
mod process;
mod registry;
pub mod sandbox;
mod tool;

pub use builtin::{BuiltinOptions, builtin_tools};
pub use limit::{KEEP_LIMIT, RESULT_LIMIT, fit};
pub use path::Place;
pub use process::ProcessRecord;
pub use registry::{Registry, Spec};
pub use tool::*;
