//! `segue agents …`: which hosted agents there are, what one can, its own past conversations.

use segue_acp::drive::{self, HostedConfig, StartError, find_program};
use serde_json::{Value, json};

use crate::agents::{hosted, install, must_be_there};
use crate::app::App;
use crate::args::{Agents, ListOutput};
use crate::error::{Error, Kind, Result};
use crate::{output, wiring};

/// Runs `segue agents …`; gives the exit code.
pub fn agents(app: &App, command: Agents) -> Result<u8> {
    let folder = app.folder()?;
    let config = app.merge(Some(&folder)).config()?;
    let hosted = hosted(app, &config, &folder)?;
    match command {
        Agents::List { output } => list(&hosted, output),
        Agents::Check { name, output } => {
            must_be_there(&hosted, &name)?;
            wiring::block_on(async { check(&hosted, &name, &folder, output).await })
        }
        Agents::Sessions { name, all, output } => {
            must_be_there(&hosted, &name)?;
            wiring::block_on(async { sessions(&hosted, &name, &folder, all, output).await })
        }
    }
    .map(|()| 0)
}

fn list(hosted: &HostedConfig, format: ListOutput) -> Result<()> {
    let rows: Vec<(String, String, Option<String>)> = hosted
        .agents
        .values()
        .map(|agent| {
            let words = [agent.command.display().to_string()].into_iter().chain(agent.args.iter().cloned());
            let found = find_program(agent).map(|path| path.display().to_string());
            (agent.name.clone(), words.collect::<Vec<_>>().join(" "), found)
        })
        .collect();
    if format == ListOutput::Json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|(name, command, found)| {
                json!({"name": name, "command": command, "installed": found.is_some(), "program": found, "install": install(name)})
            })
            .collect();
        return output::print_json(&Value::Array(rows));
    }
    let mut text = String::new();
    for (name, command, found) in rows {
        let state = match (found, install(&name)) {
            (Some(path), _) => path,
            (None, Some(how)) => format!("not installed: {how}"),
            (None, None) => "not installed".to_owned(),
        };
        text.push_str(&format!("{name:<12} {command:<24} {state}\n"));
    }
    output::print(&text)
}

async fn check(
    hosted: &HostedConfig,
    name: &str,
    folder: &std::path::Path,
    format: ListOutput,
) -> Result<()> {
    let found = drive::inspect(hosted, name, folder).await.map_err(start_error)?;
    let about = &found.about;
    if format == ListOutput::Json {
        let session = found.session.as_ref();
        return output::print_json(&json!({
            "name": name, "agent": about.name, "version": about.version, "capabilities": about.capabilities,
            "authMethods": about.auth_methods, "resumeBy": found.ways, "session": session.ok(),
            "problem": session.err(),
        }));
    }
    let ways = if found.ways.is_empty() {
        "none: a new conversation is told the past".into()
    } else {
        found.ways.join(", ")
    };
    let mut text = format!("{} {}\nways to resume: {ways}\n", about.name, about.version);
    for (what, pointer) in [
        ("images", "/promptCapabilities/image"),
        ("embedded files", "/promptCapabilities/embeddedContext"),
        ("MCP over HTTP", "/mcpCapabilities/http"),
        ("list of conversations", "/sessionCapabilities/list"),
        ("fork", "/sessionCapabilities/fork"),
    ] {
        text.push_str(&format!("{what}: {}\n", if about.can(pointer) { "yes" } else { "no" }));
    }
    match &found.session {
        Ok(session) => {
            if let Some(mode) = session.pointer("/modes/currentModeId").and_then(Value::as_str) {
                let modes = session.pointer("/modes/availableModes").and_then(Value::as_array);
                text.push_str(&format!("mode: {mode} (of {})\n", ids(modes)));
            }
            for option in session.get("configOptions").and_then(Value::as_array).into_iter().flatten() {
                let word = |key: &str| option.get(key).map(shown).unwrap_or_default();
                text.push_str(&format!("option {}: {}\n", word("id"), word("currentValue")));
            }
            text.push_str("a session can be made\n");
            output::print(&text)
        }
        Err(problem) => {
            output::print(&text)?;
            Err(Error::new(Kind::Turn, format!("{name} makes no session: {problem}")).code("AGENT_FAILED"))
        }
    }
}

fn ids(values: Option<&Vec<Value>>) -> String {
    let ids = values.into_iter().flatten().filter_map(|value| value.get("id")).map(shown);
    ids.collect::<Vec<_>>().join(", ")
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

async fn sessions(
    hosted: &HostedConfig,
    name: &str,
    folder: &std::path::Path,
    all: bool,
    format: ListOutput,
) -> Result<()> {
    let Some(rows) = drive::list_sessions(hosted, name, folder, all).await.map_err(start_error)? else {
        return Err(
            Error::new(Kind::Turn, format!("{name} cannot list its conversations")).code("AGENT_FAILED")
        );
    };
    if format == ListOutput::Json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| json!({"id": row.id, "cwd": row.cwd, "title": row.title, "updated": row.updated}))
            .collect();
        return output::print_json(&Value::Array(rows));
    }
    let mut text = String::new();
    for row in &rows {
        text.push_str(&format!("{:<38} {:<26} {}\n", row.id, row.updated, segue_log::title_of(&row.title)));
    }
    output::print(&text)?;
    if let Some(row) = rows.first() {
        output::note(format!("To go on with one: segue -p PROMPT --resume {name}:{}", row.id));
    }
    Ok(())
}

/// An agent that cannot be started.
pub fn start_error(error: StartError) -> Error {
    let code = error.code();
    Error::new(Kind::Turn, error.to_string()).code(code)
}
