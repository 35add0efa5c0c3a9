//! What the agent is made of: handed in by the launcher, read from nowhere.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use segue_model::{Model, Parameters};
use segue_tool::Tool;

/// Finds models by name.
pub trait Models: Send + Sync + 'static {
    /// The model of that `provider/name`, or the default one. An error says what is missing and what to do.
    fn model(&self, name: Option<&str>) -> Result<Arc<dyn Model>, String>;
}

/// Tools that must be started before they can be offered, such as those of MCP servers.
#[async_trait]
pub trait MoreTools: Send + Sync + 'static {
    /// Starts what is to be started and gives the tools, and what could not be had, in words. Called before each turn:
    /// must be quick when nothing changed.
    async fn tools(&self) -> (Vec<Arc<dyn Tool>>, Vec<String>);

    /// Ends what was started.
    async fn close(&self);
}

/// The agent's parts and limits.
#[derive(Clone)]
pub struct NativeConfig {
    /// Where models come from.
    pub models: Arc<dyn Models>,
    /// The built-in tools.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Tools that must be started.
    pub more_tools: Option<Arc<dyn MoreTools>>,
    /// Request parameters.
    pub parameters: Parameters,
    /// The most steps of one turn.
    pub max_steps: u64,
    /// The part of the model's window that, once filled, brings a compaction.
    pub compact_at: f64,
    /// How failed requests are sent again.
    pub retry: RetryPolicy,
    /// Folders beside the working folder that calls may work in.
    pub extra_folders: Vec<PathBuf>,
    /// Where calls keep what must outlive this process.
    pub calls: PathBuf,
}

/// How failed model requests are sent again: exponentially later each time, jittered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    /// The most attempts of one request, the first included.
    pub attempts: u64,
    /// The wait before the second attempt.
    pub base: Duration,
    /// The longest wait; a provider that asks for more is not waited for.
    pub longest: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts: 6, base: Duration::from_millis(500), longest: Duration::from_secs(120) }
    }
}

impl RetryPolicy {
    /// How long to wait after `attempt` failed; none if it is not to be tried again. `jitter` is from 0 to 1.
    pub fn wait(&self, attempt: u64, asked: Option<Duration>, jitter: f64) -> Option<Duration> {
        if attempt >= self.attempts || asked.is_some_and(|asked| asked > self.longest) {
            return None;
        }
        let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        let wait = self.base.saturating_mul(1 << doublings).min(self.longest);
        let jittered = wait.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        Some(asked.map_or(jittered, |asked| asked.max(jittered)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_are_jittered_and_honour_the_provider() {
        let policy =
            RetryPolicy { attempts: 4, base: Duration::from_secs(1), longest: Duration::from_secs(3) };
        let seconds = Duration::from_secs_f64;
        for (attempt, asked, jitter, wait) in [
            (1, None, 1.0, Some(seconds(1.0))),
            (1, None, 0.0, Some(seconds(0.5))),
            (2, None, 1.0, Some(seconds(2.0))),
            (3, None, 1.0, Some(seconds(3.0))),
            (4, None, 1.0, None),
            (1, Some(seconds(2.5)), 1.0, Some(seconds(2.5))),
            (1, Some(seconds(0.1)), 1.0, Some(seconds(1.0))),
            (1, Some(seconds(60.0)), 1.0, None),
        ] {
            assert_eq!(policy.wait(attempt, asked, jitter), wait, "{attempt} {asked:?} {jitter}");
        }
    }
}
