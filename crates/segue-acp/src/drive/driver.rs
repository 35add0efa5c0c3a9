//! The driver: what stays the same from turn to turn of one session, and the way from its log to a running agent that is
//! in the right conversation.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use segue_log::{AgentBound, AgentResumed, AgentUpdate, Conversation, Evidence, Finish, SessionId};
use segue_runtime::{Boundary, Driver, Drivers, Ended, Result, RuntimeError, TurnContext, Update};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::agent::{Agent, StartError};
use super::config::{AgentConfig, HostedConfig};
use super::leftovers::Notes;
use super::resume::{Beginning, Bound, Move, Past, Plan, Way, classify, params};
use super::rpc::NoAnswer;
use super::tell::{Lacks, finish};
use super::{replay, settings, turn};

/// Makes drivers for sessions of hosted agents.
pub struct HostedDrivers {
    shared: Arc<HostedConfig>,
}

impl HostedDrivers {
    /// Drivers for these agents.
    pub fn new(shared: HostedConfig) -> Self {
        Self { shared: Arc::new(shared) }
    }
}

#[async_trait]
impl Drivers for HostedDrivers {
    async fn driver(&self, conversation: &Conversation) -> Result<Arc<dyn Driver>> {
        let name = conversation.settings().agent.clone().unwrap_or_default();
        let Some(agent) = self.shared.agents.get(&name) else {
            return Err(RuntimeError::Driver(format!(
                "this session's agent is {name}, and no agent of that name is configured; the session can be read and exported"
            )));
        };
        Ok(Arc::new(HostedDriver(Arc::new(Hosted {
            session: conversation.header().id,
            shared: self.shared.clone(),
            config: agent.clone(),
            live: Mutex::new(None),
            is_changed: AtomicBool::new(false),
            turns: AtomicU64::new(0),
        }))))
    }
}

struct HostedDriver(Arc<Hosted>);

/// What is kept from turn to turn.
pub(super) struct Hosted {
    session: SessionId,
    shared: Arc<HostedConfig>,
    pub(super) config: AgentConfig,
    /// The agent, while it runs.
    live: Mutex<Option<Agent>>,
    /// Settings of the session changed since the agent was told.
    is_changed: AtomicBool,
    /// Counts turns, so that an idle agent is told from one that was used meanwhile.
    turns: AtomicU64,
}

/// A running agent in the right conversation.
pub(super) struct Connected {
    /// The agent's id for it.
    pub session: String,
    /// True if the agent has to be told the past with the next prompt.
    pub owes: bool,
    /// What is known of what it lacks of a turn that was cut off; none if nothing is known.
    pub lacks: Option<Lacks>,
}

#[async_trait]
impl Driver for HostedDriver {
    async fn run(&self, turn: &TurnContext) -> Ended {
        self.0.turns.fetch_add(1, Ordering::SeqCst);
        let mut live = self.0.live.lock().await;
        let connected = tokio::select! {
            biased;
            () = turn.cancel().cancelled() => Err(Ended::because(segue_log::EndReason::Cancelled)),
            connected = self.0.connect(turn, &mut live) => connected,
        };
        let mut ended = self.0.talk(turn, &mut live, connected).await;
        if ended.code.as_deref() == Some(turn::GONE) && live.is_some() && said_nothing(turn) {
            // Some agents take a conversation up that they no longer have, and only say so at the prompt.
            let words = ended.message.clone().unwrap_or_default();
            let again = tokio::select! {
                biased;
                () = turn.cancel().cancelled() => Err(Ended::because(segue_log::EndReason::Cancelled)),
                connected = self.0.begin_again(turn, &mut live, &words) => connected,
            };
            ended = self.0.talk(turn, &mut live, again).await;
        }
        if live.is_some() {
            self.0.stop_when_idle();
        }
        ended
    }

    /// Agents keep their own window.
    async fn compact(&self, _turn: &TurnContext) -> Result<bool> {
        Ok(false)
    }

