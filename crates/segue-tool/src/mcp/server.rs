//! One server through its lives: started, called, found dead, started again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, JsonObject, RequestMetaObject,
    ServerResult,
};
use rmcp::service::{PeerRequestOptions, RequestHandle, ServiceError};
use rmcp::{Peer, RoleClient};
use segue_log::{Effect, code};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::config::{ServerConfig, Transport};
use super::connection::{Connection, Listing, OpenError, chain, was_not_sent, without_secrets};
use super::process::Witness;
use super::{IDEMPOTENCY_KEY, content};
use crate::{ToolContext, ToolOutput};

/// How often a connection that closed before a request was handed to it is opened anew.
const TRIES: usize = 2;

/// How long a server may take to be told that a call was cancelled.
const TELLING: Duration = Duration::from_secs(1);

pub(super) struct Server {
    config: ServerConfig,
    listing: Arc<Listing>,
    state: Mutex<State>,
    /// How many connections there were.
    opened: AtomicU64,
}

enum State {
    Down,
    Up(Line, Box<Connection>),
    /// For good.
    Closed,
}

/// What a call needs of a connection.
#[derive(Clone)]
struct Line {
    /// Which connection it belongs to.
    id: u64,
    peer: Peer<RoleClient>,
    witness: Option<Witness>,
}

/// Why there is no good answer to a call.
enum Unanswered {
    /// The server did not get the request.
    NotSent(String),
    /// The server said no.
    Refused(String),
    /// The server got the request, and only the world knows what came of it.
    Lost(String),
    Cancelled,
    TimedOut,
}

