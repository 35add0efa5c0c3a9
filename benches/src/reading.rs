//! What it costs to take a session up again, and to list sessions.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use segue_log::{Block, CallId, EndReason, Event, Outcome, ToolResult, TurnEnd, TurnStart, Usage, line};
use segue_store::{JsonlStore, Query, Store};
use tokio::runtime::Runtime;

use crate::probe::median;
use crate::syncing::{header, record};

/// The argument of the process that resumes.
pub const CHILD: &str = "resume-child";

/// Opens sessions of several sizes, each in a process of its own so that its peak memory is its own.
pub fn resume(runtime: &Runtime, data: &Path) -> anyhow::Result<()> {
    let data = data.join("resume");
    for (count, budget) in [(10_000, "100 ms, 40 MB"), (100_000, "600 ms"), (1_000_000, "linear")] {
        let id = long_session(runtime, &data, count)?;
        let output = Command::new(std::env::current_exe()?).args([CHILD]).arg(&data).arg(&id).output()?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report = String::from_utf8(output.stdout)?;
        println!("resume {count} records: {} (budget {budget})", report.trim());
    }
    Ok(())
}

/// Opens the session and says how long that took and how much memory.
pub fn resume_child(data: &Path, id: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let store = JsonlStore::open(data);
    let begun = Instant::now();
    let opened = runtime.block_on(store.open(id.parse()?, "bench"))?;
    let took = begun.elapsed();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or(" unknown").trim();
    println!("{} ms, peak {peak}, {} records", took.as_millis(), opened.records.len());
    Ok(())
}

/// What a long session looks like: a prompt, a few steps with results, a turn's end.
fn long_session(runtime: &Runtime, data: &Path, count: u64) -> anyhow::Result<String> {
    let header = header();
    let store = JsonlStore::open(data);
    let opened = runtime.block_on(store.create(header.clone(), "bench"))?;
    runtime.block_on(opened.writer.close())?;
    let log = store.folder(header.id).join("log.jsonl");
    let mut file = std::io::BufWriter::new(fs::File::options().append(true).open(&log)?);
    let mut turn = 0;
    for seq in 1..=count {
        let event: Event = match seq % 10 {
            1 => record(),
            2 => {
                turn += 1;
                TurnStart { turn, prompt_ids: Vec::new(), policy: Default::default(), finish: None }.into()
            }
            0 => TurnEnd {
                turn,
                reason: EndReason::Completed,
                code: None,
                message: None,
                title: "A long session".into(),
                turns: turn,
                usage: Usage::default(),
            }
            .into(),
            _ => ToolResult {
                turn,
                step: seq % 10,
                call_id: CallId::mint(),
                outcome: Outcome::Ok,
                code: None,
                content: vec![Block::text(
                    "test result: ok. 12 passed; 0 failed; finished in 0.01s".repeat(2),
                )],
                recovered: false,
                replayed: false,
            }
            .into(),
        };
        file.write_all(line::encode(seq, header.created, &event, seq - 1).line.as_bytes())?;
    }
    file.into_inner().context("writing the long log")?.sync_all()?;
    Ok(header.id.to_string())
}

/// Lists the newest 50 of 1,000 and of 100,000 sessions.
pub fn list(runtime: &Runtime, data: &Path) -> anyhow::Result<()> {
    let data = data.join("list");
    let sessions = data.join("sessions");
    fs::create_dir_all(&sessions)?;
    let mut made = 0;
    for (count, budget) in [(1_000, 50), (100_000, 500)] {
        while made < count {
            let header = header();
            let folder = sessions.join(header.id.to_string());
            fs::create_dir(&folder)?;
            let mut log = line::encode_header(&header);
            for seq in 1..=3 {
                log.push_str(&line::encode(seq, segue_log::Time::now(), &record(), seq - 1).line);
            }
            fs::write(folder.join("log.jsonl"), log)?;
            made += 1;
        }
        let query = Query { limit: 50, ..Query::default() };
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..5 {
            let store = JsonlStore::open(&data);
            let begun = Instant::now();
            let found = runtime.block_on(store.list(&query))?;
            times.push(begun.elapsed());
            anyhow::ensure!(found.rows.len() == 50 && found.next.is_some(), "a full page");
        }
        let first = times.first().copied().unwrap_or_default();
        println!(
            "list the newest 50 of {count} sessions: {:?}, at first {first:?} (budget {budget} ms)",
            median(times)
        );
    }
    Ok(())
}
