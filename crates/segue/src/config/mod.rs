//! The configuration: layers of TOML, environment and flags, merged key by key, each value with where it came from.

#[cfg(test)]
mod docs;
pub mod layer;
pub mod schema;
mod trust;
mod typed;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use layer::{Entry, KeyPath, Layer, Place, Problem, Rank, Value};
pub use trust::{Trust, TrustFile};
pub use typed::{Agent, Config, McpServer, Provider, Sourced};

use crate::args::{Common, Settings};
use crate::environment::Environment;
use crate::error::{Error, Result};
use schema::{At, InProject, Kind};

/// Where a project keeps its configuration, below its folder.
pub const PROJECT_FILE: &str = ".segue/config.toml";

/// Where the layers come from.
pub struct Sources<'a> {
    /// The environment, which also says where the files are.
    pub environment: &'a Environment,
    /// `--config` and `--store`.
    pub common: &'a Common,
    /// The flags that are settings.
    pub settings: &'a Settings,
}

/// A value that holds, and the layer it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The value and its place.
    pub entry: Entry,
    /// Its layer.
    pub rank: Rank,
}

/// A value of a project's file that does not hold, because the folder is not trusted.
#[derive(Debug, Clone, PartialEq)]
pub struct Withheld {
    /// Its key.
    pub path: KeyPath,
    /// Its place.
    pub place: Place,
}

/// The layers, merged.
#[derive(Debug, Default)]
pub struct Merged {
    /// What holds. Rules add up, so there may be several settings of one key, lowest layer first.
    pub settings: BTreeMap<KeyPath, Vec<Setting>>,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// What a project may not say until its folder is trusted.
    pub withheld: Vec<Withheld>,
    /// The files that were looked for, and whether each was there.
    pub files: Vec<(Rank, PathBuf, bool)>,
    /// How far the project's file is trusted; none if there is no such file.
    pub trust: Option<Trust>,
}

/// Reads and merges all layers. `project` is the working folder whose file is one of them.
pub fn merge(sources: &Sources<'_>, project: Option<&Path>) -> Merged {
    let mut merged = Merged::default();
    merged.add(Rank::BuiltIn, defaults());
    let environment = sources.environment;
    let user = environment.user_config();
    merged.add_file(Rank::System, environment.system_config(), false);
    match &user {
        Ok(path) => {
            merged.add_file(Rank::User, path.clone(), false);
        }
        Err(error) => {
            let hint = error.hint.iter().map(|hint| format!("; {hint}"));
            let message = std::iter::once(error.message.clone()).chain(hint).collect();
            merged.problems.push(Problem { place: Place::Variable("HOME".into()), message });
        }
    }
    if let Some(folder) = project {
        let path = folder.join(PROJECT_FILE);
        if user.as_ref().ok() != Some(&path) {
            merged.add_project(folder, path, user.ok().map(|user| TrustFile::beside(&user)));
        }
    }
    if let Some(path) = &sources.common.config {
        merged.add_file(Rank::Config, path.clone(), true);
    }
    merged.add(Rank::Environment, from_environment(environment));
    merged.add(Rank::Flags, from_flags(sources));
    merged.problems.extend(typed::inconsistencies(&merged.settings));
    merged
}

impl Merged {
    /// The configuration, if nothing is wrong with it; else all that is wrong.
    pub fn config(&self) -> Result<Config> {
        if self.problems.is_empty() {
            return Ok(Config::from_settings(&self.settings));
        }
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        Err(Error::config(lines.join("\n")).hint("`segue config check` looks at the configuration again"))
    }

    /// What to tell the person about an untrusted project file; none if nothing was withheld.
    pub fn warning(&self, folder: &Path) -> Option<String> {
        let first = self.withheld.first()?;
        let keys: Vec<String> =
            self.withheld.iter().map(|withheld| format!("{} ({})", withheld.path, withheld.place)).collect();
        let why = match self.trust {
            Some(Trust::Changed) => "its file changed since the folder was trusted",
            _ => "the folder is not trusted",
        };
        let file = match &first.place {
            Place::File { path, .. } => path.display().to_string(),
            other => other.to_string(),
        };
        Some(format!(
            "warning: not applied, because {why}: {}\nhint: read {file}, then `segue config trust {}`",
            keys.join(", "),
            crate::launch::shell_quote(folder.as_os_str()),
        ))
    }

