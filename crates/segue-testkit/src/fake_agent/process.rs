//! The agent itself: reads lines of JSON-RPC, answers them, and plays its script.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::keep::{Keeper, append};
use super::play::Turn;
use super::script::{Answer, Keeps, Script, With};

/// Runs the agent of a script until its input ends, and leaves the process.
///
/// # Errors
/// If the script cannot be read or its folder not be used.
pub fn run(script: &Path) -> io::Result<()> {
    let folder = script.parent().unwrap_or(Path::new(".")).to_owned();
    let script: Script = serde_json::from_slice(&std::fs::read(script)?)?;
    let agent = Arc::new(Agent::new(script, folder)?);
    agent.note(&json!({
        "started": std::process::id(),
        "cwd": std::env::current_dir()?,
        "env": std::env::vars_os()
            .map(|(name, value)| {
                (name.to_string_lossy().into_owned(), json!(value.to_string_lossy()))
            })
            .collect::<Map<_, _>>(),
    }));
    Turn::outside(&agent).play_all(&agent.script.start);
    for line in io::stdin().lock().lines() {
        agent.take(&line?);
    }
    if agent.script.ignores_eof {
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    std::process::exit(0)
}

/// A session that this process has.
pub(super) struct Live {
    pub cwd: Value,
    pub settings: Value,
    pub updates: Vec<Value>,
    /// Lines that are not written yet.
    pub unwritten: Vec<Value>,
    pub cancelled: Arc<AtomicBool>,
    /// Held while this process has it, if sessions are exclusive.
    _lock: Option<File>,
}

pub(super) struct Agent {
    pub script: Script,
    folder: PathBuf,
    pub keeper: Keeper,
    out: Mutex<io::Stdout>,
    start: u64,
    requests: AtomicU64,
    waiting: Mutex<HashMap<u64, Sender<Value>>>,
    pub sessions: Mutex<HashMap<String, Live>>,
    counts: Mutex<HashMap<String, u32>>,
    logged_in: AtomicBool,
}

/// An error object.
type Refusal = Value;

fn refusal(code: i64, message: &str, data: Value) -> Refusal {
    json!({"code": code, "message": message, "data": data})
}

fn not_found(session: &str) -> Refusal {
    refusal(-32002, "Resource not found", json!({"sessionId": session}))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Agent {
    fn new(script: Script, folder: PathBuf) -> io::Result<Self> {
        let keeper = Keeper::open(folder.join("sessions"))?;
        let mut agent = Self {
            script,
            keeper,
            out: Mutex::new(io::stdout()),
            start: 1,
            requests: AtomicU64::new(1),
            waiting: Mutex::default(),
            sessions: Mutex::default(),
            counts: Mutex::default(),
            logged_in: AtomicBool::new(false),
            folder,
        };
        // What earlier processes were asked counts: "fails twice, then works" holds over restarts.
        for entry in read_record(&agent.folder) {
            if entry.get("started").is_some() {
                agent.start += 1;
            }
            let message = &entry["received"];
            if message.get("id").is_some()
                && let Some(method) = message["method"].as_str()
            {
                agent.answer_to(method, &message["params"]);
                if method == "session/prompt" {
                    agent.rule_for(&prompt_text(&message["params"]));
                }
            }
        }
        Ok(agent)
    }

    /// Writes an entry into the record.
    fn note(&self, entry: &Value) {
        let mut entry = entry.clone();
        entry["start"] = json!(self.start);
        if let Err(error) = append(&record_path(&self.folder), &format!("{entry}\n")) {
            eprintln!("the fake agent cannot keep its record: {error}");
        }
    }

    /// Sends a line, whatever it is. A client that is gone hears nothing.
    pub fn raw(&self, line: &str) {
        let mut out = lock(&self.out);
        drop(out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()));
    }

    pub fn send(&self, mut message: Value) {
        message["jsonrpc"] = json!("2.0");
        self.raw(&message.to_string());
    }

    /// Sends a request; the answer will be received.
    pub fn ask(&self, method: &str, params: &Value) -> Receiver<Value> {
        let id = self.requests.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = channel();
        lock(&self.waiting).insert(id, sender);
        self.send(json!({"id": id, "method": method, "params": params}));
        receiver
    }

    /// Takes a line of the client.
    fn take(self: &Arc<Self>, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            self.note(&json!({"garbage": line}));
            return;
        };
        self.note(&json!({"received": message}));
        let params = &message["params"];
        match (message["method"].as_str(), message.get("id")) {
            (Some(method), Some(id)) => {
                if method == "session/prompt"
                    && let Some(live) = lock(&self.sessions).get(session_of(params))
                {
                    // Here and not in the thread: the cancel may be the next line.
                    live.cancelled.store(false, Ordering::SeqCst);
                }
                let (agent, method, id, params) =
                    (Arc::clone(self), method.to_owned(), id.clone(), params.clone());
                std::thread::spawn(move || agent.serve(&method, &id, &params));
            }
            (Some("session/cancel"), None) if !self.script.ignores_cancel => {
                if let Some(live) = lock(&self.sessions).get(session_of(params)) {
                    live.cancelled.store(true, Ordering::SeqCst);
                }
            }
            (Some(_), None) => {}
            (None, id) => {
                let sender = id.and_then(Value::as_u64).and_then(|id| lock(&self.waiting).remove(&id));
                if let Some(sender) = sender {
                    // The turn that asked may have ended meanwhile.
                    drop(sender.send(message));
                }
            }
        }
    }

    fn serve(self: &Arc<Self>, method: &str, id: &Value, params: &Value) {
        let answer = self.answer_to(method, params);
        let session = session_of(params).to_owned();
        Turn::of(self, &session).play_all(&answer.before);
        let result = match &answer.with {
            With::Itself => self.itself(method, params),
            With::Result(result) => Ok(result.clone()),
            With::Error(error) => Err(error.clone()),
            With::Nothing => return,
        };
        let made = result.as_ref().ok().and_then(|result| result["sessionId"].as_str()).map(str::to_owned);
        let greets = result.is_ok()
            && matches!(method, "session/new" | "session/load" | "session/resume" | "session/fork");
        match result {
            Ok(Value::Null) => return,
            Ok(result) => self.send(json!({"id": id, "result": result})),
            Err(error) => self.send(json!({"id": id, "error": error})),
        }
        let turn = Turn::of(self, &made.unwrap_or(session));
        turn.play_all(&answer.after);
        if greets {
            turn.play_all(&self.script.greeting);
        }
    }

    /// What the script says on this call of a method. Counts it.
    fn answer_to(&self, method: &str, params: &Value) -> Answer {
        let key = match resumed_by_meta(params) {
            Some(_) if method == "session/new" => "session/new+resume",
            _ => method,
        };
        let Some(answers) = self.script.methods.get(key) else { return Answer::itself() };
        let mut counts = lock(&self.counts);
        let count = counts.entry(key.to_owned()).or_default();
        let mut passed = *count;
        *count += 1;
        for answer in answers {
            match passed.checked_sub(answer.times.max(1)) {
                None => return answer.clone(),
                Some(rest) => passed = rest,
            }
        }
        answers.last().cloned().unwrap_or_default()
    }

    /// The rule for a prompt. Counts it.
    fn rule_for(&self, text: &str) -> Option<&super::script::Rule> {
        let mut counts = lock(&self.counts);
        self.script.prompts.iter().enumerate().find_map(|(at, rule)| {
            let count = counts.entry(format!("rule {at}")).or_default();
            let fits = text.contains(&rule.contains) && (rule.times == 0 || *count < rule.times);
            *count += u32::from(fits);
            fits.then_some(rule)
        })
    }

    /// What a well-behaved agent does. A null is no answer.
    fn itself(self: &Arc<Self>, method: &str, params: &Value) -> Result<Value, Refusal> {
        let login = self.script.login.as_deref();
        match method {
            "initialize" => return Ok(self.initialize()),
            "authenticate" if login.is_some_and(|method| params["methodId"] == method) => {
                self.logged_in.store(true, Ordering::SeqCst);
                return Ok(json!({}));
            }
            "authenticate" => return Err(refusal(-32602, "Invalid params", params.clone())),
            _ if login.is_some() && !self.logged_in.load(Ordering::SeqCst) => {
                return Err(refusal(-32000, "Authentication required", Value::Null));
            }
            _ => {}
        }
        let session = session_of(params);
        match method {
            "session/new" => self.new_session(params),
            "session/load" => {
                self.open(session, params)?;
                self.replay(session);
                Ok(self.opened(session, false))
            }
            "session/resume" => {
                self.open(session, params)?;
                Ok(self.opened(session, false))
            }
            "session/fork" => {
                let kept = self.keeper.read(session).ok_or_else(|| not_found(session))?;
                let lines: Vec<Value> = kept.updates.iter().map(|update| json!({"update": update})).collect();
                let id = self.mint();
                self.written(self.keeper.append(&id, &kept.cwd, &lines));
                self.open(&id, params)?;
                Ok(self.opened(&id, true))
            }
            "session/list" => {
                let kept = self.keeper.all().into_iter();
                let wanted = kept.filter(|kept| params["cwd"].is_null() || params["cwd"] == kept.cwd);
                let infos: Vec<Value> = wanted
                    .map(|kept| {
                        let title = kept.updates.first().map_or("", |first| text_of(&first["content"]));
                        json!({"sessionId": kept.id, "cwd": kept.cwd, "title": title})
                    })
                    .collect();
                Ok(json!({"sessions": infos}))
            }
            "session/close" => {
                lock(&self.sessions).remove(session);
                Ok(json!({}))
            }
            "session/delete" => {
                lock(&self.sessions).remove(session);
                self.keeper.remove(session);
                Ok(json!({}))
            }
            "session/set_mode" => {
                self.set(session, "mode", &params["modeId"])?;
                Ok(json!({}))
            }
            "session/set_config_option" => {
                let option = params["configId"].as_str().unwrap_or_default();
                self.set(session, option, &params["value"])?;
                let opened = self.opened(session, false);
                Ok(json!({"configOptions": opened["configOptions"]}))
            }
            "session/prompt" => self.prompt(session, params),
            _ => Err(refusal(-32601, "Method not found", json!({"method": method}))),
        }
    }

    fn initialize(&self) -> Value {
        let script = &self.script;
        let mut result = json!({
            "protocolVersion": script.protocol_version,
            "agentCapabilities": script.capabilities,
            "authMethods": script.auth_methods,
        });
        if !script.info.is_null() {
            result["agentInfo"] = script.info.clone();
        }
        result
    }

    fn new_session(&self, params: &Value) -> Result<Value, Refusal> {
        if self.script.meta_resume
            && let Some(id) = resumed_by_meta(params)
        {
            self.open(id, params)?;
            return Ok(self.opened(id, true));
        }
        let id = self.mint();
        let live = Live {
            cwd: params["cwd"].clone(),
            settings: json!({}),
            updates: Vec::new(),
            unwritten: Vec::new(),
            cancelled: Arc::default(),
            _lock: self.exclusively(&id)?,
        };
        if self.script.keeps_unprompted {
            self.written(self.keeper.append(&id, &live.cwd, &[]));
        }
        lock(&self.sessions).insert(id.clone(), live);
        Ok(self.opened(&id, true))
    }

    fn mint(&self) -> String {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("fake-{}-{n}", self.start)
    }

    /// Makes a kept session one of this process.
    fn open(&self, id: &str, params: &Value) -> Result<(), Refusal> {
        if lock(&self.sessions).contains_key(id) {
            return Ok(());
        }
        let kept = self.keeper.read(id).ok_or_else(|| not_found(id))?;
        let lock_file = self.exclusively(id)?;
        let settings = if self.script.forgets_settings { json!({}) } else { kept.settings };
        let live = Live {
            cwd: params["cwd"].clone(),
            settings,
            updates: kept.updates,
            unwritten: Vec::new(),
            cancelled: Arc::default(),
            _lock: lock_file,
        };
        lock(&self.sessions).insert(id.to_owned(), live);
        Ok(())
    }

    fn exclusively(&self, id: &str) -> Result<Option<File>, Refusal> {
        if !self.script.exclusive {
            return Ok(None);
        }
        match self.keeper.take(id) {
            Ok(Some(file)) => Ok(Some(file)),
            Ok(None) => Err(refusal(
                -32603,
                "Internal error",
                json!({"reason": "thread_active_writer", "sessionId": id}),
            )),
            Err(error) => Err(refusal(-32603, "Internal error", json!({"details": error.to_string()}))),
        }
    }

    /// The result of a call that opened a session: modes and options as they stand in it.
    fn opened(&self, id: &str, with_id: bool) -> Value {
        let settings = lock(&self.sessions).get(id).map_or(json!({}), |live| live.settings.clone());
        let mut result = json!({});
        if with_id {
            result["sessionId"] = json!(id);
        }
        if !self.script.modes.is_null() {
            let mut modes = self.script.modes.clone();
            if let Some(mode) = settings.get("mode") {
                modes["currentModeId"] = mode.clone();
            }
            result["modes"] = modes;
        }
        if !self.script.config_options.is_null() {
            let mut options = self.script.config_options.clone();
            for option in options.as_array_mut().into_iter().flatten() {
                if let Some(value) = option["id"].as_str().and_then(|option| settings.get(option)) {
                    option["currentValue"] = value.clone();
                }
            }
            result["configOptions"] = options;
        }
        result
    }

    fn set(&self, session: &str, key: &str, value: &Value) -> Result<(), Refusal> {
        let mut sessions = lock(&self.sessions);
        let live = sessions.get_mut(session).ok_or_else(|| not_found(session))?;
        live.settings[key] = value.clone();
        if self.keeper.has(session) {
            let line = json!({"settings": live.settings});
            self.written(self.keeper.append(session, &live.cwd, &[line]));
        }
        Ok(())
    }

    fn replay(&self, session: &str) {
        let said = lock(&self.sessions).get(session).map(|live| live.updates.clone()).unwrap_or_default();
        let script = &self.script;
        let mut updates = script.replay.clone().unwrap_or_else(|| in_whole_messages(said));
        if let Some(last) = script.replay_last {
            updates.drain(..updates.len().saturating_sub(last));
        }
        updates.extend(script.replay_then.iter().cloned());
        for update in updates {
            self.send(
                json!({"method": "session/update", "params": {"sessionId": session, "update": update}}),
            );
        }
    }

    fn prompt(self: &Arc<Self>, session: &str, params: &Value) -> Result<Value, Refusal> {
        if !lock(&self.sessions).contains_key(session) {
            return Err(not_found(session));
        }
        let turn = Turn::of(self, session);
        for block in params["prompt"].as_array().into_iter().flatten() {
            turn.keep(json!({"sessionUpdate": "user_message_chunk", "content": block}));
        }
        if self.script.keeps == Keeps::PromptFirst {
            self.write_down(session);
        }
        let text = prompt_text(params);
        let rule = self.rule_for(&text);
        match rule {
            Some(rule) => turn.play_all(&rule.steps),
            None => turn.practice(),
        }
        self.write_down(session);
        if turn.cancelled() {
            return Ok(json!({"stopReason": "cancelled"}));
        }
        match rule.map(|rule| &rule.with) {
            None | Some(With::Itself) => Ok(json!({"stopReason": "end_turn"})),
            Some(With::Result(result)) => Ok(result.clone()),
            Some(With::Error(error)) => Err(error.clone()),
            Some(With::Nothing) => Ok(Value::Null),
        }
    }

    /// Writes down what is not written yet, if anything ever is.
    pub fn write_down(&self, session: &str) {
        let mut sessions = lock(&self.sessions);
        let Some(live) = sessions.get_mut(session) else { return };
        let mut lines = std::mem::take(&mut live.unwritten);
        if self.script.keeps != Keeps::Nothing {
            if !self.keeper.has(session) {
                lines.insert(0, json!({"settings": live.settings}));
            }
            self.written(self.keeper.append(session, &live.cwd, &lines));
        }
    }

    fn written(&self, result: io::Result<()>) {
        if let Err(error) = result {
            eprintln!("the fake agent cannot write a session: {error}");
        }
    }
}

