//! What a hosted agent's call would do, in the words of our permissions; and our answer in the words of its question.

use std::path::{Path, PathBuf};

use segue_log::{Action, ActionKind, Effect, literal_rule};
use segue_tool::{Place, Scope};
use serde_json::{Value, json};

use super::config::AgentConfig;

/// The name under which rules and records know a kind of call. The kinds are ACP's.
pub fn tool_name(call: &Value) -> &'static str {
    match call.get("kind").and_then(Value::as_str) {
        _ if command_of(call).is_some() => "bash",
        Some("execute") => "bash",
        Some("edit" | "delete" | "move") => "edit",
        _ if !changed_paths(call).is_empty() => "edit",
        Some("read") => "read",
        Some("search") => "grep",
        Some("fetch") => "fetch",
        Some("think") => "think",
        Some("switch_mode") => "switch_mode",
        _ => "other",
    }
}

/// What a call may do to the world, by what the agent says it is.
pub fn effect(call: &Value) -> Effect {
    match tool_name(call) {
        "read" | "grep" | "fetch" => Effect::Read,
        _ => Effect::Write,
    }
}

/// Its input: what the agent calls that, else what else it says of the call.
pub fn input(call: &Value) -> Value {
    let is_empty =
        |value: &Value| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
    match call.get("rawInput").filter(|input| !is_empty(input)) {
        Some(input) => input.clone(),
        None => {
            let said = ["title", "locations"].iter().filter_map(|key| {
                let value = call.get(*key).filter(|value| !value.is_null())?;
                Some(((*key).to_owned(), value.clone()))
            });
            Value::Object(said.collect())
        }
    }
}

/// What a call would do, in the folder `cwd`.
pub fn action(call: &Value, agent: &AgentConfig, cwd: &Path) -> Action {
    let tool = tool_name(call);
    let title = call.get("title").and_then(Value::as_str).unwrap_or_default();
    if tool == "bash" {
        let command = command_of(call).unwrap_or_else(|| title.to_owned());
        return Action {
            // The agent runs it: nothing of ours holds it.
            kind: ActionKind::Command { sandboxed: false },
            rule: literal_rule(tool, &command),
            shown: command.clone(),
            subject: command,
        };
    }
    if matches!(tool, "read" | "edit") {
        let mut paths = changed_paths(call);
        paths.extend(named_paths(call));
        return on_files(tool, title, &paths, call, agent, cwd);
    }
    let kind = match tool {
        "grep" if named_paths(call).iter().all(|path| is_inside(path, agent, cwd)) => ActionKind::Read,
        "grep" => ActionKind::ReadOutside,
        "think" => ActionKind::Read,
        _ => ActionKind::Other,
    };
    Action { kind, subject: title.to_owned(), shown: shown(title, call), rule: literal_rule(tool, title) }
}

/// The strictest of what a call does to its files; one that names none may mean any.
fn on_files(
    tool: &str,
    title: &str,
    paths: &[String],
    call: &Value,
    agent: &AgentConfig,
    cwd: &Path,
) -> Action {
    let (inside, outside) = match tool {
        "read" => (ActionKind::Read, ActionKind::ReadOutside),
        _ => (ActionKind::Write, ActionKind::WriteOutside),
    };
    let places: Vec<(String, bool)> = paths.iter().map(|path| place(path, agent, cwd)).collect();
    let decisive = places.iter().find(|(_, inside)| !inside).or(places.first());
    let (subject, is_inside) = decisive.cloned().unwrap_or((title.to_owned(), false));
    Action {
        kind: if is_inside { inside } else { outside },
        rule: literal_rule(tool, &subject),
        shown: shown(title, call),
        subject,
    }
}

/// A path of the agent as it is shown here, and whether it lies in the working folder.
fn place(path: &str, agent: &AgentConfig, cwd: &Path) -> (String, bool) {
    let here = agent.path_here(path).display().to_string();
    let scope = Scope { cwd: cwd.to_owned(), extra: Vec::new(), calls: PathBuf::new() };
    match Place::find(&scope, &here) {
        Ok(place) => (place.shown, place.inside),
        Err(_) => (here, false),
    }
}

fn is_inside(path: &str, agent: &AgentConfig, cwd: &Path) -> bool {
    place(path, agent, cwd).1
}

/// The command of a call, if its input has one.
fn command_of(call: &Value) -> Option<String> {
    let input = call.get("rawInput")?;
    match input.get("command").or_else(|| input.get("cmd"))? {
        Value::String(command) => Some(command.clone()),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            // `["bash", "-lc", "…"]` runs what stands in its last word.
            match words.as_slice() {
                [shell, flag, script]
                    if shell.ends_with("sh") && flag.starts_with('-') && flag.ends_with('c') =>
                {
                    Some((*script).to_owned())
                }
                words => Some(words.join(" ")),
            }
        }
        _ => None,
    }
}

