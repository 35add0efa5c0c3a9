//! A medium that fails: at each operation, once or for good, in the middle of a write, forgetful after a failed sync.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use segue_log::{Event, Header, SessionId, SessionRepaired};
use segue_store::{Access, Cut, JsonlStore, Opened, Store, StoreError};
use segue_testkit::contract::{events, header, prompt};
use segue_testkit::disk::{Fault, Hook, Op, OpKind, SimDisk, Verdict};

/// Fails what it is told to.
#[derive(Default)]
struct Fails {
    /// The verdict on operations of a kind on a file of a name.
    rule: Mutex<Option<(OpKind, &'static str, Verdict)>>,
    hits: AtomicU64,
}

impl Fails {
    fn set(&self, rule: Option<(OpKind, &'static str, Verdict)>) {
        *self.rule.lock().unwrap() = rule;
    }
}

impl Hook for Fails {
    fn before(&self, op: &Op) -> Verdict {
        match *self.rule.lock().unwrap() {
            Some((kind, name, verdict)) if op.kind == kind && op.path.ends_with(name) => {
                self.hits.fetch_add(1, Ordering::SeqCst);
                verdict
            }
            _ => Verdict::Go,
        }
    }
}

const NO_SPACE: Verdict = Verdict::Fail(Fault::NoSpace);
const BROKEN: Verdict = Verdict::Fail(Fault::Io);

struct Bench {
    disk: SimDisk,
    fails: Arc<Fails>,
    store: JsonlStore,
    header: Header,
}

impl Bench {
    async fn new() -> (Self, Opened) {
        let disk = SimDisk::new(7, 512);
        let fails = Arc::new(Fails::default());
        let store = JsonlStore::with_files(Path::new("/data"), disk.watched(fails.clone()));
        let header = header();
        let opened = store.create(header.clone(), "test").await.unwrap();
        (Self { disk, fails, store, header }, opened)
    }

    fn log(&self) -> Vec<u8> {
        let path = self.store.folder(self.header.id).join("log.jsonl");
        let file = self.disk.files().open(&path, Access::Read).unwrap();
        let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    }

