//! What a second look at the contract found: races between callers, callers that go away, unanswered prompts.

use std::sync::Arc;

use async_trait::async_trait;
use segue_log::{EndReason, PermissionOutcome};
use segue_model::Model;
use segue_native::{Models, MoreTools, NativeConfig, NativeDrivers, RetryPolicy};
use segue_runtime::permission::{Answer, Level};
use segue_runtime::{Change, Machine, Options, RuntimeError, Sessions, Update};
use segue_testkit::{Reply, Wire};
use segue_tool::Tool;
use serde_json::json;

use crate::boundaries::{Medium, Syncs};
use crate::loop_story::*;
use crate::world::*;

/// Long enough to go to a blob, so that its append waits for the disk.
fn long(text: &str) -> String {
    text.repeat(100_000)
}

// Both were accepted, and the content of the second took the place of the first's.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_prompts_at_once_with_one_id_the_second_is_a_conflict_or_the_same() {
    let world = World::new(Wire::Anthropic);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let (first, same, other) = tokio::join!(
        session.queue(says_as("p", &long("a"))),
        session.queue(says_as("p", &long("a"))),
        session.queue(says_as("p", &long("b"))),
    );
    assert!(!first.unwrap().again);
    assert!(same.unwrap().again);
    assert!(matches!(other, Err(RuntimeError::PromptConflict(_))), "{other:?}");
    let records = world.log(session.id()).await.records;
    assert_eq!(kinds(&records), ["session/config", "prompt/queued"]);
}

// The removal was recorded, and told, between the choice of the prompt and the start of its turn, which ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_was_taken_back_never_runs() {
    for round in 0..10 {
        let world = World::new(Wire::Anthropic);
        let sessions = world.sessions();
        let session = world.place.create(&sessions).await;
        session.queue(says_as("p", "hello")).await.unwrap();
        let p = prompt_id("p");
        let (queued, removed, ()) =
            tokio::join!(session.queue(says_as("q", &long("q"))), session.unqueue(&p, "test"), async {
                session.run_queue()
            },);
        queued.unwrap();
        session.run_queue();
        within(session.wait(&prompt_id("q"))).await.unwrap();
        let conversation = world.conversation(session.id()).await;
        let claimed: Vec<&str> =
            conversation.turns().iter().flat_map(|turn| &turn.prompt_ids).map(|id| id.as_str()).collect();
        match removed {
            Ok(()) => assert_eq!(claimed, ["q"], "round {round}"),
            Err(error) => {
                assert!(matches!(error, RuntimeError::NotQueued(_)), "round {round}: {error}");
                assert_eq!(claimed, ["p", "q"], "round {round}");
            }
        }
    }
}

// The caller went away while its answer was being stored, and the question, taken out by then, waited for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_counts_although_its_caller_goes_away() {
    let mut world = World::new(Wire::Anthropic);
    let medium = Medium::of(&mut world);
    let sessions = world.sessions_with(Parts {
        level: Some(Level::Ask),
        asker: Some(Arc::new(Silent)),
        ..Parts::default()
    });
    let session = world.place.create(&sessions).await;
    let mut subscription = session.subscribe(1);
    world.server.push(Reply::call("count", json!({"line": "a"})));
    let accepted = session.prompt(says("hello")).await.unwrap();
    let asked = update(&mut subscription, |update| match update {
        Update::Question(question) => Some(question.call_id),
        _ => None,
    })
    .await;
    medium.syncs(Syncs::Wait);
    let answer = Answer { outcome: PermissionOutcome::AllowOnce, reason: None, by: "me".into() };
    tokio::select! {
        answered = session.answer(&asked, answer) => panic!("it waits for the disk: {answered:?}"),
        () = medium.is_waited_for() => {}
    }
    medium.syncs(Syncs::Pass);
    let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!(outcome.reason(), EndReason::Completed);
    assert_eq!(world.ran(), ["a"]);
}

