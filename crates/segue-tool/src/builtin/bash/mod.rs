//! `bash`: a command line.

mod output;
mod rule;
mod running;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use async_trait::async_trait;
use segue_log::{Action, ActionKind, Block, Effect, Outcome, code};
use serde::Deserialize;
use serde_json::{Value, json};

use self::output::Output;
use self::running::{End, Finished, Launch, OUTPUT, PROCESS, run};
use super::file::blocking;
use super::{BuiltinOptions, parse};
use crate::limit::keep;
use crate::process::{ProcessRecord, TOKEN};
use crate::sandbox::Level;
use crate::tool::{Failure, Known, OpenCall, Scope, Tool, ToolContext, ToolOutput};

const DESCRIPTION: &str = "Runs a command line with `bash -c` in the working folder. Its output (standard output and \
error as they come) is returned, the middle of long output left out. Standard input is empty, so nothing can be asked. \
It is ended after `timeout_ms` (default {default}, at most 600000). A process left in the background must have its output \
redirected; otherwise it is ended when the command ends. Each call is a shell of its own: variables and `cd` do not \
carry over. Prefer `read`, `edit`, `glob` and `grep` to cat, sed, find and grep.";

/// How long a command may run when the call does not say.
const TIMEOUT_MS: u64 = 120_000;

/// The longest that a call may ask for.
const TIMEOUT_MAX_MS: u64 = 600_000;

/// Words in the output of a command that a sandbox stopped at something.
const STOPPED: &[&str] = &[
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
    "Network is unreachable",
    "Temporary failure in name resolution",
    "Could not resolve",
    "Name or service not known",
];

pub(super) struct Bash {
    options: BuiltinOptions,
    /// How long a command may run when the call does not say, in milliseconds.
    default_ms: u64,
    description: String,
    schema: Value,
}

#[derive(Deserialize)]
struct Input {
    command: String,
    #[serde(default)]
    timeout_ms: Option<u64>,
    #[serde(default)]
    unsandboxed: bool,
}

impl Bash {
    pub fn new(options: BuiltinOptions) -> Self {
        let configured =
            options.command_timeout.map(|limit| limit.as_millis().try_into().unwrap_or(u64::MAX));
        let default_ms = configured.unwrap_or(TIMEOUT_MS).min(TIMEOUT_MAX_MS);
        let schema = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1, "description": "The command line."},
                "timeout_ms": {
                    "type": "integer", "minimum": 1, "maximum": TIMEOUT_MAX_MS,
                    "description": format!("After how many milliseconds it is ended. Default {default_ms}.")
                },
                "unsandboxed": {
                    "type": "boolean",
                    "description": "Ask to run it without the sandbox, because it must write elsewhere or use the network. A person is asked. Default false."
                }
            },
            "required": ["command"],
            "additionalProperties": false
        });
        let description = DESCRIPTION.replace("{default}", &default_ms.to_string());
        Self { options, default_ms, description, schema }
    }

    /// True if a command that nobody permitted would be held.
    fn holds(&self) -> bool {
        self.options.sandbox.as_ref().is_some_and(|sandbox| sandbox.level() != Level::None)
    }

    async fn call(&self, input: Value, context: &ToolContext) -> Result<ToolOutput, Failure> {
        let Input { command, timeout_ms, unsandboxed } = parse(input)?;
        if command.contains('\0') {
            return Err(Failure {
                code: code::INVALID_INPUT.to_owned(),
                message: "the command has a NUL byte".to_owned(),
            });
        }
        if unsandboxed && !context.permitted && self.holds() {
            return Err(Failure {
                code: code::DENIED.to_owned(),
                message: "running without the sandbox needs permission, and nobody gave it".to_owned(),
            });
        }
        let folder = context.call_folder();
        let mut launch = Launch {
            line: vec!["bash".into(), "-c".into(), command.into()],
            cwd: context.scope.cwd.clone(),
            key: context.idempotency_key(),
            temporary: None,
            hidden_env: self.options.hidden_env.clone(),
            folder: folder.clone(),
        };
        let mut sandboxed = false;
        if let Some(sandbox) = self.options.sandbox.clone().filter(|_| !context.permitted) {
            let temporary = folder.join("tmp");
            let scope = context.scope.clone();
            launch = blocking(move || {
                let folders = [&scope.cwd].into_iter().chain(&scope.extra);
                // One that is not there cannot be written to; a link would be a name that the sandbox cannot open up.
                let found: Vec<PathBuf> = folders.filter_map(|folder| folder.canonicalize().ok()).collect();
                let writable: Vec<&Path> = found.iter().chain([&temporary]).map(PathBuf::as_path).collect();
                if let Some(line) = sandbox.wrap(&writable, launch.line.clone()) {
                    launch.line = line;
                    launch.temporary = Some(temporary);
                }
                launch
            })
            .await?;
            sandboxed = launch.temporary.is_some();
        }
        let limit = Duration::from_millis(timeout_ms.unwrap_or(self.default_ms).min(TIMEOUT_MAX_MS));
        let finished = run(launch, context, limit).await?;
        let output = report(finished, &folder, limit, sandboxed, context).await;
        // If it stays, it is evidence of a call that has its result and is never asked for.
        let _ = blocking(move || clear(&folder)).await;
        Ok(output)
    }
}

/// Removes a call's folder, the output first: without it a missing record of the process proves nothing, should a crash
/// come in between, before the result is in the log.
fn clear(folder: &Path) -> std::io::Result<()> {
    std::fs::remove_file(folder.join(OUTPUT))?;
    std::fs::remove_dir_all(folder)
}

