//! Another agent as a driver of sessions: its process, the wire, resume, and the way of its updates into the log.

mod adopt;
mod agent;
mod config;
mod content;
mod driver;
mod leftovers;
mod permission;
mod process;
mod replay;
mod resume;
mod rpc;
mod settings;
mod sight;
mod tell;
mod turn;

pub use adopt::{AdoptError, adopt};
pub use agent::{About, Inspection, Listed, StartError, find_program, inspect, list_sessions};
pub use config::{AgentConfig, HostedConfig, ResumeBy, ResumePolicy};
pub use driver::HostedDrivers;
pub use leftovers::end_leftovers;
pub use process::exec_agent;
