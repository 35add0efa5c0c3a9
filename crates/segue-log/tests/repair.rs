//! What crashes leave, in small: U a prompt, A a message, C a call, R a result. Each case is a log, what repair answers,
//! and what the model is sent then.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use segue_log::*;
use serde_json::json;

/// A log in the making.
#[derive(Clone)]
struct Log {
    conversation: Conversation,
    turn: u64,
    step: u64,
    attempt: u64,
    policy: Policy,
}

fn header() -> Header {
    Header {
        segue: 1,
        id: SessionId::mint(),
        created: Time::from_millis(0),
        cwd: PathBuf::from("/w"),
        parent: None,
    }
}

fn log() -> Log {
    Log { conversation: Conversation::new(header()), turn: 0, step: 0, attempt: 1, policy: Policy::Semantic }
}

fn call_id(name: &str) -> CallId {
    name.parse().unwrap()
}

impl Log {
    fn add(mut self, event: impl Into<Event>) -> Self {
        self.push(event.into());
        self
    }

    fn push(&mut self, event: Event) {
        let seq = self.conversation.last() + 1;
        let record =
            Record { seq, time: Time::from_millis(seq as i64), event, synced: 0, blobs: Default::default() };
        self.conversation.apply(&Arc::new(record));
    }

    fn queue(self, id: &str, target: PromptFor) -> Self {
        self.queue_text(id, id, target)
    }

    fn queue_text(self, id: &str, text: &str, target: PromptFor) -> Self {
        let content = vec![Block::text(text)];
        self.add(PromptQueued { prompt_id: id.parse().unwrap(), content, source: String::new(), target })
    }

    /// A prompt, its turn and its first step.
    fn u(self, id: &str) -> Self {
        self.u_text(id, id)
    }

    fn u_text(mut self, id: &str, text: &str) -> Self {
        (self.turn, self.step) = (self.turn + 1, 1);
        let (turn, policy) = (self.turn, self.policy);
        self.queue_text(id, text, PromptFor::Turn)
            .add(TurnStart { turn, prompt_ids: vec![id.parse().unwrap()], policy, finish: None })
            .add(StepStart { turn, step: 1, prompt_ids: vec![] })
    }

    fn next_step(mut self) -> Self {
        let (turn, step) = (self.turn, self.step);
        self.step += 1;
        self.add(StepEnd { turn, step }).add(StepStart { turn, step: step + 1, prompt_ids: vec![] })
    }

    fn a(self, text: &str, calls: &[&str]) -> Self {
        self.said(text, calls, None, false)
    }

    fn said(self, text: &str, calls: &[&str], stop: Option<&str>, interrupted: bool) -> Self {
        let mut content =
            vec![Block::Thinking { text: "hm".into(), signature: Some("s".into()), redacted: None }];
        content.extend((!text.is_empty()).then(|| Block::text(text)));
        content.extend(calls.iter().map(|name| Block::ToolRequest {
            call_id: call_id(name),
            provider_id: format!("p{name}"),
            tool: "bash".into(),
            input: json!({}),
        }));
        let (turn, step, attempt) = (self.turn, self.step, self.attempt);
        let (usage, stop) = (Usage::default(), stop.map(str::to_owned));
        self.add(MessageAssistant { turn, step, attempt, content, usage, stop, interrupted, replayed: false })
    }

    fn partial(self, attempt: u64, text: &str) -> Self {
        let (turn, step) = (self.turn, self.step);
        self.add(MessagePartial { turn, step, attempt, content: vec![Block::text(text)] })
    }

    fn c(self, name: &str) -> Self {
        self.entered(name, Effect::Write)
    }

    fn entered(self, name: &str, effect: Effect) -> Self {
        let (turn, step) = (self.turn, self.step);
        self.add(ToolCall {
            turn,
            step,
            call_id: call_id(name),
            provider_id: String::new(),
            tool: "bash".into(),
            input: json!({}),
            effect,
            expect: None,
            origin: Origin::Dispatched,
            host: String::new(),
            boot: String::new(),
            replayed: false,
        })
    }

