//! Watching a turn from outside: what it does is shown, and a signal or the time limit ends its session in order.

use std::time::Duration;

use segue_log::Seq;
use segue_runtime::{Outcome, Session, Subscription, Update};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::report::Report;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;

/// How long a cancelled turn may take to end before the process ends without it. Tools get some seconds to leave.
const PATIENCE: Duration = Duration::from_secs(10);
/// How soon after the first a signal counts as the same one: `timeout` and shells signal the process and then its group.
const SAME_SIGNAL: Duration = Duration::from_millis(500);
/// How long the last records are waited for once the turn has ended.
const LAST_RECORDS: Duration = Duration::from_secs(2);

/// Why a turn is stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A signal of this number came.
    Signal(u8),
    /// The time is up.
    TimedOut,
}

impl Stop {
    /// How it is told.
    pub fn error(self) -> Error {
        match self {
            Self::Signal(number) => Error::new(Kind::Signal(number), "interrupted"),
            Self::TimedOut => Error::new(Kind::Turn, "the turn took longer than --timeout").code("TIMED_OUT"),
        }
    }
}

/// The watch over one session's turn.
pub struct Watch {
    session: Session,
    updates: Subscription,
    are_updates_over: bool,
    /// The last record shown.
    shown: Seq,
    signals: Signals,
    progress: Progress,
    /// Why and when the turn was stopped.
    stopped: Option<(Stop, Instant)>,
    /// True once a further signal came: nothing more is waited for.
    is_hurried: bool,
    /// The session's end, begun at most once.
    closing: Option<JoinHandle<segue_runtime::Result<()>>>,
}

impl Watch {
    /// Watches a session from its record `from` on.
    pub fn new(session: Session, from: Seq, signals: Signals, quiet: bool) -> Self {
        Self {
            updates: session.subscribe(from),
            session,
            are_updates_over: false,
            shown: from.saturating_sub(1),
            signals,
            progress: Progress::of_a_turn(quiet),
            stopped: None,
            is_hurried: false,
            closing: None,
        }
    }

    /// Why the turn was stopped, if it was.
    pub fn stop(&self) -> Option<Stop> {
        self.stopped.map(|(stop, _)| stop)
    }

    /// Shows what happens until `ended` tells the outcome. A second signal, or a turn that does not end in time once it
    /// is stopped, ends the wait.
    pub async fn until(
        &mut self,
        ended: impl Future<Output = Option<Outcome>>,
        limit: Option<Duration>,
        report: &Report,
    ) -> Result<Option<Outcome>> {
        tokio::pin!(ended);
        let mut deadline = limit.map(|limit| Instant::now() + limit);
        let outcome = loop {
            // Never waited for while there is no deadline: the branch is off then.
            let due = deadline.unwrap_or_else(Instant::now);
            tokio::select! {
                outcome = &mut ended => break outcome,
                update = self.updates.next(), if !self.are_updates_over => match update {
                    Some(update) => self.show(&update, report)?,
                    None => self.are_updates_over = true,
                },
                number = self.signals.next() => match self.stopped {
                    Some((Stop::Signal(_), at)) if at.elapsed() < SAME_SIGNAL => {}
                    Some((Stop::Signal(first), _)) => {
                        self.is_hurried = true;
                        return Err(Stop::Signal(first).error());
                    }
                    _ => deadline = Some(self.end(Stop::Signal(number))),
                },
                () = sleep_until(due), if deadline.is_some() => match self.stopped {
                    Some((stop, _)) => return Err(stop.error()),
                    None => deadline = Some(self.end(Stop::TimedOut)),
                },
            }
        };
        if let Some(outcome) = &outcome {
            self.show_the_rest(outcome, report).await?;
        }
        self.progress.end();
        Ok(outcome)
    }

    /// Ends the session in order and gives its lease back. What was waited since the turn was stopped counts.
    pub async fn close(mut self) -> Result<()> {
        self.begin_to_close();
        let Some(mut closing) = self.closing.take() else { return Ok(()) };
        if self.is_hurried {
            return Ok(());
        }
        let until = self.stopped.map_or_else(Instant::now, |(_, at)| at) + PATIENCE;
        loop {
            let ended = tokio::select! {
                ended = timeout_at(until, &mut closing) => ended,
                number = self.signals.next() => match self.stopped {
                    Some((Stop::Signal(_), at)) if at.elapsed() < SAME_SIGNAL => continue,
                    _ => return Err(Stop::Signal(number).error()),
                },
            };
            return match ended {
                Ok(Ok(closed)) => Ok(closed?),
                Ok(Err(error)) => {
                    Err(Error::new(Kind::Internal, format!("closing the session failed: {error}")))
                }
                Err(_) => Err(Error::new(Kind::Internal, "the session could not be closed in order in time")),
            };
        }
    }

    fn begin_to_close(&mut self) {
        if self.closing.is_none() {
            let session = self.session.clone();
            self.closing = Some(tokio::spawn(async move { session.close().await }));
        }
    }

    /// Begins to end the session; gives the time when the wait for that is over.
    fn end(&mut self, stop: Stop) -> Instant {
        let now = Instant::now();
        self.stopped = Some((stop, now));
        self.progress.say("ending");
        self.begin_to_close();
        now + PATIENCE
    }

    /// Shows the records up to the turn's end.
    async fn show_the_rest(&mut self, outcome: &Outcome, report: &Report) -> Result<()> {
        let end = self.session.conversation(|conversation| {
            conversation.turn(outcome.turn).and_then(|turn| turn.end.as_ref()).map(|(seq, _)| *seq)
        });
        let (Some(end), None) = (end, &outcome.not_stored) else { return Ok(()) };
        let until = Instant::now() + LAST_RECORDS;
        while self.shown < end {
            match timeout_at(until, self.updates.next()).await {
                Ok(Some(update)) => self.show(&update, report)?,
                Ok(None) | Err(_) => break,
            }
        }
        Ok(())
    }

    fn show(&mut self, update: &Update, report: &Report) -> Result<()> {
        match update {
            Update::Calling { tool, .. } => self.progress.say(tool),
            Update::Progress { text, .. } => self.progress.say(text.trim()),
            Update::Delta { .. } => self.progress.say("answering"),
            Update::Notice { message, .. } => self.progress.note(message),
            Update::Record(record) => self.shown = record.seq,
            Update::Question(_) => {}
        }
        report.update(update)
    }
}

/// The signals that end a conversation.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Listens from now on; until then a signal just ends the process.
    pub fn listen() -> Result<Self> {
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
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hang_up.recv() => 1,
        }
    }
}
