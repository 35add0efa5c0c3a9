//! Where sessions are kept, from `--store`, the configuration or the default place.

use std::path::{Path, PathBuf};

use crate::config::{Config, Place, Rank, Sourced};
use crate::environment::{Environment, absolute};
use crate::error::{Error, Result};

/// A JSONL store's folder and how to name it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorePlace {
    /// The folder, absolute.
    pub folder: PathBuf,
    /// The value of `--store` that finds it again; none if the usual configuration leads there.
    pub flag: Option<String>,
}

impl StorePlace {
    /// The place that a configuration names.
    pub fn of(config: &Config, environment: &Environment) -> Result<Self> {
        let Some(store) = &config.store else {
            return Ok(Self { folder: environment.data()?, flag: None });
        };
        let folder = folder_of(store)?;
        // Files are found again by themselves or by `--config`; flags and variables of this invocation are not.
        let is_passing = matches!(store.rank, Rank::Flags | Rank::Environment);
        let flag = is_passing.then(|| format!("jsonl:{}", folder.display()));
        Ok(Self { folder, flag })
    }
}

fn folder_of(store: &Sourced<String>) -> Result<PathBuf> {
    let wrong = |message: String| Error::config(format!("{}: {message}", store.place));
    match store.value.split_once(':') {
        Some(("jsonl", "")) | None => {
            Err(wrong(format!("{:?} names no store; write jsonl:DIR", store.value)))
        }
        Some(("jsonl", folder)) => match &store.place {
            // A file must mean the same folder wherever segue is started.
            Place::File { path, .. } => absolute(&path.parent().unwrap_or(Path::new("/")).join(folder)),
            _ => absolute(Path::new(folder)),
        },
        // Only the scheme is repeated: the rest may hold a password.
        Some((scheme @ ("sqlite" | "postgres" | "postgresql"), _)) => {
            Err(wrong(format!("{scheme}: stores are not in this version yet; use jsonl:DIR")))
        }
        Some(_) => Err(wrong("a store of an unknown kind; write jsonl:DIR".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_urls_are_checked() {
        let flag =
            |value: &str| Sourced { value: value.into(), place: Place::Flag("--store"), rank: Rank::Flags };
        assert_eq!(folder_of(&flag("jsonl:/a b/c")), Ok("/a b/c".into()));
        for (value, message) in [
            ("sqlite:/x.db", "--store: sqlite: stores are not in this version yet; use jsonl:DIR"),
            (
                "postgres://u:secret@h/d",
                "--store: postgres: stores are not in this version yet; use jsonl:DIR",
            ),
            ("jsonl:", "--store: \"jsonl:\" names no store; write jsonl:DIR"),
            ("/x", "--store: \"/x\" names no store; write jsonl:DIR"),
            ("s3://secret@x", "--store: a store of an unknown kind; write jsonl:DIR"),
        ] {
            assert_eq!(folder_of(&flag(value)).unwrap_err().message, message);
        }
        let place = Place::File { path: "/etc/segue/c.toml".into(), line: 1, column: 0 };
        let in_file = Sourced { value: "jsonl:data".into(), place, rank: Rank::System };
        assert_eq!(folder_of(&in_file), Ok("/etc/segue/data".into()));
    }
}
