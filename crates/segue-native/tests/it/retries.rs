//! Model requests that fail, and answers that are not what one hopes for, over both wire formats.

use std::time::{Duration, Instant};

use segue_log::*;
use segue_model::{Api, ProviderConfig, Secret, connect};
use segue_native::RetryPolicy;
use segue_runtime::{Session, Sessions, Update};
use segue_testkit::{Reply, Wire};
use serde_json::json;

use crate::loop_story::*;
use crate::world::*;

const KEY: &str = "sk-very-secret-0123";

/// Sessions whose model gives up waiting soon and has a key.
fn impatient(world: &World, retry: RetryPolicy) -> Sessions {
    let (provider, api) = match world.place.wire {
        Wire::Anthropic => ("anthropic", Api::Anthropic),
        Wire::OpenAi => ("openai", Api::OpenAi),
        Wire::Responses => unreachable!("only hosted agents speak it"),
    };
    let config = ProviderConfig {
        key: Some(Secret::new(KEY)),
        key_variable: Some("TEST_API_KEY".into()),
        idle_timeout: Duration::from_millis(400),
        ..ProviderConfig::new(provider, api, world.server.url())
    };
    let model = connect(&config, "test", Some(200_000)).unwrap();
    world.sessions_with(Parts { model: Some(model), retry, ..Parts::default() })
}

fn quick() -> RetryPolicy {
    RetryPolicy { attempts: 3, base: Duration::from_millis(2), longest: Duration::from_millis(50) }
}

/// The attempts that stand in the log, and what became of the turn.
fn attempts(log: &segue_store::ReadLog) -> Vec<u64> {
    let header = |record: &std::sync::Arc<Record>| match &record.event {
        Event::RequestHeader(data) if data.purpose == RequestFor::Step && data.turn == Some(1) => {
            Some(data.attempt)
        }
        _ => None,
    };
    log.records.iter().filter_map(header).collect()
}

