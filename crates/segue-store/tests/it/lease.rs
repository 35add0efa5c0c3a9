//! Who may write, what a holder leaves behind, and what others may see of the files.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use segue_store::{JsonlStore, Store, StoreError};
use segue_testkit::contract::{header, prompt, session};

const CHILD: &str = "SEGUE_STORE_TEST_CHILD";

/// Not a test by itself: the process that is killed while it holds a session.
#[tokio::test]
async fn holder_process() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (data, id) = task.split_once('|').unwrap();
    let store = JsonlStore::open(data.as_ref());
    let opened = store.open(id.parse().unwrap(), "child").await.unwrap();
    opened.writer.append(prompt("from the child")).await.unwrap();
    println!("holding");
    std::thread::sleep(std::time::Duration::from_secs(600));
}

#[tokio::test]
async fn a_killed_holder_frees_the_session_at_once_and_its_appends_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = JsonlStore::open(dir.path());
    let header = header();
    session(&store, &header, &[]).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["lease::holder_process", "--exact", "--nocapture"])
        .env(CHILD, format!("{}|{}", dir.path().display(), header.id))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("holding")));
    let Err(StoreError::InUse { holder: Some(holder), .. }) = store.open(header.id, "test").await else {
        panic!("in use")
    };
    assert_eq!((holder.pid, holder.surface.as_str()), (child.id(), "child"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(store.read(header.id, 1).await.unwrap().holder, None, "a dead holder is not shown");
    let opened = store.open(header.id, "test").await.unwrap();
    assert_eq!((opened.records.len(), opened.torn_bytes, opened.cuts.len()), (1, 0, 0));
}

#[tokio::test]
async fn files_are_for_their_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = JsonlStore::open(&dir.path().join("deep/data"));
    let header = header();
    session(&store, &header, &[prompt(&"x".repeat(50_000))]).await;
    let mut folders = vec![dir.path().join("deep")];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700, "{folder:?}");
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            seen += 1;
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                assert_eq!(mode, 0o600, "{:?}", entry.path());
            }
        }
    }
    assert_eq!(seen, 8, "data, sessions, the session, and its log, lock, synced, blobs and one blob");
}

#[tokio::test]
async fn reading_and_listing_make_no_folders() {
    let dir = tempfile::tempdir().unwrap();
    let store = JsonlStore::open(&dir.path().join("none"));
    assert_eq!(store.list(&Default::default()).await.unwrap().rows, vec![]);
    assert!(store.read(header().id, 1).await.is_err());
    assert_eq!(store.check().await.unwrap().findings, vec![]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_data_folder_that_is_a_file_is_said_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    fs::write(&file, "").unwrap();
    let store = JsonlStore::open(&file);
    let Err(StoreError::Io { path, .. }) = store.create(header(), "test").await else { panic!("refused") };
    assert!(path.starts_with(&file), "{path:?}");
}
