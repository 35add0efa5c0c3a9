//! A connection to a server: how it is opened, what it lists, how it is closed.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientConfig, Implementation, PaginatedRequestParams};
use rmcp::service::{NotificationContext, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};
use rmcp::{ClientHandler, Peer, RoleClient, ServiceExt as _};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::config::{ServerConfig, Transport};
use super::process::{ServerProcess, Witness};

/// The largest message that is read, in bytes. A server that writes more is broken; so is one that lists more tools
/// than the second number.
const LARGEST_MESSAGE: usize = 256 * 1024 * 1024;
const MOST_TOOLS: usize = 10_000;
/// How often a broken stream of answers is taken up again, and the first and longest wait before that.
const RETRIES: usize = 3;
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// How long the MCP side of closing may take; the process has its own time after that.
const CLOSING: Duration = Duration::from_secs(2);

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("cannot start {command:?}: {error}; check its `command` and `cwd`")]
    Spawn { command: String, error: std::io::Error },
    #[error("header {0:?} cannot be sent: its name or value has characters that HTTP does not allow")]
    Header(String),
    #[error("no HTTP client can be made: {0}")]
    Client(String),
    #[error("it did not answer as an MCP server: {0}")]
    Handshake(String),
    #[error("it did not list its tools: {0}")]
    List(String),
    #[error("it was not ready within {0:?}")]
    TooSlow(Duration),
    #[error("it is closed")]
    Closed,
}

/// A tool as a server lists it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) schema: Value,
}

/// What a server lists, as of its last word on it.
#[derive(Default)]
pub(super) struct Listing {
    state: Mutex<ListingState>,
    /// One listing at a time, so that the one that ends last is the one that began last.
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ListingState {
    tools: Arc<Vec<Listed>>,
    is_known: bool,
    fault: Option<String>,
}

impl Listing {
    pub(super) fn tools(&self) -> Arc<Vec<Listed>> {
        Arc::clone(&self.lock().tools)
    }

    /// True once the server has listed its tools.
    pub(super) fn is_known(&self) -> bool {
        self.lock().is_known
    }

    pub(super) fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    pub(super) fn set_fault(&self, fault: String) {
        self.lock().fault = Some(fault);
    }

    async fn refresh(&self, peer: &Peer<RoleClient>) -> Result<(), OpenError> {
        let _one = self.refreshing.lock().await;
        let tools = list(peer).await?;
        *self.lock() = ListingState { tools: Arc::new(tools), is_known: true, fault: None };
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ListingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists every page.
async fn list(peer: &Peer<RoleClient>) -> Result<Vec<Listed>, OpenError> {
    let mut tools = Vec::new();
    if peer.peer_info().is_none_or(|info| info.capabilities.tools.is_none()) {
        return Ok(tools);
    }
    let mut cursor = None;
    loop {
        let page = peer
            .list_tools(Some(PaginatedRequestParams::default().with_cursor(cursor.clone())))
            .await
            .map_err(|error| OpenError::List(chain(&error)))?;
        tools.extend(page.tools.into_iter().map(|tool| Listed {
            name: tool.name.into_owned(),
            description: tool.description.unwrap_or_default().into_owned(),
            schema: Value::Object((*tool.input_schema).clone()),
        }));
        if tools.len() > MOST_TOOLS {
            return Err(OpenError::List(format!("it lists more than {MOST_TOOLS}")));
        }
        match page.next_cursor {
            Some(next) if cursor.as_ref() != Some(&next) => cursor = Some(next),
            _ => return Ok(tools),
        }
    }
}

/// Our side of the protocol: we offer a server nothing but an ear for changes of its list.
struct Client {
    listing: Arc<Listing>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(Default::default(), Implementation::new("segue", env!("CARGO_PKG_VERSION")))
    }

    async fn on_tool_list_changed(&self, context: NotificationContext<RoleClient>) {
        if let Err(error) = self.listing.refresh(&context.peer).await
            && !context.peer.is_transport_closed()
        {
            self.listing.set_fault(format!("its list of tools changed, but {error}; the old list is kept"));
        }
    }
}

/// An open connection.
pub(super) struct Connection {
    service: RunningService<RoleClient, Client>,
    process: Option<ServerProcess>,
}

impl Connection {
    /// Starts or reaches the server and has its tools listed, within its start time-out.
    pub(super) async fn open(config: &ServerConfig, listing: &Arc<Listing>) -> Result<Self, String> {
        let client = Client { listing: Arc::clone(listing) };
        // Kept here until it is ready: it must not be reaped before its end has been told.
        let mut process = None;
        let ready = async {
            let service = Self::begin(config, client, &mut process).await?;
            listing.refresh(service.peer()).await?;
            Ok(service)
        };
        let error = match timeout(config.start_timeout, ready).await {
            Ok(Ok(service)) => return Ok(Self { service, process }),
            Ok(Err(error)) => error,
            Err(_) => OpenError::TooSlow(config.start_timeout),
        };
        let mut message = error.to_string();
        if let Some(process) = process {
            message.push_str(&process.witness().account().await);
        }
        Err(message)
    }

