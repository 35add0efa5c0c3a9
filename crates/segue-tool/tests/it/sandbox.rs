//! The sandbox holds real commands.

use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use segue_log::{ActionKind, code};
use segue_tool::BuiltinOptions;
use segue_tool::sandbox::{Level, Sandbox};
use serde_json::json;

use crate::bench::{Bench, ok, told};

fn helper() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_segue-tool-test-helper"))
}

/// The best sandbox of this machine; none, with a note, if it has none.
fn sandbox() -> Option<Sandbox> {
    let sandbox = Sandbox::detect(Some(helper()));
    if sandbox.level() == Level::None {
        eprintln!("not tested: {}", sandbox.describe());
        return None;
    }
    Some(sandbox)
}

fn bench() -> Option<Bench> {
    Some(Bench::with(BuiltinOptions {
        sandbox: Some(sandbox()?),
        hidden_env: Vec::new(),
        ..BuiltinOptions::default()
    }))
}

#[tokio::test]
async fn writes_stay_in_the_working_folder() {
    let Some(bench) = bench() else { return };
    let outside = bench.root.join("outside");
    std::fs::write(&outside, "old").unwrap();
    let commands = [
        format!("echo new >{}", outside.display()),
        format!("rm {}", outside.display()),
        format!("truncate -s 0 {}", outside.display()),
        format!("mv {} here", outside.display()),
        format!("touch {}/made", bench.root.display()),
        format!("ln -s {} link && echo new >link", outside.display()),
    ];
    for command in commands {
        let (code, text) = bench.call("bash", json!({"command": command})).await;
        assert_eq!(code, code::FAILED, "{command}: {text}");
        assert!(text.contains("It ran in a sandbox"), "{text}");
        assert_eq!(std::fs::read(&outside).unwrap(), b"old", "{command}");
    }
    assert!(!bench.root.join("made").exists());
    let inside = "echo new >inside && mkdir d && mv inside d/ && cat d/inside && rm -r d && echo >/dev/null \
        && echo x >\"$TMPDIR/t\" && cat \"$TMPDIR/t\" && head -c 3 /etc/passwd";
    assert_eq!(bench.call("bash", json!({"command": inside})).await, ok("new\nx\nroo"));
}

#[tokio::test]
async fn the_network_cannot_be_reached() {
    let Some(bench) = bench() else { return };
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let (tcp_port, udp_port) = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{tcp_port} && echo through");
    let send = format!("echo through >/dev/udp/127.0.0.1/{udp_port}");
    let (code, text) = bench.call("bash", json!({"command": connect})).await;
    assert_eq!(code, code::FAILED, "{text}");
    assert!(tcp.accept().is_err(), "nobody came through");
    let holds_udp = bench_holds_udp();
    if holds_udp {
        bench.call("bash", json!({"command": send})).await;
        assert!(udp.recv(&mut [0; 16]).is_err(), "nothing came through");
    }
    // With permission both go through: it is the sandbox that holds them.
    let mut context = bench.context();
    context.permitted = true;
    let output = bench.run("bash", json!({"command": connect}), context.clone()).await;
    assert_eq!(told(&output), ok("through\n"));
    if holds_udp {
        bench.run("bash", json!({"command": send}), context).await;
        assert_eq!(udp.recv(&mut [0; 16]).unwrap(), 8);
    }
}

fn bench_holds_udp() -> bool {
    Sandbox::detect(Some(helper())).describe().contains("no network")
}

#[tokio::test]
async fn a_sandboxed_tree_ends_whole() {
    let Some(bench) = bench() else { return };
    let command = "setsid bash -c 'echo up >up; exec sleep 1000' & sleep 1000";
    let context = bench.context();
    let cancel = context.cancel.clone();
    let key = context.idempotency_key();
    let run = bench.run("bash", json!({"command": command}), context);
    let watch = async {
        crate::bench::until("the child is up", || {
            std::fs::read(bench.cwd.join("up")).ok().filter(|up| up == b"up\n")
        })
        .await;
        cancel.cancel();
    };
    let (output, ()) = tokio::join!(run, watch);
    assert_eq!(told(&output).0, code::CANCELLED);
    let mark = format!("SEGUE_CALL={key}");
    let carries = |entry: &std::fs::DirEntry| {
        std::fs::read(entry.path().join("environ")).is_ok_and(|environment| {
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
    };
    let left: Vec<_> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(carries)
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left, [""; 0]);
}

#[tokio::test]
async fn leaving_the_sandbox_needs_permission() {
    let Some(bench) = bench() else { return };
    let outside = bench.root.join("outside");
    let input = json!({"command": format!("touch {}", outside.display()), "unsandboxed": true});
    let action = |input| bench.tools.get("bash").unwrap().action(&input, &bench.scope()).kind;
    assert_eq!(action(input.clone()), ActionKind::Command { sandboxed: false });
    assert_eq!(action(json!({"command": "true"})), ActionKind::Command { sandboxed: true });
    let (code, _) = bench.call("bash", input.clone()).await;
    assert_eq!((code.as_str(), outside.exists()), (code::DENIED, false));
    let mut context = bench.context();
    context.permitted = true;
    assert_eq!(told(&bench.run("bash", input, context).await), ok("(no output)"));
    assert!(outside.exists());
}

#[test]
fn without_a_helper_there_is_no_landlock() {
    assert_ne!(Sandbox::detect(None).level(), Level::Landlock);
    assert_ne!(Sandbox::detect(Some("/nonexistent/helper".into())).level(), Level::Landlock);
}

#[test]
fn a_helper_that_cannot_hold_runs_nothing() {
    for arguments in [
        vec![],
        vec!["--write"],
        vec!["--wrong", "--", "true"],
        vec!["--"],
        vec!["--", "/nonexistent/program"],
    ] {
        let output =
            std::process::Command::new(helper()).arg("sandbox-exec").args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(126), "{arguments:?}");
    }
}