    fn r(self, name: &str) -> Self {
        let (turn, step) = (self.turn, self.step);
        self.add(ToolResult {
            turn,
            step,
            call_id: call_id(name),
            outcome: Outcome::Ok,
            code: None,
            content: vec![Block::text(format!("did {name}"))],
            recovered: false,
            replayed: false,
        })
    }

    fn end(self) -> Self {
        let (turn, step) = (self.turn, self.step);
        self.add(StepEnd { turn, step }).add(TurnEnd {
            turn,
            reason: EndReason::Completed,
            code: None,
            message: None,
            title: String::new(),
            turns: turn,
            usage: Usage::default(),
        })
    }

    fn asked(self, name: &str) -> Self {
        let (turn, step) = (self.turn, self.step);
        let (call_id, tool, shown) = (call_id(name), "bash".into(), String::new());
        self.add(PermissionAsked { turn, step, call_id, tool, shown, rule: None })
    }

    fn allowed(self, name: &str) -> Self {
        let (turn, step, outcome) = (self.turn, self.step, PermissionOutcome::AllowOnce);
        let call_id = call_id(name);
        self.add(PermissionDecided {
            turn,
            step,
            call_id,
            outcome,
            by: "me".into(),
            rule: None,
            reason: None,
        })
    }

    fn settled(self, name: &str, how: Settlement) -> Self {
        let (turn, step) = (self.turn, self.step);
        self.add(CallSettled {
            turn,
            step,
            call_id: call_id(name),
            how,
            note: "seen".into(),
            by: "me".into(),
        })
    }

    fn repaired(mut self, evidence: &Evidence) -> (Self, Vec<Event>) {
        let made = repair(&self.conversation, evidence);
        let before = self.conversation.last();
        made.iter().for_each(|event| self.push(event.clone()));
        assert_eq!(self.conversation.last(), before + made.len() as u64);
        assert_eq!(repair(&self.conversation, &Evidence::default()), vec![], "repair is idempotent");
        (self, made)
    }
}

