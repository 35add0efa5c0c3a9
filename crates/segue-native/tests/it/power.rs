//! The power fails, or the process dies, at a random operation of whole sessions: prompts, calls, compactions, repairs, on
//! a medium that also fails now and then. Each seed is one session with several lives; it is printed if a promise is
//! broken, and brings the same chances again.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use segue_log::{CallId, EndReason, Outcome, Policy, PromptId, Record, Seq, SessionId, code};
use segue_runtime::{RuntimeError, Session, Sessions, Update};
use segue_store::{ReadLog, Store, StoreError};
use segue_testkit::disk::{Fault, Hook, Op, OpKind, SimDisk, Verdict};
use tokio::sync::Notify;

use crate::world::{Place, Sim, answer_of, calm, finish, fold, run, says, within};

/// Sessions in one test, unless [`MORE`] says otherwise.
const SESSIONS: u64 = 120;

/// The variable that holds another number of sessions, for a long run.
const MORE: &str = "SEGUE_TEST_SESSIONS";

/// Lets a number of operations pass, then fails all: the process is dead. Before, some may fail as on a bad medium.
struct Mortal {
    random: Mutex<StdRng>,
    left: Mutex<Option<usize>>,
    /// Death waits for the next sync of the log, when there is most to lose.
    at_a_sync: bool,
    /// One operation in so many fails; 0 is none.
    faulty: u32,
    died: Notify,
    disk: SimDisk,
}

impl Mortal {
    fn is_dead(&self) -> bool {
        *self.left.lock().unwrap() == Some(0)
    }
}

impl Hook for Mortal {
    fn before(&self, op: &Op) -> Verdict {
        let mut left = self.left.lock().unwrap();
        if let Some(count) = left.as_mut() {
            let is_due = *count > 1 || !self.at_a_sync || op.name() == "sync log.jsonl";
            if op.kind.changes() && is_due {
                *count = count.saturating_sub(1);
            }
            if *count == 0 {
                // What the dead process had on its way to the disk is lost by chance, not by a failed sync.
                self.disk.drop_on_failed_sync(false);
                self.died.notify_one();
                return Verdict::Fail(Fault::Io);
            }
        }
        let mut random = self.random.lock().unwrap();
        if !op.kind.changes() || self.faulty == 0 || !random.random_ratio(1, self.faulty) {
            return Verdict::Go;
        }
        let fault = if random.random() { Fault::NoSpace } else { Fault::Io };
        match op.kind {
            OpKind::Write => Verdict::Torn(random.random_range(0..200), fault),
            _ => Verdict::Fail(fault),
        }
    }
}

/// What many sessions came through: schedules that never get anywhere prove nothing.
#[derive(Debug, Default)]
struct Reached {
    turns: usize,
    interrupted: usize,
    cuts: usize,
    not_started: usize,
    unknown: usize,
    ran: usize,
}

impl Reached {
    fn add(&mut self, log: &ReadLog, ran: usize) {
        let conversation = fold(log);
        self.turns += conversation.turns().len();
        let ends = conversation.turns().iter().filter_map(|turn| turn.end.as_ref());
        self.interrupted += ends.filter(|(_, end)| end.reason == EndReason::Interrupted).count();
        self.cuts += conversation.repairs().len();
        let results =
            conversation.turns().iter().flat_map(|turn| turn.calls()).filter_map(|call| call.result());
        let codes: Vec<&str> = results.filter_map(|result| result.code.as_deref()).collect();
        self.not_started += codes.iter().filter(|code| **code == code::NOT_STARTED).count();
        self.unknown += codes.iter().filter(|code| **code == code::OUTCOME_UNKNOWN).count();
        self.ran += ran;
    }
}

/// What the outside knows: it must hold for ever.
#[derive(Default)]
struct Known {
    session: Option<SessionId>,
    accepted: Vec<PromptId>,
    /// Turns that were seen to end, with their answers.
    ended: Vec<(u64, String)>,
    /// Records as subscribers saw them.
    seen: BTreeMap<Seq, Arc<Record>>,
    /// Records that were shown as one thing and later as another.
    changed: Vec<Seq>,
}

