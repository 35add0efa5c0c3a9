//! What is made durable before what, how many syncs that costs, and what becomes of a turn whose log cannot be stored.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use futures::FutureExt;
use segue_log::*;
use segue_model::{Model, Practice};
use segue_runtime::{Change, RuntimeError, Session, Subscription, Update};
use segue_testkit::disk::{Fault, Hook, Op, OpKind, Verdict, watched};
use segue_testkit::{ModelServer, Reply, Wire};
use serde_json::json;

use crate::loop_story::{begun, call_id, entered, left_behind, wants_count};
use crate::world::*;

/// What becomes of syncs of logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syncs {
    Pass,
    /// They wait until something else is decided.
    Wait,
    Fail,
    FailOnce,
}

/// A medium whose syncs wait or fail when told to. Dropping the handle lets all through.
pub struct Medium(Arc<Gatekeeper>);

struct Gatekeeper {
    /// What is decided, and how many syncs have waited so far.
    state: Mutex<(Syncs, usize)>,
    changed: Condvar,
}

impl Hook for Gatekeeper {
    fn before(&self, op: &Op) -> Verdict {
        if op.kind != OpKind::Sync || op.path.file_name() != Some(Path::new("log.jsonl").as_os_str()) {
            return Verdict::Go;
        }
        let mut state = self.state.lock().unwrap();
        if state.0 == Syncs::Wait {
            state.1 += 1;
        }
        while state.0 == Syncs::Wait {
            state = self.changed.wait(state).unwrap();
        }
        match state.0 {
            Syncs::Fail => Verdict::Fail(Fault::Io),
            Syncs::FailOnce => {
                state.0 = Syncs::Pass;
                Verdict::Fail(Fault::Io)
            }
            _ => Verdict::Go,
        }
    }
}

impl Medium {
    /// Puts the gate into a world's files.
    pub fn of(world: &mut World) -> Self {
        let gate = Arc::new(Gatekeeper { state: Mutex::new((Syncs::Pass, 0)), changed: Condvar::new() });
        world.place.files = watched(world.place.files.clone(), gate.clone());
        Self(gate)
    }

    /// Decides about all syncs from now on, those that wait too.
    pub fn syncs(&self, what: Syncs) {
        self.0.state.lock().unwrap().0 = what;
        self.0.changed.notify_all();
    }

    /// Waits until a sync waits.
    pub async fn is_waited_for(&self) {
        until(|| (self.0.state.lock().unwrap().1 > 0).then_some(())).await;
    }

    /// A closure that decides later, for the model server.
    pub fn later(&self, what: Syncs) -> impl Fn() + Send + Sync + 'static {
        let medium = Self(self.0.clone());
        move || medium.syncs(what)
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) <= 2 || std::thread::panicking() {
            self.syncs(Syncs::Pass);
        }
    }
}

/// A world with a gate before its medium.
fn gated(wire: Wire) -> (World, Medium) {
    let mut world = World::new(wire);
    let medium = Medium::of(&mut world);
    (world, medium)
}

/// The server answers the next request with `reply`, and does something just before.
fn answer_after(server: &ModelServer, act: impl Fn() + Send + Sync + 'static, reply: Reply) {
    let once = Mutex::new(Some(reply));
    server.respond_with(move |_| {
        let reply = once.lock().unwrap().take()?;
        act();
        Some(reply)
    });
}

fn count(line: &str) -> Reply {
    Reply::call("count", json!({"line": line}))
}

fn result_codes(conversation: &Conversation) -> Vec<Option<String>> {
    let results = conversation.turns().iter().flat_map(Turn::calls).map(|call| call.result());
    results.map(|result| result.and_then(|data| data.code.clone())).collect()
}

fn reasons(conversation: &Conversation) -> Vec<&'static str> {
    let ends = conversation.turns().iter().filter_map(|turn| turn.end.as_ref());
    ends.map(|(_, end)| end.reason.as_str()).collect()
}

