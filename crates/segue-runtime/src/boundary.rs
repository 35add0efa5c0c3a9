//! The points of a turn at which something must be on disk before the next thing may happen, and the policy that says
//! which of them are.

use segue_log::Policy;
use segue_store::StoreError;

/// A point at which the log must be durable before what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// Before a prompt, its removal, a permission decision, a setting or a settlement is acknowledged.
    Accept,
    /// Before anything between two steps that waits on the outside.
    Step,
    /// Before a model request is sent.
    Request,
    /// Before a tool's body is entered.
    Dispatch,
    /// Before idle is observed or the next turn starts.
    TurnEnd,
}

/// Whether a policy makes a boundary durable.
pub fn durable(policy: Policy, boundary: Boundary) -> bool {
    match policy {
        Policy::Semantic => true,
        Policy::Turn => matches!(boundary, Boundary::Accept | Boundary::TurnEnd),
    }
}

/// Why a turn may not go on past a boundary.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The log could not be made durable.
    #[error("the log could not be stored: {0}")]
    Failed(#[from] StoreError),
    /// The turn was cancelled while it waited.
    #[error("cancelled")]
    Cancelled,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policies_differ_where_the_design_says() {
        use Boundary::*;
        let all = [Accept, Step, Request, Dispatch, TurnEnd];
        assert_eq!(all.map(|boundary| durable(Policy::Semantic, boundary)), [true; 5]);
        assert_eq!(all.map(|boundary| durable(Policy::Turn, boundary)), [true, false, false, false, true]);
    }
}