struct Life<'a> {
    sim: &'a Sim,
    place: Place,
    policy: Policy,
    known: Arc<Mutex<Known>>,
    hook: Arc<Mortal>,
}

impl Life<'_> {
    fn sessions(&self) -> Sessions {
        let mut parts = self.sim.parts();
        parts.policy = self.policy;
        self.place.sessions(parts)
    }

    /// What is done until death comes.
    async fn live(&self, random: &mut StdRng) {
        tokio::select! {
            () = self.hook.died.notified() => {}
            () = self.act(random) => {}
        }
    }

    async fn act(&self, random: &mut StdRng) {
        let Some(session) = self.enter().await else { return };
        for _ in 0..random.random_range(1..9) {
            self.do_something(&session, random).await;
        }
        // At its end, too, death may come before or after what is still under way.
        if random.random() {
            let closed = session.close().await;
            assert!(closed.is_ok() || self.hook.faulty > 0 || self.hook.is_dead(), "{closed:?}");
        }
    }

    async fn enter(&self) -> Option<Session> {
        let known = self.known.lock().unwrap().session;
        let there = match known {
            Some(id) => Some(id),
            // A session whose making was not acknowledged may be there all the same.
            None => self.place.store().ids_with_prefix("", 1).await.ok()?.first().copied(),
        };
        let sessions = self.sessions();
        let made = match there {
            None => sessions.create(self.place.new_session()).await,
            Some(id) => sessions.open(id).await.map(|(session, _)| session),
        };
        let session = match made {
            Ok(session) => session,
            Err(error) => {
                let is_io = matches!(&error, RuntimeError::Store(StoreError::Io { .. }));
                assert!(is_io && (self.hook.is_dead() || self.hook.faulty > 0), "{error}");
                return None;
            }
        };
        self.known.lock().unwrap().session = Some(session.id());
        let (mut subscription, known) = (session.subscribe(1), self.known.clone());
        tokio::spawn(async move {
            while let Some(update) = subscription.next().await {
                if let Update::Record(record) = update {
                    let mut known = known.lock().unwrap();
                    let before = known.seen.insert(record.seq, record.clone());
                    if before.is_some_and(|before| before != record) {
                        known.changed.push(record.seq);
                    }
                }
            }
        });
        Some(session)
    }

    async fn do_something(&self, session: &Session, random: &mut StdRng) {
        let number = random.random_range(0..1000);
        let text = match random.random_range(0..8) {
            0 => "remember the number 42".to_owned(),
            1 | 2 => format!("use count {{\"line\":\"{number}\"}}\nuse look {{\"line\":\"{number}\"}}"),
            3 => format!(
                "use look {{\"line\":\"{number}\"}}\nuse look {{\"line\":\"b\"}}\nuse count {{\"line\":\"c\"}}"
            ),
            4 => format!("use relay {{\"tool\":\"count\",\"input\":{{\"line\":\"{number}\"}}}}"),
            5 => format!("say {} words", number % 700),
            6 => "long ".repeat(9_000),
            _ => "hello".to_owned(),
        };
        match random.random_range(0..10) {
            0 => drop(session.compact().await),
            1 | 2 => {
                if let Ok(turn) = session.finish().await {
                    self.see_end(session, turn).await;
                }
            }
            3 => {
                // Not waited for: what comes next comes into it.
                self.accept(session, &text).await;
            }
            4 => {
                if self.accept(session, &text).await.is_some() {
                    tokio::time::sleep(Duration::from_millis(random.random_range(0..400))).await;
                    session.cancel().await;
                }
            }
            _ => {
                if let Some(id) = self.accept(session, &text).await
                    && let Some(outcome) = session.wait(&id).await
                {
                    self.see_end(session, outcome.turn).await;
                }
            }
        }
    }

    async fn accept(&self, session: &Session, text: &str) -> Option<PromptId> {
        let accepted = session.prompt(says(text)).await.ok()?;
        self.known.lock().unwrap().accepted.push(accepted.prompt_id.clone());
        Some(accepted.prompt_id)
    }

    async fn see_end(&self, session: &Session, turn: u64) {
        if let Some(outcome) = session.wait_turn(turn).await
            && outcome.not_stored.is_none()
        {
            self.known.lock().unwrap().ended.push((turn, session.answer_text(turn)));
        }
    }

    /// What must hold of the log as it is found after a crash, before anything is repaired.
    async fn check_found(&self, id: SessionId) {
        let log = self.place.log(id).await;
        let is_lost_end = log.damage.as_ref().is_none_or(|what| what.starts_with("its end was lost"));
        assert!(is_lost_end, "{:?}", log.damage);
        self.check_known(&log);
        if self.policy == Policy::Semantic {
            let headers = log.records.iter().filter(|record| record.event.kind() == "request/header").count();
            assert!(
                self.sim.model.sent() <= headers,
                "{} requests, {headers} recorded",
                self.sim.model.sent()
            );
            let conversation = fold(&log);
            for id in self.place.ran_calls() {
                let call = conversation.call(&id).unwrap_or_else(|| panic!("{id} ran and is not in the log"));
                assert!(call.dispatched.is_some(), "{id} ran without its tool/call");
            }
        }
    }

    fn check_known(&self, log: &ReadLog) {
        let known = self.known.lock().unwrap();
        assert_eq!(known.changed, Vec::<Seq>::new());
        let conversation = fold(log);
        for id in &known.accepted {
            assert!(conversation.prompt(id).is_some(), "accepted prompt {id} is lost");
        }
        for (turn, answer) in &known.ended {
            let held = conversation.turn(*turn).unwrap_or_else(|| panic!("turn {turn} is lost"));
            assert!(held.end.is_some(), "the end of turn {turn} is lost");
            assert_eq!(&answer_of(&conversation, *turn), answer);
        }
        for (seq, record) in &known.seen {
            let at = usize::try_from(*seq).unwrap() - 1;
            assert_eq!(log.records.get(at), Some(record), "what was shown as record {seq}");
        }
    }

    /// What must hold of a log that was repaired.
    fn check_repaired(&self, log: &ReadLog) {
        self.check_known(log);
        let conversation = fold(log);
        assert!(conversation.open_calls().next().is_none());
        let ran = self.place.ran_calls();
        let distinct: HashSet<&CallId> = ran.iter().collect();
        assert_eq!(distinct.len(), ran.len(), "no call runs twice");
        for call in conversation.turns().iter().flat_map(|turn| turn.calls()) {
            let (result, has_run) = (call.result().unwrap(), distinct.contains(&call.call_id));
            let is_not_started = result.code.as_deref() == Some(code::NOT_STARTED);
            assert!(!(has_run && is_not_started), "{} ran and is called not started", call.call_id);
            assert!(
                has_run || result.outcome == Outcome::Error,
                "{} is called done and did not run",
                call.call_id
            );
        }
    }
}

