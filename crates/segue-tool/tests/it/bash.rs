//! `bash`: results, the end of process trees, and what is known after the host was killed.

use std::path::Path;
use std::process::{Command, Stdio};

use segue_log::{ActionKind, CallId, code};
use segue_tool::{BuiltinOptions, KEEP_LIMIT, Known, ToolContext, ToolOutput};
use serde_json::json;

use crate::bench::{Bench, Told, error, helper_call, lives, ok, pid_in, told, until};

#[tokio::test]
async fn output_and_exit_are_told() {
    let bench = Bench::new();
    let cases: Vec<(&str, Told)> = vec![
        ("echo out; echo err >&2; echo out", ok("out\nerr\nout\n")),
        ("true", ok("(no output)")),
        ("printf 'no line end'; exit 3", error(code::FAILED, "no line end\nexit code 3")),
        ("kill -SEGV $$", error(code::FAILED, "(no output)\nended by signal 11")),
        ("cat; pwd | sed 's,.*/,,'", ok("work\n")),
        (
            "[ \"$(cut -d' ' -f5,6 /proc/$$/stat)\" = \"$$ $$\" ] && echo own group and session",
            ok("own group and session\n"),
        ),
        (r"printf 'a\377b'", ok("a\u{fffd}b")),
        ("shopt -q login_shell || echo ${BASH_VERSION:+bash} $(( 6 * 7 ))", ok("bash 42\n")),
    ];
    for (command, expected) in cases {
        assert_eq!(bench.call("bash", json!({"command": command})).await, expected, "{command}");
    }
}

#[tokio::test]
async fn a_call_knows_its_key_and_not_the_hidden_variables() {
    // PATH is a variable that every test process has.
    let bench = Bench::with(BuiltinOptions {
        sandbox: None,
        hidden_env: vec!["CARGO_MANIFEST_DIR".to_owned()],
        ..BuiltinOptions::default()
    });
    let context = bench.context();
    let key = context.idempotency_key();
    let command = "echo $SEGUE_CALL $SEGUE_IDEMPOTENCY_KEY ${CARGO_MANIFEST_DIR-hidden}";
    let output = bench.run("bash", json!({"command": command}), context).await;
    assert_eq!(told(&output), ok(format!("{key} {key} hidden\n")));
}

#[tokio::test]
async fn long_output_is_cut_in_the_middle_and_kept_whole() {
    let bench = Bench::new();
    let context = bench.context();
    let folder = context.call_folder();
    let output = bench.run("bash", json!({"command": "seq 100000; exit 1"}), context).await;
    let (code, text) = told(&output);
    let (hash, kept) = bench.only_blob();
    let whole: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    assert!(kept == whole.as_bytes());
    assert_eq!(code, code::FAILED);
    assert!(text.starts_with("1\n2\n3\n"), "{}", &text[..20]);
    let end = format!(
        "99999\n100000\n[{} bytes of output, {} left out. The whole is kept as blob {hash}.]\nexit code 1",
        whole.len(),
        whole.len() - 30_000
    );
    assert!(text.ends_with(&end), "{}", &text[text.len() - 300..]);
    assert_eq!(*bench.host.progress.lock().unwrap(), whole);
    assert!(!folder.exists(), "a call that has its result leaves nothing");
}

#[tokio::test]
async fn of_endless_output_fifty_megabytes_are_kept_and_the_rest_is_told_to_be_dropped() {
    let bench = Bench::new();
    let (code, text) = bench.call("bash", json!({"command": "yes | head -c 60000000"})).await;
    let (hash, kept) = bench.only_blob();
    assert_eq!((code.as_str(), kept.len()), ("", KEEP_LIMIT));
    let end = format!(
        "[60000000 bytes of output, 59970000 left out. The first {KEEP_LIMIT} bytes are kept as blob {hash}; the last {} were dropped.]",
        60_000_000 - KEEP_LIMIT
    );
    assert!(text.ends_with(&end), "{}", &text[text.len() - 300..]);
}