impl Server {
    pub(super) fn new(config: ServerConfig) -> Self {
        Self { config, listing: Arc::default(), state: Mutex::new(State::Down), opened: AtomicU64::new(0) }
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn config(&self) -> &ServerConfig {
        &self.config
    }

    pub(super) fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Brings it up; a failure is kept as the listing's fault.
    pub(super) async fn start(&self) {
        if let Err(error) = self.line().await {
            self.listing.set_fault(error);
        }
    }

    pub(super) async fn close(&self) {
        let state = std::mem::replace(&mut *self.state.lock().await, State::Closed);
        if let State::Up(_, connection) = state {
            connection.close().await;
        }
    }

    /// A connection that is not known to be dead, opened if there is none.
    async fn line(&self) -> Result<Line, String> {
        let mut state = self.state.lock().await;
        match &*state {
            State::Up(line, connection) if !connection.is_closed() => return Ok(line.clone()),
            State::Closed => return Err(OpenError::Closed.to_string()),
            State::Up(..) | State::Down => {}
        }
        // Dropping a dead one ends what is left of its process group.
        *state = State::Down;
        let connection = Connection::open(&self.config, &self.listing).await?;
        let line = Line {
            id: self.opened.fetch_add(1, Ordering::Relaxed),
            peer: connection.peer(),
            witness: connection.witness(),
        };
        *state = State::Up(line.clone(), Box::new(connection));
        Ok(line)
    }

    /// Gives up a connection that failed a call, unless it has been replaced already.
    async fn give_up(&self, line: &Line) {
        let mut state = self.state.lock().await;
        if matches!(&*state, State::Up(current, _) if current.id == line.id) {
            *state = State::Down;
        }
    }

    /// Calls a tool of it.
    pub(super) async fn call(
        &self,
        tool: &str,
        input: Value,
        effect: Effect,
        context: &ToolContext,
    ) -> ToolOutput {
        let name = self.name();
        match self.answer(tool, input, context).await {
            Ok(result) => content::output(result, context.host.as_ref()).await,
            Err(Unanswered::NotSent(why)) => {
                ToolOutput::error(code::FAILED, format!("MCP server {name} was not called: {why}"))
            }
            Err(Unanswered::Refused(why)) => ToolOutput::error(code::FAILED, why),
            Err(Unanswered::Lost(why)) => {
                let (code, what) = match effect {
                    Effect::Read => (code::FAILED, "it only reads and may be called again"),
                    Effect::Idempotent | Effect::Write => (code::OUTCOME_UNKNOWN, "it may have had effects"),
                };
                ToolOutput::error(
                    code,
                    format!("MCP server {name} was lost before it answered this call; {what}. {why}"),
                )
            }
            Err(Unanswered::Cancelled) => ToolOutput::error(
                code::CANCELLED,
                format!("Cancelled; MCP server {name} was told to stop. It may have had effects."),
            ),
            Err(Unanswered::TimedOut) => ToolOutput::error(
                code::TIMED_OUT,
                format!(
                    "MCP server {name} did not answer within {:?} and was told to stop. It may have had effects.",
                    self.config.timeout
                ),
            ),
        }
    }

    async fn answer(
        &self,
        tool: &str,
        input: Value,
        context: &ToolContext,
    ) -> Result<CallToolResult, Unanswered> {
        let (line, mut handle) = tokio::select! {
            biased;
            () = context.cancel.cancelled() => {
                return Err(Unanswered::NotSent("cancelled before the request was sent; nothing was done".to_owned()));
            }
            sent = self.send(tool, input, context) => sent?,
        };
        let answer = tokio::select! {
            biased;
            answer = &mut handle.rx => answer,
            () = context.cancel.cancelled() => {
                tell(handle, "cancelled").await;
                return Err(Unanswered::Cancelled);
            }
            () = sleep(self.config.timeout) => {
                tell(handle, "timed out").await;
                return Err(Unanswered::TimedOut);
            }
        };
        match answer {
            Ok(Ok(ServerResult::CallToolResult(result))) => Ok(result),
            Ok(Ok(ServerResult::EmptyResult(_))) => Ok(CallToolResult::success(Vec::new())),
            Ok(Ok(_)) => Err(Unanswered::Lost("Its answer was no result of a call.".to_owned())),
            Ok(Err(ServiceError::McpError(error))) => Err(Unanswered::Refused(error.message.into_owned())),
            Ok(Err(error)) => Err(self.lost(line, Some(error)).await),
            Err(_) => Err(self.lost(line, None).await),
        }
    }

    /// Sends the request, to a new connection if the old one turns out to be closed.
    async fn send(
        &self,
        tool: &str,
        input: Value,
        context: &ToolContext,
    ) -> Result<(Line, RequestHandle<RoleClient>), Unanswered> {
        let Value::Object(arguments) = input else {
            return Err(Unanswered::NotSent("its arguments are no object".to_owned()));
        };
        let mut meta = JsonObject::new();
        meta.insert(IDEMPOTENCY_KEY.to_owned(), Value::String(context.idempotency_key()));
        let meta = RequestMetaObject::from(meta);
        let mut tries = 0..TRIES;
        loop {
            let line = self.line().await.map_err(Unanswered::NotSent)?;
            let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments.clone());
            let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
            let options = PeerRequestOptions::no_options().with_meta(meta.clone());
            match line.peer.send_cancellable_request(request, options).await {
                Ok(handle) => return Ok((line, handle)),
                // Closed since we looked: nothing has left, and the next look opens a new one.
                Err(ServiceError::TransportClosed) if tries.next().is_some() => {}
                Err(error) => return Err(Unanswered::NotSent(chain(&error))),
            }
        }
    }

    async fn lost(&self, mut line: Line, error: Option<ServiceError>) -> Unanswered {
        let mut why = match &error {
            None | Some(ServiceError::TransportClosed) => "The connection closed".to_owned(),
            Some(error) => format!("The connection failed: {}", chain(error)),
        };
        if let Transport::Http { url, .. } = &self.config.transport {
            why = without_secrets(&why, url);
        }
        if let Some(witness) = &mut line.witness {
            why.push_str(&witness.account().await);
        } else {
            why.push('.');
        }
        self.give_up(&line).await;
        why.push_str("\nThe next call starts it again.");
        match error {
            Some(error) if was_not_sent(&error) => Unanswered::NotSent(why),
            _ => Unanswered::Lost(why),
        }
    }
}

/// Sends `notifications/cancelled`. That it fails means that the server is gone, which serves as well.
async fn tell(handle: RequestHandle<RoleClient>, reason: &str) {
    timeout(TELLING, handle.cancel(Some(reason.to_owned()))).await.ok();
}
