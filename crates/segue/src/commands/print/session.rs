//! Which session `-p` is for, made or opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use segue_log::{Conversation, Seq};
use segue_model::Model;
use segue_native::AGENT;
use segue_runtime::permission::Level;
use segue_runtime::{Change, NewSession, Session};
use segue_store::{Query, Store};

use super::report::Report;
use crate::app::App;
use crate::args::Run;
use crate::config::Rank;
use crate::error::{Error, Kind, Result};
use crate::launch::{Finding, Launch, Target, owe_exit_line};
use crate::store_place::StorePlace;
use crate::wiring::{self, ModelsByName, Parts};
use crate::{models, output, resolve};

/// The surface, as leases and records name it.
pub const SURFACE: &str = "print";

/// An open session.
pub struct Opened {
    /// The session.
    pub session: Session,
    /// The first record that this invocation added.
    pub first_new: Seq,
}

/// Makes or opens the session that the invocation is for.
pub async fn open(app: &App, run: &Run, report: &mut Report) -> Result<Opened> {
    let place = app.store_place()?;
    let store = wiring::store(&place);
    let launch = launch(app, run, &place, store.as_ref()).await?;
    let session = match launch.target {
        Target::New => begin(app, run, report, store, &launch).await?,
        Target::Existing(id) => {
            report.session = Some(id);
            // Opened before anything is decided, so that the log is read once and nobody changes it in between.
            let found = store.open(id, SURFACE).await?;
            let writer = found.writer.clone();
            let past = Conversation::of(found.header.clone(), &found.records);
            let first_new = past.last() + 1;
            match go_on(app, run, report, store, &launch, found, past).await {
                Ok(session) => return Ok(Opened { session, first_new }),
                Err(error) => {
                    // The lease ends with the process at the latest; the error that counts is the first.
                    writer.close().await.ok();
                    return Err(error);
                }
            }
        }
    };
    Ok(Opened { session, first_new: 1 })
}

/// Makes a session.
async fn begin(
    app: &App,
    run: &Run,
    report: &mut Report,
    store: Arc<dyn Store>,
    launch: &Launch,
) -> Result<Session> {
    let folder = folder(app, run, None)?;
    let chosen = parts(app, None, &folder)?;
    report.model = Some(chosen.model_name.clone());
    let sessions = wiring::sessions(app, store, chosen.parts)?;
    let new = NewSession { id: None, cwd: folder, agent: AGENT.to_owned(), model: Some(chosen.model_name) };
    let session = sessions.create(new).await?;
    report.session = Some(session.id());
    owe_exit_line(launch, session.id());
    report.agent = Some(AGENT.to_owned());
    report.begin(session.id())?;
    Ok(session)
}

/// Goes on with a session that is open in the store.
async fn go_on(
    app: &App,
    run: &Run,
    report: &mut Report,
    store: Arc<dyn Store>,
    launch: &Launch,
    found: segue_store::Opened,
    past: Conversation,
) -> Result<Session> {
    let folder = folder(app, run, Some(&past))?;
    let chosen = parts(app, Some(&past), &folder)?;
    report.model = Some(chosen.model_name.clone());
    let is_moved = past.cwd() != folder;
    let is_renamed = past.settings().model.as_ref() != Some(&chosen.model_name);
    let sessions = wiring::sessions(app, store, chosen.parts)?;
    let (session, opened) = sessions.take(found, past).await?;
    owe_exit_line(launch, session.id());
    report.is_resumed = true;
    report.opened(&opened);
    wiring::tell_report(session.id(), &opened);
    if is_moved {
        output::note(format!("The session moves to {}.", folder.display()));
    }
    let change = Change {
        cwd: is_moved.then_some(folder),
        model: is_renamed.then_some(chosen.model_name),
        by: SURFACE.to_owned(),
        ..Change::default()
    };
    session.configure(change).await?;
    report.agent = Some(AGENT.to_owned());
    report.begin(session.id())?;
    Ok(session)
}

async fn launch(app: &App, run: &Run, place: &StorePlace, store: &dyn Store) -> Result<Launch> {
    let target = match &run.resume {
        Some(Some(text)) => Target::Existing(resolve::session(store, text).await?),
        _ if run.continue_newest => newest(app, store).await?,
        _ => Target::New,
    };
    let finding: Finding = app.finding(place)?;
    Ok(Launch { target, finding, quiet: app.common.quiet })
}

/// The newest session of exactly this folder.
async fn newest(app: &App, store: &dyn Store) -> Result<Target> {
    let folder = app.folder()?;
    let query = Query { cwd: Some(folder.clone()), limit: 1, ..Query::default() };
    match store.list(&query).await?.rows.first() {
        Some(row) => Ok(Target::Existing(row.id)),
        None => Err(Error::new(Kind::NotFound, format!("no session of {} to continue", folder.display()))
            .hint("`segue sessions list` names those of other folders")),
    }
}

/// The folder to work in: a session's own, unless `--cwd` moves it.
fn folder(app: &App, run: &Run, past: Option<&Conversation>) -> Result<PathBuf> {
    let Some(past) = past else { return loggable(app.folder()?) };
    // With --continue, --cwd says whose newest session is meant, so it moves nothing.
    if app.common.cwd.is_some() && !run.continue_newest {
        return loggable(app.folder()?);
    }
    let own = past.cwd();
    if own.is_dir() {
        return Ok(own.to_owned());
    }
    Err(Error::usage(format!("the session's working folder {} is gone", own.display()))
        .code("FOLDER_GONE")
        .hint("--cwd DIR moves the session to another folder; its agent is told"))
}

/// A folder that a log can name: one whose name is UTF-8.
fn loggable(folder: PathBuf) -> Result<PathBuf> {
    if folder.to_str().is_some() {
        return Ok(folder);
    }
    Err(Error::usage(format!("the working folder {} has a name that is not UTF-8", folder.display()))
        .hint("a session's log cannot hold it: rename the folder, or name another with --cwd DIR"))
}

struct Chosen {
    parts: Parts,
    model_name: String,
}

fn parts(app: &App, past: Option<&Conversation>, folder: &Path) -> Result<Chosen> {
    let merged = app.merge(Some(folder));
    let config = merged.config()?;
    let own_agent = past.and_then(|past| past.settings().agent.clone());
    let agent = match (&own_agent, config.agent.rank) {
        (Some(own), rank) if rank != Rank::Flags => own,
        _ => &config.agent.value,
    };
    if agent != AGENT {
        return Err(Error::usage(format!("agent {agent:?}: hosted agents are to come")).hint("--agent segue"));
    }
    let own_model = past.and_then(|past| past.settings().model.clone());
    let choice = models::choose(&config, &merged.settings, &app.environment, own_model.as_deref())?;
    if let Some(notice) = &choice.notice {
        output::note(notice);
    }
    if let Some(warning) = merged.warning(folder) {
        output::note(warning);
    }
    // What cannot be used is told before a session is made.
    let reached: Arc<dyn Model> = wiring::reach(&choice)?;
    let model_name = reached.name().to_owned();
    let configured = config.level.parse::<Level>().map_err(|error| Error::config(error.to_string()))?;
    let is_own = past.is_some_and(|past| past.settings().permissions.is_some());
    let level = (app.settings.permissions.is_some() || !is_own).then_some(configured);
    let models = ModelsByName {
        config: config.clone(),
        environment: app.environment.clone(),
        choice,
        replaced: own_model,
    };
    let parts =
        Parts { config, models: Arc::new(models), folder: folder.to_owned(), level, surface: SURFACE };
    Ok(Chosen { parts, model_name })
}
