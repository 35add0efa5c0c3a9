//! Writing to the terminal or the pipe: answers on stdout, everything else on stderr, with control sequences taken
//! out of whatever came from elsewhere.

use std::io::{self, IsTerminal, Write};

use segue_log::strip_controls;

use crate::error::{Error, Kind, Result};

/// True if stderr is a terminal.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// True if stdin is a terminal.
pub fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Writes a line of ours to stderr. A closed stderr is no reason to fail: nobody is there to be told.
pub fn note(text: impl AsRef<str>) {
    let mut line = strip_controls(text.as_ref()).into_owned();
    line.push('\n');
    let _closed = io::stderr().lock().write_all(line.as_bytes());
}

/// Writes text to stdout with control sequences taken out and a newline at its end.
pub fn print(text: &str) -> Result<()> {
    let text = strip_controls(text);
    let end = if text.ends_with('\n') { "" } else { "\n" };
    print_raw(format!("{text}{end}").as_bytes())
}

/// Writes bytes to stdout as they are: JSON, which escapes control characters itself, and generated files.
///
/// A reader that went away (`| head`) is no failure; a full disk is.
pub fn print_raw(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new(Kind::Internal, format!("cannot write to stdout: {error}")).code("OUTPUT_FAILED"))
        }
        _ => Ok(()),
    }
}

/// Writes a JSON value to stdout, on one line.
pub fn print_json(value: &serde_json::Value) -> Result<()> {
    print_raw(format!("{value}\n").as_bytes())
}