/// One session, through several deaths, to a life without any.
fn one_session(seed: u64, policy: Policy, reached: &mut Reached) {
    let mut random = StdRng::seed_from_u64(seed);
    let page = [64, 256, 4096][random.random_range(0..3)];
    let sim = Sim::new(seed, page);
    let known = Arc::new(Mutex::new(Known::default()));
    let faulty = if random.random() { random.random_range(8..60) } else { 0 };
    for life in 0..=random.random_range(1..4) {
        let most = [20, 60, 160][random.random_range(0..3)];
        // The making of a session takes some twenty operations.
        let left = Some(random.random_range(1..most) + if life == 0 { 15 } else { 0 });
        lives(&sim, &known, policy, &mut random, left, faulty);
        match random.random_range(0..7) {
            0 => sim.disk.kill(),
            1 => sim.disk.power_off(0.0),
            2 => sim.disk.power_off(1.0),
            _ => sim.disk.power_off(random.random_range(0.1..0.9)),
        }
    }
    let log = ends_well(&sim, &known, policy, seed);
    reached.add(&log, sim.place(Arc::new(immortal(&sim.disk))).ran().len());
}

/// One life of the process.
fn lives(
    sim: &Sim,
    known: &Arc<Mutex<Known>>,
    policy: Policy,
    random: &mut StdRng,
    left: Option<usize>,
    faulty: u32,
) {
    sim.disk.drop_on_failed_sync(true);
    let chances = StdRng::seed_from_u64(random.random());
    let hook = Arc::new(Mortal {
        random: Mutex::new(chances),
        left: Mutex::new(left),
        faulty,
        ..immortal(&sim.disk)
    });
    let runtime = calm();
    runtime.block_on(async {
        // The look at what is left is no part of the life: nothing fails in it.
        let onlooker = life(sim, known, policy, &Arc::new(immortal(&sim.disk)));
        let id = known.lock().unwrap().session;
        if let Some(id) = id {
            onlooker.check_found(id).await;
        }
        life(sim, known, policy, &hook).live(random).await;
    });
    drop(runtime);
}

