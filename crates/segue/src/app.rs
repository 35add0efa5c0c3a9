//! One invocation: reads the command line, hands it to its command, tells what went wrong.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use crate::args::{self, Cli, Command};
use crate::commands;
use crate::config::{self, Merged, Sources};
use crate::environment::{Environment, absolute};
use crate::error::{Error, Result};
use crate::launch::{Finding, program};
use crate::output;
use crate::store_place::StorePlace;

/// What every command needs to know of its invocation.
pub struct App {
    /// The environment.
    pub environment: Environment,
    /// Options that every command takes.
    pub common: args::Common,
    /// Flags that are settings.
    pub settings: args::Settings,
}

impl App {
    /// Reads and merges the configuration; `project` is the working folder whose file counts.
    pub fn merge(&self, project: Option<&std::path::Path>) -> Merged {
        let sources =
            Sources { environment: &self.environment, common: &self.common, settings: &self.settings };
        config::merge(&sources, project)
    }

    /// The folder to work in: that of `--cwd`, else the current one; absolute and without links.
    pub fn folder(&self) -> Result<PathBuf> {
        match &self.common.cwd {
            Some(folder) => {
                let found = std::fs::canonicalize(folder)
                    .map_err(|error| Error::usage(format!("--cwd {}: {error}", folder.display())))?;
                if found.is_dir() {
                    Ok(found)
                } else {
                    Err(Error::usage(format!("--cwd {}: not a folder", folder.display())))
                }
            }
            None => std::env::current_dir().map_err(|error| {
                Error::usage(format!("the current folder is gone: {error}")).hint("name one with --cwd DIR")
            }),
        }
    }

    /// Where sessions are kept. A project has no say in it, so its file is not read.
    pub fn store_place(&self) -> Result<StorePlace> {
        StorePlace::of(&self.merge(None).config()?, &self.environment)
    }

    /// What finding a session of this invocation again needs.
    pub fn finding(&self, store: &StorePlace) -> Result<Finding> {
        Ok(Finding {
            program: program(&self.environment),
            home: self.environment.segue_home()?,
            config: self.common.config.as_deref().map(absolute).transpose()?,
            store: store.flag.clone(),
        })
    }
}

/// Runs a command line, the program's name first; gives the exit code.
pub fn run(argv: &[OsString]) -> u8 {
    // The helpers come first: what follows the name of one is another program's command line, not ours.
    if let [_, name, rest @ ..] = argv
        && name == segue_tool::sandbox::SUBCOMMAND
    {
        return commands::sandbox_exec(rest.to_vec());
    }
    if let [_, name, rest @ ..] = argv
        && name == crate::agents::EXEC
    {
        return commands::agent_exec(rest.to_vec());
    }
    hide_environment();
    let cli = match args::parse(argv) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and the version go to stdout, mistakes to stderr; clap knows which. A closed pipe is nobody's fault.
            let printed = error.print().and_then(|()| std::io::stdout().flush());
            return match printed {
                _ if error.use_stderr() => 2,
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                    output::note(format!("error: cannot write to stdout: {error}"));
                    1
                }
                _ => 0,
            };
        }
    };
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            output::note(error.to_string());
            error.kind.exit_code()
        }
    }
}

/// Keeps what this process was started with, keys among it, from the commands that it runs as the same user: they
/// could read it in `/proc`. What it starts is as readable as ever.
fn hide_environment() {
    #[cfg(target_os = "linux")]
    // A kernel that will not leaves things as they were everywhere else.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

fn dispatch(cli: Cli) -> Result<u8> {
    let Cli { common, settings, run, command } = cli;
    let mut app = App { environment: Environment::of_this_process(), common, settings };
    let done = |result: Result<()>| result.map(|()| 0);
    let Some(command) = command else { return commands::converse(&app, &run) };
    if let Some(name) = command.to_come() {
        return Err(Error::usage(format!("{name}: still to come, this version does not have it")));
    }
    match command {
        Command::Completions { shell } => done(commands::completions(shell)),
        Command::Models { output } => done(commands::models(&app, output)),
        Command::Config(command) => commands::config(&mut app, command),
        Command::Sessions(command) => commands::sessions(&app, command),
        Command::Demo => commands::demo(&app),
        Command::Agents(command) => commands::agents(&app, command),
        Command::Acp { .. } | Command::Serve { .. } => Err(Error::usage("still to come")),
    }
}
