//! What changes the store: copies, mending, deleting, a person's word on a call.

use std::io::{BufRead, Write};
use std::sync::Arc;

use segue_log::{CallId, SessionId};
use segue_store::Store;

use super::read::counted;
use crate::app::App;
use crate::args::SettleHow;
use crate::error::{Error, Result};
use crate::store_place::StorePlace;
use crate::{output, resolve, wiring};

/// Names a new session: its id alone on stdout, how to go on with it on stderr.
fn tell_new(app: &App, place: &StorePlace, id: SessionId, what: &str) -> Result<u8> {
    output::print(&id.to_string())?;
    output::note(what);
    if !app.common.quiet {
        output::note(format!("To resume it: {}", app.finding(place)?.command(id)));
    }
    Ok(0)
}

/// Copies a session.
pub async fn fork(app: &App, place: &StorePlace, store: &dyn Store, id: &str, at: Option<u64>) -> Result<u8> {
    let from = resolve::session(store, id).await?;
    let header = store.fork(from, at, SessionId::mint()).await?;
    let seq = header.parent.map_or(0, |parent| parent.seq);
    tell_new(app, place, header.id, &format!("Copied {from} up to record {seq}."))
}

/// Makes a session that can be continued out of a damaged one.
pub async fn repair(app: &App, place: &StorePlace, store: &dyn Store, id: &str) -> Result<u8> {
    let from = resolve::session(store, id).await?;
    let report = store.repair(from, SessionId::mint()).await?;
    let what = format!(
        "Kept {}; {} could not be read and are marked as lost in their places. {from} stays as it is.",
        counted(report.kept, "record"),
        counted(report.damaged, "line"),
    );
    tell_new(app, place, report.header.id, &what)
}

/// Deletes sessions. Every id is looked up before the first is deleted.
pub async fn delete(app: &App, store: &dyn Store, ids: &[String], yes: bool) -> Result<u8> {
    let mut sessions = Vec::new();
    for id in ids {
        let id = resolve::session(store, id).await?;
        if !sessions.contains(&id) {
            sessions.push(id);
        }
    }
    if !yes && !confirmed(&sessions)? {
        output::note("Nothing was deleted.");
        return Ok(1);
    }
    let mut first_error = None;
    for id in sessions {
        match store.delete(id).await {
            Ok(()) => {
                // What calls that crashed left outside the log; mostly there is none.
                std::fs::remove_dir_all(wiring::calls(app)?.join(id.to_string())).ok();
                output::note(format!("Deleted {id}."));
            }
            Err(error) => {
                let error = Error::from(error);
                if first_error.is_some() {
                    output::note(error.to_string());
                }
                first_error.get_or_insert(error);
            }
        }
    }
    first_error.map_or(Ok(0), Err)
}

fn confirmed(sessions: &[SessionId]) -> Result<bool> {
    if !output::stdin_is_terminal() {
        return Err(Error::usage("nobody is there to be asked whether to delete")
            .hint("--yes deletes without asking"));
    }
    for id in sessions {
        output::note(format!("  {id}"));
    }
    let mut err = std::io::stderr().lock();
    let _closed = write!(err, "Delete {} for good? [y/N] ", counted(sessions.len() as u64, "session"));
    let _closed = err.flush();
    let mut answer = String::new();
    match std::io::stdin().lock().read_line(&mut answer) {
        Ok(_) => Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")),
        Err(error) => Err(Error::usage(format!("no answer: {error}"))),
    }
}

/// A person's word on a call whose outcome is unknown.
pub async fn settle(
    app: &App,
    place: &StorePlace,
    store: Arc<dyn Store>,
    id: &str,
    call: &CallId,
    how: SettleHow,
    note: &str,
) -> Result<u8> {
    let id = resolve::session(store.as_ref(), id).await?;
    let log = store.read(id, 1).await?;
    let conversation = segue_log::Conversation::of(log.header, &log.records);
    let merged = app.merge(Some(conversation.cwd()));
    let parts = wiring::Parts {
        config: merged.config()?,
        models: Arc::new(wiring::NoRequests),
        folder: conversation.cwd().to_owned(),
        level: None,
        surface: "settle",
    };
    let (session, report) = wiring::sessions(app, store, parts)?.open(id).await?;
    wiring::tell_report(id, &report);
    let settled = session.settle(call, how.into(), note, "command line").await;
    let closed = session.close().await;
    settled?;
    closed?;
    output::note(format!("Settled {call}. The model is told with the next prompt."));
    if !app.common.quiet {
        output::note(format!("To resume it: {}", app.finding(place)?.command(id)));
    }
    Ok(0)
}
