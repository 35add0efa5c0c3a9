//! The line that says how to resume: there on every way out, once, and right when it is run as it stands.

use rustix::process::Signal;
use serde_json::Value;

use crate::world::World;

/// Runs a shell line in a folder that has nothing to do with the session; its JSON object.
fn run_elsewhere(line: &str) -> Value {
    let elsewhere = tempfile::tempdir().unwrap();
    let output = std::process::Command::new("bash")
        .args(["-c", &format!("{line} -p 'what number was it?' --output json")])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", elsewhere.path())
        .current_dir(elsewhere.path())
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{line}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_line_run_from_another_folder_resumes_the_session() {
    for name in ["plain", "with space", "it's \"quoted\" $HOME", "line\nbreak"] {
        let world = World::new();
        let home = world.path(name);
        let work = world.path(&format!("work {name}"));
        std::fs::create_dir(&work).unwrap();
        let config = world.write(&format!("{name}.toml"), "[limits]\nmax_steps = 7\n");
        let store = format!("jsonl:{}", world.path(&format!("store {name}")).display());
        for more in [vec![], vec!["--config", config.to_str().unwrap()], vec!["--store", &store]] {
            let arguments = [&["-p", "remember the number 42"], more.as_slice()].concat();
            let first = world.segue(&arguments).env("SEGUE_HOME", &home).dir(&work).run();
            assert_eq!(first.code, 0, "{}", first.stderr);
            let command = first.resume_command();
            let object = run_elsewhere(&command);
            assert_eq!(object["text"], "The number is 42.", "{command}");
            assert_eq!(object["turn"], 2, "{command}");
        }
    }
}

#[test]
fn the_name_alone_is_given_only_if_path_leads_to_this_binary() {
    let world = World::new();
    let bin = world.path("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_segue"), bin.join("segue")).unwrap();
    let found = world.segue(&["-p", "x"]).env("PATH", &bin).run();
    assert!(found.resume_command().contains(" segue --resume "), "{}", found.stderr);
    let other = world.path("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy("/bin/true", other.join("segue")).unwrap();
    let path = std::env::join_paths([&other, &bin]).unwrap();
    let hidden = world.segue(&["-p", "x"]).env("PATH", path).run();
    assert!(hidden.resume_command().contains(env!("CARGO_BIN_EXE_segue")), "{}", hidden.stderr);
}

#[test]
fn signals_end_in_order_with_the_line_and_the_object() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let world = World::new();
        let prompt = "use bash {\"command\":\"echo began > mark; sleep 600\"}";
        let mut running = world
            .segue(&["-p", prompt, "--permissions", "all", "--output", "json", "--model", "practice"])
            .start();
        running.wait_for(&world.work().join("mark"), "began\n");
        running.signal(signal);
        let ran = running.finish();
        assert_eq!(ran.code, code, "{}", ran.stderr);
        ran.resume_command();
        let object = ran.json();
        assert_eq!(object["status"], "cancelled");
        assert_eq!(object["error"]["code"], "INTERRUPTED");
        // Ended in order: the log is whole, so there is nothing to repair.
        let session = object["session"].as_str().unwrap();
        let next = world.ask(&["hello", "--resume", session]);
        assert_eq!(next["repaired"], serde_json::json!([]));
        let records = world.records(session);
        let result = &records.iter().find(|(kind, _)| kind == "tool/result").unwrap().1;
        assert_eq!(result["code"], "TOOL_CANCELLED");
    }
}

/// A process that got SIGTERM in its first moments left a file elsewhere that could be neither opened nor resumed.
#[test]
fn a_session_ended_at_any_moment_of_its_start_is_whole_or_not_there() {
    let world = World::new();
    for millis in (0..200).step_by(8) {
        let running = world.segue(&["-p", "say 200 words", "--model", "practice"]).start();
        std::thread::sleep(std::time::Duration::from_millis(millis));
        running.signal(Signal::TERM);
        let ran = running.finish();
        assert!([0, 143, -15].contains(&ran.code), "{}: {}", ran.code, ran.stderr);
    }
    let listed = world.segue(&["sessions", "list", "--all", "--output", "json", "--limit", "0"]).run();
    for session in listed.json().as_array().unwrap() {
        let id = session["id"].as_str().unwrap();
        assert_eq!(world.ask(&["hello", "--resume", id])["session"], id);
    }
    let check = world.segue(&["sessions", "check"]).run();
    assert_eq!(check.code, 0, "{}", check.stdout);
}

#[test]
fn a_store_that_cannot_be_made_is_exit_5_and_no_request_is_sent() {
    let world = World::new();
    let server = segue_testkit::ModelServer::start_blocking();
    let file = world.write("file", "not a folder");
    let ran = world
        .segue(&["-p", "hello", "--model", "openai/m", "--output", "json"])
        .env("SEGUE_HOME", world.path("elsewhere"))
        .env("SEGUE_STORE", format!("jsonl:{}", file.join("data").display()))
        .env("OPENAI_API_KEY", "k")
        .env("OPENAI_BASE_URL", server.url())
        .run();
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    assert_eq!(ran.json()["error"]["code"], "STORAGE_FAILED");
    assert!(ran.stderr.contains(file.to_str().unwrap()), "{}", ran.stderr);
    assert!(!ran.stderr.contains("To resume"), "{}", ran.stderr);
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_store_that_fails_in_mid_turn_is_exit_5_with_the_line_and_loses_nothing_accepted() {
    let world = World::new();
    let arguments = ["-p", "remember the number 42", "--model", "practice", "--output", "json"];
    // Room for the header, the prompt and the turn's start; not for the system prompt and the tools of the request.
    let ran = world.segue_on_small_disk(4, &arguments).run();
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    ran.resume_command();
    let object = ran.json();
    assert_eq!(
        (&object["status"], &object["error"]["code"]),
        (&"failed".into(), &"CHECKPOINT_FAILED".into())
    );
    let session = object["session"].as_str().unwrap();
    let next = world.ask(&["what number was it?", "--resume", session]);
    assert_eq!(next["text"], "The number is 42.", "the accepted prompt is there");
}
