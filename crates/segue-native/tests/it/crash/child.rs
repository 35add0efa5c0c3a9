//! The process that is killed. It does what its order says, gives a sign at each step of it, and ends itself with a real
//! SIGKILL at the sign that the order names.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use segue_log::{PermissionOutcome, Policy};
use segue_runtime::permission::Level;
use segue_store::RealFiles;
use segue_testkit::Wire;
use segue_testkit::disk::{Fault, Hook, Op, Verdict, watched};
use serde::{Deserialize, Serialize};

use crate::world::{Moments, Parts, Place, Says, Silent, finish, says, within};

/// The variable that holds an order.
pub const ORDER: &str = "SEGUE_TEST_CRASH_ORDER";

/// Bytes that a torn write leaves.
const TORN: usize = 40;

/// What the process is to do, and where to die.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// The folder of its world.
    pub root: PathBuf,
    /// The model server.
    pub url: String,
    /// True for Anthropic's wire format, false for OpenAI's.
    pub anthropic: bool,
    /// What to do.
    pub act: Act,
    /// The checkpoint policy is `turn`, not `semantic`.
    pub by_turn: bool,
    /// Who answers permission questions.
    pub asks: Asks,
    /// The sign to die at; none lives on.
    pub at: Option<Sign>,
}

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Act {
    /// Make a session and prompt it.
    Prompt(Vec<String>),
    /// Make a session, prompt it, have it compacted.
    Compact(String),
    /// Open the session that is there, finish its interrupted turn, run its queue.
    Resume,
}

/// How permission questions are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asks {
    /// Nothing is asked.
    No,
    /// Yes, once.
    Yes,
    /// Never.
    Silence,
}

/// A step of what the process does, and which time it comes to it: `before write log.jsonl tool/call` 2 is the second
/// time that such a record is about to be written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sign {
    /// The step.
    pub step: String,
    /// Which time, from 1.
    pub nth: usize,
}

impl Sign {
    /// The n-th time of a step.
    pub fn new(step: &str, nth: usize) -> Self {
        Self { step: step.to_owned(), nth }
    }
}

impl std::fmt::Display for Sign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} #{}", self.step, self.nth)
    }
}

impl Order {
    /// The place of its world.
    pub fn place(&self) -> Place {
        let wire = if self.anthropic { Wire::Anthropic } else { Wire::OpenAi };
        Place::new(&self.root, self.url.clone(), wire)
    }

    /// The parts of its sessions.
    pub fn parts(&self) -> Parts {
        Parts {
            policy: if self.by_turn { Policy::Turn } else { Policy::Semantic },
            level: Some(if self.asks == Asks::No { Level::All } else { Level::Ask }),
            asker: match self.asks {
                Asks::No => None,
                Asks::Yes => Some(Arc::new(Says(PermissionOutcome::AllowOnce))),
                Asks::Silence => Some(Arc::new(Silent)),
            },
            ..Parts::default()
        }
    }
}

/// What the process told the outside: it survives the process, as a screen would.
pub fn told_file(root: &Path) -> PathBuf {
    root.join("told")
}

/// The signs that a process gave which lived to its end.
pub fn signs_file(root: &Path) -> PathBuf {
    root.join("signs")
}

fn append(file: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn die() -> ! {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    loop {
        std::thread::park();
    }
}

/// Gives signs, and dies at one.
struct Signs {
    trace: PathBuf,
    at: Option<Sign>,
    given: Mutex<HashMap<String, usize>>,
    is_torn: AtomicBool,
}

impl Signs {
    fn give(&self, step: &str) {
        if self.is_torn.load(Ordering::SeqCst) {
            die();
        }
        if self.count(step) {
            die();
        }
        if self.at.is_none() {
            append(&self.trace, step);
        }
    }

    /// True if this is the time that the order means.
    fn count(&self, step: &str) -> bool {
        let mut given = self.given.lock().unwrap();
        let times = given.entry(step.to_owned()).or_default();
        *times += 1;
        self.at.as_ref().is_some_and(|at| at.step == step && at.nth == *times)
    }
}

impl Hook for Signs {
    fn before(&self, op: &Op) -> Verdict {
        if !op.kind.changes() {
            return Verdict::Go;
        }
        self.give(&format!("before {}", op.name()));
        if !op.records.is_empty() && self.count(&format!("within {}", op.name())) {
            // Half a line is left; whatever comes next, it comes too late.
            self.is_torn.store(true, Ordering::SeqCst);
            return Verdict::Torn(TORN, Fault::Io);
        }
        Verdict::Go
    }

    fn after(&self, op: &Op) {
        if op.kind.changes() {
            self.give(&format!("after {}", op.name()));
        }
    }
}

/// Not a test: the process that the others kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by other tests, as a process of its own"]
async fn child() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let order: Order = serde_json::from_str(&order).unwrap();
    let signs = Arc::new(Signs {
        trace: signs_file(&order.root),
        at: order.at.clone(),
        given: Mutex::default(),
        is_torn: AtomicBool::new(false),
    });
    let mut place = order.place();
    place.files = watched(Arc::new(RealFiles), signs.clone());
    let mut parts = order.parts();
    let moments = signs.clone();
    parts.moments = Moments(Arc::new(move |moment| moments.give(moment)));
    let sessions = place.sessions(parts);
    let tell = |what: &str, about: &str| {
        append(&told_file(&order.root), &format!("{what} {about}"));
        signs.give(&format!("told {what}"));
    };

    let session = match &order.act {
        Act::Prompt(_) | Act::Compact(_) => {
            let session = place.create(&sessions).await;
            tell("session", &session.id().to_string());
            session
        }
        Act::Resume => {
            let id = place.only_session().await.expect("a session is there");
            let opened = sessions.open(id).await;
            if opened.is_err() {
                // After a torn write this is the next step, and comes too late.
                signs.give("open failed");
            }
            let (session, _) = opened.unwrap();
            tell("opened", &id.to_string());
            session
        }
    };
    let mut turns = Vec::new();
    match &order.act {
        Act::Prompt(texts) => {
            let mut accepted = Vec::new();
            for text in texts {
                let prompt = session.prompt(says(text)).await.unwrap();
                tell("accepted", prompt.prompt_id.as_str());
                accepted.push(prompt.prompt_id);
            }
            for id in accepted {
                turns.push(within(session.wait(&id)).await.unwrap());
            }
        }
        Act::Compact(text) => {
            let prompt = session.prompt(says(text)).await.unwrap();
            tell("accepted", prompt.prompt_id.as_str());
            turns.push(within(session.wait(&prompt.prompt_id)).await.unwrap());
            assert!(session.compact().await.unwrap());
            tell("compacted", "");
        }
        Act::Resume => {
            if session.conversation(|conversation| conversation.is_interrupted()) {
                turns.push(finish(&session).await);
            }
            session.run_queue();
        }
    }
    for outcome in turns {
        assert_eq!(outcome.not_stored, None);
        let told = serde_json::json!({
            "turn": outcome.turn, "reason": outcome.reason().as_str(), "text": session.answer_text(outcome.turn),
        });
        tell("ended", &told.to_string());
    }
    within(session.wait_idle()).await;
    tell("idle", "");
    session.close().await.unwrap();
    tell("closed", "");
}
