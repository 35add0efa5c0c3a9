//! Shell commands as rules see them: taken apart into simple commands, or not understood at all.

/// The simple commands of a shell command, or `None` where it has anything whose effect its text does not show:
/// substitutions, redirections, subshells, functions, comments, quotes that do not close, quoted subscripts that run
/// commands. Runs of blanks outside quotes become one.
///
/// Reserved words are left at the front of their command (`then rm x`), where no rule for the command itself matches.
pub(super) fn simple_commands(command: &str) -> Option<Vec<String>> {
    if runs_a_subscript(command) {
        return None;
    }
    let mut commands = Vec::new();
    let mut current = String::new();
    let mut chars = command.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            ';' | '\n' | '&' | '|' => finish(&mut current, &mut commands),
            ' ' | '\t' => blank(&mut current),
            '\'' => {
                current.push(c);
                loop {
                    let quoted = chars.next()?;
                    current.push(quoted);
                    if quoted == '\'' {
                        break;
                    }
                }
            }
            '"' => {
                current.push(c);
                loop {
                    let quoted = chars.next()?;
                    match quoted {
                        '`' => return None,
                        '$' if !is_plain_dollar(chars.peek().copied(), true) => return None,
                        _ => current.push(quoted),
                    }
                    match quoted {
                        '"' => break,
                        '\\' => current.push(chars.next()?),
                        _ => {}
                    }
                }
            }
            '\\' => {
                current.push(c);
                current.push(chars.next()?);
            }
            '$' if !is_plain_dollar(chars.peek().copied(), false) => return None,
            '`' | '(' | ')' | '<' | '>' | '#' | '\0' => return None,
            c => current.push(c),
        }
    }
    finish(&mut current, &mut commands);
    Some(commands)
}

/// `printf -v 'a[$(x)]'`, `test -v` and whatever else takes a variable's name runs what stands in its subscript, however
/// it is quoted.
fn runs_a_subscript(command: &str) -> bool {
    let bare: String = command.chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect();
    bare.split_once('[')
        .is_some_and(|(_, after)| ["$(", "${", "`"].iter().any(|substitution| after.contains(substitution)))
}

/// Whether a `$` before `next` is itself or begins a plain variable; `${…}` can run commands (`${x@P}`), and so can all
/// the others.
fn is_plain_dollar(next: Option<char>, in_quotes: bool) -> bool {
    match next {
        None | Some(' ' | '\t' | '\n') => true,
        Some('"') => in_quotes,
        Some(c) => c.is_ascii_alphanumeric() || c == '_',
    }
}

fn blank(current: &mut String) {
    // An escaped blank is followed by a real one only as `\ ` + ` `; it is kept, as the backslash stands before it.
    if !current.is_empty() && (!current.ends_with(' ') || current.ends_with("\\ ")) {
        current.push(' ');
    }
}

fn finish(current: &mut String, commands: &mut Vec<String>) {
    let text = std::mem::take(current);
    let text = if text.ends_with("\\ ") { text.as_str() } else { text.trim_end_matches(' ') };
    if !text.is_empty() {
        commands.push(text.to_owned());
    }
}

/// Every text that a deny rule is held against: the whole command, its simple commands (or, where it cannot be taken apart,
/// whatever lies between two operators), each of them also without its quotes and without the words that may stand
/// before a command's name.
pub(super) fn parts(command: &str) -> Vec<String> {
    let whole = command.trim();
    let mut parts = vec![whole.to_owned()];
    let pieces = simple_commands(whole).unwrap_or_else(|| {
        let ends = |c| matches!(c, ';' | '\n' | '&' | '|' | '`' | '(' | ')' | '<' | '>' | '#');
        whole.split(ends).map(str::to_owned).collect()
    });
    for piece in pieces {
        let bare: String =
            piece.replace("\\\n", "").chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect();
        let words: Vec<&str> = bare.split_whitespace().collect();
        let start = words.iter().position(|word| !stands_before_a_command(word)).unwrap_or(words.len());
        let words = words.get(start..).unwrap_or_default();
        parts.push(words.join(" "));
        if let Some((first, rest)) = words.split_first()
            && let Some((_, name)) = first.rsplit_once('/')
        {
            let mut named = vec![name];
            named.extend(rest);
            parts.push(named.join(" "));
        }
        parts.push(piece.trim().to_owned());
    }
    parts.retain(|part| !part.is_empty());
    parts
}

fn stands_before_a_command(word: &str) -> bool {
    const WORDS: [&str; 17] = [
        "!", "{", "builtin", "command", "coproc", "do", "elif", "else", "env", "exec", "if", "nohup", "sudo",
        "then", "time", "until", "while",
    ];
    let assigns = word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '+'))
    });
    assigns || WORDS.contains(&word) || word == "$"
}