    async fn begin(
        config: &ServerConfig,
        client: Client,
        kept: &mut Option<ServerProcess>,
    ) -> Result<RunningService<RoleClient, Client>, OpenError> {
        match &config.transport {
            Transport::Stdio { command, args, env, cwd } => {
                let mut child = Command::new(command);
                child.args(args);
                for name in &config.hidden_env {
                    child.env_remove(name);
                }
                child.envs(env);
                if let Some(cwd) = cwd {
                    child.current_dir(cwd);
                }
                let (process, stdout, stdin) = ServerProcess::spawn(child)
                    .map_err(|error| OpenError::Spawn { command: command.clone(), error })?;
                *kept = Some(process);
                let transport =
                    AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(LARGEST_MESSAGE);
                client.serve(transport).await.map_err(|e| OpenError::Handshake(chain(&e)))
            }
            Transport::Http { url, headers } => {
                let transport = http_transport(url, headers)?;
                client
                    .serve(transport)
                    .await
                    .map_err(|e| OpenError::Handshake(without_secrets(&chain(&e), url)))
            }
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.service.peer().is_transport_closed()
    }

    pub(super) fn peer(&self) -> Peer<RoleClient> {
        self.service.peer().clone()
    }

    /// What can be told of the server's process, if it is ours.
    pub(super) fn witness(&self) -> Option<Witness> {
        self.process.as_ref().map(ServerProcess::witness)
    }

    /// Closes the server's input, then ends its process.
    pub(super) async fn close(mut self) {
        // What it returns says only how the exchange of messages ended.
        self.service.close_with_timeout(CLOSING).await.ok();
        if let Some(process) = self.process {
            process.end().await;
        }
    }
}

fn http_transport(
    url: &str,
    headers: &std::collections::BTreeMap<String, String>,
) -> Result<StreamableHttpClientTransport<reqwest::Client>, OpenError> {
    let mut sent = HashMap::new();
    for (name, value) in headers {
        let bad = || OpenError::Header(name.clone());
        let key = HeaderName::try_from(name).map_err(|_| bad())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        sent.insert(key, value);
    }
    // Whoever came first has installed one; any will do.
    rustls::crypto::ring::default_provider().install_default().ok();
    // A redirect would carry the headers, and the keys in them, to another place.
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| OpenError::Client(chain(&error)))?;
    // Left to itself it tries for ever, and the call hangs until its time is out.
    let mut retry = ExponentialBackoff::default();
    retry.max_times = Some(RETRIES);
    retry.base_duration = RETRY_FIRST;
    retry.max_delay = Some(RETRY_LONGEST);
    let mut config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(sent)
        .max_sse_event_size(LARGEST_MESSAGE)
        .max_json_response_size(LARGEST_MESSAGE);
    config.retry_config = Arc::new(retry);
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

/// True if an error of sending proves that the server cannot have acted on the request.
pub(super) fn was_not_sent(error: &ServiceError) -> bool {
    let ServiceError::TransportSend(error) = error else { return false };
    match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::Client(error)) => error.is_connect(),
        Some(StreamableHttpError::AuthRequired(_) | StreamableHttpError::InsufficientScope(_)) => true,
        Some(_) => false,
        // To a pipe: it lacks the end of its line, and a server reads whole lines.
        None => true,
    }
}

/// An error with all its causes on one line.
pub(super) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// Takes an address out of a text: it may have a key in it.
pub(super) fn without_secrets(text: &str, url: &str) -> String {
    let mut text = text.replace(url, "its address");
    if let Ok(normal) = reqwest::Url::parse(url) {
        text = text.replace(normal.as_str(), "its address");
    }
    text
}
