//! One layer of the configuration: a TOML text, the environment or the flags, checked against the schema.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::schema::{self, At, Key, Kind};
use crate::nearest::nearest;

/// Where a layer stands; a later one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// What Segue comes with.
    BuiltIn,
    /// The machine's file.
    System,
    /// The person's file.
    User,
    /// The working folder's file.
    Project,
    /// The file of `--config`.
    Config,
    /// Environment variables.
    Environment,
    /// Flags.
    Flags,
}

impl Rank {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::BuiltIn => "built-in",
            Self::System => "system",
            Self::User => "user",
            Self::Project => "project",
            Self::Config => "--config",
            Self::Environment => "environment",
            Self::Flags => "flag",
        }
    }
}

/// Where exactly a value was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In Segue itself.
    BuiltIn,
    /// In a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 for the file as a whole.
        line: usize,
        /// The column, from 1; 0 if it adds nothing.
        column: usize,
    },
    /// In an environment variable.
    Variable(String),
    /// In a flag.
    Flag(&'static str),
}

impl Place {
    /// A file as a whole.
    pub fn whole_file(path: &Path) -> Self {
        Self::File { path: path.to_owned(), line: 0, column: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in"),
            Self::File { path, line: 0, .. } => write!(f, "{}", path.display()),
            Self::File { path, line, column: 0 } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Variable(name) => write!(f, "${name}"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A key as it stands in a layer, names filled in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(pub Vec<String>);

impl KeyPath {
    /// A path without names that need quoting.
    pub fn of(dotted: &str) -> Self {
        Self(dotted.split('.').map(str::to_owned).collect())
    }

    /// The path with one more part.
    pub fn with(&self, part: &str) -> Self {
        let mut parts = self.0.clone();
        parts.push(part.to_owned());
        Self(parts)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.0.iter().enumerate() {
            let bare =
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            let dot = if at == 0 { "" } else { "." };
            if bare { write!(f, "{dot}{part}")? } else { write!(f, "{dot}{part:?}")? }
        }
        Ok(())
    }
}

/// A value that fits its key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A string.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
    /// True or false.
    Flag(bool),
    /// A list.
    Texts(Vec<String>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{}", toml::Value::String(text.clone())),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Texts(texts) => {
                write!(f, "{}", toml::Value::Array(texts.iter().cloned().map(toml::Value::String).collect()))
            }
        }
    }
}

/// A value with where it was said.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The value.
    pub value: Value,
    /// Where it stands.
    pub place: Place,
    /// Its key.
    pub key: &'static Key,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

/// Something that is wrong in a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What, and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// One layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layer {
    /// What it says.
    pub entries: BTreeMap<KeyPath, Entry>,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
}

impl Layer {
    /// Reads a TOML text. An empty one is an empty layer.
    pub fn parse(text: &str, path: Option<&Path>, rank: Rank) -> Self {
        let mut reader = Reader { text, path, rank, layer: Self::default() };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            reader.problem_at(at, true, format!("not TOML: {}", error.message()));
        }
        if reader.layer.problems.is_empty() {
            reader.table(table.get_ref(), &KeyPath(Vec::new()));
        }
        reader.layer
    }

    /// Sets a key from text that stands in a variable or a flag.
    pub fn set_text(&mut self, path: KeyPath, text: &str, place: Place) {
        let At::Key(key) = schema::at(&path.0) else { return };
        let value = match key.kind {
            Kind::Whole(..) => text.parse().map(Value::Whole).ok(),
            Kind::Number(..) => text.parse().map(Value::Number).ok(),
            Kind::Flag => text.parse().map(Value::Flag).ok(),
            _ => Some(Value::Text(text.to_owned())),
        };
        match value.filter(|value| holds(key.kind, value)) {
            Some(value) => {
                self.entries.insert(path, Entry { value, place, key });
            }
            None => {
                let shown = if key.is_secret() { String::new() } else { format!(", not {text:?}") };
                self.problems.push(Problem { place, message: format!("{path} must be {}{shown}", key.kind) });
            }
        }
    }

    /// Sets a list.
    pub fn set_list(&mut self, path: KeyPath, texts: Vec<String>, place: Place) {
        if let At::Key(key) = schema::at(&path.0) {
            self.entries.insert(path, Entry { value: Value::Texts(texts), place, key });
        }
    }
}

