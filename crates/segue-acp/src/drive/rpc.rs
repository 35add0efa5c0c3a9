//! JSON-RPC over an agent's stdio, one message a line. Messages stay JSON.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};

/// The longest line taken, in bytes. What is longer is passed over.
const LINE: usize = 32 * 1024 * 1024;

/// Messages of an agent that may wait here; then it has to.
const WAITING: usize = 256;

/// Messages to an agent that may wait for it to read.
const SENDING: usize = 256;

/// An error object, as the agent sent it.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// Its code.
    pub code: i64,
    /// Its message.
    pub message: String,
    /// Whatever it adds.
    pub data: Value,
}

impl Refusal {
    fn of(error: &Value) -> Self {
        Self {
            code: error.get("code").and_then(Value::as_i64).unwrap_or(0),
            message: error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned(),
            data: error.get("data").cloned().unwrap_or(Value::Null),
        }
    }

    /// What it says in words: the message, and those texts of its data that add to it.
    pub fn words(&self) -> String {
        let mut words = self.message.clone();
        let details = match &self.data {
            Value::String(text) => Some(text.as_str()),
            data => ["details", "message", "error", "reason"]
                .iter()
                .find_map(|key| data.get(key).and_then(Value::as_str)),
        };
        if let Some(details) = details.filter(|details| !words.contains(details)) {
            words = if words.is_empty() { details.to_owned() } else { format!("{words}: {details}") };
        }
        format!("{words} ({})", self.code)
    }
}

/// Why a request has no result.
#[derive(Debug, Clone, PartialEq)]
pub enum NoAnswer {
    /// The agent refused.
    Refused(Refusal),
    /// It closed its output, or its process is gone.
    Closed,
    /// It did not answer in time.
    TimedOut,
}

/// What an agent sends by itself.
#[derive(Debug)]
pub enum Incoming {
    /// A request; it waits for the answer to `id`.
    Request {
        /// Its id.
        id: Value,
        /// The method.
        method: String,
        /// Its params.
        params: Value,
    },
    /// A notification.
    Notification {
        /// The method.
        method: String,
        /// Its params.
        params: Value,
    },
}

type Answers = HashMap<u64, oneshot::Sender<Result<Value, NoAnswer>>>;

/// Requests that wait for an answer; none once nothing more can come.
type Pending = Arc<Mutex<Option<Answers>>>;

fn lock(pending: &Pending) -> MutexGuard<'_, Option<Answers>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to an agent.
#[derive(Clone)]
pub struct Peer {
    out: mpsc::Sender<String>,
    pending: Pending,
    next: Arc<AtomicU64>,
}

/// An answer that is still to come.
pub struct Answer(oneshot::Receiver<Result<Value, NoAnswer>>);

impl Answer {
    /// Waits for it. May be dropped and called again.
    pub async fn wait(&mut self) -> Result<Value, NoAnswer> {
        (&mut self.0).await.unwrap_or(Err(NoAnswer::Closed))
    }
}

impl Peer {
    /// Speaks over these pipes. Lines that are no messages go to `noise`. The receiver ends when nothing more can come.
    pub fn new(
        input: impl AsyncWrite + Send + Unpin + 'static,
        output: impl AsyncRead + Send + Unpin + 'static,
        noise: impl Fn(&str) + Send + 'static,
    ) -> (Self, mpsc::Receiver<Incoming>) {
        let (out, lines) = mpsc::channel(SENDING);
        let (sender, incoming) = mpsc::channel(WAITING);
        let pending: Pending = Arc::new(Mutex::new(Some(HashMap::new())));
        tokio::spawn(write(input, lines));
        let answers = pending.clone();
        tokio::spawn(async move {
            read(output, &answers, &sender, noise).await;
            // Whoever waits is told; whoever asks from now on, too.
            *lock(&answers) = None;
        });
        (Self { out, pending, next: Arc::new(AtomicU64::new(1)) }, incoming)
    }

    /// Sends a request.
    pub async fn request(&self, method: &str, params: Value) -> Answer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        if let Some(answers) = lock(&self.pending).as_mut() {
            answers.insert(id, sender);
        }
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        Answer(receiver)
    }

    /// Sends a notification.
    pub async fn notify(&self, method: &str, params: Value) {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Answers a request of the agent.
    pub async fn answer(&self, id: &Value, result: Result<Value, (i64, String)>) {
        let message = match result {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err((code, message)) => {
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
            }
        };
        self.send(message).await;
    }

    async fn send(&self, message: Value) {
        // An agent that is gone hears nothing; whoever waits for its answer is told by the reader.
        self.out.send(message.to_string()).await.ok();
    }
}

async fn write(mut input: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<String>) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        if input.write_all(line.as_bytes()).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
}

async fn read(
    output: impl AsyncRead + Unpin,
    pending: &Pending,
    incoming: &mpsc::Sender<Incoming>,
    noise: impl Fn(&str),
) {
    let mut reader = BufReader::with_capacity(64 * 1024, output);
    let mut line = Vec::new();
    while let Ok(is_whole) = next_line(&mut reader, &mut line).await {
        if line.is_empty() && !is_whole {
            return;
        }
        match serde_json::from_slice::<Value>(&line) {
            Ok(message) => {
                if let Some(message) = take(message, pending)
                    && incoming.send(message).await.is_err()
                {
                    return;
                }
            }
            Err(_) => noise(&String::from_utf8_lossy(line.get(..line.len().min(1000)).unwrap_or_default())),
        }
    }
}

/// The next line without its end; false at the end of the input. One that is too long comes out cut.
async fn next_line(
    reader: &mut (impl tokio::io::AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> std::io::Result<bool> {
    line.clear();
    loop {
        let chunk = reader.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(false);
        }
        let (piece, used, is_whole) = match chunk.iter().position(|byte| *byte == b'\n') {
            Some(end) => (chunk.get(..end).unwrap_or_default(), end + 1, true),
            None => (chunk, chunk.len(), false),
        };
        if line.len() + piece.len() <= LINE {
            line.extend_from_slice(piece);
        }
        reader.consume(used);
        if is_whole {
            return Ok(true);
        }
    }
}

/// Hands an answer to whoever waits for it; gives back what the agent sent by itself. The order is kept: all that came
/// before an answer is in the channel when the answer is told.
fn take(mut message: Value, pending: &Pending) -> Option<Incoming> {
    let id = message.get("id").cloned();
    let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
    let mut part = |key: &str| message.get_mut(key).map(Value::take);
    match (method, id) {
        (Some(method), Some(id)) => {
            Some(Incoming::Request { id, method, params: part("params").unwrap_or_default() })
        }
        (Some(method), None) => {
            Some(Incoming::Notification { method, params: part("params").unwrap_or_default() })
        }
        (None, Some(id)) => {
            let waiting = lock(pending).as_mut().and_then(|answers| answers.remove(&id.as_u64()?));
            let answer = match part("error").filter(|error| !error.is_null()) {
                Some(error) => Err(NoAnswer::Refused(Refusal::of(&error))),
                None => Ok(part("result").unwrap_or_default()),
            };
            // An answer that nobody waits for any more changes nothing.
            waiting.map(|sender| sender.send(answer).ok());
            None
        }
        (None, None) => None,
    }
}
