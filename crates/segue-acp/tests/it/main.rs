//! Hosted agents end to end: a real store, a real process of a scripted agent, and the log as it stands on disk.

mod basics;
mod care;
mod comebacks;
mod crashes;
mod cutoff;
mod failures;
mod resumes;
mod talk;
mod turns;
mod world;