/// Waits for a turn's end as memory has it, durable or not.
async fn ended_in_memory(session: &Session, turn: u64) {
    let is_over = |c: &Conversation| c.turn(turn).is_some_and(|turn| turn.end.is_some()).then_some(());
    until(|| session.conversation(is_over)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_costs_three_syncs_and_each_step_with_a_call_two_more() {
    let one = || count("a");
    for (what, replies, syncs, ran) in [
        ("no tool", vec![Reply::text("hello")], 3, vec![]),
        ("one call", vec![one(), Reply::text("done")], 5, vec!["a"]),
        ("two steps of one call", vec![one(), one(), Reply::text("done")], 7, vec!["a", "a"]),
        (
            "calls beside each other",
            vec![
                Reply::call("look", json!({"line": "1"})).and_call("look", json!({"line": "2"})),
                Reply::text("done"),
            ],
            5,
            vec!["1", "2"],
        ),
        (
            "calls one after the other",
            vec![one().and_call("count", json!({"line": "b"})), Reply::text("done")],
            6,
            vec!["a", "b"],
        ),
        (
            "a call inside a call",
            vec![
                Reply::call("relay", json!({"tool": "count", "input": {"line": "inner"}})),
                Reply::text("done"),
            ],
            5,
            vec!["inner"],
        ),
        (
            "calls that are never entered",
            vec![Reply::call("nonsense", json!({})).and_call("count", json!({})), Reply::text("done")],
            4,
            vec![],
        ),
    ] {
        for wire in [Wire::Anthropic, Wire::OpenAi] {
            let world = World::new(wire);
            let sessions = world.sessions();
            let session = world.place.create(&sessions).await;
            world.server.script(replies.clone());
            let before = world.syncs();
            run(&session, says("go on")).await;
            assert_eq!(world.syncs() - before, syncs, "{what}, {wire:?}");
            let mut seen = world.ran();
            seen.sort();
            assert_eq!(seen, ran, "{what}, {wire:?}");
            assert_eq!(world.server.violations(), Vec::<String>::new());
            let calls = world.log(session.id()).await.records;
            let entered = calls.iter().filter(|record| record.event.kind() == "tool/call").count();
            assert_eq!(entered, if what == "a call inside a call" { 1 } else { ran.len() }, "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn under_policy_turn_only_accept_and_the_turns_end_wait_for_the_medium() {
    let (world, medium) = gated(Wire::Anthropic);
    let sessions = world.sessions_with(Parts { policy: Policy::Turn, ..Parts::default() });
    let session = world.place.create(&sessions).await;
    medium.syncs(Syncs::Wait);
    let accepting = tokio::spawn({
        let session = session.clone();
        async move { session.prompt(says("use count {\"line\":\"a\"}")).await }
    });
    medium.is_waited_for().await;
    assert!(!accepting.is_finished(), "accept waits");
    answer_after(&world.server, medium.later(Syncs::Wait), count("a"));
    medium.syncs(Syncs::Pass);
    let accepted = accepting.await.unwrap().unwrap();
    // No sync returns from the first request on, and yet the whole turn runs.
    ended_in_memory(&session, 1).await;
    assert_eq!(world.server.bodies().len(), 2);
    assert_eq!(world.ran(), ["a"]);
    assert!(session.wait(&accepted.prompt_id).now_or_never().is_none(), "idle waits for the turn's end");
    medium.syncs(Syncs::Pass);
    let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!((outcome.end.reason, outcome.not_stored), (EndReason::Completed, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_its_record_and_is_not_sent_if_cancelled_meanwhile() {
    let (world, medium) = gated(Wire::OpenAi);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let accepted = session.queue(says("hello")).await.unwrap();
    medium.syncs(Syncs::Wait);
    session.run_queue();
    medium.is_waited_for().await;
    assert_eq!(world.server.bodies().len(), 0);
    let cancelling = tokio::spawn({
        let session = session.clone();
        async move { session.cancel().await }
    });
    ended_in_memory(&session, 1).await;
    assert!(!cancelling.is_finished(), "a cancel waits for the durable end");
    medium.syncs(Syncs::Pass);
    within(cancelling).await.unwrap();
    let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!((outcome.end.reason, outcome.not_stored), (EndReason::Cancelled, None));
    assert_eq!(world.server.bodies().len(), 0, "nothing was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_cancelled_while_its_record_is_stored_is_not_entered() {
    for (tool, second) in [("count", "count"), ("look", "look"), ("look", "count")] {
        let (world, medium) = gated(Wire::Anthropic);
        let sessions = world.sessions();
        let session = world.place.create(&sessions).await;
        let reply = Reply::call(tool, json!({"line": "a"})).and_call(second, json!({"line": "b"}));
        answer_after(&world.server, medium.later(Syncs::Wait), reply);
        let accepted = session.prompt(says("hello")).await.unwrap();
        let is_recorded = |c: &Conversation| {
            c.turn(1).into_iter().flat_map(Turn::calls).any(|call| call.dispatched.is_some()).then_some(())
        };
        until(|| session.conversation(is_recorded)).await;
        medium.is_waited_for().await;
        let cancelling = tokio::spawn({
            let session = session.clone();
            async move { session.cancel().await }
        });
        ended_in_memory(&session, 1).await;
        medium.syncs(Syncs::Pass);
        within(cancelling).await.unwrap();
        let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
        assert_eq!(outcome.reason(), EndReason::Cancelled);
        let conversation = world.conversation(session.id()).await;
        let aborted = Some(code::ABORTED.to_owned());
        assert_eq!(result_codes(&conversation), [aborted.clone(), aborted], "{tool} {second}");
        assert_eq!(world.ran(), Vec::<String>::new(), "no body was entered");
        assert_eq!(world.server.bodies().len(), 1, "nothing more was sent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_record_cannot_be_stored_is_not_entered_and_the_turn_goes_on() {
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let (world, medium) = gated(wire);
        let sessions = world.sessions();
        let session = world.place.create(&sessions).await;
        answer_after(&world.server, medium.later(Syncs::FailOnce), count("a"));
        let outcome = run(&session, says("hello")).await;
        assert_eq!((outcome.end.reason, outcome.not_stored), (EndReason::Completed, None));
        assert_eq!(world.ran(), Vec::<String>::new());
        let conversation = world.conversation(session.id()).await;
        assert_eq!(result_codes(&conversation), [Some(code::CHECKPOINT_FAILED.to_owned())]);
        let bodies = world.server.bodies();
        assert_eq!(bodies.len(), 2);
        assert!(bodies[1].to_string().contains("Not started: that it is about to run could not be recorded"));
        assert_eq!(world.server.violations(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_record_cannot_be_stored_is_not_sent_and_the_session_lives_on() {
    let (world, medium) = gated(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let accepted = session.queue(says("hello")).await.unwrap();
    medium.syncs(Syncs::Fail);
    session.run_queue();
    let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!(outcome.reason(), EndReason::Failed);
    assert_eq!(outcome.end.code.as_deref(), Some(code::CHECKPOINT_FAILED));
    assert!(outcome.not_stored.is_some());
    assert_eq!(world.server.bodies().len(), 0);
    medium.syncs(Syncs::Pass);
    let outcome = run(&session, says("again")).await;
    assert_eq!((outcome.turn, outcome.reason()), (2, EndReason::Completed));
    let conversation = world.conversation(session.id()).await;
    assert_eq!(reasons(&conversation), ["failed", "completed"]);
    // What became durable later counts as stored from then on.
    let first = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!((first.end.reason, first.not_stored), (EndReason::Failed, None));
}

// Between two steps: what a summary is made of is stored before it is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn no_summary_is_asked_for_before_what_it_replaces_is_stored() {
    for (what, reason, code) in [
        (Syncs::Wait, EndReason::Cancelled, None),
        (Syncs::FailOnce, EndReason::Failed, Some(code::CHECKPOINT_FAILED)),
    ] {
        let (world, medium) = gated(Wire::Anthropic);
        let decide = medium.later(what);
        let after_the_body = move |moment: &str| {
            if moment == "count after a" {
                decide();
            }
        };
        let moments = Moments(Arc::new(after_the_body));
        let sessions = world.sessions_with(Parts { window: 1000, moments, ..Parts::default() });
        let session = world.place.create(&sessions).await;
        world.server.push(count("a").usage(900, 10, 0, 0));
        let accepted = session.prompt(says("hello")).await.unwrap();
        if what == Syncs::Wait {
            medium.is_waited_for().await;
            let cancelling = tokio::spawn({
                let session = session.clone();
                async move { session.cancel().await }
            });
            ended_in_memory(&session, 1).await;
            medium.syncs(Syncs::Pass);
            within(cancelling).await.unwrap();
        }
        let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
        assert_eq!((outcome.end.reason, outcome.end.code.as_deref()), (reason, code), "{what:?}");
        assert_eq!(world.server.bodies().len(), 1, "{what:?}: nothing more was sent");
        let conversation = world.conversation(session.id()).await;
        assert_eq!((result_codes(&conversation), conversation.compaction()), (vec![None], None));
        assert_eq!(run(&session, says("again")).await.reason(), EndReason::Completed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_cannot_be_stored_does_not_count() {
    let (world, medium) = gated(Wire::Anthropic);
    let id = left_behind(&world, [begun("count a"), vec![wants_count("a"), entered("a")]].concat()).await;
    let (session, _) = world.sessions().open(id).await.unwrap();
    medium.syncs(Syncs::Fail);
    let settled = session.settle(&call_id("c1"), Settlement::Done, "", "me").await;
    assert!(matches!(settled, Err(RuntimeError::NotStored { .. })), "{settled:?}");
    medium.syncs(Syncs::Pass);
    assert_eq!(session.conversation(|conversation| conversation.settlements().len()), 0);
    session.settle(&call_id("c1"), Settlement::Skip, "", "me").await.unwrap();
    let conversation = world.conversation(id).await;
    let how = conversation.settlements().iter().map(|record| match &record.event {
        Event::CallSettled(data) => data.how,
        other => panic!("{other:?}"),
    });
    assert_eq!(how.collect::<Vec<_>>(), [Settlement::Skip]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_stored_is_refused_and_leaves_no_trace() {
    let (world, medium) = gated(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    session.queue(says_as("waiting", "waits")).await.unwrap();
    medium.syncs(Syncs::Fail);
    let refused = |result: segue_runtime::Result<()>| match result {
        Err(RuntimeError::NotStored { .. }) => {}
        other => panic!("{other:?}"),
    };
    refused(session.queue(says_as("p", "first")).await.map(drop));
    // What was stored before stays accepted, whatever becomes of the medium.
    assert!(session.queue(says_as("waiting", "waits")).await.unwrap().again);
    refused(session.unqueue(&prompt_id("waiting"), "test").await);
    let change = Change { title: Some("new".into()), by: "test".into(), ..Change::default() };
    refused(session.configure(change).await);
    medium.syncs(Syncs::Pass);
    // The id is free again, for other content too.
    let accepted = session.queue(says_as("p", "second")).await.unwrap();
    assert!(!accepted.again);
    let log = world.log(session.id()).await;
    assert_eq!(kinds(&log.records), ["session/config", "prompt/queued", "prompt/queued"]);
    assert_eq!(fold(&log).prompt(&prompt_id("p")).unwrap().content(), [Block::text("second")]);
}

// A prompt that was still being stored was claimed by the running turn; when its sync failed it was taken back, and a
// turn stood in the log that had claimed nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_claimed_only_once_it_is_durable() {
    for target in [PromptFor::Step, PromptFor::Turn] {
        let (world, medium) = gated(Wire::Anthropic);
        let gate = Gate::default();
        let sessions = world.sessions_with(Parts { gate: gate.clone(), ..Parts::default() });
        let session = world.place.create(&sessions).await;
        world.server.script([Reply::call("look", json!({"line": "a", "wait": true})), Reply::text("done")]);
        let first = session.prompt(says("hello")).await.unwrap();
        until(|| (!world.ran().is_empty()).then_some(())).await;
        medium.syncs(Syncs::Wait);
        let accepting = tokio::spawn({
            let session = session.clone();
            async move { session.prompt(segue_runtime::NewPrompt { target, ..says_as("p", "more") }).await }
        });
        medium.is_waited_for().await;
        // The step after the call begins while the prompt is being stored.
        gate.open();
        let has_second = |c: &Conversation| c.turn(1).filter(|turn| turn.steps.len() == 2).map(drop);
        until(|| session.conversation(has_second)).await;
        medium.syncs(Syncs::Fail);
        let refused = within(accepting).await.unwrap();
        assert!(matches!(refused, Err(RuntimeError::NotStored { .. })), "{refused:?}");
        medium.syncs(Syncs::Pass);
        within(session.wait(&first.prompt_id)).await.unwrap();
        let again = run(&session, says_as("p", "other words")).await;
        assert_eq!(again.reason(), EndReason::Completed);
        let conversation = world.conversation(session.id()).await;
        let claimed: Vec<Vec<PromptId>> = conversation
            .turns()
            .iter()
            .map(|turn| {
                let steps = turn.steps.iter().flat_map(|step| &step.prompt_ids);
                turn.prompt_ids.iter().chain(steps).cloned().collect()
            })
            .collect();
        assert_eq!(claimed, [vec![first.prompt_id], vec![prompt_id("p")]], "{target:?}");
    }
}

/// The types of the records that a subscriber has been shown and not taken yet.
fn shown(subscription: &mut Subscription) -> Vec<String> {
    let mut out = Vec::new();
    while let Some(Some(update)) = subscription.next().now_or_never() {
        if let Update::Record(record) = update {
            out.push(record.event.kind().to_owned());
        }
    }
    out
}

async fn next_of_kind(subscription: &mut Subscription, kind: &str) -> Arc<Record> {
    loop {
        match within(subscription.next()).await.expect("the session is open") {
            Update::Record(record) if record.event.kind() == kind => return record,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_shown_once_it_is_durable() {
    let (world, medium) = gated(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    medium.syncs(Syncs::Wait);
    let queueing = tokio::spawn({
        let session = session.clone();
        async move { session.queue(says("hello")).await }
    });
    medium.is_waited_for().await;
    assert_eq!(shown(&mut subscription), Vec::<String>::new());
    medium.syncs(Syncs::Pass);
    let accepted = queueing.await.unwrap().unwrap();
    assert_eq!(shown(&mut subscription), ["session/config", "prompt/queued"]);
    session.run_queue();
    within(session.wait(&accepted.prompt_id)).await.unwrap();
    let log = world.log(session.id()).await;
    // One that comes later is shown the same, in order and without gaps.
    let mut late = session.subscribe(1);
    let all: Vec<_> = log.records.iter().map(|record| record.event.kind().to_owned()).collect();
    assert_eq!(shown(&mut late), all);
    assert_eq!(shown(&mut session.subscribe(5)), all[4..]);
}

// A message or result that was shown as finished would have been lost by a power failure while a person thinks.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_finished_becomes_durable_while_something_else_takes_its_time() {
    let world = World::new(Wire::Anthropic);
    let parts = Parts { level: Some(Default::default()), asker: Some(Arc::new(Silent)), ..Parts::default() };
    let sessions = world.sessions_with(parts);
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    world.server.push(count("a"));
    session.prompt(says("hello")).await.unwrap();
    next_of_kind(&mut subscription, "message/assistant").await;
    assert!(world.ran().is_empty());
    within(session.cancel()).await;

    let gate = Gate::default();
    let sessions = world.sessions_with(Parts { gate: gate.clone(), ..Parts::default() });
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    let reply =
        Reply::call("look", json!({"line": "slow", "wait": true})).and_call("look", json!({"line": "quick"}));
    world.server.push(reply);
    let accepted = session.prompt(says("hello")).await.unwrap();
    let result = next_of_kind(&mut subscription, "tool/result").await;
    assert!(matches!(&result.event, Event::ToolResult(data) if text_of(&data.content) == "saw quick"));
    gate.open();
    let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!(outcome.reason(), EndReason::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_falls_behind_loses_live_pieces_but_no_record() {
    let world = World::new(Wire::Anthropic);
    let model: Arc<dyn Model> = Arc::new(Practice::new().with_pace(Duration::ZERO));
    let sessions = world.sessions_with(Parts { model: Some(model), ..Parts::default() });
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    let calls = "use look {\"line\":\"x\"}\n".repeat(300);
    for prompt in ["say 2000 words", calls.as_str(), "say 2000 words"] {
        run(&session, says(prompt)).await;
    }
    let last = world.log(session.id()).await.last;
    assert!(last > 600, "{last}");
    let mut seqs = Vec::new();
    while seqs.last() != Some(&last) {
        if let Update::Record(record) = within(subscription.next()).await.expect("the session is open") {
            seqs.push(record.seq);
        }
    }
    assert_eq!(seqs, (1..=last).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_ends_with_its_session() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    run(&session, says("hello")).await;
    session.close().await.unwrap();
    let mut last = String::new();
    while let Some(update) = within(subscription.next()).await {
        if let Update::Record(record) = update {
            last = record.event.kind().to_owned();
        }
    }
    assert_eq!(last, "turn/end");
}
