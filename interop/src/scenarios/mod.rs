//! What is tried with each agent.

mod kills;
mod resumes;
mod turns;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::agents::Agent;
use crate::wait_for;
use crate::world::World;

/// One thing to try.
pub struct Scenario {
    /// Its name, in one word.
    pub name: &'static str,
    /// Whether there is anything to try with an agent.
    pub of: fn(&Agent) -> bool,
    /// Tries it.
    pub run: fn(&World) -> Result<()>,
}

const fn all(name: &'static str, run: fn(&World) -> Result<()>) -> Scenario {
    Scenario { name, of: |_| true, run }
}

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    all("prompt", turns::prompt),
    all("commands", turns::commands),
    all("tool", turns::tool),
    all("cancel", turns::cancel),
    all("two-processes", turns::two_processes),
    all("mode", turns::mode),
    all("kill-agent", kills::agent_in_a_command),
    all("kill-segue", kills::segue_in_a_command),
    all("kill-all", kills::all_in_a_command),
    all("kill-adapter", kills::adapter_in_a_command),
    all("kill-first-answer", kills::all_in_the_first_answer),
    all("kill-later-answer", kills::all_in_a_later_answer),
    all("kill-question", kills::all_at_an_open_question),
    all("finish", kills::finish_after_a_kill),
    Scenario {
        name: "by-resume",
        of: |agent| agent.ways.contains(&"resume"),
        run: |world| resumes::by(world, "resume"),
    },
    Scenario {
        name: "by-load",
        of: |agent| agent.ways.contains(&"load"),
        run: |world| resumes::by(world, "load"),
    },
    Scenario {
        name: "by-meta",
        of: |agent| agent.ways.contains(&"meta"),
        run: |world| resumes::by(world, "meta"),
    },
    all("wiped", resumes::wiped),
    Scenario { name: "half-wiped", of: |agent| agent.words.is_some(), run: resumes::half_wiped },
    all("fresh", resumes::wiped_without_rehydrating),
    all("no-fallback", resumes::wiped_without_fallback),
    all("adopt", resumes::adopted),
    all("carry-over", resumes::carried_over),
];

const REMEMBER: &str = "remember the number 4711";
const QUESTION: &str = "what number was it?";

/// A session in which a number was told. Gives its id.
fn with_a_number(world: &World) -> Result<String> {
    let answer = world.ask_new(REMEMBER, &[])?;
    completed(&answer)?;
    says(&answer, "Noted: 4711.")?;
    Ok(answer["session"].as_str().context("the session's id")?.to_owned())
}

/// Asks for the number in a session; it must be right and come from a conversation of this kind.
fn knows_the_number(world: &World, session: &str, outcome: &str) -> Result<Value> {
    let answer = world.ask(session, QUESTION, &[])?;
    completed(&answer)?;
    says(&answer, "The number is 4711.")?;
    went_on(&answer, outcome)?;
    Ok(answer)
}

fn completed(answer: &Value) -> Result<()> {
    ensure!(answer["status"] == "completed", "not completed: {answer}");
    Ok(())
}

/// Agents add warnings of their own to an answer: a part of it has to do.
fn says(answer: &Value, text: &str) -> Result<()> {
    let said = answer["text"].as_str().unwrap_or_default();
    ensure!(said.contains(text), "{text:?} expected in {answer}");
    Ok(())
}

fn went_on(answer: &Value, outcome: &str) -> Result<()> {
    ensure!(answer["resume"]["outcome"] == outcome, "{outcome} expected: {}", answer["resume"]);
    Ok(())
}

/// Waits until a session's log holds a text of the model's answer.
fn wait_for_answer(world: &World, session: &str, text: &str) -> Result<()> {
    let holds = || {
        let log = world.log(session).ok()?;
        let streamed = log.iter().filter(|record| record["type"] == "message/partial");
        streamed.map(|record| record["data"].to_string()).collect::<String>().contains(text).then_some(())
    };
    wait_for("the answer to come", holds)
}
