//! Help texts, as they are.

use crate::world::World;

#[test]
fn help_says_what_there_is() {
    let world = World::new();
    for (name, arguments) in [
        ("segue", vec!["--help"]),
        ("segue-short", vec!["-h"]),
        ("sessions", vec!["sessions", "--help"]),
        ("sessions-list", vec!["sessions", "list", "--help"]),
        ("sessions-settle", vec!["sessions", "settle", "--help"]),
        ("config", vec!["config", "--help"]),
    ] {
        let ran = world.segue(&arguments).env("COLUMNS", "100").run();
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{name}");
        insta::assert_snapshot!(name, ran.stdout);
    }
}

#[test]
fn version_and_completions_need_nothing() {
    let world = World::new();
    let version = world.segue(&["--version"]).env_remove("SEGUE_HOME").env_remove("HOME").run();
    assert_eq!(
        (version.code, version.stdout.as_str()),
        (0, concat!("segue ", env!("CARGO_PKG_VERSION"), "\n"))
    );
    for shell in ["bash", "zsh", "fish"] {
        let ran = world.segue(&["completions", shell]).env_remove("SEGUE_HOME").env_remove("HOME").run();
        assert_eq!(ran.code, 0, "{shell}");
        for word in ["sessions", "resume", "stream-json"] {
            assert!(ran.stdout.contains(word), "{shell} completes {word}");
        }
    }
    assert!(!world.home().exists());
}
