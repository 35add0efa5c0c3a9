//! The prompt: what the command line says, and what is piped in.

use std::io::Read;

use rustix::fs::{FileType, fstat};

use crate::args::Run;
use crate::error::{Error, Result};
use crate::output;

/// The most that is taken from a pipe, in bytes. A pipe that never ends must not fill the memory.
const MOST: u64 = 64 << 20;

/// The prompt of this invocation; none if there is none.
pub fn prompt(run: &Run) -> Result<Option<String>> {
    let words = run.prompt().filter(|text| !text.trim().is_empty());
    let piped = piped()?.filter(|text| !text.trim().is_empty());
    Ok(match (words, piped) {
        (Some(words), Some(piped)) => Some(format!("{words}\n\n{piped}")),
        (Some(words), None) => Some(words.to_owned()),
        (None, piped) => piped,
    })
}

/// What stdin holds, if it is a pipe, a socket or a file. A terminal or `/dev/null` has nothing to add.
fn piped() -> Result<Option<String>> {
    let stdin = std::io::stdin();
    let Ok(stat) = fstat(&stdin) else { return Ok(None) };
    if !matches!(
        FileType::from_raw_mode(stat.st_mode),
        FileType::Fifo | FileType::Socket | FileType::RegularFile
    ) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    stdin
        .lock()
        .take(MOST + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::usage(format!("cannot read stdin: {error}")))?;
    if bytes.len() as u64 > MOST {
        return Err(Error::usage(format!("more than {} MiB came on stdin", MOST >> 20))
            .hint("put it into a file and name the file in the prompt"));
    }
    Ok(Some(String::from_utf8(bytes).unwrap_or_else(|error| {
        output::note("warning: stdin is not all UTF-8; the rest is shown as \u{fffd}");
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    })))
}