/// Sessions without tools of their own.
fn made_of(world: &World, models: Arc<dyn Models>, more_tools: Option<Arc<dyn MoreTools>>) -> Sessions {
    let config = NativeConfig {
        models,
        tools: Vec::new(),
        more_tools,
        parameters: Default::default(),
        max_steps: 20,
        compact_at: 0.8,
        retry: RetryPolicy::default(),
        extra_folders: Vec::new(),
        calls: world.place.data.join("calls"),
    };
    let drivers = Arc::new(NativeDrivers::new(config, Machine::default()));
    Sessions::new(Arc::new(world.place.store()), drivers, Options::default())
}

/// Knows one model by its name.
struct Named(Arc<dyn Model>);

impl Models for Named {
    fn model(&self, name: Option<&str>) -> Result<Arc<dyn Model>, String> {
        if name == Some("test/test") { Ok(self.0.clone()) } else { Err(format!("no model {name:?}")) }
    }
}

// The setting was recorded before anybody asked whether there is such a model, and the session could not be opened again.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_had_is_not_recorded() {
    let world = World::new(Wire::Anthropic);
    let sessions = made_of(&world, Arc::new(Named(world.place.model(200_000))), None);
    let session = world.place.create(&sessions).await;
    let change = Change { model: Some("test/none".into()), ..Change::default() };
    let refused = session.configure(change).await;
    assert!(matches!(refused, Err(RuntimeError::Driver(_))), "{refused:?}");
    assert_eq!(run(&session, says("hello")).await.reason(), EndReason::Completed);
    session.close().await.unwrap();
    let (session, _) = sessions.open(session.id()).await.unwrap();
    let model = session.conversation(|conversation| conversation.settings().model.clone());
    assert_eq!(model.as_deref(), Some("test/test"));
}

/// Servers that never come up.
struct Starting;

#[async_trait]
impl MoreTools for Starting {
    async fn tools(&self) -> (Vec<Arc<dyn Tool>>, Vec<String>) {
        std::future::pending().await
    }

    async fn close(&self) {}
}

// Cancelling waited for the servers of tools to start, or for their time to be over.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_cancelled_while_its_tools_start() {
    let world = World::new(Wire::Anthropic);
    let models = Arc::new(OneModel(world.place.model(200_000)));
    let sessions = made_of(&world, models, Some(Arc::new(Starting)));
    let session = world.place.create(&sessions).await;
    let accepted = session.prompt(says("hello")).await.unwrap();
    until(|| session.conversation(|conversation| conversation.open_turn().map(drop))).await;
    within(session.cancel()).await;
    let outcome = within(session.wait(&accepted.prompt_id)).await.unwrap();
    assert_eq!(outcome.reason(), EndReason::Cancelled);
    assert_eq!(world.server.bodies().len(), 0);
}

// While the removal was waiting for the disk nothing seemed to be left to do; taken out again, it left a prompt that
// nobody ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_whose_removal_could_not_be_stored_runs() {
    let mut world = World::new(Wire::Anthropic);
    let medium = Medium::of(&mut world);
    let sessions = world.sessions();
    let session = world.place.create(&sessions).await;
    let held = Held::reply(&world.server, Reply::text("yes"));
    session.prompt(says("hello")).await.unwrap();
    let b = session.prompt(says_as("b", "more")).await.unwrap().prompt_id;
    world.server.wait_for_requests(1).await;
    medium.syncs(Syncs::Wait);
    let removing = tokio::spawn({
        let (session, b) = (session.clone(), b.clone());
        async move { session.unqueue(&b, "test").await }
    });
    medium.is_waited_for().await;
    held.go();
    medium.syncs(Syncs::Fail);
    let removed = within(removing).await.unwrap();
    assert!(matches!(removed, Err(RuntimeError::NotStored { .. })), "{removed:?}");
    medium.syncs(Syncs::Pass);
    assert_eq!(within(session.wait(&b)).await.unwrap().reason(), EndReason::Completed);
}
