//! The crash matrix: a process is killed at every step of what it does, and what it promised must hold.

mod again;
mod child;
mod judge;
mod lease;
mod matrix;
mod midway;
mod old;
mod stage;
