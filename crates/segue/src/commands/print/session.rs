//! Which session `-p` is for, made or opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use segue_acp::drive::AdoptError;
use segue_log::{Conversation, Event, Seq, SessionConfig};
use segue_model::Model;
use segue_native::{AGENT, Models};
use segue_runtime::permission::Level;
use segue_runtime::{Change, NewSession, Session};
use segue_store::{Query, Store};

use super::report::Report;
use crate::app::App;
use crate::args::Run;
use crate::commands::start_error;
use crate::config::{Config, Rank};
use crate::error::{Error, Kind, Result};
use crate::launch::{Finding, Launch, Target, owe_exit_line};
use crate::store_place::StorePlace;
use crate::wiring::{self, ModelsByName, NoRequests, Parts};
use crate::{agents, models, output, resolve};

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
        Target::Adopted { ref agent, ref id } => adopt(app, report, store, &launch, agent, id).await?,
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
    let chosen = parts(app, None, &folder, None)?;
    make(app, report, store, launch, folder, chosen, Vec::new()).await
}

/// Makes a session of a conversation that a hosted agent had before.
async fn adopt(
    app: &App,
    report: &mut Report,
    store: Arc<dyn Store>,
    launch: &Launch,
    agent: &str,
    id: &str,
) -> Result<Session> {
    let folder = app.folder()?;
    let chosen = parts(app, None, &folder, Some(agent))?;
    let hosted = agents::hosted(app, &chosen.parts.config, &folder)?;
    let past = segue_acp::drive::adopt(&hosted, agent, id, &folder).await.map_err(|error| match error {
        AdoptError::Start(error) => start_error(error),
        AdoptError::Gone { .. } => {
            Error::new(Kind::NotFound, error.to_string()).hint(format!("segue agents sessions {agent}"))
        }
        AdoptError::NotSupported(_) | AdoptError::Failed { .. } => {
            Error::new(Kind::Turn, error.to_string()).code("AGENT_FAILED")
        }
    })?;
    make(app, report, store, launch, folder, chosen, past).await
}

async fn make(
    app: &App,
    report: &mut Report,
    store: Arc<dyn Store>,
    launch: &Launch,
    folder: PathBuf,
    chosen: Chosen,
    past: Vec<Event>,
) -> Result<Session> {
    let Chosen { parts, agent, model_name } = chosen;
    report.model.clone_from(&model_name);
    let sessions = wiring::sessions(app, store, parts)?;
    let new = NewSession { id: None, cwd: folder, agent: agent.clone(), model: model_name };
    let session = sessions.create_with(new, past).await?;
    report.session = Some(session.id());
    owe_exit_line(launch, session.id());
    report.agent = Some(agent);
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
    mut found: segue_store::Opened,
    mut past: Conversation,
) -> Result<Session> {
    let folder = folder(app, run, Some(&past))?;
    let Chosen { parts, agent, model_name } = parts(app, Some(&past), &folder, None)?;
    report.model.clone_from(&model_name);
    if past.settings().agent.as_deref().unwrap_or(AGENT) != agent {
        // Recorded first: the driver is made by what the log says.
        let carried = SessionConfig {
            agent: Some(agent.clone()),
            model: model_name.clone(),
            permissions: None,
            cwd: None,
            by: SURFACE.to_owned(),
        };
        let record = found.writer.append(carried.into()).await?;
        past.apply(&record);
        found.records.push(record);
        output::note(format!("The session goes on with {agent}."));
    }
    let is_moved = past.cwd() != folder;
    let is_renamed = model_name.is_some() && past.settings().model != model_name;
    let sessions = wiring::sessions(app, store, parts)?;
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
        model: model_name.filter(|_| is_renamed),
        by: SURFACE.to_owned(),
        ..Change::default()
    };
    session.configure(change).await?;
    report.agent = Some(agent);
    report.begin(session.id())?;
    Ok(session)
}

async fn launch(app: &App, run: &Run, place: &StorePlace, store: &dyn Store) -> Result<Launch> {
    let target = match &run.resume {
        Some(Some(text)) => match adoptable(app, text)? {
            Some((agent, id)) => Target::Adopted { agent, id },
            None => Target::Existing(resolve::session(store, text).await?),
        },
        _ if run.continue_newest => newest(app, store).await?,
        _ => Target::New,
    };
    let finding: Finding = app.finding(place)?;
    Ok(Launch { target, finding, quiet: app.common.quiet })
}

/// The agent and its conversation, if a text names them as AGENT:ID.
fn adoptable(app: &App, text: &str) -> Result<Option<(String, String)>> {
    let Some((agent, id)) = text.split_once(':').filter(|(_, id)| !id.is_empty()) else { return Ok(None) };
    let config = app.merge(Some(&app.folder()?)).config()?;
    let is_known = config.agents.contains_key(agent);
    Ok(is_known.then(|| (agent.to_owned(), id.to_owned())))
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
    agent: String,
    model_name: Option<String>,
}

/// Decides on the agent and what it needs. `adopted` is the agent of a conversation that is adopted.
fn parts(app: &App, past: Option<&Conversation>, folder: &Path, adopted: Option<&str>) -> Result<Chosen> {
    let merged = app.merge(Some(folder));
    let config = merged.config()?;
    let own_agent = past.and_then(|past| past.settings().agent.clone());
    let agent = match (adopted, &own_agent, config.agent.rank) {
        (Some(agent), ..) => agent.to_owned(),
        (None, Some(own), rank) if rank != Rank::Flags => own.clone(),
        _ => config.agent.value.clone(),
    };
    let (models, model_name) = if agent == AGENT {
        let is_ours = own_agent.as_deref().is_none_or(|own| own == AGENT);
        let own_model = past.filter(|_| is_ours).and_then(|past| past.settings().model.clone());
        let choice = models::choose(&config, &merged.settings, &app.environment, own_model.as_deref())?;
        if let Some(notice) = &choice.notice {
            output::note(notice);
        }
        // What cannot be used is told before a session is made.
        let reached: Arc<dyn Model> = wiring::reach(&choice)?;
        let name = reached.name().to_owned();
        let models = ModelsByName {
            config: config.clone(),
            environment: app.environment.clone(),
            choice,
            replaced: own_model,
        };
        (Arc::new(models) as Arc<dyn Models>, Some(name))
    } else {
        agents::must_be_there(&agents::hosted(app, &config, folder)?, &agent)?;
        (Arc::new(NoRequests) as Arc<dyn Models>, hosted_model(&config, &agent))
    };
    if let Some(warning) = merged.warning(folder) {
        output::note(warning);
    }
    let configured = config.level.parse::<Level>().map_err(|error| Error::config(error.to_string()))?;
    let is_own = past.is_some_and(|past| past.settings().permissions.is_some());
    let level = (app.settings.permissions.is_some() || !is_own).then_some(configured);
    let parts = Parts { config, models, folder: folder.to_owned(), level, surface: SURFACE };
    Ok(Chosen { parts, agent, model_name })
}

/// The model that a hosted agent is to use, as AGENT/NAME: only what the command line says is meant for it.
fn hosted_model(config: &Config, agent: &str) -> Option<String> {
    let model = config.model.as_ref().filter(|model| model.rank == Rank::Flags)?;
    let name = model.value.strip_prefix(agent).and_then(|rest| rest.strip_prefix('/'));
    Some(format!("{agent}/{}", name.unwrap_or(&model.value)))
}
