//! The fold of records into a conversation: turns, steps, calls, the queue, settings.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::content::{Block, text_of};
use crate::id::{CallId, PromptId};
use crate::record::*;
use crate::text::title_of;
use crate::turn::{Call, Prompt, PromptPlace, Said, Step, Turn};

/// Everything a log says, as of its last record. Made by applying records in order; holds on to those that matter.
#[derive(Debug, Clone)]
pub struct Conversation {
    header: Header,
    last: Seq,
    queue: Vec<PromptId>,
    prompts: HashMap<PromptId, Prompt>,
    turns: Vec<Turn>,
    calls: HashMap<CallId, (usize, usize, usize)>,
    settings: Settings,
    session_rules: Vec<String>,
    title: Option<String>,
    first_prompt: Option<Arc<Record>>,
    compactions: Vec<Arc<Record>>,
    plan: Vec<PlanEntry>,
    binding: Option<AgentBound>,
    resumed: Option<AgentResumed>,
    repaired: Vec<Arc<Record>>,
    settled: Vec<Arc<Record>>,
    whole_request: Option<Arc<Record>>,
    is_damaged: bool,
}

/// Settings that the log holds; absent ones were never set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The agent.
    pub agent: Option<String>,
    /// The model, as provider/name.
    pub model: Option<String>,
    /// The permission level.
    pub permissions: Option<String>,
    /// The working folder, where it moved.
    pub cwd: Option<PathBuf>,
}

impl Conversation {
    /// A session without records.
    pub fn new(header: Header) -> Self {
        Self {
            header,
            last: 0,
            queue: Vec::new(),
            prompts: HashMap::new(),
            turns: Vec::new(),
            calls: HashMap::new(),
            settings: Settings::default(),
            session_rules: Vec::new(),
            title: None,
            first_prompt: None,
            compactions: Vec::new(),
            plan: Vec::new(),
            binding: None,
            resumed: None,
            repaired: Vec::new(),
            settled: Vec::new(),
            whole_request: None,
            is_damaged: false,
        }
    }

