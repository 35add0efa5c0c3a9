//! Landlock: a process gives up rights, for itself and all it starts, and then becomes the command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};

/// Devices that any command may write to.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full"];

/// Why a command was not started in the sandbox.
#[derive(Debug, thiserror::Error)]
pub enum RestrictError {
    /// The arguments are not what [`Sandbox`](super::Sandbox) makes.
    #[error("usage: --write FOLDER … -- PROGRAM [ARGUMENT …]")]
    Usage,
    /// The kernel does not hold what was asked for.
    #[error("the sandbox could not be set up: {0}")]
    Landlock(#[from] RulesetError),
    /// The command could not be started.
    #[error("cannot start {}: {source}", .program.display())]
    Exec {
        /// The program.
        program: PathBuf,
        /// The system's word.
        source: io::Error,
    },
}

/// Restricts this process as `arguments` say (`--write FOLDER … -- PROGRAM [ARGUMENT …]`) and becomes that program.
/// Comes back only with the reason why it could not; nothing of the program has run then. A launcher ends with exit
/// code 126 on that.
pub fn restrict_and_exec(arguments: impl IntoIterator<Item = OsString>) -> RestrictError {
    match restrict(arguments.into_iter()) {
        Ok(mut command) => {
            let source = command.exec();
            RestrictError::Exec { program: command.get_program().into(), source }
        }
        Err(error) => error,
    }
}

fn restrict(mut arguments: impl Iterator<Item = OsString>) -> Result<Command, RestrictError> {
    let mut writable: Vec<PathBuf> = DEVICES.iter().map(PathBuf::from).collect();
    loop {
        match arguments.next() {
            Some(flag) if flag == "--write" => {
                writable.push(arguments.next().ok_or(RestrictError::Usage)?.into())
            }
            Some(flag) if flag == "--" => break,
            _ => return Err(RestrictError::Usage),
        }
    }
    let mut command = Command::new(arguments.next().ok_or(RestrictError::Usage)?);
    command.args(arguments);

    // Below the third version a file could be emptied in spite of the rules, below the fourth TCP is free: less than
    // that is no sandbox. What later versions hold is taken where the kernel has it.
    let rights = AccessFs::from_write(ABI::V9);
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V3))?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(rights)?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .add_rules(path_beneath_rules(&writable, rights))?
        .restrict_self()?;
    Ok(command)
}
