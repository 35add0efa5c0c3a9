//! Lists of sessions, whole and by what was said in them.

use segue_log::{Conversation, Time, TranscriptOptions, transcript, visible_controls};
use segue_store::{Cursor, Query, Row, State, Store};
use serde_json::{Value, json};

use crate::app::App;
use crate::args::ListOutput;
use crate::environment::absolute;
use crate::error::{Error, Result};
use crate::output;
use crate::progress::Progress;

/// How many sessions a search asks for at a time.
const BATCH: usize = 200;
/// Characters shown on each side of a text that was found.
const AROUND: usize = 40;

/// Which part of the list is wanted.
pub struct Page {
    /// Those without a prompt, too.
    pub all: bool,
    /// How many at most; 0 is all.
    pub limit: usize,
    /// The last one of the page before.
    pub after: Option<String>,
}

/// Lists sessions.
pub async fn list(app: &App, store: &dyn Store, page: Page, format: ListOutput) -> Result<u8> {
    // A folder that is gone still has its sessions.
    let cwd = match &app.common.cwd {
        Some(folder) if !folder.exists() => Some(absolute(folder)?),
        Some(_) => Some(app.folder()?),
        None => None,
    };
    let after = page.after.as_deref().map(cursor).transpose()?;
    let query = Query { cwd, text: None, empty: page.all, limit: page.limit, after };
    let listing = store.list(&query).await?;
    match format {
        ListOutput::Json => output::print_json(&listing.rows.iter().map(row_json).collect())?,
        ListOutput::Text if listing.rows.is_empty() => output::note("No sessions."),
        ListOutput::Text => output::print(&table(&listing.rows, Time::now()))?,
    }
    if let Some(next) = listing.next {
        output::note(format!("More: segue sessions list --after {},{}", next.updated, next.id));
    }
    Ok(0)
}

fn cursor(text: &str) -> Result<Cursor> {
    let wrong = || Error::usage(format!("--after {text:?} is not the UPDATED,ID of a listed session"));
    let (updated, id) = text.split_once(',').ok_or_else(wrong)?;
    Ok(Cursor { updated: updated.parse().map_err(|_| wrong())?, id: id.parse().map_err(|_| wrong())? })
}

/// A session as JSON lists it.
pub fn row_json(row: &Row) -> Value {
    json!({
        "id": row.id, "title": row.title, "cwd": row.cwd.to_string_lossy(), "agent": row.agent,
        "created": row.created, "updated": row.updated, "turns": row.turns, "state": row.state,
    })
}

/// A state's word.
pub fn state_word(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Running => "running",
        State::Interrupted => "interrupted",
        State::Damaged => "damaged",
    }
}

fn table(rows: &[Row], now: Time) -> String {
    let mut text = format!("{:<36}  {:>7}  {:>5}  {:<11}  {}\n", "ID", "UPDATED", "TURNS", "STATE", "TITLE");
    for row in rows {
        let title = if row.title.is_empty() { "(no prompt yet)" } else { &row.title };
        text.push_str(&format!(
            "{:<36}  {:>7}  {:>5}  {:<11}  {title}  ({})\n",
            row.id,
            age(row.updated, now),
            row.turns,
            state_word(row.state),
            visible_controls(&row.cwd.to_string_lossy())
        ));
        if let Some(damage) = &row.damage {
            text.push_str(&format!("    damaged: {damage}\n"));
        }
    }
    text
}

/// How long ago, in one unit.
fn age(then: Time, now: Time) -> String {
    let seconds = now.as_millis().saturating_sub(then.as_millis()).max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3_600 => format!("{}m ago", seconds / 60),
        3_600..86_400 => format!("{}h ago", seconds / 3_600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// Finds sessions by a text in their title or transcript.
pub async fn search(store: &dyn Store, text: &str, limit: usize, format: ListOutput) -> Result<u8> {
    let wanted = text.to_lowercase();
    if wanted.trim().is_empty() {
        return Err(Error::usage("nothing to search for"));
    }
    let progress = Progress::searching();
    let mut found: Vec<(Row, String)> = Vec::new();
    let mut unreadable = Vec::new();
    let mut after = None;
    'pages: loop {
        let listing = store.list(&Query { limit: BATCH, after, ..Query::default() }).await?;
        for row in listing.rows {
            progress.step(&row.title);
            match matching(store, &row, &wanted).await {
                Ok(Some(excerpt)) => found.push((row, excerpt)),
                Ok(None) => {}
                Err(error) => unreadable.push(error.message),
            }
            if limit != 0 && found.len() == limit {
                break 'pages;
            }
        }
        after = listing.next;
        if after.is_none() {
            break;
        }
    }
    progress.end();
    for message in unreadable {
        output::note(format!("warning: not searched: {message}"));
    }
    match format {
        ListOutput::Json => {
            let rows: Vec<Value> = found
                .iter()
                .map(|(row, excerpt)| {
                    let mut value = row_json(row);
                    value["match"] = json!(excerpt);
                    value
                })
                .collect();
            output::print_json(&rows.into())?;
        }
        ListOutput::Text if found.is_empty() => output::note("Nothing found."),
        ListOutput::Text => {
            let lines: Vec<String> = found
                .iter()
                .map(|(row, excerpt)| format!("{}  {}\n    {excerpt}", row.id, row.title))
                .collect();
            output::print(&lines.join("\n"))?;
        }
    }
    Ok(0)
}

async fn matching(store: &dyn Store, row: &Row, wanted: &str) -> Result<Option<String>> {
    if let Some(excerpt) = excerpt(&row.title, wanted) {
        return Ok(Some(excerpt));
    }
    let log = store.read(row.id, 1).await?;
    let conversation = Conversation::of(log.header, &log.records);
    let options = TranscriptOptions { thinking: false, detail: usize::MAX };
    Ok(excerpt(&transcript(&conversation, &options), wanted))
}

/// The text around the first place where `wanted`, in lower case, stands in `text`; on one line.
fn excerpt(text: &str, wanted: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| line.to_lowercase().contains(wanted))?;
    // Lower case may be longer or shorter than the text itself, so the place is counted in characters.
    let lower = line.to_lowercase();
    let at = lower.split(wanted).next().map_or(0, |before| before.chars().count());
    let from = at.saturating_sub(AROUND);
    let shown: String = line.chars().skip(from).take(AROUND * 2 + wanted.chars().count()).collect();
    let dots = if from > 0 { "…" } else { "" };
    Some(format!("{dots}{}", shown.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_show_what_was_found() {
        let long = format!("{}needle{}", "a".repeat(60), "b".repeat(60));
        let cut = format!("…{}needle{}", "a".repeat(40), "b".repeat(40));
        for (text, wanted, expected) in [
            ("one\nTwo Needles\nthree", "needle", Some("Two Needles".to_owned())),
            ("one", "needle", None),
            (&long, "needle", Some(cut)),
            ("İstanbul ist schön", "schön", Some("İstanbul ist schön".to_owned())),
        ] {
            assert_eq!(excerpt(text, wanted), expected, "{text}");
        }
    }

    #[test]
    fn ages_have_one_unit() {
        let now = Time::from_millis(1_000_000_000_000);
        let ago = |seconds: i64| age(Time::from_millis(now.as_millis() - seconds * 1000), now);
        assert_eq!(
            [ago(-5), ago(59), ago(60), ago(7_200), ago(200_000)],
            ["0s ago", "59s ago", "1m ago", "2h ago", "2d ago"]
        );
    }
}
