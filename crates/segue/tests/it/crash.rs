//! Two processes, killed processes, lost folders.

use serde_json::json;

use crate::world::World;

const LONG: &str = "use bash {\"command\":\"echo began >> mark; sleep 600\"}";

#[test]
fn a_session_in_use_is_exit_4_and_free_once_its_holder_is_killed() {
    let world = World::new();
    let session = world.session();
    let mut holder = world.segue(&["-p", LONG, "--permissions", "all", "--resume", &session]).start();
    holder.wait_for(&world.work().join("mark"), "began\n");
    let second = world.segue(&["-p", "me too", "--resume", &session, "--output", "json"]).run();
    assert_eq!(second.code, 4, "{}", second.stderr);
    assert_eq!(second.json()["error"]["code"], "SESSION_IN_USE");
    assert_eq!(second.json()["session"], session.as_str());
    assert!(second.stderr.contains(&format!("process {}", holder.pid())), "{}", second.stderr);
    assert!(second.stderr.contains(&format!("segue sessions fork {session}")), "{}", second.stderr);
    let listed = world.segue(&["sessions", "list", "--output", "json"]).run();
    assert_eq!(listed.json()[0]["state"], "running");
    holder.kill();
    let third = world.ask(&["what number was it?", "--resume", &session]);
    assert_eq!(third["text"], "The number is 42.");
    let call = &third["repaired"][0];
    assert_eq!((&call["tool"], &call["outcome"]), (&json!("bash"), &json!("unknown")));
    assert_eq!(std::fs::read_to_string(world.work().join("mark")).unwrap(), "began\n");
}

#[test]
fn an_interrupted_turn_is_finished_and_its_call_settled() {
    let world = World::new();
    let session = world.session();
    let mut killed = world.segue(&["-p", LONG, "--permissions", "all", "--resume", &session]).start();
    killed.wait_for(&world.work().join("mark"), "began\n");
    killed.kill();
    let listed = world.segue(&["sessions", "list", "--output", "json"]).run();
    assert_eq!(listed.json()[0]["state"], "interrupted");
    let finished = world.ask(&["--finish", "--resume", &session]);
    assert!(finished["text"].as_str().unwrap().starts_with("Results: "), "{finished}");
    let call = finished["repaired"][0]["callId"].as_str().unwrap().to_owned();

    let nothing = world.segue(&["-p", "--finish", "--resume", &session]).run();
    assert_eq!(nothing.code, 2);
    assert!(nothing.stderr.contains("there is nothing to finish"), "{}", nothing.stderr);

    let settled = world.segue(&["sessions", "settle", &session, &call, "done", "--note", "I looked"]).run();
    insta::assert_snapshot!("settled", settled.shown());
    let records = world.records(&session);
    let record = &records.iter().find(|(kind, _)| kind == "call/settled").unwrap().1;
    assert_eq!((&record["how"], &record["note"]), (&json!("done"), &json!("I looked")));
    let wrong = world.segue(&["sessions", "settle", &session, "call_nothere", "done"]).run();
    assert_eq!(wrong.code, 2);
}

#[test]
fn a_session_whose_folder_is_gone_stops_and_can_be_moved() {
    let world = World::new();
    let old = world.path("old");
    let new = world.path("new");
    std::fs::create_dir(&old).unwrap();
    let first = world
        .segue(&["-p", "remember the number 42", "--output", "json", "--cwd", old.to_str().unwrap()])
        .run();
    let session = first.json()["session"].as_str().unwrap().to_owned();
    std::fs::rename(&old, &new).unwrap();
    let gone = world.segue(&["-p", "what number?", "--resume", &session]).run();
    assert_eq!(gone.code, 2);
    assert!(gone.stderr.contains(&format!("{} is gone", old.display())), "{}", gone.stderr);
    let moved = world.ask(&[
        "use bash {\"command\":\"pwd\"}",
        "--permissions",
        "all",
        "--resume",
        &session,
        "--cwd",
        new.to_str().unwrap(),
    ]);
    assert_eq!(moved["text"], format!("Results: {}\n", new.display()));
    let back = world.ask(&["use bash {\"command\":\"pwd\"}", "--permissions", "all", "--resume", &session]);
    assert_eq!(back["text"], format!("Results: {}\n", new.display()), "it stays there");
}
