//! The queue, taking up what was interrupted, a person's word on it, cancelling at any point, closing, agents that fail.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use segue_log::*;
use segue_model::{Deltas, Model, ModelError, Practice, Request};
use segue_native::RetryPolicy;
use segue_runtime::permission::Level;
use segue_runtime::{NewPrompt, RuntimeError, Session, Update};
use segue_store::StoreError;
use segue_testkit::{Reply, Wire};
use segue_tool::{Failure, Scope, Tool, ToolContext, ToolOutput};
use serde_json::{Value, json};

use crate::loop_story::*;
use crate::world::*;

fn for_step(text: &str) -> NewPrompt {
    NewPrompt { target: PromptFor::Step, ..says(text) }
}

fn reasons(conversation: &Conversation) -> Vec<&'static str> {
    let ends = conversation.turns().iter().filter_map(|turn| turn.end.as_ref());
    ends.map(|(_, end)| end.reason.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_kept_in_order_across_a_reopening_and_can_be_taken_back_from() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    for id in ["a", "b", "c"] {
        session.queue(says_as(id, &format!("prompt {id}"))).await.unwrap();
    }
    session.unqueue(&prompt_id("b"), "test").await.unwrap();
    assert!(matches!(session.unqueue(&prompt_id("b"), "test").await, Err(RuntimeError::NotQueued(_))));
    session.close().await.unwrap();

    let (session, report) = world.sessions().open(session.id()).await.unwrap();
    assert_eq!((report.queued, report.was_interrupted), (2, false));
    assert_eq!(world.server.bodies().len(), 0, "opening runs nothing");
    session.run_queue();
    for id in ["a", "c"] {
        within(session.wait(&prompt_id(id))).await.unwrap();
    }
    assert_eq!(within(session.wait(&prompt_id("b"))).await, None);
    assert_eq!(
        last_sent(&world.server),
        ["user: prompt a", "assistant: You said: prompt a", "user: prompt c"]
    );
    assert!(matches!(session.unqueue(&prompt_id("a"), "test").await, Err(RuntimeError::NotQueued(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompts_id_holds_for_the_life_of_the_session() {
    let world = World::new(Wire::OpenAi);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let once_more = async |session: &Session, at: &str| {
        let again = session.prompt(says_as("p", "hello")).await.unwrap();
        assert!(again.again, "{at}");
        let other = session.prompt(says_as("p", "other")).await;
        assert!(matches!(other, Err(RuntimeError::PromptConflict(_))), "{at}: {other:?}");
    };
    assert!(!session.queue(says_as("p", "hello")).await.unwrap().again);
    once_more(&session, "queued").await;
    within(session.wait(&prompt_id("p"))).await.unwrap();
    once_more(&session, "answered").await;
    session.close().await.unwrap();
    let (session, _) = world.sessions().open(session.id()).await.unwrap();
    once_more(&session, "reopened").await;
    session.wait_idle().await;
    assert_eq!(world.server.bodies().len(), 1, "it ran once");
    assert!(matches!(session.prompt(says(" \n")).await, Err(RuntimeError::EmptyPrompt)));
}

// Case 35: of two prompts at once one was dropped.
#[tokio::test(flavor = "multi_thread")]
async fn prompts_at_once_all_run_in_the_order_they_were_accepted() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let prompts = (0..8).map(|n| {
        let session = session.clone();
        tokio::spawn(async move { run(&session, says_as(&format!("p{n}"), &format!("prompt {n}"))).await })
    });
    for running in prompts.collect::<Vec<_>>() {
        assert_eq!(running.await.unwrap().reason(), EndReason::Completed);
    }
    let conversation = world.conversation(session.id()).await;
    let log = world.log(session.id()).await;
    let queued = log.records.iter().filter_map(|record| match &record.event {
        Event::PromptQueued(data) => Some(vec![data.prompt_id.clone()]),
        _ => None,
    });
    let claimed = conversation.turns().iter().map(|turn| turn.prompt_ids.clone());
    assert_eq!(claimed.collect::<Vec<_>>(), queued.collect::<Vec<_>>());
    assert_eq!(world.server.bodies().len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_prompt_reaches_the_running_turn() {
    for wire in BOTH {
        let world = World::new(wire);
        let gate = Gate::default();
        let sessions = world.sessions_with(Parts { gate: gate.clone(), ..Parts::default() });
        let session = world.place.create(&sessions).await;
        world.server.push(Reply::call("look", json!({"line": "a", "wait": true})));
        let held = Held::reply(&world.server, Reply::text("so far"));
        let first = session.prompt(says("hello")).await.unwrap();
        until(|| (!world.ran().is_empty()).then_some(())).await;
        // It comes while a call runs: the next step claims it.
        session.prompt(for_step("also this")).await.unwrap();
        gate.open();
        world.server.wait_for_requests(2).await;
        let look = "assistant: look{\"line\":\"a\",\"wait\":true}";
        assert_eq!(last_sent(&world.server), ["user: hello", look, "user: =saw a | also this"]);
        // It comes while the last step's answer is on its way: one more step.
        session.prompt(for_step("and that")).await.unwrap();
        held.go();
        within(session.wait(&first.prompt_id)).await.unwrap();
        let bodies = world.server.bodies();
        assert_eq!(bodies.len(), 3);
        let asked = ["user: hello", look, "user: =saw a | also this", "assistant: so far", "user: and that"];
        assert_eq!(sent(&bodies[2]), asked);
        let conversation = world.conversation(session.id()).await;
        assert_eq!(conversation.turns().len(), 1);
        let claimed: Vec<usize> =
            conversation.turns()[0].steps.iter().map(|step| step.prompt_ids.len()).collect();
        assert_eq!(claimed, [0, 1, 1]);
        assert_eq!(world.server.violations(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_prompt_that_is_left_over_becomes_a_turns() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    world.server.push(Reply::call("slow", json!({})));
    session.prompt(says("hello")).await.unwrap();
    update(&mut subscription, |update| matches!(update, Update::Progress { .. }).then_some(())).await;
    let left = session.prompt(for_step("left over")).await.unwrap();
    within(session.cancel()).await;
    let outcome = within(session.wait(&left.prompt_id)).await.unwrap();
    assert_eq!((outcome.turn, outcome.reason()), (2, EndReason::Completed));
    assert_eq!(session.answer_text(2), "You said: left over");
}

// Case 6: could not go on without a made-up prompt.
#[tokio::test(flavor = "multi_thread")]
async fn finish_goes_on_with_what_the_log_holds() {
    for wire in BOTH {
        let world = World::new(wire);
        let events = [begun("count a"), vec![wants_count("a"), entered("a"), returned("counted a")]].concat();
        let id = left_behind(&world, events).await;
        let (session, report) = world.sessions().open(id).await.unwrap();
        assert!(report.was_interrupted);
        assert_eq!(report.repaired, vec![]);
        let outcome = finish(&session).await;
        assert_eq!((outcome.turn, outcome.reason()), (2, EndReason::Completed));
        let expected = ["user: count a", "assistant: count{\"line\":\"a\"}", "user: =counted a"];
        assert_eq!(last_sent(&world.server), expected, "{wire:?}");
        let conversation = world.conversation(id).await;
        assert_eq!(reasons(&conversation), ["interrupted", "completed"]);
        assert_eq!(conversation.turns()[1].finish, Some(Finish::Resumed(true)));
        assert!(matches!(session.finish().await, Err(RuntimeError::NothingToFinish)));
        assert_eq!(world.ran(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_nothing_to_finish_in_a_new_session_or_a_running_turn() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    assert!(matches!(session.finish().await, Err(RuntimeError::NothingToFinish)));
    let held = Held::reply(&world.server, Reply::text("done"));
    let accepted = session.prompt(says("hello")).await.unwrap();
    world.server.wait_for_requests(1).await;
    assert!(matches!(session.finish().await, Err(RuntimeError::NothingToFinish)));
    held.go();
    within(session.wait(&accepted.prompt_id)).await.unwrap();
    session.wait_idle().await;
    assert_eq!(world.server.bodies().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_runs_nothing_and_is_told_in_the_next_request() {
    for wire in BOTH {
        let world = World::new(wire);
        let id = left_behind(&world, [begun("count a"), vec![wants_count("a"), entered("a")]].concat()).await;
        let (session, report) = world.sessions().open(id).await.unwrap();
        assert_eq!(report.repaired, vec![(call_id("c1"), "count".into(), RepairOutcome::Unknown)]);
        let settled = session.settle(&call_id("nope"), Settlement::Done, "", "me").await;
        assert!(matches!(settled, Err(RuntimeError::NoSuchCall { .. })));
        session.settle(&call_id("c1"), Settlement::Done, "I saw it", "me").await.unwrap();
        assert_eq!((world.ran().len(), world.server.bodies().len()), (0, 0));
        // One more, while the model answers: it is told after that answer.
        let held = Held::reply(&world.server, Reply::text("fine"));
        let accepted = session.prompt(says("go on")).await.unwrap();
        world.server.wait_for_requests(1).await;
        session.settle(&call_id("c1"), Settlement::Retry, "", "me").await.unwrap();
        held.go();
        within(session.wait(&accepted.prompt_id)).await.unwrap();
        let first = [
            "user: count a",
            "assistant: count{\"line\":\"a\"}",
            "user: =The outcome of this call is unknown: the process ended while | (The person settled the o) | go on",
        ];
        assert_eq!(last_sent(&world.server), first);
        run(&session, says("more")).await;
        let more = ["assistant: fine", "user: (The person settled the o) | more"];
        assert_eq!(last_sent(&world.server), [&first[..], &more[..]].concat());
        assert!(world.server.bodies()[1].to_string().contains("They add: I saw it"));
        assert_eq!(world.server.violations(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_unknown_outcomes_can_be_settled() {
    let world = World::new(Wire::Anthropic);
    let events = [begun("count a"), vec![wants_count("a"), entered("a"), returned("counted a")]].concat();
    let id = left_behind(&world, events).await;
    let (session, _) = world.sessions().open(id).await.unwrap();
    let settled = session.settle(&call_id("c1"), Settlement::Retry, "", "me").await;
    assert!(matches!(settled, Err(RuntimeError::NothingToSettle { .. })), "{settled:?}");
}

/// A stage of a turn at which it is cancelled.
struct Stage {
    name: &'static str,
    reply: Reply,
    /// What the results of its calls are then.
    codes: Vec<&'static str>,
    /// How the next request goes on after the first prompt.
    then: Vec<&'static str>,
}

fn stages() -> Vec<Stage> {
    vec![
        Stage {
            name: "before the answer",
            reply: Reply::silent(),
            codes: vec![],
            then: vec!["user: hello | again"],
        },
        Stage {
            name: "streaming",
            reply: Reply::new().and_thinking("hm").and_text("half of it").then_hang(),
            codes: vec![],
            then: vec!["user: hello", "assistant: half of it", "user: again"],
        },
        Stage {
            name: "waiting to try again",
            reply: Reply::refusal(529, "overloaded_error", "too much to do"),
            codes: vec![],
            then: vec!["user: hello | again"],
        },
        Stage {
            name: "in a tool",
            reply: Reply::call("slow", json!({})).and_call("count", json!({"line": "b"})),
            codes: vec![code::CANCELLED, code::ABORTED],
            then: vec![
                "user: hello",
                "assistant: slow{} | count{\"line\":\"b\"}",
                "user: =Cancelled; it may have had effects. | =Not started: the turn was cancelled before. | again",
            ],
        },
        Stage {
            name: "asking",
            reply: Reply::call("count", json!({"line": "a"})),
            codes: vec![code::ABORTED],
            then: vec![
                "user: hello",
                "assistant: count{\"line\":\"a\"}",
                "user: =Not started: the turn was cancelled before. | again",
            ],
        },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_cancelled_at_any_stage_leaves_a_truthful_log() {
    for (wire, stage) in
        BOTH.into_iter().flat_map(|wire| stages().into_iter().map(move |stage| (wire, stage)))
    {
        let world = World::new(wire);
        let at = format!("{}, {wire:?}", stage.name);
        let asks = stage.name == "asking";
        let hour = std::time::Duration::from_secs(3600);
        let sessions = world.sessions_with(Parts {
            level: Some(if asks { Level::Ask } else { Level::All }),
            asker: Some(Arc::new(Silent)),
            retry: RetryPolicy { attempts: 3, base: hour, longest: hour },
            ..Parts::default()
        });
        let session = world.place.create(&sessions).await;
        let mut subscription = session.subscribe(1);
        world.server.push(stage.reply);
        let accepted = session.prompt(says("hello")).await.unwrap();
        match stage.name {
            "before the answer" => drop(world.server.wait_for_requests(1).await),
            "streaming" => streamed(&mut subscription, "half of it").await,
            "waiting to try again" => {
                update(&mut subscription, |update| matches!(update, Update::Notice { .. }).then_some(()))
                    .await;
            }
            "in a tool" => {
                update(&mut subscription, |update| matches!(update, Update::Progress { .. }).then_some(()))
                    .await;
            }
            _ => {
                update(&mut subscription, |update| matches!(update, Update::Question(_)).then_some(())).await;
            }
        }
        within(session.cancel()).await;
        let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
        assert_eq!((outcome.end.reason, outcome.not_stored), (EndReason::Cancelled, None), "{at}");
        let conversation = world.conversation(session.id()).await;
        is_truthful(&conversation);
        let codes: Vec<_> = conversation.turns()[0]
            .calls()
            .map(|call| call.result().and_then(|result| result.code.clone()).unwrap_or_default())
            .collect();
        assert_eq!(codes, stage.codes, "{at}");
        assert_eq!(world.ran(), Vec::<String>::new(), "{at}");
        assert_eq!(world.server.bodies().len(), 1, "{at}");
        run(&session, says("again")).await;
        assert_eq!(last_sent(&world.server), stage.then, "{at}");
        assert_eq!(world.server.violations(), Vec::<String>::new(), "{at}");
    }
}

// Case 43: the turn's end and the visible text were lost when the app was closed politely.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_closed_in_mid_turn_ends_it_in_the_log_and_frees_the_lease() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    world.server.push(Reply::text("half of it").then_hang());
    let accepted = session.prompt(says("hello")).await.unwrap();
    let later = session.queue(says("waits")).await.unwrap();
    streamed(&mut subscription, "half of it").await;
    let other = world.sessions().open(session.id()).await;
    assert!(matches!(other, Err(RuntimeError::Store(StoreError::InUse { .. }))));
    let waiting = session.wait(&accepted.prompt_id);
    let (closed, outcome) = tokio::join!(session.close(), within(waiting));
    closed.unwrap();
    assert_eq!(outcome.unwrap().end.reason, EndReason::Cancelled);
    let kinds = kinds(&world.log(session.id()).await.records).join(" ");
    assert!(kinds.ends_with("message/assistant step/end turn/end"), "{kinds}");
    // Closing again is no fault; everything else is refused.
    session.close().await.unwrap();
    assert!(matches!(session.prompt(says("more")).await, Err(RuntimeError::Closed(_))));
    assert!(matches!(within(session.compact()).await, Err(RuntimeError::Closed(_))));
    let (session, report) = world.sessions().open(session.id()).await.unwrap();
    assert_eq!((report.was_interrupted, report.queued), (false, 1));
    session.run_queue();
    let outcome = within(session.wait(&later.prompt_id)).await.unwrap();
    assert_eq!(outcome.reason(), EndReason::Completed);
    assert_eq!(last_sent(&world.server), ["user: hello", "assistant: half of it", "user: waits"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_compaction_is_told_when_the_session_closes() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    world.server.push(Reply::text("half of it").then_hang());
    session.prompt(says("hello")).await.unwrap();
    streamed(&mut subscription, "half of it").await;
    let mut compacting = Box::pin(session.compact());
    assert!(compacting.as_mut().now_or_never().is_none(), "it waits for the step's end");
    session.close().await.unwrap();
    assert!(within(compacting).await.is_err());
}

/// A tool that fails as no tool should, where its input says.
struct Explosive(Value);

#[async_trait]
impl Tool for Explosive {
    fn name(&self) -> &str {
        "explode"
    }

    fn description(&self) -> &str {
        "Fails."
    }

    fn input_schema(&self) -> &Value {
        &self.0
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn action(&self, input: &Value, _scope: &Scope) -> Action {
        assert!(input["in"] != "action", "the action explodes");
        let (kind, subject) = (ActionKind::Read, String::new());
        Action { kind, subject, shown: "explode".into(), rule: "explode".into() }
    }

    async fn expect(&self, input: &Value, _context: &ToolContext) -> Result<Option<Expect>, Failure> {
        assert!(input["in"] != "expect", "the expectation explodes");
        Ok(None)
    }

    async fn run(&self, _input: Value, _context: &ToolContext) -> ToolOutput {
        panic!("the body explodes")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_panics_harms_only_itself() {
    for (place, reason, code) in [
        ("body", EndReason::Completed, code::FAILED),
        ("action", EndReason::Failed, code::NOT_STARTED),
        ("expect", EndReason::Failed, code::NOT_STARTED),
    ] {
        let world = World::new(Wire::OpenAi);
        let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(Explosive(json!({"type": "object"})))];
        let sessions = world.sessions_with(Parts { tools, ..Parts::default() });
        let session = world.place.create(&sessions).await;
        world.server.push(Reply::call("explode", json!({"in": place})));
        let outcome = run(&session, says("hello")).await;
        assert_eq!((outcome.end.reason, outcome.not_stored), (reason, None), "{place}");
        let conversation = world.conversation(session.id()).await;
        is_truthful(&conversation);
        let result = conversation.turns()[0].calls().next().and_then(|call| call.result()).unwrap();
        assert_eq!(result.code.as_deref(), Some(code), "{place}");
        assert_eq!(run(&session, says("again")).await.reason(), EndReason::Completed, "{place}");
        assert_eq!(world.server.violations(), Vec::<String>::new());
    }
}

/// A model whose adapter panics where it is asked to summarise, or where the prompt says so.
struct Fragile(Practice);

#[async_trait]
impl Model for Fragile {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn window(&self) -> u64 {
        self.0.window()
    }

    async fn stream(&self, request: &Request) -> Result<Deltas, ModelError> {
        let last = match request.messages.last() {
            Some(Message::User { parts }) => format!("{:?}", parts.last()),
            _ => String::new(),
        };
        assert!(!last.contains("panic now"), "the adapter panics");
        assert!(!last.contains("has grown long"), "the adapter panics in a compaction");
        self.0.stream(request).await
    }
}

// A panic in a compaction between turns ended the task that runs the queue: the session accepted prompts and ran none.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_adapter_that_panics_fails_its_turn_and_the_session_lives_on() {
    let world = World::new(Wire::Anthropic);
    let model: Arc<dyn Model> = Arc::new(Fragile(Practice::new()));
    let sessions = world.sessions_with(Parts { model: Some(model), ..Parts::default() });
    let session = world.place.create(&sessions).await;
    let outcome = run(&session, says("panic now")).await;
    assert_eq!(outcome.reason(), EndReason::Failed);
    assert_eq!(outcome.end.code.as_deref(), Some("INTERNAL"));
    assert_eq!(run(&session, says("remember the number 7")).await.reason(), EndReason::Completed);
    let compacted = within(session.compact()).await;
    assert!(matches!(compacted, Err(RuntimeError::CompactionFailed { .. })), "{compacted:?}");
    run(&session, says("what number?")).await;
    assert_eq!(session.answer_text(3), "The number is 7.");
    is_truthful(&world.conversation(session.id()).await);
}
