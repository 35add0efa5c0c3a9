//! The medium fails at every operation of a turn, once or lastingly, full or broken. What fails is told and not done,
//! the session lives on, and what was acknowledged stays.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use segue_log::{EndReason, Record, code};
use segue_runtime::{RuntimeError, Session, Update};
use segue_store::{Store, StoreError};
use segue_testkit::disk::{Fault, Hook, Op, OpKind, Verdict};
use tokio::sync::watch;

use crate::world::{Place, Sim, calm, finish, fold, kinds, run, says, says_as, within};

const SYNC: &str = "sync log.jsonl";

/// Which operation fails, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    /// Which one, from 1, of those that change something.
    nth: usize,
    fault: Fault,
    /// All later ones fail too, until the fault is cleared.
    lasts: bool,
    /// A write that fails leaves some bytes.
    torn: bool,
    /// A failed sync drops the pages, as Linux does.
    drops: bool,
}

/// Fails operations as planned, from when it is armed until it is cleared.
#[derive(Default)]
struct Failing {
    plan: Mutex<Option<Plan>>,
    seen: AtomicUsize,
    names: Mutex<Vec<String>>,
}

impl Failing {
    fn arm(&self, plan: Option<Plan>) {
        self.seen.store(0, Ordering::SeqCst);
        self.names.lock().unwrap().clear();
        *self.plan.lock().unwrap() = plan;
    }

    fn names(&self) -> Vec<String> {
        self.names.lock().unwrap().clone()
    }
}

impl Hook for Failing {
    fn before(&self, op: &Op) -> Verdict {
        if !op.kind.changes() {
            return Verdict::Go;
        }
        self.names.lock().unwrap().push(op.name());
        let at = self.seen.fetch_add(1, Ordering::SeqCst) + 1;
        match *self.plan.lock().unwrap() {
            Some(plan) if at == plan.nth || (plan.lasts && at > plan.nth) => {
                if plan.torn && op.kind == OpKind::Write {
                    Verdict::Torn(7, plan.fault)
                } else {
                    Verdict::Fail(plan.fault)
                }
            }
            _ => Verdict::Go,
        }
    }
}

/// The boundary of a turn with one call that a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hit {
    Nothing,
    Accept,
    FirstRequest,
    Dispatch,
    SecondRequest,
    TurnEnd,
}

impl Hit {
    /// What the `nth` of the operations of a turn without faults belongs to. A write that fails once is made up for by the
    /// next boundary; so is all but the sync of the log itself.
    fn of(names: &[String], plan: Plan) -> Self {
        let before = names[..plan.nth - 1].iter().filter(|name| *name == SYNC).count();
        if !plan.lasts && names[plan.nth - 1] != SYNC {
            return Self::Nothing;
        }
        match before {
            0 => Self::Accept,
            1 => Self::FirstRequest,
            2 => Self::Dispatch,
            3 => Self::SecondRequest,
            4 => Self::TurnEnd,
            _ => Self::Nothing,
        }
    }
}

/// How a turn went: its reason and code, whether its end was stored, the requests sent and the lines that tools left.
type Went = (EndReason, Option<String>, bool, usize, Vec<String>);

/// What section "Boundaries" says of a hit.
fn right(hit: Hit, lasts: bool) -> Went {
    let failed = || Some(code::CHECKPOINT_FAILED.to_owned());
    let ran = || vec!["a".to_owned()];
    match hit {
        Hit::Nothing => (EndReason::Completed, None, true, 2, ran()),
        Hit::Accept => unreachable!("there is no turn"),
        Hit::FirstRequest => (EndReason::Failed, failed(), !lasts, 0, vec![]),
        // The call gets its result, and the turn goes on: into the next boundary.
        Hit::Dispatch if lasts => (EndReason::Failed, failed(), false, 1, vec![]),
        Hit::Dispatch => (EndReason::Completed, None, true, 2, vec![]),
        Hit::SecondRequest => (EndReason::Failed, failed(), !lasts, 1, ran()),
        Hit::TurnEnd => (EndReason::Completed, None, false, 2, ran()),
    }
}

const CALL: &str = "remember the number 42\nuse count {\"line\":\"a\"}";

/// The operations of the turn without faults.
fn operations(text: &str) -> Vec<String> {
    let sim = Sim::new(1, 4096);
    calm().block_on(async {
        let hook = Arc::new(Failing::default());
        let place = sim.place(hook.clone());
        let session = place.create(&place.sessions(sim.parts())).await;
        hook.arm(None);
        let outcome = run(&session, says(text)).await;
        assert_eq!(outcome.reason(), EndReason::Completed);
        hook.names()
    })
}

