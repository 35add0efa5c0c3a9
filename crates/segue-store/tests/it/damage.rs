//! What becomes of logs that do not end well, or are damaged in the middle.

use std::fs;
use std::path::{Path, PathBuf};

use segue_log::{BlobHash, Conversation, Event, Header, SessionDamaged, SessionId, SessionRepaired, line};
use segue_store::{Cut, JsonlStore, Query, State, Store, StoreError};
use segue_testkit::contract::{events, header, prompt, session};

struct Damaged {
    _dir: tempfile::TempDir,
    store: JsonlStore,
    header: Header,
    folder: PathBuf,
    said: Vec<Event>,
}

impl Damaged {
    /// A session with three records, synced one by one.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = JsonlStore::open(dir.path());
        let header = header();
        let said: Vec<Event> = ["one", "two", "three"].map(prompt).to_vec();
        let opened = store.create(header.clone(), "test").await.unwrap();
        for event in &said {
            opened.writer.append(event.clone()).await.unwrap();
            opened.writer.sync().await.unwrap();
        }
        drop(opened);
        let folder = store.folder(header.id);
        Self { _dir: dir, store, header, folder, said }
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log.jsonl")
    }

    fn lines(&self) -> Vec<Vec<u8>> {
        fs::read(self.log()).unwrap().split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }

    fn write(&self, lines: &[Vec<u8>]) {
        fs::write(self.log(), lines.concat()).unwrap();
    }

    /// Makes the `synced` file say nothing.
    fn forget_synced(&self) {
        fs::remove_file(self.folder.join("synced")).unwrap();
    }

    async fn open_and_drop(&self) -> (Vec<Event>, Vec<Cut>, u64) {
        let opened = self.store.open(self.header.id, "test").await.unwrap();
        (events(&opened.records), opened.cuts.clone(), opened.torn_bytes)
    }
}