/// True if a value of the right type is also within its key's bounds.
fn holds(kind: Kind, value: &Value) -> bool {
    match (kind, value) {
        (Kind::OneOf(words), Value::Text(text)) => words.contains(&text.as_str()),
        (Kind::Text | Kind::Secret, Value::Text(text)) => !text.trim().is_empty(),
        (Kind::Whole(least, most), Value::Whole(number)) => (least..=most).contains(number),
        (Kind::Number(least, most), Value::Number(number)) => (least..=most).contains(number),
        (Kind::Texts | Kind::Rules, Value::Texts(_)) | (Kind::Flag, Value::Flag(_)) => true,
        _ => false,
    }
}

struct Reader<'a> {
    text: &'a str,
    path: Option<&'a Path>,
    rank: Rank,
    layer: Layer,
}

impl Reader<'_> {
    fn place(&self, offset: usize, with_column: bool) -> Place {
        let Some(path) = self.path else { return Place::BuiltIn };
        let before = self.text.get(..offset).unwrap_or(self.text);
        let start_of_line = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before.get(start_of_line..).map_or(0, |line| line.chars().count()) + 1;
        Place::File {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: if with_column { column } else { 0 },
        }
    }

    fn problem_at(&mut self, offset: usize, with_column: bool, message: String) {
        let place = self.place(offset, with_column);
        self.layer.problems.push(Problem { place, message });
    }

    fn table(&mut self, table: &DeTable<'_>, path: &KeyPath) {
        // Tables come sorted by name; people read their files from top to bottom.
        let mut members: Vec<_> = table.iter().collect();
        members.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in members {
            let offset = name.span().start;
            let path = path.with(name.get_ref());
            match schema::at(&path.0) {
                At::Key(key) => self.key(key, path, value, offset),
                At::Section => match value.get_ref() {
                    DeValue::Table(table) => self.table(table, &path),
                    other => {
                        let message = not_a_table(&path, other);
                        self.problem_at(offset, false, message);
                    }
                },
                At::Nothing => self.problem_at(offset, false, unknown(&path)),
            }
        }
    }

    fn key(&mut self, key: &'static Key, path: KeyPath, value: &Spanned<DeValue<'_>>, offset: usize) {
        if self.rank == Rank::Project
            && let schema::InProject::Never(reason) = key.project
        {
            return self.problem_at(offset, false, format!("{path} cannot be set by a project: {reason}"));
        }
        if key.kind == Kind::Secret && !matches!(self.rank, Rank::User | Rank::BuiltIn) {
            let message = format!(
                "{path}: a key may stand in the user's own file only; name its variable in `key_env` instead"
            );
            return self.problem_at(offset, false, message);
        }
        match (key.kind, value.get_ref()) {
            (Kind::SecretMap | Kind::TextMap | Kind::MapOf(_), DeValue::Table(table)) => {
                let kind = match key.kind {
                    Kind::MapOf(words) => Kind::OneOf(words),
                    Kind::TextMap => Kind::Text,
                    _ => Kind::Secret,
                };
                for (name, value) in table {
                    self.value(key, kind, path.with(name.get_ref()), value.get_ref(), name.span().start);
                }
            }
            (kind, value) => self.value(key, kind, path, value, offset),
        }
    }

    fn value(&mut self, key: &'static Key, kind: Kind, path: KeyPath, value: &DeValue<'_>, offset: usize) {
        match read(kind, value).filter(|value| holds(kind, value)) {
            Some(value) => {
                let place = self.place(offset, false);
                self.layer.entries.insert(path, Entry { value, place, key });
            }
            None => {
                let given = if key.is_secret() { type_of(value).to_owned() } else { shown(value) };
                self.problem_at(offset, false, format!("{path} must be {kind}, not {given}"));
            }
        }
    }
}