    fn add(&mut self, rank: Rank, layer: Layer) {
        self.problems.extend(layer.problems);
        for (path, entry) in layer.entries {
            let adds = entry.key.kind == Kind::Rules;
            let setting = Setting { entry, rank };
            let held = self.settings.entry(path).or_default();
            if !adds {
                held.clear();
            }
            held.push(setting);
        }
    }

    fn add_file(&mut self, rank: Rank, path: PathBuf, required: bool) {
        let layer = self.read(rank, path, required);
        self.add(rank, layer.map(|(layer, _)| layer).unwrap_or_default());
    }

    fn add_project(&mut self, folder: &Path, path: PathBuf, trust_file: Option<TrustFile>) {
        let Some((mut layer, text)) = self.read(Rank::Project, path.clone(), false) else { return };
        let trust = match trust_file.map(|file| file.look_up(folder, text.as_bytes())) {
            Some(Ok(trust)) => trust,
            Some(Err(problem)) => {
                self.problems.push(problem);
                Trust::Unknown
            }
            None => Trust::Unknown,
        };
        self.trust = Some(trust);
        if trust != Trust::Trusted {
            let refused: BTreeSet<KeyPath> = layer
                .entries
                .iter()
                .filter(|(path, entry)| self.needs_trust(path, entry))
                .map(|(path, _)| path.clone())
                .collect();
            for path in refused {
                if let Some(entry) = layer.entries.remove(&path) {
                    self.withheld.push(Withheld { path, place: entry.place });
                }
            }
        }
        self.add(Rank::Project, layer);
    }

    fn needs_trust(&self, path: &KeyPath, entry: &Entry) -> bool {
        match entry.key.project {
            InProject::Free => false,
            InProject::Trusted | InProject::Never(_) => true,
            InProject::Tighten => {
                let Kind::OneOf(words) = entry.key.kind else { return true };
                let strictness = |value: &Value| match value {
                    Value::Text(text) => words.iter().position(|word| word == text),
                    _ => None,
                };
                let below =
                    self.settings.get(path).and_then(|held| held.last()).map(|held| &held.entry.value);
                strictness(&entry.value) > below.and_then(strictness)
            }
        }
    }

    fn read(&mut self, rank: Rank, path: PathBuf, required: bool) -> Option<(Layer, String)> {
        let problem = |message: String| Problem { place: Place::whole_file(&path), message };
        let (found, read) = match read_file(&path, required) {
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => (true, Some((Layer::parse(&text, Some(&path), rank), text))),
                Err(_) => {
                    self.problems.push(problem("not UTF-8, so not TOML".into()));
                    (true, None)
                }
            },
            Err(error) if is_absent(&error) && !required => (false, None),
            Err(error) => {
                self.problems.push(problem(format!("cannot be read: {error}")));
                (true, None)
            }
        };
        self.files.push((rank, path, found));
        read
    }
}

/// The longest file that is read as configuration, in bytes.
const MOST: u64 = 1 << 20;

/// Reads a configuration file. A file found by itself must be a regular one: a pipe in its place would block for ever. One
/// that the person `named` may be a pipe, as in `--config <(…)`.
fn read_file(path: &Path, named: bool) -> io::Result<Vec<u8>> {
    let kind = std::fs::metadata(path)?;
    if kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
    }
    if !named && !kind.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(io::Error::other(format!("it is longer than {} MiB", MOST >> 20)));
    }
    Ok(bytes)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The built-in layer: the schema's defaults and the known providers.
fn defaults() -> Layer {
    let mut text = String::new();
    for key in schema::KEYS {
        if let Some(value) = key.default
            && !key.path.contains('*')
        {
            text.push_str(&format!("{} = {value}\n", key.path));
        }
    }
    text.push_str(&schema::built_in_providers());
    text.push_str(&schema::built_in_agents());
    Layer::parse(&text, None, Rank::BuiltIn)
}

fn from_environment(environment: &Environment) -> Layer {
    let mut layer = Layer::default();
    let own = schema::KEYS.iter().filter_map(|key| Some((key.variable()?, key.path.to_owned())));
    for (name, path) in own.chain(schema::shared_variables()) {
        let Some(value) = environment.get(&name) else { continue };
        let place = Place::Variable(name);
        match value.to_str() {
            Some(text) => layer.set_text(KeyPath::of(&path), text, place),
            None => layer.problems.push(Problem { place, message: "not UTF-8".into() }),
        }
    }
    layer
}

