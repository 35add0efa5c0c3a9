//! How an agent is brought back to a conversation: which ways there are, in which order they are tried, what each failure
//! means, and what follows from it. The rules are all here; [`Plan`] decides and does nothing, so that they can be read
//! and tested without an agent.
//!
//! - A conversation of ours that the agent has is resumed by `session/resume`, else `session/load`, else by
//!   `session/new` that names it in `_meta`. After a turn that was cut off `session/load` comes first: what the agent
//!   still knows of that turn is taken over from its replay.
//! - The next way is tried only where one is *not supported*. *Gone* goes straight to a new conversation.
//! - A new conversation is told the past (*rehydrated*), unless that is switched off (*fresh*). Neither is ever silent.
//! - Everything else that goes wrong leaves the binding as it is: it is tried again where that may help, and told.

use std::time::Duration;

use segue_log::Conversation;
use serde_json::{Value, json};

use super::agent::About;
use super::config::{ResumeBy, ResumePolicy};
use super::rpc::{NoAnswer, Refusal};

/// A way back into a conversation that the agent has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `session/resume`.
    Resume,
    /// `session/load`, which replays.
    Load,
    /// `session/new` with the conversation in `_meta.claudeCode.options.resume`.
    Meta,
}

impl Way {
    /// Its name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resume => "session/resume",
            Self::Load => "session/load",
            Self::Meta => "meta",
        }
    }

    /// The method it calls.
    pub fn method(self) -> &'static str {
        match self {
            Self::Resume => "session/resume",
            Self::Load => "session/load",
            Self::Meta => "session/new",
        }
    }
}

/// The ways that an agent says it has, cheapest first, without those that turned out untrue.
pub fn ways_of(about: &About, untrue: &[String]) -> Vec<Way> {
    let mut ways = Vec::new();
    if about.can("/sessionCapabilities/resume") {
        ways.push(Way::Resume);
    }
    if about.can("/loadSession") {
        ways.push(Way::Load);
    }
    if about.is_claude() {
        ways.push(Way::Meta);
    }
    ways.retain(|way| !untrue.iter().any(|name| name == way.as_str()));
    ways
}

/// What a failed attempt to resume means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The agent no longer has the conversation.
    Gone,
    /// It has no such way.
    NotSupported,
    /// Another process has the conversation.
    InUse,
    /// Somebody has to log in.
    Login,
    /// The provider wants fewer requests.
    RateLimit,
    /// It may work the next time.
    Transient,
    /// It may be gone, or anything else may be wrong.
    Ambiguous,
    /// It will not work, whatever is tried.
    Fatal,
}

