//! What every store has to do, as checks that any store can be put through: implement [`Home`] for it, and
//! [`contract_tests!`](crate::contract_tests) makes one test of each.

use std::path::PathBuf;
use std::sync::Arc;

use segue_log::{
    BlobHash, Block, EndReason, Event, Header, Parent, Policy, PromptQueued, Record, Seq, SessionConfig,
    SessionId, SessionTitle, Time, TurnEnd, TurnStart, Usage, line,
};
use segue_store::{Cursor, Listing, Opened, Query, Row, State, Store, StoreError};

/// A place where a store keeps its sessions.
pub trait Home: Send + Sync {
    /// An empty place of its own.
    fn new() -> Self;

    /// A store there, as another process would open it: it shares nothing in memory with those made before.
    fn store(&self) -> Arc<dyn Store>;
}

/// Makes a test of each check, for a type that is a [`Home`].
#[macro_export]
macro_rules! contract_tests {
    ($home:ty) => {
        $crate::contract_tests!(@each $home:
            what_was_appended_is_read_back,
            seqs_have_no_gaps_under_concurrent_appends,
            a_created_session_is_there_before_anything_is_appended,
            a_second_writer_is_told_who_has_it,
            a_closed_or_dropped_writer_frees_the_session,
            reading_needs_no_lease,
            reading_can_begin_anywhere,
            concurrent_syncs_agree,
            a_withdrawn_record_leaves_no_trace,
            a_durable_record_cannot_be_withdrawn,
            large_contents_come_back_whole,
            unknown_types_are_kept,
            listings_are_newest_first_and_paged,
            listings_are_by_folder_and_text_and_without_empty_ones,
            listings_tell_the_state,
            a_fork_has_the_records_up_to_its_point,
            a_fork_needs_no_lease_and_takes_open_turns,
            deleting_takes_the_session_away,
            an_id_is_used_once,
            what_is_not_there_is_not_found,
            ids_are_found_by_prefix,
            a_closed_writer_takes_nothing,
            a_sound_session_can_be_copied_by_repair,
        );
    };
    (@each $home:ty: $($check:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                $crate::contract::$check(&<$home as $crate::contract::Home>::new()).await;
            }
        )*
    };
}

/// A header for a new session in the folder `/work`.
pub fn header() -> Header {
    header_in("/work")
}

/// A header for a new session in a folder.
pub fn header_in(cwd: &str) -> Header {
    Header { segue: 1, id: SessionId::mint(), created: Time::now(), cwd: cwd.into(), parent: None }
}

/// A `prompt/queued` record's data.
pub fn prompt(text: &str) -> Event {
    PromptQueued {
        prompt_id: segue_log::PromptId::mint(),
        content: vec![Block::text(text)],
        source: "test".into(),
        target: Default::default(),
    }
    .into()
}

/// A `turn/start` record's data.
pub fn turn_start(turn: u64) -> Event {
    TurnStart { turn, prompt_ids: Vec::new(), policy: Policy::Semantic, finish: None }.into()
}

/// A `turn/end` record's data.
pub fn turn_end(turn: u64, reason: EndReason, title: &str) -> Event {
    let usage = Usage { input: 10, output: turn, ..Usage::default() };
    TurnEnd { turn, reason, code: None, message: None, title: title.into(), turns: turn, usage }.into()
}

/// The events of records.
pub fn events(records: &[Arc<Record>]) -> Vec<Event> {
    records.iter().map(|record| record.event.clone()).collect()
}

fn seqs(records: &[Arc<Record>]) -> Vec<Seq> {
    records.iter().map(|record| record.seq).collect()
}

async fn create(home: &impl Home) -> (SessionId, Opened) {
    let header = header();
    (header.id, home.store().create(header, "test").await.unwrap())
}

/// Makes a session with these records, synced, and closes it.
pub async fn session(store: &dyn Store, header: &Header, events: &[Event]) {
    let opened = store.create(header.clone(), "test").await.unwrap();
    for event in events {
        opened.writer.append(event.clone()).await.unwrap();
    }
    opened.writer.sync().await.unwrap();
    opened.writer.close().await.unwrap();
}

