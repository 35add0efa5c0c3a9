//! The way from a call to the permission for it: rules first, then a person.

use std::sync::Arc;

use segue_log::{Action, CallId, Event, PermissionAsked, PermissionDecided, PermissionOutcome};
use tokio::sync::oneshot;

use crate::core::Core;
use crate::driver::TurnContext;
use crate::error::{Result, RuntimeError};
use crate::permission::{Answer, Asker, Permit, Question, Rule, Verdict, decide};
use crate::update::Update;

impl Core {
    pub(crate) fn verdict(&self, tool: &str, action: &Action) -> Verdict {
        let state = self.state();
        // A rule that no longer parses allows nothing.
        let session: Vec<Rule> =
            state.conversation.session_rules().iter().filter_map(|rule| rule.parse().ok()).collect();
        decide(state.level, &self.options.rules, &session, tool, action)
    }

    pub(crate) async fn permit(
        self: &Arc<Self>,
        turn: &TurnContext,
        step: u64,
        call_id: &CallId,
        tool: &str,
        action: &Action,
    ) -> Permit {
        match self.verdict(tool, action) {
            Verdict::Allow { by } => return Permit::Allowed { by },
            Verdict::Deny { by } => return Permit::Denied { why: format!("Not permitted: {by}.") },
            Verdict::Ask => {}
        }
        let Some(asker) = self.options.asker.clone() else {
            return Permit::Denied {
                why: format!(
                    "Not permitted: this needs a person's consent and nobody can be asked here. It can be allowed \
                     beforehand with the rule {}.",
                    action.rule
                ),
            };
        };
        let question = Question {
            session: self.id,
            turn: turn.turn,
            step,
            call_id: call_id.clone(),
            tool: tool.to_owned(),
            action: action.clone(),
        };
        let asked = PermissionAsked {
            turn: turn.turn,
            step,
            call_id: call_id.clone(),
            tool: tool.to_owned(),
            shown: action.shown.clone(),
            rule: Some(action.rule.clone()),
        };
        if let Err(error) = self.append(asked.into()).await {
            return Permit::NotStored { why: error.to_string() };
        }
        let (sender, receiver) = oneshot::channel();
        self.state().questions.insert(call_id.clone(), sender);
        self.show(Update::Question(Box::new(question.clone())));
        let answer = tokio::select! {
            () = turn.cancel.cancelled() => Err(Permit::Cancelled),
            // An answer through the session is stored by whoever gave it.
            Ok(answer) = receiver => Ok(answer),
            answer = self.ask(asker, &question) => match answer {
                Some(answer) => match self.decide_question(&question, &answer).await {
                    Ok(()) => Ok(answer),
                    Err(error) => Err(Permit::NotStored { why: error.to_string() }),
                },
                None => Err(Permit::Denied { why: "Not permitted: nobody answered the question.".into() }),
            },
        };
        self.state().questions.remove(call_id);
        match answer {
            Err(permit) => permit,
            Ok(Answer { outcome: PermissionOutcome::Deny, reason, .. }) => Permit::Denied {
                why: match reason {
                    Some(reason) => format!("The person said no: {reason}"),
                    None => "The person said no.".into(),
                },
            },
            Ok(answer) => Permit::Allowed { by: answer.by },
        }
    }

    /// Puts the question to the surface. Whoever takes a question out is the one who answers it: an answer that comes
    /// second is none.
    async fn ask(&self, asker: Arc<dyn Asker>, question: &Question) -> Option<Answer> {
        let answer = asker.ask(question).await;
        let is_first = self.state().questions.remove(&question.call_id).is_some();
        if is_first { answer } else { std::future::pending().await }
    }

    /// An answer from a surface: durable before it counts. Runs to its end even if the caller goes away: the question is
    /// taken out while it is being stored, and nobody else could answer it.
    pub(crate) async fn answer(self: &Arc<Self>, call_id: &CallId, answer: Answer) -> Result<()> {
        let (core, id) = (self.clone(), call_id.clone());
        let task = tokio::spawn(async move { core.store_answer(&id, answer).await });
        task.await.unwrap_or_else(|_| Err(RuntimeError::NoQuestion(call_id.clone())))
    }

    async fn store_answer(self: &Arc<Self>, call_id: &CallId, answer: Answer) -> Result<()> {
        let none = || RuntimeError::NoQuestion(call_id.clone());
        let (turn, step, sender) = {
            let mut state = self.state();
            let call = state.conversation.call(call_id).ok_or_else(none)?;
            let (turn, step) = (call.turn, call.step);
            (turn, step, state.questions.remove(call_id).ok_or_else(none)?)
        };
        if let Err(error) = self.store_decision(turn, step, call_id, &answer).await {
            // It does not count, and the question waits on.
            self.state().questions.insert(call_id.clone(), sender);
            return Err(error);
        }
        sender.send(answer).map_err(|_| none())
    }

    async fn decide_question(self: &Arc<Self>, question: &Question, answer: &Answer) -> Result<()> {
        self.store_decision(question.turn, question.step, &question.call_id, answer).await
    }

    async fn store_decision(
        self: &Arc<Self>,
        turn: u64,
        step: u64,
        call_id: &CallId,
        answer: &Answer,
    ) -> Result<()> {
        let rule = match answer.outcome {
            PermissionOutcome::AllowSession | PermissionOutcome::AllowFolder => self.shown_rule(call_id),
            PermissionOutcome::AllowOnce | PermissionOutcome::Deny => None,
        };
        let decided = PermissionDecided {
            turn,
            step,
            call_id: call_id.clone(),
            outcome: answer.outcome,
            by: answer.by.clone(),
            rule,
            reason: answer.reason.clone(),
        };
        self.accept("the permission decision", decided.into()).await?;
        Ok(())
    }

    /// The literal rule that was shown with a question.
    fn shown_rule(&self, call_id: &CallId) -> Option<String> {
        self.state().records.iter().rev().find_map(|record| match &record.event {
            Event::PermissionAsked(data) if data.call_id == *call_id => data.rule.clone(),
            _ => None,
        })
    }
}
