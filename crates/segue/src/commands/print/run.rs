//! The turn itself: the prompt goes in, what happens is shown, and whatever ends it is told.

use std::time::Duration;

use segue_log::{Block, EndReason, PromptFor, Seq, code};
use segue_runtime::{NewPrompt, Outcome, Session, Subscription, Update};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::report::Report;
use super::session::{self, SURFACE};
use crate::app::App;
use crate::args::Run;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;

/// How long a cancelled turn may take to end before the process ends without it. Tools get some seconds to leave.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the last records are waited for once the turn has ended.
const LAST_RECORDS: Duration = Duration::from_secs(2);

/// Runs the turn; gives the exit code. What becomes known is kept in `report` at once, so that a failure loses none of it.
pub async fn run(app: &App, run: &Run, text: Option<String>, report: &mut Report) -> Result<u8> {
    let mut signals = Signals::listen()?;
    let opened = session::open(app, run, report).await?;
    let session = opened.session;
    let result = turn(app, run, report, &session, opened.first_new, text, &mut signals).await;
    // Whatever happened: the log is ended in order, and the lease given back.
    let closed = tokio::time::timeout(PATIENCE, session.close()).await;
    let code = result?;
    match closed {
        Ok(Ok(())) => Ok(code),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Error::new(Kind::Internal, "the session could not be closed in order in time")),
    }
}

async fn turn(
    app: &App,
    run: &Run,
    report: &mut Report,
    session: &Session,
    first_new: Seq,
    text: Option<String>,
    signals: &mut Signals,
) -> Result<u8> {
    let mut updates = session.subscribe(first_new);
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
    let progress = Progress::of_a_turn(app.common.quiet);
    let mut watch = Watch { report, progress, session, stop: None, shown: first_new.saturating_sub(1) };
    let outcome = watch.until(ended, &mut updates, signals, run.timeout.map(|timeout| timeout.0)).await?;
    watch.progress.end();
    let stop = watch.stop;
    conclude(report, session, outcome, stop)
}

/// Why a turn is being stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Signal(u8),
    TimedOut,
}

impl Stop {
    fn error(self) -> Error {
        match self {
            Self::Signal(number) => Error::new(Kind::Signal(number), "interrupted"),
            Self::TimedOut => Error::new(Kind::Turn, "the turn took longer than --timeout").code("TIMED_OUT"),
        }
    }
}

struct Watch<'a> {
    report: &'a Report,
    progress: Progress,
    session: &'a Session,
    stop: Option<Stop>,
    /// The last record shown.
    shown: Seq,
}

impl Watch<'_> {
    /// Shows what happens until `ended` tells the outcome. A signal or the time limit ends the session in order; a second
    /// signal, or a turn that does not end in time, ends the wait.
    async fn until(
        &mut self,
        ended: impl Future<Output = Option<Outcome>>,
        updates: &mut Subscription,
        signals: &mut Signals,
        limit: Option<Duration>,
    ) -> Result<Option<Outcome>> {
        tokio::pin!(ended);
        let mut deadline = limit.map(|limit| Instant::now() + limit);
        let mut are_updates_over = false;
        let outcome = loop {
            let due = deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                outcome = &mut ended => break outcome,
                update = updates.next(), if !are_updates_over => match update {
                    Some(update) => self.show(&update)?,
                    None => are_updates_over = true,
                },
                number = signals.next() => match self.stop {
                    Some(Stop::Signal(first)) => return Err(Stop::Signal(first).error()),
                    _ => deadline = Some(self.end(Stop::Signal(number))),
                },
                () = sleep_until(due), if deadline.is_some() => match self.stop {
                    Some(stop) => return Err(stop.error()),
                    None => deadline = Some(self.end(Stop::TimedOut)),
                },
            }
        };
        if !are_updates_over && let Some(outcome) = &outcome {
            self.show_the_rest(outcome, updates).await?;
        }
        Ok(outcome)
    }

    /// Begins to end the session in order; gives the time when the wait for that is over.
    fn end(&mut self, stop: Stop) -> Instant {
        self.stop = Some(stop);
        self.progress.say("ending");
        let session = self.session.clone();
        // Closing is waited for by whoever waits for the turn; its result is asked for once more at the end.
        tokio::spawn(async move { session.close().await });
        Instant::now() + PATIENCE
    }

    /// Shows the records up to the turn's end.
    async fn show_the_rest(&mut self, outcome: &Outcome, updates: &mut Subscription) -> Result<()> {
        let end = self.session.conversation(|conversation| {
            conversation.turn(outcome.turn).and_then(|turn| turn.end.as_ref()).map(|(seq, _)| *seq)
        });
        let (Some(end), None) = (end, &outcome.not_stored) else { return Ok(()) };
        let until = Instant::now() + LAST_RECORDS;
        while self.shown < end {
            match tokio::time::timeout_at(until, updates.next()).await {
                Ok(Some(update)) => self.show(&update)?,
                Ok(None) | Err(_) => break,
            }
        }
        Ok(())
    }

    fn show(&mut self, update: &Update) -> Result<()> {
        match update {
            Update::Calling { tool, .. } => self.progress.say(tool),
            Update::Progress { text, .. } => self.progress.say(text.trim()),
            Update::Delta { .. } => self.progress.say("answering"),
            Update::Notice { message, .. } => self.progress.note(message),
            Update::Record(record) => self.shown = record.seq,
            Update::Question(_) => {}
        }
        self.report.update(update)
    }
}

/// Fills in the report and decides the exit code.
fn conclude(
    report: &mut Report,
    session: &Session,
    outcome: Option<Outcome>,
    stop: Option<Stop>,
) -> Result<u8> {
    report.model =
        session.conversation(|conversation| conversation.settings().model.clone()).or(report.model.take());
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
        (EndReason::Completed, _) => return Ok(0),
        (_, Some(message)) => message,
        (EndReason::MaxSteps, None) => "the turn used up its steps".into(),
        (EndReason::MaxTokens, None) => "the answer hit its length limit".into(),
        (EndReason::Refused, None) => "the model would not answer".into(),
        (EndReason::Interrupted, None) => "the turn was interrupted".into(),
        (reason, None) => format!("the turn ended: {}", reason.as_str()),
    };
    let kind = match end.code.as_deref() {
        Some(code::CHECKPOINT_FAILED) => Kind::Storage,
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

/// The signals that end a conversation.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        let listen = |kind: SignalKind| {
            signal(kind)
                .map_err(|error| Error::new(Kind::Internal, format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The number of the next one.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hang_up.recv() => 1,
        }
    }
}
