//! Every row of the table, and every way through the plan.

use super::*;

fn refused(code: i64, message: &str, data: Value) -> NoAnswer {
    NoAnswer::Refused(Refusal { code, message: message.into(), data })
}

#[test]
fn what_a_failure_means_is_said_by_the_table_alone() {
    for (failure, meaning) in [
        (refused(-32002, "Resource not found", json!({"sessionId": "s1"})), Gone),
        (refused(-32002, "Resource not found", json!({"uri": "session:s1"})), Gone),
        (refused(-32602, "Unknown session", json!({"session_id": "s1"})), Gone),
        (refused(-32603, "Internal error", json!({"details": "no rollout found for thread id s1"})), Gone),
        (
            refused(
                -32603,
                "Internal error",
                json!({"details": "No previous sessions found for this project."}),
            ),
            Gone,
        ),
        (refused(-32601, "Method not found", Value::Null), NotSupported),
        (
            refused(-32603, "Internal error", json!({"reason": "thread_active_writer", "sessionId": "s1"})),
            InUse,
        ),
        (refused(-32000, "Authentication required", Value::Null), Login),
        (refused(-32603, "Internal error", json!({"status": 429})), RateLimit),
        (refused(-32603, "Internal error", json!({"details": "rate_limit_error: slow down"})), RateLimit),
        (refused(-32603, "Internal error", json!({"statusCode": 503})), Transient),
        (refused(-32603, "connect ECONNREFUSED", Value::Null), Transient),
        (NoAnswer::TimedOut, Transient),
        (NoAnswer::Closed, Ambiguous),
        (
            refused(-32603, "Internal error", json!({"details": "Query closed before response received"})),
            Ambiguous,
        ),
        (refused(-32603, "Internal error", json!({"service": "session"})), Ambiguous),
        (refused(-32603, "root", json!({"startupFailureReason": "bypass_root"})), Fatal),
        // That a text speaks of a session decides nothing.
        (refused(-32603, "The session could not be written to disk", Value::Null), Ambiguous),
        (refused(-32602, "session cwd is not absolute", json!({"cwd": "x"})), Fatal),
        (refused(-32602, "bad", json!({"sessionId": "s1", "cwd": "x"})), Fatal),
        (refused(-32002, "Resource not found", json!({"uri": "file:///x"})), Ambiguous),
        (refused(-32002, "Resource not found", json!({"sessionId": "another"})), Ambiguous),
        (refused(42, "own code", Value::Null), Fatal),
    ] {
        assert_eq!(classify("s1", &failure), meaning, "{failure:?}");
    }
}

fn about(capabilities: Value) -> About {
    About { name: "fake".into(), version: "1".into(), capabilities, auth_methods: Value::Null }
}

fn both() -> About {
    about(json!({"loadSession": true, "sessionCapabilities": {"resume": {}}}))
}

fn bound() -> Past {
    let bound = Bound { session: "s1".into(), is_this_agents: true, owes: false, is_unused: false };
    Past { bound: Some(bound), has_history: true, was_cut_off: false }
}

fn first(past: &Past, about: &About, resume_by: ResumeBy, policy: ResumePolicy) -> Move {
    Plan::begin(past, about, &[], resume_by, policy).1
}

fn attempt(way: Way) -> Move {
    Move::Try { way, after: Duration::ZERO, restart: false }
}

