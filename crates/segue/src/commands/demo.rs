//! `segue demo`: starts an agent, kills it in the middle of a tool, resumes it, and shows what became of everything.
//! Nothing is staged: it runs this very binary as a child, and checks what it says.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use segue_log::code;
use serde_json::Value;

use crate::app::App;
use crate::error::{Error, Kind, Result};
use crate::output;
use crate::progress::Progress;

/// How long the tool may take to begin. Only a stuck machine needs more.
const DEADLINE: Duration = Duration::from_secs(60);
/// What the tool writes when it begins; that it is there once, and nothing after it, is the proof.
const MARK: &str = "the tool began\n";

/// Shows a session that survives a kill; fails if anything is not as promised.
pub fn demo(app: &App) -> Result<u8> {
    let folder = tempfile::Builder::new()
        .prefix("segue-demo-")
        .tempdir()
        .map_err(|error| failed(format!("cannot make a folder to play in: {error}")))?;
    let stage = Stage::new(folder.path(), app.common.quiet)?;

    say("1. A session begins, with the practice model (no key, no network).")?;
    let first = stage.ask(None, "remember the number 42")?;
    let session = text_of(&first, "session")?;
    expect("the first answer", &text_of(&first, "text")?, "Noted: 42.")?;
    quote(&["> remember the number 42", "Noted: 42."])?;

    say("2. It runs a command that takes long. In the middle of it the process is killed (SIGKILL).")?;
    stage.kill_mid_tool(&session)?;
    quote(&[&format!("$ {}", stage.shown_command()), "(killed while it ran)"])?;

    say("3. The session is resumed and asked what it remembers.")?;
    let second = stage.ask(Some(&session), "what number did I ask you to remember?")?;
    quote(&["> what number did I ask you to remember?", &text_of(&second, "text")?])?;
    expect("the answer after the kill", &text_of(&second, "text")?, "The number is 42.")?;
    expect("the session", &text_of(&second, "session")?, &session)?;
    expect("how it was resumed", second["resume"]["outcome"].as_str().unwrap_or("null"), "resumed")?;

    let repaired = second["repaired"].as_array().cloned().unwrap_or_default();
    let [call] = repaired.as_slice() else {
        return Err(failed(format!("one call should have been repaired, not {}", repaired.len())));
    };
    expect("the repaired tool", call["tool"].as_str().unwrap_or("null"), "bash")?;
    expect("what repair says of it", call["outcome"].as_str().unwrap_or("null"), "unknown")?;
    let told = stage.told(&session, call["callId"].as_str().unwrap_or_default())?;
    expect("the mark of the tool", &stage.marks()?, MARK)?;

    say(
        "What was kept: the first turn, its answer, and the request to run the command; the model still knew 42.",
    )?;
    say("What was not done: the command was not run a second time; it has left its mark once.")?;
    say("What repair said to the model about the command that was cut off:")?;
    quote(&told.lines().collect::<Vec<_>>())?;
    say("Everything was as promised. The demo's files are gone; your own sessions were not touched.")?;
    Ok(0)
}

fn failed(message: impl Into<String>) -> Error {
    Error::new(Kind::Internal, message).code("DEMO_FAILED")
}

fn expect(what: &str, found: &str, wanted: &str) -> Result<()> {
    if found == wanted {
        Ok(())
    } else {
        Err(failed(format!("{what} should be {wanted:?}, but is {found:?}")))
    }
}

fn text_of(object: &Value, field: &str) -> Result<String> {
    object[field].as_str().map(str::to_owned).ok_or_else(|| failed(format!("no {field:?} in {object}")))
}

fn say(text: &str) -> Result<()> {
    output::print(text)
}

fn quote(lines: &[&str]) -> Result<()> {
    let indented: Vec<String> = lines.iter().map(|line| format!("    {line}")).collect();
    output::print(&format!("{}\n\n", indented.join("\n")))
}

/// A folder with a home of its own and a place to work, and this binary to run there.
struct Stage {
    binary: PathBuf,
    home: PathBuf,
    work: PathBuf,
    quiet: bool,
}

