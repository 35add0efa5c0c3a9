//! The contract of all stores, on real files and on the simulated disk.

use std::path::Path;
use std::sync::Arc;

use segue_store::{JsonlStore, Store};
use segue_testkit::contract::Home;
use segue_testkit::disk::SimDisk;

pub struct OnDisk(tempfile::TempDir);

impl Home for OnDisk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(JsonlStore::open(self.0.path()))
    }
}

mod on_disk {
    segue_testkit::contract_tests!(super::OnDisk);
}

pub struct Simulated(SimDisk);

impl Home for Simulated {
    fn new() -> Self {
        Self(SimDisk::new(1, 4096))
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(JsonlStore::with_files(Path::new("/data"), self.0.files()))
    }
}

mod simulated {
    // Its clock stands still between operations, so listings have no order of their own there.
    use segue_testkit::contract::{self, Home};

    #[tokio::test]
    async fn appends_syncs_and_copies_work_there_too() {
        contract::what_was_appended_is_read_back(&super::Simulated::new()).await;
        contract::concurrent_syncs_agree(&super::Simulated::new()).await;
        contract::a_withdrawn_record_leaves_no_trace(&super::Simulated::new()).await;
        contract::large_contents_come_back_whole(&super::Simulated::new()).await;
        contract::a_fork_has_the_records_up_to_its_point(&super::Simulated::new()).await;
        contract::deleting_takes_the_session_away(&super::Simulated::new()).await;
    }
}
