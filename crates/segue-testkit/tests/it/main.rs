//! The parts of the kit that other tests lean on.

mod fake_agent;