fn read(kind: Kind, value: &DeValue<'_>) -> Option<Value> {
    match (kind, value) {
        (_, DeValue::String(text)) => Some(Value::Text(text.to_string())),
        (Kind::Number(..), DeValue::Integer(number)) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| Value::Number(n as f64))
        }
        (_, DeValue::Integer(number)) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(Value::Whole)
        }
        (_, DeValue::Float(number)) => number.as_str().parse().ok().map(Value::Number),
        (_, DeValue::Boolean(flag)) => Some(Value::Flag(*flag)),
        (_, DeValue::Array(items)) => items
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::String(text) => Some(text.to_string()),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()
            .map(Value::Texts),
        _ => None,
    }
}

fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        other => type_of(other).to_owned(),
    }
}

fn not_a_table(path: &KeyPath, value: &DeValue<'_>) -> String {
    let names = schema::names_in(&path.0);
    let inside = if names.is_empty() { "one table for each name".to_owned() } else { names.join(", ") };
    let mut message = format!("{path} is a table (with {inside}), not {}", type_of(value));
    if path.0 == ["permissions"]
        && let DeValue::String(level) = value
    {
        message.push_str(&format!("; write: permissions.level = {level:?}"));
    }
    message
}

fn unknown(path: &KeyPath) -> String {
    let (name, table) = match path.0.split_last() {
        Some((name, table)) => (name.as_str(), table),
        None => ("", [].as_slice()),
    };
    let is_about_identity = table.is_empty() || table == ["session"];
    if is_about_identity
        && let Some((_, reason)) = schema::REFUSED.iter().find(|(names, _)| names.contains(&name))
    {
        return format!("{path} is no key of the configuration: {reason}");
    }
    let siblings = schema::names_in(table);
    let near = nearest(name, siblings.iter().copied())
        .map(|near| KeyPath(table.iter().cloned().chain([near.to_owned()]).collect()).to_string());
    // A key that is right but in the wrong table is the other common mistake.
    let near = near.or_else(|| {
        schema::KEYS
            .iter()
            .find(|key| key.parts().last() == Some(name))
            .map(|key| key.path.replace('*', "NAME"))
    });
    match near {
        Some(near) => format!("unknown key {path}; did you mean {near}?"),
        None if table.is_empty() => {
            format!("unknown key {path}; `segue config show` names the keys there are")
        }
        None => format!("unknown key {path}; here go {}", siblings.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(text: &str, rank: Rank) -> Layer {
        Layer::parse(text, Some(Path::new("c.toml")), rank)
    }

    fn problems(text: &str) -> Vec<String> {
        layer(text, Rank::User).problems.iter().map(ToString::to_string).collect()
    }

    fn entries(text: &str) -> Vec<String> {
        let layer = layer(text, Rank::User);
        assert_eq!(layer.problems, []);
        layer
            .entries
            .iter()
            .map(|(path, entry)| format!("{path} = {} ({})", entry.value, entry.place))
            .collect()
    }

    #[test]
    fn good_files_are_read() {
        assert_eq!(entries(""), [] as [&str; 0]);
        assert_eq!(entries("# nothing\n\n"), [] as [&str; 0]);
        assert_eq!(
            entries(
                "model = 'a/b'\n[permissions]\nlevel = 'edit'\ndeny = ['bash(rm *)']\n\n[compaction]\nat = 0.5\n"
            ),
            [
                "compaction.at = 0.5 (c.toml:7)",
                "model = \"a/b\" (c.toml:1)",
                "permissions.deny = [\"bash(rm *)\"] (c.toml:4)",
                "permissions.level = \"edit\" (c.toml:3)",
            ]
        );
        assert_eq!(
            entries(
                "[mcp.\"my docs\"]\ncommand = 'x'\nenv = { A = '1' }\neffects.find = 'read'\ntimeout_ms = 0x10"
            ),
            [
                "mcp.\"my docs\".command = \"x\" (c.toml:2)",
                "mcp.\"my docs\".effects.find = \"read\" (c.toml:4)",
                "mcp.\"my docs\".env.A = \"1\" (c.toml:3)",
                "mcp.\"my docs\".timeout_ms = 16 (c.toml:5)",
            ]
        );
    }

    #[test]
    fn mistakes_are_named_with_their_place_and_the_right_word() {
        let identity = "which session an invocation is for is said on its command line (--resume ID or --continue); a file would carry it into the next invocation";
        let line = "the line printed at exit is made from how this invocation was started; -q silences it";
        let cases: Vec<(&str, Vec<String>)> = vec![
            ("modle = 'x'", vec!["c.toml:1: unknown key modle; did you mean model?".into()]),
            ("\n[permisions]\nlevel='ask'", vec!["c.toml:2: unknown key permisions; did you mean permissions?".into()]),
            ("[permissions]\nlevle = 'ask'", vec!["c.toml:2: unknown key permissions.levle; did you mean permissions.level?".into()]),
            ("base_url = 'x'", vec!["c.toml:1: unknown key base_url; did you mean providers.NAME.base_url?".into()]),
            ("zzz = 1", vec!["c.toml:1: unknown key zzz; `segue config show` names the keys there are".into()]),
            ("[tools]\nzzz = 1", vec!["c.toml:2: unknown key tools.zzz; here go on_survivor, sandbox, bash_timeout_ms".into()]),
            ("permissions = 'ask'", vec!["c.toml:1: permissions is a table (with level, allow, deny), not a string; write: permissions.level = \"ask\"".into()]),
            ("[permissions]\nlevel = 'sudo'", vec!["c.toml:2: permissions.level must be one of \"read\", \"ask\", \"edit\", \"all\", not \"sudo\"".into()]),
            ("[compaction]\nat = 80", vec!["c.toml:2: compaction.at must be a number from 0.1 to 0.95, not 80".into()]),
            ("[limits]\nmax_steps = '5'", vec!["c.toml:2: limits.max_steps must be a whole number, at least 1, not \"5\"".into()]),
            ("[permissions]\nallow = 'bash'", vec!["c.toml:2: permissions.allow must be a list of strings, not \"bash\"".into()]),
            ("[providers.x]\nkey = 7", vec!["c.toml:2: providers.x.key must be a string, not a number".into()]),
            ("[mcp.x.effects]\nf = 'maybe'", vec!["c.toml:2: mcp.x.effects.f must be one of \"read\", \"idempotent\", \"write\", not \"maybe\"".into()]),
            ("model = ''", vec!["c.toml:1: model must be a string, not \"\"".into()]),
            ("a = 1\nb = 2", vec![
                "c.toml:1: unknown key a; `segue config show` names the keys there are".into(),
                "c.toml:2: unknown key b; `segue config show` names the keys there are".into(),
            ]),
            ("resume = 'x'\nresume_session_id = 'y'\nresume_command = 'z'\ngoodbye = true", vec![
                format!("c.toml:1: resume is no key of the configuration: {identity}"),
                format!("c.toml:2: resume_session_id is no key of the configuration: {identity}"),
                format!("c.toml:3: resume_command is no key of the configuration: {line}"),
                format!("c.toml:4: goodbye is no key of the configuration: {line}"),
            ]),
            ("[session]\nresume = 'x'", vec![format!("c.toml:1: session is no key of the configuration: {identity}")]),
        ];
        for (text, expected) in cases {
            assert_eq!(problems(text), expected, "{text}");
        }
    }

    #[test]
    fn broken_toml_is_named_with_line_and_column() {
        let found = problems("model = 'a'\nagent = = 'b'\n");
        assert!(found[0].starts_with("c.toml:2:9: not TOML: "), "{found:?}");
    }

    #[test]
    fn a_project_holds_no_key_and_moves_no_store() {
        for (text, message) in [
            (
                "store = 'jsonl:/x'",
                "c.toml:1: store cannot be set by a project: a session must be found from every folder",
            ),
            (
                "[providers.x]\nkey = 's3cret'",
                "c.toml:2: providers.x.key cannot be set by a project: a key does not belong into a project's files",
            ),
        ] {
            let found = layer(text, Rank::Project).problems;
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [message]);
        }
    }
}
