//! The scripted agent, spoken to line by line.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use segue_testkit::fake_agent::{Answer, FakeAgent, Keeps, Script, Step};
use serde_json::{Value, json};

/// A client without any wisdom.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    id: u64,
}

impl Client {
    fn start(agent: &FakeAgent) -> Self {
        let mut command = Command::new(agent.program());
        let mut child =
            command.args(agent.args()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { input: child.stdin.take(), child, output, id: 0 }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn request(&mut self, method: &str, params: Value) -> u64 {
        self.id += 1;
        let id = self.id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// The next message; none at the end of its output.
    fn next(&mut self) -> Option<Value> {
        Some(serde_json::from_str(&self.output.next()?.unwrap()).unwrap())
    }

    /// Sends a request and gives its result or error, and what came before it.
    fn call(&mut self, method: &str, params: Value) -> (Value, Vec<Value>) {
        let id = self.request(method, params);
        let mut before = Vec::new();
        loop {
            let message = self.next().expect("an answer");
            if message["id"] == id && message.get("method").is_none() {
                return (message.get("result").unwrap_or(&message["error"]).clone(), before);
            }
            before.push(message);
        }
    }

    fn new_session(&mut self) -> String {
        let (result, _) = self.call("session/new", json!({"cwd": "/", "mcpServers": []}));
        result["sessionId"].as_str().unwrap().to_owned()
    }

    /// Prompts, and gives the answer's text and the result.
    fn prompt(&mut self, session: &str, text: &str) -> (String, Value) {
        let (result, updates) = self.call("session/prompt", prompt(session, text));
        (
            updates
                .iter()
                .filter_map(|update| update["params"]["update"]["content"]["text"].as_str())
                .collect(),
            result,
        )
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.input = None;
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn prompt(session: &str, text: &str) -> Value {
    json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]})
}

fn at(session: &str) -> Value {
    json!({"sessionId": session, "cwd": "/", "mcpServers": []})
}

fn update(text: &str, kind: &str, session: &str) -> Value {
    let update = json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}})
}

#[test]
fn a_conversation_outlives_the_process_by_load_and_by_resume() {
    let folder = tempfile::tempdir().unwrap();
    let agent = FakeAgent::new(folder.path(), &Script::default());
    let mut first = Client::start(&agent);
    assert_eq!(first.call("initialize", json!({"protocolVersion": 1})).0["protocolVersion"], 1);
    let session = first.new_session();
    let end = json!({"stopReason": "end_turn"});
    assert_eq!(first.prompt(&session, "remember the number 7"), ("Noted: 7.".into(), end.clone()));
    drop(first);

    let mut second = Client::start(&agent);
    let missing = json!({"code": -32002, "message": "Resource not found", "data": {"sessionId": session}});
    assert_eq!(second.prompt(&session, "not active here").1, missing);
    assert_eq!(second.call("session/resume", at(&session)), (json!({}), vec![]));
    assert_eq!(second.prompt(&session, "what number was it?").0, "The number is 7.");
    drop(second);

    let mut third = Client::start(&agent);
    let replay = vec![
        update("remember the number 7", "user_message_chunk", &session),
        update("Noted: 7.", "agent_message_chunk", &session),
        update("what number was it?", "user_message_chunk", &session),
        update("The number is 7.", "agent_message_chunk", &session),
    ];
    assert_eq!(third.call("session/load", at(&session)), (json!({}), replay));
    assert_eq!(agent.pids().len(), 3);
    assert_eq!(agent.sessions(), [session]);
}

#[test]
fn a_session_that_was_never_prompted_is_forgotten_unless_told_otherwise() {
    for keeps in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let agent = FakeAgent::new(folder.path(), &Script { keeps_unprompted: keeps, ..Script::default() });
        let session = Client::start(&agent).new_session();
        assert_eq!(Client::start(&agent).call("session/resume", at(&session)).0 == json!({}), keeps);
    }
}

