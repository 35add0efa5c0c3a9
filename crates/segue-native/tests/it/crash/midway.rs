//! Kills from outside, in the middle of something that waits: a model, a person, a tool.

use segue_log::{Event, text_of};
use segue_store::ReadLog;
use segue_testkit::{ModelServer, Reply};

use super::child::{Act, Asks};
use super::judge::GoOn;
use super::stage::Script;

/// Both wire formats, each with another way to go on.
const BOTH: [(bool, GoOn); 4] =
    [(true, GoOn::Finish), (true, GoOn::Prompt), (false, GoOn::Finish), (false, GoOn::Prompt)];

fn count(log: &ReadLog, kind: &str) -> usize {
    log.records.iter().filter(|record| record.event.kind() == kind).count()
}

/// The text of all partial messages.
fn streamed(log: &ReadLog) -> String {
    let partials = log.records.iter().filter_map(|record| match &record.event {
        Event::MessagePartial(data) => Some(text_of(&data.content)),
        _ => None,
    });
    partials.collect()
}

async fn with_replies(replies: impl IntoIterator<Item = Reply>) -> ModelServer {
    let server = ModelServer::start().await;
    server.script(replies);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_headers_of_an_answer() {
    for (anthropic, go_on) in BOTH {
        let script = Script { anthropic, ..Script::prompt("remember the number 42") };
        let server = with_replies([Reply::silent()]).await;
        script.killed_once(server, go_on, |_, server| server.requests().len() == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_mid_stream_the_text_is_kept_and_the_model_sees_it() {
    for (anthropic, go_on) in BOTH {
        let script = Script { anthropic, ..Script::prompt("remember the number 42") };
        let stalls = Reply::new().and_thinking("Let me see.").and_text("one two three").then_hang();
        let server = with_replies([stalls]).await;
        script.killed_once(server, go_on, |log, _| streamed(log) == "one two three").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_a_tool_request_that_then_is_none() {
    for (anthropic, go_on) in BOTH {
        let script = Script { anthropic, ..Script::prompt("remember the number 42") };
        let stalls =
            Reply::text("one two three").and_call("count", serde_json::json!({"line": "a"})).then_hang();
        let server = with_replies([stalls]).await;
        script
            .killed_once(server, go_on, |log, _| {
                streamed(log) == "one two three"
                    && log.records.iter().any(|record| record.event.data_json().contains("partial_request"))
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_two_attempts_the_last_that_streamed_counts() {
    for (anthropic, go_on) in BOTH {
        let script = Script { anthropic, ..Script::prompt("remember the number 42") };
        let replies = [Reply::text("one two").then_drop(), Reply::text("three").then_drop(), Reply::silent()];
        let server = with_replies(replies).await;
        script
            .killed_once(server, go_on, |log, server| {
                streamed(log) == "one twothree" && server.requests().len() == 3
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_person_is_asked_nothing_was_started() {
    for (anthropic, go_on) in BOTH {
        let text = "remember the number 42\nuse look {\"line\":\"a\"}\nuse count {\"line\":\"b\"}";
        let script = Script { anthropic, asks: Asks::Silence, ..Script::prompt(text) };
        let server = ModelServer::start().await;
        // The question waits, so the finished result before it is made durable by itself.
        script.killed_once(server, go_on, |log, _| count(log, "permission/asked") == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_two_parallel_results_the_first_is_kept() {
    for (anthropic, go_on) in BOTH {
        let text =
            "remember the number 42\nuse look {\"line\":\"a\",\"wait\":true}\nuse look {\"line\":\"b\"}";
        let script = Script { anthropic, ..Script::prompt(text) };
        let server = ModelServer::start().await;
        script.killed_once(server, go_on, |log, _| count(log, "tool/result") == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_with_fifty_results_there_none_is_called_lost() {
    let looks = (0..50).map(|n| format!("use look {{\"line\":\"{n}\"}}"));
    let last = "use look {\"line\":\"last\",\"wait\":true}".to_owned();
    let lines: Vec<String> =
        ["remember the number 42".to_owned()].into_iter().chain(looks).chain([last]).collect();
    let script = Script::prompt(&lines.join("\n"));
    let server = ModelServer::start().await;
    script.killed_once(server, GoOn::Finish, |log, _| count(log, "tool/result") == 50).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_command_runs_which_is_then_ended_and_told() {
    for (at, (anthropic, go_on)) in BOTH.into_iter().enumerate() {
        // No other command on the machine sleeps for so long.
        let sleep = format!("sleep {}.{at}", 1_000_000 + std::process::id());
        let text = format!("remember the number 42\nuse bash {{\"command\":\"echo begun; {sleep}\"}}");
        let script = Script { anthropic, ..Script::prompt(&text) };
        let server = ModelServer::start().await;
        script
            .killed_once(server, go_on, |log, _| {
                let calls = log.records.iter().any(|record| record.event.kind() == "tool/call");
                calls && is_running(&sleep)
            })
            .await;
        assert!(!is_running(&sleep));
    }
}

/// True if a process with exactly this command runs.
#[cfg(target_os = "linux")]
fn is_running(command: &str) -> bool {
    let wanted: Vec<u8> = command.split(' ').flat_map(|word| word.bytes().chain([0])).collect();
    std::fs::read_dir("/proc").unwrap().any(|entry| {
        std::fs::read(entry.unwrap().path().join("cmdline")).is_ok_and(|cmdline| cmdline == wanted)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_compaction_is_asked_for() {
    for (anthropic, go_on) in BOTH {
        let act = Act::Compact("remember the number 42".into());
        let script = Script { anthropic, ..Script::of(act) };
        let server = with_replies([Reply::text("Noted: 42."), Reply::text("a summary").then_hang()]).await;
        script.killed_once(server, go_on, |_, server| server.requests().len() == 2).await;
    }
}
