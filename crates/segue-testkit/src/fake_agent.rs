//! An ACP agent that does what a test tells it to: raw JSON-RPC on stdio, a process of its own, no SDK.
//!
//! ```no_run
//! use segue_testkit::fake_agent::{Answer, FakeAgent, Script};
//!
//! let folder = tempfile::tempdir()?;
//! let script = Script::resume_only().on("session/resume", Answer::error(-32603, "Internal error", serde_json::Value::Null));
//! let agent = FakeAgent::new(folder.path(), &script);
//! let (command, args) = (agent.program(), agent.args());
//! // Let something start it, then look at what it was asked:
//! assert_eq!(agent.methods(), ["initialize", "session/new"]);
//! # Ok::<_, std::io::Error>(())
//! ```
//!
//! Without a script it is a good agent: it keeps its sessions in its folder over its starts, and answers from the messages it was
//! sent ("remember the number 7", "what number was it?"), so that a right answer about the past proves that the past reached it.

mod keep;
mod play;
mod process;
mod script;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

pub use process::run;
pub use script::{Answer, Keeps, Rule, Script, Step, With};

/// How long [`FakeAgent::wait_until`] waits at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent that can be started, as often as one likes, in a folder of its own.
#[derive(Debug, Clone)]
pub struct FakeAgent {
    folder: PathBuf,
}

impl FakeAgent {
    /// Writes a script into a folder.
    ///
    /// # Panics
    /// If the folder cannot be made or written.
    pub fn new(folder: &Path, script: &Script) -> Self {
        std::fs::create_dir_all(folder).expect("a folder for the fake agent");
        let agent = Self { folder: folder.to_owned() };
        agent.rewrite(script);
        agent
    }

    /// Gives it another script; from its next start on. What it keeps and what it received stays, and counts.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn rewrite(&self, script: &Script) {
        let text = serde_json::to_string_pretty(script).expect("a script is JSON");
        std::fs::write(self.script(), text).expect("a script for the fake agent");
    }

    /// The program to run.
    ///
    /// # Panics
    /// If it is not built and cannot be.
    pub fn program(&self) -> PathBuf {
        program()
    }

    /// Its arguments.
    pub fn args(&self) -> Vec<String> {
        vec![self.script().to_str().expect("a path in UTF-8").to_owned()]
    }

    fn script(&self) -> PathBuf {
        self.folder.join("script.json")
    }

    /// What it recorded over all its starts, each with the number of its `start`: `started` (its pid, with `cwd` and `env`),
    /// `received` (a message) or `garbage` (a line that was no JSON).
    pub fn record(&self) -> Vec<Value> {
        process::read_record(&self.folder)
    }

    /// The messages that it received.
    pub fn received(&self) -> Vec<Value> {
        self.record().into_iter().filter_map(|mut entry| Some(entry.get_mut("received")?.take())).collect()
    }

    /// The methods of the requests and notifications that it received.
    pub fn methods(&self) -> Vec<String> {
        self.received().iter().filter_map(|message| message["method"].as_str().map(str::to_owned)).collect()
    }

    /// The params of all messages of a method.
    pub fn params_of(&self, method: &str) -> Vec<Value> {
        let received = self.received().into_iter();
        received
            .filter(|message| message["method"] == method)
            .map(|message| message["params"].clone())
            .collect()
    }

    /// The texts of all prompts.
    pub fn prompts(&self) -> Vec<String> {
        self.params_of("session/prompt").iter().map(process::prompt_text).collect()
    }

    /// The process ids of its starts.
    pub fn pids(&self) -> Vec<u32> {
        let started = |entry: &Value| u32::try_from(entry["started"].as_u64()?).ok();
        self.record().iter().filter_map(started).collect()
    }

    /// The ids of the sessions that it keeps.
    pub fn sessions(&self) -> Vec<String> {
        self.keeper().all().into_iter().map(|kept| kept.id).collect()
    }

    /// Makes it forget a session.
    pub fn forget(&self, session: &str) {
        self.keeper().remove(session);
    }

    /// Makes it forget everything.
    pub fn forget_all(&self) {
        for session in self.sessions() {
            self.forget(&session);
        }
    }

    fn keeper(&self) -> keep::Keeper {
        keep::Keeper::open(self.folder.join("sessions")).expect("the fake agent's folder")
    }

    /// Waits until something holds of it.
    ///
    /// # Panics
    /// If it does not after a minute.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < PATIENCE, "not {what}; received: {:#?}", self.received());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The agent's program, beside the test that runs. Tests of other crates may find it missing or older than its source, as
/// cargo builds for them only this library: then it is built.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    // A test lies in `deps`, a program beside that folder.
    let mut profile = test.parent().expect("a folder").to_owned();
    if profile.ends_with("deps") {
        profile.pop();
    }
    let program = profile.join("segue-fake-agent");
    let built = program.metadata().and_then(|it| it.modified()).ok();
    if built.is_none_or(|built| built < newest_source()) {
        let target = profile.parent().expect("a target folder");
        let name = match profile.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "build",
            "--quiet",
            "--offline",
            "--package",
            "segue-testkit",
            "--bin",
            "segue-fake-agent",
        ]);
        cargo
            .args(["--profile", name])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        let status = cargo.status().expect("cargo runs");
        assert!(status.success(), "the fake agent could not be built: {status}");
    }
    program
}

/// When the agent's source was last changed.
fn newest_source() -> SystemTime {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folder =
        source.join("fake_agent").read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let files = folder.chain([source.join("fake_agent.rs"), source.join("bin/segue-fake-agent.rs")]);
    let changed = files.filter_map(|file| file.metadata().ok()?.modified().ok());
    changed.max().unwrap_or(SystemTime::UNIX_EPOCH)
}
