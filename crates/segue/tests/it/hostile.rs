//! What stands where something else is expected: pipes for files, names that are no text, full devices, hasty signals.

use std::fs::OpenOptions;
use std::path::Path;

use rustix::process::Signal;

use crate::world::World;

fn make_pipe(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// A pipe in the place of the project's file, which anybody's repository can bring, blocked segue for ever, and deaf to
/// SIGTERM.
#[test]
fn a_configuration_that_is_no_file_is_refused_at_once() {
    for (place, flag) in [("work/.segue/config.toml", None), ("home/config.toml", None), ("c", Some("c"))] {
        let world = World::new();
        let path = world.path(place);
        let (arguments, why) = match flag {
            Some(_) => (
                vec!["-p", "x", "--config", "/dev/zero"],
                "/dev/zero: cannot be read: it is longer than 1 MiB",
            ),
            None => {
                make_pipe(&path);
                (vec!["-p", "x"], "config.toml: cannot be read: it is no regular file")
            }
        };
        let ran = world.segue(&arguments).run();
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{place}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{place}: {}", ran.stderr);
    }
}

/// The same for the file of instructions: the turn hung before its first request, beyond its --timeout.
#[test]
fn instructions_that_are_no_file_are_passed_over() {
    let world = World::new();
    make_pipe(&world.work().join("AGENTS.md"));
    std::os::unix::fs::symlink("/dev/zero", world.path("AGENTS.md")).unwrap();
    assert_eq!(world.ask(&["hello"])["text"], "You said: hello");
}

/// `timeout 10 segue …` signals the process and then its group, so the signal comes twice. The second was taken for
/// impatience, and the report of the turn was lost.
#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    for pause in [0, 1, 20] {
        let world = World::new();
        let prompt =
            "use bash {\"command\":\"trap '' TERM; echo began > mark; sleep 600 & wait; sleep 600\"}";
        let mut running = world.segue(&["-p", prompt, "--permissions", "all", "--output", "json"]).start();
        running.wait_for(&world.work().join("mark"), "began\n");
        running.signal(Signal::TERM);
        std::thread::sleep(std::time::Duration::from_millis(pause));
        running.signal(Signal::TERM);
        let ran = running.finish();
        assert_eq!(ran.code, 143, "{}", ran.stderr);
        let object = ran.json();
        assert_eq!((&object["turn"], &object["status"]), (&1.into(), &"cancelled".into()), "{object}");
    }
}

/// A folder whose name is not UTF-8 gave a session with an empty header: its id was shown, and nothing could read it.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_no_log_can_name_is_refused_before_a_session_is_made() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let folder = world.work().join(std::ffi::OsStr::from_bytes(b"w\xff"));
    std::fs::create_dir(&folder).unwrap();
    let ran = world.segue(&["-p", "x"]).dir(&folder).run();
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("has a name that is not UTF-8"), "{}", ran.stderr);
    assert!(!world.home().exists());
    let session = world.session();
    let moved = world.segue(&["-p", "x", "--resume", &session, "--cwd", "."]).dir(&folder).run();
    assert_eq!(moved.code, 2, "{}", moved.stderr);
    assert_eq!(world.ask(&["what number?", "--resume", &session])["text"], "The number is 42.");
}

#[cfg(target_os = "linux")]
#[test]
fn what_could_not_be_printed_is_a_failure() {
    let world = World::new();
    for arguments in [&["--help"][..], &["--version"], &["models"], &["sessions", "list"], &["-p", "x", "-q"]]
    {
        world.session();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = world.segue(arguments).stdout(full).run();
        assert_eq!(ran.code, 1, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("cannot write to stdout: "), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn advice_can_be_followed_as_it_stands() {
    let world = World::new();
    let ran = world.segue(&["--", "-p"]).run();
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.ends_with("hint: segue -p -- -p\n"), "{}", ran.stderr);
    let nowhere = world.segue(&["-p", "x"]).env_remove("HOME").env_remove("SEGUE_HOME").run();
    assert_eq!(nowhere.code, 2);
    assert!(nowhere.stderr.contains("set SEGUE_HOME to a folder"), "{}", nowhere.stderr);
}

#[test]
fn a_signal_ends_the_wait_for_what_survived_a_crash() {
    let world = World::new();
    let session = world.session();
    let long = "use bash {\"command\":\"echo began > mark; sleep 600\"}";
    let mut killed = world.segue(&["-p", long, "--permissions", "all", "--resume", &session]).start();
    killed.wait_for(&world.work().join("mark"), "began\n");
    killed.kill();
    let waiting = world
        .segue(&["-p", "go on", "--resume", &session, "--output", "json"])
        .env("SEGUE_TOOLS_ON_SURVIVOR", "wait")
        .start();
    std::thread::sleep(std::time::Duration::from_secs(1));
    waiting.signal(Signal::INT);
    let ran = waiting.finish();
    assert_eq!(ran.code, 130, "{}", ran.stderr);
    // The command is ended by the next process that opens the session.
    assert_eq!(world.ask(&["what number?", "--resume", &session])["text"], "The number is 42.");
}

/// One folder in which a pipe had the name of the log, and no session was listed any more.
#[test]
fn a_log_that_is_no_file_harms_only_its_own_session() {
    let world = World::new();
    let session = world.session();
    let other = "01a22f0c-39eb-73e8-9f8e-0deefe0ec2f5";
    make_pipe(&world.log(other));
    let listed = world.segue(&["sessions", "list", "--all", "--output", "json"]).run().json();
    let states: std::collections::BTreeMap<&str, &str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["id"].as_str().unwrap(), row["state"].as_str().unwrap()))
        .collect();
    assert_eq!(states, [(session.as_str(), "idle"), (other, "damaged")].into());
    for arguments in
        [&["sessions", "show", other][..], &["-p", "x", "--resume", other], &["sessions", "check"]]
    {
        assert_eq!(world.segue(arguments).run().code, 5, "{arguments:?}");
    }
    assert_eq!(world.ask(&["what number?", "--resume", &session])["text"], "The number is 42.");
}

// A command that ran as the same user could read the keys that Segue was started with out of /proc.
#[cfg(target_os = "linux")]
#[test]
fn a_command_cannot_read_the_environment_that_segue_was_started_with() {
    let world = World::new();
    let up_to_segue = "p=$$; until [ \"$(cat /proc/$p/comm)\" = segue ]; do p=$(awk '/^PPid/{print $2}' /proc/$p/status); \
                       done; tr '\\0' '\\n' < /proc/$p/environ | grep -c TEST_SECRET; echo looked";
    let prompt = format!("use bash {}", serde_json::json!({ "command": up_to_segue }));
    for level in ["all", "edit"] {
        let ran = world
            .segue_as_anybody(&["-p", "-q", "--permissions", level, &prompt])
            .env("TEST_SECRET", "hush")
            .run();
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stdout.contains("/environ: Permission denied"), "{}", ran.stdout);
        assert!(ran.stdout.contains("looked"), "{}", ran.stdout);
    }
}
