//! `segue` without a command: a conversation.

use std::ffi::OsStr;

use crate::app::App;
use crate::args::Run;
use crate::error::{Error, Result};
use crate::launch::shell_quote;
use crate::{resolve, wiring};

/// Starts or continues a conversation; gives the exit code.
pub fn converse(app: &App, run: &Run) -> Result<u8> {
    if run.print.is_some() {
        return super::print::print(app, run);
    }
    let to_come = "the terminal UI is still to come; for now a prompt is answered with -p";
    let prompt = run.prompt().map_or("PROMPT".to_owned(), |text| {
        // After --, a prompt may look like an option.
        let dashes = if text.starts_with('-') { "-- " } else { "" };
        format!("{dashes}{}", shell_quote(OsStr::new(text)))
    });
    match &run.resume {
        // A wrong id is told as such whatever the surface.
        Some(Some(text)) => {
            let store = wiring::store(&app.store_place()?);
            let id = wiring::block_on(resolve::session(store.as_ref(), text))?;
            Err(Error::usage(to_come).hint(format!("segue --resume {id} -p {prompt}")))
        }
        Some(None) => {
            Err(Error::usage(to_come)
                .hint("segue -p PROMPT --resume ID; `segue sessions list` names the ids"))
        }
        None if run.continue_newest => {
            Err(Error::usage(to_come).hint(format!("segue --continue -p {prompt}")))
        }
        None => Err(Error::usage(to_come).hint(format!("segue -p {prompt}"))),
    }
}
