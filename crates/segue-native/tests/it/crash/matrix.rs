//! Kills at every step that a script takes: the steps are those of a first run that lives to its end.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use futures::{StreamExt, stream};
use segue_testkit::ModelServer;
use tempfile::TempDir;

use super::child::{Act, Asks, ORDER, Order, Sign, signs_file};
use super::judge::{GoOn, judge};

/// How many processes live at once.
const AT_ONCE: usize = 3;

/// What is done, and how.
#[derive(Clone)]
struct Script {
    act: Act,
    by_turn: bool,
    asks: Asks,
    anthropic: bool,
}

impl Script {
    fn prompt(text: &str) -> Self {
        Self { act: Act::Prompt(vec![text.to_owned()]), by_turn: false, asks: Asks::No, anthropic: true }
    }

    fn order(&self, root: &Path, server: &ModelServer, at: Option<Sign>) -> Order {
        Order {
            root: root.to_owned(),
            url: server.url(),
            anthropic: self.anthropic,
            act: self.act.clone(),
            by_turn: self.by_turn,
            asks: self.asks,
            at,
        }
    }
}

/// A process that follows an order, to its end or its death.
async fn obey(order: &Order) -> ExitStatus {
    let said = std::fs::File::create(order.root.join("said")).unwrap();
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child::child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ORDER, serde_json::to_string(order).unwrap())
        .stdin(Stdio::null())
        .stdout(said.try_clone().unwrap())
        .stderr(said)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    child.wait().await.unwrap()
}

fn said(order: &Order) -> String {
    std::fs::read_to_string(order.root.join("said")).unwrap_or_default()
}

/// The folder of a world; its name is the same in all of them.
fn root_of(world: &TempDir) -> PathBuf {
    let root = world.path().join("world");
    std::fs::create_dir(&root).unwrap();
    root
}

/// True if a process died by SIGKILL.
fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(9)
}

/// Every sign that a script gives, and the writes torn in half.
async fn signs_of(script: &Script, world: &Path) -> Vec<Sign> {
    let server = ModelServer::start().await;
    let order = script.order(world, &server, None);
    let status = obey(&order).await;
    assert!(status.success(), "{}", said(&order));
    let text = std::fs::read_to_string(signs_file(world)).unwrap();
    let mut given = std::collections::HashMap::new();
    let mut signs = Vec::new();
    for step in text.lines() {
        let nth = given.entry(step.to_owned()).or_insert(0);
        *nth += 1;
        signs.push(Sign::new(step, *nth));
    }
    let torn: Vec<Sign> = signs
        .iter()
        .filter_map(|sign| {
            let op = sign.step.strip_prefix("before write log.jsonl ")?;
            Some(Sign::new(&format!("within write log.jsonl {op}"), sign.nth))
        })
        .collect();
    signs.extend(torn);
    signs
}

/// Kills a process at each of `signs`, each in a world of its own, and judges what is left.
async fn sweep(script: &Script, signs: Vec<Sign>) {
    stream::iter(signs.into_iter().enumerate())
        .map(|(index, sign)| {
            let script = script.clone();
            tokio::spawn(async move {
                let world = TempDir::new().unwrap();
                let server = ModelServer::start().await;
                let order = script.order(&root_of(&world), &server, Some(sign.clone()));
                let status = obey(&order).await;
                assert!(was_killed(status), "at {sign}: {status}\n{}", said(&order));
                let go_on = if index % 2 == 0 { GoOn::Finish } else { GoOn::Prompt };
                let judged = tokio::spawn(async move { judge(&order, &server, go_on).await }).await;
                if let Err(error) = judged {
                    panic!(
                        "killed at {sign}, then {go_on:?}: {error}; what is left: {}",
                        world.keep().display()
                    );
                }
            })
        })
        .buffer_unordered(AT_ONCE)
        .for_each(|result| async { result.unwrap() })
        .await;
}

