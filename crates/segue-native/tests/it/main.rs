//! Segue's own agent on a real store, with real HTTP and real tools: its loop, its crashes, its faults.

mod boundaries;
mod crash;
mod faults;
mod laws;
mod power;
mod world;
