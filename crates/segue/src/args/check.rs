//! What clap cannot say: which options belong together, and that a mistyped command is no prompt.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};

use super::{Cli, Command, command};

/// Options of a conversation, by clap's id and as they are written. They mean nothing before a command.
const OF_A_CONVERSATION: [(&str, &str); 13] = [
    ("print", "-p"),
    ("words", "a prompt"),
    ("resume", "--resume"),
    ("continue_newest", "--continue"),
    ("output", "--output"),
    ("prompt_id", "--prompt-id"),
    ("finish", "--finish"),
    ("timeout", "--timeout"),
    ("agent", "--agent"),
    ("model", "--model"),
    ("permissions", "--permissions"),
    ("allow", "--allow"),
    ("max_steps", "--max-steps"),
];

/// Options that only `-p` understands.
const OF_PRINT: [(&str, &str); 4] =
    [("output", "--output"), ("prompt_id", "--prompt-id"), ("finish", "--finish"), ("timeout", "--timeout")];

/// Reads a command line, the program's name first.
pub fn parse(argv: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = command().try_get_matches_from(argv)?;
    let cli = Cli::from_arg_matches(&matches)?;
    match wrong(&cli, &matches, argv) {
        Some((kind, message)) => Err(command().error(kind, message)),
        None => Ok(cli),
    }
}

fn wrong(cli: &Cli, matches: &ArgMatches, argv: &[OsString]) -> Option<(ErrorKind, String)> {
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let run = &cli.run;
    let conflict = |message: String| Some((ErrorKind::ArgumentConflict, message));

    if let Some((name, _)) = matches.subcommand() {
        let stray = OF_A_CONVERSATION.iter().find(|(id, _)| given(id))?;
        return conflict(format!(
            "{} does not go before the command '{name}'; if '{name}' is a prompt, write it after --",
            stray.1
        ));
    }
    if run.print.is_none()
        && let Some((_, flag)) = OF_PRINT.iter().find(|(id, _)| given(id))
    {
        return Some((ErrorKind::MissingRequiredArgument, format!("{flag} needs -p")));
    }
    if let (Some(Some(first)), Some(second)) = (&run.print, &run.words) {
        return conflict(format!("two prompts: {first:?} and {second:?}; quote a prompt that has spaces"));
    }
    if run.print.is_some() && run.resume == Some(None) {
        return Some((ErrorKind::MissingRequiredArgument, "with -p, --resume needs a session's id".into()));
    }
    if run.finish && run.resume.is_none() && !run.continue_newest {
        return Some((
            ErrorKind::MissingRequiredArgument,
            "--finish needs the session to take up: --resume ID or --continue".into(),
        ));
    }
    if run.print.is_none()
        && let Some(word) = &run.words
        && !argv.iter().any(|arg| arg == "--")
        && let Some(name) = nearest_command(word)
    {
        return Some((
            ErrorKind::InvalidSubcommand,
            format!("no command '{word}'; there is '{name}' (if it is a prompt, write: segue -- {word})"),
        ));
    }
    None
}

/// The command that a single word is a mistyped form of.
fn nearest_command(word: &str) -> Option<String> {
    if word.contains(char::is_whitespace) {
        return None;
    }
    let command = command();
    let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).chain(["help"]).collect();
    crate::nearest::nearest(word, names).map(str::to_owned)
}