/// The result of a command that came to its end.
async fn report(
    finished: Finished,
    folder: &Path,
    limit: Duration,
    sandboxed: bool,
    context: &ToolContext,
) -> ToolOutput {
    let Finished { output, end, held_open, left, all_gone } = finished;
    let shown = output.shown();
    let mut text = if shown.total == 0 { "(no output)".to_owned() } else { shown.text };
    let mut note = |line: &str| {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
    };
    if output.is_cut() {
        let path = folder.join(OUTPUT);
        let kept = match blocking(move || std::fs::read(path)).await {
            Ok(Ok(bytes)) => keep(bytes, shown.total, &*context.host).await,
            Ok(Err(error)) => format!("The whole could not be kept: {error}."),
            Err(failure) => format!("The whole could not be kept: {failure}."),
        };
        note(&format!("[{} bytes of output, {} left out. {kept}]", shown.total, shown.left_out));
    }
    if held_open {
        note(
            "[Processes in the background held the output open after the shell had exited, and were ended. To keep such a process, redirect its output.]",
        );
    }
    if !left.is_empty() {
        let pids: Vec<String> = left.iter().map(u32::to_string).collect();
        note(&format!("[Still running in the background: {}.]", pids.join(", ")));
    }
    if !all_gone {
        note("[Some of its processes could not be ended and may still run.]");
    }
    let effects = "All its processes were ended; it may have had effects.";
    let failed = match end {
        End::Exited(status) => {
            let failure = describe(status);
            if let Some(failure) = &failure {
                note(failure);
            }
            failure.map(|_| code::FAILED)
        }
        End::TimedOut => {
            note(&format!("[Ended because it ran longer than {} s. {effects}]", limit.as_secs_f64()));
            Some(code::TIMED_OUT)
        }
        End::Cancelled => {
            note(&format!("[Ended because the call was cancelled. {effects}]"));
            Some(code::CANCELLED)
        }
    };
    let stopped =
        failed == Some(code::FAILED) && sandboxed && STOPPED.iter().any(|words| text.contains(words));
    if stopped {
        text.push_str(
            "\n[It ran in a sandbox: it can write only in the working folder and has no network. If that stopped it, call again with \"unsandboxed\": true, about which a person is asked.]",
        );
    }
    let outcome = if failed.is_some() { Outcome::Error } else { Outcome::Ok };
    ToolOutput { outcome, code: failed.map(str::to_owned), content: vec![Block::text(text)] }
}

/// What is to be said of an exit status; nothing for success.
fn describe(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("exit code {code}")),
        (None, Some(signal)) => Some(format!("ended by signal {signal}")),
        (None, None) => Some(format!("ended: {status}")),
    }
}

#[async_trait]
impl Tool for Bash {
    fn name(&self) -> &str {
        "bash"
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn input_schema(&self) -> &Value {
        &self.schema
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn action(&self, input: &Value, _scope: &Scope) -> Action {
        let input = parse(input.clone()).unwrap_or_else(|_| Input {
            command: input.to_string(),
            timeout_ms: None,
            unsandboxed: true,
        });
        Action {
            kind: ActionKind::Command { sandboxed: !input.unsandboxed && self.holds() },
            subject: input.command.trim().to_owned(),
            rule: rule::rule(&input.command),
            shown: input.command,
        }
    }

    async fn run(&self, input: Value, context: &ToolContext) -> ToolOutput {
        match self.call(input, context).await {
            Ok(output) => output,
            Err(failure) => failure.into(),
        }
    }

    async fn evidence(&self, call: &OpenCall, scope: &Scope, end: bool) -> Known {
        let folder = scope.call_folder(call.session, &call.call_id);
        let call = call.clone();
        blocking(move || look_back(&call, &folder, end)).await.unwrap_or(Known::Nothing)
    }
}

/// What the call's folder and the machine's processes say of a command whose result a crash took.
fn look_back(call: &OpenCall, folder: &Path, end: bool) -> Known {
    let token = format!("{}/{}", call.session, call.call_id);
    let was = ProcessRecord {
        boot: call.boot.clone(),
        host: call.host.clone(),
        ..ProcessRecord::unstarted(TOKEN, &token)
    };
    let recorded = ProcessRecord::read(&folder.join(PROCESS));
    let has_folder = folder.is_dir();
    let record = recorded.clone().unwrap_or(was);
    let output = Output::read_back(&folder.join(OUTPUT)).shown().text;
    if record.is_of_this_boot() {
        if record.is_alive() {
            if !end {
                return Known::Running { output };
            }
            let all_gone = record.end();
            // Read again: it may have said something at its end.
            let output = Output::read_back(&folder.join(OUTPUT)).shown().text;
            return if all_gone { Known::Ended { output, by_us: true } } else { Known::Running { output } };
        }
        // The file for the output is made before the process and goes before its record does.
        if recorded.is_none() && folder.join(OUTPUT).exists() {
            return Known::Result(ToolOutput::error(
                code::NOT_STARTED,
                "The command was not started: the process that was about to start it died before. It may be called again if still wanted.",
            ));
        }
    } else if !record.is_of_this_host() || record.boot.is_empty() {
        // Another machine's processes cannot be seen from here, and without a boot's id none can be told from a stranger.
        return Known::Nothing;
    }
    if has_folder { Known::Ended { output, by_us: false } } else { Known::Nothing }
}
