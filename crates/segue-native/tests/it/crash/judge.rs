//! What must hold after a process was killed, wherever that was. Nothing here knows the place of the kill: what is right
//! follows from the log that is left, from what the process told the outside, and from what really ran.

use std::collections::HashSet;
use std::path::Path;

use segue_log::{
    BlobHash, Block, Call, CallId, Conversation, EndReason, Event, Outcome, Policy, PromptId, RepairOutcome,
    Seq, SessionId, ToolResult, code, text_of,
};
use segue_runtime::{Session, Sessions};
use segue_store::{ReadLog, Store};
use segue_testkit::{ModelServer, Recorded, Wire};
use serde_json::Value;

use super::child::{Asks, Order, told_file};
use crate::world::{Place, answer_of, finish, fold, run, says, within};

/// The file that scripts have written.
pub const NOTE: &str = "note.txt";

/// How a session goes on after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoOn {
    /// The interrupted turn is finished first.
    Finish,
    /// A new prompt comes.
    Prompt,
}

/// Checks everything that is promised after a crash, then goes on with the session.
pub async fn judge(order: &Order, server: &ModelServer, go_on: GoOn) {
    let place = order.place();
    let told = Told::read(&order.root);
    let Some(id) = place.only_session().await else {
        nothing_happened(&place, server, &told).await;
        return;
    };
    if let Some(session) = told.session {
        assert_eq!(session, id);
    }
    let left = Left::look(&place, id, server).await;
    left.keeps_what_was_told(&told);
    left.recorded_before_it_happened();

    let expected = left.expected();
    let sessions = place.sessions(order.parts());
    let opened = left.opens(&place, &sessions, server, &expected).await;
    goes_on(order, &place, &sessions, server, &left, &opened, &expected, go_on).await;
}

/// What the process told the outside.
#[derive(Debug, Default)]
struct Told {
    session: Option<SessionId>,
    accepted: Vec<PromptId>,
    ended: Vec<Value>,
}

impl Told {
    fn read(root: &Path) -> Self {
        let text = std::fs::read_to_string(told_file(root)).unwrap_or_default();
        let mut told = Self::default();
        for (what, about) in text.lines().filter_map(|line| line.split_once(' ')) {
            match what {
                "session" => told.session = Some(about.parse().unwrap()),
                "accepted" => told.accepted.push(about.parse().unwrap()),
                "ended" => told.ended.push(serde_json::from_str(about).unwrap()),
                _ => {}
            }
        }
        told
    }
}

/// No session is there: then none was promised, and the store takes a new one.
async fn nothing_happened(place: &Place, server: &ModelServer, told: &Told) {
    assert_eq!((told.session, server.requests().len(), place.ran()), (None, 0, vec![]), "{told:?}");
    let sessions = place.sessions(Default::default());
    let session = place.create(&sessions).await;
    let outcome = run(&session, says("remember the number 7")).await;
    assert_eq!((outcome.reason(), session.answer_text(1)), (EndReason::Completed, "Noted: 7.".into()));
}

/// What a dead process left behind.
struct Left {
    id: SessionId,
    bytes: Vec<u8>,
    /// The highest seq that a sync had confirmed.
    synced: Seq,
    log: ReadLog,
    conversation: Conversation,
    ran: Vec<CallId>,
    /// The file of the `write` calls is there.
    wrote: bool,
    requests: usize,
    /// Files that keep a lost end which no record names yet.
    uncounted_cuts: Vec<String>,
}

impl Left {
    async fn look(place: &Place, id: SessionId, server: &ModelServer) -> Self {
        let bytes = std::fs::read(place.log_file(id)).unwrap();
        let log = place.log(id).await;
        assert_eq!(std::fs::read(place.log_file(id)).unwrap(), bytes, "reading changes nothing");
        assert_eq!(log.holder, None, "a killed holder frees the session at once");
        let conversation = fold(&log);
        let counted: HashSet<&String> = conversation
            .repairs()
            .iter()
            .filter_map(|record| match &record.event {
                Event::SessionRepaired(data) => Some(&data.files),
                _ => None,
            })
            .flatten()
            .collect();
        let uncounted_cuts =
            torn_files(place, id).into_iter().filter(|name| !counted.contains(name)).collect();
        let synced = std::fs::read_to_string(place.log_file(id).with_file_name("synced")).unwrap_or_default();
        Self {
            id,
            bytes,
            synced: synced.get(..20).map_or(0, |digits| digits.parse().unwrap()),
            conversation,
            log,
            ran: place.ran_calls(),
            wrote: place.work.join(NOTE).exists(),
            requests: server.requests().len(),
            uncounted_cuts,
        }
    }

