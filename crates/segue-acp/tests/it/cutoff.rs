//! Turns that are cut off by an agent's death, and the truth that the next prompt carries.

use segue_testkit::fake_agent::{Rule, Script, Step};
use serde_json::json;

use crate::talk::{KNOWS, QUESTION};
use crate::world::World;

/// A rule that holds for the first such prompt only.
fn once(contains: &str, steps: Vec<Step>) -> Rule {
    Rule { contains: contains.into(), times: 1, steps, ..Rule::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_may_die_at_any_point_of_a_turn() {
    let running = || Step::tool_call("c1", "make", "execute", "in_progress", json!({"command": "make"}));
    let die = || Step::Die { code: 3 };
    let ask = |allowed: Vec<Step>| Step::ask("c1", "make", "execute", json!({"command": "make"}), allowed);
    // The results that the log holds afterwards, and whether the next prompt carries a note.
    let cases: [(&str, Vec<Step>, &[&str]); 6] = [
        ("before anything", vec![die()], &[]),
        ("in the answer", vec![Step::say("half an answer "), die()], &[]),
        ("while a call runs", vec![running(), die()], &["TOOL_OUTCOME_UNKNOWN"]),
        ("after a call", vec![running(), Step::tool_update("c1", "completed", "made"), die()], &["ok"]),
        ("in a granted call", vec![ask(vec![die()])], &["TOOL_OUTCOME_UNKNOWN"]),
        ("slowly", vec![Step::DieIn { ms: 300, code: 3 }, running(), Step::Stall], &["TOOL_OUTCOME_UNKNOWN"]),
    ];
    for (name, steps, results) in cases {
        let world = World::new(Script::default().rule(once("work", steps)));

        let id = world.with_a_number().await;
        let told = world.say_in(id, "work").await;
        assert!(told.starts_with("failed AGENT_"), "{name}: {told}");
        assert_eq!(world.results(id).await, results, "{name}");
        assert_eq!(world.say_in(id, QUESTION).await, KNOWS, "{name}");
        let prompt = world.agent.prompts().pop().unwrap();
        if results.contains(&"TOOL_OUTCOME_UNKNOWN") {
            assert!(prompt.contains("<segue-note>") && prompt.contains("make"), "{name}: {prompt}");
        }
        assert_eq!(world.resumes(id).await.last().unwrap(), "session/load resumed", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_does_not_align_adds_nothing() {
    let world =
        World::new(Script::default().rule(once("work", vec![Step::say("half "), Step::Die { code: 3 }])));
    let id = world.with_a_number().await;
    world.say_in(id, "work").await;
    let chunk =
        |kind: &str, text: &str| json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
    let foreign = vec![
        chunk("user_message_chunk", "another conversation"),
        chunk("agent_message_chunk", "with another answer"),
        json!({"sessionUpdate": "unheard_of", "x": 1}),
    ];
    world.agent.rewrite(&Script { replay: Some(foreign), ..Script::default() });
    assert_eq!(world.say_in(id, QUESTION).await, KNOWS);
    let log = serde_json::to_string(&world.json(id).await).unwrap();
    assert!(!log.contains("another"), "{log}");
    let resumed = world.data(id, "agent/resumed").await.pop().unwrap();
    assert_eq!(resumed["outcome"], "resumed");
    let prompt = world.agent.prompts().pop().unwrap();
    assert!(prompt.contains("work") && prompt.contains("half"), "what it may lack is not told: {prompt}");
}
