//! A folder is durable only once the folder it lies in was synced, whoever made it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use segue_store::{JsonlStore, Store};
use segue_testkit::contract::{events, header, prompt};
use segue_testkit::disk::{Fault, Hook, Op, OpKind, SimDisk, Verdict};

/// The process dies before it syncs a folder of this name.
struct DiesBefore {
    folder: &'static str,
    dead: AtomicBool,
}

impl Hook for DiesBefore {
    fn before(&self, op: &Op) -> Verdict {
        if op.kind == OpKind::SyncDir && op.path.ends_with(self.folder) {
            self.dead.store(true, Ordering::SeqCst);
        }
        if self.dead.load(Ordering::SeqCst) { Verdict::Fail(Fault::Io) } else { Verdict::Go }
    }
}

/// A process was killed after it had made a folder and before it synced it. The next one found the folder there and took
/// it for durable, acknowledged a prompt in it, and the power took all away.
#[tokio::test]
async fn what_is_acknowledged_in_a_folder_that_a_dead_process_made_outlives_the_power() {
    for folder in ["/data/sessions", "/data", "/"] {
        for seed in 0..20 {
            let disk = SimDisk::new(seed, 4096);
            let data = Path::new("/data");
            let dies = Arc::new(DiesBefore { folder, dead: AtomicBool::new(false) });
            let header = header();
            let made = JsonlStore::with_files(data, disk.watched(dies)).create(header.clone(), "first").await;
            assert!(made.is_err(), "{folder}");
            drop(made);
            disk.kill();

            let store = JsonlStore::with_files(data, disk.files());
            let there = store.ids_with_prefix("", 9).await.unwrap();
            let opened = match there.first() {
                Some(id) => store.open(*id, "second").await.unwrap(),
                None => store.create(header, "second").await.unwrap(),
            };
            let event = prompt("kept");
            opened.writer.append(event.clone()).await.unwrap();
            opened.writer.sync().await.unwrap();
            disk.power_off(0.0);

            let again = store.open(opened.header.id, "third").await.expect("it is there");
            assert_eq!(events(&again.records), [event], "{folder}, seed {seed}");
        }
    }
}
