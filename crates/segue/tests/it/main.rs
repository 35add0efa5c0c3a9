//! The real binary, with a home of its own, as people and scripts call it.

mod configuration;
mod crash;
mod demo;
mod exit_line;
mod help;
mod hostile;
mod print;
mod sessions;
mod usage;
mod world;
