//! The environment of this invocation, read once, and the places that follow from it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The variables of this process and where its files are.
#[derive(Debug, Clone)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    system_config: PathBuf,
}

impl Environment {
    /// The environment of this process.
    pub fn of_this_process() -> Self {
        Self::of(std::env::vars_os())
    }

    /// An environment of these variables.
    pub fn of<K: Into<OsString>, V: Into<OsString>>(variables: impl IntoIterator<Item = (K, V)>) -> Self {
        Self {
            variables: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            system_config: PathBuf::from("/etc/segue/config.toml"),
        }
    }

    /// The same with another system file.
    #[cfg(test)]
    pub fn with_system(self, system_config: PathBuf) -> Self {
        Self { system_config, ..self }
    }

    /// A variable; an empty one counts as not set.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// A variable that is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(OsStr::to_str)
    }

    /// The names of all variables that are text.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().filter_map(|name| name.to_str())
    }

    /// `SEGUE_HOME`, absolute: it moves configuration and data together.
    pub fn segue_home(&self) -> Result<Option<PathBuf>> {
        self.get("SEGUE_HOME").map(|home| absolute(Path::new(home))).transpose()
    }

    /// Where data is kept when no store is named.
    pub fn data(&self) -> Result<PathBuf> {
        self.place("XDG_DATA_HOME", ".local/share")
    }

    /// The user's configuration file.
    pub fn user_config(&self) -> Result<PathBuf> {
        Ok(self.place("XDG_CONFIG_HOME", ".config")?.join("config.toml"))
    }

    /// The machine's configuration file.
    pub fn system_config(&self) -> PathBuf {
        self.system_config.clone()
    }

    fn place(&self, base: &str, below_home: &str) -> Result<PathBuf> {
        if let Some(home) = self.segue_home()? {
            return Ok(home);
        }
        // The XDG specification has relative values ignored.
        let base = self.get(base).map(Path::new).filter(|path| path.is_absolute());
        let home = || self.get("HOME").map(Path::new).filter(|path| path.is_absolute());
        match (base, home()) {
            (Some(base), _) => Ok(base.join("segue")),
            (None, Some(home)) => Ok(home.join(below_home).join("segue")),
            (None, None) => Err(Error::config("neither SEGUE_HOME nor HOME says where segue's files are")
                .hint("set SEGUE_HOME to a folder")),
        }
    }
}

/// `path` as seen from the current folder.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| Error::config(format!("cannot tell where {} is: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables; where data is kept and the user's file is.
    type Case = (&'static [(&'static str, &'static str)], &'static str, &'static str);

    #[test]
    fn places_follow_the_environment() {
        let cases: [Case; 5] = [
            (&[("SEGUE_HOME", "/s"), ("HOME", "/h")], "/s", "/s/config.toml"),
            (&[("HOME", "/h")], "/h/.local/share/segue", "/h/.config/segue/config.toml"),
            (&[("SEGUE_HOME", ""), ("HOME", "/h")], "/h/.local/share/segue", "/h/.config/segue/config.toml"),
            (&[("XDG_DATA_HOME", "/d"), ("XDG_CONFIG_HOME", "/c")], "/d/segue", "/c/segue/config.toml"),
            (
                &[("XDG_DATA_HOME", "d"), ("HOME", "/h")],
                "/h/.local/share/segue",
                "/h/.config/segue/config.toml",
            ),
        ];
        for (variables, data, config) in cases {
            let environment = Environment::of(variables.iter().copied());
            assert_eq!(environment.data(), Ok(PathBuf::from(data)), "{variables:?}");
            assert_eq!(environment.user_config(), Ok(PathBuf::from(config)), "{variables:?}");
        }
        assert!(Environment::of([("A", "b")]).data().is_err());
    }
}
