//! One command from its start to its end.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::output::Output;
use crate::builtin::file::{blocking, failed};
use crate::process::{ProcessRecord, TOKEN};
use crate::tool::{Failure, ToolContext};

/// The file of a call's folder that says which process it is.
pub(super) const PROCESS: &str = "process.json";

/// The file of a call's folder that has what the command wrote.
pub(super) const OUTPUT: &str = "output";

/// The command starts behind a gate: a shell waits for a line and only then becomes the command. Until then the record
/// of the process is written. If this process dies before it opens the gate, the shell sees the end of its input and
/// leaves, so a command without a record never ran.
const GATE: &str = r#"read -r gate || exit 125; exec </dev/null; exec "$@""#;

/// The program that gives a command a session and group of its own, where there is one: without a terminal nothing can
/// stop to ask for a password there. It becomes the gate, so the process stays the same. Elsewhere there is only a group.
const SETSID: &[&str] = &["/usr/bin/setsid", "/bin/setsid", "/run/current-system/sw/bin/setsid"];

/// How long output is waited for after the shell has exited.
const DRAIN: Duration = Duration::from_millis(500);

/// What to run.
pub(super) struct Launch {
    /// Program and arguments.
    pub line: Vec<OsString>,
    /// Where.
    pub cwd: PathBuf,
    /// The call's folder.
    pub folder: PathBuf,
    /// The call's idempotency key, which finds its processes again, too.
    pub key: String,
    /// A folder for temporary files of its own.
    pub temporary: Option<PathBuf>,
    /// Variables that it does not get.
    pub hidden_env: Vec<String>,
}

/// Why a command is no longer running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It exited by itself.
    Exited(ExitStatus),
    /// It was ended because it took too long.
    TimedOut,
    /// It was ended because the call was cancelled.
    Cancelled,
}

/// A command that came to its end.
pub(super) struct Finished {
    /// What it wrote.
    pub output: Output,
    /// Why it ended.
    pub end: End,
    /// True if processes in the background held its output open and were ended for it.
    pub held_open: bool,
    /// Processes that it left running in the background.
    pub left: Vec<u32>,
    /// False if processes that should have ended would not.
    pub all_gone: bool,
}

/// The command's first process. Dropping it while it runs kills the whole tree.
struct Started {
    child: Child,
    record: ProcessRecord,
    reaped: bool,
}

impl Started {
    /// Takes the exit status of a first process that has ended. Its number is free afterwards, so nothing is looked
    /// for by it any more.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        self.reaped = true;
        self.child.wait()
    }

    /// Lets go of processes that were killed and are still there: the kernel holds them fast, or they took the rights
    /// of another user. Waiting longer would only hold the call up, too.
    fn give_up(&mut self) {
        self.reaped = true;
        let _ = self.child.try_wait();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !self.reaped && self.record.kill() {
            // It is dead; this only takes its entry out of the process table.
            let _ = self.child.try_wait();
        }
    }
}

/// Makes a folder that only its owner may look into.
pub(super) fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn start(launch: &Launch) -> Result<(Started, io::PipeReader, Output), Failure> {
    let told = |doing: &str, path: &Path| {
        let what = format!("the command was not run: {doing} {}", path.display());
        move |error: io::Error| failed(format!("{what}: {error}"))
    };
    make_private(&launch.folder).map_err(told("cannot make", &launch.folder))?;
    if let Some(temporary) = &launch.temporary {
        make_private(temporary).map_err(told("cannot make", temporary))?;
    }
    let kept = launch.folder.join(OUTPUT);
    let output = Output::kept_at(&kept).map_err(told("cannot make", &kept))?;
    let shell = Path::new("/bin/sh");
    if !launch.cwd.is_dir() {
        return Err(failed(format!(
            "the command was not run: the working folder {} is gone",
            launch.cwd.display()
        )));
    }
    let (reader, writer) = io::pipe().map_err(told("cannot make a pipe for", shell))?;
    let errors = writer.try_clone().map_err(told("cannot make a pipe for", shell))?;
    let mut command = match SETSID.iter().find(|program| Path::new(program).exists()) {
        Some(setsid) => {
            let mut command = Command::new(setsid);
            command.arg(shell);
            command
        }
        None => {
            let mut command = Command::new(shell);
            command.process_group(0);
            command
        }
    };
    command
        .args(["-c", GATE, "segue"])
        .args(&launch.line)
        .current_dir(&launch.cwd)
        .env(TOKEN, &launch.key)
        .env("SEGUE_IDEMPOTENCY_KEY", &launch.key)
        .stdin(Stdio::piped())
        .stdout(writer)
        .stderr(errors);
    for name in &launch.hidden_env {
        command.env_remove(name);
    }
    if let Some(temporary) = &launch.temporary {
        command.env("TMPDIR", temporary);
    }
    let mut child = command.spawn().map_err(told("cannot start", shell))?;
    // It holds our copies of the pipe's writing end, which would keep the output from ever ending.
    drop(command);
    let gate = child.stdin.take();
    let record = ProcessRecord::of(child.id(), &launch.key);
    let file = launch.folder.join(PROCESS);
    let started = Started { child, record, reaped: false };
    started.record.write(&file).map_err(told("cannot write", &file))?;
    gate.ok_or_else(|| failed("the command was not run: its input was not opened"))?
        .write_all(b"\n")
        .map_err(told("cannot hand it to", shell))?;
    Ok((started, reader, output))
}