fn flip(line: &mut [u8]) {
    let middle = line.len() / 2;
    line[middle] ^= 1;
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_torn_last_line_is_cut_at_every_byte_and_costs_nothing_else() {
    let damaged = Damaged::new().await;
    let lines = damaged.lines();
    let (last, before) = lines.split_last().unwrap();
    for cut in 0..last.len() {
        damaged.write(&[before, &[last[..cut].to_vec()]].concat());
        fs::write(damaged.folder.join("synced"), "").unwrap();
        // A reader sees the whole records and changes nothing.
        let bytes = fs::read(damaged.log()).unwrap();
        let read = damaged.store.read(damaged.header.id, 1).await.unwrap();
        assert_eq!((events(&read.records), read.damage), (damaged.said[..2].to_vec(), None), "at {cut}");
        assert_eq!(fs::read(damaged.log()).unwrap(), bytes);
        let found = damaged.open_and_drop().await;
        assert_eq!(found, (damaged.said[..2].to_vec(), vec![], cut as u64), "at {cut}");
        assert_eq!(fs::read(damaged.log()).unwrap(), before.concat());
    }
    let opened = damaged.store.open(damaged.header.id, "test").await.unwrap();
    assert_eq!(opened.writer.append(prompt("on")).await.unwrap().seq, 3);
}

#[tokio::test]
async fn a_torn_line_that_was_durable_once_counts_as_a_cut() {
    let damaged = Damaged::new().await;
    let lines = damaged.lines();
    damaged.write(&[&lines[..3], &[lines[3][..9].to_vec()]].concat());
    let cut = vec![Cut { cut_at: 2, files: vec!["log.torn-1".into()] }];
    assert_eq!(damaged.open_and_drop().await, (damaged.said[..2].to_vec(), cut.clone(), 0));
    // Counted again until a record names it.
    assert_eq!(damaged.open_and_drop().await, (damaged.said[..2].to_vec(), cut, 0));
    let kept = fs::read(damaged.folder.join("log.torn-1")).unwrap();
    assert!(kept.ends_with(&[b"\n", &lines[3][..9]].concat()));
}

#[tokio::test]
async fn durable_records_that_are_missing_count_as_a_cut() {
    let damaged = Damaged::new().await;
    damaged.write(&damaged.lines()[..2]);
    let cut = vec![Cut { cut_at: 1, files: vec!["log.torn-1".into()] }];
    assert_eq!(damaged.open_and_drop().await, (damaged.said[..1].to_vec(), cut.clone(), 0));
    assert_eq!(damaged.open_and_drop().await, (damaged.said[..1].to_vec(), cut, 0));
}

#[tokio::test]
async fn an_unsynced_tail_is_kept_aside_and_counted_until_a_durable_record_names_it() {
    let damaged = Damaged::new().await;
    let mut lines = damaged.lines();
    // As after a power failure: records 2 and 3 were not durable, 2 did not make it to the disk whole.
    let said = &damaged.said;
    let time = header().created;
    lines[3] = line::encode(3, time, &said[2], 1).line.into_bytes();
    flip(&mut lines[2]);
    damaged.forget_synced();
    damaged.write(&lines);
    let read = damaged.store.read(damaged.header.id, 1).await.unwrap();
    let what = "its end was lost: record 2 cannot be read: the checksum is wrong";
    assert_eq!((events(&read.records), read.last, read.damage), (said[..1].to_vec(), 1, Some(what.into())));

    let cut = |files: &[&str]| vec![Cut { cut_at: 1, files: files.iter().map(|f| f.to_string()).collect() }];
    assert_eq!(damaged.open_and_drop().await, (said[..1].to_vec(), cut(&["log.torn-1"]), 0));
    let kept = fs::read(damaged.folder.join("log.torn-1")).unwrap();
    let head = br#"{"cutAt":1,"offset":"#;
    assert!(kept.starts_with(head) && kept.ends_with(&lines[2..].concat()));

    // A second crash before the record that names it; and a second tail.
    assert_eq!(damaged.open_and_drop().await, (said[..1].to_vec(), cut(&["log.torn-1"]), 0));
    let whole = fs::read(damaged.log()).unwrap();
    fs::write(damaged.log(), [&whole[..], b"rubbish\n"].concat()).unwrap();
    let both = cut(&["log.torn-1", "log.torn-2"]);
    assert_eq!(damaged.open_and_drop().await, (said[..1].to_vec(), both, 0));
    assert_eq!(fs::read(damaged.folder.join("log.torn-1")).unwrap(), kept, "never overwritten");

    let opened = damaged.store.open(damaged.header.id, "test").await.unwrap();
    let named = SessionRepaired { cut_at: 1, files: vec!["log.torn-1".into()] };
    opened.writer.append(named.clone().into()).await.unwrap();
    opened.writer.sync().await.unwrap();
    drop(opened);
    let expected = vec![said[0].clone(), named.into()];
    assert_eq!(damaged.open_and_drop().await, (expected, cut(&["log.torn-2"]), 0));
}

#[tokio::test]
async fn a_bad_line_that_was_durable_makes_the_session_read_only() {
    let damaged = Damaged::new().await;
    for forget in [false, true] {
        let mut lines = damaged.lines();
        if forget {
            damaged.forget_synced();
        } else {
            flip(&mut lines[2]);
        }
        damaged.write(&lines);
        let before = (names(&damaged.folder), fs::read(damaged.log()).unwrap());
        let Err(StoreError::Damaged { id, path, readable, what }) =
            damaged.store.open(damaged.header.id, "test").await
        else {
            panic!("damaged")
        };
        let expected = "record 2 cannot be read: the checksum is wrong";
        assert_eq!((id, path, readable, what.as_str()), (damaged.header.id, damaged.log(), 1, expected));
        let read = damaged.store.read(damaged.header.id, 1).await.unwrap();
        assert_eq!((events(&read.records), read.damage), (damaged.said[..1].to_vec(), Some(what)));
        assert_eq!((names(&damaged.folder), fs::read(damaged.log()).unwrap()), before, "nothing changed");
        let rows = damaged.store.list(&Query::default()).await.unwrap().rows;
        let row = rows.iter().find(|row| row.id == damaged.header.id).unwrap();
        assert_eq!(row.state, State::Damaged);
        assert!(matches!(
            damaged.store.fork(damaged.header.id, None, SessionId::mint()).await,
            Err(StoreError::Damaged { readable: 1, .. })
        ));
        let fork = SessionId::mint();
        damaged.store.fork(damaged.header.id, Some(1), fork).await.unwrap();
        assert_eq!(damaged.store.read(fork, 1).await.unwrap().last, 1);
    }
}

#[tokio::test]
async fn repair_puts_a_mark_in_the_place_of_each_unreadable_line() {
    // Per case: the lines of the log, and for each record of the copy the seq it was, or what is wrong there.
    type Edit = fn(&mut Vec<Vec<u8>>);
    type Case<'a> = (&'a str, Edit, &'a [Result<usize, &'a str>]);
    let cases: [Case<'_>; 6] = [
        ("a bad line", |l| flip(&mut l[2]), &[Ok(1), Err("the checksum is wrong"), Ok(3)]),
        ("a missing line", |l| drop(l.remove(2)), &[Ok(1), Err("the line is missing"), Ok(3)]),
        (
            "two lines that became one",
            |l| assert_eq!(l[1].pop(), Some(b'\n')),
            &[Err("not a record: trailing characters"), Err("the line is missing"), Ok(3)],
        ),
        ("a line that became two", |l| l[2][20] = b'\n', &[Ok(1), Err("the line has no checksum"), Ok(3)]),
        ("a repeated line", |l| l.insert(2, l[1].clone()), &[Ok(1), Ok(2), Ok(3)]),
        ("a bad last line", |l| flip(&mut l[3]), &[Ok(1), Ok(2), Err("the checksum is wrong")]),
    ];
    for (name, edit, expected) in cases {
        let damaged = Damaged::new().await;
        let mut lines = damaged.lines();
        edit(&mut lines);
        damaged.write(&lines);
        let before = fs::read(damaged.log()).unwrap();
        let new = SessionId::mint();
        let report = damaged.store.repair(damaged.header.id, new).await.unwrap();
        let bad = expected.iter().filter(|e| e.is_err()).count() as u64;
        assert_eq!((report.kept, report.damaged), (expected.len() as u64 - bad, bad), "{name}");
        assert_eq!(fs::read(damaged.log()).unwrap(), before, "{name}: the original is as it was");
        let opened = damaged.store.open(new, "test").await.unwrap();
        assert_eq!((opened.header.created, opened.header.id), (damaged.header.created, new));
        assert_eq!(opened.records.len(), expected.len(), "{name}");
        for ((record, expected), seq) in opened.records.iter().zip(expected).zip(1..) {
            assert_eq!(record.seq, seq, "{name}");
            match (&record.event, expected) {
                (event, Ok(was)) => assert_eq!(event, &damaged.said[was - 1], "{name}"),
                (Event::SessionDamaged(SessionDamaged { reason, .. }), Err(what)) => {
                    assert!(
                        reason.starts_with(what) || reason == "the checksum is wrong",
                        "{name}: {reason}"
                    );
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert_eq!(opened.writer.append(prompt("on")).await.unwrap().seq, expected.len() as u64 + 1);
    }
}

#[tokio::test]
async fn a_repaired_copy_keeps_cuts_that_nothing_names_yet() {
    let damaged = Damaged::new().await;
    damaged.write(&damaged.lines()[..3]);
    let (_, cuts, _) = damaged.open_and_drop().await;
    let mut lines = damaged.lines();
    flip(&mut lines[1]);
    damaged.write(&lines);
    let new = SessionId::mint();
    damaged.store.repair(damaged.header.id, new).await.unwrap();
    assert_eq!(damaged.store.open(new, "test").await.unwrap().cuts, cuts);
}

#[tokio::test]
async fn a_bad_header_is_damage_and_names_the_file() {
    type Edit = fn(&Damaged);
    let cases: [(Edit, &str); 4] = [
        (|d| fs::write(d.log(), "").unwrap(), "its header cannot be read: it has no whole first line"),
        (
            |d| {
                let mut lines = d.lines();
                flip(&mut lines[0]);
                d.write(&lines);
            },
            "its header cannot be read: the checksum is wrong",
        ),
        (|d| fs::remove_file(d.log()).unwrap(), "its log is missing"),
        (
            |d| {
                let mut lines = d.lines();
                let id = "0190a8c0-0000-7000-8000-000000000000".parse().unwrap();
                lines[0] = line::encode_header(&Header { id, ..d.header.clone() }).into_bytes();
                d.write(&lines);
            },
            "its header names another session, 0190a8c0-0000-7000-8000-000000000000",
        ),
    ];
    for (edit, expected) in cases {
        let damaged = Damaged::new().await;
        let healthy = header();
        session(&damaged.store, &healthy, &[prompt("fine")]).await;
        edit(&damaged);
        let Err(StoreError::Damaged { path, readable: 0, what, .. }) =
            damaged.store.open(damaged.header.id, "test").await
        else {
            panic!("{expected}")
        };
        assert_eq!((path, what.as_str()), (damaged.log(), expected));
        let rows = damaged.store.list(&Query::default()).await.unwrap().rows;
        let mut found: Vec<_> = rows.iter().map(|row| (row.id, row.state)).collect();
        found.sort_by_key(|(id, _)| *id);
        let mut both = vec![(damaged.header.id, State::Damaged), (healthy.id, State::Idle)];
        both.sort_by_key(|(id, _)| *id);
        assert_eq!(found, both, "{expected}");
        let mark = rows.iter().find_map(|row| row.damage.clone()).unwrap();
        assert!(mark.contains(damaged.log().to_str().unwrap()), "{mark}");
        assert!(!mark.contains("delete") && !mark.contains("remove"), "{mark}");
    }
}

#[tokio::test]
async fn a_log_of_a_newer_format_can_be_read_and_listed_but_not_continued() {
    let damaged = Damaged::new().await;
    let mut lines = damaged.lines();
    lines[0] = line::encode_header(&Header { segue: 2, ..damaged.header.clone() }).into_bytes();
    damaged.write(&lines);
    for result in [
        damaged.store.open(damaged.header.id, "test").await.err(),
        damaged.store.fork(damaged.header.id, None, SessionId::mint()).await.err(),
        damaged.store.repair(damaged.header.id, SessionId::mint()).await.err(),
    ] {
        assert!(matches!(result, Some(StoreError::Newer { format: 2, .. })), "{result:?}");
    }
    let read = damaged.store.read(damaged.header.id, 1).await.unwrap();
    assert_eq!((events(&read.records), read.newer), (damaged.said.clone(), true));
    let rows = damaged.store.list(&Query::default()).await.unwrap().rows;
    assert_eq!(
        rows.iter().map(|row| (row.id, row.state)).collect::<Vec<_>>(),
        vec![(damaged.header.id, State::Idle)]
    );
    assert_eq!(damaged.lines(), lines, "nothing changed");
}

#[tokio::test]
async fn a_missing_blob_is_lost_content_not_a_damaged_session() {
    let damaged = Damaged::new().await;
    let opened = damaged.store.open(damaged.header.id, "test").await.unwrap();
    let record = opened.writer.append(prompt(&"x".repeat(50_000))).await.unwrap();
    opened.writer.sync().await.unwrap();
    drop(opened);
    let hash: BlobHash = *record.blobs.get("content").unwrap();
    fs::write(damaged.folder.join("blobs").join(hash.to_string()), "wrong").unwrap();
    let (records, cuts, _) = damaged.open_and_drop().await;
    assert_eq!((records.len(), cuts), (4, vec![]));
    let Event::PromptQueued(found) = &records[3] else { panic!("still a prompt") };
    assert!(found.content[0].as_text().unwrap().contains("content lost"));
    assert_eq!(damaged.store.blob(damaged.header.id, hash).await.unwrap(), None);
    let findings = damaged.store.check().await.unwrap().findings;
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].1, "a blob that is missing or damaged");
}

