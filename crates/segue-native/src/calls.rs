//! The calls of one step: permitted, recorded, run, answered. Calls that may run beside each other share one boundary.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use segue_log::{BlobHash, Call, CallId, Origin, Plan, PlanEntry, ToolCall, ToolResult, code};
use segue_runtime::permission::{Permit, Verdict};
use segue_runtime::{Boundary, Result, Stopped, TurnContext, Update};
use segue_tool::{Failure, Registry, Tool, ToolContext, ToolHost, ToolOutput, fit};
use serde_json::Value;

use crate::driver::Inner;
use crate::turn::Turn;

/// How long a cancelled body may take to come back before its call is answered without it.
const CANCEL_GRACE: Duration = Duration::from_secs(10);

/// A call that may be entered.
struct Ready {
    call: Call,
    tool: Arc<dyn Tool>,
    context: ToolContext,
}

impl Turn {
    /// Answers every call, in order. An error means that the log takes no more records.
    pub(crate) async fn act(&self, step: u64, calls: Vec<Call>) -> Result<()> {
        let mut rest = calls.into_iter().peekable();
        while let Some(first) = rest.next() {
            let beside = self.is_parallel(&first);
            let mut batch = vec![first];
            while beside && let Some(next) = rest.next_if(|call| self.is_parallel(call)) {
                batch.push(next);
            }
            self.batch(step, batch).await?;
        }
        Ok(())
    }

    fn is_parallel(&self, call: &Call) -> bool {
        self.tools.get(&call.tool).is_ok_and(|tool| tool.is_parallel())
    }

    async fn batch(&self, step: u64, calls: Vec<Call>) -> Result<()> {
        let mut ready = Vec::new();
        for call in calls {
            match self.prepare(step, &call).await {
                Ok(entry) => ready.push(entry),
                Err(output) => self.answer(&call, output).await?,
            }
        }
        for entry in &ready {
            let machine = self.turn.machine();
            let record = ToolCall {
                turn: entry.call.turn,
                step: entry.call.step,
                call_id: entry.call.call_id.clone(),
                provider_id: entry.call.provider_id.clone(),
                tool: entry.call.tool.clone(),
                input: entry.call.input().clone(),
                effect: entry.tool.effect(),
                expect: entry.context.expect.clone(),
                origin: Origin::Dispatched,
                host: machine.host.clone(),
                boot: machine.boot.clone(),
                replayed: false,
            };
            self.turn.append(record).await?;
        }
        if ready.is_empty() {
            return Ok(());
        }
        if let Err(stopped) = self.turn.boundary(Boundary::Dispatch).await {
            for entry in &ready {
                self.answer(&entry.call, not_dispatched(&stopped)).await?;
            }
            return Ok(());
        }
        let mut running: FuturesUnordered<_> = ready.into_iter().map(|entry| self.enter(entry)).collect();
        while let Some((call, output)) = running.next().await {
            self.answer(&call, output).await?;
        }
        Ok(())
    }

    /// Everything before the record of the call: nothing here touches the world.
    async fn prepare(&self, step: u64, call: &Call) -> Result<Ready, ToolOutput> {
        if self.turn.cancel().is_cancelled() {
            return Err(not_dispatched(&Stopped::Cancelled));
        }
        let tool = self.tools.check(&call.tool, call.input())?.clone();
        let scope = self.driver.scope(self.turn.cwd());
        let action = tool.action(call.input(), &scope);
        let permitted = match self.turn.permit(step, &call.call_id, &call.tool, &action).await {
            Permit::Allowed { by } => is_for_this_action(&by),
            Permit::Denied { why } => return Err(ToolOutput::error(code::DENIED, why)),
            Permit::Cancelled => return Err(not_dispatched(&Stopped::Cancelled)),
            Permit::NotStored { why } => {
                return Err(ToolOutput::error(code::CHECKPOINT_FAILED, not_stored(&why)));
            }
        };
        let host = Host {
            turn: self.turn.clone(),
            driver: self.driver.clone(),
            tools: self.tools.clone(),
            call: call.call_id.clone(),
        };
        let mut context = ToolContext {
            session: self.turn.session(),
            call_id: call.call_id.clone(),
            scope,
            permitted,
            expect: None,
            cancel: self.turn.cancel().child_token(),
            host: Arc::new(host),
        };
        context.expect = tool.expect(call.input(), &context).await?;
        Ok(Ready { call: call.clone(), tool, context })
    }