impl Stage {
    fn new(folder: &Path, quiet: bool) -> Result<Self> {
        let binary =
            std::env::current_exe().map_err(|error| failed(format!("cannot find this binary: {error}")))?;
        let stage = Self { binary, home: folder.join("home"), work: folder.join("work"), quiet };
        for folder in [&stage.home, &stage.work] {
            std::fs::create_dir_all(folder)
                .map_err(|error| failed(format!("cannot make {}: {error}", folder.display())))?;
        }
        Ok(stage)
    }

    fn command(&self) -> String {
        // It would write a second line, were it not killed or were it run again.
        format!(
            "printf '{}' >> mark.txt; sleep 300; echo 'the tool ended' >> mark.txt",
            MARK.replace('\n', "\\n")
        )
    }

    fn shown_command(&self) -> String {
        self.command()
    }

    /// This binary with its own home; nothing of the person's settings reaches it.
    fn segue(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SEGUE_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .env("SEGUE_HOME", &self.home)
            .current_dir(&self.work)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let output =
            self.segue(arguments).output().map_err(|error| failed(format!("cannot run segue: {error}")))?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(failed(format!("segue {} ended with {}:\n{said}", arguments.join(" "), output.status)))
    }

    /// One turn; its JSON object.
    fn ask(&self, session: Option<&str>, prompt: &str) -> Result<Value> {
        let mut arguments = vec!["-p", prompt, "--output", "json", "-q"];
        match session {
            Some(session) => arguments.extend(["--resume", session]),
            None => arguments.extend(["--model", "practice"]),
        }
        let output = self.run(&arguments)?;
        serde_json::from_slice(&output.stdout).map_err(|error| failed(format!("no JSON came: {error}")))
    }

    /// Has the session run the command, waits until it really runs, and kills the agent's process.
    fn kill_mid_tool(&self, session: &str) -> Result<()> {
        let prompt = format!("use bash {}", serde_json::json!({ "command": self.command() }));
        let mut child = Killed(
            self.segue(&[
                "-p",
                &prompt,
                "--resume",
                session,
                "--permissions",
                "all",
                "--output",
                "stream-json",
            ])
            .spawn()
            .map_err(|error| failed(format!("cannot start segue: {error}")))?,
        );
        let progress = Progress::of_a_turn(self.quiet);
        progress.say("waiting for the tool to begin");
        let deadline = Instant::now() + DEADLINE;
        while self.marks()? != MARK {
            let ended = child.0.try_wait().map_err(|error| failed(format!("cannot watch segue: {error}")))?;
            if ended.is_some() || Instant::now() > deadline {
                let why = if ended.is_some() {
                    "segue ended before the tool began"
                } else {
                    "the tool did not begin"
                };
                return Err(failed(format!("{why}:\n{}", child.kill_and_read())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        progress.end();
        child.kill_and_read();
        Ok(())
    }

    fn marks(&self) -> Result<String> {
        match std::fs::read_to_string(self.work.join("mark.txt")) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(failed(format!("cannot read the tool's mark: {error}"))),
        }
    }

    /// What the log tells the model of a call: the text of its result.
    fn told(&self, session: &str, call: &str) -> Result<String> {
        let output = self.run(&["sessions", "show", session, "--output", "jsonl"])?;
        let lines = BufReader::new(output.stdout.as_slice()).lines();
        let result = lines
            .map_while(std::result::Result::ok)
            .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
            .find(|record| record["type"] == "tool/result" && record["data"]["callId"] == call)
            .ok_or_else(|| failed("the call has no result in the log"))?;
        expect(
            "the result's code",
            result["data"]["code"].as_str().unwrap_or("null"),
            code::OUTCOME_UNKNOWN,
        )?;
        let blocks = result["data"]["content"].as_array().cloned().unwrap_or_default();
        let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        if texts.is_empty() { Err(failed("the result says nothing")) } else { Ok(texts.join("\n")) }
    }
}

/// A child that does not outlive the demo.
struct Killed(Child);

impl Killed {
    /// Kills it and gives what it had said on stderr.
    fn kill_and_read(&mut self) -> String {
        // It may have ended by itself; then there is nothing to kill, and waiting takes its status.
        let _gone = self.0.kill();
        let mut said = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            let mut bytes = Vec::new();
            let _partly = stderr.read_to_end(&mut bytes);
            said = String::from_utf8_lossy(&bytes).into_owned();
        }
        let _reaped = self.0.wait();
        said
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
