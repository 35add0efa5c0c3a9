//! Segue's own agent on a real store, with real HTTP and real tools: its loop, its crashes, its faults.

mod boundaries;
mod compaction;
mod crash;
mod faults;
mod laws;
mod loop_story;
mod loop_survivors;
mod permissions;
mod power;
mod queue;
mod retries;
mod review;
mod world;
