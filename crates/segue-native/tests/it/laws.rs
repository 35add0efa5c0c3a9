//! Laws of history and repair, held against thousands of made logs cut anywhere.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use segue_log::*;
use segue_model::{Parameters, Request, ToolSpec, anthropic, openai};
use segue_testkit::logs::{MadeLog, mark};
use segue_testkit::provider_check::{check_anthropic, check_openai};
use serde_json::{Value, json};

/// How many logs are made, and at how many places each is cut.
const LOGS: u64 = 600;
const CUTS: usize = 3;

static MADE: LazyLock<Vec<MadeLog>> = LazyLock::new(|| (0..LOGS).map(MadeLog::of).collect());

/// The same places for the same seed, spread over the log, and its end.
fn cuts(log: &MadeLog) -> impl Iterator<Item = usize> {
    let len = log.records.len();
    let first = log.seed as usize % 7;
    (0..CUTS).map(move |n| (first * 31 + n * 61 + 13) % (len + 1)).chain([len])
}

/// Runs a law on every cut of every log; whatever it finds wrong is told with the seed and the place.
fn everywhere(law: impl Fn(&MadeLog, &[Arc<Record>], Conversation) -> Result<(), String>) {
    for log in MADE.iter() {
        for len in cuts(log) {
            if let Err(broken) = law(log, &log.records[..len], log.prefix(len)) {
                panic!("seed {}, the first {len} records: {broken}", log.seed);
            }
        }
    }
}

fn apply(conversation: &mut Conversation, events: &[Event]) {
    for event in events {
        let seq = conversation.last() + 1;
        let time = Time::from_millis(0);
        let record = Record { seq, time, event: event.clone(), synced: 0, blobs: Default::default() };
        conversation.apply(&Arc::new(record));
    }
}

fn repaired(mut conversation: Conversation) -> (Conversation, Vec<Event>) {
    let made = repair(&conversation, &Evidence::default());
    apply(&mut conversation, &made);
    (conversation, made)
}

fn ensure(holds: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken()) }
}

/// The bodies of the next request, as each provider would be sent it.
fn bodies(conversation: &Conversation) -> Vec<(&'static str, Value)> {
    let request = |thinking_tokens| Request {
        system: "You are Segue.".into(),
        messages: conversation.history(),
        tools: vec![ToolSpec {
            name: "bash".into(),
            description: "Runs.".into(),
            input_schema: json!({"type": "object"}),
        }],
        parameters: Parameters { thinking_tokens, ..Parameters::default() },
    };
    vec![
        ("anthropic", anthropic::body(&request(None), "anthropic", "claude-sonnet-5-5")),
        ("anthropic, thinking", anthropic::body(&request(Some(2048)), "anthropic", "claude-haiku-4-5")),
        ("openai", openai::body(&request(None), "openai", "gpt-5.5")),
        ("deepseek", openai::body(&request(None), "deepseek", "deepseek-chat")),
    ]
}

fn is_accepted(conversation: &Conversation) -> Result<(), String> {
    for (name, body) in bodies(conversation) {
        let checked =
            if name.starts_with("anthropic") { check_anthropic(&body) } else { check_openai(&body) };
        checked.map_err(|problem| format!("{name} refuses: {problem}\n{body:#}"))?;
    }
    Ok(())
}

#[test]
fn after_repair_every_provider_takes_the_history() {
    everywhere(|_, _, conversation| is_accepted(&repaired(conversation).0));
}

// A crash between two records of a repair, or a call that is waited for, leaves a log that is open still.
#[test]
fn a_history_is_valid_before_repair_too() {
    everywhere(|_, _, conversation| is_accepted(&conversation));
}