    fn keeps_what_was_told(&self, told: &Told) {
        for id in &told.accepted {
            let prompt =
                self.conversation.prompt(id).unwrap_or_else(|| panic!("accepted prompt {id} is lost"));
            assert!(prompt.record.seq <= self.synced, "{id} was acknowledged before it was durable");
        }
        for ended in &told.ended {
            let turn = self.conversation.turn(ended["turn"].as_u64().unwrap()).expect("a turn that was seen");
            let (seq, end) = turn.end.as_ref().expect("a turn that was seen to end");
            assert!(*seq <= self.synced, "its end was seen before it was durable");
            assert_eq!(ended["reason"], end.reason.as_str());
            assert_eq!(
                ended["text"],
                answer_of(&self.conversation, turn.number),
                "the whole answer is there"
            );
        }
    }

    /// The policy's records were durable, and in any case written, before anything touched the world.
    fn recorded_before_it_happened(&self) {
        let is_recorded = |seq: Seq, turn: Option<u64>| {
            let policy = turn
                .and_then(|turn| self.conversation.turn(turn))
                .map_or(Policy::Semantic, |turn| turn.policy);
            policy == Policy::Turn || seq <= self.synced
        };
        let headers = self.log.records.iter().filter(|record| match &record.event {
            Event::RequestHeader(data) => is_recorded(record.seq, data.turn),
            _ => false,
        });
        let headers = headers.count();
        assert!(self.requests <= headers, "{} requests left, {headers} of them recorded", self.requests);
        for id in &self.ran {
            let call = self.conversation.call(id).unwrap_or_else(|| panic!("{id} ran and is not in the log"));
            let record = call.dispatched.as_ref().unwrap_or_else(|| panic!("{id} ran without its tool/call"));
            assert!(is_recorded(record.seq, Some(call.turn)), "{id} ran before its tool/call was durable");
        }
        if self.wrote {
            let calls = self.conversation.turns().iter().flat_map(|turn| turn.calls());
            let mut entered =
                calls.filter(|call| call.tool == "write").filter_map(|call| call.dispatched.as_ref());
            let is_durable = entered.any(|record| record.seq <= self.synced);
            assert!(is_durable, "a file was written before the tool/call was durable");
        }
    }

    /// What becomes of each call, by the rules of repair.
    fn expected(&self) -> Vec<(CallId, Expected)> {
        let is_cut = self.log.damage.is_some() || !self.uncounted_cuts.is_empty();
        let turns = self.conversation.turns().iter();
        turns
            .flat_map(|turn| turn.calls().map(move |call| (turn, call)))
            .map(|(turn, call)| {
                let has_gaps = turn.has_gaps || (is_cut && turn.end.is_none());
                let expected = match (call.result(), call.tool_call()) {
                    (Some(result), _) => Expected::Result(result.clone()),
                    (None, Some(entered)) => match &entered.expect {
                        None => Expected::Unknown,
                        Some(expect) => {
                            match std::fs::read(&expect.path).ok().map(|bytes| BlobHash::of(&bytes)) {
                                Some(now) if now == expect.after => Expected::Recovered,
                                now if now == expect.before => Expected::NotApplied,
                                _ => Expected::Unknown,
                            }
                        }
                    },
                    (None, None) if turn.policy == Policy::Semantic && !has_gaps => Expected::NotStarted,
                    (None, None) => Expected::Unknown,
                };
                (call.call_id.clone(), expected)
            })
            .collect()
    }

