//! `segue`: conversations with coding agents that carry on. The launcher: arguments, configuration, the identity of
//! this invocation; it wires the other crates and is the only one that prints, reads the environment, or exits.

mod agents;
mod app;
mod args;
mod commands;
mod config;
#[cfg(test)]
mod docs_check;
mod environment;
mod error;
mod launch;
mod models;
mod nearest;
mod output;
mod progress;
mod resolve;
mod store_place;
mod wiring;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        output::note(format!("error: a defect in segue: {panic}\nhint: what was accepted is on disk"));
    }));
    let argv: Vec<OsString> = std::env::args_os().collect();
    let code = std::panic::catch_unwind(|| app::run(&argv)).unwrap_or(1);
    launch::pay_exit_line();
    ExitCode::from(code)
}