#[test]
fn answers_are_taken_in_order_over_all_starts() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script::default()
        .on("session/load", Answer::error(-32603, "busy", Value::Null).times(2))
        .on("session/load", Answer::itself())
        .on("session/resume", Answer::dies(3));
    let agent = FakeAgent::new(folder.path(), &script);
    let mut client = Client::start(&agent);
    let session = client.new_session();
    client.prompt(&session, "hello");
    let busy = json!({"code": -32603, "message": "busy"});
    assert_eq!(client.call("session/load", at(&session)).0, busy);
    drop(client);
    let mut client = Client::start(&agent);
    assert_eq!(client.call("session/load", at(&session)).0, busy);
    assert_eq!(client.call("session/load", at(&session)).0, json!({}));
    client.request("session/resume", at(&session));
    assert_eq!(client.next(), None);
    assert_eq!(client.child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_prompt_plays_its_steps_and_hangs_on_the_permission() {
    let folder = tempfile::tempdir().unwrap();
    let world = folder.path().join("world");
    let ran = [Step::append(&world, "ran"), Step::tool_update("c1", "completed", "done")];
    let script = Script::default()
        .prompt("run", [Step::say("I will "), Step::ask("c1", "touch", "execute", json!({}), ran)]);
    for (option, runs) in [("yes", true), ("no", false)] {
        let agent = FakeAgent::new(&folder.path().join(option), &script);
        let mut client = Client::start(&agent);
        let session = client.new_session();
        let id = client.request("session/prompt", prompt(&session, "run it"));
        let mut kinds = Vec::new();
        let question = loop {
            let message = client.next().unwrap();
            match message["method"].as_str() {
                Some("session/request_permission") => break message,
                _ => kinds.push(message["params"]["update"]["sessionUpdate"].as_str().unwrap().to_owned()),
            }
        };
        assert_eq!(kinds, ["agent_message_chunk", "tool_call"]);
        let outcome = json!({"outcome": {"outcome": "selected", "optionId": option}});
        client.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": outcome}));
        let status = if runs { "completed" } else { "failed" };
        assert_eq!(client.next().unwrap()["params"]["update"]["status"], status);
        assert_eq!(client.next().unwrap()["id"], id);
        assert_eq!(world.exists(), runs);
        drop(std::fs::remove_file(&world));
    }
}

#[test]
fn a_cancel_right_behind_the_prompt_ends_a_turn_that_stalls() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script::default().prompt("", [Step::Stall, Step::say("never said")]);
    let mut client = Client::start(&FakeAgent::new(folder.path(), &script));
    let session = client.new_session();
    let id = client.request("session/prompt", prompt(&session, "stall"));
    client.send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}));
    let cancelled = json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "cancelled"}});
    assert_eq!(client.next(), Some(cancelled));
}

#[test]
fn what_a_killed_turn_leaves_is_as_the_script_says() {
    for (keeps, texts) in [
        (Keeps::AsSaid, vec!["half "]),
        (Keeps::PromptFirst, vec![]),
        (Keeps::AtTheEnd, vec![]),
        (Keeps::Nothing, vec![]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let script = Script { keeps, ..Script::default() };
        let agent = FakeAgent::new(folder.path(), &script.prompt("", [Step::say("half "), Step::Stall]));
        let mut client = Client::start(&agent);
        let session = client.new_session();
        client.request("session/prompt", prompt(&session, "go"));
        client.next().unwrap();
        drop(client);
        let (result, replay) = Client::start(&agent).call("session/load", at(&session));
        let expected: Vec<Value> = match keeps {
            Keeps::AtTheEnd | Keeps::Nothing => {
                assert_eq!(result["code"], -32002);
                vec![]
            }
            _ => [update("go", "user_message_chunk", &session)]
                .into_iter()
                .chain(texts.iter().map(|text| update(text, "agent_message_chunk", &session)))
                .collect(),
        };
        assert_eq!(replay, expected);
    }
}
