//! From what a person wrote to the session that is meant. Nothing is created, nothing opened.

use segue_log::SessionId;
use segue_store::{Query, Store};

use crate::error::{Error, Kind, Result};

/// How many candidates a message names.
const NAMED: usize = 5;

/// The session that `text` is the id, or the start of the id, of.
pub async fn session(store: &dyn Store, text: &str) -> Result<SessionId> {
    let not_found = |message: String| Error::new(Kind::NotFound, message);
    let wanted = text.trim().to_ascii_lowercase();
    if !is_shaped_like_an_id(&wanted) {
        return Err(match text.split_once(':') {
            Some((agent, _)) if !agent.is_empty() => {
                not_found(format!("no agent {:?} is configured", cut(agent)))
                    .hint("`segue agents list` names the agents; a session's id is a word such as 0190a8c0-…")
            }
            _ => by_title(store, text).await?,
        });
    }
    let found = store.ids_with_prefix(&wanted, NAMED + 1).await?;
    match found.as_slice() {
        [one] => Ok(*one),
        [] => {
            let error = not_found(format!("there is no session {:?} in {}", cut(text), store.place()));
            let near = near(store, &wanted).await?;
            Err(if near.is_empty() {
                error.hint("`segue sessions list --all` names the sessions that there are")
            } else {
                error.hint(format!("there is {}", near.join(", ")))
            })
        }
        several => {
            let names: Vec<String> = several.iter().take(NAMED).map(ToString::to_string).collect();
            let more = if several.len() > NAMED { ", …" } else { "" };
            Err(not_found(format!(
                "{:?} is the start of several sessions: {}{more}",
                cut(text),
                names.join(", ")
            ))
            .code("SESSION_AMBIGUOUS")
            .hint("write more of the id"))
        }
    }
}

fn is_shaped_like_an_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A text is looked up by a picker on a terminal, which is yet to come; for now those that it would offer are named.
async fn by_title(store: &dyn Store, text: &str) -> Result<Error> {
    let error = Error::new(Kind::NotFound, format!("{:?} is not the id of a session", cut(text)));
    let query = Query { text: Some(text.trim().to_owned()), limit: NAMED, ..Query::default() };
    let matches = if text.trim().is_empty() { Vec::new() } else { store.list(&query).await?.rows };
    Ok(if matches.is_empty() {
        error.hint("`segue sessions list` names the sessions that there are")
    } else {
        let named: Vec<String> = matches.iter().map(|row| format!("{} ({})", row.id, row.title)).collect();
        error.hint(format!("titles with that text: {}", named.join(", ")))
    })
}

/// Sessions whose id was probably meant.
async fn near(store: &dyn Store, wanted: &str) -> Result<Vec<String>> {
    let mut near: Vec<(usize, String)> = Vec::new();
    for id in store.ids_with_prefix("", 10_000).await? {
        let id = id.to_string();
        let start = id.get(..wanted.len()).unwrap_or(&id);
        let distance = strsim::damerau_levenshtein(wanted, start);
        if distance <= (wanted.len() / 6).max(1) {
            near.push((distance, id));
        }
    }
    near.sort();
    Ok(near.into_iter().take(3).map(|(_, id)| id).collect())
}
