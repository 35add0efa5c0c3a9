//! The values that options take.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use segue_log::Settlement;

/// What an agent may do without asking; each level allows more than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Level {
    /// Look, but write nothing and run no commands
    Read,
    /// Ask before each write and command
    Ask,
    /// Write inside the working folder and run sandboxed commands; ask for the rest
    Edit,
    /// Anything
    All,
}

impl Level {
    /// The level as flags and files write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Ask => "ask",
            Self::Edit => "edit",
            Self::All => "all",
        }
    }
}

/// How `-p` prints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum RunOutput {
    /// The answer alone
    #[default]
    Text,
    /// One object when the turn has ended
    Json,
    /// The session, its records as they become durable, live text, then that object
    StreamJson,
}

/// How lists are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ListOutput {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// How a session is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ShowOutput {
    /// The transcript
    #[default]
    Text,
    /// The log's records
    Jsonl,
}

/// What a session is exported as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A document
    #[default]
    Markdown,
    /// The log's header and records
    Jsonl,
}

/// A person's word on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SettleHow {
    /// It did happen
    Done,
    /// It did not happen and is no longer wanted
    Skip,
    /// It may be called again
    Retry,
}

impl From<SettleHow> for Settlement {
    fn from(how: SettleHow) -> Self {
        match how {
            SettleHow::Done => Self::Done,
            SettleHow::Skip => Self::Skip,
            SettleHow::Retry => Self::Retry,
        }
    }
}

macro_rules! shown_as_its_flag {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.to_possible_value() {
                    Some(value) => f.write_str(value.get_name()),
                    None => Ok(()),
                }
            }
        }
    )*};
}

shown_as_its_flag!(Level, RunOutput, ListOutput, ShowOutput, ExportFormat);

/// How long a turn may take: a whole number with `ms`, `s`, `m` or `h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeout(pub Duration);

impl FromStr for Timeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let millis_per_unit: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err("a number with its unit is wanted, such as 30s, 5m or 1h".into()),
        };
        let millis = number.parse::<u64>().ok().and_then(|n| n.checked_mul(millis_per_unit));
        match millis {
            Some(millis) if millis > 0 => Ok(Self(Duration::from_millis(millis))),
            _ => Err("more than nothing is wanted, and less than for ever".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_need_a_unit() {
        let good = [("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("250ms", 250)];
        for (text, millis) in good {
            assert_eq!(text.parse(), Ok(Timeout(Duration::from_millis(millis))), "{text}");
        }
        for bad in ["", "30", "s", "0s", "1.5s", "-1s", "1d", "99999999999999999h", " 1s"] {
            assert!(bad.parse::<Timeout>().is_err(), "{bad:?}");
        }
    }
}
