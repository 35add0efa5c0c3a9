//! What a call may do: levels and rules through the loop, and what people answer.

use std::sync::Arc;

use async_trait::async_trait;
use segue_log::*;
use segue_runtime::permission::{Answer, Asker, Level, Question, Rules};
use segue_runtime::{RuntimeError, Update};
use segue_testkit::{Reply, Wire};
use serde_json::json;

use crate::boundaries::{Medium, Syncs};
use crate::loop_story::*;
use crate::world::*;

fn count(line: &str) -> Reply {
    Reply::call("count", json!({"line": line}))
}

fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    let parse = |rules: &[&str]| rules.iter().map(|rule| rule.parse().unwrap()).collect();
    Rules { allow: parse(allow), deny: parse(deny) }
}

fn answer(outcome: PermissionOutcome, reason: Option<&str>) -> Answer {
    Answer { outcome, reason: reason.map(str::to_owned), by: "me".into() }
}

/// What the last request tells of the last call.
fn told(world: &World) -> String {
    let last = last_sent(&world.server).pop().unwrap_or_default();
    last.strip_prefix("user: =").map(str::to_owned).unwrap_or(last)
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_and_rules_decide_and_a_refusal_says_which() {
    let beforehand = "Not permitted: this needs a person's consent and nobody can ";
    for (level, allow, deny, expected) in [
        (Level::All, vec![], vec![], "counted a"),
        (Level::Ask, vec![], vec![], beforehand),
        (Level::Edit, vec![], vec![], beforehand),
        (Level::Ask, vec!["count"], vec![], "counted a"),
        (Level::Ask, vec!["look"], vec![], beforehand),
        (Level::All, vec![], vec!["count"], "Not permitted: deny rule count."),
        (Level::All, vec!["count"], vec!["cou*"], "Not permitted: deny rule cou*."),
    ] {
        let world = World::new(Wire::Anthropic);
        let rules = rules(&allow, &deny);
        let sessions = world.sessions_with(Parts { level: Some(level), rules, ..Parts::default() });
        let session = world.place.create(&sessions).await;
        world.server.push(count("a"));
        run(&session, says("hello")).await;
        let at = format!("{level} {allow:?} {deny:?}");
        assert_eq!(told(&world), expected, "{at}");
        assert_eq!(world.ran().len(), usize::from(expected == "counted a"), "{at}");
        let kinds = kinds(&world.log(session.id()).await.records).join(" ");
        assert!(!kinds.contains("permission/"), "{at}: nobody is asked");
        if expected == beforehand {
            // The rule that would have allowed it is named.
            assert!(world.server.bodies()[1].to_string().contains("with the rule count."), "{at}");
        }
        assert_eq!(world.server.violations(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_hold_inside_other_calls_and_nobody_is_asked_there() {
    for (level, deny, expected) in [
        (Level::All, vec![], "counted inner"),
        (Level::All, vec!["count"], "Not permitted: deny rule count."),
        (Level::Ask, vec![], "Not permitted: this needs a person's consent, and a call ins"),
    ] {
        let world = World::new(Wire::OpenAi);
        let sessions = world.sessions_with(Parts {
            level: Some(level),
            rules: rules(&["relay"], &deny),
            asker: Some(Arc::new(Silent)),
            ..Parts::default()
        });
        let session = world.place.create(&sessions).await;
        world.server.push(Reply::call("relay", json!({"tool": "count", "input": {"line": "inner"}})));
        run(&session, says("hello")).await;
        assert_eq!(told(&world), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn once_is_once_and_a_session_rule_outlives_the_process_but_not_a_fork() {
    for (outcome, asked_of, at_reopening) in
        [(PermissionOutcome::AllowOnce, 2, false), (PermissionOutcome::AllowSession, 1, true)]
    {
        let world = World::new(Wire::Anthropic);
        let asking = |asker: Option<Arc<dyn Asker>>| {
            world.sessions_with(Parts { level: Some(Level::Ask), asker, ..Parts::default() })
        };
        let sessions = asking(Some(Arc::new(Says(outcome))));
        let session = world.place.create(&sessions).await;
        for line in ["a", "b"] {
            world.server.push(count(line));
            run(&session, says("hello")).await;
        }
        assert_eq!(world.ran(), ["a", "b"]);
        let log = world.log(session.id()).await;
        let decided: Vec<_> = log
            .records
            .iter()
            .filter_map(|record| match &record.event {
                Event::PermissionDecided(data) => Some((data.outcome, data.rule.clone())),
                _ => None,
            })
            .collect();
        assert_eq!(decided, vec![(outcome, at_reopening.then(|| "count".to_owned())); asked_of]);
        session.close().await.unwrap();
        // Nobody can be asked now: only the rule can let it through.
        let sessions = asking(None);
        let (session, _) = sessions.open(session.id()).await.unwrap();
        world.server.push(count("c"));
        run(&session, says("hello")).await;
        assert_eq!(world.ran().len(), if at_reopening { 3 } else { 2 }, "{outcome:?}");
        session.close().await.unwrap();
        let fork = sessions.fork(session.id(), None).await.unwrap();
        let (fork, _) = sessions.open(fork.id).await.unwrap();
        world.server.push(count("d"));
        run(&fork, says("hello")).await;
        assert!(!world.ran().contains(&"d".to_owned()), "{outcome:?}");
    }
}

/// Answers with what it was made with, or leaves.
struct Replies(Option<Answer>);

#[async_trait]
impl Asker for Replies {
    async fn ask(&self, _question: &Question) -> Option<Answer> {
        self.0.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_reaches_the_model_with_its_reason() {
    for (reply, expected) in [
        (Some(answer(PermissionOutcome::Deny, Some("too early"))), "The person said no: too early"),
        (Some(answer(PermissionOutcome::Deny, None)), "The person said no."),
        (None, "Not permitted: nobody answered the question."),
    ] {
        for wire in BOTH {
            let world = World::new(wire);
            let asker: Option<Arc<dyn Asker>> = Some(Arc::new(Replies(reply.clone())));
            let sessions = world.sessions_with(Parts { level: Some(Level::Ask), asker, ..Parts::default() });
            let session = world.place.create(&sessions).await;
            world.server.push(count("a"));
            let outcome = run(&session, says("hello")).await;
            assert_eq!(outcome.reason(), EndReason::Completed);
            assert_eq!(told(&world), expected);
            assert_eq!(world.ran(), Vec::<String>::new());
            let conversation = world.conversation(session.id()).await;
            let result = conversation.turns()[0].calls().next().and_then(|call| call.result()).cloned();
            assert_eq!(result.unwrap().code.as_deref(), Some(code::DENIED));
        }
    }
}

async fn question(subscription: &mut segue_runtime::Subscription) -> Question {
    update(subscription, |update| match update {
        Update::Question(question) => Some(*question),
        _ => None,
    })
    .await
}

// Two answers at once were both recorded, and the second, which had been refused, left its rule behind.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_answers_to_one_question_one_counts() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions_with(Parts {
        level: Some(Level::Ask),
        asker: Some(Arc::new(Silent)),
        ..Parts::default()
    });
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    world.server.push(count("a"));
    let accepted = session.prompt(says("hello")).await.unwrap();
    let asked = question(&mut subscription).await;
    assert_eq!((asked.tool.as_str(), asked.action.rule.as_str()), ("count", "count"));
    let none = session.answer(&call_id("nope"), answer(PermissionOutcome::AllowOnce, None)).await;
    assert!(matches!(none, Err(RuntimeError::NoQuestion(_))));
    let (first, second) = tokio::join!(
        session.answer(&asked.call_id, answer(PermissionOutcome::AllowOnce, None)),
        session.answer(&asked.call_id, answer(PermissionOutcome::AllowSession, None)),
    );
    assert_eq!([first.is_ok(), second.is_ok()].iter().filter(|ok| **ok).count(), 1, "{first:?} {second:?}");
    within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!(world.ran(), ["a"]);
    let log = world.log(session.id()).await;
    let decided = log.records.iter().filter(|record| record.event.kind() == "permission/decided");
    assert_eq!(decided.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_counts_once_it_is_stored() {
    let mut world = World::new(Wire::Anthropic);
    let medium = Medium::of(&mut world);
    let sessions = world.sessions_with(Parts {
        level: Some(Level::Ask),
        asker: Some(Arc::new(Silent)),
        ..Parts::default()
    });
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    world.server.push(count("a"));
    let accepted = session.prompt(says("hello")).await.unwrap();
    let asked = question(&mut subscription).await;
    medium.syncs(Syncs::Fail);
    let refused = session.answer(&asked.call_id, answer(PermissionOutcome::AllowOnce, None)).await;
    assert!(matches!(refused, Err(RuntimeError::NotStored { .. })), "{refused:?}");
    assert_eq!(world.ran(), Vec::<String>::new());
    medium.syncs(Syncs::Pass);
    session.answer(&asked.call_id, answer(PermissionOutcome::AllowOnce, None)).await.unwrap();
    let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!(outcome.reason(), EndReason::Completed);
    assert_eq!(world.ran(), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_a_cancelled_turn_takes_no_answer() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions_with(Parts {
        level: Some(Level::Ask),
        asker: Some(Arc::new(Silent)),
        ..Parts::default()
    });
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    world.server.push(count("a"));
    session.prompt(says("hello")).await.unwrap();
    let asked = question(&mut subscription).await;
    within(session.cancel()).await;
    let late = session.answer(&asked.call_id, answer(PermissionOutcome::AllowSession, None)).await;
    assert!(matches!(late, Err(RuntimeError::NoQuestion(_))), "{late:?}");
    assert_eq!(world.conversation(session.id()).await.session_rules(), Vec::<String>::new());
}