    /// The log alone tells what a hosted agent ran: nothing more can be known of it. What is left of an earlier host's
    /// agent is ended here, when the lease has just been taken.
    async fn evidence(&self, _conversation: &Conversation, _end: bool) -> Evidence {
        if self.0.live.lock().await.is_none() {
            // What would not go is found, and told, again before the next turn resumes anything.
            self.0.notes().end_leftovers(&self.0.config).await;
        }
        Evidence::default()
    }

    fn finish(&self, _conversation: &Conversation) -> Finish {
        Finish::Note(finish().to_owned())
    }

    async fn configure(&self, _conversation: &Conversation) -> Result<()> {
        self.0.is_changed.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn close(&self) {
        if let Some(agent) = self.0.live.lock().await.take() {
            agent.end(&self.0.config).await;
        }
    }
}

impl Hosted {
    fn notes(&self) -> Notes {
        Notes::of(&self.shared.folder, self.session)
    }

    /// Runs the turn with the agent that it is connected to; an agent that cannot be used for another is ended.
    async fn talk(
        &self,
        turn: &TurnContext,
        live: &mut Option<Agent>,
        connected: Result<Connected, Ended>,
    ) -> Ended {
        match (connected, live.as_mut()) {
            (Ok(connected), Some(agent)) => {
                let (ended, is_usable) = turn::run(turn, self, agent, connected).await;
                if !is_usable {
                    self.kill(live).await;
                }
                ended
            }
            (Ok(_), None) => Ended::failed("INTERNAL", "the agent is gone although it was connected"),
            (Err(ended), _) => {
                // Whatever it was being asked, the answer would come too late.
                self.kill(live).await;
                ended
            }
        }
    }

    /// A new conversation after the agent said at the prompt that it no longer has the old one.
    async fn begin_again(
        &self,
        turn: &TurnContext,
        live: &mut Option<Agent>,
        words: &str,
    ) -> Result<Connected, Ended> {
        let past = turn.conversation(|conversation| Past::of(conversation, &self.config.name, turn.turn()));
        self.enter(turn, live, &past, Vec::new(), Some(words)).await
    }

    async fn kill(&self, live: &mut Option<Agent>) {
        if let Some(agent) = live.take() {
            agent.kill(&self.config).await;
        }
    }

    /// Ends the agent once it has been idle for long. It is started again when it is needed.
    fn stop_when_idle(self: &Arc<Self>) {
        let this: Weak<Self> = Arc::downgrade(self);
        let (turns, idle) = (self.turns.load(Ordering::SeqCst), self.config.idle_timeout);
        tokio::spawn(async move {
            tokio::time::sleep(idle).await;
            let Some(this) = this.upgrade() else { return };
            let mut live = this.live.lock().await;
            if this.turns.load(Ordering::SeqCst) == turns
                && let Some(agent) = live.take()
            {
                agent.end(&this.config).await;
            }
        });
    }

    /// Sees to it that an agent runs and is in this session's conversation.
    async fn connect(&self, turn: &TurnContext, live: &mut Option<Agent>) -> Result<Connected, Ended> {
        let past = turn.conversation(|conversation| Past::of(conversation, &self.config.name, turn.turn()));
        if let Some(agent) = live.as_mut() {
            let is_there = agent.catch_up().await;
            if is_there && let Some(session) = in_conversation(agent, &past) {
                self.log_early(turn, agent).await.map_err(|error| turn::not_stored(&error))?;
                if self.is_changed.swap(false, Ordering::SeqCst) {
                    self.set_again(turn, agent, &session, &Value::Null).await?;
                }
                return Ok(Connected { session, owes: false, lacks: Some(Lacks::default()) });
            }
            if !is_there {
                // It ended between two turns: what it left of itself goes too.
                self.kill(live).await;
            }
        }
        let mut doubts = Vec::new();
        if live.is_none() {
            let left = self.notes().end_leftovers(&self.config).await;
            if let Some(why) = left.stuck {
                return Err(Ended::failed("AGENT_LEFTOVER", why));
            }
            doubts = left.doubts;
            self.start(turn, live).await?;
        }
        self.enter(turn, live, &past, doubts, None).await
    }

