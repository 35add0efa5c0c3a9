//! What it costs to make records durable.

use std::path::Path;
use std::time::{Duration, Instant};

use segue_log::{Block, Event, Header, PromptId, PromptQueued, SessionId, Time};
use segue_store::{JsonlStore, Store};

use crate::probe::{RawFile, median};

/// A record of ordinary size.
pub fn record() -> Event {
    PromptQueued {
        prompt_id: PromptId::mint(),
        content: vec![Block::text("Please look at the failing test and say what is wrong. ".repeat(4))],
        source: "bench".into(),
        target: Default::default(),
    }
    .into()
}

/// A header for a new session.
pub fn header() -> Header {
    Header { segue: 1, id: SessionId::mint(), created: Time::now(), cwd: "/bench".into(), parent: None }
}

const LINE: [u8; 400] = [b'x'; 400];

/// One durable checkpoint against one raw append and fdatasync, taking turns.
pub async fn checkpoint(data: &Path) -> anyhow::Result<()> {
    let store = JsonlStore::open(&data.join("checkpoint"));
    let opened = store.create(header(), "bench").await?;
    let mut raw = RawFile::create(&data.join("raw"))?;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    let record = record();
    for _ in 0..400 {
        floor.push(raw.checkpoint(&LINE)?);
        let begun = Instant::now();
        opened.writer.append(record.clone()).await?;
        opened.writer.sync().await?;
        ours.push(begun.elapsed());
    }
    let (ours, floor) = (median(ours), median(floor));
    println!(
        "checkpoint: {ours:?} against {floor:?} raw: {:.2} times the floor (budget 1.3)",
        ours.as_secs_f64() / floor.as_secs_f64()
    );
    opened.writer.close().await?;
    Ok(())
}

const SESSIONS: usize = 64;
const ROUND: Duration = Duration::from_millis(1_500);
const ROUNDS: usize = 3;

/// 64 sessions syncing at once against 64 raw files, taking turns.
pub async fn sessions64(data: &Path) -> anyhow::Result<()> {
    let store = JsonlStore::open(&data.join("sessions64"));
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(store.create(header(), "bench").await?);
    }
    let (mut ours, mut raw) = (0u64, 0u64);
    for round in 0..ROUNDS {
        raw += raw_round(data, round)?;
        let end = Instant::now() + ROUND;
        let tasks: Vec<_> = sessions
            .iter()
            .map(|session| {
                let writer = session.writer.clone();
                let record = record();
                tokio::spawn(async move {
                    let mut done = 0u64;
                    while Instant::now() < end {
                        writer.append(record.clone()).await?;
                        writer.sync().await?;
                        done += 1;
                    }
                    anyhow::Ok(done)
                })
            })
            .collect();
        for task in tasks {
            ours += task.await??;
        }
    }
    let seconds = ROUND.as_secs_f64() * ROUNDS as f64;
    println!(
        "sessions64: {:.0} checkpoints a second against {:.0} raw: {:.2} of them (budget 0.8)",
        ours as f64 / seconds,
        raw as f64 / seconds,
        ours as f64 / raw as f64
    );
    Ok(())
}

fn raw_round(data: &Path, round: usize) -> anyhow::Result<u64> {
    let files: Vec<RawFile> = (0..SESSIONS)
        .map(|n| RawFile::create(&data.join(format!("raw-{round}-{n}"))))
        .collect::<Result<_, _>>()?;
    let end = Instant::now() + ROUND;
    let threads: Vec<_> = files
        .into_iter()
        .map(|mut file| {
            std::thread::spawn(move || {
                let mut done = 0u64;
                while Instant::now() < end {
                    file.checkpoint(&LINE)?;
                    done += 1;
                }
                std::io::Result::Ok(done)
            })
        })
        .collect();
    let mut sum = 0;
    for thread in threads {
        sum += thread.join().map_err(|_| anyhow::anyhow!("a probe thread panicked"))??;
    }
    Ok(sum)
}
