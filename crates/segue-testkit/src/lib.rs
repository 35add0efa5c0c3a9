//! For Segue's own tests: a model server that real clients can talk to, a scripted agent, and what it takes to break things on purpose.

pub mod contract;
pub mod disk;
pub mod fake_agent;
pub mod logs;
pub mod model_server;
pub mod provider_check;

pub use model_server::{ModelServer, Recorded, Reply, Wire};