/// Waits until the process has ended, without taking its exit status, so that its number stays its own.
fn wait_for_end(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(|_| ()).map_err(Into::into),
        }
    }
}

/// Runs a command to its end, for at most `limit`.
pub(super) async fn run(launch: Launch, context: &ToolContext, limit: Duration) -> Result<Finished, Failure> {
    let (mut started, reader, mut output) = blocking(move || start(&launch)).await??;
    let mut pipe = pipe::Receiver::from_owned_fd(reader.into())
        .map_err(|error| failed(format!("cannot read the command's output: {error}")))?;
    let pid = started.child.id();
    let mut exit = std::pin::pin!(blocking(move || wait_for_end(pid)));
    let deadline = Instant::now() + limit;
    let mut drained = deadline;
    let (mut exited, mut at_end) = (false, false);
    let mut buffer = vec![0; 64 * 1024];
    let stop = loop {
        if exited && at_end {
            break None;
        }
        tokio::select! {
            read = pipe.read(&mut buffer), if !at_end => match read {
                Ok(read @ 1..) => context.host.progress(&output.push(buffer.get(..read).unwrap_or_default())),
                Ok(0) | Err(_) => at_end = true,
            },
            ended = &mut exit, if !exited => {
                ended?.map_err(|error| failed(format!("cannot wait for the command: {error}")))?;
                exited = true;
                drained = Instant::now() + DRAIN;
            }
            () = sleep_until(drained), if exited => break None,
            () = context.cancel.cancelled(), if !exited => break Some(End::Cancelled),
            () = sleep_until(deadline), if !exited => break Some(End::TimedOut),
        }
    };
    let held_open = stop.is_none() && !at_end;
    let mut all_gone = true;
    if stop.is_some() || held_open {
        let record = started.record.clone();
        let mut ending = std::pin::pin!(blocking(move || record.end()));
        // What it says while it ends is read, so that a full pipe does not keep it from ending.
        all_gone = loop {
            tokio::select! {
                gone = &mut ending => break gone?,
                read = pipe.read(&mut buffer), if !at_end => match read {
                    Ok(read @ 1..) => context.host.progress(&output.push(buffer.get(..read).unwrap_or_default())),
                    Ok(0) | Err(_) => at_end = true,
                },
            }
        };
        let last = Instant::now() + DRAIN;
        while let Ok(Ok(read @ 1..)) = timeout_at(last, pipe.read(&mut buffer)).await {
            context.host.progress(&output.push(buffer.get(..read).unwrap_or_default()));
        }
    }
    let left = if stop.is_none() && !held_open { left_behind(&started.record).await? } else { Vec::new() };
    let end = match stop {
        Some(stop) if !all_gone => {
            started.give_up();
            stop
        }
        Some(stop) => {
            started.reap().map_err(|error| failed(format!("cannot wait for the command: {error}")))?;
            stop
        }
        None => End::Exited(
            started.reap().map_err(|error| failed(format!("cannot wait for the command: {error}")))?,
        ),
    };
    Ok(Finished { output, end, held_open, left, all_gone })
}

/// Processes that still run although the shell has exited and nothing writes to its output any more.
async fn left_behind(record: &ProcessRecord) -> Result<Vec<u32>, Failure> {
    let look = |record: ProcessRecord| blocking(move || record.others());
    if look(record.clone()).await?.is_empty() {
        return Ok(Vec::new());
    }
    // Those that are just about to end are given the time for it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    look(record.clone()).await
}