/// Runs a turn into a fault, clears it, goes on, and looks at what is on the disk in the end.
async fn run_into(sim: &Sim, text: &str, plan: Plan, hit: Hit) {
    sim.disk.drop_on_failed_sync(plan.drops);
    let hook = Arc::new(Failing::default());
    let place = sim.place(hook.clone());
    let session = place.create(&place.sessions(sim.parts())).await;
    let seen = Shown::to(&session);
    hook.arm(Some(plan));

    let accepted = session.prompt(says_as("p1", text)).await;
    if hit == Hit::Accept {
        refuses(&session, sim, accepted, text, plan).await;
        hook.arm(None);
        // Its id is free, also for other content.
        let other = format!("{text} ");
        let outcome = run(&session, says_as("p1", &other)).await;
        assert_eq!((outcome.reason(), outcome.not_stored), (EndReason::Completed, None));
    } else {
        assert!(!accepted.expect("it is accepted").again);
        let outcome = within(session.wait(&"p1".parse().unwrap())).await.unwrap();
        let mut is_stored = outcome.not_stored.is_none();
        if hit == Hit::TurnEnd {
            within(seen.told(code::CHECKPOINT_FAILED)).await;
            // What failed once is made up for at once, perhaps before we look.
            is_stored &= plan.lasts;
        }
        let went = (outcome.end.reason, outcome.end.code, is_stored, sim.model.sent(), place.ran());
        assert_eq!(went, right(hit, plan.lasts));
        if !is_stored {
            within(session.wait_idle()).await;
        }
        if plan.lasts && hit != Hit::Nothing {
            let sent = sim.model.sent();
            let refused = session.prompt(says_as("p2", "not now")).await;
            assert!(matches!(refused, Err(RuntimeError::NotStored { .. })), "{refused:?}");
            assert_eq!(sim.model.sent(), sent, "nothing is sent meanwhile");
        }
        hook.arm(None);
        if hit == Hit::FirstRequest {
            assert_eq!(finish(&session).await.reason(), EndReason::Completed, "it can be taken up");
        }
    }
    let outcome = run(&session, says_as("p2", "what number")).await;
    assert_eq!((outcome.reason(), outcome.not_stored), (EndReason::Completed, None));
    assert_eq!(session.answer_text(outcome.turn), "The number is 42.");
    let again = within(session.wait(&"p1".parse().unwrap())).await.unwrap();
    assert_eq!(again.not_stored, None, "its end is stored by now");
    is_whole(sim, &place, session, seen).await;
}

/// The prompt is refused and does not count, the second time too while the fault lasts.
async fn refuses(
    session: &Session,
    sim: &Sim,
    first: Result<segue_runtime::Accepted, RuntimeError>,
    text: &str,
    plan: Plan,
) {
    let mut refusals = vec![first];
    if plan.lasts {
        refusals.push(session.prompt(says_as("p1", text)).await);
    }
    for refused in refusals {
        assert!(matches!(refused, Err(RuntimeError::NotStored { what: "the prompt", .. })), "{refused:?}");
    }
    session.conversation(|conversation| {
        assert!(conversation.prompt(&"p1".parse().unwrap()).is_none());
        assert!(conversation.turns().is_empty());
    });
    assert_eq!(sim.model.sent(), 0);
}

/// What a subscriber is shown.
#[derive(Clone)]
struct Shown(Arc<watch::Sender<Seen>>);

#[derive(Default)]
struct Seen {
    /// Each record as it was when it was shown.
    records: Vec<Arc<Record>>,
    /// The codes of notices.
    notices: Vec<String>,
}

impl Shown {
    fn to(session: &Session) -> Self {
        let shown = Self(Arc::default());
        let (mut subscription, to) = (session.subscribe(1), shown.clone());
        tokio::spawn(async move {
            while let Some(update) = subscription.next().await {
                to.0.send_modify(|seen| match update {
                    Update::Record(record) => seen.records.push(record),
                    Update::Notice { code, .. } => seen.notices.push(code),
                    _ => {}
                });
            }
        });
        shown
    }

    /// Waits for a notice.
    async fn told(&self, code: &str) {
        self.0.subscribe().wait_for(|seen| seen.notices.iter().any(|told| told == code)).await.unwrap();
    }

    /// The records, once there are so many.
    async fn records(&self, count: usize) -> Vec<Arc<Record>> {
        self.0.subscribe().wait_for(|seen| seen.records.len() >= count).await.unwrap().records.clone()
    }
}

