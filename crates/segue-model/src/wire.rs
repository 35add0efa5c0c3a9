//! One request to an HTTP endpoint and its answer, as far as the wire formats have it in common.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use futures::{StreamExt, stream};
use reqwest::header::HeaderMap;
use reqwest::{Client, Response, Url};
use serde_json::Value;
use tokio::time::timeout;

use crate::error::ModelError;
use crate::failure::{Said, Who, retry_after};
use crate::model::{Delta, Deltas, Stop};
use crate::sse;

/// The most that is read of an error answer, in bytes.
const LONGEST_REFUSAL: usize = 64 << 10;
/// The most that is read of an answer in one piece, in bytes.
const LONGEST_JSON: usize = 64 << 20;

/// Where requests go.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) who: Who,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    /// Made at the first request, as it reads the system's certificates.
    pub(crate) client: OnceLock<Client>,
}

/// Reads the answers of one wire format.
pub(crate) trait Reader: Send + 'static {
    /// Takes up the data of an event. True once the answer is whole and nothing more is to come.
    fn event(&mut self, data: &str, out: &mut VecDeque<Delta>) -> Result<bool, Fault>;

    /// Takes up an answer that came in one piece, as from endpoints that do not stream.
    fn whole(&mut self, answer: &Value, out: &mut VecDeque<Delta>) -> Result<(), Fault>;

    /// Nothing more will come: why the model stopped, if it had said so.
    fn end(&mut self, out: &mut VecDeque<Delta>) -> Option<Stop>;
}

/// What is wrong with an answer.
pub(crate) enum Fault {
    /// It is none.
    Garbage(String),
    /// The provider says so.
    Said(Said),
}

impl Endpoint {
    /// Sends a request; the answer's deltas.
    pub(crate) async fn send(
        self: &Arc<Self>,
        body: &Value,
        reader: impl Reader,
    ) -> Result<Deltas, ModelError> {
        let body = serde_json::to_vec(body).map_err(|error| self.who.broken(&error.to_string()))?;
        let request = self.client()?.post(self.url.clone()).headers(self.headers.clone()).body(body);
        let response = match timeout(self.idle_timeout, request.send()).await {
            Err(_) => return Err(self.timed_out()),
            Ok(Err(error)) if error.is_connect() => return Err(self.unreachable(&error)),
            Ok(Err(error)) => return Err(self.who.broken(&deepest(&error))),
            Ok(Ok(response)) => response,
        };
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let reading = Reading {
            endpoint: Arc::clone(self),
            response,
            reader,
            form: Form::Unknown,
            ready: VecDeque::new(),
            end: None,
        };
        Ok(stream::unfold(reading, |mut reading| async move { Some((reading.next().await?, reading)) })
            .boxed())
    }

    fn client(&self) -> Result<&Client, ModelError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        install_crypto();
        let mut builder = Client::builder()
            .connect_timeout(self.connect_timeout)
            // Each attempt is the caller's, who records it first.
            .retry(reqwest::retry::never())
            // A key must not follow a redirect to somebody else.
            .redirect(reqwest::redirect::Policy::none());
        if self.url.scheme() == "http" {
            // Without certificates of the system, which may have none, a model on this machine can still be reached.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| self.unreachable(&error))?;
        Ok(self.client.get_or_init(|| client))
    }

    async fn refusal(&self, mut response: Response) -> ModelError {
        let status = response.status();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let wait = retry_after(header, SystemTime::now());
        let target = header("location").map(str::to_owned);
        let mut body = Vec::new();
        // A refusal that breaks off is still one; what came of it has to do.
        while let Ok(Ok(Some(bytes))) = timeout(self.idle_timeout, response.chunk()).await {
            body.extend_from_slice(&bytes);
            if body.len() > LONGEST_REFUSAL {
                break;
            }
        }
        let mut said = Said::of_body(&String::from_utf8_lossy(&body));
        if said.message.is_empty() {
            said.message = match target {
                Some(target) => format!("it redirects to {target}; is the base URL right?"),
                None => status.canonical_reason().unwrap_or_default().to_owned(),
            };
        }
        self.who.refused(status.as_u16(), &said, wait)
    }

    fn unreachable(&self, error: &reqwest::Error) -> ModelError {
        let mut url = self.url.clone();
        url.set_query(None);
        ModelError::Unreachable {
            url: self.who.clean(url.as_str()),
            message: self.who.clean(&deepest(error)),
        }
    }