#[test]
fn repair_closes_everything_and_has_nothing_to_add_then() {
    everywhere(|_, _, conversation| {
        let open: HashSet<CallId> = conversation.open_calls().map(|call| call.call_id.clone()).collect();
        let (after, made) = repaired(conversation);
        ensure(repair(&after, &Evidence::default()).is_empty(), || "it is not idempotent".into())?;
        ensure(after.open_calls().next().is_none(), || "a call is still open".into())?;
        ensure(after.turns().iter().all(|turn| turn.end.is_some()), || "a turn is still open".into())?;
        let mut answered = HashSet::new();
        for event in &made {
            if let Event::ToolResult(data) = event {
                let id = data.call_id.clone();
                ensure(open.contains(&id), || format!("{id} was not open"))?;
                ensure(answered.insert(id), || format!("{} is answered twice", data.call_id))?;
            }
        }
        ensure(answered == open, || format!("{open:?} were open, {answered:?} answered"))
    });
}

// Killed in the middle of its own repair, the next one only goes on with it.
#[test]
fn a_repair_that_was_cut_short_is_taken_up_where_it_was() {
    everywhere(|_, _, conversation| {
        let (_, whole) = repaired(conversation.clone());
        let mut half = conversation;
        let (first, _) = whole.split_at(whole.len() / 2);
        apply(&mut half, first);
        let rest = repair(&half, &Evidence::default());
        let both: Vec<Event> = first.iter().chain(&rest).cloned().collect();
        ensure(both == whole, || format!("{both:?}\nis not\n{whole:?}"))
    });
}

#[test]
fn a_call_is_not_started_only_where_that_is_certain() {
    everywhere(|log, records, conversation| {
        let (_, made) = repaired(conversation);
        for event in &made {
            let Event::ToolResult(data) = event else { continue };
            let was_entered = records
                .iter()
                .any(|r| matches!(&r.event, Event::ToolCall(call) if call.call_id == data.call_id));
            let (start, policy) = records
                .iter()
                .find_map(|record| match &record.event {
                    Event::TurnStart(start) if start.turn == data.turn => Some((record.seq, start.policy)),
                    _ => None,
                })
                .ok_or("a result without a turn")?;
            let is_gap =
                |r: &&Arc<Record>| matches!(&r.event, Event::SessionRepaired(_) | Event::SessionDamaged(_));
            let is_damaged = records.iter().any(|r| matches!(&r.event, Event::SessionDamaged(_)));
            let has_gap = is_damaged || records.iter().filter(is_gap).any(|record| record.seq > start);
            let forked_at = log.header.parent.map_or(0, |parent| parent.seq);
            let in_parent = (start..=records.len() as Seq).contains(&forked_at);
            let is_certain = !was_entered && policy == Policy::Semantic && !has_gap && !in_parent;
            let told = data.code.as_deref() == Some(code::NOT_STARTED);
            ensure(!told || is_certain, || format!("{} is called not started", data.call_id))?;
            ensure(told || !is_certain, || format!("{} is certainly not started", data.call_id))?;
        }
        Ok(())
    });
}

/// By the mark of its input: what the model is told each call returned.
fn told(history: &[Message]) -> HashMap<String, (bool, Vec<Block>)> {
    let mut ids = HashMap::new();
    let mut told = HashMap::new();
    for message in history {
        match message {
            Message::Assistant { parts, .. } => {
                for part in parts {
                    if let AssistantPart::Request { wire_id, input, .. } = part {
                        ids.insert(wire_id.clone(), input.to_string());
                    }
                }
            }
            Message::User { parts } => {
                for part in parts {
                    if let UserPart::Result { wire_id, error, content } = part
                        && let Some(input) = ids.get(wire_id)
                    {
                        told.insert(input.clone(), (*error, content.clone()));
                    }
                }
            }
        }
    }
    told
}

