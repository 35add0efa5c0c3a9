//! `segue config`: what holds and why, what is wrong, and which folders are trusted.

use std::path::Path;

use serde_json::{Value, json};

use crate::app::App;
use crate::args::{ConfigCommand, ListOutput};
use crate::config::{self, Entry, KeyPath, Merged, PROJECT_FILE, Rank, Setting, Trust, TrustFile, schema};
use crate::error::{Error, Result};
use crate::output;

/// Runs `segue config …`.
pub fn config(app: &mut App, command: ConfigCommand) -> Result<u8> {
    match command {
        ConfigCommand::Show { settings, output } => {
            app.settings = settings;
            show(app, output)
        }
        ConfigCommand::Check { settings } => {
            app.settings = settings;
            check(app)
        }
        ConfigCommand::Trust { dir } => {
            if let Some(dir) = dir {
                app.common.cwd = Some(dir);
            }
            trust(app)
        }
    }
}

fn shown(path: &KeyPath, entry: &Entry) -> String {
    if config::is_secret(entry, path) { "[hidden]".to_owned() } else { entry.value.to_string() }
}

fn show(app: &App, format: ListOutput) -> Result<u8> {
    let folder = app.folder()?;
    let merged = app.merge(Some(&folder));
    match format {
        ListOutput::Json => output::print_json(&as_json(&merged))?,
        ListOutput::Text => output::print(&as_text(&merged))?,
    }
    if let Some(warning) = merged.warning(&folder) {
        output::note(warning);
    }
    merged.config().map(|_| 0)
}

fn settings(merged: &Merged) -> impl Iterator<Item = (&KeyPath, &Setting)> {
    merged.settings.iter().flat_map(|(path, held)| held.iter().map(move |setting| (path, setting)))
}

fn as_text(merged: &Merged) -> String {
    let rows: Vec<(String, String)> = settings(merged)
        .map(|(path, setting)| {
            let value = format!("{path} = {}", shown(path, &setting.entry));
            let place = match setting.rank {
                Rank::BuiltIn => "built-in".to_owned(),
                rank => format!("{} ({})", rank.name(), setting.entry.place),
            };
            (value, place)
        })
        .collect();
    let width = rows.iter().map(|(value, _)| value.chars().count()).max().unwrap_or(0).min(60);
    let mut text = String::new();
    for (value, place) in rows {
        text.push_str(&format!("{value:<width$}  # {place}\n"));
    }
    let set: Vec<&str> = settings(merged).map(|(_, setting)| setting.entry.key.path).collect();
    text.push_str("\n# Not set:\n");
    for key in schema::KEYS.iter().filter(|key| !set.contains(&key.path)) {
        text.push_str(&format!("# {} ({}): {}\n", key.path.replace('*', "NAME"), key.kind, key.doc));
    }
    text.push('\n');
    for (rank, path, found) in &merged.files {
        let found = match (rank, found, merged.trust) {
            (_, false, _) => "not there",
            (Rank::Project, true, Some(Trust::Trusted)) => "read, trusted",
            (Rank::Project, true, Some(Trust::Changed)) => "read, changed since it was trusted",
            (Rank::Project, true, _) => "read, not trusted",
            (_, true, _) => "read",
        };
        text.push_str(&format!("# {}: {} ({found})\n", rank.name(), path.display()));
    }
    text
}

fn as_json(merged: &Merged) -> Value {
    let values: Vec<Value> = settings(merged)
        .map(|(path, setting)| {
            json!({
                "key": path.to_string(), "value": shown(path, &setting.entry),
                "layer": setting.rank.name(), "place": setting.entry.place.to_string(),
            })
        })
        .collect();
    let files: Vec<Value> = merged
        .files
        .iter()
        .map(|(rank, path, found)| json!({"layer": rank.name(), "path": path, "found": found}))
        .collect();
    let withheld: Vec<Value> = merged
        .withheld
        .iter()
        .map(|withheld| json!({"key": withheld.path.to_string(), "place": withheld.place.to_string()}))
        .collect();
    json!({ "values": values, "files": files, "withheld": withheld })
}

fn check(app: &App) -> Result<u8> {
    let folder = app.folder()?;
    let merged = app.merge(Some(&folder));
    let mut problems: Vec<String> = merged.problems.iter().map(ToString::to_string).collect();
    problems.extend(config::suspicious_variables(&app.environment).iter().map(ToString::to_string));
    // What only shows when the values are used; each speaks of values that the layers found right.
    if let Ok(config) = merged.config() {
        let store = crate::store_place::StorePlace::of(&config, &app.environment);
        let model = crate::models::choose(&config, &merged.settings, &app.environment, None);
        problems.extend(store.err().map(|error| error.message));
        problems.extend(model.err().map(|error| error.message));
    }
    if let Some(warning) = merged.warning(&folder) {
        output::note(warning);
    }
    if problems.is_empty() {
        output::print("The configuration is sound.")?;
        return Ok(0);
    }
    for problem in &problems {
        output::print(problem)?;
    }
    let count = problems.len();
    Err(Error::config(format!(
        "{count} {} in the configuration",
        if count == 1 { "mistake" } else { "mistakes" }
    )))
}

fn trust(app: &App) -> Result<u8> {
    let folder = app.folder()?;
    let path = folder.join(PROJECT_FILE);
    let content = std::fs::read(&path).map_err(|error| {
        Error::usage(format!("{}: {error}", path.display()))
            .hint(format!("a folder is trusted for its {PROJECT_FILE}, as that file stands"))
    })?;
    let file = TrustFile::beside(&app.environment.user_config()?);
    let before = withheld(app, &folder);
    file.trust(&folder, &content)?;
    let mut text = format!("Trusted: {} as it stands now.\n", path.display());
    for key in before {
        text.push_str(&format!("  now applies: {key}\n"));
    }
    text.push_str("If the file changes, it must be trusted again.");
    output::print(&text)?;
    Ok(0)
}

fn withheld(app: &App, folder: &Path) -> Vec<String> {
    let merged = app.merge(Some(folder));
    merged.withheld.iter().map(|withheld| format!("{} ({})", withheld.path, withheld.place)).collect()
}
