//! One writer: who has a session open is told, and a killed holder frees it at once.

use segue_log::EndReason;
use segue_runtime::RuntimeError;
use segue_store::StoreError;
use segue_testkit::{ModelServer, Reply};
use tempfile::TempDir;

use super::stage::{Script, start};
use crate::world::{finish, fold, run, says};

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_is_told_who_holds_the_session_and_can_fork_read_or_wait_for_its_death() {
    let world = TempDir::new().unwrap();
    let server = ModelServer::start().await;
    server.push(Reply::text("one two three").then_hang());
    let order = Script::prompt("remember the number 42").order(&world, &server, None);
    let mut holder = start(&order);
    server.wait_for_requests(1).await;
    let place = order.place();
    let id = place.only_session().await.unwrap();
    let sessions = place.sessions(order.parts());
    let before = std::fs::read(place.log_file(id)).unwrap();

    let told = match sessions.open(id).await.map(drop) {
        Err(RuntimeError::Store(StoreError::InUse { holder: Some(told), .. })) => told,
        other => panic!("{other:?}"),
    };
    assert_eq!((told.pid, told.surface.as_str()), (holder.id().unwrap(), "test"));
    assert_eq!(place.log(id).await.holder, Some(told));
    let deletion = sessions.delete(id).await;
    assert!(matches!(deletion, Err(RuntimeError::Store(StoreError::InUse { .. }))), "{deletion:?}");

    // The fork takes the open turn along, without its queue and without waiting for anybody.
    let header = sessions.fork(id, None).await.unwrap();
    let (fork, report) = sessions.open(header.id).await.unwrap();
    assert!(report.was_interrupted);
    let outcome = run(&fork, says("what number")).await;
    assert_eq!(
        (outcome.reason(), fork.answer_text(outcome.turn)),
        (EndReason::Completed, "The number is 42.".into())
    );
    fork.close().await.unwrap();
    assert!(std::fs::read(place.log_file(id)).unwrap().starts_with(&before), "nobody else wrote to it");

    holder.kill().await.unwrap();
    let (session, _) = sessions.open(id).await.expect("it is free at once");
    assert_eq!((finish(&session).await.reason(), server.violations()), (EndReason::Completed, vec![]));
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_ended_at_its_start_leaves_a_whole_session_or_none() {
    // SIGTERM, which nothing here handles, after waits that are spread over the start of a process.
    for wait in 0..20 {
        let world = TempDir::new().unwrap();
        let server = ModelServer::start().await;
        let order = Script::prompt("remember the number 42").order(&world, &server, None);
        let mut child = start(&order);
        tokio::time::sleep(std::time::Duration::from_millis(10 * wait)).await;
        if let Some(pid) =
            child.id().and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()))
        {
            // It may have come to its end by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        child.wait().await.unwrap();
        super::judge::judge(&order, &server, super::judge::GoOn::Finish).await;
        let place = order.place();
        let id = place.only_session().await.unwrap();
        assert!(fold(&place.log(id).await).open_turn().is_none());
    }
}
