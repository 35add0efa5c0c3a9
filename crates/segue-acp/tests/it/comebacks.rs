//! The agent has gone, and the next prompt brings it back: by which way, and what is told of it.

use segue_acp::drive::{ResumeBy, ResumePolicy};
use segue_log::EndReason;
use segue_testkit::fake_agent::{Answer, Script, Step};
use serde_json::{Value, json};

use crate::world::{World, answer, ask};

const NUMBER: &str = "The number is 7.";

/// Tells the agent a number, closes, opens again, asks for it. Gives the answer's outcome and what was resumed how.
async fn round(world: &World) -> (String, Vec<String>) {
    let session = world.begin().await;
    answer(&session, "remember the number 7").await;
    session.close().await.unwrap();
    let session = world.reopen(session.id()).await;
    let outcome = ask(&session, "what number was it?").await;
    let text = match outcome.end.code {
        Some(code) => code,
        None => session.answer_text(outcome.turn),
    };
    session.close().await.unwrap();
    let mut records = world.records(session.id()).await;
    records.retain(|kind| kind.starts_with("agent/bound") || kind.starts_with("agent/resumed"));
    (text, records)
}

async fn check(script: Script, by: ResumeBy, policy: ResumePolicy, text: &str, records: &[&str]) {
    let mut world = World::new(script);
    world.config.resume_by = by;
    world.config.policy = policy;
    assert_eq!(
        round(&world).await,
        (text.to_owned(), records.iter().map(|kind| (*kind).to_owned()).collect())
    );
}

const BOUND: &str = "agent/bound session/new";
const OWES: &str = "agent/bound rehydrate owes transcript";
const PAID: &str = "agent/bound rehydrate";
const REHYDRATED: &str = "agent/resumed rehydrate rehydrated";

#[tokio::test(flavor = "multi_thread")]
async fn each_way_leads_back() {
    let policy = ResumePolicy::default();
    let meta =
        || Script { meta_resume: true, ..Script::with_capabilities(json!({"_meta": {"claudeCode": {}}})) };
    for (script, by, how) in [
        (Script::default(), ResumeBy::Auto, "agent/resumed session/resume resumed"),
        (Script::load_only(), ResumeBy::Auto, "agent/resumed session/load resumed"),
        (meta(), ResumeBy::Auto, "agent/resumed meta resumed"),
        (Script::default(), ResumeBy::Load, "agent/resumed session/load resumed"),
    ] {
        check(script, by, policy, NUMBER, &[BOUND, how]).await;
    }
    check(Script::new_only(), ResumeBy::Auto, policy, NUMBER, &[BOUND, REHYDRATED, OWES, PAID].map(sorted))
        .await;
}

