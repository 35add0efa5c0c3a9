//! Servers are real processes: this test binary again, run as `server`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rustix::process::{Pid, test_kill_process};
use segue_log::{
    Action, ActionKind, BlobHash, Block, CallId, Effect, Outcome, PlanEntry, SessionId, code, text_of,
};
use segue_tool::mcp::{McpServers, Problem, ServerConfig, Transport};
use segue_tool::{Failure, Scope, Tool, ToolContext, ToolHost, ToolOutput};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::server::MODE;

mod server;

#[derive(Default)]
struct Host {
    blobs: Mutex<Vec<Vec<u8>>>,
}

#[async_trait]
impl ToolHost for Host {
    async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash, Failure> {
        let hash = BlobHash::of(&bytes);
        self.blobs.lock().unwrap().push(bytes);
        Ok(hash)
    }
    fn progress(&self, _text: &str) {}
    async fn plan(&self, _entries: Vec<PlanEntry>) -> Result<(), Failure> {
        panic!("an MCP tool makes no plans")
    }
    async fn call(&self, _tool: &str, _input: Value, _context: &ToolContext) -> ToolOutput {
        panic!("an MCP tool calls no others")
    }
    fn saw(&self, _path: &Path, _content: BlobHash) {}
    fn seen(&self, _path: &Path) -> Option<BlobHash> {
        None
    }
}

struct Call {
    context: ToolContext,
    host: Arc<Host>,
}

fn call() -> Call {
    let host = Arc::new(Host::default());
    let context = ToolContext {
        session: SessionId::mint(),
        call_id: CallId::mint(),
        scope: Scope::default(),
        permitted: true,
        expect: None,
        cancel: CancellationToken::new(),
        host: Arc::clone(&host) as Arc<dyn ToolHost>,
    };
    Call { context, host }
}

/// A server as a child process; `mode` says how it behaves.
fn stdio(name: &str, mode: &str) -> ServerConfig {
    let (command, args) = server::command();
    let env = BTreeMap::from([(MODE.to_owned(), mode.to_owned())]);
    let mut config = ServerConfig::new(name, Transport::Stdio { command, args, env, cwd: None });
    config.timeout = Duration::from_secs(60);
    config
}

async fn start(config: ServerConfig) -> McpServers {
    let servers = McpServers::start(vec![config]).await;
    assert_eq!(servers.problems(), []);
    servers
}

fn tool(servers: &McpServers, name: &str) -> Arc<dyn Tool> {
    let found = servers.tools().into_iter().find(|tool| tool.name() == name);
    found.unwrap_or_else(|| panic!("no {name} in {:?}", names(servers)))
}

fn names(servers: &McpServers) -> Vec<String> {
    servers.tools().iter().map(|tool| tool.name().to_owned()).collect()
}

async fn run(servers: &McpServers, name: &str, input: Value) -> ToolOutput {
    tool(servers, name).run(input, &call().context).await
}

fn text(output: &ToolOutput) -> String {
    text_of(&output.content)
}

/// Waits for something that is to become true.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn is_gone(pid: i64) -> bool {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let is_zombie = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')));
    is_zombie || test_kill_process(pid).is_err()
}

#[tokio::test]
async fn tools_are_listed_over_all_pages_and_called_with_the_idempotency_key() {
    let mut config = stdio("docs", "");
    config.effects =
        BTreeMap::from([("echo".to_owned(), Effect::Read), ("fail".to_owned(), Effect::Idempotent)]);
    let servers = start(config).await;
    let expected: Vec<String> = server::TOOLS.iter().map(|name| format!("mcp__docs__{name}")).collect();
    assert_eq!(names(&servers), expected);

    let echo = tool(&servers, "mcp__docs__echo");
    assert_eq!(
        (echo.description(), echo.effect(), echo.is_parallel(), echo.input_schema()),
        (
            "The echo tool",
            Effect::Read,
            true,
            &json!({"type": "object", "properties": {"a": {"type": "integer"}}})
        )
    );
    let action = |kind, name: &str| Action {
        kind,
        subject: r#"{"a":1}"#.to_owned(),
        shown: format!("{name} of MCP server docs: {{\n  \"a\": 1\n}}"),
        rule: format!("mcp__docs__{name}"),
    };
    let input = json!({"a": 1});
    assert_eq!(echo.action(&input, &Scope::default()), action(ActionKind::Read, "echo"));
    let fail = tool(&servers, "mcp__docs__fail");
    assert_eq!((fail.effect(), fail.is_parallel()), (Effect::Idempotent, false));
    assert_eq!(fail.action(&input, &Scope::default()), action(ActionKind::Other, "fail"));
    assert_eq!(tool(&servers, "mcp__docs__die").effect(), Effect::Write);

    let call = call();
    let output = echo.run(input, &call.context).await;
    let key = format!("{}/{}", call.context.session, call.context.call_id);
    assert_eq!(output, ToolOutput::ok(json!({"arguments": {"a": 1}, "key": key}).to_string()));
    servers.close().await;
}

