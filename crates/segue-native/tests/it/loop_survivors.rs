//! Calls that outlived their process: ended at the next opening, or waited for.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use segue_log::*;
use segue_runtime::{RuntimeError, Sessions};
use segue_testkit::Wire;
use segue_tool::{Known, OpenCall, Scope, Tool, ToolContext, ToolOutput};
use serde_json::{Value, json};

use crate::loop_story::*;
use crate::world::*;

/// A tool that knows of its calls what it is told, and whether it was asked to end them.
#[derive(Clone)]
struct Survivor {
    known: Arc<Mutex<Known>>,
    asked_to_end: Arc<Mutex<Vec<bool>>>,
    schema: Value,
}

impl Survivor {
    fn new(known: Known) -> Self {
        let asked_to_end = Arc::default();
        Self { known: Arc::new(Mutex::new(known)), asked_to_end, schema: json!({"type": "object"}) }
    }

    fn comes_to(&self, known: Known) {
        *self.known.lock().unwrap() = known;
    }

    fn sessions(&self, world: &World, wait_for_survivors: bool) -> Sessions {
        let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(self.clone())];
        world.sessions_with(Parts { tools, wait_for_survivors, ..Parts::default() })
    }
}

#[async_trait]
impl Tool for Survivor {
    fn name(&self) -> &str {
        "outlive"
    }

    fn description(&self) -> &str {
        "Goes on without its process."
    }

