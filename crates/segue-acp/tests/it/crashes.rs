//! Turns that are cut off: the agent's end, what the log says of it, what the agent is told, what is left running.

use segue_log::EndReason;
use segue_testkit::fake_agent::{Keeps, Rule, Script, Step};
use serde_json::json;

use crate::world::{World, answer, ask, lives, until};

#[tokio::test(flavor = "multi_thread")]
async fn after_a_turn_that_was_cut_off_the_agent_is_told_the_truth() {
    let script = Script::resume_only().rule(once(
        "go",
        [
            Step::say("I begin"),
            Step::tool_call("c1", "Write", "execute", "in_progress", json!({"command": "make"})),
            Step::say("and then"),
            Step::Wait(300),
            Step::Die { code: 9 },
        ],
    ));
    let world = World::new(script);
    let session = world.begin().await;
    let outcome = ask(&session, "go").await;
    assert_eq!((outcome.end.reason, outcome.end.code.as_deref()), (EndReason::Failed, Some("AGENT_DIED")));
    let log = world.log(session.id()).await;
    let call = log.turn(1).unwrap().calls().next().unwrap();
    assert_eq!(call.result().unwrap().code.as_deref(), Some("TOOL_OUTCOME_UNKNOWN"));
    ask(&session, "and now?").await;
    session.close().await.unwrap();
    let prompt = world.agent.prompts().pop().unwrap();
    assert!(prompt.starts_with("<segue-note>"), "{prompt}");
    for told in [
        "Its prompt, which you may no longer have:\ngo",
        "and then",
        "bash",
        "make",
        "outcome of this call is unknown",
    ] {
        assert!(prompt.contains(told), "{told:?} in {prompt}");
    }
    assert!(prompt.ends_with("and now?"));
    ask(&world.reopen(session.id()).await, "again").await;
    assert_eq!(world.agent.prompts().pop().unwrap(), "again", "told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tail_that_the_agent_still_has_is_taken_over() {
    let whole = [
        Step::say("I begin, "),
        Step::Wait(400),
        Step::say("and go on."),
        Step::tool_call("c1", "Look", "read", "in_progress", json!({"path": "a"})),
    ];
    let script = Script::load_only().rule(once("go", whole.into_iter().chain([Step::Die { code: 9 }])));
    let world = World::new(script);
    let session = world.begin().await;
    ask(&session, "go").await;
    session.close().await.unwrap();
    // What the agent wrote down after its last word to us.
    let replay = json!([
        {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "go"}},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "I begin, and go on."}},
        {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Look", "kind": "read", "status": "completed",
         "content": [{"type": "content", "content": {"type": "text", "text": "the text"}}]},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "It says so."}},
    ]);
    let replay = replay.as_array().cloned();
    world.agent.rewrite(&Script { replay, ..Script::load_only() });
    let session = world.reopen(session.id()).await;
    ask(&session, "and now?").await;
    session.close().await.unwrap();
    let log = world.log(session.id()).await;
    let turn = log.turn(1).unwrap();
    let said: Vec<String> = turn.steps[0]
        .messages
        .iter()
        .map(|said| segue_log::text_of(&said.message().unwrap().content))
        .filter(|text| !text.is_empty())
        .collect();
    assert_eq!(said, ["I begin, and go on.", "It says so."]);
    let call = turn.calls().next().unwrap();
    assert_eq!((call.result().unwrap().code.as_deref(), call.results.len()), (None, 2));
    let prompt = world.agent.prompts().pop().unwrap();
    assert!(prompt.contains("it succeeded") && !prompt.contains("Its prompt"), "{prompt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_the_agent_lost_is_told_again() {
    // Some agents write a turn down when it ends: after a kill the prompt is gone, on a first turn the whole session.
    let script = Script { keeps: Keeps::AtTheEnd, ..Script::load_only() }
        .rule(once("the colour", [Step::say("Hm"), Step::Wait(300), Step::Die { code: 9 }]));
    let world = World::new(script.clone());
    let session = world.begin().await;
    answer(&session, "remember the number 7").await;
    ask(&session, "the colour is red").await;
    assert_eq!(answer(&session, "what number was it?").await, "The number is 7.");
    let prompt = world.agent.prompts().pop().unwrap();
    assert!(prompt.contains("which you may no longer have:\nthe colour is red"), "{prompt}");
    session.close().await.unwrap();

    let world = World::new(script);
    let session = world.begin().await;
    ask(&session, "the colour is red").await;
    ask(&session, "and now?").await;
    session.close().await.unwrap();
    assert!(world.agent.prompts().pop().unwrap().contains("the colour is red"), "rehydrated");
    assert!(world.records(session.id()).await.contains(&"agent/resumed rehydrate rehydrated".to_owned()));
}