    async fn enter(&self, entry: Ready) -> (Call, ToolOutput) {
        let Ready { call, tool, context } = entry;
        self.turn.show(Update::Calling { call_id: call.call_id.clone(), tool: call.tool.clone() });
        let input = call.input().clone();
        let host = context.host.clone();
        let cancel = context.cancel.clone();
        // A task of its own, so that a body that panics or hangs takes nothing with it.
        let mut body = tokio::spawn(async move { tool.run(input, &context).await });
        let late = async {
            cancel.cancelled().await;
            tokio::time::sleep(CANCEL_GRACE).await;
        };
        let output = tokio::select! {
            output = &mut body => output.unwrap_or_else(|error| {
                ToolOutput::error(code::FAILED, format!("The tool itself failed and may have had effects: {error}"))
            }),
            () = late => {
                body.abort();
                ToolOutput::error(code::CANCELLED, "Cancelled, but the tool did not stop in time; it may have had effects.")
            }
        };
        (call, fit(output, host.as_ref()).await)
    }

    async fn answer(&self, call: &Call, output: ToolOutput) -> Result<()> {
        let result = ToolResult {
            turn: call.turn,
            step: call.step,
            call_id: call.call_id.clone(),
            outcome: output.outcome,
            code: output.code,
            content: output.content,
            recovered: false,
            replayed: false,
        };
        self.turn.append(result).await.map(drop)
    }
}

/// Levels let kinds of actions through; rules, people and the level `all` let this very one.
fn is_for_this_action(by: &str) -> bool {
    by == "level all" || !by.starts_with("level ")
}

fn not_stored(why: &str) -> String {
    format!("Not started: that it is about to run could not be recorded ({why}).")
}

fn not_dispatched(stopped: &Stopped) -> ToolOutput {
    match stopped {
        Stopped::Cancelled => ToolOutput::error(code::ABORTED, "Not started: the turn was cancelled before."),
        Stopped::Failed(error) => ToolOutput::error(code::CHECKPOINT_FAILED, not_stored(&error.to_string())),
    }
}

/// What a call may use of its session.
struct Host {
    turn: TurnContext,
    driver: Arc<Inner>,
    tools: Arc<Registry>,
    call: CallId,
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure { code: code::FAILED.to_owned(), message: error.to_string() }
}

#[async_trait]
impl ToolHost for Host {
    async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash, Failure> {
        self.turn.put_blob(bytes).await.map_err(failure)
    }

    fn progress(&self, text: &str) {
        self.turn.show(Update::Progress { call_id: self.call.clone(), text: text.to_owned() });
    }

    async fn plan(&self, entries: Vec<PlanEntry>) -> Result<(), Failure> {
        self.turn.append(Plan { entries }).await.map(drop).map_err(failure)
    }

    async fn call(&self, tool: &str, input: Value, context: &ToolContext) -> ToolOutput {
        let tool = match self.tools.check(tool, &input) {
            Ok(tool) => tool,
            Err(failure) => return failure.into(),
        };
        let permitted = match self.turn.verdict(tool.name(), &tool.action(&input, &context.scope)) {
            Verdict::Allow { by } => is_for_this_action(&by),
            Verdict::Deny { by } => return ToolOutput::error(code::DENIED, format!("Not permitted: {by}.")),
            Verdict::Ask => {
                return ToolOutput::error(
                    code::DENIED,
                    "Not permitted: this needs a person's consent, and a call inside a call asks nobody.",
                );
            }
        };
        let mut inner = ToolContext { permitted, expect: None, ..context.clone() };
        match tool.expect(&input, &inner).await {
            Ok(expect) => inner.expect = expect,
            Err(failure) => return failure.into(),
        }
        tool.run(input, &inner).await
    }

    fn saw(&self, path: &Path, content: BlobHash) {
        self.driver.saw(path.to_owned(), content);
    }

    fn seen(&self, path: &Path) -> Option<BlobHash> {
        self.driver.seen(path)
    }
}
