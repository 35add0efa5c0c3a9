//! The scripted agent as a process: `segue-fake-agent SCRIPT`. See `segue_testkit::fake_agent`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(script) = std::env::args_os().nth(1) else {
        eprintln!("usage: segue-fake-agent SCRIPT");
        return ExitCode::from(2);
    };
    match segue_testkit::fake_agent::run(Path::new(&script)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("segue-fake-agent: {}: {error}", script.display());
            ExitCode::from(2)
        }
    }
}