/// Output that cannot be written down is no reason to end a command that does its work.
#[tokio::test]
async fn a_full_disk_takes_the_middle_of_the_output_and_not_the_command() {
    let bench = Bench::new();
    let input = json!({"command": "seq 20000; echo all the same"});
    let before = "trap '' XFSZ; ulimit -f 1";
    let output =
        helper_call(&bench.context(), "bash", &input, before).stdout(Stdio::piped()).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let end = r"20000\nall the same\n[108907 bytes of output, 78907 left out. The first 1024 bytes";
    assert!(told.contains(end), "{told}");
}

/// A command whose processes are a grandchild, one in a session of its own, and one that ignores a polite end.
const TREE: &str = "bash -c 'bash -c \"echo \\$\\$ >grandchild; exec sleep 1000\" & wait' & \
    setsid bash -c 'echo $$ >session; exec sleep 1000' & \
    bash -c 'trap \"\" TERM; echo $$ >stubborn; while :; do sleep 1; done' & \
    (setsid bash -c 'exec setsid bash -c \"echo \\$\\$ >orphan; exec sleep 1000\"' &) ; echo begun; wait";

const MEMBERS: [&str; 4] = ["grandchild", "session", "stubborn", "orphan"];

async fn members(cwd: &Path) -> Vec<u32> {
    let mut pids = Vec::new();
    for name in MEMBERS {
        pids.push(pid_in(&cwd.join(name)).await);
    }
    pids
}

fn living(pids: &[u32]) -> Vec<&'static str> {
    MEMBERS.iter().zip(pids).filter(|(_, pid)| lives(**pid)).map(|(name, _)| *name).collect()
}

