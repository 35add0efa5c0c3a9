//! What a call may do without asking: levels, rules, and the verdict on one action. Pure, but for the [`Asker`] seam,
//! through which a surface puts the question to a person.
//!
//! Rules guard against surprises, and the sandbox is the wall: a text rule cannot know what `cargo test` runs. So an allow
//! rule matches only what is certainly meant, and a deny rule whatever looks like it.

mod command;
mod pattern;

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use segue_log::{Action, ActionKind, CallId, PermissionOutcome, SessionId};
use serde::{Deserialize, Serialize};

use self::pattern::{PathPattern, Pattern};

/// How much goes through unasked where no rule speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Looking inside the working folder; nothing else, and no allow rule lifts it.
    Read,
    /// Looking; each change and command is asked.
    #[default]
    Ask,
    /// Writes inside the working folder and sandboxed commands too.
    Edit,
    /// Everything that no rule denies.
    All,
}

impl Level {
    /// Every level, the strictest first.
    pub const EVERY: [Self; 4] = [Self::Read, Self::Ask, Self::Edit, Self::All];

    /// The level as flags and configs write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Ask => "ask",
            Self::Edit => "edit",
            Self::All => "all",
        }
    }

    fn lets_through(self, kind: ActionKind) -> bool {
        match kind {
            ActionKind::Read => true,
            ActionKind::Write | ActionKind::Command { sandboxed: true } => {
                matches!(self, Self::Edit | Self::All)
            }
            ActionKind::ReadOutside
            | ActionKind::WriteOutside
            | ActionKind::Command { sandboxed: false }
            | ActionKind::Other => self == Self::All,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no permission level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no permission level: {0:?}; use read, ask, edit or all")]
pub struct BadLevel(String);

impl FromStr for Level {
    type Err = BadLevel;

    fn from_str(text: &str) -> Result<Self, BadLevel> {
        Self::EVERY.into_iter().find(|level| level.as_str() == text).ok_or_else(|| BadLevel(text.to_owned()))
    }
}

/// A rule that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("permission rule {rule:?}: {what}; write TOOL or TOOL(PATTERN), such as bash(cargo *)")]
pub struct BadRule {
    rule: String,
    what: String,
}

/// The tools whose patterns are paths.
const FILE_TOOLS: [&str; 6] = ["read", "write", "edit", "list", "glob", "grep"];

/// One rule: `tool` for every call of a tool, or `tool(PATTERN)`.
///
/// `*` stands for any text and `?` for one character, in the name and in the pattern; `\*`, `\?` and `\\` stand for
/// themselves. What the pattern is held against depends on the action:
///
/// - a **command**: a rule that says the whole command as it stands matches it. Otherwise every simple command of
///   it must be allowed by itself, with no substitution or redirection anywhere; a last ` *` may also stand for no
///   arguments at all. A deny rule matches if any part of the command does.
/// - a **path**: relative to the working folder, or absolute. `*` stays within one name, `**` crosses folders. A path
///   with `..` in it is allowed by no pattern, and a relative pattern allows nothing outside.
/// - anything else: the subject as text.
///
/// Without a pattern, an allow rule lets no file tool out of the working folder; `write(/**)` does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    text: String,
    tool: Pattern,
    pattern: Option<Pattern>,
}

impl Rule {
    /// The rule that allows exactly one subject: wildcards in it stand for themselves.
    pub fn literal(tool: &str, subject: &str) -> Result<Self, BadRule> {
        segue_log::literal_rule(tool, subject).parse()
    }

    fn names(&self, tool: &str) -> bool {
        self.tool.matches(tool)
    }

    /// True if this rule allows an action that is not a command.
    fn allows(&self, tool: &str, action: &Action) -> bool {
        if !self.names(tool) {
            return false;
        }
        let outside = matches!(action.kind, ActionKind::ReadOutside | ActionKind::WriteOutside);
        match &self.pattern {
            None => !outside,
            Some(pattern) if is_path(tool, action) => {
                PathPattern::new(pattern).allows(&action.subject, outside)
            }
            Some(pattern) => pattern.matches(&action.subject),
        }
    }

    /// True if this rule allows a command, or one simple command of it, as it stands.
    fn allows_command(&self, tool: &str, text: &str) -> bool {
        self.names(tool) && self.pattern.as_ref().is_none_or(|pattern| pattern.matches_command(text))
    }

    fn allows_whole_command(&self, tool: &str, text: &str) -> bool {
        self.names(tool) && self.pattern.as_ref().is_none_or(|pattern| pattern.says(text))
    }

    fn denies(&self, tool: &str, action: &Action) -> bool {
        if !self.names(tool) {
            return false;
        }
        let Some(pattern) = &self.pattern else { return true };
        match action.kind {
            ActionKind::Command { .. } => {
                command::parts(&action.subject).iter().any(|part| pattern.matches_command(part))
            }
            _ if is_path(tool, action) => PathPattern::new(pattern).denies(&action.subject),
            _ => pattern.matches(&action.subject),
        }
    }
}

/// Whether an action's subject is a path: MCP tools that only look have the kind of a read, and no path.
fn is_path(tool: &str, action: &Action) -> bool {
    match action.kind {
        ActionKind::Read => !tool.starts_with("mcp__"),
        ActionKind::ReadOutside | ActionKind::Write | ActionKind::WriteOutside => true,
        ActionKind::Command { .. } | ActionKind::Other => false,
    }
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let text = text.trim();
        let bad = |what: &str| BadRule { rule: text.to_owned(), what: what.to_owned() };
        let (tool, pattern) = match text.split_once('(') {
            None if text.contains(')') => return Err(bad("it closes a parenthesis that it does not open")),
            None => (text, None),
            Some((tool, rest)) => match rest.rsplit_once(')') {
                None => return Err(bad("the closing parenthesis is missing")),
                Some((_, after)) if !after.is_empty() => {
                    return Err(bad(&format!("{after:?} follows the closing parenthesis")));
                }
                Some((pattern, _)) if pattern.trim().is_empty() => {
                    return Err(bad("the pattern is empty; leave out the parentheses to match every call"));
                }
                Some((pattern, _)) => (tool, Some(pattern)),
            },
        };
        if tool.is_empty() {
            return Err(bad("the tool's name is missing"));
        }
        if let Some(odd) = tool.chars().find(|c| !c.is_ascii_alphanumeric() && !"_-*?".contains(*c)) {
            return Err(bad(&format!("{odd:?} cannot be in a tool's name")));
        }
        if let Some(pattern) = pattern
            && FILE_TOOLS.contains(&tool)
            && pattern.split('/').any(|name| name == "..")
        {
            return Err(bad("a path pattern cannot go up by `..`; write the absolute path"));
        }
        Ok(Self { text: text.to_owned(), tool: Pattern::new(tool), pattern: pattern.map(Pattern::new) })
    }
}

