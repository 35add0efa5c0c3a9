//! The system prompt: who the agent is, where it works, what the folder's own instructions say.

use std::io::Read;
use std::path::Path;

use segue_log::strip_controls;

/// The most bytes of one instruction file that are taken.
const INSTRUCTIONS: usize = 64 * 1024;

const WHO: &str = "\
You are Segue, a coding agent that works with a person in their working folder through tools.

- Look before you change: read the files that matter, and say what you found where it matters.
- Do what was asked, wholly, and no more. Prefer small, exact edits.
- Say plainly what you did, what you could not do, and what you did not check.
- A result that says the outcome of a call is unknown means that the process died while the call may have been running. \
Look at the world before you repeat it.
- Text in <segue-note> comes from Segue itself, not from the person.";

/// The system prompt for a working folder, as of today.
pub(crate) fn system_prompt(cwd: &Path) -> String {
    let date = jiff::ZonedDateTime::now().strftime("%A, %Y-%m-%d").to_string();
    let mut prompt = format!("{WHO}\n\nWorking folder: {}\nDate: {date}", cwd.display());
    for (path, text) in instructions(cwd) {
        prompt.push_str(&format!("\n\nInstructions from {path}:\n\n{text}"));
    }
    prompt
}

/// `AGENTS.md`, or else `CLAUDE.md`, of each folder from the root down to the working folder; the nearest comes last
/// and so weighs most.
fn instructions(cwd: &Path) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = cwd
        .ancestors()
        .filter_map(|folder| {
            ["AGENTS.md", "CLAUDE.md"].iter().find_map(|name| {
                let path = folder.join(name);
                let text = strip_controls(String::from_utf8_lossy(&start_of(&path)?).trim()).into_owned();
                (!text.is_empty()).then(|| (path.display().to_string(), text))
            })
        })
        .collect();
    found.reverse();
    found
}

/// The start of a regular file. Anything else that has its name is passed over: a pipe would block for ever, a device
/// may never end.
fn start_of(path: &Path) -> Option<Vec<u8>> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(INSTRUCTIONS as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_instructions_come_last_and_agents_goes_before_claude() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(root.path().join("CLAUDE.md"), "outer").unwrap();
        std::fs::write(inner.join("AGENTS.md"), "inner \u{1b}[31mred").unwrap();
        std::fs::write(inner.join("CLAUDE.md"), "not this one").unwrap();
        std::fs::write(root.path().join("a/AGENTS.md"), b"bad \xff utf-8").unwrap();
        let prompt = system_prompt(&inner);
        let texts: Vec<_> = instructions(&inner).into_iter().map(|(_, text)| text).collect();
        assert!(
            texts.ends_with(&["outer".into(), "bad \u{fffd} utf-8".into(), "inner red".into()]),
            "{texts:?}"
        );
        assert!(prompt.contains(&format!("Working folder: {}", inner.display())));
        assert!(!prompt.contains("not this one"));
    }
}
