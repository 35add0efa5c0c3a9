//! What each failure of a resume means, one row of the table after the other, with an agent that answers so.

use segue_testkit::fake_agent::{Answer, Script};
use serde_json::{Value, json};

use crate::talk::{KNOWS, QUESTION};
use crate::world::World;

/// How a prompt goes on a session whose resume is answered so.
struct Case {
    name: &'static str,
    /// The answers to `session/resume`, the last for good.
    answers: Vec<Answer>,
    /// How the turn ends, at its beginning.
    told: &'static str,
    /// The resumes in the log.
    resumed: &'static [&'static str],
}

fn error(code: i64, message: &str, data: Value) -> Answer {
    Answer::error(code, message, data)
}

/// An error that names the conversation, whose id the first start mints.
fn naming(code: i64, field: &str) -> Answer {
    error(code, "Resource not found", json!({field: "fake-1-1"}))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failure_of_a_resume_has_its_consequence() {
    let closed =
        || error(-32603, "Internal error", json!({"details": "Query closed before response received"}));
    let cases = [
        Case {
            name: "gone by the protocol",
            answers: vec![naming(-32002, "sessionId")],
            told: KNOWS,
            resumed: &["rehydrate rehydrated"],
        },
        Case {
            name: "gone in another field",
            answers: vec![error(-32002, "Not found", json!({"uri": "session:fake-1-1"}))],
            told: KNOWS,
            resumed: &["rehydrate rehydrated"],
        },
        Case {
            name: "gone in known words",
            answers: vec![error(
                -32603,
                "Internal error",
                json!({"details": "no rollout found for thread id fake-1-1"}),
            )],
            told: KNOWS,
            resumed: &["rehydrate rehydrated"],
        },
        Case {
            name: "not supported after all",
            answers: vec![error(-32601, "Method not found", Value::Null)],
            told: KNOWS,
            resumed: &["session/load resumed"],
        },
        Case {
            name: "in use",
            answers: vec![error(-32603, "Internal error", json!({"reason": "thread_active_writer"}))],
            told: "failed AGENT_SESSION_IN_USE",
            resumed: &[],
        },
        Case {
            name: "login",
            answers: vec![error(-32000, "Authentication required", Value::Null)],
            told: "failed AGENT_LOGIN",
            resumed: &[],
        },
        Case {
            name: "a passing failure",
            answers: vec![error(-32603, "Internal error", json!({"status": 503})), Answer::itself()],
            told: KNOWS,
            resumed: &["session/resume resumed"],
        },
        Case {
            name: "a failure that does not pass",
            answers: vec![error(-32603, "Internal error", json!({"status": 503}))],
            told: "failed AGENT_UNAVAILABLE",
            resumed: &[],
        },
        Case {
            name: "ambiguous once",
            answers: vec![closed(), Answer::itself()],
            told: KNOWS,
            resumed: &["session/resume resumed"],
        },
        Case {
            name: "ambiguous twice",
            answers: vec![closed()],
            told: KNOWS,
            resumed: &["rehydrate rehydrated"],
        },
        Case {
            name: "dead once",
            answers: vec![Answer::dies(1), Answer::itself()],
            told: KNOWS,
            resumed: &["session/resume resumed"],
        },
        Case {
            name: "dead twice",
            answers: vec![Answer::dies(1)],
            told: KNOWS,
            resumed: &["rehydrate rehydrated"],
        },
        Case {
            name: "a known cause that is not the conversation",
            answers: vec![error(-32603, "Internal error", json!({"startupFailureReason": "bypass_root"}))],
            told: "failed AGENT_RESUME_FAILED",
            resumed: &[],
        },
        Case {
            name: "a word like session decides nothing",
            answers: vec![error(-32099, "the session limit of your plan was not found", Value::Null)],
            told: "failed AGENT_RESUME_FAILED",
            resumed: &[],
        },
    ];
    for case in cases {
        let mut script = Script::default();
        for answer in case.answers {
            script = script.on("session/resume", answer);
        }
        let world = World::new(script);
        let id = world.with_a_number().await;
        assert_eq!(world.agent.sessions(), ["fake-1-1"], "{}", case.name);
        let told = world.say_in(id, QUESTION).await;
        assert!(told.starts_with(case.told), "{}: {told}", case.name);
        assert_eq!(world.resumes(id).await, case.resumed, "{}", case.name);
        if case.resumed.is_empty() {
            // The conversation's id is kept: once the cause is gone, it is gone on with.
            world.agent.rewrite(&Script::default());
            assert_eq!(world.say_in(id, QUESTION).await, KNOWS, "{}", case.name);
            assert_eq!(world.resumes(id).await, ["session/resume resumed"], "{}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capability_that_is_untrue_is_tried_once_for_a_version() {
    let refused = || error(-32601, "Method not found", Value::Null);
    let world = World::new(Script::default().on("session/resume", refused()));
    let id = world.with_a_number().await;
    for _ in 0..3 {
        assert_eq!(world.say_in(id, QUESTION).await, KNOWS);
    }
    assert_eq!(world.agent.params_of("session/resume").len(), 1);
    // Another version may have learned it.
    let info = json!({"name": "fake", "version": "2.0.0"});
    world.agent.rewrite(&Script { info, ..Script::default() });
    assert_eq!(world.say_in(id, QUESTION).await, KNOWS);
    assert_eq!(world.agent.params_of("session/resume").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_that_hangs_is_an_error_in_time_and_the_conversation_is_kept() {
    let mut world = World::new(Script::default().on("session/resume", Answer::hang()));
    world.config.init_timeout = std::time::Duration::from_millis(500);
    world.config.policy.max_retries = 1;
    let id = world.with_a_number().await;
    let told = world.say_in(id, QUESTION).await;
    assert!(told.starts_with("failed AGENT_"), "{told}");
    assert_eq!(world.resumes(id).await, [""; 0]);
    world.agent.rewrite(&Script::default());
    assert_eq!(world.say_in(id, QUESTION).await, KNOWS);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_wants_a_login_is_told_plainly_and_one_that_is_configured_is_used() {
    let methods = json!([{"id": "key", "name": "A key", "description": "Set FAKE_KEY"}]);
    let script = Script { login: Some("key".into()), auth_methods: methods, ..Script::default() };
    let mut world = World::new(script);
    let session = world.begin().await;
    let told = world.say(&session, "hello").await;
    assert!(told.starts_with("failed AGENT_LOGIN") && told.contains("Set FAKE_KEY"), "{told}");
    session.close().await.unwrap();

    world.config.auth = Some("key".into());
    let session = world.begin().await;
    assert_eq!(world.say(&session, "hello").await, "completed: You said: hello");
    session.close().await.unwrap();
}