#[test]
fn what_the_log_holds_is_never_called_lost() {
    everywhere(|_, records, conversation| {
        let after = conversation.compaction().map_or(0, |data| data.up_to);
        let (repaired, _) = repaired(conversation);
        let told = told(&repaired.history());
        for record in records.iter().filter(|record| record.seq > after) {
            let Event::MessageAssistant(message) = &record.event else { continue };
            if message.is_cut_short() {
                continue;
            }
            for block in &message.content {
                let Block::ToolRequest { call_id, .. } = block else { continue };
                let mut results = records.iter().filter_map(|record| match &record.event {
                    Event::ToolResult(data) if data.call_id == *call_id => Some(data),
                    _ => None,
                });
                let known = results.find(|data| data.code.as_deref() != Some(code::OUTCOME_UNKNOWN));
                let Some(known) = known else { continue };
                let marked = told.iter().find(|(input, _)| input.contains(&mark(call_id)));
                let (_, (error, content)) = marked.ok_or_else(|| format!("{call_id} is not told"))?;
                let said = |block: &&Block| block.as_text().is_none_or(|text| !text.trim().is_empty());
                let expected: Vec<Block> = known.content.iter().filter(said).cloned().collect();
                let is_told =
                    *content == expected || (expected.is_empty() && *content == [Block::text("(no output)")]);
                ensure(is_told && *error == (known.outcome == Outcome::Error), || {
                    format!("{call_id} is told as {content:?}, not {expected:?}")
                })?;
            }
        }
        Ok(())
    });
}

/// True if a record says something of what came before the turn that runs, or of a call that had its answer.
fn looks_back(before: &Conversation, event: &Event) -> bool {
    match event {
        Event::ToolResult(data) => {
            before.call(&data.call_id).is_some_and(|call| !call.is_open())
                || before.turns().last().is_some_and(|turn| turn.number != data.turn)
        }
        Event::MessageAssistant(data) => before.turns().last().is_some_and(|turn| turn.number != data.turn),
        Event::Compaction(_) => true,
        _ => false,
    }
}

/// True if `now` begins with all of `then`. Where nothing was answered, the last message of `then` may have grown.
fn goes_on(then: &[Message], now: &[Message]) -> bool {
    if now.len() > then.len() {
        return now.starts_with(then);
    }
    let Some((last, before)) = then.split_last() else { return true };
    if now.get(..before.len()) != Some(before) {
        return false;
    }
    match (last, now.get(before.len())) {
        (Message::User { parts: then }, Some(Message::User { parts: now })) => {
            let is_go_on = |part: &UserPart| matches!(part, UserPart::Note { text } if text.contains("Nothing was added since"));
            // The note that ends a history gives way to what was said instead.
            let then = match then.split_last() {
                Some((last, rest)) if is_go_on(last) && !now.starts_with(then) => rest,
                _ => then,
            };
            now.starts_with(then)
        }
        (then, Some(now)) => then == now,
        (_, None) => false,
    }
}

/// The messages of both wire formats, without the marks that move on with each request and the reasoning that OpenAI's
/// takes in the running round only.
fn on_the_wire(history: &[Message]) -> [Vec<Value>; 2] {
    let request = Request { messages: history.to_vec(), ..Request::default() };
    let bodies = [
        anthropic::body(&request, "anthropic", "claude-sonnet-5-5"),
        openai::body(&request, "openai", "gpt-5.5"),
    ];
    bodies.map(|mut body| {
        let mut messages = body["messages"].as_array_mut().map(std::mem::take).unwrap_or_default();
        for message in &mut messages {
            message.as_object_mut().map(|fields| fields.remove("reasoning_content"));
            for block in message["content"].as_array_mut().into_iter().flatten() {
                block.as_object_mut().map(|fields| fields.remove("cache_control"));
            }
        }
        messages
    })
}

