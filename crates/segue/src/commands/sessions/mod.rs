//! `segue sessions …`: everything about sessions but talking to them.

mod change;
mod list;
mod read;

pub use read::record_json;

use std::sync::Arc;

use segue_store::Store;

use crate::app::App;
use crate::args::Sessions;
use crate::error::Result;
use crate::wiring;

/// Runs `segue sessions …`; gives the exit code.
pub fn sessions(app: &App, command: Sessions) -> Result<u8> {
    let place = app.store_place()?;
    let store: Arc<dyn Store> = wiring::store(&place);
    wiring::block_on(async {
        match command {
            Sessions::List { all, limit, after, output } => {
                list::list(app, store.as_ref(), list::Page { all, limit, after }, output).await
            }
            Sessions::Search { text, limit, output } => {
                list::search(store.as_ref(), &text, limit, output).await
            }
            Sessions::Show { id, output } => read::show(store.as_ref(), &id, output).await,
            Sessions::Export { id, format } => read::export(store.as_ref(), &id, format).await,
            Sessions::Check { output } => read::check(store.as_ref(), output).await,
            Sessions::Fork { id, at } => change::fork(app, &place, store.as_ref(), &id, at).await,
            Sessions::Repair { id } => change::repair(app, &place, store.as_ref(), &id).await,
            Sessions::Delete { ids, yes } => change::delete(app, store.as_ref(), &ids, yes).await,
            Sessions::Settle { id, call, how, note } => {
                change::settle(app, &place, store, &id, &call, how, &note).await
            }
        }
    })
}
