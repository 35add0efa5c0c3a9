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
    print_raw(format!("{}\n", json_line(value)).as_bytes())
}

/// A JSON value on one line. What a terminal would obey is escaped beyond what JSON asks for: JSON itself leaves DEL,
/// the C1 controls and marks of direction as they are. A reader of JSON sees the same value.
pub fn json_line(value: &serde_json::Value) -> String {
    let text = value.to_string();
    if !text.chars().any(is_obeyed) {
        return text;
    }
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        // They stand in strings only, and all of them fit into four digits.
        if is_obeyed(c) { line.push_str(&format!("\\u{:04x}", u32::from(c))) } else { line.push(c) }
    }
    line
}

fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_character_that_a_terminal_obeys() {
        let value = serde_json::json!({"t": "a\u{1b}[1mb\u{9b}2Jc\u{7f}\u{202e}d\u{e9}\n"});
        let line = json_line(&value);
        assert_eq!(line, r#"{"t":"a\u001b[1mb\u009b2Jc\u007f\u202edé\n"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }
}