    async fn start(&self, turn: &TurnContext, live: &mut Option<Agent>) -> Result<(), Ended> {
        self.kill(live).await;
        let notes = self.notes();
        let label = self.session.to_string();
        let cwd = turn.cwd();
        let started = Agent::start(&self.shared, &self.config, &cwd, &label, |start| notes.file(start)).await;
        *live = Some(started.map_err(|error: StartError| Ended::failed(error.code(), error.to_string()))?);
        Ok(())
    }

    /// Goes the ways that the plan names until one leads into the conversation. `refused` are the agent's words if it took
    /// the conversation up and then, at the prompt, no longer had it.
    async fn enter(
        &self,
        turn: &TurnContext,
        live: &mut Option<Agent>,
        past: &Past,
        doubts: Vec<String>,
        refused: Option<&str>,
    ) -> Result<Connected, Ended> {
        let gone = || Ended::failed("INTERNAL", "the agent is gone although it was started");
        let about = live.as_ref().ok_or_else(gone)?.about.clone();
        let known = self.known_untrue(&about.version);
        let (mut plan, mut next) =
            Plan::begin(past, &about, &known, self.config.resume_by, self.config.policy);
        if let Some(words) = refused {
            next = plan.gone_after_all(words);
        }
        let bound = past.bound.as_ref().map(|bound| bound.session.clone()).unwrap_or_default();
        let common = json!({
            "cwd": self.config.path_there(self.config.cwd.as_deref().unwrap_or(&turn.cwd())),
            "mcpServers": self.config.mcp_servers,
        });
        let system = self.config.system_prompt.as_deref();
        loop {
            match next {
                Move::Stop { code, message } => {
                    return Err(self.told(code, message, &about.login_instructions()));
                }
                Move::Begin { beginning, restart } => {
                    if restart {
                        self.start(turn, live).await?;
                    }
                    let agent = live.as_mut().ok_or_else(gone)?;
                    let params = params(&common, &about, system, None);
                    let result = agent.ask("session/new", params, self.config.init_timeout).await;
                    return match result {
                        Ok((opened, updates)) => {
                            self.begun(turn, agent, beginning, opened, updates, &doubts).await
                        }
                        Err(error) => Err(self.no_session(agent, &error).await),
                    };
                }
                Move::Try { way, after, restart } => {
                    tokio::time::sleep(after).await;
                    if restart {
                        self.start(turn, live).await?;
                    }
                    let agent = live.as_mut().ok_or_else(gone)?;
                    let mut common = common.clone();
                    if !self.config.policy.preserve_mcp_servers
                        && let Value::Object(fields) = &mut common
                    {
                        fields.insert("mcpServers".into(), json!([]));
                    }
                    let params = params(&common, &about, system, Some((way, &bound)));
                    match agent.ask(way.method(), params, self.config.init_timeout).await {
                        Ok((opened, _)) if way == Way::Meta && !is_of(&opened, &bound) => {
                            // It made a new conversation: it does not know this way.
                            next = plan.failed(super::resume::Failure::NotSupported, false, "");
                            self.note_untrue(&about.version, way);
                        }
                        Ok((opened, updates)) => {
                            return self.back(turn, agent, way, &bound, past, opened, updates, &doubts).await;
                        }
                        Err(error) => {
                            let failure = classify(&bound, &error);
                            let (was_closed, words) = match &error {
                                NoAnswer::Refused(refusal) => (false, refusal.words()),
                                NoAnswer::Closed => (true, format!("it ended{}", agent.account().await)),
                                NoAnswer::TimedOut => (true, "it did not answer in time".to_owned()),
                            };
                            next = plan.failed(failure, was_closed, &words);
                            if failure == super::resume::Failure::NotSupported {
                                self.note_untrue(&about.version, way);
                            }
                            if matches!(next, Move::Try { after, .. } if !after.is_zero()) {
                                turn.show(Update::Notice {
                                    code: "AGENT_RETRY".into(),
                                    message: format!("{} failed: {words}; trying again", way.as_str()),
                                });
                            }
                        }
                    }
                }
            }
        }
    }