/// The log on the disk is exactly what was shown, and all of it outlives the power.
async fn is_whole(sim: &Sim, place: &Place, session: Session, seen: Shown) {
    let id = session.id();
    session.close().await.unwrap();
    let before = place.log(id).await;
    assert_eq!(before.damage, None);
    let shown = within(seen.records(before.records.len())).await;
    assert_eq!(shown, before.records, "what was shown is what is stored");
    drop(session);
    sim.disk.power_off(0.0);
    let sessions = place.sessions(sim.parts());
    let (session, report) = sessions.open(id).await.unwrap();
    assert_eq!((report.repaired, report.cuts, report.was_interrupted), (vec![], vec![], false));
    session.close().await.unwrap();
    let after = place.log(id).await;
    assert_eq!(after.records, before.records, "nothing of it is lost with the power");
    let conversation = fold(&after);
    assert!(conversation.turns().iter().all(|turn| turn.end.is_some()), "{:?}", kinds(&after.records));
    assert!(conversation.open_calls().next().is_none());
    let check = place.store().check().await.unwrap();
    assert_eq!((check.sound, check.findings), (1, vec![]));
}

/// Every operation of a turn fails in every way.
fn sweep(text: &str, least: usize) {
    let names = operations(text);
    assert_eq!(names.iter().filter(|name| *name == SYNC).count(), 5, "{names:#?}");
    assert!(names.len() >= least, "{names:#?}");
    for nth in 1..=names.len() {
        for number in 0..16 {
            let is = |bit: u32| number >> bit & 1 == 1;
            let fault = if is(0) { Fault::NoSpace } else { Fault::Io };
            let plan = Plan { nth, fault, lasts: is(1), torn: is(2), drops: is(3) };
            if plan.torn && !names[nth - 1].starts_with("write") {
                continue;
            }
            let hit = Hit::of(&names, plan);
            let sim = Sim::new(nth as u64, if is(3) { 512 } else { 4096 });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                calm().block_on(run_into(&sim, text, plan, hit));
            }));
            assert!(result.is_ok(), "{plan:?} at {}, which hits {hit:?}", names[nth - 1]);
        }
    }
}

#[test]
fn a_turn_with_a_call_whose_every_operation_fails() {
    sweep(CALL, 20);
}

#[test]
fn a_turn_with_contents_too_large_for_a_line_whose_every_operation_fails() {
    sweep(&format!("{CALL}\n{}", "long ".repeat(9_000)), 26);
}

/// Nothing is claimed from the queue while the log cannot be stored, and all of it runs, in order, once it can.
#[test]
fn queued_prompts_wait_for_the_medium_and_then_run_in_order() {
    let names = operations(CALL);
    let last_sync = names.iter().rposition(|name| name == SYNC).unwrap() + 1;
    let sim = Sim::new(1, 4096);
    calm().block_on(async {
        let hook = Arc::new(Failing::default());
        let place = sim.place(hook.clone());
        let session = place.create(&place.sessions(sim.parts())).await;
        let seen = Shown::to(&session);
        for (id, text) in [("p1", CALL), ("p2", "use count {\"line\":\"b\"}"), ("p3", "what number")] {
            session.queue(says_as(id, text)).await.unwrap();
        }
        // All three are stored: of the first turn's syncs the one that accepts it is behind us.
        let before = names.iter().position(|name| name == SYNC).unwrap() + 2;
        let plan = Plan { nth: last_sync - before, fault: Fault::Io, lasts: true, torn: false, drops: true };
        hook.arm(Some(plan));
        session.run_queue();
        let outcome = within(session.wait(&"p1".parse().unwrap())).await.unwrap();
        assert!(outcome.not_stored.is_some(), "{outcome:?}");
        // An hour passes, in which it is tried again and again.
        tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
        assert_eq!((sim.model.sent(), place.ran()), (2, vec!["a".to_owned()]));
        hook.arm(None);
        for id in ["p3", "p2", "p1"] {
            let outcome = within(session.wait(&id.parse().unwrap())).await.unwrap();
            assert_eq!((outcome.reason(), outcome.not_stored), (EndReason::Completed, None), "{id}");
        }
        assert_eq!(
            (session.answer_text(3), place.ran()),
            ("The number is 42.".into(), vec!["a".into(), "b".into()])
        );
        is_whole(&sim, &place, session, seen).await;
    });
}

/// Whether each operation of something fails once or for good, and how.
fn plans(operations: usize) -> impl Iterator<Item = Plan> {
    (1..=operations).flat_map(|nth| {
        [Fault::NoSpace, Fault::Io].into_iter().flat_map(move |fault| {
            [false, true].map(|lasts| Plan { nth, fault, lasts, torn: fault == Fault::NoSpace, drops: true })
        })
    })
}

