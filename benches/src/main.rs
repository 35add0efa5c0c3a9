//! Measures Segue, its store beside the raw medium: `cargo run --release -p segue-bench -- checkpoint|sessions64|resume|list|idle|start|all`.
//!
//! A disk's speed moves by a factor of ten within minutes, so costs of syncs are given as multiples of what plain files reach
//! in the same run, the two taking turns. `SEGUE_BENCH_DIR` names the folder to measure in; by default it is below the target
//! folder's, not in `/tmp`, which may be memory.

mod probe;
mod reading;
mod syncing;
mod whole;

use std::path::PathBuf;

use anyhow::{Context, bail};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "all".into());
    if what == reading::CHILD {
        let data = arguments.next().context("the child needs a folder")?;
        let id = arguments.next().context("the child needs a session")?;
        return reading::resume_child(data.as_ref(), &id);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let folder = tempfile::tempdir_in(place()?)?;
    let data = folder.path();
    let all = what == "all";
    if all || what == "checkpoint" {
        runtime.block_on(syncing::checkpoint(data))?;
    }
    if all || what == "sessions64" {
        runtime.block_on(syncing::sessions64(data))?;
    }
    if all || what == "resume" {
        reading::resume(&runtime, data)?;
    }
    if all || what == "list" {
        reading::list(&runtime, data)?;
    }
    if all || what == "idle" {
        whole::idle(&runtime, data)?;
    }
    if all || what == "start" {
        whole::start(data)?;
    }
    if !all && !["checkpoint", "sessions64", "resume", "list", "idle", "start"].contains(&what.as_str()) {
        bail!(
            "no such measurement: {what}; there are checkpoint, sessions64, resume, list, idle, start and all"
        );
    }
    Ok(())
}

fn place() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("SEGUE_BENCH_DIR") {
        return Ok(folder.into());
    }
    let program = std::env::current_exe()?;
    Ok(program.parent().context("the program is in no folder")?.to_owned())
}
