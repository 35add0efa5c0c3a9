//! `segue sessions …`.

use serde_json::{Value, json};

use crate::world::World;

#[test]
fn lists_are_newest_first_paged_and_by_folder() {
    let world = World::new();
    let other = world.path("other");
    std::fs::create_dir(&other).unwrap();
    let mut ids: Vec<String> = (0..3).map(|_| world.session()).collect();
    ids.push(world.ask(&["hello", "--cwd", other.to_str().unwrap()])["session"].as_str().unwrap().to_owned());
    ids.reverse();
    let list = |arguments: &[&str]| -> Vec<String> {
        let ran = world.segue(&[&["sessions", "list", "--output", "json"], arguments].concat()).run();
        let value = ran.json();
        value.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(list(&[]), ids);
    assert_eq!(list(&["--cwd", other.to_str().unwrap()]), ids[..1]);
    let first = world.segue(&["sessions", "list", "--output", "json", "--limit", "3"]).run();
    let after = first.stderr.trim().strip_prefix("More: segue sessions list --after ").unwrap().to_owned();
    assert_eq!(list(&["--after", &after]), ids[3..]);
    let rows = world.segue(&["sessions", "list", "--output", "json", "--limit", "1"]).run().json();
    let keys: Vec<&String> = rows[0].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["id", "title", "cwd", "agent", "created", "updated", "turns", "state"]);
    assert_eq!(world.segue(&["sessions", "list", "--after", "x"]).run().code, 2);
}

#[test]
fn an_empty_store_lists_nothing_and_is_not_made() {
    let world = World::new();
    let text = world.segue(&["sessions", "list"]).run();
    assert_eq!((text.code, text.stdout.as_str(), text.stderr.as_str()), (0, "", "No sessions.\n"));
    assert_eq!(world.segue(&["sessions", "list", "--output", "json"]).run().json(), json!([]));
    assert_eq!(world.segue(&["sessions", "check"]).run().code, 0);
    assert!(!world.home().exists());
}

#[test]
fn a_session_is_shown_exported_searched_copied_and_deleted() {
    let world = World::new();
    let session = world.session();
    world.ask(&[
        "use bash {\"command\":\"echo needle in a haystack\"}",
        "--permissions",
        "all",
        "--resume",
        &session,
    ]);
    insta::assert_snapshot!("show", world.segue(&["sessions", "show", &session]).run().shown());
    let kinds: Vec<String> = world.records(&session).into_iter().map(|(kind, _)| kind).collect();
    insta::assert_json_snapshot!("record-kinds", kinds);

    let jsonl = world.segue(&["sessions", "export", &session, "--format", "jsonl"]).run();
    let header: Value = serde_json::from_str(jsonl.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(header["id"], session.as_str());
    assert_eq!(jsonl.stdout.lines().count(), kinds.len() + 1);

    let found = world.segue(&["sessions", "search", "Needle", "--output", "json"]).run().json();
    assert_eq!((&found[0]["id"], found.as_array().unwrap().len()), (&json!(session), 1));
    assert!(found[0]["match"].as_str().unwrap().contains("needle"), "{found}");
    assert_eq!(world.segue(&["sessions", "search", "not there", "--output", "json"]).run().json(), json!([]));

    let fork = world.segue(&["sessions", "fork", &session, "--at", "2"]).run();
    insta::assert_snapshot!("fork", fork.shown());
    let copy = fork.stdout.trim().to_owned();
    assert_eq!(world.records(&copy).len(), 2);
    assert_eq!(world.segue(&["sessions", "fork", &session, "--at", "9999"]).run().code, 2);

    let unasked = world.segue(&["sessions", "delete", &copy]).run();
    assert_eq!(unasked.code, 2, "{}", unasked.stderr);
    let half = world.segue(&["sessions", "delete", &copy, "0000", "--yes"]).run();
    assert_eq!(half.code, 3);
    assert_eq!(world.records(&copy).len(), 2, "nothing is deleted if one of the ids is wrong");
    assert_eq!(world.segue(&["sessions", "delete", &copy, &copy, "--yes"]).run().code, 0);
    assert_eq!(world.segue(&["sessions", "show", &copy]).run().code, 3);
}

/// One unreadable session made others unusable elsewhere, and the advice was to delete the folder.
#[test]
fn a_damaged_session_harms_only_itself() {
    let world = World::new();
    let (good, bad) = (world.session(), world.session());
    world.ask(&["hello", "--resume", &bad]);
    let log = world.log(&bad);
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let broken: Vec<String> = lines
        .iter()
        .enumerate()
        .map(|(at, line)| if at == 4 { line.replace('a', "b") } else { (*line).to_owned() })
        .collect();
    std::fs::write(&log, broken.join("\n") + "\n").unwrap();
    world.write("home/sessions/notes.txt", "mine");

    let listed = world.segue(&["sessions", "list", "--output", "json"]).run().json();
    let states: Vec<(&str, &str)> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["id"].as_str().unwrap(), row["state"].as_str().unwrap()))
        .collect();
    assert!(states.contains(&(good.as_str(), "idle")), "{states:?}");
    let shown = world.segue(&["sessions", "show", &bad, "--output", "jsonl"]).run();
    assert_eq!((shown.code, shown.stdout.lines().count()), (5, 3), "{}", shown.stderr);
    let resumed = world.segue(&["-p", "hello", "--resume", &bad, "--output", "json"]).run();
    assert_eq!((resumed.code, resumed.json()["error"]["code"].clone()), (5, json!("SESSION_DAMAGED")));
    assert_eq!(world.ask(&["what number?", "--resume", &good])["text"], "The number is 42.");

    let check = world.segue(&["sessions", "check"]).run();
    assert_eq!(check.code, 5, "{}", check.stdout);
    assert!(check.stdout.contains(&bad) && check.stdout.contains("notes.txt"), "{}", check.stdout);
    for ran in [&shown, &resumed, &check] {
        let all = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!all.contains("delete") && !all.contains("remove"), "{all}");
    }

    let before = std::fs::read(&log).unwrap();
    let mended = world.segue(&["sessions", "repair", &bad]).run();
    assert_eq!(mended.code, 0, "{}", mended.stderr);
    assert_eq!(std::fs::read(&log).unwrap(), before, "the original stays");
    let next = world.ask(&["hello", "--resume", mended.stdout.trim()]);
    assert_eq!(next["status"], "completed");
}
