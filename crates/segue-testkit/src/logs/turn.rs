//! One turn of a made log.

use rand::RngExt;
use rand::seq::SliceRandom;
use segue_log::*;

use super::{Lives, Maker, input, mark, parsed};

/// What an answer came to.
enum Answer {
    /// A message to act on.
    Whole,
    /// The turn is over.
    Over(EndReason),
}

/// A tool request as it stands in a message.
struct Wanted {
    call_id: CallId,
    provider_id: String,
    tool: String,
    kind: u32,
}

impl Maker {
    pub(super) fn turn(&mut self) -> Lives {
        let can_finish = self.conversation.is_interrupted() && self.chance(0.4);
        if !can_finish && self.conversation.queue().next().is_none() {
            self.queue(PromptFor::Turn)?;
        }
        let claimed = self.conversation.queue().next().map(|(id, _)| id.clone()).filter(|_| !can_finish);
        let turn = self.conversation.turns().last().map_or(0, |turn| turn.number) + 1;
        self.add(TurnStart {
            turn,
            prompt_ids: claimed.into_iter().collect(),
            policy: self.policy,
            finish: can_finish.then_some(Finish::Resumed(true)),
        })?;
        let mut reason = EndReason::MaxSteps;
        for step in 1..=self.random.random_range(1..5) {
            if self.chance(0.1) {
                self.compact(Some(turn))?;
            }
            match self.step(turn, step)? {
                Answer::Over(why) => {
                    reason = why;
                    break;
                }
                Answer::Whole => {}
            }
        }
        let usage = self.conversation.turn(turn).map(Turn::usage).unwrap_or_default();
        let title = self.conversation.title();
        self.add(TurnEnd { turn, reason, code: None, message: None, title, turns: turn, usage })
    }

    fn step(&mut self, turn: u64, step: u64) -> Result<Answer, super::Crash> {
        if self.chance(0.15) {
            self.queue(PromptFor::Step)?;
        }
        let waiting = self.conversation.queue().filter(|(_, prompt)| prompt.target() == PromptFor::Step);
        let prompt_ids = waiting.map(|(id, _)| id.clone()).collect();
        self.add(StepStart { turn, step, prompt_ids })?;
        let answer = self.attempts(turn, step)?;
        self.add(StepEnd { turn, step })?;
        Ok(answer)
    }

    fn attempts(&mut self, turn: u64, step: u64) -> Result<Answer, super::Crash> {
        let most = self.random.random_range(1..4);
        let mut streamed = None;
        for attempt in 1..=most {
            self.header(Some(turn), Some(step), attempt, RequestFor::Step)?;
            let mut came = Vec::new();
            if self.chance(0.05) {
                self.settle()?;
            }
            for _ in 0..self.random.random_range(0..3) {
                let content = vec![self.piece()];
                came.extend(content.clone());
                self.add(MessagePartial { turn, step, attempt, content })?;
            }
            if self.chance(0.75) {
                return self.message(turn, step, attempt);
            }
            if !came.is_empty() {
                streamed = Some((attempt, came));
            }
        }
        let reason = if self.chance(0.5) { EndReason::Failed } else { EndReason::Cancelled };
        if let Some((attempt, content)) = streamed {
            self.said(turn, step, attempt, content, None, true)?;
        }
        Ok(Answer::Over(reason))
    }

    fn piece(&mut self) -> Block {
        match self.random.random_range(0..6) {
            0 => Block::Thinking { text: "hm".into(), signature: None, redacted: None },
            1 => Block::Thinking { text: String::new(), signature: Some("seal".into()), redacted: None },
            2 => Block::PartialRequest { tool: "bash".into(), input: "{\"comm".into() },
            3 => Block::text(" "),
            _ => Block::text(self.words()),
        }
    }

    fn said(
        &mut self,
        turn: u64,
        step: u64,
        attempt: u64,
        content: Vec<Block>,
        stop: Option<&str>,
        interrupted: bool,
    ) -> Lives {
        let stop = stop.map(str::to_owned);
        let usage = Usage { input: 10, output: 5, cache_read: 0, cache_write: 0 };
        let replayed = false;
        self.add(MessageAssistant { turn, step, attempt, content, usage, stop, interrupted, replayed })
    }

