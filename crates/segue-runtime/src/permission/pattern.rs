//! Patterns of rules, over text and over paths.

/// One character of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// Itself.
    Literal(char),
    /// `?`: any one character.
    One,
    /// `*`: any text.
    Any,
}

/// A text with wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    text: String,
    tokens: Vec<Token>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        let mut tokens = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            tokens.push(match c {
                '*' => Token::Any,
                '?' => Token::One,
                '\\' => Token::Literal(chars.next_if(|next| matches!(next, '*' | '?' | '\\')).unwrap_or(c)),
                c => Token::Literal(c),
            });
        }
        Self { text: text.to_owned(), tokens }
    }

    /// True if it says this very text: it has no wildcard that could mean another, or is spelt the same.
    pub(super) fn says(&self, text: &str) -> bool {
        let is_literal = !self.tokens.iter().any(|token| matches!(token, Token::One | Token::Any));
        self.text == text || (is_literal && self.matches(text))
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        matches_tokens(&self.tokens, text)
    }

    /// Like [`Pattern::matches`], but `cargo test *` also matches `cargo test`.
    pub(super) fn matches_command(&self, text: &str) -> bool {
        self.matches(text)
            || matches!(self.tokens.as_slice(), [command @ .., Token::Literal(' '), Token::Any]
                if !command.is_empty() && matches_tokens(command, text))
    }
}

fn matches_tokens(tokens: &[Token], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    matches_sequence(
        tokens,
        &text,
        |token| *token == Token::Any,
        |token, c| match token {
            Token::Literal(literal) => literal == c,
            Token::One | Token::Any => true,
        },
    )
}

/// Matches a sequence against a pattern in which some elements stand for any run. Only the latest such element is ever
/// tried again, so that time is bounded by the product of both lengths however hostile the pattern.
fn matches_sequence<P, T>(
    pattern: &[P],
    text: &[T],
    is_any: impl Fn(&P) -> bool,
    fits: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut pos) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while let Some(element) = text.get(pos) {
        match pattern.get(at) {
            Some(token) if is_any(token) => {
                retry = Some((at + 1, pos));
                at += 1;
            }
            Some(token) if fits(token, element) => {
                at += 1;
                pos += 1;
            }
            _ => match retry {
                None => return false,
                Some((after, from)) => {
                    retry = Some((after, from + 1));
                    at = after;
                    pos = from + 1;
                }
            },
        }
    }
    pattern.get(at..).is_some_and(|rest| rest.iter().all(is_any))
}

/// A pattern read as a path: absolute, or relative to the working folder.
pub(super) struct PathPattern {
    absolute: bool,
    names: Vec<Vec<Token>>,
}

impl PathPattern {
    pub(super) fn new(pattern: &Pattern) -> Self {
        let absolute = pattern.tokens.first() == Some(&Token::Literal('/'));
        let names = pattern
            .tokens
            .split(|token| *token == Token::Literal('/'))
            .filter(|name| !name.is_empty() && *name != [Token::Literal('.')])
            .map(<[Token]>::to_vec)
            .collect();
        Self { absolute, names }
    }

    /// True only if the path is certainly meant: no `..` in it (what it leads to depends on links), and a path outside
    /// the working folder only by an absolute pattern.
    pub(super) fn allows(&self, path: &str, outside: bool) -> bool {
        let absolute = path.starts_with('/');
        !path.split('/').any(|name| name == "..")
            && absolute == self.absolute
            && (self.absolute || !outside)
            && self.matches(&names_of(path))
    }

    /// True if the path is the one meant on any reading: with `..` resolved, or, for a pattern that begins in any
    /// folder, wherever it lies.
    pub(super) fn denies(&self, path: &str) -> bool {
        let anywhere = self.names.first().is_some_and(|name| is_any_folders(name));
        let mut resolved: Vec<&str> = Vec::new();
        for name in names_of(path) {
            match name {
                ".." => drop(resolved.pop()),
                name => resolved.push(name),
            }
        }
        (path.starts_with('/') == self.absolute || anywhere)
            && (self.matches(&names_of(path)) || self.matches(&resolved))
    }

    fn matches(&self, names: &[&str]) -> bool {
        matches_sequence(
            &self.names,
            names,
            |name| is_any_folders(name),
            |pattern, name| matches_tokens(pattern, name),
        )
    }
}

fn is_any_folders(name: &[Token]) -> bool {
    name == [Token::Any, Token::Any]
}

fn names_of(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".").collect()
}