/// The files that a call's diffs change.
fn changed_paths(call: &Value) -> Vec<String> {
    let parts = call.get("content").and_then(Value::as_array).into_iter().flatten();
    parts
        .filter(|part| part.get("type").and_then(Value::as_str) == Some("diff"))
        .filter_map(|part| Some(part.get("path")?.as_str()?.to_owned()))
        .collect()
}

/// The files that a call names.
fn named_paths(call: &Value) -> Vec<String> {
    let locations = call.get("locations").and_then(Value::as_array).into_iter().flatten();
    let mut paths: Vec<String> =
        locations.filter_map(|location| Some(location.get("path")?.as_str()?.to_owned())).collect();
    for key in ["path", "file_path", "filePath", "abs_path", "notebook_path"] {
        let named = call.get("rawInput").and_then(|input| input.get(key)).and_then(Value::as_str);
        paths.extend(named.map(str::to_owned));
    }
    paths
}

/// Exactly what a person is asked about.
fn shown(title: &str, call: &Value) -> String {
    let mut shown = title.to_owned();
    for block in super::content::of_call(call.get("content").unwrap_or(&Value::Null)) {
        if let Some(text) = block.as_text() {
            shown.push('\n');
            shown.push_str(text);
        }
    }
    if let Some(input) = call.get("rawInput").filter(|input| !input.is_null()) {
        shown.push('\n');
        shown.push_str(&input.to_string());
    }
    shown
}

/// The answer to a question: once only, as the rules are ours. None if the agent offers no such choice.
pub fn choice(options: &Value, may: bool) -> Option<Value> {
    let wanted = if may { "allow_once" } else { "reject_once" };
    let mut options = options.as_array().into_iter().flatten();
    let option = options.find(|option| option.get("kind").and_then(Value::as_str) == Some(wanted))?;
    let id = option.get("optionId")?;
    Some(json!({"outcome": {"outcome": "selected", "optionId": id}}))
}

/// The answer that takes a question back.
pub fn cancelled() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_judged_by_the_worst_they_say_of_themselves() {
        let agent = AgentConfig::new("fake", "fake");
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path().canonicalize().unwrap();
        let inside = cwd.join("a.rs").display().to_string();
        let command = ActionKind::Command { sandboxed: false };
        for (call, kind, rule) in [
            (json!({"kind": "execute", "rawInput": {"command": "ls"}}), command, "bash(ls)"),
            (
                json!({"kind": "other", "rawInput": {"command": ["bash", "-lc", "rm x"]}}),
                command,
                "bash(rm x)",
            ),
            (json!({"kind": "execute", "title": "run it"}), command, "bash(run it)"),
            (json!({"kind": "edit", "locations": [{"path": inside}]}), ActionKind::Write, "edit(a.rs)"),
            (
                json!({"kind": "edit", "locations": [{"path": inside}, {"path": "/etc/passwd"}]}),
                ActionKind::WriteOutside,
                "edit(/etc/passwd)",
            ),
            (json!({"kind": "edit", "title": "Edit"}), ActionKind::WriteOutside, "edit(Edit)"),
            (
                json!({"kind": "read", "content": [{"type": "diff", "path": inside, "newText": "x"}]}),
                ActionKind::Write,
                "edit(a.rs)",
            ),
            (
                json!({"kind": "read", "rawInput": {"file_path": "/etc/x"}}),
                ActionKind::ReadOutside,
                "read(/etc/x)",
            ),
            (json!({"kind": "read", "rawInput": {"path": "a.rs"}}), ActionKind::Read, "read(a.rs)"),
            (json!({"kind": "fetch", "title": "Fetch"}), ActionKind::Other, "fetch(Fetch)"),
            (json!({"kind": "brand_new", "title": "T"}), ActionKind::Other, "other(T)"),
        ] {
            let action = action(&call, &agent, &cwd);
            assert_eq!((action.kind, action.rule.as_str()), (kind, rule), "{call}");
        }
    }

    #[test]
    fn questions_are_answered_for_once() {
        let options = json!([
            {"optionId": "a", "kind": "allow_always"}, {"optionId": "b", "kind": "allow_once"},
            {"optionId": "c", "kind": "reject_always"}, {"optionId": "d", "kind": "reject_once"},
        ]);
        let selected = |id: &str| Some(json!({"outcome": {"outcome": "selected", "optionId": id}}));
        assert_eq!(choice(&options, true), selected("b"));
        assert_eq!(choice(&options, false), selected("d"));
        assert_eq!(choice(&json!([{"optionId": "a", "kind": "allow_always"}]), true), None);
    }
}
