//! Runs Segue with the real agents of `package.json` against a model server on loopback, each scenario in a home of its
//! own, and judges by the log, by the world, and by what reached the model. `scripts/interop` builds and starts it.
//!
//! `segue-interop SEGUE MODULES [WORD…]`: the words choose agents and scenarios.

mod agents;
mod host;
mod processes;
mod scenarios;
mod world;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use agents::Agent;
use anyhow::{Context, Result, bail};
use scenarios::{SCENARIOS, Scenario};
use world::World;

/// Agents start slowly and then wait: so many at once keep two cores busy.
const AT_ONCE: usize = 3;

/// What every scenario needs.
pub struct Bench {
    /// The binary to test, where an ordinary user can run it.
    segue: PathBuf,
    /// This program, there too.
    host: PathBuf,
    /// The folder that npm installed into.
    modules: PathBuf,
}

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let (Some(segue), Some(modules)) = (arguments.next(), arguments.next()) else {
        bail!("usage: segue-interop SEGUE MODULES [WORD…]");
    };
    let words: Vec<String> = arguments.collect();
    if segue == "host" {
        return host::run(&[&[modules], words.as_slice()].concat()).map(|()| ExitCode::SUCCESS);
    }
    let folder = tempfile::tempdir().context("a folder for the binary")?;
    let bench = Bench {
        segue: public_copy(Path::new(&segue), folder.path(), "segue")?,
        host: public_copy(&std::env::current_exe()?, folder.path(), "host")?,
        modules: modules.into(),
    };
    let jobs: VecDeque<(&Agent, &Scenario)> = agents::ALL
        .iter()
        .flat_map(|agent| SCENARIOS.iter().map(move |scenario| (agent, scenario)))
        .filter(|(agent, scenario)| (scenario.of)(agent))
        .filter(|(agent, scenario)| chosen(&words, agent, scenario))
        .collect();
    if jobs.is_empty() {
        bail!("no agent and scenario of these words: {words:?}");
    }
    let (total, since) = (jobs.len(), Instant::now());
    let (jobs, failed) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((agent, scenario)) = next(&jobs) {
                    let name = format!("{} {}", agent.name, scenario.name);
                    let since = Instant::now();
                    let outcome = run(&bench, agent, scenario);
                    let seconds = since.elapsed().as_secs_f64();
                    match outcome {
                        Ok(()) => println!("ok      {name} ({seconds:.1} s)"),
                        Err(error) => {
                            println!("FAILED  {name} ({seconds:.1} s)\n{error:?}\n");
                            lock(&failed).push(name);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{} of {total} passed in {} s", total - failed.len(), since.elapsed().as_secs());
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The next job. The lock is free again when it is there.
fn next<T>(jobs: &Mutex<VecDeque<T>>) -> Option<T> {
    lock(jobs).pop_front()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the words choose it: one of an agent's name and one of a scenario's, where there are such.
fn chosen(words: &[String], agent: &Agent, scenario: &Scenario) -> bool {
    let is_agent = |word: &&String| agents::ALL.iter().any(|agent| agent.name == **word);
    let (agents, scenarios): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| is_agent(word));
    (agents.is_empty() || agents.iter().any(|word| *word == agent.name))
        && (scenarios.is_empty() || scenarios.iter().any(|word| scenario.name.contains(word.as_str())))
}

fn run(bench: &Bench, agent: &'static Agent, scenario: &Scenario) -> Result<()> {
    let world = World::new(bench, agent)?;
    let outcome = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (scenario.run)(&world))) {
        Ok(outcome) => outcome,
        Err(_) => Err(anyhow::anyhow!("panicked")),
    };
    let left = world.end_all();
    outcome.with_context(|| world.story())?;
    if left.is_empty() {
        return Ok(());
    }
    bail!("left running: {left:?}\n{}", world.story())
}

/// Copies a program to where an ordinary user can run it, wherever the checkout lies.
fn public_copy(program: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let copy = folder.join(name);
    std::fs::copy(program, &copy).with_context(|| format!("copying {}", program.display()))?;
    for path in [&copy, folder] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(copy)
}

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is there.
///
/// # Errors
/// If it is not after a minute.
pub fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> Result<T> {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if since.elapsed() > PATIENCE {
            bail!("waited in vain for {what}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