    fn timed_out(&self) -> ModelError {
        ModelError::TimedOut { provider: self.who.provider.clone(), after: self.idle_timeout }
    }

    fn fault(&self, fault: Fault) -> ModelError {
        match fault {
            Fault::Garbage(message) => self.who.broken(&message),
            Fault::Said(said) => self.who.interrupted(&said),
        }
    }
}

/// TLS needs one provider of cryptography a process; whoever comes first installs it.
fn install_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error says that another thread was faster, with the same provider.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
}

/// The innermost cause, which says what happened and holds no address.
fn deepest(error: &reqwest::Error) -> String {
    let mut error: &dyn std::error::Error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The shape in which an answer comes.
enum Form {
    /// Nothing but white space has come.
    Unknown,
    Events(sse::Decoder),
    Json(Vec<u8>),
}

/// An answer that is being read.
struct Reading<R> {
    endpoint: Arc<Endpoint>,
    response: Response,
    reader: R,
    form: Form,
    ready: VecDeque<Delta>,
    /// Set once nothing more is to be read: how it ended. The error is given after what is ready.
    end: Option<Option<ModelError>>,
}

impl<R: Reader> Reading<R> {
    async fn next(&mut self) -> Option<Result<Delta, ModelError>> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Some(Ok(delta));
            }
            if let Some(end) = &mut self.end {
                return end.take().map(Err);
            }
            match timeout(self.endpoint.idle_timeout, self.response.chunk()).await {
                Ok(Ok(Some(bytes))) => self.take(&bytes),
                Ok(Ok(None)) => self.finish(None),
                Ok(Err(error)) => self.finish(Some(self.endpoint.who.broken(&deepest(&error)))),
                Err(_) => self.finish(Some(self.endpoint.timed_out())),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if let Form::Unknown = self.form {
            match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
                None => return,
                Some(b'{' | b'[') => self.form = Form::Json(Vec::new()),
                Some(b'<') => {
                    return self.fail(Fault::Garbage("a web page came; is the base URL right?".into()));
                }
                Some(_) => self.form = Form::Events(sse::Decoder::default()),
            }
        }
        match &mut self.form {
            Form::Unknown => {}
            Form::Json(whole) => {
                whole.extend_from_slice(bytes);
                if whole.len() > LONGEST_JSON {
                    self.fail(Fault::Garbage("it is too long".into()));
                }
            }
            Form::Events(decoder) => {
                let events = decoder.push(bytes);
                self.events(events);
            }
        }
    }

    fn events(&mut self, (events, result): (Vec<String>, Result<(), sse::Garbage>)) {
        for data in events {
            match self.reader.event(&data, &mut self.ready) {
                Ok(false) => {}
                Ok(true) => {
                    // Whatever else came is no longer part of the answer.
                    self.form = Form::Unknown;
                    return self.finish(None);
                }
                Err(fault) => return self.fail(fault),
            }
        }
        if let Err(sse::Garbage(what)) = result {
            self.fail(Fault::Garbage(format!("{what} came")));
        }
    }

    /// Nothing more comes. An answer that had said why it stopped is whole, whatever became of the connection.
    fn finish(&mut self, problem: Option<ModelError>) {
        match std::mem::replace(&mut self.form, Form::Unknown) {
            Form::Events(mut decoder) if problem.is_none() => self.events(decoder.finish()),
            Form::Json(whole) if problem.is_none() => {
                let fault = match serde_json::from_slice(&whole) {
                    Ok(answer) => self.reader.whole(&answer, &mut self.ready).err(),
                    Err(error) => Some(Fault::Garbage(format!("what came is no JSON: {error}"))),
                };
                if let Some(fault) = fault {
                    return self.fail(fault);
                }
            }
            _ => {}
        }
        if self.end.is_some() {
            return;
        }
        match self.reader.end(&mut self.ready) {
            Some(stop) => {
                self.ready.push_back(Delta::Stop(stop));
                self.end = Some(None);
            }
            None => {
                let problem =
                    problem.unwrap_or_else(|| self.endpoint.who.broken("it ended before it was whole"));
                self.end = Some(Some(problem));
            }
        }
    }

    fn fail(&mut self, fault: Fault) {
        self.end = Some(Some(self.endpoint.fault(fault)));
    }
}