impl Command {
    /// For a command that this version does not have yet: what to call it.
    pub fn to_come(&self) -> Option<&'static str> {
        match self {
            Self::Acp { .. } => Some("the ACP agent for editors (`segue acp`)"),
            Self::Serve { .. } => Some("the server (`segue serve`)"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<Cli, String> {
        let argv: Vec<OsString> = ["segue"].iter().chain(line).map(OsString::from).collect();
        parse(&argv).map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
    }

    #[test]
    fn the_definitions_are_sound() {
        command().debug_assert();
    }

    #[test]
    fn prompts_are_found_wherever_they_stand() {
        let cases: [(&[&str], Option<&str>); 10] = [
            (&[], None),
            (&["hello there"], Some("hello there")),
            (&["--", "sesions"], Some("sesions")),
            (&["-p", "hello"], Some("hello")),
            (&["-p", "sessions"], Some("sessions")),
            (&["-p", "--output", "json", "hello"], Some("hello")),
            (&["-p", "--", "-x is a flag"], Some("-x is a flag")),
            (&["-p", "--resume", "0190", "hello"], Some("hello")),
            (&["-p", "one", "-p", "two"], Some("two")),
            (&["-p"], None),
        ];
        for (line, prompt) in cases {
            assert_eq!(parsed(line).unwrap().run.prompt(), prompt, "{line:?}");
        }
    }

    #[test]
    fn a_repeated_flag_counts_once_and_rules_add_up() {
        let cli = parsed(&[
            "-p", "x", "--model", "a/b", "--model", "c/d", "--allow", "bash(a)", "--allow", "bash(b)",
            "--cwd", "/a", "--cwd", "/b", "-q", "-q",
        ])
        .unwrap();
        assert_eq!(cli.settings.model.as_deref(), Some("c/d"));
        assert_eq!(cli.settings.allow, ["bash(a)", "bash(b)"]);
        assert_eq!(cli.common.cwd.as_deref(), Some("/b".as_ref()));
        assert!(cli.common.quiet);
    }

    #[test]
    fn common_options_stand_before_or_after_a_command() {
        for line in
            [&["--store", "jsonl:/x", "sessions", "list"], &["sessions", "list", "--store", "jsonl:/x"]]
        {
            assert_eq!(parsed(line).unwrap().common.store.as_deref(), Some("jsonl:/x"), "{line:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let cases: [(&[&str], &str); 14] = [
            (
                &["sesions"],
                "error: no command 'sesions'; there is 'sessions' (if it is a prompt, write: segue -- sesions)",
            ),
            (
                &["modles"],
                "error: no command 'modles'; there is 'models' (if it is a prompt, write: segue -- modles)",
            ),
            (
                &["--model", "a/b", "sessions", "list"],
                "error: --model does not go before the command 'sessions'; if 'sessions' is a prompt, write it after --",
            ),
            (
                &["-p", "--output", "json", "demo"],
                "error: -p does not go before the command 'demo'; if 'demo' is a prompt, write it after --",
            ),
            (&["-p", "--resume"], "error: with -p, --resume needs a session's id"),
            (
                &["-p", "one", "two"],
                "error: two prompts: \"one\" and \"two\"; quote a prompt that has spaces",
            ),
            (&["one", "two"], "error: unexpected argument 'two' found"),
            (&["--finish", "-c"], "error: --finish needs -p"),
            (&["-p", "--finish"], "error: --finish needs the session to take up: --resume ID or --continue"),
            (
                &["-p", "x", "--prompt-id", "a b"],
                "error: invalid value 'a b' for '--prompt-id <ID>': not a prompt id: \"a b\"",
            ),
            (
                &["-p", "x", "--resume", "a", "-c"],
                "error: the argument '--resume [<ID>]' cannot be used with '--continue'",
            ),
            (
                &["-p", "x", "--timeout", "30"],
                "error: invalid value '30' for '--timeout <DURATION>': a number with its unit is wanted, such as 30s, 5m or 1h",
            ),
            (
                &["-p", "x", "--max-steps", "0"],
                "error: invalid value '0' for '--max-steps <N>': 0 is not in 1..18446744073709551615",
            ),
            (&["-p", "x", "--permisions", "all"], "error: unexpected argument '--permisions' found"),
        ];
        for (line, message) in cases {
            assert_eq!(parsed(line).map(|_| ()).unwrap_err(), message, "{line:?}");
        }
    }
}