#[test]
fn the_first_move_follows_from_the_log_and_what_the_agent_can() {
    let policy = ResumePolicy::default();
    let none = about(json!({}));
    let with = |change: &dyn Fn(&mut Past)| {
        let mut past = bound();
        change(&mut past);
        past
    };
    let change_bound = |change: fn(&mut Bound)| with(&move |past| past.bound.iter_mut().for_each(change));
    let anew = |reason: &str| Move::Begin {
        beginning: Beginning::Rehydrated { reason: reason.into() },
        restart: false,
    };
    let cut = with(&|past| past.was_cut_off = true);
    let mut unused = change_bound(|bound| bound.is_unused = true);
    unused.has_history = false;
    for (past, about, by, expected) in [
        (bound(), both(), ResumeBy::Auto, attempt(Way::Resume)),
        (bound(), about(json!({"loadSession": true})), ResumeBy::Auto, attempt(Way::Load)),
        (bound(), about(json!({"_meta": {"claudeCode": {}}})), ResumeBy::Auto, attempt(Way::Meta)),
        (bound(), both(), ResumeBy::Meta, attempt(Way::Meta)),
        (cut.clone(), both(), ResumeBy::Auto, attempt(Way::Load)),
        (cut, both(), ResumeBy::Resume, attempt(Way::Resume)),
        (bound(), none.clone(), ResumeBy::Auto, anew("the agent has no way to resume a conversation")),
        (bound(), both(), ResumeBy::Rehydrate, anew("resume_by is rehydrate")),
        (
            change_bound(|bound| bound.owes = true),
            both(),
            ResumeBy::Auto,
            anew("the agent's conversation had not been told the past yet"),
        ),
        (change_bound(|bound| bound.is_this_agents = false), both(), ResumeBy::Auto, anew("agent changed")),
        (unused, both(), ResumeBy::Auto, Move::Begin { beginning: Beginning::Unused, restart: false }),
        (
            with(&|past| past.bound = None),
            both(),
            ResumeBy::Auto,
            anew("the agent does not have this conversation yet"),
        ),
        (
            Past { bound: None, has_history: false, was_cut_off: false },
            both(),
            ResumeBy::Auto,
            Move::Begin { beginning: Beginning::First, restart: false },
        ),
    ] {
        assert_eq!(first(&past, &about, by, policy), expected, "{past:?} {by:?}");
    }
    let fresh = ResumePolicy { rehydrate: false, ..policy };
    let reason = "the agent has no way to resume a conversation".to_owned();
    assert_eq!(
        first(&bound(), &none, ResumeBy::Auto, fresh),
        Move::Begin { beginning: Beginning::Fresh { reason }, restart: false }
    );
    let closed = ResumePolicy { enable_fallback: false, ..policy };
    assert!(matches!(
        first(&bound(), &none, ResumeBy::Auto, closed),
        Move::Stop { code: "AGENT_SESSION_GONE", .. }
    ));
}

#[test]
fn what_follows_a_failure() {
    let policy = ResumePolicy { max_retries: 1, ..ResumePolicy::default() };
    let rehydrated =
        |made: &Move| matches!(made, Move::Begin { beginning: Beginning::Rehydrated { .. }, .. });
    let plan = || Plan::begin(&bound(), &both(), &[], ResumeBy::Auto, policy).0;

    let mut held = plan();
    assert!(rehydrated(&held.failed(Gone, false, "")), "gone skips the other ways");

    let mut held = plan();
    assert_eq!(held.failed(NotSupported, false, ""), attempt(Way::Load));
    assert!(rehydrated(&held.failed(NotSupported, false, "")));
    assert_eq!(held.untrue, [Way::Resume, Way::Load]);

    let mut held = plan();
    assert!(matches!(held.failed(Ambiguous, true, ""), Move::Try { way: Way::Resume, restart: true, .. }));
    assert!(rehydrated(&held.failed(Ambiguous, true, "")), "the same twice");

    let mut held = plan();
    assert!(matches!(held.failed(Transient, false, ""), Move::Try { way: Way::Resume, restart: false, .. }));
    assert!(matches!(held.failed(Transient, false, ""), Move::Stop { code: "AGENT_UNAVAILABLE", .. }));

    for (failure, code) in
        [(InUse, "AGENT_SESSION_IN_USE"), (Login, "AGENT_LOGIN"), (Fatal, "AGENT_RESUME_FAILED")]
    {
        assert!(matches!(plan().failed(failure, false, ""), Move::Stop { code: told, .. } if told == code));
    }
}

#[test]
fn the_same_goes_along_on_every_way() {
    let common = json!({"cwd": "/w", "mcpServers": [{"name": "m"}]});
    let claude = about(json!({"_meta": {"claudeCode": {}}}));
    let meta = params(&common, &claude, Some("Be brief."), Some((Way::Meta, "s1")));
    assert_eq!(
        meta,
        json!({
            "cwd": "/w", "mcpServers": [{"name": "m"}],
            "_meta": {"claudeCode": {"options": {"resume": "s1"}}, "systemPrompt": {"append": "Be brief."}},
        })
    );
    let new = params(&common, &claude, Some("Be brief."), None);
    assert_eq!(
        new,
        json!({"cwd": "/w", "mcpServers": [{"name": "m"}], "_meta": {"systemPrompt": {"append": "Be brief."}}})
    );
    let modern = about(json!({"sessionCapabilities": {"systemPrompt": {}}}));
    let load = params(&common, &modern, Some("Be brief."), Some((Way::Load, "s1")));
    assert_eq!(
        load,
        json!({
            "cwd": "/w", "mcpServers": [{"name": "m"}], "sessionId": "s1",
            "systemPrompt": {"mode": "append", "content": "Be brief."},
        })
    );
}
