//! The JSONL store against real files, a simulated disk, and both failing.

mod contract;
mod damage;
mod faults;
mod fixtures;
mod lease;
mod listing;
mod places;
mod power;
