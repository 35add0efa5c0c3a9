//! The turn itself: the prompt goes in, what happens is shown, and whatever ends it is told.

use segue_log::{Block, EndReason, PromptFor, code};
use segue_native::AGENT;
use segue_runtime::{NewPrompt, Outcome, Session};

use super::report::Report;
use super::session::{self, SURFACE};
use super::watch::{Signals, Stop, Watch};
use crate::app::App;
use crate::args::Run;
use crate::error::{Error, Kind, Result};
use crate::output;

/// Runs the turn; gives the exit code. What becomes known is kept in `report` at once, so that a failure loses none of it.
pub async fn run(app: &App, run: &Run, text: Option<String>, report: &mut Report) -> Result<u8> {
    let mut signals = Signals::listen()?;
    // Reading and mending a long log takes its time; whoever does not want to wait that long is heard.
    let opened = tokio::select! {
        opened = session::open(app, run, report) => opened?,
        number = signals.next() => return Err(Stop::Signal(number).error()),
    };
    let session = opened.session;
    let mut watch = Watch::new(session.clone(), opened.first_new, signals, app.common.quiet);
    let result = turn(run, text, &session, &mut watch, report).await;
    report.agent_resumed =
        session.conversation(|conversation| conversation.resume_since(opened.first_new).cloned());
    // Whatever happened: the log is ended in order, and the lease given back.
    let closed = watch.close().await;
    let code = result?;
    closed.map(|()| code)
}

async fn turn(
    run: &Run,
    text: Option<String>,
    session: &Session,
    watch: &mut Watch,
    report: &mut Report,
) -> Result<u8> {
    let finishing = if run.finish { Some(session.finish().await?) } else { None };
    let accepted = match text {
        Some(text) => {
            let prompt = NewPrompt {
                id: run.prompt_id.clone(),
                content: vec![Block::text(text)],
                source: SURFACE.to_owned(),
                target: PromptFor::Turn,
            };
            Some(session.prompt(prompt).await?.prompt_id)
        }
        None => None,
    };
    let waiting = session.clone();
    let ended = async move {
        match (accepted, finishing) {
            (Some(prompt_id), _) => waiting.wait(&prompt_id).await,
            (None, Some(turn)) => waiting.wait_turn(turn).await,
            (None, None) => None,
        }
    };
    let outcome = watch.until(ended, run.timeout.map(|timeout| timeout.0), report).await?;
    conclude(report, session, outcome, watch.stop())
}

/// Fills in the report and decides the exit code.
fn conclude(
    report: &mut Report,
    session: &Session,
    outcome: Option<Outcome>,
    stop: Option<Stop>,
) -> Result<u8> {
    let model = session.conversation(|conversation| conversation.settings().model.clone());
    // A hosted agent's model is named AGENT/NAME; any other was meant for an earlier agent of the session.
    let of_agent = report.agent.as_deref().filter(|agent| *agent != AGENT).map(|agent| format!("{agent}/"));
    let model = model.filter(|model| of_agent.as_ref().is_none_or(|prefix| model.starts_with(prefix)));
    report.model = model.or(report.model.take());
    let Some(outcome) = outcome else {
        return Err(stop.map_or_else(
            || Error::new(Kind::Turn, "the prompt was taken back before it ran").code("PROMPT_REMOVED"),
            Stop::error,
        ));
    };
    report.turn = Some(outcome.turn);
    report.status = Some(outcome.reason());
    report.text = Some(session.answer_text(outcome.turn));
    report.usage = Some(outcome.end.usage);
    if let Some(why) = outcome.not_stored {
        return Err(Error::new(Kind::Storage, format!("the end of the turn could not be stored: {why}"))
            .code(code::CHECKPOINT_FAILED));
    }
    if let Some(stop) = stop
        && outcome.end.reason != EndReason::Completed
    {
        return Err(stop.error());
    }
    let end = outcome.end;
    let message = match (end.reason, end.message) {
        (EndReason::Completed, _) => {
            if report.text.as_deref() == Some("") {
                output::note("The model answered nothing.");
            }
            return Ok(0);
        }
        (_, Some(message)) => message,
        (EndReason::MaxSteps, None) => "the turn used up its steps".into(),
        (EndReason::MaxTokens, None) => "the answer hit its length limit".into(),
        (EndReason::Refused, None) => "the model would not answer".into(),
        (EndReason::Interrupted, None) => "the turn was interrupted".into(),
        (reason, None) => format!("the turn ended: {}", reason.as_str()),
    };
    let kind = match end.code.as_deref() {
        Some(code::CHECKPOINT_FAILED) => Kind::Storage,
        Some("AGENT_SESSION_IN_USE") => Kind::InUse,
        _ => Kind::Turn,
    };
    let error =
        Error::new(kind, message).code(end.code.unwrap_or_else(|| end.reason.as_str().to_uppercase()));
    Err(match end.reason {
        EndReason::Interrupted => error.hint("--finish takes it up again"),
        EndReason::MaxSteps => error.hint("a further prompt goes on; --max-steps allows more"),
        _ => error,
    })
}
