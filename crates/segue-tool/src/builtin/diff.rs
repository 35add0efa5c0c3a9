//! What a change of a file looks like.

use std::time::Duration;

use similar::TextDiff;

use crate::limit::clip;

/// Content above this many bytes is not compared line by line.
const COMPARED: usize = 1024 * 1024;

/// The most bytes of a diff that are shown.
const SHOWN: usize = 16 * 1024;

/// A unified diff from `before` (none: there was no file) to `after`.
pub(super) fn diff(name: &str, before: Option<&[u8]>, after: &[u8]) -> String {
    let old = before.unwrap_or_default();
    if old == after && before.is_some() {
        return "(no change)".to_owned();
    }
    let (Ok(old_text), Ok(new_text)) = (std::str::from_utf8(old), std::str::from_utf8(after)) else {
        return format!("{} bytes become {} bytes (not text, no diff)", old.len(), after.len());
    };
    if old.len() > COMPARED || after.len() > COMPARED {
        return format!("{} bytes become {} bytes (too large for a diff)", old.len(), after.len());
    }
    let compared = TextDiff::configure().timeout(Duration::from_millis(500)).diff_lines(old_text, new_text);
    let from = if before.is_some() { name } else { "/dev/null" };
    let text = compared.unified_diff().context_radius(3).header(from, name).to_string();
    clip(&text, SHOWN).into_owned()
}

#[cfg(test)]
mod tests {
    use super::diff;

    #[test]
    fn changes_are_shown_as_a_unified_diff() {
        assert_eq!(diff("a", Some(b"1\n2\n"), b"1\n3\n"), "--- a\n+++ a\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n");
        assert_eq!(diff("a", None, b"1\n"), "--- /dev/null\n+++ a\n@@ -0,0 +1 @@\n+1\n");
        assert_eq!(diff("a", Some(b"1\n"), b"1\n"), "(no change)");
        assert_eq!(diff("a", Some(b"\xff"), b"1"), "1 bytes become 1 bytes (not text, no diff)");
    }
}