    /// The fold of whole records.
    pub fn of<'a>(header: Header, records: impl IntoIterator<Item = &'a Arc<Record>>) -> Self {
        let mut conversation = Self::new(header);
        for record in records {
            conversation.apply(record);
        }
        conversation
    }

    /// Adds the next record.
    pub fn apply(&mut self, record: &Arc<Record>) {
        self.last = record.seq;
        match &record.event {
            Event::PromptQueued(data) => self.prompt_queued(record, data),
            Event::PromptRemoved(data) => self.take_prompt(&data.prompt_id, PromptPlace::Removed),
            Event::TurnStart(data) => self.turn_start(record, data),
            Event::StepStart(data) => self.step_start(record, data),
            Event::StepEnd(data) => {
                if let Some(step) = self.step_mut(data.turn, data.step) {
                    step.end = Some(record.seq);
                }
            }
            Event::RequestHeader(data) => self.request_header(record, data),
            Event::MessagePartial(data) => {
                self.imply(record.seq, data.turn, Some(data.step));
                if let Some(step) = self.step_mut(data.turn, data.step) {
                    step.partials.push(record.clone());
                }
            }
            Event::MessageAssistant(data) => self.message(record, data),
            Event::PermissionAsked(data) => {
                if let Some(call) = self.call_mut(&data.call_id) {
                    call.asked = Some(record.seq);
                }
            }
            Event::PermissionDecided(data) => {
                if let Some(call) = self.call_mut(&data.call_id) {
                    call.decided = Some(data.outcome);
                }
                if matches!(data.outcome, PermissionOutcome::AllowSession | PermissionOutcome::AllowFolder)
                    && let Some(rule) = &data.rule
                {
                    self.session_rules.push(rule.clone());
                }
            }
            Event::ToolCall(data) => self.tool_call(record, data),
            Event::ToolResult(data) => {
                if let Some(call) = self.call_mut(&data.call_id) {
                    call.results.push(record.clone());
                }
            }
            Event::CallSettled(data) => {
                if let Some(call) = self.call_mut(&data.call_id) {
                    call.settled.push(record.clone());
                }
                self.settled.push(record.clone());
            }
            Event::Plan(data) => self.plan.clone_from(&data.entries),
            Event::TurnEnd(data) => {
                if let Some(turn) = self.turn_mut(data.turn) {
                    turn.end = Some((record.seq, data.clone()));
                    for step in &mut turn.steps {
                        step.partials = Vec::new();
                    }
                }
            }
            Event::Compaction(_) => self.compactions.push(record.clone()),
            Event::AgentBound(data) => self.binding = Some(data.clone()),
            Event::AgentResumed(data) => self.resumed = Some(data.clone()),
            Event::SessionTitle(data) => self.title = Some(data.title.clone()),
            Event::SessionConfig(data) => self.session_config(data),
            Event::SessionRepaired(data) => {
                self.mark_gaps(data.cut_at);
                self.repaired.push(record.clone());
            }
            Event::SessionDamaged(_) => {
                self.is_damaged = true;
                self.mark_gaps(record.seq);
            }
            Event::Unknown { kind, .. } if Event::knows(kind) => self.mark_gaps(record.seq),
            Event::AgentUpdate(_) | Event::Unknown { .. } => {}
        }
        if self.header.parent.is_some_and(|parent| parent.seq == record.seq) {
            self.leave_parent();
        }
    }

    fn prompt_queued(&mut self, record: &Arc<Record>, data: &PromptQueued) {
        if self.first_prompt.is_none() {
            self.first_prompt = Some(record.clone());
        }
        let prompt = Prompt { record: record.clone(), place: PromptPlace::Queued };
        if self.prompts.insert(data.prompt_id.clone(), prompt).is_none() {
            self.queue.push(data.prompt_id.clone());
        }
    }

    fn take_prompt(&mut self, id: &PromptId, place: PromptPlace) {
        self.queue.retain(|queued| queued != id);
        if let Some(prompt) = self.prompts.get_mut(id) {
            prompt.place = place;
        }
    }

    fn turn_start(&mut self, record: &Arc<Record>, data: &TurnStart) {
        for id in &data.prompt_ids {
            self.take_prompt(id, PromptPlace::Claimed { turn: data.turn });
        }
        self.turns.push(Turn {
            number: data.turn,
            start: record.seq,
            prompt_ids: data.prompt_ids.clone(),
            policy: data.policy,
            finish: data.finish.clone(),
            hosted: self.binding.is_some(),
            steps: Vec::new(),
            end: None,
            has_gaps: self.is_damaged,
        });
    }

    fn step_start(&mut self, record: &Arc<Record>, data: &StepStart) {
        self.imply(record.seq, data.turn, None);
        for id in &data.prompt_ids {
            self.take_prompt(id, PromptPlace::Claimed { turn: data.turn });
        }
        if let Some(turn) = self.turn_mut(data.turn) {
            turn.steps.push(Step::new(data.step, record.seq, data.prompt_ids.clone()));
        }
    }

    /// Sees to it that the turn, and the step, that a record names are there: the records of their starts may be among
    /// those that cannot be read. Such a turn took the prompt that was next, which must not run again.
    fn imply(&mut self, seq: Seq, turn: u64, step: Option<u64>) {
        if self.turn_mut(turn).is_none() {
            let prompt_ids: Vec<PromptId> = self.queue.first().cloned().into_iter().collect();
            for id in &prompt_ids {
                self.take_prompt(id, PromptPlace::Claimed { turn });
            }
            self.turns.push(Turn {
                number: turn,
                start: seq,
                prompt_ids,
                policy: Policy::default(),
                finish: None,
                hosted: self.binding.is_some(),
                steps: Vec::new(),
                end: None,
                has_gaps: true,
            });
        }
        let Some(number) = step else { return };
        if self.step_mut(turn, number).is_none()
            && let Some(turn) = self.turn_mut(turn)
        {
            turn.has_gaps = true;
            turn.steps.push(Step::new(number, seq, Vec::new()));
        }
    }

    fn request_header(&mut self, record: &Arc<Record>, data: &RequestHeader) {
        if data.model.is_some() {
            self.whole_request = Some(record.clone());
        }
        let model = self.last_request().and_then(|(_, whole)| whole.model.clone());
        if let (Some(turn), Some(step), RequestFor::Step) = (data.turn, data.step, data.purpose)
            && let Some(step) = self.step_mut(turn, step)
        {
            step.model = model;
            step.attempt = data.attempt;
            step.asked = Some(record.seq);
        }
    }

    /// A call that no message asks for had its message lost; the record of the call itself stands for the request.
    fn tool_call(&mut self, record: &Arc<Record>, data: &ToolCall) {
        if !self.calls.contains_key(&data.call_id) {
            self.imply(record.seq, data.turn, Some(data.step));
            self.add_call(record, (data.turn, data.step), &data.call_id, &data.provider_id, &data.tool);
        }
        if let Some(call) = self.call_mut(&data.call_id) {
            call.dispatched = Some(record.clone());
        }
    }

    fn message(&mut self, record: &Arc<Record>, data: &MessageAssistant) {
        self.imply(record.seq, data.turn, Some(data.step));
        if let Some(step) = self.step_mut(data.turn, data.step) {
            step.partials = Vec::new();
            step.messages.push(Said { record: record.clone(), model: step.model.clone(), asked: step.asked });
        }
        if data.is_cut_short() {
            return;
        }
        for block in &data.content {
            if let Block::ToolRequest { call_id, provider_id, tool, .. } = block
                && !self.calls.contains_key(call_id)
            {
                self.add_call(record, (data.turn, data.step), call_id, provider_id, tool);
            }
        }
    }

    fn add_call(
        &mut self,
        request: &Arc<Record>,
        (turn, step): (u64, u64),
        call_id: &CallId,
        provider_id: &str,
        tool: &str,
    ) {
        let Some(turn_at) = self.turns.iter().rposition(|held| held.number == turn) else { return };
        let Some(held) = self.turns.get_mut(turn_at) else { return };
        let Some(step_at) = held.steps.iter().rposition(|held| held.number == step) else { return };
        let Some(held) = held.steps.get_mut(step_at) else { return };
        self.calls.insert(call_id.clone(), (turn_at, step_at, held.calls.len()));
        held.calls.push(Call {
            turn,
            step,
            call_id: call_id.clone(),
            provider_id: provider_id.to_owned(),
            tool: tool.to_owned(),
            requested: request.seq,
            request: request.clone(),
            asked: None,
            decided: None,
            dispatched: None,
            results: Vec::new(),
            settled: Vec::new(),
            open_in_parent: false,
        });
    }

    fn session_config(&mut self, data: &SessionConfig) {
        let settings = &mut self.settings;
        for (held, new) in [
            (&mut settings.agent, &data.agent),
            (&mut settings.model, &data.model),
            (&mut settings.permissions, &data.permissions),
        ] {
            if new.is_some() {
                held.clone_from(new);
            }
        }
        if data.cwd.is_some() {
            settings.cwd.clone_from(&data.cwd);
        }
    }

    /// Absence of a record at `seq` or after it, in the turn that was open there, is no evidence.
    fn mark_gaps(&mut self, seq: Seq) {
        for turn in &mut self.turns {
            if turn.end.as_ref().is_none_or(|(end, _)| *end > seq) {
                turn.has_gaps = true;
            }
        }
    }

    /// What a fork does not inherit.
    fn leave_parent(&mut self) {
        for id in std::mem::take(&mut self.queue) {
            self.prompts.remove(&id);
        }
        self.session_rules.clear();
        self.binding = None;
        self.settings.permissions = None;
        for call in self.turns.iter_mut().flat_map(|turn| &mut turn.steps).flat_map(|step| &mut step.calls) {
            call.open_in_parent = call.is_open();
        }
    }

    fn turn_mut(&mut self, number: u64) -> Option<&mut Turn> {
        self.turns.iter_mut().rev().find(|turn| turn.number == number)
    }

    fn step_mut(&mut self, turn: u64, number: u64) -> Option<&mut Step> {
        self.turn_mut(turn)?.steps.iter_mut().rev().find(|step| step.number == number)
    }

    fn call_mut(&mut self, id: &CallId) -> Option<&mut Call> {
        let (turn, step, call) = *self.calls.get(id)?;
        self.turns.get_mut(turn)?.steps.get_mut(step)?.calls.get_mut(call)
    }

    /// The session's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The seq of the last record applied.
    pub fn last(&self) -> Seq {
        self.last
    }

    /// All turns, in order.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// The turn of that number.
    pub fn turn(&self, number: u64) -> Option<&Turn> {
        self.turns.iter().rev().find(|turn| turn.number == number)
    }

    /// The number of the next turn: above all there are, in whatever order a damaged log has them.
    pub fn next_turn(&self) -> u64 {
        self.turns.iter().map(|turn| turn.number).max().unwrap_or(0).saturating_add(1)
    }

    /// The turn that has not ended, if the last one has not.
    pub fn open_turn(&self) -> Option<&Turn> {
        self.turns.last().filter(|turn| turn.end.is_none())
    }

    /// A call.
    pub fn call(&self, id: &CallId) -> Option<&Call> {
        let (turn, step, call) = *self.calls.get(id)?;
        self.turns.get(turn)?.steps.get(step)?.calls.get(call)
    }

    /// Calls without a result, in order.
    pub fn open_calls(&self) -> impl Iterator<Item = &Call> {
        self.turns.iter().flat_map(Turn::calls).filter(|call| call.is_open())
    }

    /// Prompts in the queue, in order.
    pub fn queue(&self) -> impl Iterator<Item = (&PromptId, &Prompt)> {
        self.queue.iter().filter_map(|id| Some((id, self.prompts.get(id)?)))
    }

    /// A prompt of this session, whatever became of it.
    pub fn prompt(&self, id: &PromptId) -> Option<&Prompt> {
        self.prompts.get(id)
    }

    /// What the log says of settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The present working folder.
    pub fn cwd(&self) -> &Path {
        self.settings.cwd.as_deref().unwrap_or(&self.header.cwd)
    }

    /// Rules that a person allowed for this session, as they were shown.
    pub fn session_rules(&self) -> &[String] {
        &self.session_rules
    }

    /// The agent's plan.
    pub fn plan(&self) -> &[PlanEntry] {
        &self.plan
    }

    /// The hosted agent's conversation bound to this session.
    pub fn binding(&self) -> Option<&AgentBound> {
        self.binding.as_ref()
    }

    /// How the last resume of a hosted agent went.
    pub fn last_resume(&self) -> Option<&AgentResumed> {
        self.resumed.as_ref()
    }

    /// The title: the one given, else one made from the first prompt; empty for a session without either.
    pub fn title(&self) -> String {
        if let Some(title) = &self.title {
            return title.clone();
        }
        match self.first_prompt.as_ref().map(|record| &record.event) {
            Some(Event::PromptQueued(data)) => title_of(&text_of(&data.content)),
            _ => String::new(),
        }
    }

    /// The last compaction: the last seq it replaces, and what stands for it.
    pub fn compaction(&self) -> Option<&Compaction> {
        match &self.compactions.last()?.event {
            Event::Compaction(data) => Some(data),
            _ => None,
        }
    }

    /// The last request header that was written whole, and its seq.
    pub fn last_request(&self) -> Option<(Seq, &RequestHeader)> {
        let record = self.whole_request.as_ref()?;
        match &record.event {
            Event::RequestHeader(data) => Some((record.seq, data)),
            _ => None,
        }
    }

    /// `session/repaired` records, in order.
    pub fn repairs(&self) -> &[Arc<Record>] {
        &self.repaired
    }

    /// `call/settled` records, in order.
    pub fn settlements(&self) -> &[Arc<Record>] {
        &self.settled
    }

    /// True if lines of the log could not be read.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// True if the last turn has no end or was ended by repair: `finish` can take it up.
    pub fn is_interrupted(&self) -> bool {
        self.turns
            .last()
            .is_some_and(|turn| turn.end.as_ref().is_none_or(|(_, end)| end.reason == EndReason::Interrupted))
    }

    /// The last seq that a compaction may replace: the end of the last step whose calls are all answered. None if
    /// there is nothing new to replace.
    pub fn compactable(&self) -> Option<Seq> {
        let done = self.compaction().map_or(0, |data| data.up_to);
        let mut up_to = 0;
        for turn in &self.turns {
            for step in &turn.steps {
                if step.calls.iter().any(Call::is_open) {
                    return Some(up_to).filter(|seq| *seq > done);
                }
                up_to = step.end.unwrap_or(up_to).max(up_to);
            }
            up_to = turn.end.as_ref().map_or(up_to, |(seq, _)| *seq);
        }
        Some(up_to).filter(|seq| *seq > done)
    }
}
