//! A home, a working folder, a store, a configuration and a model: all that one scenario runs in.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use segue_testkit::{ModelServer, Recorded, Reply};
use serde_json::Value;

use crate::agents::{self, Agent};
use crate::processes::{self, Process};
use crate::{Bench, wait_for};

/// The user that agents run as when this runs as root, which they refuse to.
const ORDINARY: u32 = 65534;

/// How long one run of Segue may take.
const LONGEST: Duration = Duration::from_secs(120);

/// What the model counts to, with a quarter of a second before each number.
const COUNT: u32 = 60;

pub struct World<'a> {
    bench: &'a Bench,
    pub agent: &'static Agent,
    pub model: ModelServer,
    folder: tempfile::TempDir,
}

/// A run of Segue that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A run of Segue that has not.
pub struct Running {
    child: Child,
}

impl<'a> World<'a> {
    pub fn new(bench: &'a Bench, agent: &'static Agent) -> Result<Self> {
        let model = ModelServer::start_blocking();
        // What these agents send is for their makers' servers to judge.
        model.lenient();
        model.respond_with(counting);
        let folder = tempfile::Builder::new().prefix("interop-").tempdir()?;
        let world = Self { bench, agent, model, folder };
        for name in ["home", "work", "segue"] {
            std::fs::create_dir(world.path(name))?;
        }
        world.configure("")?;
        world.furnish()?;
        Ok(world)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the configuration, with further lines in the section of this agent.
    pub fn configure(&self, of_agent: &str) -> Result<()> {
        let url = self.model.url();
        let sections = agents::ALL.iter().map(|agent| {
            let own = if agent.name == self.agent.name { of_agent } else { "" };
            agent.section(&self.bench.modules, &self.path("home"), &url, own)
        });
        let text = sections.collect::<String>();
        std::fs::write(self.path("config.toml"), text).context("writing the configuration")
    }

    /// Gives everything to the user that the agents run as.
    fn hand_over(&self) -> Result<()> {
        if rustix::process::getuid().is_root() {
            let owner = format!("{ORDINARY}:{ORDINARY}");
            let status = Command::new("chown").arg("-R").arg(owner).arg(self.folder.path()).status()?;
            ensure!(status.success(), "chown: {status}");
        }
        Ok(())
    }

    /// A command as the user that the agents run as, in this world.
    fn command(&self, program: &Path) -> Command {
        let mut command = match rustix::process::getuid().is_root() {
            true => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={ORDINARY}"), format!("--regid={ORDINARY}")]);
                command.arg("--clear-groups").arg(program);
                command
            }
            false => Command::new(program),
        };
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("SEGUE_HOME", self.path("segue"))
            .current_dir(self.path("work"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts the program that leaves questions open, with a prompt in a session.
    pub fn start_host(&self, session: &str, prompt: &str) -> Result<Running> {
        let mut command = self.command(&self.bench.host);
        command.arg("host").arg(self.folder.path()).arg(&self.bench.modules).arg(self.model.url());
        let child = command.args([self.agent.name, session, prompt]).spawn().context("starting the host")?;
        Ok(Running { child })
    }

    /// Starts Segue.
    pub fn start(&self, arguments: &[&str]) -> Result<Running> {
        let mut command = self.command(&self.bench.segue);
        command.arg("--config").arg(self.path("config.toml")).args(arguments);
        let child = command.spawn().context("starting segue")?;
        Ok(Running { child })
    }

    /// Runs Segue to its end.
    pub fn segue(&self, arguments: &[&str]) -> Result<Ended> {
        self.start(arguments)?.end()
    }

    /// A prompt in a new session of this agent. Gives the object that `--output json` prints.
    pub fn ask_new(&self, prompt: &str, more: &[&str]) -> Result<Value> {
        let arguments = [&["--agent", self.agent.name, "--output", "json"], more, &["-p", prompt]].concat();
        self.segue(&arguments)?.json()
    }

    /// A prompt in a session that was there before.
    pub fn ask(&self, session: &str, prompt: &str, more: &[&str]) -> Result<Value> {
        let arguments = [&["--resume", session, "--output", "json"], more, &["-p", prompt]].concat();
        self.segue(&arguments)?.json()
    }

    /// The sessions of the store, newest first.
    pub fn sessions(&self) -> Result<Vec<String>> {
        let listed = self.segue(&["sessions", "list", "--all", "--output", "json"])?;
        let sessions: Value = serde_json::from_str(&listed.stdout)
            .with_context(|| format!("segue sessions list printed {listed:?}"))?;
        let ids = sessions.as_array().context("a list of sessions")?.iter();
        Ok(ids.filter_map(|session| session["id"].as_str().map(str::to_owned)).collect())
    }

    /// The id of the only session, as soon as it is there.
    pub fn only_session(&self) -> Result<String> {
        wait_for("a session", || self.sessions().ok()?.pop())
    }

    /// The records of a session's log.
    pub fn log(&self, session: &str) -> Result<Vec<Value>> {
        let shown = self.segue(&["sessions", "show", session, "--output", "jsonl"])?;
        shown.stdout.lines().map(|line| serde_json::from_str(line).context("a record")).collect()
    }

    /// The data of the records of a type.
    pub fn records(&self, session: &str, kind: &str) -> Result<Vec<Value>> {
        let of_kind = self.log(session)?.into_iter().filter(|record| record["type"] == kind);
        Ok(of_kind.map(|record| record["data"].clone()).collect())
    }

    /// The prompt on which the agent does work that can be seen from outside: a line in a file, a while, another line.
    pub fn work(&self, seconds: u32) -> String {
        let file = self.path("work").join("trace");
        let file = file.display();
        self.agent.use_shell(&format!("echo begun >> {file}; sleep {seconds}; echo done >> {file}"))
    }

    /// What the work has left.
    pub fn trace(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("work").join("trace")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the work goes on.
    pub fn wait_for_work(&self) -> Result<()> {
        wait_for("the command to run", || (!self.trace().is_empty()).then_some(()))
    }

    /// The processes of this world, Segue's and the agents'.
    pub fn processes(&self) -> Vec<Process> {
        processes::of_home(&self.path("home"))
    }

    /// The processes that are not Segue's own.
    pub fn agent_processes(&self) -> Vec<Process> {
        let own = [&self.bench.segue, &self.bench.host].map(|program| program.display().to_string());
        let is_own = |process: &Process| own.iter().any(|own| process.command.starts_with(own));
        self.processes().into_iter().filter(|process| !is_own(process)).collect()
    }

    /// Ends what still runs, and gives it.
    pub fn end_all(&self) -> Vec<String> {
        // What was told to end has a moment for it.
        let since = Instant::now();
        while !self.processes().is_empty() && since.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut left: Vec<String> = Vec::new();
        loop {
            let running = self.processes();
            if running.is_empty() {
                return left;
            }
            for process in running {
                processes::kill(process.pid);
                left.push(process.command);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Removes a folder of the home, and puts back what agents need there to be run.
    pub fn wipe(&self, folder: &str) -> Result<()> {
        let folder = self.path("home").join(folder);
        std::fs::remove_dir_all(&folder).with_context(|| format!("wiping {}", folder.display()))?;
        self.furnish()
    }

    /// Writes the files that agents need in their home, as its owner.
    fn furnish(&self) -> Result<()> {
        for agent in agents::ALL {
            for (path, content) in agent.files(&self.model.url()) {
                let path = self.path("home").join(path);
                std::fs::create_dir_all(path.parent().context("a folder")?)?;
                std::fs::write(path, content)?;
            }
        }
        self.hand_over()
    }

    /// The requests to the model since so many had come.
    pub fn requests_since(&self, count: usize) -> Vec<Recorded> {
        self.model.requests().into_iter().skip(count).collect()
    }

    /// What has been said to the model since then, in one text.
    pub fn told_since(&self, count: usize) -> String {
        self.requests_since(count).iter().flat_map(Recorded::prompts).collect::<Vec<_>>().join("\n")
    }

    /// What there is to see of it, for a failure's report.
    pub fn story(&self) -> String {
        let mut story = String::from("--- the story:\n");
        for session in self.sessions().unwrap_or_default() {
            for record in self.log(&session).unwrap_or_default() {
                let line = record.to_string();
                story += &format!("{}\n", line.chars().take(600).collect::<String>());
            }
        }
        for request in self.model.requests() {
            let last = request.prompts().pop().unwrap_or_default();
            story += &format!("--- to the model: {}\n", last.chars().take(600).collect::<String>());
        }
        story
    }
}

/// Counts slowly for those who ask for it last.
fn counting(request: &Recorded) -> Option<Reply> {
    let last = request.last_words()?;
    let last = last.lines().rev().find(|line| !line.trim().is_empty())?;
    let numbers = || (1..=COUNT).map(|number| format!("n{number} ")).collect::<String>();
    last.contains("count slowly").then(|| Reply::text(numbers()).pace(Duration::from_millis(250)))
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Ends Segue at once, and nothing else.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends it the signal of Ctrl-C.
    pub fn interrupt(&self) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid()).context("a pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
        Ok(())
    }

    /// Waits for its end.
    pub fn end(mut self) -> Result<Ended> {
        let stdout = self.child.stdout.take().map(reading);
        let stderr = self.child.stderr.take().map(reading);
        let since = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if since.elapsed() > LONGEST {
                self.kill()?;
                let stderr = stderr.map(|thread| thread.join().unwrap_or_default());
                bail!("segue did not end; stderr: {}", stderr.unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let text = |thread: Option<std::thread::JoinHandle<String>>| {
            thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
        };
        Ok(Ended { code: status.code(), stdout: text(stdout), stderr: text(stderr) })
    }
}

fn reading(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A pipe that breaks has given what it had.
        drop(pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Ended {
    /// The object that it printed.
    pub fn json(&self) -> Result<Value> {
        let last = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).with_context(|| {
            format!(
                "no JSON came from segue, which left with {:?} and said:
{}",
                self.code, self.stderr
            )
        })
    }

    /// Fails unless it left with this code.
    pub fn expect(self, code: i32) -> Result<Self> {
        ensure!(self.code == Some(code), "exit code {code} expected of {self:?}");
        Ok(self)
    }
}