    /// Opens the session, which runs nothing, repairs what was left, and repairs it once.
    async fn opens(
        &self,
        place: &Place,
        sessions: &Sessions,
        server: &ModelServer,
        expected: &[(CallId, Expected)],
    ) -> Conversation {
        let (session, report) = within(sessions.open(self.id)).await.expect("it opens");
        let made: Vec<_> = report.repaired.iter().map(|(id, _, outcome)| (id.clone(), *outcome)).collect();
        let due: Vec<_> =
            expected.iter().filter_map(|(id, what)| Some((id.clone(), what.repaired()?))).collect();
        assert_eq!(made, due, "each open call is told of as it is");
        assert_eq!(report.was_interrupted, self.conversation.open_turn().is_some());
        assert_eq!(report.queued, self.conversation.queue().count());
        let loses = self.log.damage.is_some() || !self.uncounted_cuts.is_empty();
        assert_eq!(!report.cuts.is_empty(), loses, "{:?} {:?}", report.cuts, self.log.damage);
        let is_damaged = self.log.damage.is_some();
        let half_a_line = if is_damaged { 0 } else { self.bytes.len() - self.whole_part().len() };
        assert_eq!(report.torn_bytes, half_a_line as u64, "what is dropped is told");
        session.close().await.unwrap();

        let bytes = std::fs::read(place.log_file(self.id)).unwrap();
        assert!(bytes.starts_with(self.whole_part()), "no record is changed");
        let (session, report) = within(sessions.open(self.id)).await.expect("it opens again");
        assert_eq!((report.repaired, report.was_interrupted, report.cuts), (vec![], false, vec![]));
        session.close().await.unwrap();
        assert_eq!(
            std::fs::read(place.log_file(self.id)).unwrap(),
            bytes,
            "repair has nothing to add to itself"
        );

        assert_eq!(server.requests().len(), self.requests, "opening sends nothing");
        assert_eq!(place.ran_calls(), self.ran, "opening runs nothing");
        let opened = fold(&place.log(self.id).await);
        assert!(opened.open_turn().is_none() && opened.open_calls().next().is_none());
        for (id, expected) in expected {
            expected.holds(opened.call(id).unwrap());
        }
        if let Some(turn) = self.conversation.open_turn() {
            let turn = opened.turn(turn.number).unwrap();
            assert_eq!(turn.end.as_ref().map(|(_, end)| end.reason), Some(EndReason::Interrupted));
        }
        let named: Vec<String> = opened
            .repairs()
            .iter()
            .filter_map(|record| match &record.event {
                Event::SessionRepaired(data) => Some(data.files.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(named, torn_files(place, self.id), "each lost end is kept, and named once");
        opened
    }

    /// The bytes of the whole records: without half a line, and without an end that was lost.
    fn whole_part(&self) -> &[u8] {
        let lines = self.bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let records = usize::try_from(self.log.last).unwrap();
        let len = lines.take(1 + records).map(<[u8]>::len).sum();
        self.bytes.get(..len).unwrap()
    }
}

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq)]
enum Expected {
    /// The log holds its result.
    Result(ToolResult),
    /// Its body was not entered.
    NotStarted,
    /// Nobody knows.
    Unknown,
    /// A look at the file shows that it was done.
    Recovered,
    /// A look at the file shows that it was not.
    NotApplied,
}

impl Expected {
    fn repaired(&self) -> Option<RepairOutcome> {
        match self {
            Self::Result(_) => None,
            Self::NotStarted => Some(RepairOutcome::NotStarted),
            Self::Unknown => Some(RepairOutcome::Unknown),
            Self::Recovered | Self::NotApplied => Some(RepairOutcome::Recovered),
        }
    }

    fn holds(&self, call: &Call) {
        let result = call.result().unwrap_or_else(|| panic!("{} has no result", call.call_id));
        let is = (result.outcome, result.code.as_deref(), result.recovered);
        let error = Outcome::Error;
        match self {
            Self::Result(before) => assert_eq!(result, before, "what the log holds is never called lost"),
            Self::NotStarted => assert_eq!(is, (error, Some(code::NOT_STARTED), false)),
            Self::Unknown => assert_eq!(is, (error, Some(code::OUTCOME_UNKNOWN), false)),
            Self::Recovered => assert_eq!(is, (Outcome::Ok, None, true)),
            Self::NotApplied => assert_eq!(is, (error, Some(code::NOT_APPLIED), true)),
        }
    }