/// Runs a first turn on these replies, then one more; gives the first one's end and what the second one sent.
async fn two_turns(world: &World, session: &Session, replies: Vec<Reply>) -> (TurnEnd, Vec<String>) {
    world.server.script(replies);
    let outcome = run(session, says("hello")).await;
    assert_eq!(outcome.not_stored, None);
    let conversation = world.conversation(session.id()).await;
    is_truthful(&conversation);
    assert_eq!(run(session, says("again")).await.reason(), EndReason::Completed);
    assert_eq!(world.server.violations(), Vec::<String>::new());
    (outcome.end, last_sent(&world.server))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_pass_is_tried_again_and_each_attempt_recorded() {
    let refusal = |status, kind: &str| Reply::refusal(status, kind, "not now");
    let whole = || Reply::text("whole");
    let garbage = "event: x\ndata: {nonsense\n\n";
    for (what, replies, tried, code, next) in [
        (
            "rate limit",
            vec![refusal(429, "rate_limit_error").header("retry-after", "0"), whole()],
            2,
            None,
            "whole",
        ),
        (
            "failing",
            vec![refusal(500, "api_error"), refusal(529, "overloaded_error"), whole()],
            3,
            None,
            "whole",
        ),
        (
            "failing on",
            vec![refusal(500, "a"), refusal(503, "b"), refusal(500, "c")],
            3,
            Some("MODEL_FAILED"),
            "",
        ),
        (
            "too long a wait",
            vec![refusal(429, "x").header("retry-after", "3600")],
            1,
            Some("MODEL_RATE_LIMITED"),
            "",
        ),
        ("silent", vec![Reply::silent(), whole()], 2, None, "whole"),
        ("silent in mid-stream", vec![Reply::text("half").then_hang(), whole()], 2, None, "whole"),
        ("dropped before", vec![Reply::dropped(), whole()], 2, None, "whole"),
        ("dropped in mid-stream", vec![Reply::text("half").then_drop(), whole()], 2, None, "whole"),
        ("ended without a stop", vec![Reply::text("half").then_end(), whole()], 2, None, "whole"),
        ("a web page", vec![Reply::body("<html>hello</html>"), whole()], 2, None, "whole"),
        ("half a JSON", vec![Reply::body("{\"a\":"), whole()], 2, None, "whole"),
        (
            "garbage in the stream",
            vec![Reply::text("half").and_raw(garbage).then_end(), whole()],
            2,
            None,
            "whole",
        ),
        (
            "the last that streamed counts",
            vec![Reply::text("one").then_drop(), Reply::text("two").then_drop(), refusal(500, "x")],
            3,
            Some("MODEL_FAILED"),
            "two",
        ),
        (
            "a request that is wrong",
            vec![refusal(400, "invalid_request_error")],
            1,
            Some("MODEL_REQUEST_REJECTED"),
            "",
        ),
    ] {
        for wire in BOTH {
            let at = format!("{what}, {wire:?}");
            let world = World::new(wire);
            let sessions = impatient(&world, quick());
            let session = world.place.create(&sessions).await;
            let (end, sent) = two_turns(&world, &session, replies.clone()).await;
            let reason = if code.is_some() { EndReason::Failed } else { EndReason::Completed };
            assert_eq!((end.reason, end.code.as_deref()), (reason, code), "{at}: {:?}", end.message);
            assert_eq!(world.server.bodies().len(), tried + 1, "{at}");
            let log = world.log(session.id()).await;
            assert_eq!(attempts(&log), (1..=tried as u64).collect::<Vec<_>>(), "{at}");
            let expected = match next {
                "" => vec!["user: hello | again".to_owned()],
                said => vec!["user: hello".into(), format!("assistant: {said}"), "user: again".into()],
            };
            assert_eq!(sent, expected, "{at}");
            let messages: Vec<_> = fold(&log).turns()[0].steps[0]
                .messages
                .iter()
                .filter_map(|said| said.message().map(|message| (message.attempt, message.interrupted)))
                .collect();
            let expected = match (next, code) {
                ("", _) => vec![],
                (_, None) => vec![(tried as u64, false)],
                (_, Some(_)) => vec![(2, true)],
            };
            assert_eq!(messages, expected, "{at}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_that_a_provider_asks_for_is_honoured() {
    let world = World::new(Wire::Anthropic);
    let sessions = impatient(&world, RetryPolicy { longest: Duration::from_secs(5), ..quick() });
    let session = world.place.create(&sessions).await;
    world.server.push(Reply::refusal(429, "rate_limit_error", "slow down").header("retry-after", "1"));
    let since = Instant::now();
    assert_eq!(run(&session, says("hello")).await.reason(), EndReason::Completed);
    assert!(since.elapsed() >= Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_key_is_said_once_with_its_variable_and_never_shown() {
    for wire in BOTH {
        let world = World::new(wire);
        let sessions = impatient(&world, quick());
        let session = world.place.create(&sessions).await;
        let mut subscription = session.subscribe(1);
        world.server.push(Reply::refusal(401, "authentication_error", &format!("invalid key {KEY}")));
        let outcome = run(&session, says("hello")).await;
        assert_eq!(outcome.end.code.as_deref(), Some("MODEL_KEY_REFUSED"));
        let message = outcome.end.message.unwrap();
        assert_eq!(message.matches("TEST_API_KEY").count(), 1, "{message}");
        assert_eq!(world.server.bodies().len(), 1);
        session.close().await.unwrap();
        while let Some(update) = within(subscription.next()).await {
            assert!(!matches!(update, Update::Notice { .. }), "it is said once: {update:?}");
        }
        let text = std::fs::read_to_string(world.place.log_file(session.id())).unwrap();
        assert!(!text.contains(KEY) && !message.contains(KEY));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_cut_short_empty_or_odd_end_the_turn_and_the_next_request_is_valid() {
    let look = || Reply::new().and_call("look", json!({"line": "a"}));
    let looked = ["assistant: look{\"line\":\"a\"}", "user: =saw a | again"];
    for (what, replies, reason, then) in [
        (
            "too long",
            vec![Reply::text("half").max_tokens()],
            EndReason::MaxTokens,
            vec!["assistant: half", "user: again"],
        ),
        (
            "too long in a call",
            vec![Reply::text("half").and_call("count", json!({"line": "a"})).max_tokens()],
            EndReason::MaxTokens,
            vec!["assistant: half", "user: again"],
        ),
        (
            "too long in thought",
            vec![Reply::new().and_thinking("hm").max_tokens()],
            EndReason::MaxTokens,
            vec!["user: hello | again"],
        ),
        (
            "refused",
            vec![Reply::new().and_refusal("I will not.")],
            EndReason::Refused,
            vec!["assistant: I will not.", "user: again"],
        ),
        ("empty", vec![Reply::new()], EndReason::Completed, vec!["user: hello | again"]),
        ("white space", vec![Reply::text(" \n")], EndReason::Completed, vec!["user: hello | again"]),
        ("empty after a call", vec![look(), Reply::new()], EndReason::Completed, looked.to_vec()),
        (
            "an odd stop",
            vec![Reply::text("x").stop("weird")],
            EndReason::Completed,
            vec!["assistant: x", "user: again"],
        ),
        (
            "an odd stop with a call",
            vec![look().stop("weird"), Reply::new()],
            EndReason::Completed,
            looked.to_vec(),
        ),
        (
            "an end with a call",
            vec![look().stop("stop"), Reply::new()],
            EndReason::Completed,
            looked.to_vec(),
        ),
    ] {
        for wire in BOTH {
            let world = World::new(wire);
            let sessions = impatient(&world, quick());
            let session = world.place.create(&sessions).await;
            let (end, sent) = two_turns(&world, &session, replies.clone()).await;
            assert_eq!(end.reason, reason, "{what}, {wire:?}");
            let first = if then.len() > 1 { vec!["user: hello"] } else { vec![] };
            assert_eq!(sent, [first, then.clone()].concat(), "{what}, {wire:?}");
            let looks = usize::from(then.iter().any(|said| said.contains("look")));
            assert_eq!(world.ran().len(), looks, "{what}, {wire:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_with_bad_ids_and_bad_arguments_are_answered_in_order() {
    for wire in BOTH {
        let world = World::new(wire);
        let sessions = world.sessions();
        let session = world.place.create(&sessions).await;
        let reply = Reply::new()
            .and_raw_call("same", "look", "{\"line\":\"1\"}")
            .and_raw_call("same", "look", "{\"line\":\"2\"}")
            .and_raw_call("", "look", "{\"line\":\"3\"}")
            .and_raw_call("b c", "look", "[1]")
            .and_raw_call("half", "look", "{\"line\":")
            .and_raw_call("none", "nonsense", "{}");
        world.server.script([reply, Reply::text("done")]);
        assert_eq!(run(&session, says("hello")).await.reason(), EndReason::Completed);
        assert_eq!(world.server.violations(), Vec::<String>::new());
        let conversation = world.conversation(session.id()).await;
        let codes: Vec<_> = conversation.turns()[0]
            .calls()
            .map(|call| call.result().and_then(|result| result.code.clone()).unwrap_or("ok".into()))
            .collect();
        let (bad, unknown) = (code::INVALID_INPUT, code::UNKNOWN_TOOL);
        assert_eq!(codes, ["ok", "ok", "ok", bad, bad, unknown], "{wire:?}");
        let results = last_sent(&world.server).pop().unwrap();
        assert!(results.starts_with("user: =saw 1 | =saw 2 | =saw 3 | ="), "{results}");
        let mut ran = world.ran();
        ran.sort();
        assert_eq!(ran, ["1", "2", "3"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_uses_up_its_steps_says_so_and_can_be_finished() {
    let world = World::new(Wire::OpenAi);
    let sessions = world.sessions_with(Parts { max_steps: 2, ..Parts::default() });
    let session = world.place.create(&sessions).await;
    world
        .server
        .script([Reply::call("count", json!({"line": "1"})), Reply::call("count", json!({"line": "2"}))]);
    let outcome = run(&session, says("hello")).await;
    assert_eq!(outcome.reason(), EndReason::MaxSteps);
    assert_eq!(world.ran(), ["1", "2"]);
    let outcome = finish(&session).await;
    assert_eq!((outcome.turn, outcome.reason()), (2, EndReason::Completed));
    assert_eq!(last_sent(&world.server).last().unwrap(), "user: =counted 2");
    assert_eq!(world.server.violations(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_summed_over_the_steps_of_a_turn() {
    for (wire, cache_write) in [(Wire::Anthropic, 7), (Wire::OpenAi, 0)] {
        let world = World::new(wire);
        let sessions = world.sessions();
        let session = world.place.create(&sessions).await;
        world.server.script([
            Reply::call("count", json!({"line": "1"})).usage(100, 10, 0, 7),
            Reply::text("done").usage(20, 5, 100, 0),
        ]);
        let outcome = run(&session, says("hello")).await;
        let expected = Usage { input: 120, output: 15, cache_read: 100, cache_write };
        assert_eq!(outcome.end.usage, expected, "{wire:?}");
    }
}
