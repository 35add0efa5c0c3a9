use super::*;

const SANDBOXED: ActionKind = ActionKind::Command { sandboxed: true };
const OPEN: ActionKind = ActionKind::Command { sandboxed: false };

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().unwrap_or_else(|e| panic!("{e}"))).collect()
}

fn action(kind: ActionKind, subject: &str) -> Action {
    Action { kind, subject: subject.to_owned(), shown: subject.to_owned(), rule: String::new() }
}

/// The verdict as `allow`, `deny` or `ask`, with what it is by.
fn verdict(level: Level, allow: &[&str], deny: &[&str], tool: &str, action: &Action) -> String {
    let rules = Rules { allow: rules(allow), deny: rules(deny) };
    match decide(level, &rules, &[], tool, action) {
        Verdict::Allow { by } => format!("allow: {by}"),
        Verdict::Deny { by } => format!("deny: {by}"),
        Verdict::Ask => "ask".to_owned(),
    }
}

#[test]
fn levels_let_through_what_they_say() {
    use ActionKind::{Other, Read, ReadOutside, Write, WriteOutside};
    //           kind          read     ask      edit     all
    let table = [
        (Read, ["allow", "allow", "allow", "allow"]),
        (ReadOutside, ["deny", "ask", "ask", "allow"]),
        (Write, ["deny", "ask", "allow", "allow"]),
        (WriteOutside, ["deny", "ask", "ask", "allow"]),
        (SANDBOXED, ["deny", "ask", "allow", "allow"]),
        (OPEN, ["deny", "ask", "ask", "allow"]),
        (Other, ["deny", "ask", "ask", "allow"]),
    ];
    for (kind, expected) in table {
        let got = Level::EVERY.map(|level| {
            let verdict = verdict(level, &[], &[], "tool", &action(kind, "x"));
            verdict.split(':').next().map(str::to_owned).unwrap_or_default()
        });
        assert_eq!(got, expected, "{kind:?}");
        for level in Level::EVERY {
            assert_eq!(
                verdict(level, &["tool"], &["tool(x)"], "tool", &action(kind, "x")),
                "deny: deny rule tool(x)",
                "{kind:?} at {level}: what is denied comes first"
            );
        }
    }
    assert_eq!(
        verdict(Level::Read, &["bash(ls)"], &[], "bash", &action(SANDBOXED, "ls")),
        "deny: level read: only looking inside the working folder is permitted, and allow rules do not lift that"
    );
}

#[test]
fn levels_are_read_and_written_the_same() {
    for level in Level::EVERY {
        assert_eq!(level.to_string().parse(), Ok(level));
        assert_eq!(serde_json::to_value(level).unwrap(), serde_json::json!(level.as_str()));
    }
    assert_eq!(
        "Edit".parse::<Level>().unwrap_err().to_string(),
        "no permission level: \"Edit\"; use read, ask, edit or all"
    );
}