    fn message(&mut self, turn: u64, step: u64, attempt: u64) -> Result<Answer, super::Crash> {
        let mut content = Vec::new();
        for _ in 0..self.random.random_range(0..3) {
            content.push(match self.random.random_range(0..4) {
                0 => Block::Thinking { text: "why not".into(), signature: None, redacted: None },
                1 => Block::Thinking { text: String::new(), signature: None, redacted: Some("AAAA".into()) },
                _ => Block::Thinking { text: "hm".into(), signature: Some("seal".into()), redacted: None },
            });
        }
        if self.chance(0.7) {
            content.push(Block::text(self.words()));
        }
        if self.chance(0.1) {
            content.push(Block::text("\n "));
        }
        let cut = match self.random.random_range(0..12) {
            0 => Some((None, EndReason::Cancelled)),
            1 => Some((Some("max_tokens"), EndReason::MaxTokens)),
            2 => Some((Some("refused"), EndReason::Refused)),
            _ => None,
        };
        // Older versions kept the requests of messages that were cut short as requests.
        let wanted = if cut.is_none() || self.chance(0.3) { self.wanted() } else { Vec::new() };
        for call in &wanted {
            content.push(Block::ToolRequest {
                call_id: call.call_id.clone(),
                provider_id: call.provider_id.clone(),
                tool: call.tool.clone(),
                input: input(&call.call_id, call.kind),
            });
        }
        if self.chance(0.1) {
            content.push(Block::Thinking {
                text: "after".into(),
                signature: Some("seal".into()),
                redacted: None,
            });
        }
        if let Some((stop, reason)) = cut {
            self.said(turn, step, attempt, content, stop, stop.is_none())?;
            return Ok(Answer::Over(reason));
        }
        let stop = if wanted.is_empty() { self.pick(&["end", "pause_turn"]) } else { "tools" };
        self.said(turn, step, attempt, content, Some(stop), false)?;
        if wanted.is_empty() {
            return Ok(Answer::Over(EndReason::Completed));
        }
        self.act(turn, step, wanted)?;
        Ok(Answer::Whole)
    }

    fn wanted(&mut self) -> Vec<Wanted> {
        let count = self.random.random_range(0..4);
        let one = |maker: &mut Self| Wanted {
            call_id: parsed(&maker.id("c")),
            provider_id: match maker.random.random_range(0..8) {
                0 => String::new(),
                1 => "call_0".into(),
                2 => "functions.bash:0".into(),
                3 => "x".repeat(80),
                4 => "y".repeat(50),
                _ => maker.id("toolu_"),
            },
            tool: maker.pick(&["bash", "bash", "read", "mcp__docs__find", "no such tool!", ""]).to_owned(),
            kind: maker.random.random_range(0..8),
        };
        (0..count).map(|_| one(self)).collect()
    }

    /// The calls of a step: beside each other or one after the other, results as they come.
    fn act(&mut self, turn: u64, step: u64, wanted: Vec<Wanted>) -> Lives {
        let at_once = self.chance(0.5);
        let mut running: Vec<CallId> = Vec::new();
        for call in wanted {
            let call_id = call.call_id.clone();
            if self.chance(0.2) {
                let (tool, shown) = (call.tool.clone(), mark(&call_id));
                let rule = Some("bash(*)".into());
                self.add(PermissionAsked { turn, step, call_id: call_id.clone(), tool, shown, rule })?;
                let outcome = self.pick(&[
                    PermissionOutcome::AllowOnce,
                    PermissionOutcome::AllowSession,
                    PermissionOutcome::Deny,
                ]);
                let rule = (outcome == PermissionOutcome::AllowSession).then(|| "bash(*)".into());
                let (by, reason) = ("test".into(), None);
                let call_id = call_id.clone();
                self.add(PermissionDecided { turn, step, call_id, outcome, by, rule, reason })?;
                if outcome == PermissionOutcome::Deny {
                    self.refuse(turn, step, &call.call_id)?;
                    continue;
                }
            }
            if self.chance(0.1) {
                self.refuse(turn, step, &call_id)?;
                continue;
            }
            let effect = self.pick(&[Effect::Read, Effect::Idempotent, Effect::Write]);
            self.add(ToolCall {
                turn,
                step,
                input: input(&call_id, call.kind),
                call_id: call_id.clone(),
                provider_id: call.provider_id,
                tool: call.tool,
                effect,
                expect: None,
                origin: Origin::Dispatched,
                host: "here".into(),
                boot: "now".into(),
                replayed: false,
            })?;
            running.push(call_id);
            if !at_once {
                self.results(turn, step, &mut running)?;
            }
        }
        running.shuffle(&mut self.random);
        self.results(turn, step, &mut running)
    }

    fn results(&mut self, turn: u64, step: u64, running: &mut Vec<CallId>) -> Lives {
        for call_id in running.drain(..) {
            if self.chance(0.03) {
                self.late_result()?;
            }
            if self.chance(0.1) {
                self.add(Plan {
                    entries: vec![PlanEntry { text: "go on".into(), state: "pending".into() }],
                })?;
            }
            let failed = self.chance(0.2);
            let (outcome, code) = match failed {
                true => (Outcome::Error, Some(code::FAILED.to_owned())),
                false => (Outcome::Ok, None),
            };
            let content = self.returned(&call_id);
            let (recovered, replayed) = (false, false);
            self.add(ToolResult { turn, step, call_id, outcome, code, content, recovered, replayed })?;
        }
        Ok(())
    }

    fn refuse(&mut self, turn: u64, step: u64, call_id: &CallId) -> Lives {
        let content = match self.random.random_range(0..3) {
            0 => Vec::new(),
            1 => vec![Block::text("  ")],
            _ => vec![Block::text(format!("refused {}", mark(call_id)))],
        };
        self.add(ToolResult {
            turn,
            step,
            call_id: call_id.clone(),
            outcome: Outcome::Error,
            code: Some(code::DENIED.to_owned()),
            content,
            recovered: false,
            replayed: false,
        })
    }
}
