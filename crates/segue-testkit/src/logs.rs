//! Plausible logs by the thousand: whatever a session can go through, chosen by a seed.
//!
//! A log comes about as a real one does: a queue, turns, steps, requests with several attempts, messages whole and cut
//! off, calls beside each other, questions, crashes with and without repair, cuts, forks, compactions, settlements and
//! results that come late. Each call can be told from all others by its input and its result, so that a check can follow
//! it to the wire.

mod turn;

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use segue_log::*;
use serde_json::{Value, json};

/// A log made from a seed.
#[derive(Debug, Clone)]
pub struct MadeLog {
    /// What it was made from.
    pub seed: u64,
    /// Its header; that of a fork names the record that it was forked at.
    pub header: Header,
    /// Its records.
    pub records: Vec<Arc<Record>>,
}

impl MadeLog {
    /// The log of a seed; always the same one for the same seed.
    pub fn of(seed: u64) -> Self {
        let mut maker = Maker::new(seed);
        maker.session();
        Self { seed, header: maker.conversation.header().clone(), records: maker.records }
    }

    /// The fold of its first `len` records. Fewer than a fork was made of are still its parent's.
    pub fn prefix(&self, len: usize) -> Conversation {
        let parent = self.header.parent.filter(|parent| parent.seq <= len as Seq);
        Conversation::of(Header { parent, ..self.header.clone() }, self.records.iter().take(len))
    }
}

/// The words that a call's input carries, and its result too.
pub fn mark(call: &CallId) -> String {
    format!("<{call}>")
}

/// The process died here.
struct Crash;

type Lives = Result<(), Crash>;

struct Maker {
    random: StdRng,
    conversation: Conversation,
    records: Vec<Arc<Record>>,
    policy: Policy,
    model: String,
    /// One crash in about so many records.
    dies: f64,
    minted: u64,
}

/// A 1 by 1 pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const MODELS: [&str; 4] =
    ["anthropic/claude-sonnet-5-5", "anthropic/claude-haiku-4-5", "openai/gpt-5.5", "deepseek/deepseek-chat"];

