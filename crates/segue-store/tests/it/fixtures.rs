//! Logs of old formats, as they were written. They open for ever.

use std::fs;
use std::path::Path;

use segue_log::{Block, Event, Header, Parent, Time};
use segue_store::{JsonlStore, State, Store};
use segue_testkit::contract::{events, prompt};
use serde_json::{Value, json};

const ID: &str = "0193f5c0-7a00-7000-8000-000000000001";
const PARENT: &str = "0193f5c0-7a00-7000-8000-000000000000";

/// One record of each type of format 1, by type and data as a reader of the file sees them. Some have all fields, some
/// only those that must be there.
fn version_1() -> Vec<(&'static str, Value)> {
    let hash = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let usage = json!({"input": 5, "output": 7, "cacheRead": 1, "cacheWrite": 2});
    vec![
        (
            "prompt/queued",
            json!({"promptId": "p1", "content": text("hello"), "source": "print", "for": "turn"}),
        ),
        (
            "prompt/queued",
            json!({"promptId": "p2", "content": text(&"long ".repeat(8_000)), "source": "print", "for": "step"}),
        ),
        ("prompt/removed", json!({"promptId": "p2", "by": "person"})),
        (
            "session/config",
            json!({"agent": "segue", "model": "practice/practice", "permissions": "ask", "by": "flags"}),
        ),
        ("turn/start", json!({"turn": 1, "promptIds": ["p1"], "policy": "semantic"})),
        ("step/start", json!({"turn": 1, "step": 1})),
        (
            "request/header",
            json!({"turn": 1, "step": 1, "attempt": 1, "for": "step", "model": "practice/practice",
            "parameters": {"max": 1000}, "system": "Be brief.", "tools": [{"name": "write"}]}),
        ),
        ("message/partial", json!({"turn": 1, "step": 1, "attempt": 1, "content": text("I wi")})),
        (
            "message/assistant",
            json!({"turn": 1, "step": 1, "attempt": 1, "content": [
            {"type": "thinking", "text": "hm", "signature": "sig"},
            {"type": "text", "text": "I will."},
            {"type": "tool_request", "callId": "call_1", "providerId": "toolu_1", "tool": "write", "input": {"path": "a"}},
            {"type": "future_block", "x": 1},
        ], "usage": usage, "stop": "tool_use"}),
        ),
        (
            "permission/asked",
            json!({"turn": 1, "step": 1, "callId": "call_1", "tool": "write", "shown": "write a", "rule": "write(a)"}),
        ),
        (
            "permission/decided",
            json!({"turn": 1, "step": 1, "callId": "call_1", "outcome": "allow_once", "by": "person"}),
        ),
        (
            "tool/call",
            json!({"turn": 1, "step": 1, "callId": "call_1", "providerId": "toolu_1", "tool": "write",
            "input": {"path": "a"}, "effect": "write",
            "expect": {"path": "/w/a", "before": null, "after": hash},
            "origin": "dispatched", "host": "box", "boot": "b"}),
        ),
        (
            "tool/result",
            json!({"turn": 1, "step": 1, "callId": "call_1", "outcome": "error", "code": "TOOL_OUTCOME_UNKNOWN",
            "content": text("unknown"), "recovered": true}),
        ),
        (
            "call/settled",
            json!({"turn": 1, "step": 1, "callId": "call_1", "how": "done", "note": "it is there", "by": "person"}),
        ),
        ("plan", json!({"entries": [{"text": "one", "state": "pending"}]})),
        ("step/end", json!({"turn": 1, "step": 1})),
        (
            "turn/end",
            json!({"turn": 1, "reason": "failed", "code": "MODEL", "message": "no answer", "title": "Hello",
            "turns": 1, "usage": usage}),
        ),
        ("compaction", json!({"upTo": 17, "summary": "They said hello."})),
        (
            "agent/bound",
            json!({"agent": "claude", "version": "1", "agentSessionId": "s", "how": "new", "owes": "transcript"}),
        ),
        ("agent/resumed", json!({"strategy": "load", "outcome": "resumed", "reason": "asked"})),
        ("agent/update", json!({"update": {"sessionUpdate": "mode", "deep": [1, {"a": null}]}})),
        ("session/title", json!({"title": "Greetings", "by": "person"})),
        ("session/repaired", json!({"cutAt": 22, "files": ["log.torn-1"]})),
        ("session/damaged", json!({"line": "rubbish", "reason": "the checksum is wrong"})),
        ("future/type", json!({"anything": true})),
    ]
}

fn parsed((kind, data): (&str, Value)) -> Event {
    Event::parse(kind, &data.to_string()).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn every_type_of_format_1_but_the_unknown_one_is_known() {
    for (kind, data) in version_1() {
        let event = parsed((kind, data.clone()));
        assert_eq!(matches!(event, Event::Unknown { .. }), kind == "future/type", "{kind}");
        let again = event.data();
        for (field, value) in data.as_object().unwrap() {
            assert_eq!(again.get(field), Some(value), "{kind}: {field} says the same when written again");
        }
    }
}

#[tokio::test]
async fn a_log_of_format_1_is_read_and_continued() {
    let dir = tempfile::tempdir().unwrap();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1"), dir.path());
    let store = JsonlStore::open(dir.path());
    let header = Header {
        segue: 1,
        id: ID.parse().unwrap(),
        created: Time::from_millis(1_734_000_000_000),
        cwd: "/home/somebody/a project".into(),
        parent: Some(Parent { id: PARENT.parse().unwrap(), seq: 0 }),
    };
    let said: Vec<Event> = version_1().into_iter().map(parsed).collect();
    let read = store.read(header.id, 1).await.unwrap();
    assert_eq!((&read.header, &events(&read.records), read.damage), (&header, &said, None));
    let rows = store.list(&Default::default()).await.unwrap().rows;
    let row: Vec<_> = rows.iter().map(|row| (row.id, row.title.as_str(), row.state, row.turns)).collect();
    assert_eq!(row, vec![(header.id, "Greetings", State::Idle, 1)]);
    assert_eq!(store.check().await.unwrap().findings, vec![]);

    let opened = store.open(header.id, "test").await.unwrap();
    assert_eq!((events(&opened.records), opened.cuts, opened.torn_bytes), (said, vec![], 0));
    let long = &opened.records[1];
    assert_eq!(long.blobs.keys().collect::<Vec<_>>(), ["content"]);
    let Event::PromptQueued(data) = &long.event else { panic!("a prompt") };
    assert_eq!(data.content, vec![Block::text("long ".repeat(8_000))]);
    let next = opened.writer.append(prompt("on")).await.unwrap();
    assert_eq!(opened.writer.sync().await.unwrap(), next.seq);
}