/// The binding stands before the word on it.
fn sorted(kind: &'static str) -> &'static str {
    match kind {
        REHYDRATED => OWES,
        OWES => REHYDRATED,
        kind => kind,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_is_gone_is_rehydrated_or_not_as_the_policy_says() {
    let policy = ResumePolicy::default();
    let gone = || Script { keeps: segue_testkit::fake_agent::Keeps::Nothing, ..Script::default() };
    check(gone(), ResumeBy::Auto, policy, NUMBER, &[BOUND, OWES, REHYDRATED, PAID]).await;
    let fresh = ResumePolicy { rehydrate: false, ..policy };
    let told = ["agent/bound session/new", "agent/bound fresh", "agent/resumed fresh fresh"];
    check(gone(), ResumeBy::Auto, fresh, "I know no number.", &told).await;
    let closed = ResumePolicy { enable_fallback: false, ..policy };
    check(gone(), ResumeBy::Auto, closed, "AGENT_SESSION_GONE", &[BOUND]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_gone_never_becomes_a_new_conversation() {
    let policy = ResumePolicy { max_retries: 1, ..ResumePolicy::default() };
    let internal = |data: Value| Answer::error(-32603, "Internal error", data);
    for (failure, text, records) in [
        (internal(json!({"reason": "thread_active_writer"})).times(9), "AGENT_SESSION_IN_USE", vec![BOUND]),
        (Answer::error(-32000, "Authentication required", Value::Null), "AGENT_LOGIN", vec![BOUND]),
        (internal(json!({"status": 503})).times(9), "AGENT_UNAVAILABLE", vec![BOUND]),
        (internal(json!({"status": 503})), NUMBER, vec![BOUND, "agent/resumed session/resume resumed"]),
        (internal(Value::Null), NUMBER, vec![BOUND, "agent/resumed session/resume resumed"]),
        (internal(Value::Null).times(9), NUMBER, vec![BOUND, OWES, REHYDRATED, PAID]),
        (Answer::dies(1), NUMBER, vec![BOUND, "agent/resumed session/resume resumed"]),
        (Answer::dies(1).times(9), NUMBER, vec![BOUND, OWES, REHYDRATED, PAID]),
        (
            Answer::error(-32601, "Method not found", Value::Null).times(9),
            NUMBER,
            vec![BOUND, "agent/resumed session/load resumed"],
        ),
    ] {
        let script =
            Script::default().on("session/resume", failure.clone()).on("session/resume", Answer::itself());
        eprintln!("{failure:?}");
        check(script, ResumeBy::Auto, policy, text, &records).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_never_had_a_prompt_is_bound_anew() {
    let world = World::new(Script::default().prompt("x", []));
    let session = world.begin().await;
    // Bound, and then the prompt cannot be sent: the agent dies at once.
    world.agent.rewrite(&Script::default().on("session/new", Answer::then_dies(1)));
    let first = ask(&session, "remember the number 7").await;
    assert_eq!(first.end.reason, EndReason::Failed);
    session.close().await.unwrap();
    world.agent.rewrite(&Script::default());
    let session = world.reopen(session.id()).await;
    answer(&session, "remember the number 7").await;
    assert_eq!(answer(&session, "what number was it?").await, NUMBER);
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_died_between_turns_is_started_again() {
    let script = Script::default().prompt("remember", [Step::Practice, Step::DieIn { ms: 50, code: 0 }]);
    let world = World::new(script);
    let session = world.begin().await;
    answer(&session, "remember the number 7").await;
    let pid = world.agent.pids()[0];
    crate::world::until("gone", || !crate::world::lives(pid)).await;
    assert_eq!(answer(&session, "what number was it?").await, NUMBER);
    assert_eq!(world.agent.pids().len(), 2);
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_debt_that_was_not_paid_is_never_resumed() {
    // The rehydrated conversation is kept by the agent, but it never heard the past: resuming it would lose all.
    let script = Script { keeps_unprompted: true, ..Script::default() };
    let world = World::new(script.clone());
    let session = world.begin().await;
    answer(&session, "remember the number 7").await;
    session.close().await.unwrap();
    world.agent.forget_all();
    world
        .agent
        .rewrite(&script.clone().on("session/prompt", Answer::dies(1)).on("session/prompt", Answer::dies(1)));
    let session = world.reopen(session.id()).await;
    assert_eq!(ask(&session, "what number was it?").await.end.code.as_deref(), Some("AGENT_DIED"));
    session.close().await.unwrap();
    world.agent.rewrite(&script);
    let session = world.reopen(session.id()).await;
    assert_eq!(answer(&session, "what number was it?").await, NUMBER);
    session.close().await.unwrap();
    let methods = world.agent.methods();
    assert_eq!(methods.iter().filter(|method| *method == "session/resume").count(), 1);
    assert_eq!(methods.iter().filter(|method| *method == "session/load").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_and_options_are_set_again_after_a_resume() {
    let script = Script {
        modes: json!({"currentModeId": "yolo", "availableModes": [{"id": "yolo"}, {"id": "careful"}]}),
        config_options: json!([{"id": "model", "category": "model", "currentValue": "big"}]),
        forgets_settings: true,
        ..Script::default()
    };
    let mut world = World::new(script);
    world.config.mode = Some("careful".into());
    world.config.options.insert("model".into(), "small".into());
    round(&world).await;
    let set = |method: &str, key: &str| -> Vec<Value> {
        world.agent.params_of(method).into_iter().map(|params| params[key].clone()).collect()
    };
    assert_eq!(set("session/set_mode", "modeId"), ["careful", "careful"]);
    assert_eq!(set("session/set_config_option", "value"), ["small", "small"]);
}

/// Codex takes a conversation up whose file is gone, and says so at the prompt.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_turns_out_to_be_gone_at_the_prompt_is_rehydrated() {
    let gone = Answer::error(-32603, "Internal error", json!({"details": "thread not found: fake-1-1"}));
    let script = Script::default()
        .on("session/prompt", Answer::itself())
        .on("session/prompt", gone)
        .on("session/prompt", Answer::itself());
    let how = [BOUND, "agent/resumed session/resume resumed", OWES, REHYDRATED, PAID];
    check(script, ResumeBy::Auto, ResumePolicy::default(), NUMBER, &how).await;
}
