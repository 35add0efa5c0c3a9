//! What an agent does in a turn, and what of it is in the log.

use std::sync::Arc;

use segue_log::PermissionOutcome;
use segue_runtime::permission::Level;
use segue_testkit::fake_agent::{Script, Step};
use serde_json::{Value, json};

use crate::world::{Says, World};

#[tokio::test(flavor = "multi_thread")]
async fn noise_and_floods_are_borne() {
    let script = Script {
        start: vec![Step::Raw("Welcome to the agent!".into()), Step::Raw("{not json".into())],
        ..Script::default()
    };
    let script = script.prompt(
        "flood",
        [
            Step::Stderr { text: "x".repeat(1000), times: 1000 },
            Step::Raw("noise in the middle".into()),
            Step::Flood { chunks: 20_000, bytes: 100 },
            Step::say(" end"),
        ],
    );
    let world = World::new(script);
    let session = world.begin().await;
    assert!(world.say(&session, "flood").await.ends_with("x end"));
    session.close().await.unwrap();
    let messages = world.data(session.id(), "message/assistant").await;
    let blocks = messages.iter().flat_map(|message| message["content"].as_array().into_iter().flatten());
    let said: usize = blocks.filter_map(|block| block["text"].as_str()).map(str::len).sum();
    assert_eq!(said, 2_000_000 + " end".len());
    // As many records as there was time, not as there were chunks.
    let partial = world.data(session.id(), "message/partial").await.len();
    assert!(partial < 500, "{partial} partial records");
}

/// Permission options come in any order; the session-wide ones are ours to give and never chosen.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_for_once_and_the_world_follows_it() {
    let options = json!([
        {"optionId": "forever", "name": "Always", "kind": "allow_always"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
        {"optionId": "never", "name": "Never", "kind": "reject_always"},
        {"optionId": "go", "name": "Yes", "kind": "allow_once"},
    ]);
    for (level, answer, option) in [
        (Level::All, None, "go"),
        (Level::Ask, Some(PermissionOutcome::AllowOnce), "go"),
        (Level::Ask, None, "no"),
        (Level::Read, None, "no"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ran");
        let call = json!({"toolCallId": "c1", "title": "touch ran", "kind": "execute", "status": "pending",
            "rawInput": {"command": "touch ran"}});
        let ask = Step::Ask {
            call,
            options: options.clone(),
            allowed: vec![Step::append(&file, "ran"), Step::tool_update("c1", "completed", "done")],
            refused: vec![Step::tool_update("c1", "failed", "refused")],
        };
        let mut world = World::new(Script::default().prompt("go", [ask, Step::say("over")]));
        world.level = level;
        world.asker = answer.map(|outcome| Arc::new(Says(outcome)) as _);
        let session = world.begin().await;
        assert_eq!(world.say(&session, "go").await, "completed: over");
        session.close().await.unwrap();
        let answers: Vec<Value> =
            world.agent.received().into_iter().filter(|m| m.get("result").is_some()).collect();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0]["result"], json!({"outcome": {"outcome": "selected", "optionId": option}}));
        assert_eq!(file.exists(), option == "go");
        let results = world.results(session.id()).await;
        assert_eq!(results.len(), 1, "{results:?}");
        assert_eq!(results[0] == "ok", option == "go", "{results:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_messages_keep_their_order() {
    let script = Script::default().prompt(
        "work",
        [
            Step::Think("let me see".into()),
            Step::say("I look, "),
            Step::say("then I write."),
            Step::tool_call("r1", "Read a.txt", "read", "pending", json!({"path": "a.txt"})),
            Step::tool_update("r1", "in_progress", ""),
            Step::tool_update("r1", "completed", "contents"),
            Step::tool_call("w1", "Write b.txt", "edit", "in_progress", json!({"path": "b.txt"})),
            Step::tool_update("w1", "failed", "disk full"),
            Step::Update(json!({"sessionUpdate": "plan", "entries": [
                {"content": "try again", "priority": "high", "status": "pending"},
            ]})),
            Step::say("It is full."),
        ],
    );
    let world = World::new(script);
    let session = world.begin().await;
    assert_eq!(world.say(&session, "work").await, "completed: It is full.");
    session.close().await.unwrap();
    let kinds: Vec<String> = world
        .json(session.id())
        .await
        .iter()
        .filter_map(|record| record["type"].as_str().map(str::to_owned))
        .filter(|kind| ["message/assistant", "tool/call", "tool/result", "plan"].contains(&kind.as_str()))
        .collect();
    assert_eq!(
        kinds,
        [
            "message/assistant",
            "tool/call",
            "tool/result",
            "message/assistant",
            "tool/call",
            "tool/result",
            "plan",
            "message/assistant",
        ]
    );
    let calls = world.data(session.id(), "tool/call").await;
    let told: Vec<[&str; 2]> = calls
        .iter()
        .map(|call| [call["origin"].as_str().unwrap(), call["effect"].as_str().unwrap()])
        .collect();
    assert_eq!(told, [["reported", "read"], ["reported", "write"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_served_in_the_working_folder_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside.txt");
    std::fs::write(&outside, "secret").unwrap();
    let mut world = World::new(Script::default());
    let inside = world.work().join("inside.txt");
    let params =
        |path: &std::path::Path| json!({"sessionId": "$session", "path": path, "content": "written"});
    world.agent.rewrite(&Script::default().prompt(
        "files",
        [
            Step::request("fs/write_text_file", params(&inside)),
            Step::request("fs/read_text_file", params(&inside)),
            Step::request("fs/write_text_file", params(&outside)),
            Step::request("unheard/of", json!({})),
            Step::say("over"),
        ],
    ));
    world.level = Level::Edit;
    let session = world.begin().await;
    assert_eq!(world.say(&session, "files").await, "completed: over");
    session.close().await.unwrap();
    let answers: Vec<Value> =
        world.agent.received().into_iter().filter(|message| message.get("method").is_none()).collect();
    assert_eq!(answers.len(), 4, "{answers:#?}");
    assert!(answers[0].get("result").is_some(), "{}", answers[0]);
    assert_eq!(answers[1]["result"]["content"], "written");
    assert!(answers[2].get("error").is_some(), "{}", answers[2]);
    assert_eq!(answers[3]["error"]["code"], -32601);
    assert_eq!(std::fs::read_to_string(inside).unwrap(), "written");
    assert_eq!(std::fs::read_to_string(outside).unwrap(), "secret");
}