#[allow(missing_docs)]
pub async fn what_was_appended_is_read_back(home: &impl Home) {
    let header = header();
    let opened = home.store().create(header.clone(), "test").await.unwrap();
    let said = vec![prompt("one"), turn_start(1), prompt("two"), turn_end(1, EndReason::Completed, "one")];
    let mut records = Vec::new();
    for event in &said {
        records.push(opened.writer.append(event.clone()).await.unwrap());
        if records.len() == 2 {
            assert_eq!(opened.writer.sync().await.unwrap(), 2);
        }
    }
    assert_eq!(opened.writer.durable(), 2);
    assert_eq!(records.iter().map(|record| record.synced).collect::<Vec<_>>(), vec![0, 0, 2, 2]);
    assert_eq!(opened.writer.sync().await.unwrap(), 4);
    opened.writer.close().await.unwrap();

    let again = home.store().open(header.id, "test").await.unwrap();
    assert_eq!((&again.header, &again.records), (&header, &records));
    assert_eq!((again.cuts, again.torn_bytes, again.writer.durable()), (vec![], 0, 4));
    let next = again.writer.append(prompt("three")).await.unwrap();
    assert_eq!((next.seq, next.synced), (5, 4));
}

#[allow(missing_docs)]
pub async fn seqs_have_no_gaps_under_concurrent_appends(home: &impl Home) {
    let (id, opened) = create(home).await;
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let writer = Arc::clone(&opened.writer);
            tokio::spawn(async move {
                let mut mine = Vec::new();
                for n in 0..20 {
                    mine.push(writer.append(prompt(&format!("{task}/{n}"))).await.unwrap().seq);
                    if n % 5 == 0 {
                        writer.sync().await.unwrap();
                    }
                }
                mine
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        let mine = task.await.unwrap();
        assert!(mine.is_sorted(), "a task's records keep their order");
        all.extend(mine);
    }
    all.sort_unstable();
    assert_eq!(all, (1..=160).collect::<Vec<_>>());
    opened.writer.close().await.unwrap();
    assert_eq!(seqs(&home.store().read(id, 1).await.unwrap().records), all);
}

#[allow(missing_docs)]
pub async fn a_created_session_is_there_before_anything_is_appended(home: &impl Home) {
    let header = header();
    let opened = home.store().create(header.clone(), "test").await.unwrap();
    let read = home.store().read(header.id, 1).await.unwrap();
    assert_eq!((read.header, read.records, read.last, read.damage), (header.clone(), vec![], 0, None));
    drop(opened);
    assert_eq!(home.store().open(header.id, "test").await.unwrap().records, vec![]);
}

#[allow(missing_docs)]
pub async fn a_second_writer_is_told_who_has_it(home: &impl Home) {
    let (id, opened) = create(home).await;
    for store in [home.store(), home.store()] {
        let Err(StoreError::InUse { id: named, holder: Some(holder) }) = store.open(id, "other").await else {
            panic!("in use, by somebody who is named")
        };
        assert_eq!((named, holder.pid, holder.surface.as_str()), (id, std::process::id(), "test"));
        assert!(matches!(store.delete(id).await, Err(StoreError::InUse { .. })));
    }
    // The refusals changed nothing.
    opened.writer.append(prompt("still mine")).await.unwrap();
    assert_eq!(opened.writer.sync().await.unwrap(), 1);
}

#[allow(missing_docs)]
pub async fn a_closed_or_dropped_writer_frees_the_session(home: &impl Home) {
    let (id, opened) = create(home).await;
    opened.writer.append(prompt("not synced")).await.unwrap();
    opened.writer.close().await.unwrap();
    let kept = opened.writer;
    let again = home.store().open(id, "test").await.unwrap();
    assert_eq!(again.records.len(), 1, "closing writes what is in memory");
    again.writer.append(prompt("two")).await.unwrap();
    drop(again);
    let third = home.store().open(id, "test").await.unwrap();
    assert_eq!(third.records.len(), 2, "an append alone outlives its writer");
    assert_eq!(home.store().read(id, 1).await.unwrap().holder.map(|h| h.surface), Some("test".into()));
    drop((third, kept));
    assert_eq!(home.store().read(id, 1).await.unwrap().holder, None);
}

#[allow(missing_docs)]
pub async fn reading_needs_no_lease(home: &impl Home) {
    let (id, opened) = create(home).await;
    let one = opened.writer.append(prompt("one")).await.unwrap();
    opened.writer.sync().await.unwrap();
    let read = home.store().read(id, 1).await.unwrap();
    assert_eq!((read.records, read.last, read.damage, read.newer), (vec![one], 1, None, false));
    assert_eq!(read.holder.map(|holder| holder.pid), Some(std::process::id()));
    opened.writer.append(prompt("two")).await.unwrap();
    assert_eq!(opened.writer.sync().await.unwrap(), 2);
    assert_eq!(home.store().read(id, 1).await.unwrap().last, 2);
}

#[allow(missing_docs)]
pub async fn reading_can_begin_anywhere(home: &impl Home) {
    let store = home.store();
    let header = header();
    session(&*store, &header, &[prompt("1"), prompt("2"), prompt("3")]).await;
    for (from, expected) in [(0, vec![1, 2, 3]), (1, vec![1, 2, 3]), (3, vec![3]), (4, vec![]), (99, vec![])]
    {
        let read = store.read(header.id, from).await.unwrap();
        assert_eq!((seqs(&read.records), read.last), (expected, 3), "from {from}");
    }
}

#[allow(missing_docs)]
pub async fn concurrent_syncs_agree(home: &impl Home) {
    let (id, opened) = create(home).await;
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let writer = Arc::clone(&opened.writer);
            tokio::spawn(async move {
                let seq = writer.append(prompt(&n.to_string())).await.unwrap().seq;
                let durable = writer.sync().await.unwrap();
                assert!(durable >= seq, "a sync covers what was appended before it: {durable} < {seq}");
                seq
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (1..=50).collect::<Vec<_>>());
    assert_eq!(opened.writer.durable(), 50);
    drop(opened);
    assert_eq!(home.store().open(id, "test").await.unwrap().records.len(), 50);
}

#[allow(missing_docs)]
pub async fn a_withdrawn_record_leaves_no_trace(home: &impl Home) {
    let (id, opened) = create(home).await;
    let writer = &opened.writer;
    let said: Vec<Event> = ["a", "b", "c", "d"].map(prompt).to_vec();
    for event in &said {
        writer.append(event.clone()).await.unwrap();
    }
    let tail = writer.withdraw(2).await.unwrap().unwrap();
    let left = vec![said[0].clone(), said[2].clone(), said[3].clone()];
    assert_eq!((seqs(&tail), events(&tail)), (vec![1, 2, 3], left.clone()));
    let next = writer.append(prompt("e")).await.unwrap();
    assert_eq!(next.seq, 4);
    assert_eq!(writer.sync().await.unwrap(), 4);
    drop(opened);
    let again = home.store().open(id, "test").await.unwrap();
    let mut expected = tail;
    expected.push(next);
    assert_eq!((again.records, again.cuts), (expected, vec![]));
}

#[allow(missing_docs)]
pub async fn a_durable_record_cannot_be_withdrawn(home: &impl Home) {
    let (_, opened) = create(home).await;
    opened.writer.append(prompt("a")).await.unwrap();
    opened.writer.sync().await.unwrap();
    assert_eq!(opened.writer.withdraw(1).await.unwrap(), None);
    for seq in [0, 2] {
        assert!(matches!(opened.writer.withdraw(seq).await, Err(StoreError::NoSuchSeq { last: 1, .. })));
    }
}

#[allow(missing_docs)]
pub async fn large_contents_come_back_whole(home: &impl Home) {
    let (id, opened) = create(home).await;
    let said = vec![prompt(&"x".repeat(100_000)), prompt("small"), prompt(&"é".repeat(1_000_000))];
    for event in &said {
        opened.writer.append(event.clone()).await.unwrap();
    }
    opened.writer.sync().await.unwrap();
    let bytes = vec![7; 300_000];
    let hash = opened.writer.put_blob(bytes.clone()).await.unwrap();
    assert_eq!(hash, BlobHash::of(&bytes));
    drop(opened);
    let store = home.store();
    let again = store.open(id, "test").await.unwrap();
    assert_eq!(events(&again.records), said);
    assert_eq!(store.blob(id, hash).await.unwrap(), Some(bytes));
    assert_eq!(store.blob(id, BlobHash::of(b"never kept")).await.unwrap(), None);
    let fork = SessionId::mint();
    store.fork(id, None, fork).await.unwrap();
    assert_eq!(events(&store.read(fork, 1).await.unwrap().records), said);
}

#[allow(missing_docs)]
pub async fn unknown_types_are_kept(home: &impl Home) {
    let (id, opened) = create(home).await;
    let said = vec![
        Event::Unknown { kind: "future/thing".into(), data: serde_json::json!({"a": [1, {"b": null}]}) },
        prompt("known"),
    ];
    for event in &said {
        opened.writer.append(event.clone()).await.unwrap();
    }
    opened.writer.close().await.unwrap();
    let store = home.store();
    assert_eq!(events(&store.read(id, 1).await.unwrap().records), said);
    assert_eq!(events(&store.open(id, "test").await.unwrap().records), said);
}

async fn pages(store: &dyn Store, query: &Query) -> Vec<Vec<Row>> {
    let mut found = Vec::new();
    let mut after: Option<Cursor> = None;
    loop {
        let Listing { rows, next } =
            store.list(&Query { after: after.clone(), ..query.clone() }).await.unwrap();
        found.push(rows);
        assert!(found.len() < 100, "a listing ends");
        match next {
            Some(next) => after = Some(next),
            None => return found,
        }
    }
}

fn ids(rows: &[Row]) -> Vec<SessionId> {
    rows.iter().map(|row| row.id).collect()
}

#[allow(missing_docs)]
pub async fn listings_are_newest_first_and_paged(home: &impl Home) {
    let store = home.store();
    assert_eq!(store.list(&Query::default()).await.unwrap().rows, vec![]);
    let mut expected = Vec::new();
    for n in 0..7 {
        let header = header();
        session(&*store, &header, &[prompt(&format!("number {n}"))]).await;
        expected.push(header.id);
    }
    // The oldest is taken up again: it is the newest now.
    let opened = store.open(expected[0], "test").await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    opened.writer.append(prompt("again")).await.unwrap();
    opened.writer.close().await.unwrap();
    expected.rotate_left(1);
    expected.reverse();
    // Opening alone changes no order.
    drop(store.open(expected[6], "test").await.unwrap());

    let all = store.list(&Query::default()).await.unwrap();
    assert_eq!((ids(&all.rows), all.next), (expected.clone(), None));
    for limit in [1, 2, 3, 7, 8] {
        let pages = pages(&*store, &Query { limit, ..Query::default() }).await;
        assert_eq!(pages.len(), 7usize.div_ceil(limit), "pages of {limit}");
        assert_eq!(ids(&pages.concat()), expected, "pages of {limit}");
    }
}

#[allow(missing_docs)]
pub async fn listings_are_by_folder_and_text_and_without_empty_ones(home: &impl Home) {
    let store = home.store();
    let mut made = Vec::new();
    for (cwd, events) in [
        ("/a", vec![prompt("  \n Fix the\tBUG \n please")]),
        ("/a", vec![]),
        ("/a/b", vec![prompt("x"), turn_start(1), turn_end(1, EndReason::Completed, "A bug in b")]),
        ("/a", vec![prompt("y"), SessionTitle { title: "Named".into(), by: "test".into() }.into()]),
    ] {
        let header = header_in(cwd);
        session(&*store, &header, &events).await;
        made.push(header.id);
    }
    let cwd = |cwd: &str| Query { cwd: Some(PathBuf::from(cwd)), ..Query::default() };
    let text = |text: &str| Query { text: Some(text.into()), ..Query::default() };
    let cases = [
        (Query::default(), vec![3, 2, 0]),
        (Query { empty: true, ..Query::default() }, vec![3, 2, 1, 0]),
        (cwd("/a"), vec![3, 0]),
        (cwd("/a/b"), vec![2]),
        (cwd("/"), vec![]),
        (text("bug"), vec![2, 0]),
        (text("named"), vec![3]),
        (Query { text: Some("bug".into()), ..cwd("/a") }, vec![0]),
    ];
    for (query, expected) in cases {
        let found = store.list(&query).await.unwrap();
        let expected: Vec<SessionId> = expected.into_iter().map(|n: usize| made[n]).collect();
        assert_eq!((ids(&found.rows), found.next), (expected, None), "{query:?}");
    }
    let titles: Vec<String> =
        store.list(&Query::default()).await.unwrap().rows.into_iter().map(|row| row.title).collect();
    assert_eq!(titles, ["Named", "A bug in b", "Fix the BUG"]);
}

#[allow(missing_docs)]
pub async fn listings_tell_the_state(home: &impl Home) {
    let store = home.store();
    let asked = || vec![prompt("p"), turn_start(1)];
    let with = |more: &[Event]| [asked(), more.to_vec()].concat();
    let end = |turn, reason| turn_end(turn, reason, "");
    let config = SessionConfig {
        agent: Some("codex".into()),
        model: None,
        permissions: None,
        cwd: None,
        by: String::new(),
    };
    let usage = |turn| Usage { input: 10, output: turn, ..Usage::default() };
    let cases = [
        (vec![prompt("p")], State::Idle, 0, "segue", Usage::default()),
        (asked(), State::Interrupted, 1, "segue", Usage::default()),
        (with(&[end(1, EndReason::Completed)]), State::Idle, 1, "segue", usage(1)),
        (with(&[end(1, EndReason::Interrupted)]), State::Interrupted, 1, "segue", usage(1)),
        (with(&[end(1, EndReason::Completed), turn_start(2)]), State::Interrupted, 2, "segue", usage(1)),
        (with(&[config.into(), end(1, EndReason::Failed), prompt("q")]), State::Idle, 1, "codex", usage(1)),
    ];
    for (events, state, turns, agent, usage) in cases {
        let header = header();
        session(&*store, &header, &events).await;
        let rows = store.list(&Query { limit: 1, ..Query::default() }).await.unwrap().rows;
        let updated = store.read(header.id, 1).await.unwrap().records.last().map(|record| record.time);
        let expected = Row {
            id: header.id,
            title: "p".into(),
            cwd: header.cwd.clone(),
            agent: agent.into(),
            created: header.created,
            updated: updated.unwrap(),
            turns,
            state,
            usage,
            holder: None,
            damage: None,
        };
        assert_eq!(rows, vec![expected]);
    }
    let header = header();
    let opened = store.create(header.clone(), "test").await.unwrap();
    for event in asked() {
        opened.writer.append(event).await.unwrap();
    }
    opened.writer.sync().await.unwrap();
    let rows = home.store().list(&Query { limit: 1, ..Query::default() }).await.unwrap().rows;
    let found: Vec<_> = rows.into_iter().map(|row| (row.id, row.state, row.holder.map(|h| h.pid))).collect();
    assert_eq!(found, vec![(header.id, State::Running, Some(std::process::id()))]);
}

#[allow(missing_docs)]
pub async fn a_fork_has_the_records_up_to_its_point(home: &impl Home) {
    let store = home.store();
    let source = header_in("/a b");
    session(&*store, &source, &[prompt("1"), prompt("2"), prompt("3")]).await;
    let records = store.read(source.id, 1).await.unwrap().records;
    for (at, count) in [(Some(2), 2), (Some(0), 0), (Some(3), 3), (None, 3)] {
        let id = SessionId::mint();
        let made = store.fork(source.id, at, id).await.unwrap();
        let parent = Some(Parent { id: source.id, seq: count as Seq });
        assert_eq!((made.id, &made.cwd, made.parent), (id, &source.cwd, parent));
        let opened = store.open(id, "test").await.unwrap();
        assert_eq!((&opened.header, opened.records.as_slice()), (&made, &records[..count]));
        let next = opened.writer.append(prompt("on")).await.unwrap();
        assert_eq!((next.seq, next.synced), (count as Seq + 1, count as Seq));
    }
    let beyond = store.fork(source.id, Some(4), SessionId::mint()).await;
    assert!(matches!(beyond, Err(StoreError::NoSuchSeq { seq: 4, last: 3, .. })));
    let taken = store.fork(source.id, None, source.id).await;
    assert!(matches!(taken, Err(StoreError::Exists { .. })));
    assert_eq!(store.read(source.id, 1).await.unwrap().records, records, "the source is as it was");
}

#[allow(missing_docs)]
pub async fn a_fork_needs_no_lease_and_takes_open_turns(home: &impl Home) {
    let (id, opened) = create(home).await;
    for event in [prompt("1"), turn_start(1)] {
        opened.writer.append(event).await.unwrap();
    }
    opened.writer.sync().await.unwrap();
    let store = home.store();
    let fork = SessionId::mint();
    store.fork(id, None, fork).await.unwrap();
    let copy = store.open(fork, "test").await.unwrap();
    assert_eq!(copy.records, store.read(id, 1).await.unwrap().records);
}

#[allow(missing_docs)]
pub async fn deleting_takes_the_session_away(home: &impl Home) {
    let store = home.store();
    let (kept, gone) = (header(), header());
    for header in [&kept, &gone] {
        session(&*store, header, &[prompt("p")]).await;
    }
    store.delete(gone.id).await.unwrap();
    assert!(matches!(store.read(gone.id, 1).await, Err(StoreError::NotFound { .. })));
    assert!(matches!(store.open(gone.id, "test").await, Err(StoreError::NotFound { .. })));
    assert!(matches!(store.delete(gone.id).await, Err(StoreError::NotFound { .. })));
    assert_eq!(ids(&home.store().list(&Query::default()).await.unwrap().rows), vec![kept.id]);
    let report = store.check().await.unwrap();
    assert_eq!((report.sound, report.findings), (1, vec![]));
}

#[allow(missing_docs)]
pub async fn an_id_is_used_once(home: &impl Home) {
    let (id, opened) = create(home).await;
    opened.writer.append(prompt("p")).await.unwrap();
    opened.writer.close().await.unwrap();
    let again = Header { id, ..header() };
    assert!(matches!(home.store().create(again, "test").await, Err(StoreError::Exists { .. })));
    assert_eq!(home.store().read(id, 1).await.unwrap().last, 1);
}

#[allow(missing_docs)]
pub async fn what_is_not_there_is_not_found(home: &impl Home) {
    let store = home.store();
    let id = SessionId::mint();
    let hash = BlobHash::of(b"x");
    let outcomes = [
        store.open(id, "test").await.err(),
        store.read(id, 1).await.err(),
        store.delete(id).await.err(),
        store.blob(id, hash).await.err(),
        store.fork(id, None, SessionId::mint()).await.err(),
        store.repair(id, SessionId::mint()).await.err(),
    ];
    for outcome in outcomes {
        let Some(StoreError::NotFound { id: named, place }) = outcome else { panic!("{outcome:?}") };
        assert_eq!((named, place), (id, store.place()));
    }
    assert_eq!(store.list(&Query { empty: true, ..Query::default() }).await.unwrap().rows, vec![]);
}

#[allow(missing_docs)]
pub async fn ids_are_found_by_prefix(home: &impl Home) {
    let store = home.store();
    assert_eq!(store.ids_with_prefix("", 10).await.unwrap(), vec![]);
    let mut ids = Vec::new();
    for text in [
        "0190a8c0-0000-7000-8000-000000000001",
        "0190a8c0-0000-7000-8000-000000000002",
        "0190a8c1-0000-7000-8000-000000000003",
    ] {
        let header = Header { id: text.parse().unwrap(), ..header() };
        session(&*store, &header, &[]).await;
        ids.push(header.id);
    }
    for (prefix, limit, expected) in [
        ("", 10, &ids[..]),
        ("", 2, &ids[..2]),
        ("0190a8c0", 10, &ids[..2]),
        ("0190a8c1-", 10, &ids[2..]),
        ("0190A8C1", 10, &[]),
        ("../", 10, &[]),
    ] {
        assert_eq!(store.ids_with_prefix(prefix, limit).await.unwrap(), expected, "{prefix:?}");
    }
}

#[allow(missing_docs)]
pub async fn a_closed_writer_takes_nothing(home: &impl Home) {
    let (_, opened) = create(home).await;
    let writer = opened.writer;
    writer.close().await.unwrap();
    let outcomes = [
        writer.append(prompt("late")).await.err(),
        writer.sync().await.err(),
        writer.withdraw(1).await.err(),
        writer.put_blob(vec![1]).await.err(),
        writer.close().await.err(),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Some(StoreError::Closed { .. })), "{outcome:?}");
    }
}

#[allow(missing_docs)]
pub async fn a_sound_session_can_be_copied_by_repair(home: &impl Home) {
    let store = home.store();
    let source = header_in("/x");
    session(&*store, &source, &[prompt("1"), prompt(&"2".repeat(50_000))]).await;
    let id = SessionId::mint();
    let report = store.repair(source.id, id).await.unwrap();
    assert_eq!((report.kept, report.damaged, report.header.id), (2, 0, id));
    assert_eq!(report.header.cwd, source.cwd);
    let copy = store.open(id, "test").await.unwrap();
    assert_eq!(copy.records, store.read(source.id, 1).await.unwrap().records);
    assert!(line::is_writable(&copy.header));
}
