//! What a tool call would do, in the words that tools, permission rules and people share.

/// What a call would do, as permissions see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// Its kind.
    pub kind: ActionKind,
    /// What a rule `tool(PATTERN)` is matched against: the command, the path relative to the working folder, or empty.
    pub subject: String,
    /// What a person is shown: exactly what will run or change; may have several lines.
    pub shown: String,
    /// The literal rule offered for "for this session", such as `bash(cargo test *)`.
    pub rule: String,
}

/// The rule that matches exactly one subject: `*`, `?` and `\\` in it, which have a meaning in rules, stand for themselves.
pub fn literal_rule(tool: &str, subject: &str) -> String {
    format!("{tool}({})", escape_rule(subject))
}

/// A text as it stands in the pattern of a rule that means it literally.
pub fn escape_rule(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// What kind of thing a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionKind {
    /// Looks at something inside the working folder, or keeps to itself.
    Read,
    /// Looks at something outside.
    ReadOutside,
    /// Changes a file inside the working folder.
    Write,
    /// Changes a file outside.
    WriteOutside,
    /// Runs a command; `sandboxed` if it can be held to the working folder and off the network.
    Command {
        /// True if a sandbox will hold it.
        sandboxed: bool,
    },
    /// Anything else: MCP tools that are not declared read-only.
    Other,
}
