//! Listing reads little, whatever lies in the folder.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use segue_log::EndReason;
use segue_store::{JsonlStore, Query, RealFiles, Store};
use segue_testkit::contract::{header, prompt, session, turn_end, turn_start};
use segue_testkit::disk::{Hook, Op, OpKind, Verdict, watched};

/// Counts how often logs are opened and read.
#[derive(Default)]
struct Counts {
    opened: AtomicU64,
    read: AtomicU64,
}

impl Hook for Counts {
    fn before(&self, op: &Op) -> Verdict {
        if op.path.ends_with("log.jsonl") {
            match op.kind {
                OpKind::Open => self.opened.fetch_add(1, Ordering::Relaxed),
                OpKind::Read => self.read.fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
        }
        Verdict::Go
    }
}

#[tokio::test]
async fn a_page_opens_few_logs_and_reads_only_their_ends() {
    let dir = tempfile::tempdir().unwrap();
    let store = JsonlStore::open(dir.path());
    for n in 0..60 {
        session(&store, &header(), &[prompt(&n.to_string())]).await;
        if n == 40 {
            // Files are told apart by time only beyond the grain of their clock.
            tokio::time::sleep(std::time::Duration::from_millis(60)).await;
        }
    }
    let big = header();
    let filler: Vec<_> = (0..2_000).map(|n| prompt(&format!("{n} {}", "x".repeat(900)))).collect();
    let all = [&filler[..], &[turn_start(1), turn_end(1, EndReason::Completed, "Big")]].concat();
    session(&store, &big, &all).await;
    assert!(fs::metadata(store.folder(big.id).join("log.jsonl")).unwrap().len() > 2 << 20);

    let counts = Arc::new(Counts::default());
    let counted = JsonlStore::with_files(dir.path(), watched(Arc::new(RealFiles), counts.clone()));
    let rows = counted.list(&Query { limit: 5, ..Query::default() }).await.unwrap().rows;
    let titles: Vec<&str> = rows.iter().map(|row| row.title.as_str()).collect();
    assert_eq!(titles, ["Big", "59", "58", "57", "56"]);
    let (opened, read) = (counts.opened.load(Ordering::Relaxed), counts.read.load(Ordering::Relaxed));
    assert!(opened <= 25, "{opened} logs opened for a page of five");
    assert!(read <= 4 * opened, "{read} reads of {opened} logs");
}

#[tokio::test]
async fn a_long_turn_still_under_way_is_interrupted_and_has_its_first_prompt_as_title() {
    let dir = tempfile::tempdir().unwrap();
    let store = JsonlStore::open(dir.path());
    let header = header();
    let update =
        |n: u64| segue_log::AgentUpdate { update: serde_json::json!({"n": n, "x": "y".repeat(500)}) };
    let mut events = vec![prompt(&format!("Please {}", "very ".repeat(10_000))), turn_start(1)];
    events.extend((0..300).map(|n| update(n).into()));
    session(&store, &header, &events).await;
    let rows = store.list(&Query::default()).await.unwrap().rows;
    let found: Vec<_> = rows.iter().map(|row| (row.state, row.turns, row.title.len())).collect();
    assert_eq!(found, vec![(segue_store::State::Interrupted, 1, 80)]);
    assert!(rows[0].title.starts_with("Please very very"));
}
