//! The past replaced by a summary: when the window fills, when somebody asks, when nothing fits any more.

use futures::FutureExt;
use segue_log::*;
use segue_runtime::{NewPrompt, RuntimeError, Session, Update};
use segue_testkit::{Reply, Wire};
use serde_json::json;

use crate::loop_story::*;
use crate::world::*;

const ASKED: &str = "(The conversation has gro";
const SUMMARY: &str = "(The conversation so far,";

/// How notes are shown in short.
fn note(text: &str) -> String {
    format!("{text})")
}

/// A world whose model's window holds a thousand tokens.
fn narrow(wire: Wire, gate: Gate) -> (World, Parts) {
    (World::new(wire), Parts { window: 1000, gate, ..Parts::default() })
}

fn count(line: &str) -> Reply {
    Reply::call("count", json!({"line": line}))
}

async fn compactions(world: &World, session: &Session) -> usize {
    let log = world.log(session.id()).await;
    log.records.iter().filter(|record| record.event.kind() == "compaction").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filled_window_is_emptied_before_the_next_step() {
    for wire in BOTH {
        let (world, parts) = narrow(wire, Gate::default());
        let sessions = world.sessions_with(parts);
        let session = world.place.create(&sessions).await;
        world.server.push(Reply::text("so much").usage(700, 90, 0, 0));
        run(&session, says("old words")).await;
        // 79 % is not enough; 80 % is.
        world.server.push(Reply::text("more").usage(700, 100, 0, 0));
        run(&session, says("second")).await;
        assert_eq!(compactions(&world, &session).await, 0);
        world.server.push(Reply::text("they said things"));
        run(&session, says("third")).await;
        assert_eq!(compactions(&world, &session).await, 1);
        let bodies = world.server.bodies();
        let past = ["user: old words", "assistant: so much", "user: second", "assistant: more"];
        let asked = format!("user: third | {}", note(ASKED));
        assert_eq!(sent(&bodies[2]), [&past[..], &[asked.as_str()]].concat(), "{wire:?}");
        assert_eq!(sent(&bodies[3]), [format!("user: {} | third", note(SUMMARY))], "{wire:?}");
        let text = bodies[3].to_string();
        // The person's own words are kept beside the model's summary of them.
        assert!(text.contains("they said things") && text.contains("- old words"), "{text}");
        assert_eq!(world.server.violations(), Vec::<String>::new());
        assert_eq!(bodies[2]["tools"], bodies[3]["tools"]);
        run(&session, says("fourth")).await;
        let after = vec![
            format!("user: {} | third", note(SUMMARY)),
            "assistant: You said: third".into(),
            "user: fourth".into(),
        ];
        assert_eq!(last_sent(&world.server), after);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn within_a_turn_its_prompts_are_kept_word_for_word() {
    for wire in BOTH {
        let gate = Gate::default();
        let (world, parts) = narrow(wire, gate.clone());
        let sessions = world.sessions_with(parts);
        let session = world.place.create(&sessions).await;
        world.server.script([
            Reply::call("look", json!({"line": "a", "wait": true})),
            count("b").usage(900, 10, 0, 0),
            Reply::text("looked and counted"),
        ]);
        let accepted = session.prompt(says("hello")).await.unwrap();
        until(|| (!world.ran().is_empty()).then_some(())).await;
        session.prompt(NewPrompt { target: PromptFor::Step, ..says("also this") }).await.unwrap();
        gate.open();
        let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
        assert_eq!(outcome.reason(), EndReason::Completed);
        assert_eq!(
            last_sent(&world.server),
            [format!("user: {} | hello | also this", note(SUMMARY))],
            "{wire:?}"
        );
        assert_eq!(world.server.bodies().len(), 4);
        assert_eq!(world.server.violations(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_can_ask_for_it_between_turns_and_within_one() {
    let gate = Gate::default();
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions_with(Parts { gate: gate.clone(), ..Parts::default() });
    let session = world.place.create(&sessions).await;
    assert!(!within(session.compact()).await.unwrap(), "there is nothing to replace");
    assert_eq!(world.server.bodies().len(), 0);
    run(&session, says("hello")).await;
    world.server.push(Reply::text("they said hello"));
    assert!(within(session.compact()).await.unwrap());
    assert!(!within(session.compact()).await.unwrap(), "there is nothing new to replace");

    world.server.push(Reply::call("look", json!({"line": "a", "wait": true})));
    let accepted = session.prompt(says("look")).await.unwrap();
    until(|| (!world.ran().is_empty()).then_some(())).await;
    let mut compacting = Box::pin(session.compact());
    assert!(compacting.as_mut().now_or_never().is_none(), "it waits for the step's end");
    world.server.push(Reply::text("they looked"));
    gate.open();
    assert!(within(compacting).await.unwrap());
    within(session.wait(&accepted.prompt_id)).await.unwrap();
    session.wait_idle().await;
    assert_eq!(compactions(&world, &session).await, 2);
    run(&session, says("more")).await;
    let last = last_sent(&world.server);
    assert!(last[0].starts_with(&format!("user: {}", note(SUMMARY))), "{last:?}");
    assert!(world.server.bodies().last().unwrap().to_string().contains("they looked"));
    assert_eq!(world.server.violations(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_fails_is_told_and_changes_nothing() {
    for (reply, code) in [
        (Reply::refusal(400, "invalid_request_error", "no"), "MODEL_REQUEST_REJECTED"),
        (Reply::new(), "EMPTY_SUMMARY"),
        // Its words had become the summary, and the past was gone for the model.
        (Reply::new().and_refusal("I cannot do that."), "MODEL_REFUSED"),
    ] {
        let (world, parts) = narrow(Wire::OpenAi, Gate::default());
        let sessions = world.sessions_with(parts);
        let session = world.place.create(&sessions).await;
        run(&session, says("hello")).await;
        world.server.push(reply.clone());
        match within(session.compact()).await {
            Err(RuntimeError::CompactionFailed { code: told, .. }) => assert_eq!(told, code),
            other => panic!("{other:?}"),
        }
        // Within a turn it is tried once, and the turn goes on.
        let mut subscription = session.subscribe(u64::MAX);
        world.server.script([count("1").usage(900, 10, 0, 0), reply, count("2").usage(900, 10, 0, 0)]);
        let outcome = run(&session, says("more")).await;
        assert_eq!(outcome.reason(), EndReason::Completed);
        let told = update(&mut subscription, |update| match update {
            Update::Notice { code, .. } => Some(code),
            _ => None,
        });
        assert_eq!(told.await, "COMPACTION_FAILED");
        assert_eq!(world.ran(), ["1", "2"]);
        assert_eq!(compactions(&world, &session).await, 0);
        assert_eq!(world.server.bodies().len(), 6);
        let last = last_sent(&world.server);
        assert_eq!(last[0], "user: hello");
        assert_eq!(world.server.violations(), Vec::<String>::new());
    }
}

/// A server that takes no request longer than so many bytes.
fn limit(world: &World, bytes: usize) {
    let wire = world.place.wire;
    world.server.respond_with(move |request| {
        if request.body["messages"].to_string().len() <= bytes {
            return None;
        }
        Some(match wire {
            Wire::Anthropic => Reply::refusal(400, "invalid_request_error", "prompt is too long: 9 > 8"),
            Wire::OpenAi => Reply::refusal(400, "context_length_exceeded", "reduce the length"),
            Wire::Responses => unreachable!("only hosted agents speak it"),
        })
    });
}

// The summary was asked for with the very history that had just been too long, so that it was too long as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_no_longer_fits_is_summarised_by_its_gist_and_the_turn_goes_on() {
    for wire in BOTH {
        let world = World::new(wire);
        let sessions = world.sessions();
        let session = world.place.create(&sessions).await;
        std::fs::write(world.place.work.join("big.txt"), "many words\n".repeat(3000)).unwrap();
        limit(&world, 20_000);
        world.server.push(Reply::call("read", json!({"path": "big.txt"})));
        let outcome = run(&session, says("read it")).await;
        assert_eq!(outcome.reason(), EndReason::Completed, "{wire:?}: {:?}", outcome.end.message);
        assert_eq!(compactions(&world, &session).await, 1);
        assert_eq!(last_sent(&world.server), [format!("user: {} | read it", note(SUMMARY))], "{wire:?}");
        let log = world.log(session.id()).await;
        let sent_for: Vec<_> = log
            .records
            .iter()
            .filter_map(|record| match &record.event {
                Event::RequestHeader(data) => Some((data.step, data.purpose, data.attempt)),
                _ => None,
            })
            .collect();
        assert_eq!(sent_for.first(), Some(&(Some(1), RequestFor::Step, 1)));
        assert_eq!(sent_for.last(), Some(&(Some(2), RequestFor::Step, 2)), "attempts are counted on");
        assert_eq!(sent_for.len(), world.server.bodies().len(), "each request is in the log");
        assert_eq!(world.server.violations(), Vec::<String>::new());
        is_truthful(&fold(&log));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_fits_nowhere_fails_its_turn_and_the_session_lives_on() {
    for wire in BOTH {
        let world = World::new(wire);
        let sessions = world.sessions();
        let session = world.place.create(&sessions).await;
        limit(&world, 20_000);
        let outcome = run(&session, says(&"word ".repeat(10_000))).await;
        assert_eq!(outcome.end.code.as_deref(), Some("CONTEXT_TOO_LONG"), "{wire:?}");
        assert_eq!(compactions(&world, &session).await, 0);
        let outcome = run(&session, says("short")).await;
        assert_eq!(outcome.reason(), EndReason::Completed, "{wire:?}: {:?}", outcome.end.message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_learnt_of_a_call_after_it_was_summarised_is_told_as_a_note() {
    for wire in BOTH {
        let world = World::new(wire);
        let id = left_behind(&world, [begun("count a"), vec![wants_count("a"), entered("a")]].concat()).await;
        let (session, _) = world.sessions().open(id).await.unwrap();
        world.server.push(Reply::text("a count of unknown outcome"));
        assert!(within(session.compact()).await.unwrap());
        session.settle(&call_id("c1"), Settlement::Skip, "not needed", "me").await.unwrap();
        run(&session, says("go on")).await;
        let expected = format!("user: {} | count a | (The person settled the o) | go on", note(SUMMARY));
        assert_eq!(last_sent(&world.server), [expected.as_str()], "{wire:?}");
        // The real result comes late, as from a survivor that was waited for elsewhere.
        session.close().await.unwrap();
        let opened = segue_store::Store::open(&world.place.store(), id, "test").await.unwrap();
        opened.writer.append(returned("counted a")).await.unwrap();
        opened.writer.close().await.unwrap();
        let (session, _) = world.sessions().open(id).await.unwrap();
        run(&session, says("more")).await;
        let last = last_sent(&world.server);
        let expected =
            [expected.as_str(), "assistant: You said: go on", "user: (The result of an earlier) | more"];
        assert_eq!(last, expected, "{wire:?}");
        assert!(world.server.bodies().last().unwrap().to_string().contains("It succeeded:\\ncounted a"));
        assert_eq!(world.server.violations(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_cancelled_while_the_summary_is_written_ends_the_turn_and_replaces_nothing() {
    let (world, parts) = narrow(Wire::Anthropic, Gate::default());
    let sessions = world.sessions_with(parts);
    let session = world.place.create(&sessions).await;
    world.server.script([count("1").usage(900, 10, 0, 0), Reply::text("they").then_hang()]);
    let accepted = session.prompt(says("hello")).await.unwrap();
    world.server.wait_for_requests(2).await;
    within(session.cancel()).await;
    let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!(outcome.reason(), EndReason::Cancelled);
    assert_eq!(compactions(&world, &session).await, 0);
    is_truthful(&world.conversation(session.id()).await);
}
