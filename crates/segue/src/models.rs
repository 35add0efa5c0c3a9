//! Which model answers: from the flag, the session's log, the configuration, the keys that are found, or else `practice`.

use std::collections::BTreeMap;

use segue_model::Secret;

use crate::config::{Config, KeyPath, Provider, Rank, Setting};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::nearest::nearest;

/// The stand-in that needs no key.
pub const PRACTICE: &str = "practice";

/// The model that answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Its name as `provider/name`, as the log keeps it.
    pub full_name: String,
    /// How it is reached.
    pub reached: Reached,
    /// What to tell the person first, if the choice may surprise.
    pub notice: Option<String>,
}

/// How a model is reached.
#[derive(Debug, Clone, PartialEq)]
pub enum Reached {
    /// It is part of this program.
    Practice,
    /// Over HTTP.
    Endpoint(Box<Endpoint>),
}

/// A model at a provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// The provider's name.
    pub provider: String,
    /// The model's name at the provider.
    pub model: String,
    /// The provider.
    pub settings: Provider,
    /// The key and where it came from.
    pub key: Option<(Secret, String)>,
}

/// Chooses the model. `session` is what the session's log names.
pub fn choose(
    config: &Config,
    settings: &BTreeMap<KeyPath, Vec<Setting>>,
    environment: &Environment,
    session: Option<&str>,
) -> Result<Choice> {
    let flag = config.model.as_ref().filter(|model| model.rank == Rank::Flags);
    if let Some(model) = flag {
        return named(config, environment, &model.value, &model.place.to_string());
    }
    if let Some(model) = session {
        let mut choice = named(config, environment, model, "the session's log")?;
        choice.notice = (choice.reached == Reached::Practice)
            .then(|| practice_notice("the session was begun with it, and --model changes that"));
        return Ok(choice);
    }
    if let Some(model) = &config.model {
        return named(config, environment, &model.value, &model.place.to_string());
    }
    let mentioned = config.providers.keys().filter(|name| is_mentioned(settings, name));
    let by_key = segue_model::BUILT_IN.iter().map(|known| known.name).filter(|name| {
        config.providers.get(*name).is_some_and(|provider| find_key(provider, environment).is_some())
    });
    let first = mentioned
        .map(String::as_str)
        .chain(by_key)
        .find(|name| config.providers.get(*name).is_some_and(|provider| provider.model.is_some()));
    match first {
        Some(provider) => named(config, environment, provider, "the configuration"),
        None => Ok(Choice {
            full_name: format!("{PRACTICE}/{PRACTICE}"),
            reached: Reached::Practice,
            notice: Some(practice_notice("no model provider is named and no key was found")),
        }),
    }
}

fn practice_notice(why: &str) -> String {
    format!(
        "The practice model answers, a stand-in by simple rules: {why}. For a real one set ANTHROPIC_API_KEY, OPENAI_API_KEY or DEEPSEEK_API_KEY, or see `segue models`."
    )
}

/// True if a file says something about a provider. A variable that other programs read too, such as a base URL, does
/// not name one.
fn is_mentioned(settings: &BTreeMap<KeyPath, Vec<Setting>>, provider: &str) -> bool {
    settings.iter().any(|(path, held)| {
        path.0.first().is_some_and(|part| part == "providers")
            && path.0.get(1).is_some_and(|part| part == provider)
            && held.iter().any(|setting| (Rank::System..=Rank::Config).contains(&setting.rank))
    })
}

/// The model of a name; `place` says where the name stands.
pub fn named(config: &Config, environment: &Environment, text: &str, place: &str) -> Result<Choice> {
    let (provider_name, model) = match text.split_once('/') {
        Some((provider, model)) => (provider, Some(model)),
        None => (text, None),
    };
    if provider_name == PRACTICE {
        return Ok(Choice {
            full_name: format!("{PRACTICE}/{PRACTICE}"),
            reached: Reached::Practice,
            notice: None,
        });
    }
    let Some(provider) = config.providers.get(provider_name) else {
        let names = config.providers.keys().map(String::as_str).chain([PRACTICE]);
        let hint = match (nearest(provider_name, names), model) {
            (Some(near), _) => format!("did you mean {near}? `segue models` lists the providers"),
            (None, None) => "a model is named PROVIDER/NAME; `segue models` lists the providers".into(),
            (None, Some(_)) => {
                format!("`segue models` lists the providers; [providers.{provider_name}] adds one")
            }
        };
        return Err(Error::config(format!("{place}: no model provider {provider_name:?}"))
            .code("UNKNOWN_PROVIDER")
            .hint(hint));
    };
    let Some(model) = model.or(provider.model.as_deref()).filter(|model| !model.is_empty()) else {
        return Err(Error::config(format!("{place}: {text:?} names no model"))
            .code("UNKNOWN_MODEL")
            .hint(format!("write {provider_name}/NAME")));
    };
    let key = find_key(provider, environment);
    if key.is_none()
        && let Some(variable) = &provider.key_env
    {
        return Err(Error::config(format!(
            "no key for {provider_name}, which {place} names: {variable} is not set"
        ))
        .code("MODEL_KEY_MISSING")
        .hint(format!(
            "set {variable}, or choose another model with --model; `--model practice` needs no key"
        )));
    }
    Ok(Choice {
        full_name: format!("{provider_name}/{model}"),
        reached: Reached::Endpoint(Box::new(Endpoint {
            provider: provider_name.to_owned(),
            model: model.to_owned(),
            settings: provider.clone(),
            key,
        })),
        notice: None,
    })
}