/// Kills at every step of a script. `among` are steps that must be among them: a matrix that misses them proves less
/// than it says.
async fn killed_at_every_step(script: &Script, among: &[&str]) {
    let first = TempDir::new().unwrap();
    let signs = signs_of(script, &root_of(&first)).await;
    for step in among {
        assert!(signs.iter().any(|sign| sign.step == *step), "{step} is not among {signs:#?}");
    }
    sweep(script, signs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_calls_may_be_killed_anywhere() {
    let text = "remember the number 42\nuse count {\"line\":\"a\"}\nuse count {\"line\":\"b\"}";
    let among = [
        "before create log.jsonl",
        "after write log.jsonl",
        "before publish session",
        "after sync-dir sessions",
        "told session",
        "before write log.jsonl prompt/queued",
        "within write log.jsonl prompt/queued",
        "before sync log.jsonl",
        "after sync log.jsonl",
        "before write synced",
        "told accepted",
        "after write log.jsonl turn/start",
        "after write log.jsonl step/start",
        "before write log.jsonl request/header",
        "after write log.jsonl request/header",
        "before write log.jsonl message/assistant",
        "after write log.jsonl message/assistant",
        "before write log.jsonl tool/call",
        "after write log.jsonl tool/call",
        "count before a",
        "count after a",
        "count before b",
        "count after b",
        "before write log.jsonl tool/result",
        "after write log.jsonl tool/result",
        "within write log.jsonl tool/result",
        "after write log.jsonl step/end",
        "before write log.jsonl turn/end",
        "after write log.jsonl turn/end",
        "told ended",
        "told idle",
        "told closed",
    ];
    killed_at_every_step(&Script::prompt(text), &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_asks_for_permission_may_be_killed_anywhere() {
    let text = "remember the number 42\nuse look {\"line\":\"a\"}\nuse count {\"line\":\"b\"}";
    let script = Script { asks: Asks::Yes, anthropic: false, ..Script::prompt(text) };
    let among = [
        "before write log.jsonl permission/asked",
        "after write log.jsonl permission/asked",
        "before write log.jsonl permission/decided",
        "after write log.jsonl permission/decided",
        "look after a",
    ];
    killed_at_every_step(&script, &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_stored_at_its_ends_only_may_be_killed_anywhere() {
    let text = "remember the number 42\nuse count {\"line\":\"a\"}\nuse count {\"line\":\"b\"}";
    let script = Script { by_turn: true, anthropic: false, ..Script::prompt(text) };
    killed_at_every_step(&script, &["after write log.jsonl tool/call"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_change_may_be_killed_anywhere_and_a_look_at_the_file_settles_it() {
    let text = "remember the number 42\nuse write {\"path\":\"note.txt\",\"content\":\"new\"}";
    killed_at_every_step(&Script::prompt(text), &["after write log.jsonl tool/call"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_too_large_for_a_line_may_be_killed_anywhere() {
    let text = format!("remember the number 42\n{}", "long ".repeat(9_000));
    let script = Script { anthropic: false, ..Script::prompt(&text) };
    let among =
        ["before create .unfinished", "after sync .unfinished", "after rename blob", "before sync-dir blobs"];
    killed_at_every_step(&script, &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_may_be_killed_anywhere() {
    let script = Script { act: Act::Compact("remember the number 42".into()), ..Script::prompt("") };
    let among = ["before write log.jsonl compaction", "after write log.jsonl compaction", "told compacted"];
    killed_at_every_step(&script, &among).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_may_be_killed_between_its_turns() {
    let texts = ["remember the number 42", "use count {\"line\":\"a\"}", "use look {\"line\":\"b\"}"];
    for anthropic in [true, false] {
        let act = Act::Prompt(texts.map(str::to_owned).to_vec());
        let script = Script { act, anthropic, ..Script::prompt("") };
        let signs = [
            ("told accepted", 2),
            ("told accepted", 3),
            ("after write log.jsonl turn/end", 1),
            ("before write log.jsonl turn/start", 2),
            ("after write log.jsonl turn/start", 2),
            ("count after a", 1),
            ("after write log.jsonl turn/end", 2),
            ("after write log.jsonl turn/start", 3),
            ("told ended", 2),
        ];
        sweep(&script, signs.map(|(step, nth)| Sign::new(step, nth)).to_vec()).await;
    }
}