impl TryFrom<String> for Rule {
    type Error = BadRule;

    fn try_from(text: String) -> Result<Self, BadRule> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.text
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The rules of a config: what is denied comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// What goes through unasked.
    pub allow: Vec<Rule>,
    /// What never does, at any level.
    pub deny: Vec<Rule>,
}

/// What becomes of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It goes through.
    Allow {
        /// The rule or level that lets it.
        by: String,
    },
    /// It does not.
    Deny {
        /// The rule or level that forbids it, in words that can be told to the model.
        by: String,
    },
    /// A person is to be asked.
    Ask,
}

/// Decides on one action of `tool`. `session_rules` are what a person allowed for the session or the folder.
pub fn decide(level: Level, rules: &Rules, session_rules: &[Rule], tool: &str, action: &Action) -> Verdict {
    if let Some(rule) = rules.deny.iter().find(|rule| rule.denies(tool, action)) {
        return Verdict::Deny { by: format!("deny rule {rule}") };
    }
    let by_level = || Verdict::Allow { by: format!("level {level}") };
    if level == Level::Read {
        if level.lets_through(action.kind) {
            return by_level();
        }
        let by = "level read: only looking inside the working folder is permitted, and allow rules do not lift that";
        return Verdict::Deny { by: by.to_owned() };
    }
    // Before the level: what a rule allows need not run in the sandbox, what only the level lets through must.
    let allow: Vec<&Rule> = rules.allow.iter().chain(session_rules).collect();
    match allowed_by(&allow, tool, action) {
        Some(rules) => Verdict::Allow { by: format!("allow rule {}", rules.join(", ")) },
        None if level.lets_through(action.kind) => by_level(),
        None => Verdict::Ask,
    }
}

/// The rules that together allow an action.
fn allowed_by(rules: &[&Rule], tool: &str, action: &Action) -> Option<Vec<String>> {
    let name = |rule: &&Rule| rule.to_string();
    if !matches!(action.kind, ActionKind::Command { .. }) {
        return rules.iter().find(|rule| rule.allows(tool, action)).map(|rule| vec![name(rule)]);
    }
    if let Some(rule) = rules.iter().find(|rule| rule.allows_whole_command(tool, &action.subject)) {
        return Some(vec![name(rule)]);
    }
    let mut used: Vec<String> = Vec::new();
    for simple in command::simple_commands(&action.subject)? {
        let rule = rules.iter().find(|rule| rule.allows_command(tool, &simple)).map(name)?;
        if !used.contains(&rule) {
            used.push(rule);
        }
    }
    (!used.is_empty()).then_some(used)
}

/// What a person is asked: may this call run?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub turn: u64,
    /// The step.
    pub step: u64,
    /// The call.
    pub call_id: CallId,
    /// The tool.
    pub tool: String,
    /// What it would do; `action.shown` is what is shown, `action.rule` what "for this session" would add.
    pub action: Action,
}

/// The answer to a [`Question`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What was answered.
    pub outcome: PermissionOutcome,
    /// For a no: why, told to the model.
    pub reason: Option<String>,
    /// Who answered, such as the surface's name.
    pub by: String,
}

/// What came of asking whether a call may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permit {
    /// It may.
    Allowed {
        /// The rule, the level or the person that lets it.
        by: String,
    },
    /// It may not.
    Denied {
        /// Why, in words for the model.
        why: String,
    },
    /// The turn was cancelled while a person was asked.
    Cancelled,
    /// The question or its answer could not be stored, so it does not count.
    NotStored {
        /// Why.
        why: String,
    },
}

/// Whoever can put a question to a person.
#[async_trait]
pub trait Asker: Send + Sync {
    /// Asks, and waits for as long as the person takes. `None` means that nobody can be asked, as in print mode; the
    /// call is then refused.
    ///
    /// The future is dropped when the turn is cancelled or the session closed: it must be safe to drop while it waits,
    /// and take back what it shows when that happens.
    async fn ask(&self, question: &Question) -> Option<Answer>;
}

#[cfg(test)]
mod tests;
