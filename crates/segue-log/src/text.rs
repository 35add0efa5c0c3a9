//! Text for people: titles, and text from outside made harmless to a terminal.

use std::borrow::Cow;

/// The longest title, in characters.
const TITLE: usize = 60;

/// A title from a prompt's text: its first line with words, white space collapsed, cut to 60 characters.
pub fn title_of(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("");
    let line = strip_controls(line);
    let mut words = line.split_whitespace();
    let mut title = words.next().unwrap_or("").to_owned();
    for word in words {
        title.push(' ');
        title.push_str(word);
        if title.len() > TITLE * 4 {
            break;
        }
    }
    if title.chars().count() > TITLE {
        title = title.chars().take(TITLE - 1).collect::<String>().trim_end().to_owned();
        title.push('…');
    }
    title
}

/// `text` without what a terminal would obey: escape sequences, control characters other than newline and tab, and
/// the characters that reorder or hide text.
pub fn strip_controls(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => skip_escape(&mut chars),
            '\u{9b}' => skip_csi(&mut chars),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => skip_string(&mut chars),
            '\r' if chars.peek() == Some(&'\n') => {}
            '\r' => out.push('\n'),
            c if is_unsafe(c) => {}
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn skip_escape(chars: &mut Chars<'_>) {
    match chars.peek() {
        Some('[') => {
            chars.next();
            skip_csi(chars);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            chars.next();
            skip_string(chars);
        }
        Some(' '..='/') => {
            while chars.next_if(|c| matches!(c, ' '..='/')).is_some() {}
            chars.next_if(|c| matches!(c, '0'..='~'));
        }
        Some('0'..='~') => {
            chars.next();
        }
        _ => {}
    }
}

/// A control sequence: parameters, then one final character.
fn skip_csi(chars: &mut Chars<'_>) {
    while chars.next_if(|c| matches!(c, ' '..='?')).is_some() {}
    chars.next_if(|c| matches!(c, '@'..='~'));
}

/// A control string, up to its terminator. One that never ends takes only its own line with it.
fn skip_string(chars: &mut Chars<'_>) {
    while let Some(c) = chars.next_if(|c| *c != '\n') {
        match c {
            '\u{7}' | '\u{9c}' => return,
            '\u{1b}' => {
                chars.next_if_eq(&'\\');
                return;
            }
            _ => {}
        }
    }
}

/// `text` on one line, with control characters shown as `\n`, `\x1b` and so on; for commands shown to be copied.
pub fn visible_controls(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_unsafe(c) || c == '\n' || c == '\t') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) || c == '\n' || c == '\t' { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_short_and_harmless() {
        for (text, title) in [
            ("", ""),
            ("\n\n  fix   the\tbug \nplease", "fix the bug"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            (&"x".repeat(61), &format!("{}…", "x".repeat(59))),
            (&"数".repeat(60), &"数".repeat(60)),
        ] {
            assert_eq!(title_of(text), title);
        }
    }

    #[test]
    fn nothing_a_terminal_obeys_gets_through() {
        for (text, clean) in [
            ("plain ✓ 数字\n\ttab", "plain ✓ 数字\n\ttab"),
            ("\u{1b}[2J\u{1b}[1;31mred", "red"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}]52;c;never ends\nnext", "\nnext"),
            ("\u{9b}31mred\u{7}\u{8}", "red"),
            ("\u{1b}(0\u{1b}c\u{1b}7kept", "kept"),
            ("a\u{202e}gpj.exe", "agpj.exe"),
            ("over\rwritten\r\n", "over\nwritten\n"),
            ("\u{1b}", ""),
            ("\u{1b}[", ""),
            ("\u{0}\u{7f}\u{85}", ""),
        ] {
            assert_eq!(strip_controls(text), clean, "{text:?}");
        }
    }

    #[test]
    fn controls_can_be_shown() {
        assert_eq!(visible_controls("a b"), "a b");
        assert_eq!(visible_controls("a\nb\u{1b}"), "a\\nb\\u{1b}");
    }
}