#[tokio::test]
async fn foreign_files_are_passed_over_and_named_by_check() {
    let damaged = Damaged::new().await;
    let sessions = damaged.folder.parent().unwrap();
    fs::write(sessions.join("notes.txt"), "mine").unwrap();
    fs::write(sessions.join(SessionId::mint().to_string()), "a file with a session's name").unwrap();
    fs::create_dir(sessions.join("backup")).unwrap();
    fs::create_dir(sessions.join(".new-left")).unwrap();
    fs::write(damaged.folder.join("stray"), "x").unwrap();
    let rows = damaged.store.list(&Query { empty: true, ..Query::default() }).await.unwrap().rows;
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), vec![damaged.header.id]);
    let (records, ..) = damaged.open_and_drop().await;
    assert_eq!(records, damaged.said);
    let report = damaged.store.check().await.unwrap();
    let mut found: Vec<&str> = report.findings.iter().map(|(_, what)| what.as_str()).collect();
    found.sort_unstable();
    let expected = [
        "left by a process that died while it made a session",
        "not a session",
        "not a session",
        "not a session",
        "not part of a session",
    ];
    assert_eq!((report.sound, found), (0, expected.to_vec()));
}

#[tokio::test]
async fn a_line_longer_than_any_record_is_bad_and_is_not_swallowed_whole() {
    let damaged = Damaged::new().await;
    let mut log = fs::read(damaged.log()).unwrap();
    log.extend(std::iter::repeat_n(b'x', 9 << 20));
    log.push(b'\n');
    fs::write(damaged.log(), &log).unwrap();
    let (records, cuts, _) = damaged.open_and_drop().await;
    assert_eq!((records, cuts.len()), (damaged.said.clone(), 1));
    let kept = fs::metadata(damaged.folder.join("log.torn-1")).unwrap().len();
    assert!(kept > 9 << 20);
}

// The copy was no fork any more, and the parent's queue and permission rules held in it again.
#[tokio::test]
async fn a_repaired_fork_is_a_fork() {
    let whole = Damaged::new().await;
    let fork = whole.store.fork(whole.header.id, Some(2), SessionId::mint()).await.unwrap();
    let log = whole.store.folder(fork.id).join("log.jsonl");
    let mut bytes = fs::read(&log).unwrap();
    let at = bytes.len() - 30;
    bytes[at] ^= 1;
    fs::write(&log, bytes).unwrap();
    let report = whole.store.repair(fork.id, SessionId::mint()).await.unwrap();
    assert_eq!((report.kept, report.damaged), (1, 1));
    let copy = whole.store.read(report.header.id, 1).await.unwrap();
    assert_eq!(copy.header.parent, fork.parent);
    assert_eq!(Conversation::of(copy.header, &copy.records).queue().count(), 0);
}