fn from_flags(sources: &Sources<'_>) -> Layer {
    let settings = sources.settings;
    let max_steps = settings.max_steps.map(|steps| steps.to_string());
    let mut layer = Layer::default();
    for (flag, path, value) in [
        ("--agent", "agent", settings.agent.as_deref()),
        ("--model", "model", settings.model.as_deref()),
        ("--permissions", "permissions.level", settings.permissions.map(|level| level.as_str())),
        ("--max-steps", "limits.max_steps", max_steps.as_deref()),
        ("--store", "store", sources.common.store.as_deref()),
    ] {
        if let Some(value) = value {
            layer.set_text(KeyPath::of(path), value, Place::Flag(flag));
        }
    }
    if !settings.allow.is_empty() {
        layer.set_list(KeyPath::of("permissions.allow"), settings.allow.clone(), Place::Flag("--allow"));
    }
    layer
}

/// Variables that look like a mistyped one of ours.
pub fn suspicious_variables(environment: &Environment) -> Vec<Problem> {
    let known: Vec<String> =
        schema::KEYS.iter().filter_map(schema::Key::variable).chain(["SEGUE_HOME".into()]).collect();
    environment
        .names()
        .filter(|name| name.starts_with("SEGUE_") && !known.iter().any(|known| known == name))
        .filter_map(|name| {
            let near = nearest_variable(name, &known)?;
            Some(Problem {
                place: Place::Variable(name.to_owned()),
                message: format!("no variable of segue's; did you mean {near}?"),
            })
        })
        .collect()
}

fn nearest_variable(name: &str, known: &[String]) -> Option<String> {
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(name, known), known))
        .filter(|(distance, _)| *distance <= 2)
        .min()
        .map(|(_, known)| known.clone())
}