// Providers keep what they were sent: a request that changes what the last one said costs the whole conversation again.
#[test]
fn what_was_sent_once_is_sent_again_unchanged() {
    let mut compared = 0;
    for log in MADE.iter() {
        let mut conversation = Conversation::new(log.header.clone());
        let mut sent: Option<Vec<Message>> = None;
        for record in &log.records {
            if looks_back(&conversation, &record.event) {
                sent = None;
            }
            conversation.apply(record);
            if !matches!(&record.event, Event::RequestHeader(data) if data.purpose == RequestFor::Step) {
                continue;
            }
            let now = conversation.history();
            if let Some(then) = sent.replace(now.clone()) {
                compared += 1;
                if now.len() > then.len() {
                    for (then, now) in on_the_wire(&then).into_iter().zip(on_the_wire(&now)) {
                        let at = format!("seed {}, record {}", log.seed, record.seq);
                        assert!(now.starts_with(&then), "{at}: {then:#?}\nis not how this begins: {now:#?}");
                    }
                }
                assert!(
                    goes_on(&then, &now),
                    "seed {}, record {}: {then:#?}\nis not how this begins: {now:#?}",
                    log.seed,
                    record.seq
                );
            }
        }
    }
    assert!(compared > 1000, "only {compared} requests were compared");
}

/// What can be asked of a conversation, to compare two.
fn view(conversation: &Conversation) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        (conversation.last(), conversation.title(), conversation.settings().clone()),
        conversation.queue().map(|(id, _)| id.clone()).collect::<Vec<_>>(),
        conversation.open_calls().map(|call| call.call_id.clone()).collect::<Vec<_>>(),
        (conversation.compactable(), conversation.is_interrupted(), conversation.session_rules().to_vec()),
        transcript(conversation, &TranscriptOptions::default()),
        conversation.history(),
    )
}

#[test]
fn records_from_disk_fold_like_records_as_they_came() {
    for log in MADE.iter().step_by(10) {
        let mut one_by_one = Conversation::new(log.header.clone());
        for (at, record) in log.records.iter().enumerate() {
            let line = line::encode(record.seq, record.time, &record.event, record.synced).line;
            let read = line::decode(line.as_bytes(), &mut |_| None).unwrap();
            one_by_one.apply(&Arc::new(read));
            if at % 10 == 0 || at + 1 == log.records.len() {
                assert_eq!(view(&one_by_one), view(&log.prefix(at + 1)), "seed {}, {at} records", log.seed);
            }
        }
    }
}

// A survivor that is waited for keeps its turn open; everything else is answered, and it too in the end.
#[test]
fn a_call_that_still_runs_is_waited_for_and_answered_once() {
    let mut waited = 0;
    for log in MADE.iter() {
        for len in cuts(log) {
            let mut conversation = log.prefix(len);
            let Some(call_id) = conversation
                .open_calls()
                .find(|call| call.dispatched.is_some() && !call.open_in_parent)
                .map(|call| call.call_id.clone())
            else {
                continue;
            };
            waited += 1;
            let with = |finding| Evidence { calls: HashMap::from([(call_id.clone(), finding)]) };
            let at = format!("seed {}, {len} records, {call_id}", log.seed);
            let was_open =
                conversation.turn(conversation.call(&call_id).unwrap().turn).unwrap().end.is_none();
            let made = repair(&conversation, &with(Finding::Running));
            apply(&mut conversation, &made);
            let open: Vec<_> = conversation.open_calls().map(|call| call.call_id.clone()).collect();
            assert_eq!(open, std::slice::from_ref(&call_id), "{at}");
            let turn = conversation.call(&call_id).unwrap().turn;
            assert_eq!(conversation.turn(turn).unwrap().end.is_none(), was_open, "{at}");
            assert_eq!(repair(&conversation, &with(Finding::Running)), vec![], "{at}");
            is_accepted(&conversation).unwrap_or_else(|problem| panic!("{at}: {problem}"));
            let real = Finding::Result {
                outcome: Outcome::Ok,
                code: None,
                content: vec![Block::text("the real result")],
            };
            let made = repair(&conversation, &with(real));
            apply(&mut conversation, &made);
            let result = conversation.call(&call_id).unwrap().result().unwrap();
            assert_eq!(text_of(&result.content), "the real result", "{at}");
            assert!(result.recovered, "{at}");
            assert_eq!(repair(&conversation, &Evidence::default()), vec![], "{at}");
        }
    }
    assert!(waited > 50, "only {waited} calls were open");
}