/// What identifies a row of [`TABLE`].
enum Sign {
    /// The request has this code.
    Code(i64),
    /// The request has this code, and its data names the conversation.
    CodeNaming(i64),
    /// The request has this code, and its data names the conversation and nothing else.
    CodeNamingOnly(i64),
    /// The message, or a text in its data, contains this phrase (lower case).
    Phrase(&'static str),
    /// A field of its data, by JSON pointer, is this text.
    Data(&'static str, &'static str),
    /// A field of its data, by JSON pointer, is there.
    HasData(&'static str),
    /// `data.status` or `data.statusCode` is one of these.
    Status(&'static [u64]),
}

use Failure::{Ambiguous, Fatal, Gone, InUse, Login, NotSupported, RateLimit, Transient};
use Sign::{Code, CodeNaming, CodeNamingOnly, Data, HasData, Phrase, Status};

/// Every error an agent answers with, the first row that fits. Phrases are whole sentences of known agents, never single
/// words: that a text speaks of a session decides nothing.
const TABLE: &[(Sign, Failure)] = &[
    (Code(-32601), NotSupported),
    (Data("/reason", "thread_active_writer"), InUse),
    (Phrase("is already in use by another process"), InUse),
    (Code(-32000), Login),
    (Phrase("please run /login"), Login),
    (Phrase("invalid api key"), Login),
    (Status(&[429]), RateLimit),
    (Phrase("rate_limit_error"), RateLimit),
    (Phrase("too many requests"), RateLimit),
    (Phrase("overloaded_error"), RateLimit),
    // Known causes that have nothing to do with the conversation, whatever code they come with.
    (HasData("/startupFailureReason"), Fatal),
    (CodeNaming(-32002), Gone),
    (CodeNamingOnly(-32602), Gone),
    (Phrase("no conversation found"), Gone),
    (Phrase("no rollout found for thread id"), Gone),
    (Phrase("thread not found: "), Gone),
    (Phrase("no previous sessions found for this project"), Gone),
    (Phrase("does not match any session title"), Gone),
    (Status(&[408, 500, 502, 503, 504, 529]), Transient),
    (Phrase("econnreset"), Transient),
    (Phrase("econnrefused"), Transient),
    (Phrase("etimedout"), Transient),
    (Phrase("temporarily unavailable"), Transient),
    (Code(-32800), Transient),
    // One agent's internal error for an unknown conversation reads "Query closed before response received".
    (Code(-32603), Ambiguous),
    (Code(-32002), Ambiguous),
];

/// What a failure to resume `session` means.
pub fn classify(session: &str, failure: &NoAnswer) -> Failure {
    match failure {
        NoAnswer::TimedOut => Transient,
        // It ended when it was to resume: the conversation may be the cause, or anything else.
        NoAnswer::Closed => Ambiguous,
        NoAnswer::Refused(refusal) => {
            TABLE.iter().find(|(sign, _)| sign.fits(session, refusal)).map_or(Fatal, |(_, failure)| *failure)
        }
    }
}

impl Sign {
    fn fits(&self, session: &str, refusal: &Refusal) -> bool {
        let data = &refusal.data;
        match self {
            Code(code) => refusal.code == *code,
            CodeNaming(code) => refusal.code == *code && naming(session, data) > 0,
            CodeNamingOnly(code) => {
                let fields = data.as_object().map_or(0, serde_json::Map::len);
                refusal.code == *code && fields > 0 && naming(session, data) == fields
            }
            Phrase(phrase) => {
                let in_data = data.as_object().into_iter().flat_map(|fields| fields.values());
                let texts = in_data.chain([data]).filter_map(Value::as_str);
                texts.chain([refusal.message.as_str()]).any(|text| text.to_lowercase().contains(phrase))
            }
            Data(pointer, text) => data.pointer(pointer).and_then(Value::as_str) == Some(text),
            HasData(pointer) => data.pointer(pointer).is_some_and(|value| !value.is_null()),
            Status(codes) => ["/status", "/statusCode"]
                .iter()
                .any(|at| data.pointer(at).and_then(Value::as_u64).is_some_and(|code| codes.contains(&code))),
        }
    }
}

/// How many fields of an error's data are the conversation's id, bare or as a URI.
fn naming(session: &str, data: &Value) -> usize {
    let names = |value: &&Value| {
        value.as_str().is_some_and(|text| {
            text == session
                || text.strip_prefix("session:").is_some_and(|id| id.trim_start_matches('/') == session)
        })
    };
    data.as_object().map_or(0, |fields| fields.values().filter(names).count())
}

/// What the log says of the conversation that is to be gone on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// What it is bound to.
    pub bound: Option<Bound>,
    /// True if anything was said before.
    pub has_history: bool,
    /// True if its last turn was cut off.
    pub was_cut_off: bool,
}

/// A binding, as far as resuming is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The agent's id for the conversation.
    pub session: String,
    /// True if it is this agent's.
    pub is_this_agents: bool,
    /// True if the agent still has to be told the past.
    pub owes: bool,
    /// True if it was made anew and never sent a prompt.
    pub is_unused: bool,
}

impl Past {
    /// From the log, at the start of turn `turn` of `agent`.
    pub fn of(conversation: &Conversation, agent: &str, turn: u64) -> Self {
        let earlier = || conversation.turns().iter().filter(|held| held.number < turn);
        let bound_at = conversation.bound_at();
        let bound = conversation.binding().map(|binding| Bound {
            session: binding.agent_session_id.clone(),
            is_this_agents: binding.agent == agent && conversation.is_bound(),
            owes: binding.owes.is_some(),
            is_unused: binding.how == "session/new"
                && !conversation
                    .turns()
                    .iter()
                    .flat_map(|held| &held.steps)
                    .any(|step| step.start > bound_at),
        });
        Self {
            bound,
            has_history: earlier().any(|held| !held.steps.is_empty()),
            was_cut_off: super::tell::cut_off(conversation, turn).next().is_some(),
        }
    }
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Try a way, after a while; with a new process if the last one is gone or in an unknown state.
    Try {
        /// The way.
        way: Way,
        /// How long to wait first.
        after: Duration,
        /// Start the agent again first.
        restart: bool,
    },
    /// Make a new conversation.
    Begin {
        /// How, and how that is told.
        beginning: Beginning,
        /// Start the agent again first.
        restart: bool,
    },
    /// Nothing can be done. The binding stays.
    Stop {
        /// A stable code.
        code: &'static str,
        /// In words.
        message: String,
    },
}

/// A conversation that is made anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    /// There was none before.
    First,
    /// There was one that never had a prompt: nothing is lost.
    Unused,
    /// It is told the past.
    Rehydrated {
        /// Why it is a new one.
        reason: String,
    },
    /// It is told nothing of the past.
    Fresh {
        /// Why it is a new one.
        reason: String,
    },
}

