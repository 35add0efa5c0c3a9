//! Kills at every step that a script takes: the steps are those of a first run that lives to its end. Where a record is
//! written, a kill within the write leaves half a line.

use super::child::{Act, Asks, Sign};
use super::stage::Script;

const FROM_THE_START: &str = "before create-dir data";

const FROM_THE_PROMPT: &str = "told session";

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_calls_may_be_killed_anywhere() {
    let text = "remember the number 42\nuse count {\"line\":\"a\"}\nuse count {\"line\":\"b\"}";
    let among = [
        "before create log.jsonl",
        "after write log.jsonl",
        "before publish session",
        "after sync-dir sessions",
        "told session",
        "before write log.jsonl prompt/queued",
        "within write log.jsonl prompt/queued",
        "before sync log.jsonl",
        "after sync log.jsonl",
        "before write synced",
        "told accepted",
        "after write log.jsonl turn/start",
        "after write log.jsonl step/start",
        "before write log.jsonl request/header",
        "after write log.jsonl request/header",
        "before write log.jsonl message/assistant",
        "after write log.jsonl message/assistant",
        "before write log.jsonl tool/call",
        "after write log.jsonl tool/call",
        "count before a",
        "count after a",
        "count before b",
        "count after b",
        "before write log.jsonl tool/result",
        "after write log.jsonl tool/result",
        "within write log.jsonl tool/result",
        "after write log.jsonl step/end",
        "before write log.jsonl turn/end",
        "after write log.jsonl turn/end",
        "told ended",
        "told idle",
        "told closed",
    ];
    Script::prompt(text).killed_at_every_step(FROM_THE_START, &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_asks_for_permission_may_be_killed_anywhere() {
    let text = "remember the number 42\nuse look {\"line\":\"a\"}\nuse count {\"line\":\"b\"}";
    let script = Script { asks: Asks::Yes, anthropic: false, ..Script::prompt(text) };
    let among = [
        "before write log.jsonl permission/asked",
        "after write log.jsonl permission/asked",
        "before write log.jsonl permission/decided",
        "after write log.jsonl permission/decided",
        "look after a",
    ];
    script.killed_at_every_step(FROM_THE_PROMPT, &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_stored_at_its_ends_only_may_be_killed_anywhere() {
    let text = "remember the number 42\nuse count {\"line\":\"a\"}\nuse count {\"line\":\"b\"}";
    let script = Script { by_turn: true, anthropic: false, ..Script::prompt(text) };
    script.killed_at_every_step(FROM_THE_PROMPT, &["after write log.jsonl tool/call"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_inside_a_call_may_be_killed_anywhere() {
    let text = "remember the number 42\nuse relay {\"tool\":\"count\",\"input\":{\"line\":\"a\"}}";
    let among = ["count before a", "count after a", "after write log.jsonl tool/result"];
    Script::prompt(text).killed_at_every_step("before write log.jsonl tool/call", &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_change_may_be_killed_anywhere_and_a_look_at_the_file_settles_it() {
    let text = "remember the number 42\nuse write {\"path\":\"note.txt\",\"content\":\"new\"}";
    Script::prompt(text).killed_at_every_step(FROM_THE_PROMPT, &["after write log.jsonl tool/call"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_too_large_for_a_line_may_be_killed_anywhere() {
    let text = format!("remember the number 42\n{}", "long ".repeat(9_000));
    let script = Script { anthropic: false, ..Script::prompt(&text) };
    let among =
        ["before create .unfinished", "after sync .unfinished", "after rename blob", "before sync-dir blobs"];
    script.killed_at_every_step(FROM_THE_PROMPT, &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_may_be_killed_anywhere() {
    let script = Script::of(Act::Compact("remember the number 42".into()));
    let among = ["before write log.jsonl compaction", "after write log.jsonl compaction", "told compacted"];
    script.killed_at_every_step("after write log.jsonl turn/end", &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_may_be_killed_between_its_turns() {
    let texts = ["remember the number 42", "use count {\"line\":\"a\"}", "use look {\"line\":\"b\"}"];
    for anthropic in [true, false] {
        let act = Act::Prompt(texts.map(str::to_owned).to_vec());
        let script = Script { anthropic, ..Script::of(act) };
        let signs = [
            ("told accepted", 2),
            ("told accepted", 3),
            ("after write log.jsonl turn/end", 1),
            ("before write log.jsonl turn/start", 2),
            ("after write log.jsonl turn/start", 2),
            ("count after a", 1),
            ("after write log.jsonl turn/end", 2),
            ("after write log.jsonl turn/start", 3),
            ("told ended", 2),
        ];
        script.sweep(signs.map(|(step, nth)| Sign::new(step, nth)).to_vec()).await;
    }
}