    /// What the model must be told.
    fn is_told_by(&self, text: &str) {
        let words = match self {
            Self::Result(result) => text_of(&result.content),
            Self::NotStarted => "This call was not started".into(),
            Self::Unknown => "The outcome of this call is unknown".into(),
            Self::Recovered => NOTE.into(),
            Self::NotApplied => "not".into(),
        };
        assert!(text.contains(&words), "{self:?} is told as {text:?}");
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of one judgement")]
async fn goes_on(
    order: &Order,
    place: &Place,
    sessions: &Sessions,
    server: &ModelServer,
    left: &Left,
    opened: &Conversation,
    expected: &[(CallId, Expected)],
    go_on: GoOn,
) {
    let (session, _) = sessions.open(left.id).await.unwrap();
    if go_on == GoOn::Finish && opened.is_interrupted() {
        let outcome = finish(&session).await;
        assert_eq!((outcome.reason(), outcome.not_stored), (EndReason::Completed, None));
    }
    let outcome = run(&session, says("what number")).await;
    assert_eq!((outcome.reason(), outcome.not_stored), (EndReason::Completed, None));
    let knows =
        opened.turns().iter().any(|turn| !turn.prompt_ids.is_empty()) || opened.queue().next().is_some();
    let answer = if knows { "The number is 42." } else { "I know no number." };
    assert_eq!(session.answer_text(outcome.turn), answer, "the past was sent");
    ends_well(order, place, &session).await;

    assert_eq!(server.violations(), Vec::<String>::new(), "every request is one that a provider takes");
    let first = server.requests().into_iter().nth(left.requests).expect("a request after the crash");
    if opened.compaction().is_none() {
        let told = results(&first);
        assert_eq!(told.len(), expected.len(), "every request has one result: {told:#?}");
        for ((_, expected), text) in expected.iter().zip(&told) {
            expected.is_told_by(text);
        }
        for text in cut_off_texts(opened) {
            assert!(said(&first).contains(&text), "the model sees what was streamed: {text:?}");
        }
    }
    if !opened.repairs().is_empty() {
        assert!(first.body.to_string().contains("The end of this conversation's log was lost"));
    }
    session.close().await.unwrap();
}

/// What holds at the end of everything.
async fn ends_well(order: &Order, place: &Place, session: &Session) {
    let log = place.log(session.id()).await;
    assert_eq!(log.damage, None);
    let conversation = fold(&log);
    let ran = place.ran_calls();
    let distinct: HashSet<&CallId> = ran.iter().collect();
    assert_eq!(distinct.len(), ran.len(), "no call runs twice: {ran:?}");
    for call in conversation.turns().iter().flat_map(|turn| turn.calls()) {
        let has_run = distinct.contains(&call.call_id);
        let result = call.result().expect("every call has a result");
        if has_run {
            assert!(call.dispatched.is_some(), "{} ran", call.call_id);
            assert_ne!(result.code.as_deref(), Some(code::NOT_STARTED), "{} ran", call.call_id);
        } else if matches!(call.tool.as_str(), "count" | "look") {
            assert_eq!(result.outcome, Outcome::Error, "{} did not run", call.call_id);
        }
        // An approval is spent by the call it was given for.
        if order.asks != Asks::No && call.tool == "count" && call.dispatched.is_some() {
            let decided = log.records.iter().any(|record| match &record.event {
                Event::PermissionDecided(data) => data.call_id == call.call_id,
                _ => false,
            });
            assert!(decided, "{} ran without a decision of its own", call.call_id);
        }
    }
    let ids: HashSet<&CallId> =
        conversation.turns().iter().flat_map(|turn| turn.calls()).map(|c| &c.call_id).collect();
    assert!(ran.iter().all(|id| ids.contains(id)));
    let check = place.store().check().await.unwrap();
    assert_eq!((check.sound, check.findings), (1, vec![]));
}

/// Texts of messages that were cut off.
fn cut_off_texts(conversation: &Conversation) -> Vec<String> {
    let steps = conversation.turns().iter().flat_map(|turn| &turn.steps);
    let messages = steps.flat_map(|step| &step.messages).filter_map(|said| said.message());
    let cut = messages.filter(|message| message.interrupted).flat_map(|message| &message.content);
    cut.filter_map(Block::as_text).map(str::to_owned).collect()
}

/// The results that a request carries, in order.
pub fn results(request: &Recorded) -> Vec<String> {
    let messages = request.body["messages"].as_array().unwrap();
    match request.wire {
        Wire::Anthropic => messages
            .iter()
            .flat_map(|message| message["content"].as_array().into_iter().flatten())
            .filter(|block| block["type"] == "tool_result")
            .map(texts)
            .collect(),
        Wire::OpenAi => messages.iter().filter(|message| message["role"] == "tool").map(texts).collect(),
        Wire::Responses => unreachable!("only hosted agents speak it"),
    }
}

/// What the model has said, as a request repeats it to it.
fn said(request: &Recorded) -> String {
    let messages = request.body["messages"].as_array().unwrap();
    messages.iter().filter(|message| message["role"] == "assistant").map(texts).collect::<Vec<_>>().join("\n")
}

fn texts(holder: &Value) -> String {
    match &holder["content"] {
        Value::String(text) => text.clone(),
        content => {
            let blocks = content.as_array().into_iter().flatten();
            blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
    }
}

/// The files of a session that keep lost ends.
fn torn_files(place: &Place, id: SessionId) -> Vec<String> {
    let folder = place.log_file(id).parent().unwrap().to_owned();
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut torn: Vec<String> = names.filter(|name| name.starts_with("log.torn-")).collect();
    torn.sort();
    torn
}
