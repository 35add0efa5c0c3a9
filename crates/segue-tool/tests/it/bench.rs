//! A working folder, the built-in tools, and calls made as an agent makes them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use segue_log::{BlobHash, CallId, Expect, Outcome, SessionId, text_of};
use segue_tool::{
    BuiltinOptions, Failure, Known, OpenCall, Registry, Scope, ToolContext, ToolOutput, builtin_tools,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::host::TestHost;

pub struct Bench {
    _folder: TempDir,
    pub root: PathBuf,
    pub cwd: PathBuf,
    pub host: Arc<TestHost>,
    pub session: SessionId,
    pub tools: Registry,
}

/// What a call came to: its code (empty for ok) and its text.
pub type Told = (String, String);

impl Bench {
    pub fn new() -> Self {
        Self::with(BuiltinOptions::default())
    }

    pub fn with(options: BuiltinOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let cwd = root.join("work");
        std::fs::create_dir(&cwd).unwrap();
        Self {
            _folder: folder,
            root,
            cwd,
            host: Arc::default(),
            session: SessionId::mint(),
            tools: Registry::new(builtin_tools(options)),
        }
    }

    pub fn scope(&self) -> Scope {
        Scope { cwd: self.cwd.clone(), extra: Vec::new(), calls: self.root.join("calls") }
    }

    pub fn context(&self) -> ToolContext {
        ToolContext {
            session: self.session,
            call_id: CallId::mint(),
            scope: self.scope(),
            permitted: false,
            expect: None,
            cancel: CancellationToken::new(),
            host: self.host.clone(),
        }
    }

    pub async fn expect(
        &self,
        tool: &str,
        input: &Value,
        context: &ToolContext,
    ) -> Result<Option<Expect>, Failure> {
        self.tools.check(tool, input)?.expect(input, context).await
    }

    /// Checks, expects and runs a call.
    pub async fn run(&self, tool: &str, input: Value, mut context: ToolContext) -> ToolOutput {
        match self.expect(tool, &input, &context).await {
            Ok(expect) => context.expect = expect,
            Err(failure) => return failure.into(),
        }
        self.tools.get(tool).unwrap().run(input, &context).await
    }

    pub async fn call(&self, tool: &str, input: Value) -> Told {
        told(&self.run(tool, input, self.context()).await)
    }

    /// A call that a crash left without its result.
    pub async fn evidence(
        &self,
        tool: &str,
        context: &ToolContext,
        expect: Option<Expect>,
        end: bool,
    ) -> Known {
        let call = OpenCall {
            session: context.session,
            call_id: context.call_id.clone(),
            tool: tool.to_owned(),
            input: Value::Null,
            expect,
            host: String::new(),
            boot: String::new(),
        };
        self.tools.get(tool).unwrap().evidence(&call, &context.scope, end).await
    }

    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.cwd.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.cwd.join(name)).unwrap()
    }

    pub fn blob(&self, hash: &BlobHash) -> Vec<u8> {
        self.host.blobs.lock().unwrap()[hash].clone()
    }

    /// The one blob that the host was given.
    pub fn only_blob(&self) -> (BlobHash, Vec<u8>) {
        let blobs = self.host.blobs.lock().unwrap();
        assert_eq!(blobs.len(), 1);
        blobs.iter().map(|(hash, bytes)| (*hash, bytes.clone())).next().unwrap()
    }
}

pub fn told(output: &ToolOutput) -> Told {
    assert_eq!(output.outcome == Outcome::Error, output.code.is_some());
    (output.code.clone().unwrap_or_default(), text_of(&output.content))
}

pub fn ok(text: impl Into<String>) -> Told {
    (String::new(), text.into())
}

pub fn error(code: &str, text: impl Into<String>) -> Told {
    (code.to_owned(), text.into())
}

/// A process of its own that makes a call; `before` is a shell command that sets it up.
pub fn helper_call(context: &ToolContext, tool: &str, input: &Value, before: &str) -> Command {
    let mut command = Command::new("bash");
    command
        .args([
            "-c",
            &format!("{before}\nexec \"$@\""),
            "helper",
            env!("CARGO_BIN_EXE_segue-tool-test-helper"),
            "call",
        ])
        .args([&context.scope.calls, &context.scope.cwd])
        .args([context.session.to_string(), context.call_id.to_string(), tool.to_owned(), input.to_string()])
        .stdout(Stdio::null());
    command
}

/// Waits until `check` gives something; a generous deadline is the only way to fail.
pub async fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The process id that a command wrote into a file, once it is whole.
pub async fn pid_in(path: &Path) -> u32 {
    until("a process id", || std::fs::read_to_string(path).ok()?.strip_suffix('\n')?.parse().ok()).await
}

/// True while a process runs; one that has ended and waits to be reaped does not.
pub fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}