fn life<'a>(sim: &'a Sim, known: &Arc<Mutex<Known>>, policy: Policy, hook: &Arc<Mortal>) -> Life<'a> {
    Life { sim, place: sim.place(hook.clone()), policy, known: known.clone(), hook: hook.clone() }
}

fn immortal(disk: &SimDisk) -> Mortal {
    Mortal {
        random: Mutex::new(StdRng::seed_from_u64(0)),
        left: Mutex::new(None),
        at_a_sync: false,
        faulty: 0,
        died: Notify::new(),
        disk: disk.clone(),
    }
}

/// After all that the session opens, all that is known of it holds, and it goes on.
fn ends_well(sim: &Sim, known: &Arc<Mutex<Known>>, policy: Policy, seed: u64) -> ReadLog {
    calm().block_on(async {
        let life = life(sim, known, policy, &Arc::new(immortal(&sim.disk)));
        let id = known.lock().unwrap().session;
        if let Some(id) = id {
            life.check_found(id).await;
        }
        let session = life.enter().await.expect("it opens");
        let id = session.id();
        life.check_repaired(&life.place.log(id).await);
        if seed.is_multiple_of(2) && session.conversation(|conversation| conversation.is_interrupted()) {
            within(finish(&session)).await;
        }
        for (text, answer) in [("remember the number 42", "Noted: 42."), ("what number", "The number is 42.")]
        {
            let outcome = run(&session, says(text)).await;
            assert_eq!((outcome.reason(), outcome.not_stored), (EndReason::Completed, None));
            assert_eq!(session.answer_text(outcome.turn), answer);
        }
        session.close().await.unwrap();
        let log = life.place.log(id).await;
        assert_eq!(log.damage, None);
        life.check_repaired(&log);
        assert!(fold(&log).open_turn().is_none());
        let check = life.place.store().check().await.unwrap();
        // Sessions that died in the making are named by the check, and by nothing else.
        let is_draft =
            |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().starts_with(".new-");
        assert!(check.findings.iter().all(|(path, _)| is_draft(path)), "{:?}", check.findings);
        assert_eq!(check.sound, 1);
        log
    })
}

fn many_sessions(policy: Policy, first: u64) -> Reached {
    let mut reached = Reached::default();
    let sessions = std::env::var(MORE).map_or(SESSIONS, |number| number.parse().unwrap());
    for seed in first..first + sessions {
        let result = catch_unwind(AssertUnwindSafe(|| one_session(seed, policy, &mut reached)));
        assert!(result.is_ok(), "seed {seed}, policy {policy:?}");
    }
    let least =
        [reached.turns / 400, reached.interrupted / 20, reached.cuts, reached.unknown, reached.ran / 100];
    assert!(least.iter().all(|reached| *reached > 0), "{reached:?}");
    reached
}

#[test]
fn what_was_promised_outlives_the_power() {
    let reached = many_sessions(Policy::Semantic, 1_000);
    assert!(reached.not_started > 0, "{reached:?}");
}

#[test]
fn what_was_promised_outlives_the_power_under_policy_turn() {
    let reached = many_sessions(Policy::Turn, 1_000_000);
    assert_eq!(reached.not_started, 0, "without records of calls nobody knows: {reached:?}");
}