#[tokio::test]
async fn a_cancelled_command_ends_with_its_whole_tree() {
    let bench = Bench::new();
    let context = bench.context();
    let cancel = context.cancel.clone();
    let run = bench.run("bash", json!({"command": TREE}), context);
    let watch = async {
        let pids = members(&bench.cwd).await;
        assert_eq!(living(&pids), MEMBERS);
        cancel.cancel();
        pids
    };
    let (output, pids) = tokio::join!(run, watch);
    let expected = "begun\n[Ended because the call was cancelled. All its processes were ended; it may have had effects.]";
    assert_eq!(told(&output), error(code::CANCELLED, expected));
    assert_eq!(living(&pids), [""; 0]);
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended_with_its_output_so_far() {
    let bench = Bench::new();
    let input = json!({"command": "echo begun; trap 'echo told to end; exit 0' TERM; sleep 1000 & wait", "timeout_ms": 700});
    let expected = "begun\ntold to end\n[Ended because it ran longer than 0.7 s. All its processes were ended; it may have had effects.]";
    assert_eq!(bench.call("bash", input).await, error(code::TIMED_OUT, expected));
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_no_process() {
    let bench = Bench::new();
    let context = bench.context();
    let run = bench.run("bash", json!({"command": TREE}), context);
    let pids = tokio::select! {
        output = run => panic!("{output:?}"),
        pids = members(&bench.cwd) => pids,
    };
    assert_eq!(living(&pids), [""; 0]);
}

#[tokio::test]
async fn what_is_left_in_the_background_is_told_or_ended() {
    let bench = Bench::new();
    let held = json!({"command": "sleep 1000 & echo $! >pid; echo done"});
    let expected = "done\n[Processes in the background held the output open after the shell had exited, and were ended. To keep such a process, redirect its output.]";
    assert_eq!(bench.call("bash", held).await, ok(expected));
    assert!(!lives(pid_in(&bench.cwd.join("pid")).await));

    let free = json!({"command": "sleep 1000 >/dev/null 2>&1 & echo $! >free; echo done"});
    let output = bench.call("bash", free).await;
    let pid = pid_in(&bench.cwd.join("free")).await;
    assert_eq!(output, ok(format!("done\n[Still running in the background: {pid}.]")));
    assert!(lives(pid));
    let end = json!({"command": format!("kill {pid}")});
    assert_eq!(bench.call("bash", end).await, ok("(no output)"));
    until("the background process is gone", || (!lives(pid)).then_some(())).await;
}

#[tokio::test]
async fn a_command_that_cannot_be_recorded_does_not_run() {
    let bench = Bench::new();
    std::fs::write(bench.root.join("calls"), "a file where the folder should be").unwrap();
    let (code, text) = bench.call("bash", json!({"command": "touch ran"})).await;
    assert_eq!(code, code::FAILED);
    assert!(text.starts_with("the command was not run: cannot make"), "{text}");
    assert!(!bench.cwd.join("ran").exists());
}

#[tokio::test]
async fn a_working_folder_that_is_gone_is_told() {
    let bench = Bench::new();
    std::fs::remove_dir(&bench.cwd).unwrap();
    let expected = format!("the command was not run: the working folder {} is gone", bench.cwd.display());
    assert_eq!(bench.call("bash", json!({"command": "true"})).await, error(code::FAILED, expected));
}

/// Starts a process that runs `command` as a call, and kills it once `ready` is there.
async fn killed_host(bench: &Bench, command: &str, ready: &str) -> ToolContext {
    let context = bench.context();
    let mut host = helper_call(&context, "bash", &json!({"command": command}), "").spawn().unwrap();
    let kept = context.call_folder().join("output");
    until(ready, || std::fs::read_to_string(&kept).ok().filter(|output| output == ready)).await;
    host.kill().unwrap();
    host.wait().unwrap();
    context
}

#[tokio::test]
async fn after_the_host_was_killed_survivors_are_found_and_ended() {
    let bench = Bench::new();
    let context = killed_host(&bench, TREE, "begun\n").await;
    let pids = members(&bench.cwd).await;
    let running = bench.evidence("bash", &context, None, false).await;
    assert_eq!(running, Known::Running { output: "begun\n".to_owned() });
    assert_eq!(living(&pids), MEMBERS, "a mere look ends nothing");
    let ended = bench.evidence("bash", &context, None, true).await;
    assert_eq!(ended, Known::Ended { output: "begun\n".to_owned(), by_us: true });
    assert_eq!(living(&pids), [""; 0]);
    let again = bench.evidence("bash", &context, None, true).await;
    assert_eq!(again, Known::Ended { output: "begun\n".to_owned(), by_us: false });
}

/// With the shell dead its number may belong to a stranger: only the token in the environment counts then.
#[tokio::test]
async fn survivors_are_found_when_the_shell_itself_is_dead() {
    let bench = Bench::new();
    let context = killed_host(&bench, "setsid sleep 1000 & echo $! >pid; echo begun; wait", "begun\n").await;
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(context.call_folder().join("process.json")).unwrap()).unwrap();
    let shell = record["pid"].as_u64().unwrap().to_string();
    assert!(Command::new("kill").args(["-KILL", &shell]).status().unwrap().success());
    let pid = pid_in(&bench.cwd.join("pid")).await;
    let ended = bench.evidence("bash", &context, None, true).await;
    assert_eq!(ended, Known::Ended { output: "begun\n".to_owned(), by_us: true });
    assert!(!lives(pid));
}

#[tokio::test]
async fn processes_of_another_boot_or_machine_are_never_touched() {
    let bench = Bench::new();
    let context = killed_host(&bench, "echo $$ >pid; echo begun; exec sleep 1000", "begun\n").await;
    let pid = pid_in(&bench.cwd.join("pid")).await;
    let file = context.call_folder().join("process.json");
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let output = "begun\n".to_owned();
    for (field, expected) in
        [("boot", Known::Ended { output: output.clone(), by_us: false }), ("host", Known::Nothing)]
    {
        let mut other = record.clone();
        other[field] = json!("another");
        std::fs::write(&file, other.to_string()).unwrap();
        assert_eq!(bench.evidence("bash", &context, None, true).await, expected);
        assert!(lives(pid));
    }
    // The number was given to another process since.
    let mut other = record.clone();
    other["started"] = json!(1);
    other["token"] = json!("another");
    std::fs::write(&file, other.to_string()).unwrap();
    assert_eq!(
        bench.evidence("bash", &context, None, true).await,
        Known::Ended { output: output.clone(), by_us: false }
    );
    assert!(lives(pid));
    std::fs::write(&file, record.to_string()).unwrap();
    assert_eq!(bench.evidence("bash", &context, None, true).await, Known::Ended { output, by_us: true });
    assert!(!lives(pid));
}

/// A call of this machine and boot that a crash left without its result.
fn open_call(context: &ToolContext) -> segue_tool::OpenCall {
    segue_tool::OpenCall {
        session: context.session,
        call_id: context.call_id.clone(),
        tool: "bash".to_owned(),
        input: json!({}),
        expect: None,
        host: std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned(),
        boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned(),
    }
}

#[tokio::test]
async fn a_command_whose_host_died_before_its_record_never_ran() {
    let bench = Bench::new();
    let context = bench.context();
    assert_eq!(bench.evidence("bash", &context, None, true).await, Known::Nothing);
    std::fs::create_dir_all(context.call_folder()).unwrap();
    std::fs::write(context.call_folder().join("output"), "").unwrap();
    let mut call = open_call(&context);
    let bash = bench.tools.get("bash").unwrap();
    let text = "The command was not started: the process that was about to start it died before. It may be called again if still wanted.";
    let expected = Known::Result(ToolOutput::error(code::NOT_STARTED, text));
    assert_eq!(bash.evidence(&call, &context.scope, true).await, expected);
    // After another boot the record may have been there and been lost with the power.
    call.boot = "another".to_owned();
    let expected = Known::Ended { output: String::new(), by_us: false };
    assert_eq!(bash.evidence(&call, &context.scope, true).await, expected);
}

/// A killed process left the folder of a command that had ended half removed, the record of its process already gone:
/// the command had run, and "not started" would have had it run again.
#[tokio::test]
async fn a_half_removed_folder_is_no_evidence_that_nothing_ran() {
    let bench = Bench::new();
    let context = bench.context();
    std::fs::create_dir_all(context.call_folder().join("tmp")).unwrap();
    let bash = bench.tools.get("bash").unwrap();
    let known = bash.evidence(&open_call(&context), &context.scope, true).await;
    assert_eq!(known, Known::Ended { output: String::new(), by_us: false });
}

#[test]
fn permissions_see_the_command_itself() {
    let bench = Bench::new();
    let action =
        bench.tools.get("bash").unwrap().action(&json!({"command": "cargo test -p a"}), &bench.scope());
    assert_eq!(action.kind, ActionKind::Command { sandboxed: false });
    assert_eq!((action.subject.as_str(), action.shown.as_str()), ("cargo test -p a", "cargo test -p a"));
    assert_eq!(action.rule, "bash(cargo test *)");
}

#[tokio::test]
async fn calls_side_by_side_do_not_end_each_other() {
    let bench = Bench::new();
    let cancelled = ToolContext { call_id: CallId::mint(), ..bench.context() };
    let cancel = cancelled.cancel.clone();
    let one = bench.run("bash", json!({"command": "echo $$ >one; sleep 1000"}), cancelled);
    let two = bench.run(
        "bash",
        json!({"command": "echo $$ >two; until [ -e go ]; do sleep 0.05; done; echo whole"}),
        bench.context(),
    );
    let control = async {
        pid_in(&bench.cwd.join("one")).await;
        pid_in(&bench.cwd.join("two")).await;
        cancel.cancel();
    };
    let finish = async {
        let (one, ()) = tokio::join!(one, control);
        bench.put("go", "");
        one
    };
    let (one, two) = tokio::join!(finish, two);
    assert_eq!((told(&one).0.as_str(), told(&two)), (code::CANCELLED, ok("whole\n")));
}