    /// A new conversation was made: it is bound, on disk, before it is sent anything.
    async fn begun(
        &self,
        turn: &TurnContext,
        agent: &mut Agent,
        beginning: Beginning,
        opened: Value,
        mut updates: Vec<Value>,
        doubts: &[String],
    ) -> Result<Connected, Ended> {
        let Some(session) = opened.get("sessionId").and_then(Value::as_str).map(str::to_owned) else {
            return Err(Ended::failed("AGENT_FAILED", "the agent made a session without an id"));
        };
        let (how, outcome) = match beginning {
            Beginning::First => ("session/new", None),
            Beginning::Unused => ("session/new", Some(("resumed", "nothing to resume".to_owned()))),
            Beginning::Rehydrated { reason } => ("rehydrate", Some(("rehydrated", reason))),
            Beginning::Fresh { reason } => ("fresh", Some(("fresh", reason))),
        };
        let owes = how == "rehydrate";
        let bound = AgentBound {
            agent: self.config.name.clone(),
            version: agent.about.version.clone(),
            agent_session_id: session.clone(),
            how: how.to_owned(),
            owes: owes.then(|| "transcript".to_owned()),
        };
        let stored = async {
            turn.append(bound).await?;
            if let Some((outcome, reason)) = outcome {
                self.resumed(turn, how, outcome, reason, doubts).await?;
            }
            Ok(())
        };
        stored.await.map_err(|error: RuntimeError| turn::not_stored(&error))?;
        turn.store().await.map_err(Ended::from)?;
        agent.session = Some(session.clone());
        agent.early.append(&mut updates);
        self.set_again(turn, agent, &session, &opened).await?;
        Ok(Connected {
            session,
            owes,
            lacks: Some(Lacks::default()).filter(|_| owes || how == "session/new"),
        })
    }

    /// The agent is back in its conversation.
    #[expect(clippy::too_many_arguments, reason = "one call, and all of it is what the way back gave")]
    async fn back(
        &self,
        turn: &TurnContext,
        agent: &mut Agent,
        way: Way,
        session: &str,
        past: &Past,
        opened: Value,
        updates: Vec<Value>,
        doubts: &[String],
    ) -> Result<Connected, Ended> {
        let mut reason = "the agent was started again".to_owned();
        let mut lacks = None;
        if way == Way::Load && past.was_cut_off {
            let found = replay::take_over(turn, &updates).await.map_err(|error| turn::not_stored(&error))?;
            if found.nothing_aligned {
                reason.push_str("; no prompt of this session is in its replay, so nothing was taken over");
            }
            lacks = Some(found.lacks);
        }
        self.resumed(turn, way.as_str(), "resumed", reason, doubts)
            .await
            .map_err(|error| turn::not_stored(&error))?;
        agent.session = Some(session.to_owned());
        self.set_again(turn, agent, session, &opened).await?;
        Ok(Connected { session: session.to_owned(), owes: false, lacks })
    }

    async fn resumed(
        &self,
        turn: &TurnContext,
        strategy: &str,
        outcome: &str,
        reason: String,
        doubts: &[String],
    ) -> Result<()> {
        let reason = [reason].iter().chain(doubts).cloned().collect::<Vec<_>>().join("; ");
        if outcome != "resumed" {
            turn.show(Update::Notice {
                code: format!("AGENT_{}", outcome.to_uppercase()),
                message: format!("the agent's conversation is a new one ({outcome}): {reason}"),
            });
        }
        let record = AgentResumed { strategy: strategy.to_owned(), outcome: outcome.to_owned(), reason };
        turn.append(record).await.map(drop)
    }

    async fn set_again(
        &self,
        turn: &TurnContext,
        agent: &mut Agent,
        session: &str,
        opened: &Value,
    ) -> Result<(), Ended> {
        let known = match opened {
            // Nothing new was told: what the log has is how things stand.
            Value::Null => turn.conversation(|conversation| {
                let options = conversation.agent_state("config_option_update");
                json!({"configOptions": options.and_then(|state| state.get("configOptions"))})
            }),
            opened => opened.clone(),
        };
        let done = async {
            settings::restore(turn, agent, &self.config, session, &known).await?;
            self.log_early(turn, agent).await
        };
        done.await.map_err(|error| turn::not_stored(&error))
    }

