//! The command line as data: help, completions and `docs/command-line.md` come from these definitions.

mod check;
#[cfg(test)]
mod docs;
mod values;

use std::path::PathBuf;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueHint};
use segue_log::PromptId;

pub use check::parse;
pub use values::{ExportFormat, Level, ListOutput, RunOutput, SettleHow, ShowOutput, Timeout};

/// The ways to call it.
const USAGE: &str =
    "segue [OPTIONS] [PROMPT]\n       segue [OPTIONS] -p [PROMPT]\n       segue [OPTIONS] <COMMAND>";

/// Conversations with coding agents that carry on.
///
/// A session is durable before anything touches the world. Close the terminal, kill the process: `--resume` goes on.
#[derive(Debug, Parser)]
#[command(
    name = "segue",
    version,
    args_override_self = true,
    max_term_width = 100,
    override_usage = USAGE
)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub settings: Settings,
    #[command(flatten)]
    pub run: Run,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Options that every command takes.
#[derive(Debug, Clone, Default, Args)]
pub struct Common {
    /// Work in this folder instead of the current one; with --resume, move the session there
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Everywhere")]
    pub cwd: Option<PathBuf>,
    /// Where sessions are kept: jsonl:DIR
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere")]
    pub store: Option<String>,
    /// A further configuration file, above those found by themselves
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Everywhere")]
    pub config: Option<PathBuf>,
    /// No progress, no line at the end that says how to resume
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub quiet: bool,
}

/// Flags that are settings: the topmost layer of the configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct Settings {
    /// The agent that answers
    #[arg(long, value_name = "NAME", help_heading = "Settings")]
    pub agent: Option<String>,
    /// The model, or only its provider
    #[arg(long, value_name = "PROVIDER/NAME", help_heading = "Settings")]
    pub model: Option<String>,
    /// What the agent may do without asking
    #[arg(long, value_name = "LEVEL", value_enum, help_heading = "Settings")]
    pub permissions: Option<Level>,
    /// Allow what this rule matches, such as 'bash(cargo *)'; can be given several times
    #[arg(long, value_name = "RULE", action = ArgAction::Append, help_heading = "Settings")]
    pub allow: Vec<String>,
    /// End the turn after this many model requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Settings")]
    pub max_steps: Option<u64>,
}

/// What a conversation is started or continued with.
#[derive(Debug, Clone, Default, Args)]
pub struct Run {
    /// What to say first; after `--` it may be any word
    #[arg(value_name = "PROMPT")]
    pub words: Option<String>,
    /// Run one turn, print the answer alone on stdout; what is piped in is added to the prompt
    #[arg(short, long, value_name = "PROMPT", num_args = 0..=1)]
    pub print: Option<Option<String>>,
    /// Go on with a session: its id or the start of it, or AGENT:ID
    #[arg(long, value_name = "ID", num_args = 0..=1, conflicts_with = "continue_newest")]
    pub resume: Option<Option<String>>,
    /// Go on with the newest session of exactly this folder
    #[arg(short, long = "continue")]
    pub continue_newest: bool,
    /// With -p: how to print the answer
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub output: Option<RunOutput>,
    /// With -p: an id of your own for the prompt; the same id again runs nothing twice
    #[arg(long, value_name = "ID")]
    pub prompt_id: Option<PromptId>,
    /// With -p: take up the interrupted turn, before the prompt if there is one
    #[arg(long)]
    pub finish: bool,
    /// With -p: cancel the turn after this long, such as 30s, 5m or 1h
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Timeout>,
}

impl Run {
    /// The prompt, from wherever it stands.
    pub fn prompt(&self) -> Option<&str> {
        self.print.as_ref().and_then(Option::as_deref).or(self.words.as_deref())
    }
}

/// The commands beside a conversation.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List, read, copy, mend and delete sessions
    #[command(subcommand)]
    Sessions(Sessions),
    /// Show the model providers, whether a key is found, and their default models
    Models {
        /// How to print
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        output: ListOutput,
    },
    /// Show and check the configuration, trust a folder's
    #[command(subcommand)]
    Config(ConfigCommand),
    /// List hosted agents, look at one, list its own conversations
    #[command(subcommand)]
    Agents(Agents),
    /// Print a script that completes segue's words in your shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Start an agent, kill it in the middle of a tool, and watch it resume; needs no key
    Demo,
    /// Be an ACP agent on stdio
    #[command(hide = true)]
    Acp {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Serve sessions over HTTP
    #[command(hide = true)]
    Serve {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
}

/// `segue sessions …`
#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// List sessions, newest first; with --cwd only those of exactly that folder
    List {
        /// Those without a prompt, too
        #[arg(long)]
        all: bool,
        /// How many at most; 0 is all
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Those after the last one of the previous page: its UPDATED,ID
        #[arg(long, value_name = "CURSOR")]
        after: Option<String>,
        /// How to print
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        output: ListOutput,
    },
    /// Show a session's transcript, or with --output jsonl its log's records
    Show {
        /// The session: its id or the start of it
        id: String,
        /// How to print
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        output: ShowOutput,
    },
    /// Find sessions by a text in their title or transcript, case ignored
    Search {
        /// The text
        text: String,
        /// How many at most; 0 is all
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// How to print
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        output: ListOutput,
    },
    /// Copy a session, whole or up to a record, into a new one
    Fork {
        /// The session: its id or the start of it
        id: String,
        /// The last record to copy
        #[arg(long, value_name = "SEQ")]
        at: Option<u64>,
    },
    /// Print a session as a document or as its log
    Export {
        /// The session: its id or the start of it
        id: String,
        /// The format
        #[arg(long, value_enum, default_value_t)]
        format: ExportFormat,
    },
    /// Delete sessions for good
    Delete {
        /// The sessions: their ids or the starts of them
        #[arg(required = true)]
        ids: Vec<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Look at everything in the store and name what is damaged or does not belong; changes nothing
    Check {
        /// How to print
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        output: ListOutput,
    },
    /// Make a session that can be continued out of a damaged one, which is kept
    Repair {
        /// The session: its id or the start of it
        id: String,
    },
    /// Say how a call ended whose outcome is unknown
    Settle {
        /// The session: its id or the start of it
        id: String,
        /// The call's id
        call: segue_log::CallId,
        /// What is true of it
        #[arg(value_enum)]
        how: SettleHow,
        /// Words for the model
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
    },
}

/// `segue agents …`
#[derive(Debug, Subcommand)]
pub enum Agents {
    /// List the configured agents and whether their programs are there
    List {
        /// How to print
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        output: ListOutput,
    },
    /// Start an agent and tell its version, what it can, how it can be resumed, and whether it wants a login
    Check {
        /// The agent
        name: String,
        /// How to print
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        output: ListOutput,
    },
    /// List the conversations that an agent keeps itself, of this folder
    Sessions {
        /// The agent
        name: String,
        /// Those of all folders
        #[arg(long)]
        all: bool,
        /// How to print
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        output: ListOutput,
    },
}

/// `segue config …`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print each value with the layer it came from
    Show {
        #[command(flatten)]
        settings: Settings,
        /// How to print
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        output: ListOutput,
    },
    /// Name everything that is wrong in the configuration
    Check {
        #[command(flatten)]
        settings: Settings,
    },
    /// Let a folder's .segue/config.toml loosen permissions and name commands, as it stands now
    Trust {
        /// The folder; the current one if none is named
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

/// The whole command line as clap knows it.
pub fn command() -> clap::Command {
    Cli::command()
}