/// What repair made, in short.
fn outline(events: &[Event]) -> String {
    let one = |event: &Event| match event {
        Event::ToolResult(data) => {
            let word = data.code.as_deref().unwrap_or("ok").trim_start_matches("TOOL_");
            format!("{}:{word}{}", data.call_id, if data.recovered { "!" } else { "" })
        }
        Event::MessageAssistant(data) => format!("cut({})", text_of(&data.content)),
        Event::StepEnd(data) => format!("step{}.{}", data.turn, data.step),
        Event::TurnEnd(data) => format!("turn{}:{}", data.turn, data.reason.as_str()),
        other => other.kind().to_owned(),
    };
    events.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// A history in short; notes and guidance by their first words.
fn sent(conversation: &Conversation) -> String {
    let short = |text: &str| text.chars().take(24).collect::<String>();
    let user = |part: &UserPart| match part {
        UserPart::Result { wire_id, content, .. } => format!("{wire_id}={}", short(&text_of(content))),
        UserPart::Block(block) => block.as_text().unwrap_or("?").to_owned(),
        UserPart::Note { text } => format!("({})", short(text.trim_start_matches("<segue-note>"))),
    };
    let assistant = |part: &AssistantPart| match part {
        AssistantPart::Text { text } => text.clone(),
        AssistantPart::Thinking { .. } => "~".into(),
        AssistantPart::Request { wire_id, .. } => wire_id.clone(),
    };
    let one = |message: &Message| match message {
        Message::User { parts } => format!("U[{}]", parts.iter().map(user).collect::<Vec<_>>().join(", ")),
        Message::Assistant { parts, .. } => {
            format!("A[{}]", parts.iter().map(assistant).collect::<Vec<_>>().join(", "))
        }
    };
    conversation.history().iter().map(one).collect::<Vec<_>>().join(" ")
}

fn check(log: Log, made: &str, history: &str) {
    let (log, events) = log.repaired(&Evidence::default());
    assert_eq!(outline(&events), made);
    assert_eq!(sent(&log.conversation), history);
}

fn found(name: &str, finding: Finding) -> Evidence {
    Evidence { calls: HashMap::from([(call_id(name), finding)]) }
}

const NO: &str = "This call was not starte";
const UNKNOWN: &str = "The outcome of this call";

#[test]
fn a_whole_log_needs_nothing() {
    check(log(), "", "U[(Nothing was added since.)]");
    check(log().u("hi").a("yes", &[]).end(), "", "U[hi] A[~, yes] U[(Nothing was added since.)]");
}

// Case 1: every later request was refused because one call had no result.
#[test]
fn one_of_two_results() {
    check(
        log().u("hi").a("", &["c1", "c2"]).c("c1").r("c1"),
        "c2:NOT_STARTED step1.1 turn1:interrupted",
        &format!("U[hi] A[~, pc1, pc2] U[pc1=did c1, pc2={NO}]"),
    );
}

// Case 2: only the tail of the log was repaired, not a hole in its middle.
#[test]
fn a_hole_in_an_old_turn() {
    check(
        log().u("one").a("", &["c1"]).c("c1").u("two").a("fine", &[]).end(),
        "c1:OUTCOME_UNKNOWN step1.1 turn1:interrupted",
        &format!("U[one] A[~, pc1] U[pc1={UNKNOWN}, two] A[~, fine] U[(Nothing was added since.)]"),
    );
    check(
        log().u("one").a("", &["c1"]).c("c1").end().u("two").a("fine", &[]).end(),
        "c1:OUTCOME_UNKNOWN",
        &format!("U[one] A[~, pc1] U[pc1={UNKNOWN}, two] A[~, fine] U[(Nothing was added since.)]"),
    );
}

// Case 3: only the first missing result was added.
#[test]
fn results_keep_the_models_order() {
    check(
        log().u("hi").a("", &["c1", "c2", "c3"]).c("c2").r("c2"),
        "c1:NOT_STARTED c3:NOT_STARTED step1.1 turn1:interrupted",
        &format!("U[hi] A[~, pc1, pc2, pc3] U[pc1={NO}, pc2=did c2, pc3={NO}]"),
    );
}

// Case 4: compaction failed on an unbalanced history.
#[test]
fn compaction_waits_for_repair() {
    let open = log().u("hi").a("", &["c1"]).c("c1");
    assert_eq!(open.conversation.compactable(), None);
    let (log, _) = open.repaired(&Evidence::default());
    assert_eq!(log.conversation.compactable(), Some(log.conversation.last()));
}

// Case 5: a pair was split by what lay between.
#[test]
fn pairs_are_found_by_id() {
    let plan = Plan { entries: vec![] };
    check(
        log().u("hi").a("", &["c1"]).c("c1").add(plan).queue("later", PromptFor::Turn).r("c1"),
        "step1.1 turn1:interrupted",
        "U[hi] A[~, pc1] U[pc1=did c1]",
    );
}

// Case 7: the call was deleted, so the model thought that nothing had happened.
#[test]
fn an_entered_call_stays() {
    let open = || log().u("hi").a("", &["c1"]).c("c1");
    check(
        open(),
        "c1:OUTCOME_UNKNOWN step1.1 turn1:interrupted",
        &format!("U[hi] A[~, pc1] U[pc1={UNKNOWN}]"),
    );
    let real = Finding::Result { outcome: Outcome::Ok, code: None, content: vec![Block::text("real")] };
    let (log, made) = open().repaired(&found("c1", real));
    assert_eq!(outline(&made), "c1:ok! step1.1 turn1:interrupted");
    assert_eq!(sent(&log.conversation), "U[hi] A[~, pc1] U[pc1=real]");
}

#[test]
fn the_advice_names_the_effect() {
    for (effect, advice) in [
        (Effect::Read, "only reads"),
        (Effect::Idempotent, "exactly that input"),
        (Effect::Write, "never call it again blindly"),
    ] {
        let (_, made) = log().u("hi").a("", &["c1"]).entered("c1", effect).repaired(&Evidence::default());
        let Some(Event::ToolResult(result)) = made.first() else { panic!("a result") };
        assert!(text_of(&result.content).contains(advice), "{effect:?}");
    }
}

#[test]
fn a_survivor_is_waited_for_or_told_to_have_been_ended() {
    let open = || log().u("hi").a("", &["c1", "c2"]).c("c1");
    let made = repair(&open().conversation, &found("c1", Finding::Running));
    assert_eq!(outline(&made), "c2:NOT_STARTED");
    assert_eq!(
        repair_summary(&open().conversation, &made),
        vec![
            (call_id("c2"), "bash".into(), RepairOutcome::NotStarted),
            (call_id("c1"), "bash".into(), RepairOutcome::Running)
        ]
    );
    let (_, made) = open().repaired(&found("c1", Finding::Stopped { output: "half".into() }));
    assert_eq!(outline(&made), "c1:OUTCOME_UNKNOWN c2:NOT_STARTED step1.1 turn1:interrupted");
    let Some(Event::ToolResult(result)) = made.first() else { panic!("a result") };
    assert!(text_of(&result.content).contains("was ended then"));
    assert!(text_of(&result.content).ends_with("Its output so far:\nhalf"));
}

// Cases 9 and 37: killed while a person was asked, or right after the answer: nothing ran.
#[test]
fn an_answer_without_a_call_started_nothing() {
    let asked = log().u("hi").a("", &["c1"]).asked("c1");
    for log in [asked.clone(), asked.allowed("c1")] {
        check(log, "c1:NOT_STARTED step1.1 turn1:interrupted", &format!("U[hi] A[~, pc1] U[pc1={NO}]"));
    }
}

// Case 38: both of two parallel calls were called unknown although one had finished.
#[test]
fn what_the_log_holds_is_never_called_lost() {
    check(
        log().u("hi").a("", &["c1", "c2"]).c("c1").c("c2").r("c2"),
        "c1:OUTCOME_UNKNOWN step1.1 turn1:interrupted",
        &format!("U[hi] A[~, pc1, pc2] U[pc1={UNKNOWN}, pc2=did c2]"),
    );
}

// Case 41: the streamed text was durable, but the model never saw it.
#[test]
fn streamed_text_becomes_a_cut_off_message() {
    check(
        log().u("hi").partial(1, "half ").partial(1, "an answer"),
        "cut(half an answer) step1.1 turn1:interrupted",
        "U[hi] A[half an answer] U[(Nothing was added since.)]",
    );
}

#[test]
fn of_several_attempts_the_last_that_streamed_counts() {
    check(
        log().u("hi").partial(1, "first").partial(2, "second"),
        "cut(second) step1.1 turn1:interrupted",
        "U[hi] A[second] U[(Nothing was added since.)]",
    );
    check(
        log().u("hi").partial(1, "first").partial(2, "second").a("whole", &[]).end(),
        "",
        "U[hi] A[~, whole] U[(Nothing was added since.)]",
    );
}

#[test]
fn a_message_cut_short_is_sent_as_its_text_only() {
    for (stop, interrupted) in [(None, true), (Some("max_tokens"), false), (Some("refused"), false)] {
        check(
            log().u("hi").said("half", &["c1"], stop, interrupted).end(),
            "",
            "U[hi] A[half] U[(Nothing was added since.)]",
        );
        check(
            log().u("hi").said("", &["c1"], stop, interrupted).end().u("again"),
            "step2.1 turn2:interrupted",
            "U[hi, again]",
        );
    }
}

#[test]
fn where_the_policy_or_a_cut_hides_records_absence_proves_nothing() {
    let mut loose = log();
    loose.policy = Policy::Turn;
    check(
        loose.u("hi").a("", &["c1"]),
        "c1:OUTCOME_UNKNOWN step1.1 turn1:interrupted",
        &format!("U[hi] A[~, pc1] U[pc1={UNKNOWN}]"),
    );
    let cut = log().u("hi").a("", &["c1"]);
    let cut_at = cut.conversation.last();
    let cut = cut.add(SessionRepaired { cut_at, files: vec!["log.torn-1".into()] });
    check(
        cut,
        "c1:OUTCOME_UNKNOWN step1.1 turn1:interrupted",
        &format!("U[hi] A[~, pc1] U[pc1={UNKNOWN}, (The end of this conversa)]"),
    );
    // A cut before the turn says nothing of it.
    let later = log().u("one").a("yes", &[]).end();
    let cut_at = later.conversation.last();
    let later = later.add(SessionRepaired { cut_at, files: vec![] }).u("two").a("", &["c1"]);
    let (_, made) = later.repaired(&Evidence::default());
    assert_eq!(outline(&made), "c1:NOT_STARTED step2.1 turn2:interrupted");
    // A line that cannot be read hides what it said.
    let damaged =
        log().u("hi").a("", &["c1"]).add(SessionDamaged { line: String::new(), reason: String::new() });
    let (_, made) = damaged.repaired(&Evidence::default());
    assert_eq!(outline(&made), "c1:OUTCOME_UNKNOWN step1.1 turn1:interrupted");
}

#[test]
fn a_fork_inherits_no_queue_no_rules_and_knows_nothing_of_open_calls() {
    let parent = log().queue("waiting", PromptFor::Turn).u("hi").a("", &["c1"]);
    let seq = parent.conversation.last();
    let mut fork = log();
    let forked = Header { parent: Some(Parent { id: SessionId::mint(), seq }), ..header() };
    fork.conversation = Conversation::new(forked);
    let fork = fork.queue("waiting", PromptFor::Turn).u("hi").a("", &["c1"]);
    assert_eq!(fork.conversation.queue().count(), 0);
    assert!(fork.conversation.prompt(&"waiting".parse().unwrap()).is_none());
    let (_, made) = fork.repaired(&Evidence::default());
    assert_eq!(outline(&made), "c1:OUTCOME_UNKNOWN step1.1 turn1:interrupted");
    let Some(Event::ToolResult(result)) = made.first() else { panic!("a result") };
    assert!(text_of(&result.content).contains("parent session"));
}

#[test]
fn a_known_result_supersedes_an_unknown_one_and_late_ones_become_notes() {
    let (unknown, _) = log().u("hi").a("", &["c1"]).c("c1").repaired(&Evidence::default());
    let late = unknown.clone().r("c1");
    assert_eq!(sent(&late.conversation), "U[hi] A[~, pc1] U[pc1=did c1]");
    let up_to = unknown.conversation.last();
    let compacted = unknown.add(Compaction { up_to, summary: "short".into() });
    assert_eq!(sent(&compacted.conversation), "U[(The conversation so far,), hi]");
    let noted = compacted.r("c1").settled("c1", Settlement::Retry);
    assert_eq!(
        sent(&noted.conversation),
        "U[(The conversation so far,), hi, (The result of an earlier), (The person settled the o)]"
    );
}

#[test]
fn a_settlement_is_told_where_it_was_made() {
    let (log, _) = log().u("hi").a("", &["c1"]).c("c1").repaired(&Evidence::default());
    let log = log.settled("c1", Settlement::Done).u("more").a("ok", &[]).end();
    assert_eq!(
        sent(&log.conversation),
        format!(
            "U[hi] A[~, pc1] U[pc1={UNKNOWN}, (The person settled the o), more] A[~, ok] U[(Nothing was added since.)]"
        )
    );
}

// A note made while an answer streamed was put before that answer, as though the model had been told it: what was sent
// once changed, and after a cut the last words seemed to come after the loss.
#[test]
fn a_note_made_while_the_model_answered_follows_the_answer() {
    let asked = |log: Log| {
        let (turn, step) = (Some(log.turn), Some(log.step));
        let (model, parameters, system, tools) = (Some("p/m".to_owned()), None, None, None);
        let (attempt, purpose, same_as) = (1, RequestFor::Step, None);
        log.add(RequestHeader { turn, step, attempt, purpose, same_as, model, parameters, system, tools })
    };
    let (log, _) = log().u("hi").a("", &["c1"]).c("c1").repaired(&Evidence::default());
    let unknown = format!("U[hi] A[~, pc1] U[pc1={UNKNOWN}, more]");
    let log = asked(log.u("more"));
    let settled = log.clone();
    let settled = Log { turn: 1, ..settled }.settled("c1", Settlement::Done);
    let settled = Log { turn: 2, ..settled }.a("ok", &[]);
    assert_eq!(sent(&settled.conversation), format!("{unknown} A[~, ok] U[(The person settled the o)]"));
    let cut_at = log.conversation.last() + 1;
    let cut = log.partial(1, "half").add(SessionRepaired { cut_at, files: vec![] });
    let (cut, _) = cut.repaired(&Evidence::default());
    assert_eq!(sent(&cut.conversation), format!("{unknown} A[half] U[(The end of this conversa)]"));
}

#[test]
fn compaction_keeps_prompts_that_are_not_answered_yet() {
    let log = log().u("old").a("fine", &[]).end().u("new").a("", &["c1"]).c("c1").r("c1").next_step();
    let up_to = log.conversation.compactable().unwrap();
    let log = log.add(Compaction { up_to, summary: "short".into() });
    assert_eq!(sent(&log.conversation), "U[(The conversation so far,), new]");
    let log = log.a("done", &[]).end();
    assert_eq!(
        sent(&log.conversation),
        "U[(The conversation so far,), new] A[~, done] U[(Nothing was added since.)]"
    );
    assert_eq!(log.conversation.compactable(), Some(log.conversation.last()));
}

// `finish` after a compaction had nothing but the summary to go by: the prompt of the turn that broke off was gone.
#[test]
fn compaction_keeps_the_prompts_of_turns_that_broke_off() {
    let log =
        log().u("old").a("fine", &[]).end().u("new").queue("also", PromptFor::Step).a("", &["c1"]).r("c1");
    let log = log.add(StepEnd { turn: 2, step: 1 }).add(StepStart {
        turn: 2,
        step: 2,
        prompt_ids: vec!["also".parse().unwrap()],
    });
    let (log, _) = log.repaired(&Evidence::default());
    let up_to = log.conversation.compactable().unwrap();
    assert_eq!(up_to, log.conversation.last());
    let log = log.add(Compaction { up_to, summary: "short".into() });
    assert_eq!(sent(&log.conversation), "U[(The conversation so far,), new, also]");
    let log = log.u("then").a("done", &[]).end();
    let up_to = log.conversation.compactable().unwrap();
    let log = log.add(Compaction { up_to, summary: "shorter".into() });
    assert_eq!(sent(&log.conversation), "U[(The conversation so far,)]");
}

// A prompt sent into the running turn was lost to the model when the step that claimed it was compacted away.
#[test]
fn compaction_keeps_the_step_prompts_of_a_turn_that_goes_on() {
    let log = log().u("old").a("fine", &[]).end().u("new").queue("also", PromptFor::Step);
    let mut log = log.a("", &["c1"]).c("c1").r("c1");
    log.step = 2;
    let log = log
        .add(StepEnd { turn: 2, step: 1 })
        .add(StepStart { turn: 2, step: 2, prompt_ids: vec!["also".parse().unwrap()] })
        .a("", &["c2"])
        .c("c2")
        .r("c2")
        .next_step();
    let up_to = log.conversation.compactable().unwrap();
    let log = log.add(Compaction { up_to, summary: "short".into() });
    assert_eq!(sent(&log.conversation), "U[(The conversation so far,), new, also]");
}

// The content of a message can be lost with its blob, the lines of starts and messages with a bad sector. What ran all the
// same had vanished, and a prompt whose claim was lost ran again.
#[test]
fn calls_outlive_the_records_that_lead_to_them() {
    let damaged = || SessionDamaged { line: String::new(), reason: String::new() };
    let lost = |log: Log| log.said("lost", &[], Some("tool_use"), false).c("c1").r("c1").c("c2");
    check(
        lost(log().u("hi")),
        "c2:OUTCOME_UNKNOWN step1.1 turn1:interrupted",
        &format!("U[hi] A[~, lost, c1, c2] U[c1=did c1, c2={UNKNOWN}]"),
    );
    check(
        log().u("hi").add(damaged()).c("c1").r("c1"),
        "step1.1 turn1:interrupted",
        "U[hi] A[c1] U[c1=did c1]",
    );
    let mut no_start = log().queue("hi", PromptFor::Turn).queue("next", PromptFor::Turn).add(damaged());
    (no_start.turn, no_start.step) = (1, 1);
    let no_start = no_start.add(damaged()).a("", &["c1", "c2"]).c("c1").r("c1");
    assert_eq!(no_start.conversation.next_turn(), 2);
    let waiting: Vec<&str> = no_start.conversation.queue().map(|(id, _)| id.as_str()).collect();
    assert_eq!(waiting, ["next"]);
    check(
        no_start,
        "c2:OUTCOME_UNKNOWN step1.1 turn1:interrupted",
        &format!("U[hi] A[~, pc1, pc2] U[pc1=did c1, pc2={UNKNOWN}]"),
    );
}

// A record of a known type that cannot be read may be the very one that says that a call was entered.
#[test]
fn a_record_that_cannot_be_read_makes_absence_no_evidence() {
    let unknown = |kind: &str| Event::Unknown { kind: kind.into(), data: json!({"turn": "one"}) };
    for (kind, code) in [("tool/call", "OUTCOME_UNKNOWN"), ("future/thing", "NOT_STARTED")] {
        let (_, made) = log().u("hi").a("", &["c1"]).add(unknown(kind)).repaired(&Evidence::default());
        assert_eq!(outline(&made), format!("c1:{code} step1.1 turn1:interrupted"), "{kind}");
    }
}

#[test]
fn provider_ids_that_repeat_are_replaced_by_ours() {
    let again = |log: Log, name: &str| {
        let (turn, step) = (log.turn, log.step);
        let request = Block::ToolRequest {
            call_id: call_id(name),
            provider_id: "call_0".into(),
            tool: "bash".into(),
            input: json!({}),
        };
        let (usage, stop) = (Usage::default(), None);
        let content = vec![request];
        log.add(MessageAssistant {
            turn,
            step,
            attempt: 1,
            content,
            usage,
            stop,
            interrupted: false,
            replayed: false,
        })
        .c(name)
        .r(name)
    };
    let log = again(again(log().u("hi"), "c1").next_step(), "c2").next_step();
    assert_eq!(sent(&log.conversation), "U[hi] A[call_0] U[call_0=did c1] A[c2] U[c2=did c2]");
}

#[test]
fn the_queue_outlives_a_crash_and_a_turn_claims_from_it() {
    let log = log().queue("b", PromptFor::Turn).u("a").queue("s", PromptFor::Step);
    let waiting = |log: &Log| log.conversation.queue().map(|(id, _)| id.to_string()).collect::<Vec<_>>();
    let (log, _) = log.repaired(&Evidence::default());
    assert_eq!(waiting(&log), ["b", "s"]);
    let log = log.add(PromptRemoved { prompt_id: "b".parse().unwrap(), by: "me".into() });
    assert_eq!(waiting(&log), ["s"]);
    assert_eq!(
        log.conversation.prompt(&"a".parse().unwrap()).unwrap().place,
        PromptPlace::Claimed { turn: 1 }
    );
}

#[test]
fn the_transcript_reads_like_the_conversation() {
    let (log, _) = log()
        .u_text("p", "fix \u{1b}[31mit")
        .a("Looking.", &["c1", "c2"])
        .c("c1")
        .r("c1")
        .repaired(&Evidence::default());
    let log = log.queue("later", PromptFor::Turn);
    assert_eq!(
        transcript(&log.conversation, &TranscriptOptions::default()),
        "> fix it\n\nLooking.\n\n- **bash** `{}` (c1)\n  ok\n\n      did c1\n\n- **bash** `{}` (c2)\n  TOOL_NOT_STARTED\n\n      \
         This call was not started: the process ended before its turn came. It may be called again if it is still wanted.\n\n\
         *Turn 1 ended: interrupted.*\n\n*Waiting in the queue:*\n\n> later\n"
    );
}
