//! An MCP server for the tests: this binary started again, with [`MODE`] in its environment.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ListToolsResult,
    PaginatedRequestParams, Resource, ResourceContents, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler, ServiceExt as _};
use segue_tool::mcp::IDEMPOTENCY_KEY;
use serde_json::{Value, json};

/// The variable that turns the test binary into a server and says how it behaves.
pub const MODE: &str = "SEGUE_TEST_MCP_SERVER";

/// The tools it lists at first, three a page.
pub const TOOLS: [&str; 13] = [
    "echo",
    "media",
    "fail",
    "refuse",
    "nothing",
    "structured",
    "big",
    "die",
    "die_reading",
    "hang",
    "grow",
    "pids",
    "variable",
];

/// The command that starts it.
pub fn command() -> (String, Vec<String>) {
    let program = std::env::current_exe().unwrap().into_os_string().into_string().unwrap();
    let args = ["--exact", "mcp::server::serve", "--ignored", "--nocapture", "--test-threads=2"];
    (program, args.map(str::to_owned).to_vec())
}

/// What `big` returns; every place where it could be cut lies inside a character.
pub fn big() -> String {
    format!("x{}", "é".repeat(100_000))
}

/// A server over HTTP that is killed when dropped.
pub struct HttpServer(Child);

impl HttpServer {
    pub fn wait(&mut self) {
        self.0.wait().unwrap();
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub fn spawn_http(address: Option<SocketAddr>) -> (HttpServer, SocketAddr) {
    let address = address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let (program, args) = command();
    let mut child = Command::new(program)
        .args(args)
        .env(MODE, format!("http={address}"))
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said =
        lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
    let server = HttpServer(child);
    (server, said.expect("the server says where it listens").parse().unwrap())
}

/// What the test harness prints around this is garbage to a client, which has to bear it.
#[test]
#[ignore = "the server that other tests start"]
fn serve() {
    let Ok(mode) = std::env::var(MODE) else { return };
    let (mode, argument) = mode.split_once('=').unwrap_or((&mode, ""));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match mode {
        "leave" => leave("no licence"),
        "silent" => {
            eprintln!("I am waiting");
            std::thread::sleep(Duration::from_secs(600));
        }
        "once" if std::fs::exists(argument).unwrap() => leave("not twice"),
        "once" => std::fs::write(argument, "").unwrap(),
        "slow" => std::thread::sleep(Duration::from_millis(300)),
        "garbage" => print!("{}\n\u{1b}[31m{{\"jsonrpc\":\n[]\n42\n{{}}\n", "long line ".repeat(10_000)),
        "http" => runtime.block_on(serve_http(argument)),
        "" | "farewell" => {}
        other => panic!("no mode {other:?}"),
    }
    std::io::stdout().flush().unwrap();
    runtime.block_on(async {
        let running = Server::default().serve(rmcp::transport::stdio()).await.unwrap();
        running.waiting().await.unwrap();
    });
    if mode == "farewell" {
        std::fs::write(argument, "bye").unwrap();
    }
    std::process::exit(0);
}

fn leave(words: &str) -> ! {
    eprintln!("{words}");
    std::process::exit(3);
}

async fn serve_http(address: &str) {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    println!("listening on {}", listener.local_addr().unwrap());
    let server = Server::default();
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await.unwrap();
}

#[derive(Clone, Default)]
struct Server {
    has_grown: Arc<AtomicBool>,
}

impl Server {
    fn tools(&self) -> Vec<&'static str> {
        let mut tools = TOOLS.to_vec();
        if self.has_grown.load(Ordering::SeqCst) {
            tools.push("grown");
        }
        tools
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let start: usize = request.and_then(|page| page.cursor).map_or(0, |cursor| cursor.parse().unwrap());
        let tools = self.tools();
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let page =
            tools.iter().skip(start).take(3).map(|name| {
                Tool::new(*name, format!("The {name} tool"), schema.as_object().unwrap().clone())
            });
        let mut result = ListToolsResult::with_all_items(page.collect());
        result.next_cursor = (start + 3 < tools.len()).then(|| (start + 3).to_string());
        Ok(result)
    }

    #[expect(clippy::zombie_processes, reason = "what outlives its parent is what is tested")]
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let text = |text: &str| CallToolResult::success(vec![ContentBlock::text(text)]);
        let result = match request.name.as_ref() {
            "echo" => {
                let mut seen = json!({"arguments": arguments, "key": context.meta.get(IDEMPOTENCY_KEY)});
                let header = context
                    .extensions
                    .get::<axum::http::request::Parts>()
                    .map(|parts| &parts.headers["x-key"]);
                if let Some(header) = header {
                    seen["header"] = header.to_str().unwrap().into();
                }
                text(&seen.to_string())
            }
            "media" => CallToolResult::success(vec![
                ContentBlock::text("text"),
                ContentBlock::image("iVBORw==", "image/png"),
                ContentBlock::audio("UklGRg==", "audio/wav"),
                ContentBlock::embedded_text("file:///a.txt", "embedded"),
                ContentBlock::resource(ResourceContents::blob("AAE=", "file:///b")),
                ContentBlock::resource_link(Resource::new("file:///c", "c").with_mime_type("text/html")),
            ]),
            "fail" => CallToolResult::error(vec![ContentBlock::text("it did not work")]),
            "refuse" => return Err(ErrorData::invalid_params("no such thing", None)),
            "nothing" => CallToolResult::success(vec![]),
            "structured" => {
                let mut result = CallToolResult::success(vec![]);
                result.structured_content = Some(json!({"n": 1}));
                result
            }
            "big" => text(&big()),
            "die" => {
                eprintln!("last words");
                std::process::exit(7);
            }
            "die_reading" => {
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                    .unwrap();
                std::future::pending().await
            }
            "hang" => {
                std::fs::write(arguments["started"].as_str().unwrap(), "").unwrap();
                context.ct.cancelled().await;
                std::fs::write(arguments["cancelled"].as_str().unwrap(), "").unwrap();
                text("too late")
            }
            "grow" => {
                self.has_grown.store(true, Ordering::SeqCst);
                context.peer.notify_tool_list_changed().await.unwrap();
                text("grown")
            }
            "grown" => text("I am new"),
            "variable" => {
                let is_set = std::env::var_os(arguments["name"].as_str().unwrap()).is_some();
                text(if is_set { "set" } else { "unset" })
            }
            "pids" => {
                // It keeps none of our pipes, so that only its group can end it.
                let grandchild = Command::new("sleep")
                    .arg("600")
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap();
                text(&json!({"server": std::process::id(), "grandchild": grandchild.id()}).to_string())
            }
            other => return Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
        };
        Ok(result.into())
    }
}