impl Maker {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let policy = if random.random_bool(0.75) { Policy::Semantic } else { Policy::Turn };
        let dies = *[0.0, 0.01, 0.03, 0.1].choose(&mut random).unwrap_or(&0.0);
        let model = MODELS.choose(&mut random).unwrap_or(&MODELS[0]).to_string();
        let header = Header {
            segue: FORMAT,
            id: SessionId::mint(),
            created: Time::from_millis(0),
            cwd: "/work".into(),
            parent: None,
        };
        let conversation = Conversation::new(header);
        Self { random, conversation, records: Vec::new(), policy, model, dies, minted: 0 }
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.random.random_range(0..from.len())].clone()
    }

    fn id(&mut self, kind: &str) -> String {
        self.minted += 1;
        format!("{kind}{}", self.minted)
    }

    /// Adds a record that no crash falls on.
    fn put(&mut self, event: impl Into<Event>) {
        let seq = self.conversation.last() + 1;
        let record = Arc::new(Record {
            seq,
            time: Time::from_millis(seq as i64),
            event: event.into(),
            synced: seq - 1,
            blobs: Default::default(),
        });
        self.conversation.apply(&record);
        self.records.push(record);
    }

    /// Adds a record, unless the process dies before it.
    fn add(&mut self, event: impl Into<Event>) -> Lives {
        if self.dies > 0.0 && self.chance(self.dies) {
            return Err(Crash);
        }
        self.put(event);
        Ok(())
    }

    fn session(&mut self) {
        self.put(SessionConfig {
            agent: Some("segue".into()),
            model: Some(self.model.clone()),
            permissions: None,
            cwd: None,
            by: "test".into(),
        });
        for _ in 0..self.random.random_range(1..6) {
            if self.between().and_then(|()| self.turn()).is_err() {
                self.after_a_crash();
            } else if self.chance(0.05) {
                self.fork();
            }
        }
        if self.between().is_err() {
            self.after_a_crash();
        }
    }

    /// What happens between two turns.
    fn between(&mut self) -> Lives {
        for _ in 0..self.random.random_range(0..4) {
            match self.random.random_range(0..12) {
                0 => self.queue(PromptFor::Turn)?,
                1 => {
                    let first = self.conversation.queue().next().map(|(id, _)| id.clone());
                    if let Some(prompt_id) = first {
                        self.add(PromptRemoved { prompt_id, by: "test".into() })?;
                    }
                }
                2 => {
                    let title = self.words();
                    self.add(SessionTitle { title, by: "test".into() })?;
                }
                3 => {
                    self.model = self.pick(&MODELS).to_owned();
                    let model = Some(self.model.clone());
                    let (agent, permissions, cwd, by) = (None, None, None, "test".into());
                    self.add(SessionConfig { agent, model, permissions, cwd, by })?;
                }
                4 | 5 => self.settle()?,
                6 | 7 => self.late_result()?,
                8 | 9 => self.compact(None)?,
                10 => self.add(Event::Unknown { kind: "future/thing".into(), data: json!({"turn": 1}) })?,
                _ => self.add(AgentUpdate { update: json!({"sessionUpdate": "unheard of"}) })?,
            }
        }
        Ok(())
    }

    /// What the next process does first: cuts what was lost, repairs what is open. Old logs were not repaired.
    fn after_a_crash(&mut self) {
        let last = self.conversation.last();
        if self.chance(0.2) {
            let cut_at = last.saturating_sub(self.random.random_range(0..2));
            self.put(SessionRepaired { cut_at, files: vec!["log.torn-1".into()] });
        }
        if self.chance(0.05) {
            self.put(SessionDamaged { line: "{".into(), reason: "the checksum is wrong".into() });
        }
        if self.chance(0.8) {
            self.repair();
        }
    }

    fn repair(&mut self) {
        let mut evidence = Evidence::default();
        let open: Vec<CallId> = self.conversation.open_calls().map(|call| call.call_id.clone()).collect();
        for call_id in open {
            let output = self.words();
            let finding = match self.random.random_range(0..6) {
                0 => Finding::Result { outcome: Outcome::Ok, code: None, content: self.returned(&call_id) },
                1 => Finding::Stopped { output },
                2 => Finding::Gone { output },
                _ => continue,
            };
            // Only a call that was entered leaves traces.
            if self.conversation.call(&call_id).is_some_and(|call| call.dispatched.is_some()) {
                evidence.calls.insert(call_id, finding);
            }
        }
        for event in repair(&self.conversation, &evidence) {
            // Killed again in the middle of its repair; the next opening goes on with it.
            if self.add(event).is_err() {
                return self.repair();
            }
        }
    }

    /// From here on the log is that of a fork.
    fn fork(&mut self) {
        let mut header = self.conversation.header().clone();
        if header.parent.is_some() {
            return;
        }
        header.parent = Some(Parent { id: SessionId::mint(), seq: self.conversation.last() });
        self.conversation = Conversation::of(header, &self.records);
        self.repair();
    }

    fn queue(&mut self, target: PromptFor) -> Lives {
        let prompt_id = parsed(&self.id("p"));
        let mut content = vec![Block::text(format!("prompt {prompt_id}: {}", self.words()))];
        match self.random.random_range(0..8) {
            0 => content.push(image("image/png")),
            1 => content.insert(0, image("image/tiff")),
            2 => content.push(Block::text(" \n")),
            3 => content.push(Block::Resource {
                uri: "file:///work/a.rs".into(),
                media_type: None,
                text: Some("fn a() {}".into()),
            }),
            4 => content = vec![image("image/jpeg")],
            5 => content.push(Block::Image { media_type: "image/png".into(), data: "no Base64!".into() }),
            _ => {}
        }
        self.add(PromptQueued { prompt_id, content, source: "test".into(), target })
    }

    fn settle(&mut self) -> Lives {
        let unknown = self.unknown_calls();
        let Some(call) = unknown.choose(&mut self.random).cloned() else { return Ok(()) };
        let how = self.pick(&[Settlement::Done, Settlement::Skip, Settlement::Retry]);
        let note = if self.chance(0.5) { self.words() } else { String::new() };
        let (turn, step, call_id) = call;
        self.add(CallSettled { turn, step, call_id, how, note, by: "test".into() })
    }

    fn late_result(&mut self) -> Lives {
        let unknown = self.unknown_calls();
        let Some((turn, step, call_id)) = unknown.choose(&mut self.random).cloned() else { return Ok(()) };
        let content = self.returned(&call_id);
        let (outcome, code) = (Outcome::Ok, None);
        self.add(ToolResult { turn, step, call_id, outcome, code, content, recovered: true, replayed: false })
    }

    fn unknown_calls(&self) -> Vec<(u64, u64, CallId)> {
        let is_unknown = |call: &&Call| {
            call.result().is_some_and(|result| result.code.as_deref() == Some(code::OUTCOME_UNKNOWN))
        };
        let calls = self.conversation.turns().iter().flat_map(Turn::calls).filter(is_unknown);
        calls.map(|call| (call.turn, call.step, call.call_id.clone())).collect()
    }

    fn compact(&mut self, turn: Option<u64>) -> Lives {
        let Some(up_to) = self.conversation.compactable() else { return Ok(()) };
        self.header(turn, None, 1, RequestFor::Compaction)?;
        let summary = self.words();
        self.add(Compaction { up_to, summary })
    }

    /// A request that is about to be sent: whole at first and on change.
    fn header(&mut self, turn: Option<u64>, step: Option<u64>, attempt: u64, purpose: RequestFor) -> Lives {
        let held = self.conversation.last_request();
        let same_as =
            held.and_then(|(seq, whole)| (whole.model.as_ref() == Some(&self.model)).then_some(seq));
        let is_whole = same_as.is_none();
        self.add(RequestHeader {
            turn,
            step,
            attempt,
            purpose,
            same_as,
            model: is_whole.then(|| self.model.clone()),
            parameters: is_whole.then(|| json!({})),
            system: is_whole.then(|| "You are Segue.".into()),
            tools: is_whole.then(|| json!([])),
        })
    }

    fn words(&mut self) -> String {
        self.pick(&[
            "ok",
            "as you like",
            "first\nsecond",
            "数字 é 🦀",
            "<segue-note>no note</segue-note>",
            "{\"a\":1}",
        ])
        .to_owned()
    }

    /// What a call returns: its mark, so that it can be followed.
    fn returned(&mut self, call: &CallId) -> Vec<Block> {
        let told = Block::text(format!("result of {}", mark(call)));
        match self.random.random_range(0..8) {
            0 => vec![Block::text(" "), told],
            1 => vec![told, image("image/png")],
            2 => vec![image("image/bmp"), told],
            3 => vec![told, Block::Resource { uri: "file:///x".into(), media_type: None, text: None }],
            4 => vec![told, Block::Unknown(json!({"type": "audio", "data": "AA=="}))],
            _ => vec![told],
        }
    }
}

fn image(media_type: &str) -> Block {
    Block::Image { media_type: media_type.into(), data: PIXEL.into() }
}

/// An id that this module made.
fn parsed<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is an id"))
}

fn input(call: &CallId, kind: u32) -> Value {
    let mark = mark(call);
    match kind {
        0 => Value::String(format!("{{\"half\": \"{mark}\"")),
        1 => json!([mark]),
        2 => json!({"command": mark, "nested": {"a": [1, null, "x"]}}),
        _ => json!({"command": mark}),
    }
}