/// The state of one resume.
#[derive(Debug)]
pub struct Plan {
    policy: ResumePolicy,
    /// Ways still to be tried; the first is the current one.
    ways: Vec<Way>,
    /// Ways that turned out not to be there.
    pub untrue: Vec<Way>,
    retries: u32,
    ambiguous: u32,
    rehydrates: bool,
}

impl Plan {
    /// Decides what to do first.
    pub fn begin(
        past: &Past,
        about: &About,
        untrue: &[String],
        resume_by: ResumeBy,
        policy: ResumePolicy,
    ) -> (Self, Move) {
        let mut ways = match resume_by {
            ResumeBy::Auto => ways_of(about, untrue),
            ResumeBy::Resume => vec![Way::Resume],
            ResumeBy::Load => vec![Way::Load],
            ResumeBy::Meta => vec![Way::Meta],
            ResumeBy::Rehydrate | ResumeBy::None => Vec::new(),
        };
        if past.was_cut_off && resume_by == ResumeBy::Auto {
            // A stable sort: the rest stays in its order.
            ways.sort_by_key(|way| *way != Way::Load);
        }
        let rehydrates = policy.rehydrate && resume_by != ResumeBy::None;
        let plan = Self { policy, ways, untrue: Vec::new(), retries: 0, ambiguous: 0, rehydrates };
        let first = match &past.bound {
            None if past.has_history => plan.anew("the agent does not have this conversation yet"),
            None => Move::Begin { beginning: Beginning::First, restart: false },
            Some(bound) if !bound.is_this_agents => plan.anew("agent changed"),
            Some(bound) if bound.owes => plan.anew("the agent's conversation had not been told the past yet"),
            Some(bound) if bound.is_unused && !past.has_history => {
                Move::Begin { beginning: Beginning::Unused, restart: false }
            }
            Some(bound) if bound.is_unused => plan.anew("nothing was said to the agent's conversation yet"),
            Some(_) => match resume_by {
                ResumeBy::Rehydrate => plan.anew("resume_by is rehydrate"),
                ResumeBy::None => plan.anew("resume_by is none"),
                _ => match plan.ways.first() {
                    Some(way) => Move::Try { way: *way, after: Duration::ZERO, restart: false },
                    None => plan.lost("the agent has no way to resume a conversation", false),
                },
            },
        };
        (plan, first)
    }

    /// Decides what follows when the agent took the conversation up and then said, at the prompt, that it is gone.
    pub fn gone_after_all(&self, words: &str) -> Move {
        self.lost(&format!("the agent no longer has the conversation: {words}"), false)
    }

