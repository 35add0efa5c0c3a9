//! Logs that a crash left long ago, in shapes that nothing writes today, and logs that were damaged: what is sent for
//! them is whole, over real HTTP in both formats.

use std::sync::Arc;

use segue_log::*;
use segue_runtime::RuntimeError;
use segue_store::{Store, StoreError};
use segue_testkit::Wire;
use serde_json::json;

use super::child::{Act, Sign};
use super::judge::{GoOn, judge, results};
use super::stage::Script;
use crate::world::{World, finish, run, says, within};

/// Records in short: turns and steps have their numbers, calls their names.
#[derive(Clone, Copy)]
enum Old {
    /// A prompt, and the turn that claims it.
    Turn(u64),
    /// A step and its request.
    Step(u64, u64),
    /// A message that asks for calls of `count`.
    Asks(u64, u64, &'static [&'static str]),
    /// A message of text.
    Says(u64, u64, &'static str),
    /// A call is entered.
    Enters(u64, u64, &'static str),
    /// A call's result.
    Result(u64, u64, &'static str),
    /// Records that belong to nothing.
    Others,
    /// A step and its turn end.
    Ends(u64, u64),
}

fn call_id(name: &str) -> CallId {
    format!("call_{name}").parse().unwrap()
}

impl Old {
    fn events(self) -> Vec<Event> {
        match self {
            Self::Turn(turn) => {
                let prompt_id: PromptId = format!("prompt_{turn}").parse().unwrap();
                let content = vec![Block::text(format!("prompt {turn}; remember the number 42"))];
                let queued = PromptQueued {
                    prompt_id: prompt_id.clone(),
                    content,
                    source: "old".into(),
                    target: PromptFor::Turn,
                };
                let start =
                    TurnStart { turn, prompt_ids: vec![prompt_id], policy: Policy::Semantic, finish: None };
                vec![queued.into(), start.into()]
            }
            Self::Step(turn, step) => {
                let header = RequestHeader {
                    turn: Some(turn),
                    step: Some(step),
                    attempt: 1,
                    purpose: RequestFor::Step,
                    same_as: None,
                    model: Some("anthropic/test".into()),
                    parameters: None,
                    system: None,
                    tools: None,
                };
                vec![StepStart { turn, step, prompt_ids: vec![] }.into(), header.into()]
            }
            Self::Asks(turn, step, names) => {
                let requests = names.iter().map(|name| Block::ToolRequest {
                    call_id: call_id(name),
                    provider_id: format!("toolu_{name}"),
                    tool: "count".into(),
                    input: json!({"line": name}),
                });
                vec![message(turn, step, requests.collect(), "tools")]
            }
            Self::Says(turn, step, text) => vec![message(turn, step, vec![Block::text(text)], "end")],
            Self::Enters(turn, step, name) => vec![
                ToolCall {
                    turn,
                    step,
                    call_id: call_id(name),
                    provider_id: format!("toolu_{name}"),
                    tool: "count".into(),
                    input: json!({"line": name}),
                    effect: Effect::Write,
                    expect: None,
                    origin: Origin::Dispatched,
                    host: String::new(),
                    boot: String::new(),
                    replayed: false,
                }
                .into(),
            ],
            Self::Result(turn, step, name) => vec![
                ToolResult {
                    turn,
                    step,
                    call_id: call_id(name),
                    outcome: Outcome::Ok,
                    code: None,
                    content: vec![Block::text(format!("result of {name}"))],
                    recovered: false,
                    replayed: false,
                }
                .into(),
            ],
            Self::Others => vec![
                SessionTitle { title: "a title".into(), by: "old".into() }.into(),
                Plan { entries: vec![] }.into(),
                Event::Unknown { kind: "of/another-time".into(), data: json!({"turn": 1}) },
            ],
            Self::Ends(turn, step) => vec![
                StepEnd { turn, step }.into(),
                TurnEnd {
                    turn,
                    reason: EndReason::Completed,
                    code: None,
                    message: None,
                    title: String::new(),
                    turns: turn,
                    usage: Usage::default(),
                }
                .into(),
            ],
        }
    }
}

fn message(turn: u64, step: u64, content: Vec<Block>, stop: &str) -> Event {
    MessageAssistant {
        turn,
        step,
        attempt: 1,
        content,
        usage: Usage::default(),
        stop: Some(stop.into()),
        interrupted: false,
        replayed: false,
    }
    .into()
}

/// A world with one session of these records, all durable.
async fn world_of(wire: Wire, old: &[Old]) -> (World, SessionId) {
    let world = World::new(wire);
    let id = SessionId::mint();
    let header =
        Header { segue: FORMAT, id, created: Time::now(), cwd: world.place.work.clone(), parent: None };
    let opened = world.place.store().create(header, "old").await.unwrap();
    for event in old.iter().flat_map(|old| old.events()) {
        opened.writer.append(event).await.unwrap();
    }
    opened.writer.sync().await.unwrap();
    opened.writer.close().await.unwrap();
    (world, id)
}

const NOT_STARTED: &str = "This call was not started";
const UNKNOWN: &str = "The outcome of this call is unknown";

/// Logs, and how the results begin that are sent for them.
fn logs() -> Vec<(&'static str, Vec<Old>, Vec<&'static str>)> {
    use Old::*;
    vec![
        (
            "a call without a result beside one with it",
            vec![
                Turn(1),
                Step(1, 1),
                Asks(1, 1, &["a", "b"]),
                Enters(1, 1, "a"),
                Result(1, 1, "a"),
                Enters(1, 1, "b"),
            ],
            vec!["result of a", UNKNOWN],
        ),
        (
            "a hole in a turn that others follow",
            vec![
                Turn(1),
                Step(1, 1),
                Asks(1, 1, &["a"]),
                Enters(1, 1, "a"),
                Turn(2),
                Step(2, 1),
                Says(2, 1, "ok"),
                Ends(2, 1),
            ],
            vec![UNKNOWN],
        ),
        (
            "a hole in a turn that has an end",
            vec![
                Turn(1),
                Step(1, 1),
                Asks(1, 1, &["a"]),
                Ends(1, 1),
                Turn(2),
                Step(2, 1),
                Says(2, 1, "ok"),
                Ends(2, 1),
            ],
            vec![NOT_STARTED],
        ),
        (
            "only the middle one of three results",
            vec![
                Turn(1),
                Step(1, 1),
                Asks(1, 1, &["a", "b", "c"]),
                Enters(1, 1, "a"),
                Enters(1, 1, "b"),
                Result(1, 1, "b"),
            ],
            vec![UNKNOWN, "result of b", NOT_STARTED],
        ),
        (
            "other records between a call and its result",
            vec![Turn(1), Step(1, 1), Asks(1, 1, &["a"]), Enters(1, 1, "a"), Others, Result(1, 1, "a")],
            vec!["result of a"],
        ),
        (
            "results that came in another order",
            vec![
                Turn(1),
                Step(1, 1),
                Asks(1, 1, &["a", "b"]),
                Enters(1, 1, "a"),
                Enters(1, 1, "b"),
                Result(1, 1, "b"),
                Others,
                Result(1, 1, "a"),
                Ends(1, 1),
            ],
            vec!["result of a", "result of b"],
        ),
        (
            "a result that came after its turn",
            vec![
                Turn(1),
                Step(1, 1),
                Asks(1, 1, &["a"]),
                Enters(1, 1, "a"),
                Ends(1, 1),
                Turn(2),
                Step(2, 1),
                Says(2, 1, "ok"),
                Result(1, 1, "a"),
                Ends(2, 1),
            ],
            vec!["result of a"],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_are_closed_wherever_they_are_and_results_stand_at_their_calls() {
    for (name, old, expected) in logs() {
        for wire in [Wire::Anthropic, Wire::OpenAi] {
            for finishes in [true, false] {
                let (world, id) = world_of(wire, &old).await;
                let (session, report) = world.sessions().open(id).await.unwrap();
                if finishes && report.was_interrupted {
                    assert_eq!(finish(&session).await.reason(), EndReason::Completed, "{name}");
                }
                let outcome = run(&session, says("what number")).await;
                assert_eq!(outcome.reason(), EndReason::Completed, "{name}");
                assert_eq!(session.answer_text(outcome.turn), "The number is 42.", "{name}");
                assert_eq!(world.server.violations(), Vec::<String>::new(), "{name}");
                for request in world.server.requests() {
                    let told = results(&request);
                    let begin = told.len() == expected.len()
                        && told.iter().zip(&expected).all(|(told, begin)| told.starts_with(begin));
                    assert!(begin, "{name}: {told:#?}");
                }
                assert_eq!(world.ran(), Vec::<String>::new(), "{name}: nothing is called again");
                session.close().await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_turn_can_be_compacted() {
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        for (name, old, _) in logs() {
            let (world, id) = world_of(wire, &old).await;
            let (session, _) = world.sessions().open(id).await.unwrap();
            world.server.push(segue_testkit::Reply::text("A summary of it all."));
            assert!(within(session.compact()).await.unwrap(), "{name}");
            let outcome = run(&session, says("what number")).await;
            assert_eq!(session.answer_text(outcome.turn), "The number is 42.", "{name}");
            assert_eq!(world.server.violations(), Vec::<String>::new(), "{name}");
            session.close().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_cut_at_any_byte_of_its_last_record_is_whole_up_to_there() {
    let text = "remember the number 42\nuse count {\"line\":\"a\"}\nuse count {\"line\":\"b\"}";
    let killed = Script::prompt(text).killed_at(Sign::new("after write log.jsonl tool/result", 1)).await;
    let base = Script { act: Act::Resume, base: Some(Arc::new(killed)), ..Script::prompt(text) };
    let mut at = 0;
    loop {
        let world = tempfile::tempdir().unwrap();
        let server = segue_testkit::ModelServer::start().await;
        let order = base.order(&world, &server, None);
        let place = order.place();
        let log = place.log_file(place.only_session().await.unwrap());
        let bytes = std::fs::read(&log).unwrap();
        let begin = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        if begin + at >= bytes.len() {
            break;
        }
        std::fs::write(&log, &bytes[..begin + at]).unwrap();
        judge(&order, &server, if at % 2 == 0 { GoOn::Finish } else { GoOn::Prompt }).await;
        at += 7;
    }
    assert!(at > 100, "the last record has {at} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_line_below_what_was_durable_makes_the_session_read_only_and_is_never_cut() {
    use Old::*;
    let old = [
        Turn(1),
        Step(1, 1),
        Asks(1, 1, &["a", "b"]),
        Enters(1, 1, "a"),
        Result(1, 1, "a"),
        Enters(1, 1, "b"),
        Others,
    ];
    let (world, id) = world_of(Wire::Anthropic, &old).await;
    let whole = world.log(id).await;
    let entered = whole.records.iter().rfind(|record| record.event.kind() == "tool/call").unwrap().seq;
    let file = world.place.log_file(id);
    let mut bytes = std::fs::read(&file).unwrap();
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::len);
    let start: usize = lines.take(usize::try_from(entered).unwrap()).sum();
    bytes[start + 40] ^= 1;
    std::fs::write(&file, &bytes).unwrap();

    let sessions = world.sessions();
    match sessions.open(id).await.map(drop) {
        Err(RuntimeError::Store(StoreError::Damaged { readable, .. })) => assert_eq!(readable, entered - 1),
        other => panic!("{other:?}"),
    }
    let read = world.log(id).await;
    assert_eq!((read.records.len() as u64, read.damage.is_some()), (entered - 1, true));
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "nothing was cut");

    // The copy tells of the call that lost its record what is true: nobody knows.
    let report = world.place.store().repair(id, SessionId::mint()).await.unwrap();
    assert_eq!((report.kept, report.damaged), (whole.records.len() as u64 - 1, 1));
    let (session, opened) = sessions.open(report.header.id).await.unwrap();
    let repaired: Vec<_> = opened.repaired.iter().map(|(id, _, outcome)| (id.clone(), *outcome)).collect();
    assert_eq!(repaired, [(call_id("b"), RepairOutcome::Unknown)]);
    assert_eq!(finish(&session).await.reason(), EndReason::Completed);
    assert_eq!(world.server.violations(), Vec::<String>::new());
    session.close().await.unwrap();
}
