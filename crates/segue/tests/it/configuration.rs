//! Configuration as the commands see it.

use serde_json::json;

use crate::world::World;

#[test]
fn mistakes_stop_everything_and_are_named_all_at_once() {
    let world = World::new();
    world.write(
        "home/config.toml",
        "modle = 'x'\nresume = 'last'\n\n[permissions]\nlevel = 'sudo'\nallow = ['bash(']\n",
    );
    world.write("work/.segue/config.toml", "store = 'jsonl:/x'\n");
    let check = world.segue(&["config", "check"]).env("SEGUE_MODLE", "x").run();
    insta::assert_snapshot!("config-check", check.shown());
    let run = world.segue(&["-p", "hello"]).run();
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert!(run.stderr.contains("did you mean model?"), "{}", run.stderr);
    assert!(!world.home().join("sessions").exists());
}

#[test]
fn broken_toml_is_named_with_line_and_column() {
    let world = World::new();
    let file = world.write("home/config.toml", "model = 'a/b'\nagent = = 1\n");
    let ran = world.segue(&["sessions", "list"]).run();
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.starts_with(&format!("error: {}:2:9: not TOML: ", file.display())), "{}", ran.stderr);
}

#[test]
fn each_value_is_shown_with_its_layer_and_secrets_are_not() {
    let world = World::new();
    let text = "model = 'mine/m'\n[providers.mine]\napi = 'openai'\nbase_url = 'http://127.0.0.1:1/v1'\nkey = 's3cret-key'\n[providers.mine.headers]\nx-team = 's3cret-team'\n";
    world.write("home/config.toml", text);
    let ran = world.segue(&["config", "show", "--max-steps", "9"]).env("SEGUE_TOOLS_SANDBOX", "off").run();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(!ran.stdout.contains("s3cret"), "{}", ran.stdout);
    let json = world
        .segue(&["config", "show", "--output", "json", "--max-steps", "9"])
        .env("SEGUE_TOOLS_SANDBOX", "off")
        .run()
        .json();
    let values = json["values"].as_array().unwrap();
    let value = |key: &str| values.iter().find(|value| value["key"] == key).unwrap();
    let file = world.home().join("config.toml");
    for (key, shown, layer, place) in [
        ("model", "\"mine/m\"", "user", format!("{}:1", file.display())),
        ("providers.mine.key", "[hidden]", "user", format!("{}:5", file.display())),
        ("providers.mine.headers.x-team", "[hidden]", "user", format!("{}:7", file.display())),
        ("limits.max_steps", "9", "flag", "--max-steps".to_owned()),
        ("tools.sandbox", "\"off\"", "environment", "$SEGUE_TOOLS_SANDBOX".to_owned()),
        ("tools.on_survivor", "\"stop\"", "built-in", "built-in".to_owned()),
    ] {
        assert_eq!(value(key), &json!({"key": key, "value": shown, "layer": layer, "place": place}));
    }
}

#[test]
fn an_untrusted_project_loosens_nothing_until_it_is_trusted() {
    let world = World::new();
    let prompt = "use bash {\"command\":\"touch made\"}";
    let made = world.work().join("made");
    world.write("work/.segue/config.toml", "[permissions]\nlevel = 'all'\n");
    let refused = world.segue(&["-p", prompt, "--model", "practice"]).run();
    assert_eq!(refused.code, 0);
    assert!(
        refused.stderr.contains("warning: not applied, because the folder is not trusted: permissions.level"),
        "{}",
        refused.stderr
    );
    assert!(!made.exists());
    let trust = world.segue(&["config", "trust"]).run();
    insta::assert_snapshot!("trust", trust.shown());
    let allowed = world.segue(&["-p", prompt, "--model", "practice", "-q"]).run();
    assert_eq!((allowed.code, allowed.stderr.as_str()), (0, ""));
    assert!(made.exists());
    world.write("work/.segue/config.toml", "[permissions]\nlevel = 'all'\nallow = ['bash']\n");
    let changed = world.segue(&["-p", "hello", "--model", "practice"]).run();
    assert!(changed.stderr.contains("its file changed since the folder was trusted"), "{}", changed.stderr);
}

#[test]
fn models_are_listed_with_their_keys_found_or_not() {
    let world = World::new();
    let ran = world.segue(&["models"]).env("OPENAI_API_KEY", "s3cret").run();
    insta::assert_snapshot!("models", ran.shown());
    let json = world.segue(&["models", "--output", "json"]).run().json();
    assert_eq!(json["answers"], "practice/practice");
}

#[test]
fn a_command_is_ended_after_the_configured_time() {
    let world = World::new();
    world.write("home/config.toml", "[tools]\nbash_timeout_ms = 300\n");
    let prompt = "use bash {\"command\":\"echo began; sleep 600\"}";
    let answer = world.ask(&[prompt, "--permissions", "all"]);
    assert_eq!(answer["status"], "completed");
    let records = world.records(answer["session"].as_str().unwrap());
    let result = &records.iter().find(|(kind, _)| kind == "tool/result").unwrap().1;
    assert_eq!(result["code"], "TOOL_TIMED_OUT");
    assert!(result["content"][0]["text"].as_str().unwrap().contains("began"), "{result}");
}
