//! The ways back into a conversation, and what is done when there is none.

use anyhow::{Context, Result, ensure};

use super::turns::agent_session;
use super::{QUESTION, completed, knows_the_number, says, went_on, with_a_number};
use crate::agents;
use crate::world::World;

/// By one way alone.
pub fn by(world: &World, way: &str) -> Result<()> {
    world.configure(&format!("resume_by = \"{way}\"\n"))?;
    let session = with_a_number(world)?;
    let before = world.model.requests().len();
    let first = knows_the_number(world, &session, "resumed")?;
    // The agent has the past, not our transcript.
    let told = world.told_since(before);
    ensure!(!told.contains("Noted: 4711."), "resumed by being told: {first}\n{told}");
    knows_the_number(world, &session, "resumed")?;
    Ok(())
}

/// The agent has lost its conversations: a new one is told the past, once.
pub fn wiped(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    world.wipe(world.agent.state)?;
    knows_the_number(world, &session, "rehydrated")?;
    knows_the_number(world, &session, "resumed")?;
    let queued = world.records(&session, "prompt/queued")?;
    ensure!(queued.len() == 3, "the transcript is in the log as a prompt: {queued:?}");
    Ok(())
}

/// It has lost what was said, and finds out only when it is prompted.
pub fn half_wiped(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    world.wipe(world.agent.words.context("such a part")?)?;
    knows_the_number(world, &session, "rehydrated").map(drop)
}

/// The same where the new one is to be told nothing: the person is.
pub fn wiped_without_rehydrating(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    world.wipe(world.agent.state)?;
    world.configure("rehydrate = false\n")?;
    let answer = world.ask(&session, QUESTION, &[])?;
    completed(&answer)?;
    says(&answer, "I know no number.")?;
    went_on(&answer, "fresh")
}

/// The same where no other conversation may be begun: an error, and the session stays as it was.
pub fn wiped_without_fallback(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    world.wipe(world.agent.state)?;
    world.configure("enable_fallback = false\n")?;
    let before = world.model.requests().len();
    world.segue(&["--resume", &session, "-p", QUESTION])?.expect(1)?;
    ensure!(!world.told_since(before).contains(QUESTION), "the model was asked all the same");
    world.configure("")?;
    knows_the_number(world, &session, "rehydrated")?;
    Ok(())
}

/// A conversation that the agent had before is made a session.
pub fn adopted(world: &World) -> Result<()> {
    let elsewhere = with_a_number(world)?;
    let theirs = agent_session(world, &elsewhere)?;
    let store = format!("jsonl:{}", world.path("segue").join("other").display());
    let name = format!("{}:{theirs}", world.agent.name);
    let arguments = ["--store", &store, "--resume", &name, "--output", "json", "-p", QUESTION];
    let answer = world.segue(&arguments)?.json()?;
    completed(&answer)?;
    says(&answer, "The number is 4711.")?;
    let session = answer["session"].as_str().context("the session's id")?;
    let shown = world.segue(&["--store", &store, "sessions", "show", session])?.expect(0)?;
    ensure!(shown.stdout.contains("remember the number 4711"), "the past is not shown: {shown:?}");
    Ok(())
}

/// The session goes on with another agent.
pub fn carried_over(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    let at = agents::ALL.iter().position(|agent| agent.name == world.agent.name).context("the agent")?;
    let other = agents::ALL.iter().cycle().nth(at + 1).context("another agent")?;
    let answer = world.ask(&session, QUESTION, &["--agent", other.name])?;
    completed(&answer)?;
    says(&answer, "The number is 4711.")?;
    went_on(&answer, "rehydrated")?;
    ensure!(answer["agent"] == other.name, "it is not {}: {answer}", other.name);
    let again = knows_the_number(world, &session, "resumed")?;
    ensure!(again["agent"] == other.name, "it went back to {}", again["agent"]);
    Ok(())
}
