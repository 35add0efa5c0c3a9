//! The commands.

mod agents;
mod config;
mod converse;
mod demo;
mod print;
mod sessions;

use std::ffi::OsString;

pub use agents::{agents, start_error};
pub use config::config;
pub use converse::converse;
pub use demo::demo;
pub use sessions::sessions;

use crate::app::App;
use crate::args::{self, ListOutput};
use crate::error::Result;
use crate::{models, output};

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "segue", &mut script);
    output::print_raw(&script)
}

/// Lists the model providers.
pub fn models(app: &App, format: ListOutput) -> Result<()> {
    let merged = app.merge(Some(&app.folder()?));
    let config = merged.config()?;
    let chosen = models::choose(&config, &merged.settings, &app.environment, None);
    let rows: Vec<serde_json::Value> = config
        .providers
        .iter()
        .map(|(name, provider)| {
            let found = models::find_key(provider, &app.environment);
            let key = match (&found, &provider.key_env) {
                (Some((_, from)), _) => format!("found in {from}"),
                (None, Some(variable)) => format!("not found: set {variable}"),
                (None, None) => "not needed".to_owned(),
            };
            serde_json::json!({
                "provider": name, "api": provider.api, "base_url": provider.base_url, "model": provider.model,
                "key": key, "usable": found.is_some() || provider.key_env.is_none(),
            })
        })
        .collect();
    let answers = chosen.as_ref().ok().map(|choice| choice.full_name.clone());
    if format == ListOutput::Json {
        let practice = serde_json::json!({
            "provider": models::PRACTICE, "api": null, "base_url": null, "model": models::PRACTICE,
            "key": "not needed", "usable": true,
        });
        let rows: Vec<_> = rows.into_iter().chain([practice]).collect();
        return output::print_json(&serde_json::json!({ "providers": rows, "answers": answers }));
    }
    let mut text = String::new();
    for row in &rows {
        let cell = |name: &str| row[name].as_str().unwrap_or("none: name one").to_owned();
        text.push_str(&format!(
            "{:<12} {:<28} key {:<36} {}\n",
            cell("provider"),
            cell("model"),
            cell("key"),
            cell("base_url")
        ));
    }
    text.push_str(&format!(
        "{:<12} {:<28} key not needed; a stand-in by simple rules\n\n",
        models::PRACTICE,
        ""
    ));
    match chosen {
        Ok(choice) => text.push_str(&format!("Without --model, {} answers.\n", choice.full_name)),
        Err(error) => text.push_str(&format!("Without --model nothing answers: {}\n", error.message)),
    }
    output::print(&text)
}

/// Becomes a hosted agent; comes back only if that failed.
pub fn agent_exec(arguments: Vec<OsString>) -> u8 {
    let error = segue_acp::drive::exec_agent(arguments);
    output::note(format!("error: the agent could not be started: {error}"));
    126
}

/// Holds this process to some folders and becomes the command; comes back only if that failed.
pub fn sandbox_exec(arguments: Vec<OsString>) -> u8 {
    #[cfg(target_os = "linux")]
    {
        let error = segue_tool::sandbox::restrict_and_exec(arguments);
        output::note(format!("error: {error}"));
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _only_on_linux = arguments;
        output::note("error: this system has no sandbox that segue can use");
    }
    126
}
