//! Mistakes on the command line: exit code, message, and that nothing was made.

use crate::world::World;

#[test]
fn mistakes_are_told_and_make_nothing() {
    let world = World::new();
    let cases: [(&str, &[&str]); 22] = [
        ("no command", &[]),
        ("a prompt without -p", &["fix the bug"]),
        ("nearly a command", &["sesions"]),
        ("unknown flag", &["-p", "x", "--permision", "all"]),
        ("unknown level", &["-p", "x", "--permissions", "sudo"]),
        ("no prompt", &["-p"]),
        ("resume what", &["-p", "x", "--resume"]),
        ("resume no such id", &["-p", "x", "--resume", "0190a8c0"]),
        ("resume no such id without -p", &["--resume", "0190a8c0"]),
        ("resume a text", &["-p", "x", "--resume", "that thing"]),
        ("resume a path", &["-p", "x", "--resume", "../../etc/passwd"]),
        ("resume an agent's", &["-p", "x", "--resume", "claude:123"]),
        ("continue nothing", &["-p", "x", "-c"]),
        ("another agent", &["-p", "x", "--agent", "claude"]),
        ("unknown provider", &["-p", "x", "--model", "antropic/claude"]),
        ("missing key", &["-p", "x", "--model", "openai/gpt"]),
        ("another store", &["-p", "x", "--store", "sqlite:x.db"]),
        ("no such folder", &["-p", "x", "--cwd", "nowhere"]),
        ("no such config", &["-p", "x", "--config", "nowhere.toml"]),
        ("bad rule", &["-p", "x", "--allow", "bash("]),
        ("to come", &["serve", "--listen", "127.0.0.1:8087"]),
        ("delete unasked", &["sessions", "delete", "0190a8c0", "--yes"]),
    ];
    let mut all = String::new();
    for (name, arguments) in cases {
        let ran = world.segue(arguments).run();
        all.push_str(&format!("## {name}: segue {}\n{}\n", arguments.join(" "), ran.shown()));
        assert!(!world.home().exists(), "{name} made something");
    }
    insta::assert_snapshot!("mistakes", all);
}

#[test]
fn an_ambiguous_start_of_an_id_names_the_candidates() {
    let world = World::new();
    let (one, two) = (world.session(), world.session());
    // Ids begin with the time, so the first characters of the two are the same.
    let common: String = one.chars().zip(two.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    let ran = world.segue(&["-p", "x", "--resume", &common]).run();
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains(&one) && ran.stderr.contains(&two), "{}", ran.stderr);
    let unique = &two[..common.len() + 1];
    assert_eq!(world.ask(&["what number?", "--resume", unique])["session"], two.as_str());
}

#[test]
fn a_mistyped_id_names_the_nearest() {
    let world = World::new();
    let session = world.session();
    let mut wrong = session.clone().into_bytes();
    wrong.swap(34, 35);
    wrong[30] = if wrong[30] == b'0' { b'1' } else { b'0' };
    let ran = world.segue(&["-p", "x", "--resume", std::str::from_utf8(&wrong).unwrap()]).run();
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains(&format!("there is {session}")), "{}", ran.stderr);
}

#[test]
fn json_is_printed_on_every_exit_but_2() {
    let world = World::new();
    let ran = world.segue(&["-p", "x", "--output", "json", "--resume", "0190a8c0"]).run();
    insta::assert_snapshot!("json-not-found", ran.shown());
    let usage = world.segue(&["-p", "x", "--output", "json", "--agent", "claude"]).run();
    assert_eq!((usage.code, usage.stdout.as_str()), (2, ""));
}