#[test]
fn an_allow_rule_matches_only_what_is_certainly_meant() {
    let table: &[(&[&str], &str, bool)] = &[
        (&["bash"], "rm -rf / > /dev/null; $(x)", true),
        (&["*"], "rm -rf x", true),
        (&["b?sh"], "rm", true),
        (&["write"], "cargo test", false),
        (&["bash(cargo test)"], "cargo test", true),
        (&["bash(cargo test)"], "cargo test --all", false),
        (&["bash(cargo test)"], "cargo tes", false),
        (&["bash(cargo *)"], "cargo test --all -- 'a b'", true),
        (&["bash(cargo *)"], "  cargo   test\n", true),
        (&["bash(cargo *)"], "cargo", true),
        (&["bash(cargo *)"], "cargoes x", false),
        (&["bash(cargo *)"], "CARGO test", false),
        (&["bash(cargo test *)"], "cargo   test", true),
        (&["bash(cargo*)"], "cargoes x", true),
        (&["bash(git ?? *)"], "git ls-files", false),
        (&["bash(git l? x)"], "git ls x", true),
        (&["bash(a*b*c)"], "a-b-b-c", true),
        (&["bash(a*b*c)"], "a-b-b-d", false),
        (&[r"bash(rm \*.o)"], "rm *.o", true),
        (&[r"bash(rm \*.o)"], "rm a.o", false),
        (&[r"bash(grep a\\b *)"], r"grep a\b x", true),
        (&[r"bash(grep a\b *)"], r"grep a\b x", true),
        // Every simple command must be allowed by itself.
        (&["bash(cargo *)"], "cargo test; rm -rf /", false),
        (&["bash(cargo *)"], "cargo x && y", false),
        (&["bash(cargo *)"], "cargo x || y", false),
        (&["bash(cargo *)"], "cargo x & y", false),
        (&["bash(cargo *)"], "cargo x | sh", false),
        (&["bash(cargo *)"], "cargo x |& sh", false),
        (&["bash(cargo *)"], "cargo x\nrm -rf /", false),
        (&["bash(cargo *)"], "cargo x\r\nrm -rf /", false),
        (&["bash(cargo *)"], "y; cargo x", false),
        (&["bash(cargo *)"], "cargo build && cargo test;", true),
        (&["bash(cargo *)", "bash(git log *)"], "cargo build && git log | cargo x", true),
        (&["bash(cargo *)", "bash(y)"], "cargo x && y", true),
        (&["bash(cargo *)"], "if cargo x; then rm y; fi", false),
        (&["bash(cargo *)"], "! cargo x", false),
        (&["bash(cargo *)"], "RUSTC=/tmp/evil cargo x", false),
        (&["bash(cargo *)"], "/tmp/cargo x", false),
        (&["bash(cargo *)"], "{ cargo x; rm y; }", false),
        // Operators inside quotes are text.
        (&["bash(cargo *)"], "cargo x 'a; rm'", true),
        (&["bash(cargo *)"], "cargo x \"a && rm\"", true),
        (&["bash(cargo *)"], "cargo x 'a\nrm'", true),
        (&["bash(cargo *)"], r"cargo x a\;rm", true),
        (&["bash(cargo *)"], r#"cargo x "\"; rm""#, true),
        (&["bash(cargo *)"], r#"cargo x \"; rm"#, false),
        (&["bash(cargo *)"], r"cargo x '\'; rm", false),
        (&["bash(cargo *)"], r"cargo x \\; rm", false),
        (&["bash(cargo *)"], "cargo x $HOME \"$A\" '$(y)' '`y`' a$", true),
        // Whatever the text does not show is asked.
        (&["bash(cargo *)"], "cargo $(rm x)", false),
        (&["bash(cargo *)"], "cargo \"$(rm x)\"", false),
        (&["bash(cargo *)"], "cargo `rm x`", false),
        (&["bash(cargo *)"], "cargo \"`rm x`\"", false),
        (&["bash(cargo *)"], "cargo ${x@P}", false),
        (&["bash(cargo *)"], "cargo \"${x@P}\"", false),
        (&["bash(cargo *)"], "cargo $((x))", false),
        (&["bash(cargo *)"], "cargo $[x]", false),
        (&["bash(cargo *)"], r"cargo $'\'; rm x '", false),
        (&["bash(cargo *)"], "cargo $\"x\"", false),
        (&["bash(cargo *)"], "cargo x > ~/.profile", false),
        (&["bash(cargo *)"], "cargo x >> a", false),
        (&["bash(cargo *)"], "cargo x 2>&1", false),
        (&["bash(cargo *)"], "cargo x < a", false),
        (&["bash(cargo *)"], "cargo x <<E\nE", false),
        (&["bash(cargo *)"], "cargo <(rm x)", false),
        (&["bash(cargo *)"], "(cargo x)", false),
        (&["bash(cargo *)"], "cargo () { rm x; }; cargo x", false),
        (&["bash(cargo *)"], "cargo x # it's\nrm x # '", false),
        (&["bash(cargo *)"], "cargo 'x", false),
        (&["bash(cargo *)"], "cargo \"x", false),
        (&["bash(cargo *)"], "cargo x\\", false),
        (&["bash(cargo *)"], "cargo x\0; rm", false),
        (&["bash(*)"], "cargo x > a", false),
        (&["bash(*)"], "", false),
        (&["bash(*)"], " ;; ", false),
        // A rule without wildcards is the whole command, whatever is in it.
        (&["bash(cargo x 2>&1 | tail)"], "cargo x 2>&1 | tail", true),
        (&["bash(echo (a))"], "echo (a)", true),
        (&["bash(cat *.c > all)"], "cat *.c > all", true),
        (&["bash(cat *.c > all)"], "cat a.c > all", false),
        (&["bash(cargo x 2>&1)"], "cargo x 2>&1; rm", false),
    ];
    for (allow, command, expected) in table {
        let verdict = verdict(Level::Ask, allow, &[], "bash", &action(OPEN, command));
        assert_eq!(
            verdict.starts_with("allow: allow rule "),
            *expected,
            "{allow:?} on {command:?}: {verdict}"
        );
        assert!(*expected || verdict == "ask", "{allow:?} on {command:?}: {verdict}");
    }
}

#[test]
fn a_verdict_names_the_rules_that_made_it() {
    assert_eq!(
        verdict(Level::Ask, &["bash(a *)", "bash(b)"], &[], "bash", &action(OPEN, "a 1 && b; a 2")),
        "allow: allow rule bash(a *), bash(b)"
    );
    let session = rules(&["bash(make)"]);
    // What a rule allows is allowed by the rule, also where the level would do: only then it leaves the sandbox.
    for (command, by) in [("make", "allow rule bash(make)"), ("make all", "level edit")] {
        let got = decide(Level::Edit, &Rules::default(), &session, "bash", &action(SANDBOXED, command));
        assert_eq!(got, Verdict::Allow { by: by.into() }, "{command}");
    }
    let got = decide(Level::Edit, &Rules::default(), &session, "bash", &action(OPEN, "make"));
    assert_eq!(got, Verdict::Allow { by: "allow rule bash(make)".into() });
    let got = decide(
        Level::All,
        &Rules { allow: vec![], deny: rules(&["bash(make *)"]) },
        &session,
        "bash",
        &action(OPEN, "make"),
    );
    assert_eq!(got, Verdict::Deny { by: "deny rule bash(make *)".into() });
}

#[test]
fn a_deny_rule_matches_any_part_of_a_command() {
    let table: &[(&str, &str, bool)] = &[
        ("bash", "ls", true),
        ("bash(rm *)", "rm x", true),
        ("bash(rm *)", "rm", true),
        ("bash(rm *)", "rmdir x", false),
        ("bash(rm *)", "echo rm x", false),
        ("bash(rm *)", "echo 'rm x'", false),
        ("bash(rm *)", "ls; rm x", true),
        ("bash(rm *)", "ls && rm x", true),
        ("bash(rm *)", "ls | rm x", true),
        ("bash(rm *)", "ls & rm x", true),
        ("bash(rm *)", "ls\nrm x", true),
        ("bash(rm *)", "ls $(rm x)", true),
        ("bash(rm *)", "ls \"$(rm x)\"", true),
        ("bash(rm *)", "ls `rm x`", true),
        ("bash(rm *)", "(rm x)", true),
        ("bash(rm *)", "{ rm x; }", true),
        ("bash(rm *)", "if true; then rm x; fi", true),
        ("bash(rm *)", "while rm x; do :; done", true),
        ("bash(rm *)", "! rm x", true),
        ("bash(rm *)", "A=1 B=2 rm x", true),
        ("bash(rm *)", "sudo rm x", true),
        ("bash(rm *)", "env A=1 rm x", true),
        ("bash(rm *)", "command rm x", true),
        ("bash(rm *)", "/bin/rm x", true),
        ("bash(rm *)", r"\rm x", true),
        ("bash(rm *)", "r''m x", true),
        ("bash(rm *)", "\"rm\" x", true),
        ("bash(rm *)", "r\\\nm x", true),
        ("bash(rm *)", "rm\tx > y", true),
        ("bash(rm *)", "rm 'x", true),
        ("bash(rm *)", "ls > y; rm x", true),
        ("bash(*curl*)", "ls; x=$(curl y)", true),
        ("bash(git push *)", "git  push  --force", true),
        ("bash(a; b)", "a; b", true),
    ];
    for (deny, command, expected) in table {
        let expected = if *expected { format!("deny: deny rule {deny}") } else { "allow: level all".into() };
        assert_eq!(
            verdict(Level::All, &[], &[deny], "bash", &action(OPEN, command)),
            expected,
            "{command:?}"
        );
    }
}

#[test]
fn path_rules_stay_where_they_are_put() {
    use ActionKind::{ReadOutside, Write, WriteOutside};
    //                    rule              kind         path                   allowed  denied
    let table: &[(&str, ActionKind, &str, bool, bool)] = &[
        ("write", Write, "src/a.rs", true, true),
        ("write", WriteOutside, "/etc/passwd", false, true),
        ("*", WriteOutside, "/etc/passwd", false, true),
        ("write(/**)", WriteOutside, "/etc/passwd", true, true),
        ("write(*)", Write, "a.rs", true, true),
        ("write(*)", Write, "src/a.rs", false, false),
        ("write(*.rs)", Write, "src/a.rs", false, false),
        ("write(**)", Write, "src/a.rs", true, true),
        ("write(**/*.rs)", Write, "a.rs", true, true),
        ("write(**/*.rs)", Write, "src/deep/a.rs", true, true),
        ("write(src/**)", Write, "src/deep/a.rs", true, true),
        ("write(src/**)", Write, "./src//a.rs", true, true),
        ("write(./src/**)", Write, "src/a.rs", true, true),
        ("write(src/**)", Write, "src2/a.rs", false, false),
        ("write(src/**/a?.rs)", Write, "src/x/y/ab.rs", true, true),
        ("write(src/**/a?.rs)", Write, "src/ab.rs", true, true),
        ("write(src/*/a.rs)", Write, "src/x/y/a.rs", false, false),
        ("write(src/a\\*)", Write, "src/ab", false, false),
        // No way out by `..`, and none back in.
        ("write(src/**)", Write, "src/../secret", false, true),
        ("write(src/**)", Write, "x/../src/a", false, true),
        ("write(**)", WriteOutside, "../other/a", false, true),
        ("write(secret)", Write, "src/../secret", false, true),
        ("write(/srv/**)", WriteOutside, "/srv/../etc/passwd", false, true),
        ("write(/etc/*)", WriteOutside, "/srv/../etc/passwd", false, true),
        // A relative pattern allows nothing outside; one for any folder still denies there.
        ("write(**)", WriteOutside, "/etc/passwd", false, true),
        ("write(**/.env)", WriteOutside, "/home/x/.env", false, true),
        ("write(etc/passwd)", WriteOutside, "/etc/passwd", false, false),
        ("write(/etc/passwd)", Write, "etc/passwd", false, false),
        ("write(/usr/include/**)", ReadOutside, "/usr/include/stdio.h", true, true),
        ("write(/usr/include/**)", ReadOutside, "/usr/lib/x", false, false),
        ("write(/usr/*)", ReadOutside, "/usr", false, false),
        ("write(naïve/?)", Write, "naïve/é", true, true),
    ];
    for (rule, kind, path, allowed, denied) in table {
        let action = action(*kind, path);
        let got = verdict(Level::Ask, &[rule], &[], "write", &action);
        let expected = if *allowed { format!("allow: allow rule {rule}") } else { "ask".into() };
        assert_eq!(got, expected, "allow {rule} on {path:?}");
        let got = verdict(Level::All, &[], &[rule], "write", &action);
        let expected = if *denied { format!("deny: deny rule {rule}") } else { "allow: level all".into() };
        assert_eq!(got, expected, "deny {rule} on {path:?}");
    }
}

#[test]
fn mcp_tools_are_named_with_wildcards_and_matched_as_text() {
    use ActionKind::{Other, Read};
    let json = r#"{"path":"a/b/../c"}"#;
    let table: &[(&str, &str, bool)] = &[
        ("mcp__docs__*", "mcp__docs__search", true),
        ("mcp__docs__*", "mcp__docs2__search", false),
        ("mcp__docs__search", "mcp__docs__search", true),
        ("mcp__docs__search", "mcp__docs__search_all", false),
        ("mcp__*", "mcp__docs__search", true),
        (r#"mcp__docs__search(*"a/b/*)"#, "mcp__docs__search", true),
        ("mcp__docs__search(a)", "mcp__docs__search", false),
    ];
    for (rule, tool, matches) in table {
        let got = verdict(Level::Ask, &[rule], &[], tool, &action(Other, json));
        assert_eq!(
            got,
            if *matches { format!("allow: allow rule {rule}") } else { "ask".into() },
            "{rule} on {tool}"
        );
        let got = verdict(Level::Ask, &[], &[rule], tool, &action(Read, json));
        let expected = if *matches { format!("deny: deny rule {rule}") } else { "allow: level ask".into() };
        assert_eq!(got, expected, "{rule} on {tool}");
    }
}

#[test]
fn a_rule_that_cannot_be_read_says_what_is_wrong() {
    let table = [
        ("", "the tool's name is missing"),
        ("(x)", "the tool's name is missing"),
        ("bash(x", "the closing parenthesis is missing"),
        ("bash x)", "it closes a parenthesis that it does not open"),
        ("bash(x) y", "\" y\" follows the closing parenthesis"),
        ("bash()", "the pattern is empty; leave out the parentheses to match every call"),
        ("bash( )", "the pattern is empty; leave out the parentheses to match every call"),
        ("bash cargo", "' ' cannot be in a tool's name"),
        ("bash (cargo)", "' ' cannot be in a tool's name"),
        ("mcp:docs", "':' cannot be in a tool's name"),
        ("write(../x)", "a path pattern cannot go up by `..`; write the absolute path"),
        ("read(a/../../x)", "a path pattern cannot go up by `..`; write the absolute path"),
    ];
    for (rule, what) in table {
        let expected =
            format!("permission rule {rule:?}: {what}; write TOOL or TOOL(PATTERN), such as bash(cargo *)");
        assert_eq!(rule.parse::<Rule>().map_err(|e| e.to_string()), Err(expected));
    }
    let text = r#"{"allow":["bash(cd ..)"," mcp__x__* "],"deny":[]}"#;
    let read: Rules = serde_json::from_str(text).unwrap();
    assert_eq!(read, Rules { allow: rules(&["bash(cd ..)", "mcp__x__*"]), deny: vec![] });
    assert_eq!(serde_json::to_string(&read).unwrap(), r#"{"allow":["bash(cd ..)","mcp__x__*"],"deny":[]}"#);
    let error = serde_json::from_str::<Rules>(r#"{"allow":["bash("]}"#).unwrap_err().to_string();
    assert!(error.contains("the closing parenthesis is missing"), "{error}");
}

#[test]
fn a_literal_rule_matches_its_subject_and_nothing_else() {
    for subject in ["rm *.o", r"a\*b", "what? (x)", "x > y; z", r"\", "two\nlines"] {
        let rule = Rule::literal("bash", subject).unwrap();
        for other in ["rm a.o", "a", "what! (x)", subject] {
            let got = decide(
                Level::Ask,
                &Rules::default(),
                std::slice::from_ref(&rule),
                "bash",
                &action(OPEN, other),
            );
            let expected = if other == subject {
                Verdict::Allow { by: format!("allow rule {rule}") }
            } else {
                Verdict::Ask
            };
            assert_eq!(got, expected, "{rule} on {other:?}");
        }
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    assert!(Rule::literal("bash", "").is_err());
}

/// A matcher that tries every way a `*` can end takes years for this.
#[test]
fn hostile_patterns_take_no_time() {
    let stars = "a*".repeat(200);
    let text = "a".repeat(5_000);
    let rule = format!("bash({stars}b)");
    assert_eq!(verdict(Level::Ask, &[&rule], &[], "bash", &action(OPEN, &text)), "ask");
    let rule = format!("write({}b)", "**/a*/".repeat(100));
    let path = "a/".repeat(1_000);
    assert_eq!(verdict(Level::Ask, &[&rule], &[], "write", &action(ActionKind::Write, &path)), "ask");
}

// Quotes do not keep bash from running what stands in the subscript of a variable's name: `bash(printf *)` allowed
// anything.
#[test]
fn a_substitution_in_a_quoted_subscript_is_not_allowed() {
    for (command, allowed) in [
        (r"printf -v 'a[$(rm x)]' y", false),
        (r"printf -v 'a[`rm x`]' y", false),
        (r#"printf -v "a[\$(rm x)]" y"#, false),
        (r"printf -v 'a['\$'(rm x)]' y", false),
        (r"printf -v a\[\$\(rm\ x\)\] y", false),
        (r"printf -v 'a[b[${x@P}]]' y", false),
        (r"printf '[%s]' '$(x)'", false),
        (r"printf '%s' '[0-9]'", true),
        (r"printf '%s' '$(x) [0-9]'", true),
    ] {
        let got = verdict(Level::Ask, &["bash(printf *)"], &[], "bash", &action(OPEN, command));
        assert_eq!(got.starts_with("allow"), allowed, "{command}");
    }
}

/// What the shell makes of a command is asked of the shell itself: of many commands put together from pieces that split,
/// quote, substitute and redirect, those that `bash(good *)` allows are run, and must have run nothing but `good`.
#[test]
fn a_shell_runs_nothing_but_what_a_rule_allows() {
    const PIECES: &[&str] = &[
        "good", "good ", " good x", "evil", "evil ", ";evil ", "\nevil ", "&&evil ", " ", "\t", "\n", "\r\n",
        ";", ";;", "&", "&&", "|", "||", "|&", "'", "'", "'", "\"", "\"", "\\", "\\\n", "$", "$x", "$(",
        "$(evil)", "`evil`", ")", "(", "`", "`", "${", "}", "{", "#", "#'", " #'", ">", "<", "<<", "=", "$'",
        "$'\\'", "\\'", "\\\"", "!", "eval ", "x",
    ];
    const RUNS: usize = 1_500;
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let script = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("good", "#!/bin/sh\n");
    script("evil", &format!("#!/bin/sh\n: > '{}'\n", ran.display()));

    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(limit).unwrap()).unwrap()
    };
    let rule = rules(&["bash(good *)"]);
    let (mut allowed, mut with_evil) = (0, 0);
    for _ in 0..400_000 {
        let mut command = "good ".to_owned();
        for _ in 0..1 + below(9) {
            command.push_str(PIECES[below(PIECES.len())]);
        }
        if decide(Level::Ask, &Rules::default(), &rule, "bash", &action(OPEN, &command)) == Verdict::Ask {
            continue;
        }
        allowed += 1;
        // One that does not name it cannot run it.
        if !command.contains("evil") {
            continue;
        }
        with_evil += 1;
        std::process::Command::new("/bin/bash")
            .args(["--noprofile", "--norc", "-c", &command])
            .env_clear()
            .env("PATH", folder.path())
            .env("x", "evil")
            .current_dir(folder.path())
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        assert!(!ran.exists(), "ran something else: {command:?}");
        if with_evil == RUNS {
            break;
        }
    }
    assert!(with_evil >= RUNS, "only {with_evil} of {allowed} allowed commands were worth running");
}
