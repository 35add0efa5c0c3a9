//! Signs of life on a terminal while something takes long. Nothing in a pipe.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use segue_log::strip_controls;

use crate::output::stderr_is_terminal;

/// A line on the terminal that moves; nothing where there is no terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Nothing is shown before [`say`](Self::say). `quiet` shows nothing at all.
    pub fn of_a_turn(quiet: bool) -> Self {
        Self::new(!quiet)
    }

    /// A search over sessions.
    pub fn searching() -> Self {
        Self::new(true)
    }

    fn new(wanted: bool) -> Self {
        let target = if wanted && stderr_is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        // The template is a constant; the default style serves if it should ever not parse.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Self { bar }
    }

    /// Shows what goes on, on one line.
    pub fn say(&self, text: &str) {
        let line = strip_controls(text).lines().next().unwrap_or_default().to_owned();
        self.bar.set_message(line);
    }

    /// One more of many is done.
    pub fn step(&self, text: &str) {
        self.bar.inc(1);
        self.say(&format!("{} {text}", self.bar.position()));
    }

    /// Writes a lasting line without tearing the moving one.
    pub fn note(&self, text: &str) {
        self.bar.suspend(|| crate::output::note(text));
    }

    /// Takes the line away.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
