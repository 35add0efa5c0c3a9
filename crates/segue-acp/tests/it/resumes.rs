//! The ways back into a conversation, and what is told where there is none.

use segue_acp::drive::ResumeBy;
use segue_testkit::fake_agent::{FakeAgent, Script};
use serde_json::{Value, json};

use crate::talk::{KNOWS, QUESTION};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn only_a_resume_names_the_conversation_in_meta() {
    let script = Script { meta_resume: true, ..Script::new_only() };
    let mut world = World::new(script);
    world.config.resume_by = ResumeBy::Meta;
    let id = world.with_a_number().await;
    world.say_in(id, QUESTION).await;
    let named: Vec<Value> = world
        .agent
        .params_of("session/new")
        .iter()
        .map(|params| params.pointer("/_meta/claudeCode").cloned().unwrap_or_default())
        .collect();
    let bound = world.agent.sessions();
    assert_eq!(named, [Value::Null, json!({"options": {"resume": bound[0]}})]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_with_another_agent() {
    let mut world = World::new(Script::default());
    let id = world.with_a_number().await;
    let other = FakeAgent::new(&world.path("other"), &Script::default());
    // What the launcher does for `--resume ID --agent other` is its own; here the same name leads elsewhere.
    world.config.args = other.args();
    world.agent = other;
    assert_eq!(world.say_in(id, QUESTION).await, KNOWS);
    assert_eq!(world.resumes(id).await, ["rehydrate rehydrated"]);
}
