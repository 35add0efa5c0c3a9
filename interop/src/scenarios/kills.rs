//! Processes that are killed in mid-turn, and the truth afterwards.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{QUESTION, completed, knows_the_number, says, wait_for_answer, with_a_number};
use crate::processes::kill;
use crate::wait_for;
use crate::world::{Running, World};

/// How long the command works. Its end must not come once it was ended.
const WORK: u32 = 6;

/// All processes of the agent die; Segue says that the turn failed.
pub fn agent_in_a_command(world: &World) -> Result<()> {
    in_a_command(world, |world, running| {
        world.agent_processes().iter().for_each(|process| kill(process.pid));
        running.end()?.expect(1).map(drop)
    })
}

/// Segue dies, and the agent does what it does without it.
pub fn segue_in_a_command(world: &World) -> Result<()> {
    in_a_command(world, |_, mut running| running.kill())
}

/// All die at once.
pub fn all_in_a_command(world: &World) -> Result<()> {
    in_a_command(world, kill_all)
}

/// Only the process that Segue started dies. What that had started may work on, and must be ended.
pub fn adapter_in_a_command(world: &World) -> Result<()> {
    in_a_command(world, |world, running| {
        let segue = running.pid();
        let adapters: Vec<_> =
            world.agent_processes().into_iter().filter(|process| process.parent == segue).collect();
        ensure!(!adapters.is_empty(), "no child of segue among {:?}", world.processes());
        adapters.iter().for_each(|process| kill(process.pid));
        running.end()?.expect(1).map(drop)
    })
}

fn kill_all(world: &World, mut running: Running) -> Result<()> {
    running.kill()?;
    while !world.agent_processes().is_empty() {
        world.agent_processes().iter().for_each(|process| kill(process.pid));
    }
    Ok(())
}

/// Something dies while a command runs. The next prompt finds the whole past, the command is not run again nor goes on,
/// nobody says that it did not run, and no other branch of the conversation reaches the model.
fn in_a_command(world: &World, strike: impl Fn(&World, Running) -> Result<()>) -> Result<()> {
    let session = with_a_number(world)?;
    let running = world.start(&["--resume", &session, "--permissions", "all", "-p", &world.work(WORK)])?;
    world.wait_for_work()?;
    let begun = Instant::now();
    strike(world, running)?;
    let before = world.model.requests().len();
    let answer = knows_the_number(world, &session, "resumed")?;
    ensure!(calls_told(&answer) != ["not_started"], "a call that ran is told as not started: {answer}");
    let told = world.told_since(before);
    ensure!(told.contains("<segue-note>"), "no note of the call in what the model was told:\n{told}");

    std::thread::sleep(Duration::from_secs(u64::from(WORK) + 1).saturating_sub(begun.elapsed()));
    ensure!(world.trace() == ["begun"], "the command ran again, or on: {:?}", world.trace());
    let strays = world
        .requests_since(before)
        .into_iter()
        .filter(|request| !request.prompts().iter().any(|prompt| prompt.contains(QUESTION)));
    let strays: Vec<_> =
        strays.filter(|request| request.prompts().iter().any(|p| p.contains("echo begun"))).collect();
    ensure!(strays.is_empty(), "another branch reached the model: {strays:?}");
    let results = world.records(&session, "tool/result")?;
    let unknown = |result: &Value| result["code"] == "TOOL_OUTCOME_UNKNOWN";
    ensure!(results.iter().any(unknown), "the log does not say that the outcome is unknown: {results:?}");
    Ok(())
}

/// All die while the agent waits for a permission: nothing ran, whatever the agent thinks of it.
pub fn all_at_an_open_question(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    let running = world.start_host(&session, &world.work(WORK))?;
    wait_for("the question", || world.records(&session, "permission/asked").ok()?.pop())?;
    kill_all(world, running)?;
    let before = world.model.requests().len();
    let answer = knows_the_number(world, &session, "resumed")?;
    ensure!(calls_told(&answer) == ["not_started"], "told of the call: {answer}");
    let told = world.told_since(before);
    ensure!(told.contains("<segue-note>"), "no note of the call in what the model was told:\n{told}");
    ensure!(world.trace().is_empty(), "the command ran without permission: {:?}", world.trace());
    Ok(())
}

fn calls_told(answer: &Value) -> Vec<&str> {
    let repaired = answer["repaired"].as_array().into_iter().flatten();
    repaired.filter_map(|call| call["outcome"].as_str()).collect()
}

/// All die in the first answer: what agents lose then, the prompt included, the model is told by us.
pub fn all_in_the_first_answer(world: &World) -> Result<()> {
    let prompt = "remember the number 4711, then count slowly";
    let running = world.start(&["--agent", world.agent.name, "-p", prompt])?;
    let session = world.only_session()?;
    wait_for_answer(world, &session, "n3")?;
    kill_all(world, running)?;
    let before = world.model.requests().len();
    let answer = world.ask(&session, QUESTION, &[])?;
    completed(&answer)?;
    says(&answer, "The number is 4711.")?;
    knows_what_was_cut(world, before)
}

/// All die in a later answer.
pub fn all_in_a_later_answer(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    let running = world.start(&["--resume", &session, "-p", "count slowly"])?;
    wait_for_answer(world, &session, "n3")?;
    kill_all(world, running)?;
    let before = world.model.requests().len();
    knows_the_number(world, &session, "resumed")?;
    knows_what_was_cut(world, before)
}

/// The prompt and the part of its answer that was streamed are in what the model gets.
fn knows_what_was_cut(world: &World, before: usize) -> Result<()> {
    let requests = world.requests_since(before);
    let knows = |text: &str| requests.iter().any(|request| request.body.to_string().contains(text));
    ensure!(knows("count slowly"), "the model does not know the prompt");
    ensure!(knows("n2 "), "the model does not know the answer that was cut off");
    Ok(())
}

/// A turn that was cut off is taken up without a made-up prompt.
pub fn finish_after_a_kill(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    let running = world.start(&["--resume", &session, "--permissions", "all", "-p", &world.work(WORK)])?;
    world.wait_for_work()?;
    kill_all(world, running)?;
    let before = world.model.requests().len();
    let finished = world.segue(&["--resume", &session, "--finish", "--output", "json", "-p"])?.json()?;
    completed(&finished)?;
    wait_for("the model to be told", || (world.model.requests().len() > before).then_some(()))?;
    ensure!(world.trace() == ["begun"], "the command ran again: {:?}", world.trace());
    let queued = world.records(&session, "prompt/queued")?;
    ensure!(queued.len() == 2, "a prompt was made up: {queued:?}");
    knows_the_number(world, &session, "resumed")?;
    Ok(())
}