/// A data folder that cannot be written holds no session, and nothing is sent before one is there.
#[test]
fn a_session_that_cannot_be_made_durable_is_not_made() {
    let made = |plan: Option<Plan>| {
        let sim = Sim::new(1, 512);
        calm().block_on(async {
            let hook = Arc::new(Failing::default());
            let place = sim.place(hook.clone());
            let sessions = place.sessions(sim.parts());
            hook.arm(plan);
            let made = sessions.create(place.new_session()).await;
            let names = hook.names();
            hook.arm(None);
            match (&made, plan) {
                (Ok(_), None) => return names,
                (Err(RuntimeError::Store(StoreError::Io { .. })), Some(_)) => {}
                (other, _) => panic!("{plan:?}: {:?}", other.as_ref().err()),
            }
            assert_eq!(sim.model.sent(), 0);
            // What was begun is whole or not there, and in nobody's way.
            for id in place.store().ids_with_prefix("", 9).await.unwrap() {
                sessions.open(id).await.unwrap().0.close().await.unwrap();
            }
            let session = place.create(&sessions).await;
            assert_eq!(run(&session, says("hello")).await.reason(), EndReason::Completed, "{plan:?}");
            names
        })
    };
    let names = made(None);
    // The last operation writes the first record, which waits in memory for the first prompt.
    let before_the_first_record = names.iter().position(|name| name.ends_with("session/config")).unwrap();
    assert!(before_the_first_record > 10, "{names:#?}");
    for plan in plans(before_the_first_record) {
        made(Some(plan));
    }
}

/// A repair that cannot be stored hands nothing out; the next opening finds the same truth.
#[test]
fn a_session_whose_repair_cannot_be_stored_is_not_opened_and_opens_later() {
    let opened = |plan: Option<Plan>| {
        let sim = Sim::new(1, 512);
        let hook = Arc::new(Failing::default());
        let place = sim.place(hook.clone());
        let id = calm().block_on(async {
            let session = place.create(&place.sessions(sim.parts())).await;
            let calls = "remember the number 42\nuse look {\"line\":\"a\"}\nuse look {\"line\":\"b\",\"wait\":true}\n\
                         use count {\"line\":\"c\"}";
            session.prompt(says(calls)).await.unwrap();
            let has_result = |record: &Arc<Record>| record.event.kind() == "tool/result";
            let seen = Shown::to(&session);
            seen.0.subscribe().wait_for(|seen| seen.records.iter().any(has_result)).await.unwrap();
            session.id()
        });
        sim.disk.kill();
        calm().block_on(async {
            let sessions = place.sessions(sim.parts());
            hook.arm(plan);
            let opened = sessions.open(id).await.map(drop);
            let names = hook.names();
            hook.arm(None);
            let is_right = match &opened {
                // Made up for by the sync; or after it, where it costs nothing.
                Ok(()) => plan.is_none_or(|plan| {
                    let is_made_up_for = !plan.lasts && names[plan.nth - 1].starts_with("write log");
                    is_made_up_for || plan.nth == names.len()
                }),
                Err(RuntimeError::Store(StoreError::Io { .. })) => plan.is_some(),
                Err(_) => false,
            };
            assert!(is_right, "{plan:?}: {opened:?} in {names:#?}");
            let (session, _) = sessions.open(id).await.unwrap();
            let outcomes: Vec<_> = session.conversation(|conversation| {
                assert!(conversation.open_turn().is_none() && conversation.is_interrupted());
                let codes =
                    |call: &segue_log::Call| (call.results.len(), call.result().unwrap().code.clone());
                conversation.turns()[0].calls().map(codes).collect()
            });
            let right = [None, Some(code::OUTCOME_UNKNOWN), Some(code::NOT_STARTED)]
                .map(|code| (1, code.map(str::to_owned)));
            assert_eq!(outcomes, right, "{plan:?}");
            let seen = Shown::to(&session);
            let outcome = run(&session, says("what number")).await;
            assert_eq!(session.answer_text(outcome.turn), "The number is 42.", "{plan:?}");
            assert_eq!(place.ran(), ["a", "b"]);
            is_whole(&sim, &place, session, seen).await;
            names
        })
    };
    let names = opened(None);
    assert!(names.iter().any(|name| name == "write log.jsonl turn/end"), "{names:#?}");
    for plan in plans(names.len()) {
        opened(Some(plan));
    }
}
