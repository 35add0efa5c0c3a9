//! Killed twice in a row: the second time while the first crash is being repaired.

use std::sync::Arc;

use segue_log::Event;
use segue_testkit::{ModelServer, Reply};
use tempfile::TempDir;

use super::child::{Act, Sign};
use super::stage::Script;

/// What a killed process left is opened and finished by a process that is killed at every step of that.
async fn killed_again(first: &Script, sign: Sign, loses_its_end: bool, among: &[&str]) {
    let world = first.killed_at(sign).await;
    if loses_its_end {
        lose_the_end(&world);
    }
    killed_while_repairing(first, world, among).await;
}

async fn killed_while_repairing(first: &Script, world: TempDir, among: &[&str]) {
    let second = Script { act: Act::Resume, base: Some(Arc::new(world)), ..first.clone() };
    second.killed_at_every_step("before lock lock", among).await;
}

/// Damages the first line that no sync has confirmed, as a power failure may.
fn lose_the_end(world: &TempDir) {
    let sessions = world.path().join("world/data/sessions");
    let session = std::fs::read_dir(sessions).unwrap().next().unwrap().unwrap().path();
    let synced = std::fs::read_to_string(session.join("synced")).unwrap();
    let synced: usize = synced.get(..20).unwrap().parse().unwrap();
    let log = session.join("log.jsonl");
    let mut bytes = std::fs::read(&log).unwrap();
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::len);
    let start: usize = lines.take(1 + synced).sum();
    assert!(bytes.len() > start + 100, "there are records that no sync has confirmed");
    bytes[start + 50] ^= 1;
    std::fs::write(log, bytes).unwrap();
}

const TEXT: &str = "remember the number 42\nuse count {\"line\":\"a\"}\nuse count {\"line\":\"b\"}\nuse look {\"line\":\"c\"}";

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_may_be_killed_between_any_two_of_its_records() {
    let among = [
        "before write log.jsonl tool/result",
        "after write log.jsonl tool/result",
        "before write log.jsonl step/end",
        "before write log.jsonl turn/end",
        "after write log.jsonl turn/end",
        "told opened",
        "after write log.jsonl turn/start",
    ];
    killed_again(&Script::prompt(TEXT), Sign::new("count after a", 1), false, &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_end_may_be_cut_by_a_process_that_is_killed_at_it() {
    let among = [
        "before create .torn-unfinished",
        "after sync .torn-unfinished",
        "before rename log.torn-1",
        "after rename log.torn-1",
        "before truncate log.jsonl",
        "after truncate log.jsonl",
        "before write log.jsonl session/repaired",
        "after write log.jsonl session/repaired",
        "before write log.jsonl tool/result",
        "after write log.jsonl turn/end",
    ];
    let script = Script { anthropic: false, ..Script::prompt(TEXT) };
    killed_again(&script, Sign::new("after write log.jsonl tool/call", 2), true, &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_line_may_be_cut_by_a_process_that_is_killed_at_it() {
    let among =
        ["before truncate log.jsonl", "after truncate log.jsonl", "before write log.jsonl tool/result"];
    killed_again(&Script::prompt(TEXT), Sign::new("within write log.jsonl tool/result", 1), false, &among)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_cut_off_may_be_kept_by_a_process_that_is_killed_at_it() {
    let script = Script::prompt("remember the number 42");
    let server = ModelServer::start().await;
    server.push(Reply::text("one two three").then_hang());
    let has_partial = |record: &Arc<segue_log::Record>| matches!(record.event, Event::MessagePartial(_));
    let (world, _) = script.killed_when(&server, |log, _| log.records.iter().any(has_partial)).await;
    let among = ["before write log.jsonl message/assistant", "within write log.jsonl message/assistant"];
    killed_while_repairing(&script, world, &among).await;
}
