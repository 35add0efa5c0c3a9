//! Segue's own agent on a real store, with real HTTP and real tools: its loop, its crashes, its faults.

mod world;
