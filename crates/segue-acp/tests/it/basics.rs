//! One agent, one process: what it says and does, and how that stands in the log.

use std::sync::Arc;

use segue_log::{Effect, EndReason, Origin, PermissionOutcome};
use segue_runtime::permission::Level;
use segue_testkit::fake_agent::{Answer, Script, Step};
use serde_json::{Value, json};

use crate::world::{Says, World, answer, ask, lives, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_one_step_and_its_binding_is_on_disk_before_the_prompt() {
    let script = Script::default().prompt(
        "work",
        [
            Step::Think("hm".into()),
            Step::say("First "),
            Step::say("a look."),
            Step::tool_call("c1", "Read a", "read", "in_progress", json!({"path": "a"})),
            Step::tool_update("c1", "completed", "the text"),
            Step::say("Done."),
        ],
    );
    let world = World::new(script);
    let session = world.begin().await;
    assert_eq!(answer(&session, "work").await, "Done.");
    session.close().await.unwrap();
    assert_eq!(
        world.records(session.id()).await,
        [
            "session/config",
            "prompt/queued",
            "turn/start",
            "agent/bound session/new",
            "step/start",
            "agent/update tool_call",
            "message/assistant",
            "tool/call",
            "tool/result ok",
            "message/assistant",
            "step/end",
            "turn/end completed",
        ]
    );
    let log = world.log(session.id()).await;
    let call = log.turn(1).unwrap().calls().next().unwrap();
    let entered = call.tool_call().unwrap();
    assert_eq!((entered.origin, entered.effect), (Origin::Reported, Effect::Read));
    assert_eq!((call.tool.as_str(), call.provider_id.as_str()), ("read", "c1"));
    assert!(log.turn(1).unwrap().hosted);
    assert_eq!(world.agent.methods(), ["initialize", "session/new", "session/prompt"]);
    assert_eq!(world.agent.params_of("session/new"), [json!({"cwd": world.work(), "mcpServers": []})]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_remembers_and_is_started_once() {
    let world = World::new(Script::default());
    let session = world.begin().await;
    answer(&session, "remember the number 41").await;
    assert_eq!(answer(&session, "what number was it?").await, "The number is 41.");
    let pids = world.agent.pids();
    assert_eq!(pids.len(), 1);
    session.close().await.unwrap();
    assert!(!lives(pids[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_is_kept_and_is_no_error() {
    let unknown = json!({"sessionUpdate": "brand_new", "field": {"a": [1]}});
    let chunk = json!({
        "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}, "_meta": {"x": 1},
    });
    let script = Script::default().rule(segue_testkit::fake_agent::Rule {
        steps: vec![
            Step::Raw("not JSON at all".into()),
            Step::Update(unknown.clone()),
            Step::Update(chunk.clone()),
            Step::Notify { method: "_vendor/thing".into(), params: json!({"a": 1}) },
        ],
        with: segue_testkit::fake_agent::With::Result(json!({"stopReason": "brand_new"})),
        ..Default::default()
    });
    let world = World::new(script);
    let session = world.begin().await;
    assert_eq!(answer(&session, "go").await, "hi");
    session.close().await.unwrap();
    let kept: Vec<Value> = world
        .store()
        .read(session.id(), 1)
        .await
        .unwrap()
        .records
        .iter()
        .filter(|record| record.event.kind() == "agent/update")
        .map(|record| record.event.data()["update"].clone())
        .collect();
    assert_eq!(
        kept,
        [
            unknown,
            chunk,
            json!({"method": "_vendor/thing", "params": {"a": 1}}),
            json!({"response": {"stopReason": "brand_new"}}),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_once_and_recorded_before_they_are() {
    let touched = |world: &World| std::fs::read_to_string(world.path("touched")).unwrap_or_default();
    for (level, asker, expected, result) in [
        (Level::All, None, "ran\n", "tool/result ok"),
        (Level::Ask, Some(PermissionOutcome::AllowSession), "ran\n", "tool/result ok"),
        (Level::Ask, Some(PermissionOutcome::Deny), "", "tool/result PERMISSION_DENIED"),
        (Level::Ask, None, "", "tool/result PERMISSION_DENIED"),
        (Level::Read, Some(PermissionOutcome::AllowOnce), "", "tool/result PERMISSION_DENIED"),
    ] {
        let mut world = World::new(Script::default());
        let run = [Step::append(world.path("touched"), "ran"), Step::tool_update("c1", "completed", "ok")];
        let ask_first = Step::ask("c1", "Run it", "execute", json!({"command": "touch x"}), run);
        world.agent.rewrite(&Script::default().prompt("go", [ask_first]));
        world.level = level;
        world.asker = asker.map(|outcome| Arc::new(Says(outcome)) as Arc<_>);
        let session = world.begin().await;
        ask(&session, "go").await;
        session.close().await.unwrap();
        assert_eq!(touched(&world), expected);
        let records = world.records(session.id()).await;
        assert_eq!(
            records.iter().filter(|kind| kind.starts_with("tool/result")).collect::<Vec<_>>(),
            [result]
        );
        let chosen: Vec<Value> = world
            .agent
            .received()
            .into_iter()
            .filter_map(|message| message["result"]["outcome"]["optionId"].as_str().map(|id| json!(id)))
            .collect();
        assert_eq!(chosen, [if expected.is_empty() { json!("no") } else { json!("yes") }]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_turn_ends_in_order_or_the_agent_is_ended() {
    for ignores_cancel in [false, true] {
        let script =
            Script { ignores_cancel, ..Script::default() }.prompt("stall", [Step::say("so"), Step::Stall]);
        let world = World::new(script);
        let session = world.begin().await;
        let running = session.clone();
        let turn = tokio::spawn(async move { ask(&running, "stall").await });
        let agent = world.agent.clone();
        until("prompted", || agent.methods().contains(&"session/prompt".to_owned())).await;
        session.cancel().await;
        let outcome = turn.await.unwrap();
        assert_eq!(outcome.end.reason, EndReason::Cancelled);
        let pids = world.agent.pids();
        assert_eq!(lives(pids[0]), !ignores_cancel, "ended only if it would not stop");
        assert_eq!(answer(&session, "remember the number 5").await, "Noted: 5.");
        assert_eq!(world.agent.pids().len(), if ignores_cancel { 2 } else { 1 });
        session.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_login_is_told_with_the_agents_own_instructions() {
    let script = Script {
        login: Some("key".into()),
        auth_methods: json!([{"id": "key", "name": "API key", "description": "Set FAKE_KEY"}]),
        ..Script::default()
    };
    let mut world = World::new(script);
    let session = world.begin().await;
    let outcome = ask(&session, "hello").await;
    assert_eq!(outcome.end.code.as_deref(), Some("AGENT_LOGIN"));
    assert!(outcome.end.message.unwrap().contains("API key (key): Set FAKE_KEY"));
    session.close().await.unwrap();
    world.config.auth = Some("key".into());
    let session = world.reopen(session.id()).await;
    assert_eq!(answer(&session, "remember the number 3").await, "Noted: 3.");
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_start_says_so_with_its_last_words() {
    let script = Script {
        start: vec![Step::Stderr { text: "no licence\n".into(), times: 1 }, Step::Die { code: 3 }],
        ..Script::default()
    };
    let mut world = World::new(script);
    let session = world.begin().await;
    let outcome = ask(&session, "hello").await;
    let message = outcome.end.message.unwrap();
    assert!(message.contains("exit status: 3") && message.contains("no licence"), "{message}");
    session.close().await.unwrap();
    world.config.command = world.path("not-there");
    let session = world.begin().await;
    let outcome = ask(&session, "hello").await;
    assert_eq!(outcome.end.code.as_deref(), Some("AGENT_NOT_INSTALLED"));
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_served_within_the_permissions() {
    let mut world = World::new(Script::default());
    let inside = world.work().join("in.txt");
    let outside = world.path("out.txt");
    std::fs::write(&inside, "one\ntwo\nthree\n").unwrap();
    let request = |method: &str, params: Value| Step::request(method, params);
    let script = Script::default().prompt(
        "go",
        [
            request(
                "fs/read_text_file",
                json!({"sessionId": "$session", "path": inside, "line": 2, "limit": 1}),
            ),
            request("fs/write_text_file", json!({"sessionId": "$session", "path": inside, "content": "new"})),
            request(
                "fs/write_text_file",
                json!({"sessionId": "$session", "path": outside, "content": "new"}),
            ),
        ],
    );
    world.agent.rewrite(&script);
    world.level = Level::Edit;
    let session = world.begin().await;
    ask(&session, "go").await;
    session.close().await.unwrap();
    let answers: Vec<Value> =
        world.agent.received().into_iter().filter(|message| message.get("method").is_none()).collect();
    assert_eq!(answers[0]["result"], json!({"content": "two\n"}));
    assert_eq!(answers[1]["result"], json!({}));
    assert_eq!(answers[2]["error"]["code"], -32603);
    assert_eq!(std::fs::read_to_string(&inside).unwrap(), "new");
    assert!(!outside.exists());
    let log = world.log(session.id()).await;
    let origins: Vec<_> =
        log.turn(1).unwrap().calls().map(|call| call.tool_call().map(|data| data.origin)).collect();
    assert_eq!(origins, [Some(Origin::Dispatched), None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_agent_are_passed_on_as_they_are() {
    let world = World::new(Script::default());
    let session = world.begin().await;
    ask(&session, "//compact now").await;
    session.close().await.unwrap();
    assert_eq!(world.agent.prompts(), ["/compact now"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_taken_and_a_failing_prompt_is_told() {
    let flood = Step::Flood { chunks: 3_000, bytes: 1_000 };
    let script = Script::default().prompt("flood", [flood]).rule(segue_testkit::fake_agent::Rule {
        contains: "fail".into(),
        with: Answer::error(-32603, "Internal error", json!({"details": "the disk is full"})).with,
        ..Default::default()
    });
    let world = World::new(script);
    let session = world.begin().await;
    let outcome = ask(&session, "flood").await;
    assert_eq!(outcome.end.reason, EndReason::Completed);
    let log = world.log(session.id()).await;
    let said = log.turn(1).unwrap().steps[0].messages.iter();
    let length: usize = said.map(|said| segue_log::text_of(&said.message().unwrap().content).len()).sum();
    assert_eq!(length, 3_000_000);
    let outcome = ask(&session, "fail").await;
    assert_eq!(outcome.end.code.as_deref(), Some("AGENT_FAILED"));
    assert!(outcome.end.message.unwrap().contains("the disk is full"));
    session.close().await.unwrap();
}
