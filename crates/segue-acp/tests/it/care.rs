//! The agent's processes: what they get, and that they end.

use std::time::Duration;

use segue_log::EndReason;
use segue_testkit::fake_agent::{Rule, Script, Step};
use serde_json::json;

use crate::talk::{pid_in, prompt};
use crate::world::{World, lives, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_the_environment_of_its_configuration_and_no_other() {
    let mut world = World::new(Script::default());
    world.config.env.insert("FAKE_KEY".into(), "secret".into());
    let id = world.with_a_number().await;
    let record = world.agent.record();
    let mut names: Vec<&String> = record[0]["env"].as_object().unwrap().keys().collect();
    names.retain(|name| !name.starts_with("SEGUE_"));
    names.sort();
    assert_eq!(names, ["FAKE_KEY"]);
    assert_eq!(record[0]["cwd"], json!(world.work()));
    let log = serde_json::to_string(&world.json(id).await).unwrap();
    assert!(!log.contains("secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_tree_ends_with_the_session() {
    let mut world = World::new(Script::default());
    let pid = world.path("pid");
    let sleeper = format!("echo $$ > {}; exec sleep 1000", pid.display());
    world.agent.rewrite(
        &Script { ignores_eof: true, ..Script::default() }
            .prompt("start", [Step::spawn(["setsid", "sh", "-c", &sleeper]), Step::say("started")]),
    );
    // The command is a shell whose child is a shell whose child is the agent.
    let inner = world.path("inner");
    let script = world.agent.args()[0].clone();
    std::fs::write(&inner, format!("{} {script}\n:\n", world.agent.program().display())).unwrap();
    world.config.command = "/bin/bash".into();
    world.config.args = vec!["-c".into(), format!("bash {}; :", inner.display())];
    let session = world.begin().await;
    assert_eq!(world.say(&session, "start").await, "completed: started");
    let sleeper = pid_in(&pid).await;
    session.close().await.unwrap();
    for pid in world.agent.pids().into_iter().chain([sleeper]) {
        until("ended", || !lives(pid)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ignores_a_cancel_is_ended_in_time_and_resumed() {
    let script = Script { ignores_cancel: true, ..Script::default() };
    // Once: the note that the next prompt brings speaks of the first.
    let stalls = Rule {
        contains: "stall".into(),
        times: 1,
        steps: vec![Step::say("well "), Step::Stall],
        ..Rule::default()
    };
    let mut world = World::new(script.rule(stalls));
    world.config.cancel_timeout = Duration::from_millis(300);
    let session = world.begin().await;
    assert_eq!(world.say(&session, "remember the number 7").await, "completed: Noted: 7.");
    let accepted = session.prompt(prompt("stall")).await.unwrap();
    world.agent.wait_until("prompted", |agent| agent.prompts().len() == 2);
    session.cancel().await;
    let outcome = session.wait(&accepted.prompt_id).await.unwrap();
    assert_eq!(outcome.end.reason, EndReason::Cancelled, "{outcome:?}");
    assert_eq!(world.say(&session, "what number was it?").await, "completed: The number is 7.");
    assert_eq!(world.agent.pids().len(), 2);
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_obeys_a_cancel_lives_on() {
    let world = World::new(Script::default().prompt("stall", [Step::say("well "), Step::Stall]));
    let session = world.begin().await;
    let accepted = session.prompt(prompt("stall")).await.unwrap();
    world.agent.wait_until("prompted", |agent| agent.prompts().len() == 1);
    session.cancel().await;
    let outcome = session.wait(&accepted.prompt_id).await.unwrap();
    assert_eq!(crate::talk::told(&session, &outcome), "cancelled");
    assert_eq!(world.say(&session, "hello").await, "completed: You said: hello");
    assert_eq!(world.agent.pids().len(), 1);
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_agent_is_stopped_and_resumed_on_demand() {
    let mut world = World::new(Script::default());
    world.config.idle_timeout = Duration::from_millis(100);
    let session = world.begin().await;
    assert_eq!(world.say(&session, "remember the number 7").await, "completed: Noted: 7.");
    until("stopped", || !lives(world.agent.pids()[0])).await;
    assert_eq!(world.say(&session, "what number was it?").await, "completed: The number is 7.");
    assert_eq!(world.agent.pids().len(), 2);
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_not_there_is_told_with_its_name() {
    let mut world = World::new(Script::default());
    world.config.command = "/nowhere/agent".into();
    let session = world.begin().await;
    let told = world.say(&session, "hello").await;
    assert!(told.starts_with("failed AGENT_") && told.contains("/nowhere/agent"), "{told}");
    session.close().await.unwrap();
}
