//! An agent's process: how it is started so that nothing of it is ever lost sight of, its last words, its end.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use segue_tool::ProcessRecord;
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// The variable by which every process of an agent is found.
pub const TOKEN: &str = "SEGUE_AGENT_TOKEN";

/// How much of its stderr is kept, in bytes.
const KEPT: usize = 64 * 1024;

/// How much of that an error shows, in bytes.
const SHOWN: usize = 2 * 1024;

/// How long an agent may take to leave once its input is closed. Some take two seconds, one stays for ever.
const LEAVE: Duration = Duration::from_secs(3);

/// How long its last words may take to arrive once it has ended. A descendant may hold stderr open for ever.
const SETTLE: Duration = Duration::from_millis(500);

/// What is started.
pub struct Start<'a> {
    /// The program and its arguments, with whatever it is put behind.
    pub line: Vec<OsString>,
    /// True if that makes a session of its own for it.
    pub makes_session: bool,
    /// Where.
    pub cwd: &'a Path,
    /// Its whole environment, without the token.
    pub env: Vec<(&'a OsStr, &'a OsStr)>,
    /// The token of this start.
    pub token: String,
    /// The file that notes it.
    pub note: PathBuf,
}

/// A running agent. Dropping it kills the whole tree.
pub struct AgentProcess {
    record: ProcessRecord,
    note: PathBuf,
    exit: watch::Receiver<Option<ExitStatus>>,
    words: LastWords,
    drained: watch::Receiver<bool>,
    is_ended: bool,
}

/// The end of what an agent wrote to stderr.
#[derive(Clone, Default)]
pub struct LastWords(Arc<Mutex<VecDeque<u8>>>);

impl LastWords {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
    }

    /// Notes a line that it wrote where a message was expected.
    pub fn noise(&self, line: &str) {
        if !line.trim().is_empty() {
            self.add(format!("[on stdout] {line}\n").as_bytes());
        }
    }

    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.iter().skip(kept.len().saturating_sub(SHOWN)).copied().collect();
        segue_log::strip_controls(String::from_utf8_lossy(&bytes).trim()).into_owned()
    }
}

/// The pipes of a started agent.
pub type Pipes = (ChildStdin, ChildStdout);

impl AgentProcess {
    /// Starts an agent. That it is started is on disk before it runs.
    ///
    /// # Errors
    /// If the note cannot be made durable or the program not be run; nothing runs then.
    pub async fn start(start: Start<'_>) -> io::Result<(Self, Pipes)> {
        let record = ProcessRecord::unstarted(TOKEN, &start.token);
        record.store(&start.note)?;
        let mut command = command(&start)?;
        let (started, when_started) = oneshot::channel();
        let (left, exit) = watch::channel(None);
        // The kernel's parent-death signal is sent when the *thread* that started a child ends: this one lives as long
        // as the child does, and so ends before it only with the whole process.
        std::thread::Builder::new().name("agent".into()).spawn(move || match command.spawn() {
            Ok(mut child) => {
                let pipes = (child.id(), child.stdin.take(), child.stdout.take(), child.stderr.take());
                let _starter_went_away = started.send(Ok(pipes));
                let status = child.wait().unwrap_or_default();
                left.send_replace(Some(status));
            }
            Err(error) => {
                let _starter_went_away = started.send(Err(error));
            }
        })?;
        let gone = || io::Error::other("the agent's pipes are missing");
        let (pid, stdin, stdout, stderr) = match when_started.await.map_err(|_| gone()).flatten() {
            Ok(pipes) => pipes,
            Err(error) => {
                std::fs::remove_file(&start.note).ok();
                return Err(error);
            }
        };
        let (drain, drained) = watch::channel(false);
        let words = LastWords::default();
        let process =
            Self { record: record.started_as(pid), note: start.note, exit, words, drained, is_ended: false };
        process.record.store(&process.note)?;
        let stderr = ChildStderr::from_std(stderr.ok_or_else(gone)?)?;
        tokio::spawn(keep_end(stderr, process.words.clone(), drain));
        let stdin = ChildStdin::from_std(stdin.ok_or_else(gone)?)?;
        let stdout = ChildStdout::from_std(stdout.ok_or_else(gone)?)?;
        Ok((process, (stdin, stdout)))
    }

