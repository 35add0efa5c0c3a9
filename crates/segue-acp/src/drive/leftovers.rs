//! Agents that a dead host of a session left behind. Only the holder of the session's lease ends them, and sees them gone
//! before anything is resumed: what lives on would go on with the conversation on its own.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use segue_log::SessionId;
use segue_tool::ProcessRecord;

use super::config::{AgentConfig, HostedConfig};
use super::process::TOKEN;

/// How long a `stop` command may take.
const STOP: Duration = Duration::from_secs(60);

/// What was found of earlier starts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Why nothing may be resumed yet: some of it would not go.
    pub stuck: Option<String>,
    /// What cannot be known, in words for people and for the reason of a resume.
    pub doubts: Vec<String>,
}

/// The notes of a session's agents.
pub struct Notes {
    folder: PathBuf,
}

impl Notes {
    /// Those below `root`.
    pub fn of(root: &Path, session: SessionId) -> Self {
        Self { folder: root.join(session.to_string()) }
    }

    /// The file for a start, its folder made.
    pub fn file(&self, start: &str) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        Ok(self.folder.join(format!("{start}.json")))
    }

    /// Ends what earlier starts left, and waits until it is gone.
    pub async fn end_leftovers(&self, agent: &AgentConfig) -> Leftovers {
        let mut found = Leftovers::default();
        // No folder is the ordinary case: a start that ends takes its note along.
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return found };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let is_over = match ProcessRecord::read(&path) {
                Some(record) => end(agent, record, &mut found).await,
                None => true,
            };
            if is_over {
                std::fs::remove_file(&path).ok();
            }
        }
        std::fs::remove_dir(&self.folder).ok();
        found
    }
}

/// Ends what a hosted agent of a session left behind, for a session that goes on with another kind of agent. False if
/// something of it may live on.
pub async fn end_leftovers(shared: &HostedConfig, session: SessionId, agent: &str) -> bool {
    let config = shared.agents.get(agent).cloned().unwrap_or_else(|| AgentConfig::new(agent, agent));
    Notes::of(&shared.folder, session).end_leftovers(&config).await == Leftovers::default()
}

/// True if nothing of it is left, or nothing more can be done about it from here.
async fn end(agent: &AgentConfig, record: ProcessRecord, found: &mut Leftovers) -> bool {
    let (token, host) = (record.token.clone(), record.host.clone());
    if !record.is_of_this_host() {
        found.doubts.push(format!("an earlier agent may still be running on {host}"));
        return false;
    }
    // A process does not survive its machine.
    if record.is_of_this_boot() {
        let all_gone = tokio::task::spawn_blocking(move || record.end()).await.unwrap_or(false);
        if !all_gone {
            found.stuck = Some(format!(
                "processes of an earlier agent of this session would not end; look for {TOKEN}={token} in their environment"
            ));
            return false;
        }
    }
    if !agent.runs_elsewhere() {
        return true;
    }
    match stop(agent, &token).await {
        None => found.doubts.push(
            "an earlier agent may still be running where it was started; a `stop` command would end it"
                .into(),
        ),
        Some(Ok(())) => {}
        Some(Err(why)) => {
            found.stuck = Some(format!("the stop command of {} failed: {why}", agent.name));
            return false;
        }
    }
    true
}

/// Runs the agent's `stop` command; none if it has none.
pub async fn stop(agent: &AgentConfig, token: &str) -> Option<Result<(), String>> {
    let (program, arguments) = agent.stop.split_first()?;
    let mut command = tokio::process::Command::new(program);
    let env: Vec<(&OsString, &OsString)> = agent.env.iter().collect();
    command.args(arguments).env_clear().envs(env).env(TOKEN, token).stdin(Stdio::null());
    command.kill_on_drop(true);
    Some(match tokio::time::timeout(STOP, command.output()).await {
        Err(_) => Err("it took longer than a minute".into()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
        }
    })
}