/// True if `path` names a key whose values are never shown.
pub fn is_secret(entry: &Entry, path: &KeyPath) -> bool {
    entry.key.is_secret() || matches!(schema::at(&path.0), At::Key(key) if key.is_secret())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine {
        folder: tempfile::TempDir,
        environment: Environment,
    }

    impl Machine {
        fn new(variables: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let home = folder.path().join("home");
            let project = folder.path().join("project/.segue");
            std::fs::create_dir_all(&home).unwrap();
            std::fs::create_dir_all(project).unwrap();
            let mut all = vec![("SEGUE_HOME".to_owned(), home.to_str().unwrap().to_owned())];
            all.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
            let environment = Environment::of(all).with_system(folder.path().join("etc.toml"));
            Self { folder, environment }
        }

        fn file(&self, name: &str, text: &str) -> PathBuf {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        }

        fn project(&self) -> PathBuf {
            self.folder.path().join("project")
        }

        fn merge(&self, common: &Common, settings: &Settings) -> Merged {
            merge(&Sources { environment: &self.environment, common, settings }, Some(&self.project()))
        }

        /// The settings of one key, as `value from layer`.
        fn held(&self, merged: &Merged, key: &str) -> Vec<String> {
            let held = merged.settings.get(&KeyPath::of(key)).cloned().unwrap_or_default();
            held.iter()
                .map(|setting| format!("{} from {}", setting.entry.value, setting.rank.name()))
                .collect()
        }
    }

    #[test]
    fn each_layer_wins_over_those_below_it() {
        let machine = Machine::new(&[]);
        let with_env = Machine::new(&[("SEGUE_MODEL", "env/m")]);
        let model = |machine: &Machine, common: &Common, settings: &Settings| {
            machine.held(&machine.merge(common, settings), "model")
        };
        let (common, settings) = (Common::default(), Settings::default());
        assert_eq!(model(&machine, &common, &settings), [] as [&str; 0]);
        machine.file("etc.toml", "model = 'system/m'");
        assert_eq!(model(&machine, &common, &settings), ["\"system/m\" from system"]);
        machine.file("home/config.toml", "model = 'user/m'");
        assert_eq!(model(&machine, &common, &settings), ["\"user/m\" from user"]);
        machine.file("project/.segue/config.toml", "model = 'project/m'");
        assert_eq!(model(&machine, &common, &settings), ["\"project/m\" from project"]);
        let common = Common { config: Some(machine.file("more.toml", "model = 'more/m'")), ..common };
        assert_eq!(model(&machine, &common, &settings), ["\"more/m\" from --config"]);
        assert_eq!(model(&with_env, &common, &settings), ["\"env/m\" from environment"]);
        let settings = Settings { model: Some("flag/m".into()), ..settings };
        assert_eq!(model(&with_env, &common, &settings), ["\"flag/m\" from flag"]);
    }

    /// A user's file that only changed the model once erased the settings beside it elsewhere: a layer must change
    /// only what it restates.
    #[test]
    fn a_layer_changes_only_what_it_restates() {
        let machine = Machine::new(&[]);
        machine.file("etc.toml", "[tools]\nsandbox = 'off'\n[providers.anthropic]\nmodel = 'big'\n[permissions]\ndeny = ['bash(rm *)']");
        machine.file(
            "home/config.toml",
            "model = 'a/b'\n[tools]\nbash_timeout_ms = 5\n[permissions]\ndeny = ['write(/etc/*)']",
        );
        let merged = machine.merge(&Common::default(), &Settings::default());
        assert_eq!(merged.problems, []);
        for (key, expected) in [
            ("tools.sandbox", vec!["\"off\" from system"]),
            ("tools.on_survivor", vec!["\"stop\" from built-in"]),
            ("tools.bash_timeout_ms", vec!["5 from user"]),
            ("providers.anthropic.model", vec!["\"big\" from system"]),
            ("providers.anthropic.key_env", vec!["\"ANTHROPIC_API_KEY\" from built-in"]),
            ("permissions.deny", vec!["[\"bash(rm *)\"] from system", "[\"write(/etc/*)\"] from user"]),
        ] {
            assert_eq!(machine.held(&merged, key), expected, "{key}");
        }
    }

    #[test]
    fn an_untrusted_project_may_tighten_but_not_loosen() {
        let machine = Machine::new(&[]);
        let text = "[permissions]\nlevel = 'all'\nallow = ['bash']\ndeny = ['write']\n[mcp.x]\ncommand = 'evil'\n[limits]\nmax_steps = 3\n[providers.anthropic]\nbase_url = 'http://evil'\n";
        machine.file("project/.segue/config.toml", text);
        let withheld =
            |merged: &Merged| merged.withheld.iter().map(|w| w.path.to_string()).collect::<Vec<_>>();
        let load = || machine.merge(&Common::default(), &Settings::default());

        let merged = load();
        assert_eq!(
            withheld(&merged),
            ["mcp.x.command", "permissions.allow", "permissions.level", "providers.anthropic.base_url"]
        );
        assert_eq!(machine.held(&merged, "permissions.level"), ["\"ask\" from built-in"]);
        assert_eq!(machine.held(&merged, "permissions.deny"), ["[\"write\"] from project"]);
        assert_eq!(machine.held(&merged, "limits.max_steps"), ["3 from project"]);
        let warning = merged.warning(&machine.project()).unwrap();
        assert!(
            warning.contains("permissions.level (") && warning.contains("segue config trust"),
            "{warning}"
        );

        machine.file("home/config.toml", "permissions.level = 'all'");
        assert!(
            !withheld(&load()).contains(&"permissions.level".to_owned()),
            "no looser than the user's own"
        );

        let file = TrustFile::beside(&machine.environment.user_config().unwrap());
        file.trust(&machine.project(), text.as_bytes()).unwrap();
        assert_eq!(withheld(&load()), [] as [&str; 0]);
        assert_eq!(machine.held(&load(), "mcp.x.command"), ["\"evil\" from project"]);

        machine.file("project/.segue/config.toml", &text.replace("evil", "worse"));
        let changed = load();
        assert_eq!(changed.trust, Some(Trust::Changed));
        assert_eq!(withheld(&changed).len(), 3);
    }

    #[test]
    fn unreadable_and_missing_files_are_told() {
        let machine = Machine::new(&[("SEGUE_LIMITS_MAX_STEPS", "many")]);
        machine.file("home/config.toml", "");
        std::fs::write(machine.folder.path().join("home/config.toml"), b"model = '\xff'").unwrap();
        let missing = machine.folder.path().join("no.toml");
        let common = Common { config: Some(missing.clone()), ..Common::default() };
        let problems: Vec<String> =
            machine.merge(&common, &Settings::default()).problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                format!(
                    "{}: not UTF-8, so not TOML",
                    machine.folder.path().join("home/config.toml").display()
                ),
                format!("{}: cannot be read: No such file or directory (os error 2)", missing.display()),
                "$SEGUE_LIMITS_MAX_STEPS: limits.max_steps must be a whole number, at least 1, not \"many\""
                    .into(),
            ]
        );
    }

    #[test]
    fn mistyped_variables_are_noticed() {
        let machine = Machine::new(&[("SEGUE_MODLE", "x"), ("SEGUE_SOMETHING_ELSE", "y")]);
        let found: Vec<String> =
            suspicious_variables(&machine.environment).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["$SEGUE_MODLE: no variable of segue's; did you mean SEGUE_MODEL?"]);
    }
}
