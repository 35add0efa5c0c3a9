//! `segue -p`: one turn, its answer on stdout, everything else on stderr.

mod prompt;
mod report;
mod run;
mod session;
mod watch;

use crate::app::App;
use crate::args::Run;
use crate::error::{Error, Result};
use crate::wiring;

use report::Report;

/// Runs one turn; gives the exit code.
pub fn print(app: &App, run: &Run) -> Result<u8> {
    let format = run.output.unwrap_or_default();
    // Read before signals are listened for: a Ctrl-C while the pipe is waited for just ends us.
    let text = prompt::prompt(run)?;
    if text.is_none() && !run.finish {
        return Err(Error::usage("no prompt").hint("segue -p PROMPT, or pipe it in"));
    }
    let mut report = Report::new(format);
    let code = wiring::block_on_threads(async {
        let result = run::run(app, run, text, &mut report).await;
        if let Err(error) = &result {
            report.error(error);
        }
        result
    });
    // A mistake in how segue was called is told on stderr alone: there was no turn to report on.
    let is_usage = matches!(&code, Err(error) if error.kind.exit_code() == 2);
    if !is_usage {
        report.print()?;
    }
    code
}
