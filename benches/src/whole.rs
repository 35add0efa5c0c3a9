//! What whole sessions and the whole program cost: memory of idle sessions, time from start to answer.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use segue_log::{Block, PromptFor};
use segue_model::{Model, Parameters, Practice};
use segue_native::{Models, NativeConfig, NativeDrivers, RetryPolicy};
use segue_runtime::{Machine, NewPrompt, NewSession, Options, Session, Sessions};
use segue_store::JsonlStore;
use segue_tool::{BuiltinOptions, builtin_tools};
use tokio::runtime::Runtime;

use crate::probe::median;

/// How many sessions are held open.
const IDLE: usize = 1_000;
/// How often the program is started.
const STARTS: usize = 30;

struct OnlyPractice;

impl Models for OnlyPractice {
    fn model(&self, _name: Option<&str>) -> Result<Arc<dyn Model>, String> {
        Ok(Arc::new(Practice::new()))
    }
}

/// Memory of sessions that had a turn each and are idle.
pub fn idle(runtime: &Runtime, data: &Path) -> anyhow::Result<()> {
    let data = data.join("idle");
    let config = NativeConfig {
        models: Arc::new(OnlyPractice),
        tools: builtin_tools(BuiltinOptions { sandbox: None, hidden_env: Vec::new(), command_timeout: None }),
        more_tools: None,
        parameters: Parameters::default(),
        max_steps: 10,
        compact_at: 0.8,
        retry: RetryPolicy::default(),
        extra_folders: Vec::new(),
        calls: data.join("calls"),
    };
    let machine = Machine::default();
    let drivers = NativeDrivers::new(config, machine.clone());
    let options = Options { surface: "bench".into(), machine, ..Options::default() };
    let sessions = Sessions::new(Arc::new(JsonlStore::open(&data)), Arc::new(drivers), options);
    runtime.block_on(async {
        // The first ones pay for what all share.
        let mut open = Vec::new();
        for _ in 0..50 {
            open.push(with_a_turn(&sessions, &data).await?);
        }
        let before = resident()?;
        for _ in 0..IDLE {
            open.push(with_a_turn(&sessions, &data).await?);
        }
        let each = resident()?.saturating_sub(before) as f64 / IDLE as f64;
        println!("an idle open session after one turn: {each:.1} KB (budget 50 KB)");
        for session in open {
            session.close().await?;
        }
        anyhow::Ok(())
    })
}

async fn with_a_turn(sessions: &Sessions, cwd: &Path) -> anyhow::Result<Session> {
    let new = NewSession { id: None, cwd: cwd.to_owned(), agent: "segue".into(), model: None };
    let session = sessions.create(new).await?;
    let prompt = NewPrompt {
        id: None,
        content: vec![Block::text("remember the number 42")],
        source: "bench".into(),
        target: PromptFor::Turn,
    };
    let accepted = session.prompt(prompt).await?;
    session.wait(&accepted.prompt_id).await.context("the prompt was taken back")?;
    session.wait_idle().await;
    Ok(session)
}

/// Resident memory of this process, in KB.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

/// The program from start to end: `--version`, and a whole turn of the practice model.
pub fn start(data: &Path) -> anyhow::Result<()> {
    let program = std::env::current_exe()?.with_file_name("segue");
    ensure!(program.exists(), "{} is missing: cargo build --release -p segue", program.display());
    for (what, arguments) in [
        ("segue --version (budget 15 ms)", &["--version"][..]),
        ("a new session and a whole turn with -p", &["-p", "remember the number 42"][..]),
    ] {
        let mut times = Vec::new();
        for _ in 0..STARTS {
            let begun = Instant::now();
            let status = Command::new(&program)
                .args(arguments)
                .env("SEGUE_HOME", data.join("start"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            ensure!(status.success(), "{what}: {status}");
            times.push(begun.elapsed());
        }
        println!("{what}: {:.1} ms", median(times).as_secs_f64() * 1000.0);
    }
    Ok(())
}