/// A provider's key and where it came from.
pub fn find_key(provider: &Provider, environment: &Environment) -> Option<(Secret, String)> {
    let from_variable = || {
        let variable = provider.key_env.as_ref()?;
        let key = environment.text(variable)?.trim();
        (!key.is_empty()).then(|| (Secret::new(key), variable.clone()))
    };
    from_variable().or_else(|| Some((provider.key.clone()?, "the configuration".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Common, Settings};
    use crate::config::{Sources, merge};

    /// The model chosen, or the error's message.
    fn chosen(file: &str, flag: Option<&str>, variables: &[(&str, &str)], session: Option<&str>) -> String {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config.toml"), file).unwrap();
        let mut all = vec![("SEGUE_HOME", home.path().to_str().unwrap())];
        all.extend(variables);
        let environment = Environment::of(all).with_system(home.path().join("none"));
        let settings = Settings { model: flag.map(str::to_owned), ..Settings::default() };
        let common = Common::default();
        let merged =
            merge(&Sources { environment: &environment, common: &common, settings: &settings }, None);
        let config = merged.config().unwrap();
        match choose(&config, &merged.settings, &environment, session) {
            Ok(choice) => {
                let key = match &choice.reached {
                    Reached::Endpoint(endpoint) => endpoint
                        .key
                        .as_ref()
                        .map_or_else(String::new, |(key, from)| format!(" with {} of {from}", key.reveal())),
                    Reached::Practice => String::new(),
                };
                let noticed = if choice.notice.is_some() { " (noticed)" } else { "" };
                format!("{}{key}{noticed}", choice.full_name)
            }
            Err(error) => error.message.replace(home.path().to_str().unwrap(), "HOME"),
        }
    }

    /// A file, a flag, variables, the session's model; and what comes of them.
    type Case = (
        &'static str,
        Option<&'static str>,
        Vec<(&'static str, &'static str)>,
        Option<&'static str>,
        &'static str,
    );

    #[test]
    fn the_model_is_chosen_as_documented() {
        let anthropic = ("ANTHROPIC_API_KEY", "k1");
        let openai = ("OPENAI_API_KEY", "k2");
        let mine = "[providers.mine]\napi = 'openai'\nbase_url = 'http://h/v1'\nmodel = 'm'\n";
        let keyed = "[providers.mine]\napi = 'openai'\nbase_url = 'http://h/v1'\nkey = 'k3'\nmodel = 'm'\n";
        let cases: Vec<Case> = vec![
            ("", None, vec![], None, "practice/practice (noticed)"),
            ("", Some("practice"), vec![], None, "practice/practice"),
            ("", None, vec![openai], None, "openai/gpt-5.5 with k2 of OPENAI_API_KEY"),
            (
                "",
                None,
                vec![openai, anthropic],
                None,
                "anthropic/claude-sonnet-5-5 with k1 of ANTHROPIC_API_KEY",
            ),
            ("", Some("openai/x/y"), vec![openai], None, "openai/x/y with k2 of OPENAI_API_KEY"),
            ("model = 'openai'", None, vec![openai], None, "openai/gpt-5.5 with k2 of OPENAI_API_KEY"),
            ("model = 'openai'", Some("ollama/q"), vec![], None, "ollama/q"),
            ("model = 'openai'", None, vec![openai], Some("ollama/old"), "ollama/old"),
            ("model = 'openai'", Some("ollama/q"), vec![openai], Some("ollama/old"), "ollama/q"),
            ("", None, vec![openai], Some("practice/practice"), "practice/practice (noticed)"),
            (mine, None, vec![], None, "mine/m"),
            (keyed, None, vec![openai], None, "mine/m with k3 of the configuration"),
            (
                "model = 'openai'",
                None,
                vec![],
                None,
                "no key for openai, which HOME/config.toml:1 names: OPENAI_API_KEY is not set",
            ),
            (
                "",
                None,
                vec![("OPENAI_API_KEY", "")],
                Some("openai/x"),
                "no key for openai, which the session's log names: OPENAI_API_KEY is not set",
            ),
            ("", None, vec![("ANTHROPIC_BASE_URL", "http://x")], None, "practice/practice (noticed)"),
            ("", Some("antropic/x"), vec![], None, "--model: no model provider \"antropic\""),
            ("", Some("gpt-5"), vec![], None, "--model: no model provider \"gpt-5\""),
            ("", Some("ollama/"), vec![], None, "--model: \"ollama/\" names no model"),
        ];
        for (file, flag, variables, session, expected) in cases {
            assert_eq!(
                chosen(file, flag, &variables, session),
                expected,
                "{file} {flag:?} {variables:?} {session:?}"
            );
        }
    }
}