    async fn after_power_failure(&self) -> Vec<Event> {
        self.disk.power_off(0.0);
        let opened = self.store.open(self.header.id, "test").await.unwrap();
        assert_eq!(opened.cuts, vec![]);
        events(&opened.records)
    }
}

fn is_io<T>(result: Result<T, StoreError>, code: i32) -> bool {
    matches!(result, Err(StoreError::Io { source, .. }) if source.raw_os_error() == Some(code))
}

#[tokio::test]
async fn a_failed_write_leaves_whole_records_and_goes_out_when_there_is_space_again() {
    // A disk that filled in the middle of a record had the next record glued to the half line,
    // or recording stayed off for good.
    let (bench, opened) = Bench::new().await;
    let writer = &opened.writer;
    let said: Vec<Event> = ["one", "two", "three", "four"].map(prompt).to_vec();
    writer.append(said[0].clone()).await.unwrap();
    let before = bench.log();
    bench.fails.set(Some((OpKind::Write, "log.jsonl", Verdict::Torn(17, Fault::NoSpace))));
    for event in &said[1..3] {
        writer.append(event.clone()).await.unwrap();
        assert_eq!(bench.log(), before, "cut back to the last whole record");
    }
    assert!(is_io(writer.sync().await, 28));
    assert_eq!(writer.durable(), 0);
    bench.fails.set(None);
    assert_eq!(writer.append(said[3].clone()).await.unwrap().seq, 4);
    assert_eq!(bench.log().iter().filter(|byte| **byte == b'\n').count(), 5, "written without a sync");
    assert_eq!(writer.sync().await.unwrap(), 4);
    assert_eq!(bench.after_power_failure().await, said);
}

#[tokio::test]
async fn a_half_record_that_cannot_be_cut_back_is_cut_before_the_next_write() {
    let (bench, opened) = Bench::new().await;
    let (one, two) = (prompt(&"long ".repeat(50)), prompt("two"));
    bench.fails.set(Some((OpKind::Write, "log.jsonl", Verdict::Torn(100, Fault::NoSpace))));
    let hits = || bench.fails.hits.load(Ordering::SeqCst);
    opened.writer.append(one.clone()).await.unwrap();
    assert_eq!(hits(), 1);
    // Withdrawn, and something shorter in its place: the rest of the long line must not follow it.
    opened.writer.withdraw(1).await.unwrap();
    bench.fails.set(None);
    opened.writer.append(two.clone()).await.unwrap();
    assert_eq!(opened.writer.sync().await.unwrap(), 1);
    assert_eq!(bench.after_power_failure().await, vec![two]);
}

#[tokio::test]
async fn after_a_failed_sync_everything_is_written_again_before_it_counts() {
    // The kernel drops dirty pages when their write-back fails, and the next sync succeeds although they are lost.
    let (bench, opened) = Bench::new().await;
    let writer = &opened.writer;
    let said: Vec<Event> = (0..5).map(|n| prompt(&format!("{n} {}", "x".repeat(400)))).collect();
    writer.append(said[0].clone()).await.unwrap();
    writer.sync().await.unwrap();
    bench.fails.set(Some((OpKind::Sync, "log.jsonl", BROKEN)));
    for event in &said[1..4] {
        writer.append(event.clone()).await.unwrap();
        assert!(is_io(writer.sync().await, 5));
        assert_eq!(writer.durable(), 1);
    }
    bench.fails.set(None);
    writer.append(said[4].clone()).await.unwrap();
    assert_eq!(writer.sync().await.unwrap(), 5);
    assert_eq!(bench.after_power_failure().await, said);
}

#[tokio::test]
async fn opening_writes_again_what_a_dead_process_could_not_sync() {
    // Reads of the next process show the records; on the disk they are not, and its sync would say nothing.
    let (bench, opened) = Bench::new().await;
    let said: Vec<Event> = (0..4).map(|n| prompt(&format!("{n} {}", "x".repeat(400)))).collect();
    for (n, event) in said.iter().enumerate() {
        opened.writer.append(event.clone()).await.unwrap();
        if n == 1 {
            opened.writer.sync().await.unwrap();
        }
    }
    bench.fails.set(Some((OpKind::Sync, "log.jsonl", BROKEN)));
    assert!(is_io(opened.writer.sync().await, 5));
    bench.disk.kill();
    assert!(is_io(bench.store.open(bench.header.id, "test").await, 5), "nothing is believed without a sync");
    bench.fails.set(None);
    let again = bench.store.open(bench.header.id, "test").await.unwrap();
    assert_eq!(events(&again.records), said);
    assert_eq!(bench.after_power_failure().await, said);
}

#[tokio::test]
async fn a_refused_record_can_be_left_out_when_the_tail_is_written_again() {
    let (bench, opened) = Bench::new().await;
    let writer = &opened.writer;
    // Lines of one length, so that a mixture of old and new pages would look like a log.
    let said: Vec<Event> = (10..30).map(|n| prompt(&n.to_string())).collect();
    bench.fails.set(Some((OpKind::Sync, "log.jsonl", BROKEN)));
    for event in &said {
        writer.append(event.clone()).await.unwrap();
    }
    assert!(writer.sync().await.is_err());
    let tail = writer.withdraw(3).await.unwrap().unwrap();
    let left: Vec<Event> = said.iter().enumerate().filter(|(n, _)| *n != 2).map(|(_, e)| e.clone()).collect();
    assert_eq!(events(&tail), left);
    assert!(tail.iter().zip(1..).all(|(record, seq)| record.seq == seq));
    bench.fails.set(None);
    assert_eq!(writer.sync().await.unwrap(), 19);
    assert_eq!(bench.after_power_failure().await, left);
}

#[tokio::test]
async fn a_blob_that_cannot_be_kept_holds_its_record_back_and_all_after_it() {
    let (bench, opened) = Bench::new().await;
    let writer = &opened.writer;
    let said = vec![prompt("small"), prompt(&"x".repeat(50_000)), prompt("after")];
    writer.append(said[0].clone()).await.unwrap();
    let before = bench.log();
    bench.fails.set(Some((OpKind::Sync, ".unfinished", NO_SPACE)));
    for event in &said[1..] {
        writer.append(event.clone()).await.unwrap();
    }
    assert_eq!(bench.log(), before);
    assert!(is_io(writer.sync().await, 28));
    assert!(is_io(writer.put_blob(vec![1, 2, 3]).await, 28));
    bench.fails.set(None);
    assert_eq!(writer.sync().await.unwrap(), 3);
    assert_eq!(bench.after_power_failure().await, said);
}

#[tokio::test]
async fn a_session_whose_creation_failed_is_not_there() {
    for (kind, name) in [
        (OpKind::Sync, "log.jsonl"),
        (OpKind::Write, "log.jsonl"),
        (OpKind::Create, "synced"),
        (OpKind::SyncDir, "sessions"),
        (OpKind::Lock, "lock"),
        (OpKind::CreateDir, "blobs"),
    ] {
        let (bench, opened) = Bench::new().await;
        drop(opened);
        bench.fails.set(Some((kind, name, NO_SPACE)));
        let failed = header();
        assert!(is_io(bench.store.create(failed.clone(), "test").await, 28), "{kind:?} {name}");
        let there = bench.store.check().await.unwrap();
        assert_eq!((there.sound, there.findings), (1, vec![]), "{kind:?} {name}");
        bench.fails.set(None);
        bench.store.create(failed, "test").await.unwrap();
    }
}

#[tokio::test]
async fn a_synced_file_that_was_too_high_does_not_count_later_records_as_missing() {
    // A medium that lost what it had confirmed: the log ends at 1, the file says 9. Once that cut is told of and named,
    // the 9 must be gone for good, else each power failure would bring a cut that never was.
    let (bench, opened) = Bench::new().await;
    opened.writer.append(prompt("one")).await.unwrap();
    opened.writer.close().await.unwrap();
    let text = |seq: u64| {
        let digits = format!("{seq:020}");
        format!("{digits} {:08x}\n", crc32c::crc32c(digits.as_bytes()))
    };
    let path = bench.store.folder(bench.header.id).join("synced");
    let file = bench.disk.files().open(&path, Access::Write).unwrap();
    file.write_at(0, text(9).as_bytes()).unwrap();
    file.sync().unwrap();
    let opened = bench.store.open(bench.header.id, "test").await.unwrap();
    let cuts = vec![Cut { cut_at: 1, files: vec!["log.torn-1".into()] }];
    assert_eq!(opened.cuts, cuts);
    let named = SessionRepaired { cut_at: 1, files: cuts[0].files.clone() };
    opened.writer.append(named.into()).await.unwrap();
    opened.writer.sync().await.unwrap();
    assert_eq!(bench.after_power_failure().await.len(), 2);
}

/// Counts syncs of the log, and makes each take a while.
#[derive(Default)]
struct SlowSyncs {
    begun: AtomicU64,
    fail: AtomicBool,
}

impl Hook for SlowSyncs {
    fn before(&self, op: &Op) -> Verdict {
        if op.kind == OpKind::Sync && op.path.ends_with("log.jsonl") {
            self.begun.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(50));
            if self.fail.load(Ordering::SeqCst) {
                return BROKEN;
            }
        }
        Verdict::Go
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_callers_share_a_sync_and_its_failure() {
    let disk = SimDisk::new(3, 4096);
    let hook = Arc::new(SlowSyncs::default());
    let store = JsonlStore::with_files(Path::new("/data"), disk.watched(hook.clone()));
    let opened = store.create(header(), "test").await.unwrap();
    for fail in [false, true] {
        hook.fail.store(fail, Ordering::SeqCst);
        let before = hook.begun.load(Ordering::SeqCst);
        let gate = Arc::new(tokio::sync::Barrier::new(100));
        let callers: Vec<_> = (0..100)
            .map(|n| {
                let (writer, gate) = (Arc::clone(&opened.writer), Arc::clone(&gate));
                tokio::spawn(async move {
                    let seq = writer.append(prompt(&n.to_string())).await.unwrap().seq;
                    gate.wait().await;
                    (seq, writer.sync().await)
                })
            })
            .collect();
        let mut seqs = Vec::new();
        for caller in callers {
            let (seq, result) = caller.await.unwrap();
            assert_eq!(result.is_err(), fail);
            assert!(result.is_err() || result.unwrap() >= seq);
            seqs.push(seq);
        }
        seqs.sort_unstable();
        seqs.dedup();
        assert_eq!(seqs.len(), 100, "no seq twice");
        // All had appended before the first sync began. A few may come too late for the first attempt to speak for them.
        let syncs = hook.begun.load(Ordering::SeqCst) - before;
        assert!((1..=3).contains(&syncs), "{syncs} syncs for 100 callers");
    }
    hook.fail.store(false, Ordering::SeqCst);
    assert_eq!(opened.writer.sync().await.unwrap(), 200);
    let before = hook.begun.load(Ordering::SeqCst);
    assert_eq!(opened.writer.sync().await.unwrap(), 200);
    assert_eq!(hook.begun.load(Ordering::SeqCst), before, "nothing new costs nothing");
}

/// Fails from one operation on, once or for good.
struct FromOp {
    at: u64,
    once: bool,
    verdict: Verdict,
    on: AtomicBool,
    seen: AtomicU64,
}

impl Hook for FromOp {
    fn before(&self, _op: &Op) -> Verdict {
        let seen = self.seen.fetch_add(1, Ordering::SeqCst);
        let hit = if self.once { seen == self.at } else { seen >= self.at };
        if hit && self.on.load(Ordering::SeqCst) { self.verdict } else { Verdict::Go }
    }
}

/// A small life: a session is made, written, closed, opened, written, forked. Every step that fails is tried again after
/// the medium has recovered, and then nothing may be missing.
async fn small_life(hook: Arc<FromOp>) -> u64 {
    let disk = SimDisk::new(hook.at, 512);
    let store = JsonlStore::with_files(Path::new("/data"), disk.watched(hook.clone()));
    let header = header();
    let said: Vec<Event> =
        vec![prompt("one"), prompt(&"two".repeat(11_000)), prompt("three"), prompt("four"), prompt("five")];
    let opened = match store.create(header.clone(), "test").await {
        Ok(opened) => opened,
        Err(_) => {
            hook.on.store(false, Ordering::SeqCst);
            match store.create(header.clone(), "test").await {
                // What was put in its place could not be taken away again.
                Err(StoreError::Exists { .. }) => store.open(header.id, "test").await.unwrap(),
                created => created.unwrap(),
            }
        }
    };
    let mut durable = 0;
    for event in &said[..3] {
        opened.writer.append(event.clone()).await.unwrap();
        durable = opened.writer.sync().await.unwrap_or(durable);
    }
    let closed = opened.writer.close().await;
    assert!(closed.is_ok() || hook.on.load(Ordering::SeqCst));
    drop(opened);

    let opened = match store.open(header.id, "test").await {
        Ok(opened) => opened,
        Err(_) => {
            hook.on.store(false, Ordering::SeqCst);
            store.open(header.id, "test").await.unwrap()
        }
    };
    let found = events(&opened.records);
    assert!(found.len() as u64 >= durable && said.starts_with(&found));
    assert_eq!(opened.cuts, vec![]);
    for event in &said[found.len()..] {
        opened.writer.append(event.clone()).await.unwrap();
    }
    if opened.writer.sync().await.is_err() {
        hook.on.store(false, Ordering::SeqCst);
        assert_eq!(opened.writer.sync().await.unwrap(), 5);
    }
    let mut fork = SessionId::mint();
    if store.fork(header.id, None, fork).await.is_err() {
        hook.on.store(false, Ordering::SeqCst);
        fork = SessionId::mint();
        store.fork(header.id, None, fork).await.unwrap();
    }
    hook.on.store(false, Ordering::SeqCst);
    disk.power_off(0.0);
    for id in [header.id, fork] {
        assert_eq!(events(&store.open(id, "test").await.unwrap().records), said);
    }
    hook.seen.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_fault_at_any_operation_loses_nothing_whether_it_passes_or_lasts() {
    let verdicts = [NO_SPACE, BROKEN, Verdict::Torn(13, Fault::NoSpace)];
    let hook = |at, once, verdict| {
        Arc::new(FromOp { at, once, verdict, on: AtomicBool::new(true), seen: AtomicU64::new(0) })
    };
    let operations = small_life(hook(u64::MAX, true, NO_SPACE)).await;
    assert!(operations > 60, "{operations} operations");
    for at in 0..operations {
        for verdict in verdicts {
            for once in [true, false] {
                small_life(hook(at, once, verdict)).await;
            }
        }
    }
}
