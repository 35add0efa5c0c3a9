//! `segue -p`: what comes on stdout, what on stderr, and the exit code.

use segue_testkit::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::world::{World, redact};

#[test]
fn the_answer_is_alone_on_stdout() {
    let world = World::new();
    let first = world.segue(&["-p", "remember the number 42"]).run();
    insta::assert_snapshot!("first-turn", first.shown());
    let second = world.segue(&["-p", "what number was it?", "--continue", "--model", "practice"]).run();
    insta::assert_snapshot!("second-turn", second.shown());
    let quiet = world.segue(&["-p", "hello", "-q", "--model", "practice"]).run();
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (0, "You said: hello\n", ""));
}

#[test]
fn json_and_stream_json_have_their_shapes() {
    let world = World::new();
    let json = world.segue(&["-p", "say 3 words", "--output", "json", "-q"]).run();
    insta::assert_json_snapshot!("json", redacted(&world, &json.json()), { ".usage" => "[usage]" });
    let stream = world.segue(&["-p", "what number?", "--output", "stream-json", "-c", "-q"]).run();
    let lines: Vec<Value> = stream.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["type"], "session");
    assert_eq!(lines.last().unwrap()["type"], "result");
    let mut last = 0;
    for record in lines.iter().filter(|line| line["seq"].is_u64()) {
        let seq = record["seq"].as_u64().unwrap();
        assert!(last == 0 || seq == last + 1, "no gap after {last}");
        last = seq;
    }
    let mut kinds: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    kinds.dedup();
    insta::assert_json_snapshot!("stream-kinds", kinds);
    let said: String =
        lines.iter().filter(|line| line["kind"] == "text").map(|l| l["text"].as_str().unwrap()).collect();
    assert_eq!(said, "I know no number.");
}

fn redacted(world: &World, value: &Value) -> Value {
    serde_json::from_str(&redact(&value.to_string(), &world.path(""))).unwrap()
}

#[test]
fn what_is_piped_in_is_added() {
    let world = World::new();
    for (arguments, piped, answer) in [
        (vec!["-p", "hello"], "there", "You said: hello\n\nthere\n"),
        (vec!["-p"], "only this", "You said: only this\n"),
        (vec!["-p", "hello"], "  \n", "You said: hello\n"),
        (vec!["-p", "--", "sessions"], "", "You said: sessions\n"),
    ] {
        let ran = world.segue(&arguments).stdin(piped).run();
        assert_eq!((ran.code, ran.stdout.as_str()), (0, answer), "{arguments:?}: {}", ran.stderr);
    }
    let large = "x".repeat(10_000_000);
    let ran = world.segue(&["-p", "-q"]).stdin(&large).run();
    assert_eq!((ran.code, ran.stdout.len()), (0, "You said: \n".len() + large.len()), "{}", ran.stderr);
}

#[test]
fn control_sequences_do_not_reach_the_terminal() {
    let world = World::new();
    let ran = world.segue(&["-p", "\u{1b}[2Jhello\u{1b}]0;title\u{7}"]).run();
    assert_eq!(ran.stdout, "You said: hello\n");
    assert!(!ran.stderr.contains('\u{1b}'));
}

#[test]
fn the_same_prompt_id_runs_nothing_twice() {
    let world = World::new();
    let first = world.ask(&[
        "use bash {\"command\":\"echo ran >> count\"}",
        "--permissions",
        "all",
        "--prompt-id",
        "p1",
    ]);
    let session = first["session"].as_str().unwrap();
    let again = [
        "use bash {\"command\":\"echo ran >> count\"}",
        "--permissions",
        "all",
        "--prompt-id",
        "p1",
        "--resume",
        session,
    ];
    let second = world.ask(&again);
    for field in ["session", "turn", "status", "text"] {
        assert_eq!(first[field], second[field], "{field}");
    }
    assert_eq!(std::fs::read_to_string(world.work().join("count")).unwrap(), "ran\n");
    let other = world
        .segue(&["-p", "something else", "--prompt-id", "p1", "--resume", session, "--output", "json"])
        .run();
    assert_eq!((other.code, other.stdout.as_str()), (2, ""));
    assert!(other.stderr.contains("prompt id p1 was used for other content before"), "{}", other.stderr);
}