    /// Decides what follows from a failure of the current way; `words` tell it.
    pub fn failed(&mut self, failure: Failure, was_closed: bool, words: &str) -> Move {
        let Some(way) = self.ways.first().copied() else {
            return Move::Stop { code: "AGENT_RESUME_FAILED", message: words.to_owned() };
        };
        let told = |what: &str| format!("{what}: {words}");
        let stop = |code, message| Move::Stop { code, message };
        match failure {
            Gone => self.lost(&told("the agent no longer has the conversation"), was_closed),
            NotSupported => {
                self.untrue.push(way);
                self.ways.remove(0);
                self.retries = 0;
                self.ambiguous = 0;
                match self.ways.first() {
                    Some(way) => Move::Try { way: *way, after: Duration::ZERO, restart: was_closed },
                    None => self.lost("the agent has no way to resume a conversation", was_closed),
                }
            }
            Ambiguous => {
                self.ambiguous += 1;
                if self.ambiguous < 2 {
                    return Move::Try { way, after: Duration::from_millis(200), restart: true };
                }
                // If a start without it succeeds, the conversation was the cause. If not, that start's error is told.
                self.lost(&told("the agent could not resume the conversation, twice"), true)
            }
            Transient | RateLimit if self.retries < self.policy.max_retries => {
                self.retries += 1;
                let base = if failure == RateLimit { 2_000 } else { 250 };
                let after = Duration::from_millis(base << (self.retries - 1).min(5));
                Move::Try { way, after, restart: was_closed }
            }
            Transient => {
                stop("AGENT_UNAVAILABLE", told("the agent could not be reached; the conversation is kept"))
            }
            RateLimit => {
                stop("AGENT_RATE_LIMIT", told("the agent is rate limited; the conversation is kept"))
            }
            InUse => stop("AGENT_SESSION_IN_USE", told("another process has the agent's conversation open")),
            Login => stop("AGENT_LOGIN", told("the agent wants a login")),
            Fatal => {
                stop("AGENT_RESUME_FAILED", told("the agent would not resume; the conversation is kept"))
            }
        }
    }

    /// The conversation cannot be had any more: a new one, if falling back is allowed.
    fn lost(&self, reason: &str, restart: bool) -> Move {
        if !self.policy.enable_fallback {
            let message =
                format!("{reason}; falling back to a new conversation is switched off (enable_fallback)");
            return Move::Stop { code: "AGENT_SESSION_GONE", message };
        }
        match self.anew(reason) {
            Move::Begin { beginning, .. } => Move::Begin { beginning, restart },
            other => other,
        }
    }

    /// A new conversation where there was one before.
    fn anew(&self, reason: &str) -> Move {
        let reason = reason.to_owned();
        let beginning =
            if self.rehydrates { Beginning::Rehydrated { reason } } else { Beginning::Fresh { reason } };
        Move::Begin { beginning, restart: false }
    }
}

/// The params of a call that makes or finds a conversation: the same on every way.
pub fn params(
    common: &Value,
    about: &About,
    system_prompt: Option<&str>,
    back: Option<(Way, &str)>,
) -> Value {
    let mut params = common.clone();
    let Value::Object(fields) = &mut params else { return params };
    match back {
        Some((Way::Resume | Way::Load, session)) => {
            fields.insert("sessionId".into(), json!(session));
        }
        // Only when resuming: the adapter takes it as "go on with this one".
        Some((Way::Meta, session)) => {
            fields.insert("_meta".into(), json!({"claudeCode": {"options": {"resume": session}}}));
        }
        None => {}
    }
    let Some(text) = system_prompt else { return params };
    if about.can("/sessionCapabilities/systemPrompt") {
        fields.insert("systemPrompt".into(), json!({"mode": "append", "content": text}));
    } else if let Value::Object(meta) = fields.entry("_meta").or_insert_with(|| json!({})) {
        meta.insert("systemPrompt".into(), json!({"append": text}));
    }
    params
}

#[cfg(test)]
#[path = "resume_tests.rs"]
mod tests;
