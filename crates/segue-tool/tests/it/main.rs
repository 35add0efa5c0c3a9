//! The tools against real files, processes and sockets.

mod mcp;