#[test]
fn nobody_can_be_asked_so_asking_means_refusing() {
    let world = World::new();
    let prompt = "use bash {\"command\":\"touch made\"}";
    let refused = world.ask(&[prompt]);
    assert!(refused["text"].as_str().unwrap().starts_with("Results: "), "{refused}");
    assert!(!world.work().join("made").exists());
    let allowed = world.ask(&[prompt, "--allow", "bash(touch *)"]);
    assert_eq!(allowed["status"], "completed");
    assert!(world.work().join("made").exists());
}

#[test]
fn limits_end_the_turn_and_say_so() {
    let world = World::new();
    let steps = world
        .segue(&[
            "-p",
            "use bash {\"command\":\"true\"}",
            "--max-steps",
            "1",
            "--permissions",
            "all",
            "--output",
            "json",
        ])
        .run();
    assert_eq!((steps.code, steps.json()["status"].clone()), (1, json!("max_steps")), "{}", steps.stderr);
    let prompt = "use bash {\"command\":\"sleep 600\"}";
    let time =
        world.segue(&["-p", prompt, "--permissions", "all", "--timeout", "1s", "--output", "json"]).run();
    assert_eq!(time.code, 1, "{}", time.stderr);
    assert_eq!(time.json()["status"], "cancelled");
    assert_eq!(time.json()["error"]["code"], "TIMED_OUT");
    time.resume_command();
}

#[test]
fn a_refused_key_is_told_once_with_its_variable() {
    let world = World::new();
    let server = ModelServer::start_blocking();
    server.push(Reply::refusal(401, "invalid_api_key", "Incorrect API key provided: sk-wrong"));
    let ran = world
        .segue(&["-p", "hello", "--model", "openai/gpt-x", "--output", "json"])
        .env("OPENAI_API_KEY", "sk-wrong")
        .env("OPENAI_BASE_URL", server.url())
        .run();
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert_eq!(server.requests().len(), 1);
    let object = ran.json();
    assert_eq!(
        (&object["status"], &object["error"]["code"]),
        (&json!("failed"), &json!("MODEL_KEY_REFUSED"))
    );
    assert!(ran.stderr.contains("OPENAI_API_KEY"), "{}", ran.stderr);
    assert!(
        !ran.stdout.contains("sk-wrong") && !ran.stderr.contains("sk-wrong"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
    let session = object["session"].as_str().unwrap();
    assert!(!std::fs::read_to_string(world.log(session)).unwrap().contains("sk-wrong"));
}

// An empty answer printed nothing at all and exited well, so that nobody knew whether the model had been asked.
#[test]
fn an_empty_answer_is_told() {
    let world = World::new();
    let server = ModelServer::start_blocking();
    server.push(Reply::text(""));
    let ran = world
        .segue(&["-p", "hello", "--model", "openai/gpt-x", "-q"])
        .env("OPENAI_API_KEY", "k")
        .env("OPENAI_BASE_URL", server.url())
        .run();
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (0, "", "The model answered nothing.\n")
    );
}

#[test]
fn a_resumed_session_keeps_its_model() {
    let world = World::new();
    let server = ModelServer::start_blocking();
    server.push(Reply::text("one"));
    server.push(Reply::text("two"));
    let call = |arguments: &[&str]| {
        world.segue(arguments).env("OPENAI_API_KEY", "k").env("OPENAI_BASE_URL", server.url()).run()
    };
    let first = call(&["-p", "first", "--model", "openai/some-model", "--output", "json"]);
    assert_eq!(first.json()["text"], "one", "{}", first.stderr);
    let second = call(&["-p", "second", "-c", "--output", "json"]);
    assert_eq!(
        (&second.json()["text"], &second.json()["model"]),
        (&json!("two"), &json!("openai/some-model"))
    );
    let models: Vec<Value> = server.bodies().iter().map(|body| body["model"].clone()).collect();
    assert_eq!(models, ["some-model", "some-model"]);
    let without_key = world.segue(&["-p", "third", "-c"]).run();
    assert_eq!(without_key.code, 2);
    assert!(without_key.stderr.contains("OPENAI_API_KEY is not set"), "{}", without_key.stderr);
    // The key of a model that is left is no longer needed, and the change lasts.
    for arguments in [&["hello", "-c", "--model", "practice"][..], &["hello", "-c"]] {
        let left = world.ask(arguments);
        assert_eq!((&left["text"], &left["model"]), (&json!("You said: hello"), &json!("practice/practice")));
    }
}
