//! Reading one session, and looking at all of them. Changes nothing.

use std::path::Path;

use segue_log::line::encode_header;
use segue_log::{Conversation, Record, SessionId, TranscriptOptions, transcript};
use segue_store::{ReadLog, Store};
use serde_json::{Value, json};

use crate::args::{ExportFormat, ListOutput, ShowOutput};
use crate::error::{Kind, Result};
use crate::{output, resolve};

/// A record as JSON shows it: as in the log, but with what lives in blobs in its place.
pub fn record_json(record: &Record) -> Value {
    let mut value = json!({
        "seq": record.seq, "time": record.time, "type": record.event.kind(), "data": record.event.data(),
        "synced": record.synced,
    });
    if !record.blobs.is_empty() {
        value["blobs"] = json!(record.blobs);
    }
    value
}

/// Says what is wrong with a log that was read as far as it can be; gives the exit code.
fn tell_damage(log: &ReadLog) -> u8 {
    if log.newer {
        output::note("warning: a newer segue wrote this session; what this one does not know is left out");
    }
    match &log.damage {
        Some(damage) => {
            let id = log.header.id;
            // What was lost at the end leaves a log that can be continued; anything else does not.
            let hint = if damage.starts_with("its end was lost") {
                format!("`segue --resume {id}` cuts it there and goes on; the model is told")
            } else {
                format!("`segue sessions repair {id}` makes a copy that can be continued")
            };
            output::note(format!(
                "error: session {id} is damaged after record {}: {damage}\nhint: {hint}",
                log.last
            ));
            Kind::Storage.exit_code()
        }
        None => 0,
    }
}

fn records_jsonl(log: &ReadLog) -> String {
    log.records.iter().map(|record| format!("{}\n", output::json_line(&record_json(record)))).collect()
}

/// Shows a session.
pub async fn show(store: &dyn Store, id: &str, format: ShowOutput) -> Result<u8> {
    let log = store.read(resolve::session(store, id).await?, 1).await?;
    match format {
        ShowOutput::Jsonl => output::print_raw(records_jsonl(&log).as_bytes())?,
        ShowOutput::Text => output::print(&document(&log, &TranscriptOptions::default()))?,
    }
    Ok(tell_damage(&log))
}

/// Exports a session.
pub async fn export(store: &dyn Store, id: &str, format: ExportFormat) -> Result<u8> {
    let log = store.read(resolve::session(store, id).await?, 1).await?;
    match format {
        ExportFormat::Jsonl => {
            let text = format!("{}{}", encode_header(&log.header), records_jsonl(&log));
            output::print_raw(text.as_bytes())?;
        }
        ExportFormat::Markdown => {
            let options = TranscriptOptions { thinking: true, detail: usize::MAX };
            output::print(&document(&log, &options))?;
        }
    }
    Ok(tell_damage(&log))
}

/// A session as a Markdown document.
fn document(log: &ReadLog, options: &TranscriptOptions) -> String {
    let conversation = Conversation::of(log.header.clone(), &log.records);
    let title = conversation.title();
    let title = if title.is_empty() { "(no prompt yet)" } else { &title };
    let mut text = format!(
        "# {title}\n\n- session: {}\n- created: {}\n- folder: {}\n",
        log.header.id,
        log.header.created,
        conversation.cwd().display()
    );
    if let Some(model) = &conversation.settings().model {
        text.push_str(&format!("- model: {model}\n"));
    }
    if let Some(parent) = &log.header.parent {
        text.push_str(&format!("- copied from: {} up to record {}\n", parent.id, parent.seq));
    }
    if let Some(holder) = &log.holder {
        text.push_str(&format!("- in use by {holder}\n"));
    }
    format!("{text}\n{}", transcript(&conversation, options))
}

/// Looks at everything in the store.
pub async fn check(store: &dyn Store, format: ListOutput) -> Result<u8> {
    let report = store.check().await?;
    match format {
        ListOutput::Json => {
            let findings: Vec<Value> = report
                .findings
                .iter()
                .map(|(path, what)| json!({"path": path.to_string_lossy(), "what": what}))
                .collect();
            output::print_json(&json!({"sound": report.sound, "findings": findings}))?;
        }
        ListOutput::Text => {
            let mut text = format!("{} sound in {}\n", counted(report.sound, "session"), store.place());
            for (path, what) in &report.findings {
                text.push_str(&format!("{}: {what}\n", path.display()));
            }
            output::print(&text)?;
        }
    }
    // A stray file is worth a line and no more; a session that cannot be read whole is a failure.
    let mut sessions: Vec<SessionId> =
        report.findings.iter().filter_map(|(path, _)| session_of(path)).collect();
    sessions.dedup();
    for id in sessions {
        if store.read(id, 1).await.map_or(true, |log| log.damage.is_some()) {
            return Ok(Kind::Storage.exit_code());
        }
    }
    Ok(0)
}

/// The session that a path lies in.
fn session_of(path: &Path) -> Option<SessionId> {
    path.iter().rev().find_map(|name| name.to_str()?.parse().ok())
}

/// A number with its noun.
pub fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
