//! A server's process: its group, its last words, its end.

use std::collections::VecDeque;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// How much of its stderr is kept, in bytes.
const KEPT: usize = 16 * 1024;
/// How long its end and its last words may take to show once its pipes have closed.
const SETTLE: Duration = Duration::from_secs(1);
/// How long it may take to leave once its input is closed, and again once it has been told to.
const LEAVE: Duration = Duration::from_secs(2);

/// A running child in a group of its own. It is reaped only after its group has been ended: until then its pid names
/// that group and no other.
pub(super) struct ServerProcess {
    child: Option<Child>,
    witness: Witness,
}

impl ServerProcess {
    /// Starts `command` with stdin, stdout and stderr piped.
    pub(super) fn spawn(mut command: Command) -> io::Result<(Self, ChildStdout, ChildStdin)> {
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let gone = || io::Error::other("the child's pipes are missing");
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).ok_or_else(gone)?;
        let (stdout, stdin) = (child.stdout.take(), child.stdin.take());
        let (drained, when_drained) = watch::channel(false);
        let words = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(keep_end(stderr, Arc::clone(&words), drained));
        }
        let process = Self { child: Some(child), witness: Witness { pid, words, when_drained } };
        Ok((process, stdout.ok_or_else(gone)?, stdin.ok_or_else(gone)?))
    }

    /// What can be told of it, also while somebody else ends it.
    pub(super) fn witness(&self) -> Witness {
        self.witness.clone()
    }

    /// Waits for it to leave, its input being closed already; then ends whatever is left of its group.
    pub(super) async fn end(mut self) {
        let group = self.witness.pid;
        if !self.witness.has_left_within(LEAVE).await && kill_process_group(group, Signal::TERM).is_ok() {
            self.witness.has_left_within(LEAVE).await;
        }
        self.kill();
    }

    /// Ends its group at once. The runtime reaps the dropped child.
    fn kill(&mut self) {
        if let Some(child) = self.child.take() {
            // Only fails if nothing is left of the group.
            kill_process_group(self.witness.pid, Signal::KILL).ok();
            drop(child);
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What can be told of a process.
#[derive(Clone)]
pub(super) struct Witness {
    pid: Pid,
    words: Arc<Mutex<VecDeque<u8>>>,
    when_drained: watch::Receiver<bool>,
}

impl Witness {
    /// How it ended, and the end of what it wrote to stderr: the end of a sentence, and more.
    pub(super) async fn account(&mut self) -> String {
        // Its pipes close a moment before it can be waited for.
        let left = self.has_left_within(SETTLE).await;
        let drained = self.when_drained.wait_for(|drained| *drained);
        // A descendant may hold stderr open for ever.
        timeout(SETTLE, drained).await.ok();
        let mut account = if left { format!(" ({}).", self.status()) } else { ".".to_owned() };
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = words.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        if !text.trim().is_empty() {
            account.push_str("\nThe end of its stderr:\n");
            account.push_str(text.trim_end());
        }
        account
    }

    async fn has_left_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.has_left() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(Duration::from_millis(5)).await;
        }
        true
    }

    fn has_left(&self) -> bool {
        // An error: reaped already.
        !matches!(self.look(), Ok(None))
    }

    fn status(&self) -> String {
        match self.look() {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (_, Some(signal)) => format!("killed by signal {signal}"),
                (None, None) => "ended".to_owned(),
            },
            Ok(None) => "running".to_owned(),
            Err(_) => "ended".to_owned(),
        }
    }

    /// Looks without reaping.
    fn look(&self) -> rustix::io::Result<Option<rustix::process::WaitIdStatus>> {
        waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
    }
}

/// Reads to the end and keeps the last of it, so that the server never blocks on a full pipe.
async fn keep_end(mut stderr: ChildStderr, words: Arc<Mutex<VecDeque<u8>>>, drained: watch::Sender<bool>) {
    let mut chunk = [0u8; 4096];
    while let Ok(count) = stderr.read(&mut chunk).await {
        let Some(new) = chunk.get(..count).filter(|new| !new.is_empty()) else { break };
        let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
        words.extend(new);
        let excess = words.len().saturating_sub(KEPT);
        words.drain(..excess);
    }
    drained.send_replace(true);
}
