//! The tools against real files, processes and sockets.

mod bash;
mod bench;
mod files;
mod host;
mod mcp;
mod registry;
mod sandbox;
mod search;