/// Where the agent of this folder keeps what it received.
pub(super) fn record_path(folder: &Path) -> PathBuf {
    folder.join("record.jsonl")
}

/// What the agents of this folder received.
pub(super) fn read_record(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(record_path(folder)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The text of a prompt, its blocks joined by line ends.
pub(super) fn prompt_text(params: &Value) -> String {
    let blocks = params["prompt"].as_array().into_iter().flatten();
    blocks.map(text_of).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The text of a content block: its own, or that of the resource in it.
pub(super) fn text_of(block: &Value) -> &str {
    block["text"].as_str().or_else(|| block["resource"]["text"].as_str()).unwrap_or_default()
}

fn session_of(params: &Value) -> &str {
    params["sessionId"].as_str().unwrap_or_default()
}

fn resumed_by_meta(params: &Value) -> Option<&str> {
    params["_meta"]["claudeCode"]["options"]["resume"].as_str()
}

/// Joins the chunks of each run of the agent's text, as agents replay whole messages.
fn in_whole_messages(updates: Vec<Value>) -> Vec<Value> {
    let mut whole: Vec<Value> = Vec::new();
    for update in updates {
        let joins = |kind: &Value| kind == "agent_message_chunk" || kind == "agent_thought_chunk";
        match whole.last_mut() {
            Some(last)
                if joins(&update["sessionUpdate"])
                    && last["sessionUpdate"] == update["sessionUpdate"]
                    && last["messageId"] == update["messageId"] =>
            {
                let text = format!("{}{}", text_of(&last["content"]), text_of(&update["content"]));
                last["content"] = json!({"type": "text", "text": text});
            }
            _ => whole.push(update),
        }
    }
    whole
}
