//! A model server on loopback: real HTTP, three wire formats, scripted replies, every request kept.
//!
//! It runs on a thread of its own, so tests without async and child processes can use it through its address. Without
//! a script it answers from the messages it is sent, so that an answer about the past proves that the past was sent.

mod answer;
mod reply;
mod responses;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub(crate) use answer::words as practice_words;
pub use reply::Reply;
use reply::Step;

use crate::provider_check::{check_anthropic, check_openai};

/// How long [`ModelServer::wait_for_requests`] waits at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// A wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's Chat Completions.
    OpenAi,
    /// OpenAI's Responses: no provider of ours speaks it, but Codex does.
    Responses,
}

/// A request as it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// The format, by the path.
    pub wire: Wire,
    /// The path.
    pub path: String,
    /// The headers, their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body; null if it was no JSON.
    pub body: Value,
}

type Responder = dyn Fn(&Recorded) -> Option<Reply> + Send + Sync;

#[derive(Default)]
struct State {
    requests: Vec<Recorded>,
    script: VecDeque<Reply>,
    responder: Option<Arc<Responder>>,
    lenient: bool,
    violations: Vec<String>,
    replies: u64,
}

#[derive(Default)]
struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server; it ends when this is dropped.
pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ModelServer {
    /// Starts a server on a free port.
    pub async fn start() -> Self {
        Self::start_blocking()
    }

    /// Starts a server on a free port; for tests without async.
    ///
    /// # Panics
    /// If there is no free port on loopback.
    pub fn start_blocking() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port on loopback");
        let address = listener.local_addr().expect("the port's number");
        listener.set_nonblocking(true).expect("a listener that does not block");
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime for the model server");
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, served) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Its base URL, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a reply to the script. Each request takes the first one left.
    pub fn push(&self, reply: Reply) {
        self.shared.lock().script.push_back(reply);
    }

    /// Adds replies to the script.
    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.lock().script.extend(replies);
    }

    /// Lets a closure answer requests for which the script has nothing; where it gives none, the server answers by itself.
    pub fn respond_with(&self, responder: impl Fn(&Recorded) -> Option<Reply> + Send + Sync + 'static) {
        self.shared.lock().responder = Some(Arc::new(responder));
    }

    /// Takes any request, valid or not. By default those that a provider would refuse get a 400, take nothing from the
    /// script, and are counted in [`ModelServer::violations`].
    pub fn lenient(&self) {
        self.shared.lock().lenient = true;
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.lock().requests.clone()
    }

    /// The bodies of all requests so far.
    pub fn bodies(&self) -> Vec<Value> {
        self.shared.lock().requests.iter().map(|request| request.body.clone()).collect()
    }

    /// What was wrong with requests that were refused.
    pub fn violations(&self) -> Vec<String> {
        self.shared.lock().violations.clone()
    }

    /// Waits until at least `count` requests have arrived whole, and gives all.
    ///
    /// # Panics
    /// If they have not after a minute.
    pub async fn wait_for_requests(&self, count: usize) -> Vec<Recorded> {
        let since = Instant::now();
        loop {
            if let Some(requests) = self.arrived(count, since) {
                return requests;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The same for tests without async.
    ///
    /// # Panics
    /// If they have not arrived after a minute.
    pub fn wait_for_requests_blocking(&self, count: usize) -> Vec<Recorded> {
        let since = Instant::now();
        loop {
            if let Some(requests) = self.arrived(count, since) {
                return requests;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn arrived(&self, count: usize, since: Instant) -> Option<Vec<Recorded>> {
        let requests = self.requests();
        if requests.len() >= count {
            return Some(requests);
        }
        assert!(since.elapsed() < PATIENCE, "{} of {count} requests came: {requests:#?}", requests.len());
        None
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread may have ended by itself; joining it tells how.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the model server panicked");
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener of this runtime");
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| serve(request, Arc::clone(&shared)));
            // An error is a connection that a script or the client dropped.
            drop(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(socket), service)
                    .await,
            );
        });
    }
}

type Body = BoxBody<Bytes, io::Error>;

async fn serve(request: Request<Incoming>, shared: Arc<Shared>) -> io::Result<Response<Body>> {
    let path = request.uri().path().to_owned();
    let wire = match () {
        () if path.ends_with("/v1/messages") => Wire::Anthropic,
        () if path.ends_with("/chat/completions") => Wire::OpenAi,
        () if path.ends_with("/v1/responses") => Wire::Responses,
        () if path.ends_with("/v1/messages/count_tokens") => {
            let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
            return whole(200, &json!({"input_tokens": body.len() / 4}));
        }
        () => return whole(404, &json!({"error": {"message": format!("nothing is at {path}")}})),
    };
    let headers = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let bytes = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let recorded = Recorded { wire, path, headers, body };
    let (reply, number) = match choose(recorded, &shared) {
        Ok(chosen) => chosen,
        Err(problem) => {
            let error = json!({"type": "invalid_request_error", "message": problem});
            return whole(400, &json!({"type": "error", "error": error}));
        }
    };
    send(&reply, wire, number).await
}

/// Keeps the request and chooses its reply, unless no provider would take it.
fn choose(recorded: Recorded, shared: &Shared) -> Result<(Reply, u64), String> {
    let mut state = shared.lock();
    state.requests.push(recorded.clone());
    let checked = match recorded.wire {
        Wire::Anthropic => check_anthropic(&recorded.body),
        Wire::OpenAi => check_openai(&recorded.body),
        Wire::Responses => responses::check(&recorded.body),
    };
    if let (Err(problem), false) = (checked, state.lenient) {
        state.violations.push(problem.clone());
        return Err(problem);
    }
    state.replies += 1;
    let number = state.replies;
    if let Some(reply) = state.script.pop_front() {
        return Ok((reply, number));
    }
    let responder = state.responder.clone();
    drop(state);
    let reply = responder.and_then(|responder| responder(&recorded));
    Ok((reply.unwrap_or_else(|| answer::answer(&recorded)), number))
}

async fn send(reply: &Reply, wire: Wire, number: u64) -> io::Result<Response<Body>> {
    let mut steps = reply.steps(wire, number);
    while let Some(step) = steps.pop_front() {
        match step {
            Step::Head => break,
            Step::Pause(time) => tokio::time::sleep(time).await,
            Step::Hang => std::future::pending().await,
            Step::Drop | Step::Bytes(_) => return Err(io::Error::other("dropped before the headers")),
        }
    }
    let body = stream::unfold(steps, |mut steps| async move {
        loop {
            match steps.pop_front()? {
                Step::Head => {}
                Step::Pause(time) => tokio::time::sleep(time).await,
                Step::Hang => std::future::pending().await,
                Step::Drop => {
                    // What was written before leaves the buffers first.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    return Some((Err(io::Error::other("dropped in mid-stream")), steps));
                }
                Step::Bytes(bytes) => return Some((Ok(Frame::data(Bytes::from(bytes))), steps)),
            }
        }
    });
    let body: Pin<Box<dyn stream::Stream<Item = io::Result<Frame<Bytes>>> + Send + Sync>> = Box::pin(body);
    let mut response = Response::builder().status(reply.status());
    for (name, value) in reply.headers() {
        response = response.header(name, value);
    }
    response.body(BodyExt::boxed(StreamBody::new(body))).map_err(io::Error::other)
}

fn whole(status: u16, body: &Value) -> io::Result<Response<Body>> {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed());
    *response.status_mut() = StatusCode::from_u16(status).map_err(io::Error::other)?;
    response
        .headers_mut()
        .insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    Ok(response)
}