#[tokio::test]
async fn a_server_inherits_what_is_not_hidden() {
    // Whoever runs the tests sets it.
    let name = "CARGO_MANIFEST_DIR";
    let mut config = stdio("s", "");
    for (hidden, expected) in [(vec![], "set"), (vec![name.to_owned()], "unset")] {
        config.hidden_env = hidden;
        let servers = start(config.clone()).await;
        assert_eq!(run(&servers, "mcp__s__variable", json!({"name": name})).await, ToolOutput::ok(expected));
        servers.close().await;
    }
}

#[tokio::test]
async fn results_become_blocks_and_codes() {
    let servers = start(stdio("s", "")).await;
    let output = run(&servers, "mcp__s__media", json!({})).await;
    let expected = vec![
        Block::text("text"),
        Block::Image { media_type: "image/png".into(), data: "iVBORw==".into() },
        Block::text("[audio: audio/wav of 4 bytes, not shown]"),
        Block::Resource {
            uri: "file:///a.txt".into(),
            media_type: Some("text/plain".into()),
            text: Some("embedded".into()),
        },
        Block::text("[file:///b: data of 2 bytes, not shown]"),
        Block::Resource { uri: "file:///c".into(), media_type: Some("text/html".into()), text: None },
    ];
    assert_eq!(output, ToolOutput { outcome: Outcome::Ok, code: None, content: expected });
    assert_eq!(
        run(&servers, "mcp__s__fail", json!({})).await,
        ToolOutput::error(code::FAILED, "it did not work")
    );
    assert_eq!(
        run(&servers, "mcp__s__refuse", json!({})).await,
        ToolOutput::error(code::FAILED, "no such thing")
    );
    assert_eq!(run(&servers, "mcp__s__nothing", json!({})).await, ToolOutput::ok("(no content)"));
    assert_eq!(run(&servers, "mcp__s__structured", json!({})).await, ToolOutput::ok(r#"{"n":1}"#));
    assert_eq!(
        run(&servers, "mcp__s__echo", json!("text")).await,
        ToolOutput::error(code::FAILED, "MCP server s was not called: its arguments are no object")
    );
    servers.close().await;
}

#[tokio::test]
async fn a_huge_result_is_cut_and_kept_whole_as_a_blob() {
    let servers = start(stdio("s", "")).await;
    let call = call();
    let output = tool(&servers, "mcp__s__big").run(json!({}), &call.context).await;
    let whole = server::big();
    assert_eq!(*call.host.blobs.lock().unwrap(), [whole.clone().into_bytes()]);
    let hash = BlobHash::of(whole.as_bytes());
    let (head, tail) = (whole.get(..32_767).unwrap(), whole.get(whole.len() - 32_768..).unwrap());
    let cut = whole.len() - 65_535;
    let expected = format!("{head}\n[… {cut} bytes left out; the whole is kept as blob {hash} …]\n{tail}");
    assert_eq!(text(&output), expected);
    servers.close().await;
}

#[tokio::test]
async fn garbage_on_stdout_is_passed_over() {
    let servers = start(stdio("s", "garbage")).await;
    let output = run(&servers, "mcp__s__echo", json!({"a": 1})).await;
    assert_eq!(output.outcome, Outcome::Ok, "{output:?}");
    servers.close().await;
}

#[tokio::test]
async fn a_server_that_dies_in_a_call_is_told_of_and_started_again_by_the_next() {
    let mut config = stdio("s", "");
    config.effects = BTreeMap::from([("die_reading".to_owned(), Effect::Read)]);
    let servers = start(config).await;
    let output = run(&servers, "mcp__s__die", json!({})).await;
    let expected = "MCP server s was lost before it answered this call; it may have had effects. The connection closed \
                    (exit status 7).\nThe end of its stderr:\nlast words\nThe next call starts it again.";
    assert_eq!(output, ToolOutput::error(code::OUTCOME_UNKNOWN, expected));
    assert_eq!(run(&servers, "mcp__s__echo", json!({})).await.outcome, Outcome::Ok);

    let output = run(&servers, "mcp__s__die_reading", json!({})).await;
    let expected = "MCP server s was lost before it answered this call; it only reads and may be called again. The \
                    connection closed (killed by signal 9).\nThe next call starts it again.";
    assert_eq!(output, ToolOutput::error(code::FAILED, expected));

    // And when it dies between two calls.
    let pids: Value = serde_json::from_str(&text(&run(&servers, "mcp__s__pids", json!({})).await)).unwrap();
    let server = pids["server"].as_i64().unwrap();
    rustix::process::kill_process(
        Pid::from_raw(i32::try_from(server).unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    until("the server is gone", || is_gone(server)).await;
    // A call that comes before its pipe is seen to be closed is told so, once.
    let mut output = run(&servers, "mcp__s__echo", json!({})).await;
    if output.outcome == Outcome::Error {
        assert!(text(&output).ends_with("The next call starts it again."), "{output:?}");
        output = run(&servers, "mcp__s__echo", json!({})).await;
    }
    assert_eq!(output.outcome, Outcome::Ok, "{output:?}");
    until("what it had started is ended too", || is_gone(pids["grandchild"].as_i64().unwrap())).await;
    servers.close().await;
}

#[tokio::test]
async fn a_server_that_cannot_be_started_again_is_told_of_and_nothing_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let servers = start(stdio("s", &format!("once={}", folder.path().join("ran").display()))).await;
    assert_eq!(run(&servers, "mcp__s__die", json!({})).await.code.as_deref(), Some(code::OUTCOME_UNKNOWN));
    let output = run(&servers, "mcp__s__echo", json!({})).await;
    assert_eq!(output.code.as_deref(), Some(code::FAILED));
    let text = text(&output);
    let start = "MCP server s was not called: it did not answer as an MCP server: ";
    let end = "(exit status 3).\nThe end of its stderr:\nnot twice";
    assert!(text.starts_with(start) && text.ends_with(end), "{text}");
    servers.close().await;
}

#[tokio::test]
async fn cancelling_tells_the_server_and_says_that_it_may_have_had_effects() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mut config = stdio("s", "");
    let servers = start(config.clone()).await;
    let hang = tool(&servers, "mcp__s__hang");
    let call = call();
    let input = json!({"started": file("started"), "cancelled": file("cancelled")});
    let cancel = async {
        until("the call has begun", || file("started").exists()).await;
        call.context.cancel.cancel();
    };
    let (output, ()) = tokio::join!(hang.run(input.clone(), &call.context), cancel);
    let expected = "Cancelled; MCP server s was told to stop. It may have had effects.";
    assert_eq!(output, ToolOutput::error(code::CANCELLED, expected));
    until("the server was told", || file("cancelled").exists()).await;

    // Cancelled before it was sent: nothing was done.
    let output = hang.run(input, &call.context).await;
    let expected = "MCP server s was not called: cancelled before the request was sent; nothing was done";
    assert_eq!(output, ToolOutput::error(code::FAILED, expected));
    // The connection goes on.
    assert_eq!(run(&servers, "mcp__s__echo", json!({})).await.outcome, Outcome::Ok);
    servers.close().await;

    config.timeout = Duration::from_millis(300);
    let servers = start(config).await;
    let input = json!({"started": file("started2"), "cancelled": file("cancelled2")});
    let output = run(&servers, "mcp__s__hang", input).await;
    let expected = "MCP server s did not answer within 300ms and was told to stop. It may have had effects.";
    assert_eq!(output, ToolOutput::error(code::TIMED_OUT, expected));
    until("the server was told", || file("cancelled2").exists()).await;
    servers.close().await;
}

#[tokio::test]
async fn a_changed_list_of_tools_is_taken_up() {
    let servers = start(stdio("s", "")).await;
    assert!(!names(&servers).contains(&"mcp__s__grown".to_owned()));
    assert_eq!(run(&servers, "mcp__s__grow", json!({})).await, ToolOutput::ok("grown"));
    until("the new tool is listed", || names(&servers).contains(&"mcp__s__grown".to_owned())).await;
    assert_eq!(run(&servers, "mcp__s__grown", json!({})).await, ToolOutput::ok("I am new"));
    servers.close().await;
}

#[tokio::test]
async fn servers_that_fail_keep_nobody_from_working() {
    let missing = Transport::Stdio {
        command: "/no/such/program".into(),
        args: vec![],
        env: BTreeMap::new(),
        cwd: None,
    };
    let bad_header = Transport::Http {
        url: "http://127.0.0.1:1/mcp".into(),
        headers: BTreeMap::from([("X-Key".into(), "secret\n".into())]),
    };
    let refused = Transport::Http {
        url: "http://127.0.0.1:1/mcp?key=secret".into(),
        headers: BTreeMap::from([("X-Key".into(), "secret".into())]),
    };
    let mut slow = stdio("slow", "silent");
    slow.start_timeout = Duration::from_millis(200);
    let mut good = stdio("good", "slow");
    good.effects = BTreeMap::from([("ecko".to_owned(), Effect::Read)]);
    let servers = McpServers::start(vec![
        ServerConfig::new("missing", missing),
        stdio("leaves", "leave"),
        slow,
        ServerConfig::new("header", bad_header),
        ServerConfig::new("refused", refused),
        good,
    ])
    .await;
    assert_eq!(names(&servers).len(), server::TOOLS.len());
    let problems = servers.problems();
    let expected = [
        (
            "missing",
            "cannot start \"/no/such/program\": No such file or directory (os error 2); check its `command` and `cwd`",
        ),
        ("leaves", "it did not answer as an MCP server: "),
        ("slow", "it was not ready within 200ms."),
        (
            "header",
            "header \"X-Key\" cannot be sent: its name or value has characters that HTTP does not allow",
        ),
        ("refused", "it did not answer as an MCP server: "),
        ("good", "an effect is declared for \"ecko\", but the server has no such tool"),
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:?}");
    for (problem, (server, start)) in problems.iter().zip(expected) {
        assert_eq!(problem.server, server);
        assert!(problem.message.starts_with(start), "{problem}");
        assert!(!problem.message.contains("secret"), "{problem}");
    }
    assert!(
        problems[1].message.ends_with("(exit status 3).\nThe end of its stderr:\nno licence"),
        "{}",
        problems[1]
    );
    servers.close().await;
}

#[tokio::test]
async fn names_that_collide_are_told_and_the_first_stays() {
    let servers = McpServers::start(vec![stdio("a.b", ""), stdio("a_b", "")]).await;
    let count = server::TOOLS.len();
    assert_eq!(names(&servers).len(), count);
    let problems = servers.problems();
    assert_eq!(problems.len(), count);
    let message = "tool \"echo\" of a_b is left out: its name mcp__a_b__echo is taken by \"echo\" of a.b";
    assert_eq!(problems[0], Problem { server: "a_b".into(), message: message.into() });
    servers.close().await;
}

#[tokio::test]
async fn closing_lets_a_server_leave_and_ends_what_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let left: PathBuf = folder.path().join("left");
    let servers = start(stdio("s", &format!("farewell={}", left.display()))).await;
    let pids: Value = serde_json::from_str(&text(&run(&servers, "mcp__s__pids", json!({})).await)).unwrap();
    let echo = tool(&servers, "mcp__s__echo");
    servers.close().await;
    assert_eq!(std::fs::read_to_string(&left).unwrap(), "bye");
    for who in ["server", "grandchild"] {
        until(who, || is_gone(pids[who].as_i64().unwrap())).await;
    }
    let expected = "MCP server s was not called: it is closed";
    assert_eq!(echo.run(json!({}), &call().context).await, ToolOutput::error(code::FAILED, expected));

    let servers = start(stdio("s", "")).await;
    let pids: Value = serde_json::from_str(&text(&run(&servers, "mcp__s__pids", json!({})).await)).unwrap();
    drop(servers);
    for who in ["server", "grandchild"] {
        until(who, || is_gone(pids[who].as_i64().unwrap())).await;
    }
}

#[tokio::test]
async fn servers_over_http_are_called_lost_and_found_again() {
    let (mut server, address) = server::spawn_http(None);
    let url = format!("http://{address}/mcp");
    let headers = BTreeMap::from([("X-Key".to_owned(), "secret".to_owned())]);
    let mut config = ServerConfig::new("web", Transport::Http { url, headers });
    config.timeout = Duration::from_secs(60);
    let servers = start(config).await;
    let call = call();
    let output = tool(&servers, "mcp__web__echo").run(json!({"a": 1}), &call.context).await;
    let key = format!("{}/{}", call.context.session, call.context.call_id);
    let expected = json!({"arguments": {"a": 1}, "key": key, "header": "secret"}).to_string();
    assert_eq!(output, ToolOutput::ok(expected));
    assert_eq!(run(&servers, "mcp__web__grow", json!({})).await, ToolOutput::ok("grown"));
    until("the new tool is listed", || names(&servers).contains(&"mcp__web__grown".to_owned())).await;

    let output = run(&servers, "mcp__web__die", json!({})).await;
    assert_eq!(output.code.as_deref(), Some(code::OUTCOME_UNKNOWN), "{output:?}");
    assert!(text(&output).contains("it may have had effects"), "{output:?}");
    server.wait();
    let output = run(&servers, "mcp__web__echo", json!({})).await;
    assert_eq!(output.code.as_deref(), Some(code::FAILED), "{output:?}");
    assert!(text(&output).starts_with("MCP server web was not called: "), "{output:?}");

    let (_server, _) = server::spawn_http(Some(address));
    let output = run(&servers, "mcp__web__echo", json!({})).await;
    assert_eq!(output.outcome, Outcome::Ok, "{output:?}");
    servers.close().await;
}