/// Some agents call a call running and only then ask: the question that nobody answered says that it did not run.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_still_being_asked_about_was_not_started() {
    struct Never;
    #[async_trait::async_trait]
    impl segue_runtime::permission::Asker for Never {
        async fn ask(
            &self,
            _: &segue_runtime::permission::Question,
        ) -> Option<segue_runtime::permission::Answer> {
            std::future::pending().await
        }
    }
    let input = json!({"command": "make"});
    let mut world = World::new(Script::default().rule(once(
        "go",
        [
            Step::tool_call("c1", "Run", "execute", "in_progress", input.clone()),
            Step::DieIn { ms: 500, code: 9 },
            Step::ask("c1", "Run", "execute", input, []),
        ],
    )));
    world.level = segue_runtime::permission::Level::Ask;
    world.asker = Some(std::sync::Arc::new(Never));
    let session = world.begin().await;
    ask(&session, "go").await;
    session.close().await.unwrap();
    let log = world.log(session.id()).await;
    let call = log.turn(1).unwrap().calls().next().unwrap();
    assert_eq!(call.result().unwrap().code.as_deref(), Some("TOOL_NOT_STARTED"));
}

#[tokio::test(flavor = "multi_thread")]
async fn finish_takes_the_interrupted_work_up_again() {
    let script =
        Script::default().rule(once("go", [Step::say("half"), Step::Wait(300), Step::Die { code: 9 }]));
    let world = World::new(script);
    let session = world.begin().await;
    ask(&session, "go").await;
    session.wait_idle().await;
    let turn = session.finish().await.unwrap();
    session.wait_turn(turn).await.unwrap();
    session.close().await.unwrap();
    let prompt = world.agent.prompts().pop().unwrap();
    assert!(prompt.contains("Go on with the work of the turn that was cut off"), "{prompt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_tree_ends_also_grandchildren() {
    let mut world = World::new(Script::default().prompt("go", [Step::spawn(["sleep", "1000"])]));
    let line = format!("{} {}; :", world.agent.program().display(), world.agent.args().join(" "));
    world.config.command = "bash".into();
    world.config.args = vec!["-c".into(), format!("bash -c '{line}'; :")];
    world.config.env.insert("PATH".into(), std::env::var_os("PATH").unwrap());
    let session = world.begin().await;
    ask(&session, "go").await;
    let token = world.agent.record()[0]["env"]["SEGUE_AGENT_TOKEN"].as_str().unwrap().to_owned();
    assert!(token.starts_with(&format!("{}/", session.id())));
    assert!(carriers(&token).len() >= 3);
    session.close().await.unwrap();
    assert_eq!(carriers(&token), [] as [u32; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_host_left_is_ended_before_anything_is_resumed() {
    let world = World::new(Script::default());
    let session = world.begin().await;
    answer(&session, "remember the number 7").await;
    session.close().await.unwrap();
    // As a host leaves it that was killed: a note, and processes with its token that nobody waits for.
    let token = format!("{}/left", session.id());
    let mut left =
        std::process::Command::new("sleep").arg("1000").env("SEGUE_AGENT_TOKEN", &token).spawn().unwrap();
    let folder = world.path("data/agents").join(session.id().to_string());
    std::fs::create_dir_all(&folder).unwrap();
    let record = segue_tool::ProcessRecord::unstarted("SEGUE_AGENT_TOKEN", &token);
    record.store(&folder.join("left.json")).unwrap();
    let session = world.reopen(session.id()).await;
    until("ended", || left.try_wait().unwrap().is_some()).await;
    assert!(!folder.exists());
    assert_eq!(answer(&session, "what number was it?").await, "The number is 7.");
    let pid = *world.agent.pids().last().unwrap();
    session.close().await.unwrap();
    assert!(!lives(pid) && !folder.exists());
}

/// What happens on the first prompt that contains a text: later ones carry it in their notes.
fn once(contains: &str, steps: impl IntoIterator<Item = Step>) -> Rule {
    Rule { contains: contains.into(), times: 1, steps: Vec::from_iter(steps), ..Rule::default() }
}

/// The processes that carry a token.
fn carriers(token: &str) -> Vec<u32> {
    let mark = format!("SEGUE_AGENT_TOKEN={token}");
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            lives(*pid) && environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
        .collect()
}