    fn input_schema(&self) -> &Value {
        &self.schema
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn action(&self, _input: &Value, _scope: &Scope) -> Action {
        let (kind, subject) = (ActionKind::Read, String::new());
        Action { kind, subject, shown: "outlive".into(), rule: "outlive".into() }
    }

    async fn run(&self, _input: Value, _context: &ToolContext) -> ToolOutput {
        ToolOutput::ok("ran again")
    }

    async fn evidence(&self, _call: &OpenCall, _scope: &Scope, end: bool) -> Known {
        self.asked_to_end.lock().unwrap().push(end);
        self.known.lock().unwrap().clone()
    }
}

/// A log whose process died while a call of `outlive` ran, on `host`.
async fn died_running(world: &World, host: &str) -> SessionId {
    let (tool, input) = ("outlive".to_owned(), json!({}));
    let (call_id, provider_id) = (call_id("c1"), "toolu_1".to_owned());
    let request = Block::ToolRequest {
        call_id: call_id.clone(),
        provider_id: provider_id.clone(),
        tool: tool.clone(),
        input: input.clone(),
    };
    let message = MessageAssistant {
        turn: 1,
        step: 1,
        attempt: 1,
        content: vec![request],
        usage: Usage::default(),
        stop: Some("tools".into()),
        interrupted: false,
        replayed: false,
    };
    let entered = ToolCall {
        turn: 1,
        step: 1,
        call_id,
        provider_id,
        tool,
        input,
        effect: Effect::Write,
        expect: None,
        origin: Origin::Dispatched,
        host: host.into(),
        boot: "test-boot".into(),
        replayed: false,
    };
    left_behind(world, [begun("outlive me"), vec![message.into(), entered.into()]].concat()).await
}

fn result(conversation: &Conversation) -> (Option<String>, String, bool) {
    let result = conversation.call(&call_id("c1")).and_then(|call| call.result()).unwrap();
    (result.code.clone(), text_of(&result.content), result.recovered)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_of_a_survivor_is_what_the_model_is_told() {
    let unknown = || Some(code::OUTCOME_UNKNOWN.to_owned());
    let output = || "half".to_owned();
    for (known, told, code, text) in [
        (Known::Nothing, RepairOutcome::Unknown, unknown(), "outcome of this call is unknown"),
        (Known::Ended { output: output(), by_us: true }, RepairOutcome::Unknown, unknown(), "was ended then"),
        (
            Known::Ended { output: output(), by_us: false },
            RepairOutcome::Unknown,
            unknown(),
            "Its output so far:\nhalf",
        ),
        (Known::Result(ToolOutput::ok("real")), RepairOutcome::Recovered, None, "real"),
        (
            Known::Result(ToolOutput::error(code::NOT_APPLIED, "not applied")),
            RepairOutcome::Recovered,
            Some(code::NOT_APPLIED.to_owned()),
            "not applied",
        ),
    ] {
        let world = World::new(Wire::Anthropic);
        let id = died_running(&world, HOST).await;
        let survivor = Survivor::new(known.clone());
        let (session, report) = survivor.sessions(&world, false).open(id).await.unwrap();
        assert_eq!(report.repaired, vec![(call_id("c1"), "outlive".into(), told)], "{known:?}");
        assert_eq!(*survivor.asked_to_end.lock().unwrap(), [true]);
        let conversation = world.conversation(id).await;
        let (told_code, told_text, recovered) = result(&conversation);
        assert_eq!((told_code, recovered), (code, told == RepairOutcome::Recovered), "{known:?}");
        assert!(told_text.contains(text), "{told_text}");
        is_truthful(&conversation);
        finish(&session).await;
        assert_eq!(world.server.violations(), Vec::<String>::new());
    }
}

// Another machine's processes and files say nothing of a call that ran there.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_another_machine_is_not_judged_by_this_one() {
    let world = World::new(Wire::Anthropic);
    let id = died_running(&world, "elsewhere").await;
    let survivor = Survivor::new(Known::Result(ToolOutput::ok("not that one")));
    let (_session, report) = survivor.sessions(&world, false).open(id).await.unwrap();
    assert_eq!(report.repaired[0].2, RepairOutcome::Unknown);
    assert_eq!(*survivor.asked_to_end.lock().unwrap(), Vec::<bool>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_survivor_that_is_waited_for_gives_its_result_before_anything_else_runs() {
    for finishes in [true, false] {
        let world = World::new(Wire::OpenAi);
        let id = died_running(&world, HOST).await;
        let survivor = Survivor::new(Known::Running { output: "half".into() });
        let sessions = survivor.sessions(&world, true);
        let (session, report) = sessions.open(id).await.unwrap();
        assert_eq!(report.repaired, vec![(call_id("c1"), "outlive".into(), RepairOutcome::Running)]);
        assert!(world.conversation(id).await.open_turn().is_some());
        let settled = session.settle(&call_id("c1"), Settlement::Done, "", "me").await;
        assert!(matches!(settled, Err(RuntimeError::NothingToSettle { .. })), "{settled:?}");
        let turn = if finishes {
            session.finish().await.unwrap()
        } else {
            session.prompt(says("and now?")).await.unwrap();
            2
        };
        // It is looked at again, more than once, and nothing is sent meanwhile.
        until(|| (survivor.asked_to_end.lock().unwrap().len() >= 3).then_some(())).await;
        assert_eq!(world.server.bodies().len(), 0);
        survivor.comes_to(Known::Result(ToolOutput::ok("the real result")));
        let outcome = within(session.wait_turn(turn)).await.unwrap();
        assert_eq!((outcome.turn, outcome.reason()), (2, EndReason::Completed));
        let conversation = world.conversation(id).await;
        assert_eq!(result(&conversation), (None, "the real result".into(), true));
        is_truthful(&conversation);
        let more = if finishes { "" } else { " | and now?" };
        let expected = ["user: outlive me", "assistant: outlive{}", &format!("user: =the real result{more}")];
        assert_eq!(sent(&world.server.bodies()[0]), expected);
        assert_eq!(world.server.violations(), Vec::<String>::new());
        assert!(survivor.asked_to_end.lock().unwrap().iter().all(|end| !end));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_waits_for_a_survivor_can_be_closed_and_goes_on_waiting_when_reopened() {
    let world = World::new(Wire::Anthropic);
    let id = died_running(&world, HOST).await;
    let survivor = Survivor::new(Known::Running { output: String::new() });
    let (session, _) = survivor.sessions(&world, true).open(id).await.unwrap();
    let accepted = session.prompt(says("and now?")).await.unwrap();
    within(session.close()).await.unwrap();
    let (session, report) = survivor.sessions(&world, true).open(id).await.unwrap();
    assert_eq!((report.queued, report.was_interrupted), (1, true));
    survivor.comes_to(Known::Result(ToolOutput::ok("done")));
    session.run_queue();
    let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!((outcome.turn, outcome.reason()), (2, EndReason::Completed));
    is_truthful(&world.conversation(id).await);
}
