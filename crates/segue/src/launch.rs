//! What this invocation is: which session it is for, how that session is found again, and the one line at exit that
//! says so. Typed values, made before anything else starts; no configuration can change them.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use segue_log::SessionId;

use crate::environment::Environment;

/// Which session an invocation is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One that is yet to be made.
    New,
    /// One that must exist.
    Existing(SessionId),
    /// One that is yet to be made of a conversation that a hosted agent had before.
    Adopted {
        /// The agent.
        agent: String,
        /// Its id for the conversation.
        id: String,
    },
}

/// What finding a session again needs, beside its id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finding {
    /// The program: `segue`, or this binary's absolute path.
    pub program: OsString,
    /// `SEGUE_HOME`, absolute, if it was set.
    pub home: Option<PathBuf>,
    /// The file of `--config`, absolute, if one was named.
    pub config: Option<PathBuf>,
    /// The store, if a flag or a variable named it.
    pub store: Option<String>,
}

/// The identity of an invocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Which session.
    pub target: Target,
    /// How to find it again.
    pub finding: Finding,
    /// True if nothing but answers and errors is wanted.
    pub quiet: bool,
}

impl Finding {
    /// The arguments that resume a session, after the program's name. Everything that resumes one is made of these.
    pub fn arguments(&self, session: SessionId) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--resume".into(), session.to_string().into()];
        if let Some(config) = &self.config {
            arguments.extend(["--config".into(), config.clone().into_os_string()]);
        }
        if let Some(store) = &self.store {
            arguments.extend(["--store".into(), store.into()]);
        }
        arguments
    }

    /// The command that resumes a session, for a shell.
    pub fn command(&self, session: SessionId) -> String {
        let mut words = Vec::new();
        if let Some(home) = &self.home {
            words.push(format!("SEGUE_HOME={}", shell_quote(home.as_os_str())));
        }
        words.push(shell_quote(&self.program));
        words.extend(self.arguments(session).iter().map(|argument| shell_quote(argument)));
        words.join(" ")
    }
}

/// How this binary is called so that a shell finds it from any folder: by name if `PATH` leads to this very file.
pub fn program(environment: &Environment) -> OsString {
    let Ok(own) = std::env::current_exe() else { return "segue".into() };
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    let path = environment.get("PATH").unwrap_or_default();
    let first = std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("segue"))
        .find(|candidate| is_executable(candidate));
    match first {
        Some(found) if identity(&found).is_some() && identity(&found) == identity(&own) => "segue".into(),
        _ => own.into_os_string(),
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.mode() & 0o111 != 0)
}

/// A word as a shell reads it. Control characters, direction marks and bytes that are no text are written as escapes,
/// so that what is shown is what is run.
pub fn shell_quote(word: &OsStr) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./:@%+=,".contains(&b);
    let bytes = word.as_bytes();
    match word.to_str() {
        Some(text) if !bytes.is_empty() && bytes.iter().copied().all(is_plain) => text.to_owned(),
        Some(text) if !text.chars().any(is_invisible) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let mut quoted = String::from("$'");
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        '\'' | '\\' => quoted.extend(['\\', c]),
                        '\n' => quoted.push_str("\\n"),
                        '\t' => quoted.push_str("\\t"),
                        c if is_invisible(c) => escape(&mut quoted, c.encode_utf8(&mut [0; 4]).as_bytes()),
                        c => quoted.push(c),
                    }
                }
                escape(&mut quoted, chunk.invalid());
            }
            quoted.push('\'');
            quoted
        }
    }
}

fn escape(into: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Three octal digits always: a hexadecimal escape would swallow a digit after it.
        let _always_fits = write!(into, "\\{byte:03o}");
    }
}

fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The line still owed to the person when this process ends.
static OWED: Mutex<Option<String>> = Mutex::new(None);

/// From now on the session exists: whichever way the process ends, the line is printed.
pub fn owe_exit_line(launch: &Launch, session: SessionId) {
    if launch.quiet {
        return;
    }
    let line = format!("To resume this session: {}", launch.finding.command(session));
    *OWED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(line);
}

/// Prints the line, if one is owed. Called on every way out; prints once.
pub fn pay_exit_line() {
    let line = OWED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    if let Some(line) = line {
        crate::output::note(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_so_that_a_shell_reads_them_back() {
        let cases: [(&[u8], &str); 9] = [
            (b"plain-word_1.2/x:y", "plain-word_1.2/x:y"),
            (b"", "''"),
            (b"two words", "'two words'"),
            (b"it's $HOME", r"'it'\''s $HOME'"),
            ("caf\u{e9}".as_bytes(), "'caf\u{e9}'"),
            (b"a\nb\tc", r"$'a\nb\tc'"),
            (b"esc\x1b[2J'\\1", r"$'esc\033[2J\'\\1'"),
            (b"\xff7", r"$'\3777'"),
            ("a\u{202e}b".as_bytes(), r"$'a\342\200\256b'"),
        ];
        for (word, quoted) in cases {
            assert_eq!(shell_quote(OsStr::from_bytes(word)), quoted);
            let script = format!("printf %s {quoted}");
            let run = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
            assert_eq!(run.stdout, word, "{quoted}");
        }
    }

    #[test]
    fn the_command_holds_what_finding_the_session_needs_and_no_more() {
        let id: SessionId = "01a0ad4c-1111-7222-8333-444455556666".parse().unwrap();
        let bare = Finding { program: "segue".into(), ..Finding::default() };
        assert_eq!(bare.command(id), "segue --resume 01a0ad4c-1111-7222-8333-444455556666");
        let all = Finding {
            program: "/opt/my tools/segue".into(),
            home: Some("/data/it's".into()),
            config: Some("/etc/c.toml".into()),
            store: Some("jsonl:/s p".into()),
        };
        assert_eq!(
            all.command(id),
            r"SEGUE_HOME='/data/it'\''s' '/opt/my tools/segue' --resume 01a0ad4c-1111-7222-8333-444455556666 --config /etc/c.toml --store 'jsonl:/s p'"
        );
    }
}