    /// Records what the agent said while no prompt of ours was running.
    async fn log_early(&self, turn: &TurnContext, agent: &mut Agent) -> Result<()> {
        for update in std::mem::take(&mut agent.early) {
            turn.append(AgentUpdate { update }).await?;
        }
        Ok(())
    }

    /// No conversation could be made.
    async fn no_session(&self, agent: &mut Agent, error: &NoAnswer) -> Ended {
        let name = &self.config.name;
        match error {
            NoAnswer::Refused(refusal) if refusal.code == -32000 => {
                self.told("AGENT_LOGIN", refusal.words(), &agent.about.login_instructions())
            }
            NoAnswer::Refused(refusal) => {
                Ended::failed("AGENT_FAILED", format!("{name} made no session: {}", refusal.words()))
            }
            NoAnswer::Closed => Ended::failed(
                "AGENT_FAILED",
                format!("{name} ended when it was to make a session{}", agent.account().await),
            ),
            NoAnswer::TimedOut => Ended::failed(
                "AGENT_TIMED_OUT",
                format!("{name} made no session in time; `init_timeout_ms` allows more"),
            ),
        }
    }

    /// A failure in words; a missing login with the agent's own instructions.
    pub(super) fn told(&self, code: &str, message: String, instructions: &str) -> Ended {
        let name = &self.config.name;
        match code {
            "AGENT_LOGIN" => Ended::failed(code, format!("{name} needs a login: {message}\n{instructions}")),
            _ => Ended::failed(code, format!("{name}: {message}")),
        }
    }

    fn untrue_file(&self) -> std::path::PathBuf {
        self.shared.folder.join(format!("{}.untrue.json", self.config.name))
    }

    /// The ways that this version of the agent was found not to have, whatever it says.
    fn known_untrue(&self, version: &str) -> Vec<String> {
        let held = std::fs::read(self.untrue_file()).ok();
        let held: Option<Value> = held.and_then(|text| serde_json::from_slice(&text).ok());
        let held = held.filter(|held| held.get("version").and_then(Value::as_str) == Some(version));
        let ways = held.as_ref().and_then(|held| held.get("ways")).and_then(Value::as_array);
        ways.into_iter().flatten().filter_map(|way| way.as_str().map(str::to_owned)).collect()
    }

    fn note_untrue(&self, version: &str, way: Way) {
        let mut ways = self.known_untrue(version);
        ways.push(way.as_str().to_owned());
        let text = json!({"version": version, "ways": ways}).to_string();
        // Only a short cut: without it the way is tried, and fails, again.
        std::fs::write(self.untrue_file(), text).ok();
    }
}

/// True if nothing came of the turn yet, so that its prompt can be sent to another conversation.
fn said_nothing(turn: &TurnContext) -> bool {
    turn.conversation(|conversation| {
        let steps = conversation.turn(turn.turn()).map(|held| held.steps.as_slice()).unwrap_or_default();
        steps.iter().all(|step| step.messages.is_empty())
    })
}

/// The conversation that a running agent is in, if it is the one that the log is bound to and owes nothing.
fn in_conversation(agent: &Agent, past: &Past) -> Option<String> {
    let Bound { session, is_this_agents, owes, .. } = past.bound.as_ref()?;
    (*is_this_agents && !owes && agent.session.as_ref() == Some(session)).then(|| session.clone())
}

fn is_of(opened: &Value, session: &str) -> bool {
    opened.get("sessionId").and_then(Value::as_str) == Some(session)
}

/// Everything of a turn is on disk before a prompt leaves.
pub(super) async fn before_prompt(turn: &TurnContext) -> Result<(), Ended> {
    turn.boundary(Boundary::Request).await.map_err(Ended::from)
}