    /// What it wrote to stderr.
    pub fn words(&self) -> LastWords {
        self.words.clone()
    }

    /// True while its first process runs.
    pub fn is_running(&self) -> bool {
        self.exit.borrow().is_none()
    }

    /// How it ended and its last words, as the end of a sentence and more.
    pub async fn account(&mut self) -> String {
        let left = self.exit.wait_for(Option::is_some);
        let status = timeout(SETTLE, left).await.ok().and_then(|exit| exit.ok().and_then(|exit| *exit));
        timeout(SETTLE, self.drained.wait_for(|drained| *drained)).await.ok();
        let mut account = match status {
            Some(status) => format!(" ({status})."),
            None => " (it closed its output).".to_owned(),
        };
        let words = self.words.text();
        if !words.is_empty() {
            account.push_str("\nThe end of its stderr:\n");
            account.push_str(&words);
        }
        account
    }

    /// Ends it in order, its input being closed already: waits for it to leave, then ends whatever is left of its tree.
    /// False if some of it would not go.
    pub async fn end(mut self) -> bool {
        timeout(LEAVE, self.exit.wait_for(Option::is_some)).await.ok();
        self.finish(ProcessRecord::end).await
    }

    /// Ends it at once.
    pub async fn kill(mut self) -> bool {
        self.finish(ProcessRecord::kill).await
    }

    async fn finish(&mut self, how: fn(&ProcessRecord) -> bool) -> bool {
        self.is_ended = true;
        let record = self.record.clone();
        let all_gone = tokio::task::spawn_blocking(move || how(&record)).await.unwrap_or(false);
        if all_gone {
            self.forget();
        }
        all_gone
    }

    /// Takes the note of this start away, and the session's folder with the last of them.
    fn forget(&self) {
        std::fs::remove_file(&self.note).ok();
        self.note.parent().map(std::fs::remove_dir);
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        if !self.is_ended && self.record.kill() {
            self.forget();
        }
    }
}

fn command(start: &Start<'_>) -> io::Result<Command> {
    let (program, arguments) =
        start.line.split_first().ok_or_else(|| io::Error::other("the agent's command is empty"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(start.cwd)
        .env_clear()
        .envs(start.env.iter().copied())
        .env(TOKEN, &start.token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if !start.makes_session {
        command.process_group(0);
    }
    Ok(command)
}

/// Reads to the end and keeps the last of it, so that the agent never blocks on a full pipe.
async fn keep_end(mut stderr: ChildStderr, words: LastWords, drained: watch::Sender<bool>) {
    let mut chunk = [0u8; 4096];
    while let Ok(count) = stderr.read(&mut chunk).await {
        let Some(new) = chunk.get(..count).filter(|new| !new.is_empty()) else { break };
        words.add(new);
    }
    drained.send_replace(true);
}

/// Becomes an agent: in a session of its own, and to be killed when the parent dies. Arguments are the parent's process
/// id, then the agent's command line. Comes back only if that failed.
pub fn exec_agent(arguments: Vec<OsString>) -> io::Error {
    let mut arguments = arguments.into_iter();
    let parent = arguments.next().and_then(|pid| pid.to_str()?.parse::<i32>().ok());
    let Some((parent, program)) = parent.zip(arguments.next()) else {
        return io::Error::other("expected a process id and a command");
    };
    // Fails only for the leader of a group, which a child that was just started is not.
    rustix::process::setsid().ok();
    #[cfg(target_os = "linux")]
    {
        let signal = Some(rustix::process::Signal::KILL);
        if let Err(error) = rustix::process::set_parent_process_death_signal(signal) {
            return error.into();
        }
    }
    // A parent that died before the signal was asked for sends none.
    let present = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if present != Some(parent) {
        return io::Error::other("the host of this agent is gone");
    }
    Command::new(program).args(arguments).exec()
}
