//! Turns in which nothing breaks.

use anyhow::{Result, ensure};

use super::{QUESTION, completed, knows_the_number, says, wait_for_answer, with_a_number};
use crate::world::World;

/// A prompt is answered, and the next run of Segue goes on where it ended.
pub fn prompt(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    ensure!(world.agent_processes().is_empty(), "still there: {:?}", world.agent_processes());
    knows_the_number(world, &session, "resumed")?;
    let bound = world.records(&session, "agent/bound")?;
    ensure!(!bound.is_empty(), "nothing says which conversation of the agent it is");
    Ok(())
}

/// The commands about agents know it.
pub fn commands(world: &World) -> Result<()> {
    let name = world.agent.name;
    let listed = world.segue(&["agents", "list"])?.expect(0)?;
    ensure!(listed.stdout.contains(name), "{listed:?}");
    let checked = world.segue(&["agents", "check", name])?.expect(0)?;
    for way in world.agent.ways {
        ensure!(checked.stdout.contains(way), "no {way} in {checked:?}");
    }
    let session = with_a_number(world)?;
    let id = agent_session(world, &session)?;
    let sessions = world.segue(&["agents", "sessions", name])?.expect(0)?;
    ensure!(sessions.stdout.contains(&id), "no {id} in {sessions:?}");
    Ok(())
}

/// The agent's own id of a session.
pub fn agent_session(world: &World, session: &str) -> Result<String> {
    let bound = world.records(session, "agent/bound")?;
    let id = bound.last().and_then(|bound| bound["agentSessionId"].as_str());
    Ok(anyhow::Context::context(id, "the agent's id of the session")?.to_owned())
}

/// A command that the agent asks for runs if it may and does not if it may not, and the log says so.
pub fn tool(world: &World) -> Result<()> {
    let made = world.path("work").join("made");
    let prompt = world.agent.use_shell("echo hello > made && cat made");
    let answer = world.ask_new(&prompt, &["--permissions", "all"])?;
    completed(&answer)?;
    ensure!(made.exists(), "the command did not run");
    let session = answer["session"].as_str().unwrap_or_default();
    let results = world.records(session, "tool/result")?;
    ensure!(results.iter().any(|result| result["outcome"] == "ok"), "no good result: {results:?}");
    ensure!(!world.records(session, "tool/call")?.is_empty(), "no call in the log");

    std::fs::remove_file(&made)?;
    refused(world, session)
}

/// A command that needs permission is refused in a session.
fn refused(world: &World, session: &str) -> Result<()> {
    let prompt = world.agent.use_shell("echo again > made && cat made");
    world.ask(session, &prompt, &["--permissions", "read"])?;
    ensure!(!world.path("work").join("made").exists(), "the command ran without permission");
    let results = world.records(session, "tool/result")?;
    ensure!(
        results.last().is_some_and(|result| result["outcome"] == "error"),
        "no refusal in the log: {results:?}"
    );
    Ok(())
}

/// A resumed agent asks for permission as it did, in whatever mode it came back.
pub fn mode(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    refused(world, &session)
}

/// Ctrl-C ends the turn and the agent, and the session goes on.
pub fn cancel(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    let running = world.start(&["--resume", &session, "-p", "count slowly"])?;
    wait_for_answer(world, &session, "n3")?;
    running.interrupt()?;
    running.end()?.expect(130)?;
    let ends = world.records(&session, "turn/end")?;
    ensure!(ends.last().is_some_and(|end| end["reason"] == "cancelled"), "{ends:?}");
    knows_the_number(world, &session, "resumed")?;
    Ok(())
}

/// A second process is told that the session is in use, whatever the agent thinks of two.
pub fn two_processes(world: &World) -> Result<()> {
    let session = with_a_number(world)?;
    let first = world.start(&["--resume", &session, "-p", "count slowly"])?;
    wait_for_answer(world, &session, "n2")?;
    let before = world.model.requests().len();
    world.segue(&["--resume", &session, "-p", QUESTION])?.expect(4)?;
    ensure!(!world.told_since(before).contains(QUESTION), "the second process reached the model");
    first.interrupt()?;
    first.end()?.expect(130)?;
    let answer = knows_the_number(world, &session, "resumed")?;
    says(&answer, "4711")
}
