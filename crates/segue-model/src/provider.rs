//! Where models are: the providers known from the start, those that a config names, and how to reach them. Nothing here
//! reads the environment; the launcher fills in keys and addresses.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::anthropic::Anthropic;
use crate::error::Secret;
use crate::failure::Who;
use crate::model::Model;
use crate::openai::OpenAi;
use crate::wire::Endpoint;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long nothing may come.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// The shortest header or query value that is taken for a secret.
const SHORTEST_SECRET: usize = 8;

/// A wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's Chat Completions.
    OpenAi,
}

/// A provider that needs no config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltIn {
    /// Its name, as in `name/model`.
    pub name: &'static str,
    /// What it speaks.
    pub api: Api,
    /// Where it is.
    pub base_url: &'static str,
    /// The environment variable that moves it.
    pub base_url_variable: &'static str,
    /// The environment variable that holds its key; none if it needs no key.
    pub key_variable: Option<&'static str>,
    /// The model to take where none is named.
    pub default_model: &'static str,
}

/// The providers that need no config, in the order in which a key decides for one where nothing else does.
pub const BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        name: "anthropic",
        api: Api::Anthropic,
        base_url: "https://api.anthropic.com",
        base_url_variable: "ANTHROPIC_BASE_URL",
        key_variable: Some("ANTHROPIC_API_KEY"),
        default_model: "claude-sonnet-5-5",
    },
    BuiltIn {
        name: "openai",
        api: Api::OpenAi,
        base_url: "https://api.openai.com/v1",
        base_url_variable: "OPENAI_BASE_URL",
        key_variable: Some("OPENAI_API_KEY"),
        default_model: "gpt-5.5",
    },
    BuiltIn {
        name: "deepseek",
        api: Api::OpenAi,
        base_url: "https://api.deepseek.com/v1",
        base_url_variable: "DEEPSEEK_BASE_URL",
        key_variable: Some("DEEPSEEK_API_KEY"),
        default_model: "deepseek-v4-pro",
    },
    BuiltIn {
        name: "ollama",
        api: Api::OpenAi,
        base_url: "http://127.0.0.1:11434/v1",
        base_url_variable: "OLLAMA_HOST",
        key_variable: None,
        default_model: "qwen3",
    },
];

/// The provider of this name that needs no config.
pub fn built_in(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|provider| provider.name == name)
}

/// How to reach a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderConfig {
    /// Its name, as in `name/model`.
    pub name: String,
    /// What it speaks.
    pub api: Api,
    /// Where it is, with or without a slash or a version at its end.
    pub base_url: String,
    /// Its key; none where it asks for none.
    pub key: Option<Secret>,
    /// Where the key comes from, for error texts: an environment variable or a config key.
    pub key_variable: Option<String>,
    /// Further headers; their values are kept out of error texts like keys.
    pub headers: Vec<(String, Secret)>,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long nothing may come, before the answer and within it.
    pub idle_timeout: Duration,
}

impl ProviderConfig {
    /// A provider without a key, with the usual time limits.
    pub fn new(name: impl Into<String>, api: Api, base_url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            api,
            base_url: base_url.into(),
            key: None,
            key_variable: None,
            headers: Vec::new(),
            connect_timeout: CONNECT_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
        }
    }
}

impl From<&BuiltIn> for ProviderConfig {
    fn from(known: &BuiltIn) -> Self {
        Self {
            key_variable: known.key_variable.map(str::to_owned),
            ..Self::new(known.name, known.api, known.base_url)
        }
    }
}

/// A provider's config that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The base URL is none.
    #[error("the base URL of {provider} cannot be used: {reason}")]
    BaseUrl {
        /// The provider.
        provider: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The key cannot be sent.
    #[error("the key of {provider}{} holds characters that no key has; was it copied whole?", .variable.as_ref().map(|v| format!(" in {v}")).unwrap_or_default())]
    Key {
        /// The provider.
        provider: String,
        /// Where the key comes from.
        variable: Option<String>,
    },
    /// A header cannot be sent.
    #[error("{header:?} of {provider} is no header that can be sent")]
    Header {
        /// The provider.
        provider: String,
        /// The header's name.
        header: String,
    },
    /// No model is named.
    #[error("no model of {provider} is named; write {provider}/MODEL")]
    Model {
        /// The provider.
        provider: String,
    },
}

/// The model of that name at a provider. Nothing is sent and no connection made before its `stream` is called.
/// `window` is the model's size in tokens where the person knows better than [`window_of`].
///
/// # Errors
/// If the config cannot be used; what is wrong at the other end shows with the first request only.
pub fn connect(
    config: &ProviderConfig,
    model: &str,
    window: Option<u64>,
) -> Result<Arc<dyn Model>, ProviderError> {
    let provider = config.name.clone();
    if model.trim().is_empty() {
        return Err(ProviderError::Model { provider });
    }
    let (url, mut secrets) = address(config)?;
    secrets.extend(config.headers.iter().map(|(_, value)| value.clone()));
    // Short values, such as a version in the query, are no secrets, and blotting them out would garble every text.
    secrets.retain(|secret| secret.reveal().len() >= SHORTEST_SECRET);
    secrets.extend(config.key.clone());
    let endpoint = Arc::new(Endpoint {
        who: Who { provider, key_variable: config.key_variable.clone(), secrets },
        url,
        headers: headers(config)?,
        connect_timeout: config.connect_timeout,
        idle_timeout: config.idle_timeout,
        client: OnceLock::new(),
    });
    let name = format!("{}/{model}", config.name);
    let window = window.unwrap_or_else(|| window_of(model));
    let model = model.to_owned();
    Ok(match config.api {
        Api::Anthropic => Arc::new(Anthropic { endpoint, name, model, window }),
        Api::OpenAi => Arc::new(OpenAi { endpoint, name, model, window }),
    })
}

/// How many tokens the window of a model holds: what is known of it by its name, or a cautious guess.
pub fn window_of(model: &str) -> u64 {
    const KNOWN: &[(&str, u64)] = &[
        ("claude-opus-4-6", 1_000_000),
        ("claude-opus-4-7", 1_000_000),
        ("claude-opus-4-8", 1_000_000),
        ("claude-sonnet-4-6", 1_000_000),
        ("claude-opus-5", 1_000_000),
        ("claude-sonnet-5", 1_000_000),
        ("claude-fable-5", 1_000_000),
        ("claude", 200_000),
        ("gpt-5.5", 1_050_000),
        ("gpt-5.4-mini", 400_000),
        ("gpt-5.4", 1_050_000),
        ("gpt-5-chat", 128_000),
        ("gpt-5", 400_000),
        ("gpt-4.1", 1_047_576),
        ("gpt-4o", 128_000),
        ("deepseek-v4", 1_000_000),
        ("deepseek", 128_000),
    ];
    const GUESS: u64 = 32_000;
    // Gateways put the maker before the name: `anthropic/claude-…`.
    let name = model.rsplit('/').next().unwrap_or(model);
    KNOWN.iter().find(|(known, _)| name.starts_with(known)).map_or(GUESS, |(_, window)| *window)
}

/// The address that requests go to, and what of it must not be shown.
fn address(config: &ProviderConfig) -> Result<(Url, Vec<Secret>), ProviderError> {
    let bad = |reason: String| ProviderError::BaseUrl { provider: config.name.clone(), reason };
    let base = config.base_url.trim();
    let base = match config.name.as_str() {
        // The variable that Ollama's own tools read holds a host, perhaps with a port.
        "ollama" if !base.contains("://") => ollama_host(base),
        _ => base.to_owned(),
    };
    let mut url = Url::parse(&base).map_err(|error| bad(format!("{error}; write http://… or https://…")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(bad("write http://… or https://…".into()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("it holds a user or password; give the key by itself".into()));
    }
    let path = path(url.path(), config.api);
    url.set_path(&path);
    url.set_fragment(None);
    let secrets = url.query_pairs().map(|(_, value)| Secret::new(value)).collect();
    Ok((url, secrets))
}

/// `localhost`, `0.0.0.0:11434` and the like as a URL.
fn ollama_host(host: &str) -> String {
    let (host, path) = host.split_once('/').unwrap_or((host, ""));
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { format!("http://{host}/{path}") } else { format!("http://{host}:11434/{path}") }
}

/// The path of requests below a base URL's: with `v1` before it unless the base names a version, or all of it already.
fn path(base: &str, api: Api) -> String {
    let method = match api {
        Api::Anthropic => "messages",
        Api::OpenAi => "chat/completions",
    };
    let base = base.trim_end_matches('/');
    if base.ends_with(&format!("/{method}")) {
        return base.to_owned();
    }
    let is_version = |part: &str| {
        part.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let version = if base.split('/').any(is_version) { "" } else { "/v1" };
    format!("{base}{version}/{method}")
}

fn headers(config: &ProviderConfig) -> Result<HeaderMap, ProviderError> {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("accept", HeaderValue::from_static("text/event-stream, application/json"));
    headers.insert("user-agent", HeaderValue::from_static(concat!("segue/", env!("CARGO_PKG_VERSION"))));
    if config.api == Api::Anthropic {
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    if let Some(key) = &config.key {
        let bad =
            |_| ProviderError::Key { provider: config.name.clone(), variable: config.key_variable.clone() };
        let (name, value) = match config.api {
            Api::Anthropic => ("x-api-key", key.reveal().to_owned()),
            Api::OpenAi => ("authorization", format!("Bearer {}", key.reveal())),
        };
        let mut value = HeaderValue::from_str(&value).map_err(bad)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    for (header, value) in &config.headers {
        let bad = || ProviderError::Header { provider: config.name.clone(), header: header.clone() };
        let name = HeaderName::from_bytes(header.as_bytes()).map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(name: &str, api: Api, base: &str) -> Result<String, ProviderError> {
        address(&ProviderConfig::new(name, api, base)).map(|(url, _)| url.to_string())
    }

    #[test]
    fn base_urls_are_taken_in_every_form() {
        for (api, base, expected) in [
            (Api::Anthropic, "https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
            (Api::Anthropic, "https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
            (Api::Anthropic, "http://h:1/anthropic", "http://h:1/anthropic/v1/messages"),
            (Api::OpenAi, "https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
            (Api::OpenAi, " https://api.openai.com/ ", "https://api.openai.com/v1/chat/completions"),
            (Api::OpenAi, "https://h/api/v4//", "https://h/api/v4/chat/completions"),
            (Api::OpenAi, "https://h/v1beta/openai", "https://h/v1beta/openai/chat/completions"),
            (Api::OpenAi, "https://h/v1/chat/completions", "https://h/v1/chat/completions"),
            (
                Api::OpenAi,
                "https://h/deploy?api-version=2#x",
                "https://h/deploy/v1/chat/completions?api-version=2",
            ),
        ] {
            assert_eq!(url("acme", api, base).as_deref(), Ok(expected), "{base}");
        }
        for (base, expected) in [
            ("localhost", "http://localhost:11434/v1/chat/completions"),
            ("0.0.0.0:99", "http://0.0.0.0:99/v1/chat/completions"),
            ("http://h:1", "http://h:1/v1/chat/completions"),
        ] {
            assert_eq!(url("ollama", Api::OpenAi, base).as_deref(), Ok(expected), "{base}");
        }
        for base in ["", "localhost:8080", "ftp://h", "https://", "not a url", "https://user:pass@h"] {
            let error = url("acme", Api::OpenAi, base).unwrap_err();
            assert!(matches!(&error, ProviderError::BaseUrl { .. }), "{base}: {error}");
            assert!(!error.to_string().contains("pass@"), "{error}");
        }
    }

    #[test]
    fn built_in_providers_can_be_reached() {
        for known in BUILT_IN {
            let mut config = ProviderConfig::from(known);
            config.key = known.key_variable.map(|_| Secret::new("key"));
            let model = connect(&config, known.default_model, None).unwrap();
            assert_eq!(model.name(), format!("{}/{}", known.name, known.default_model));
            assert_eq!(built_in(known.name), Some(known));
        }
    }

    #[test]
    fn what_cannot_be_sent_is_told_before_anything_is() {
        let config = || ProviderConfig {
            key_variable: Some("ACME_KEY".into()),
            ..ProviderConfig::new("acme", Api::OpenAi, "http://h")
        };
        let error =
            |config: ProviderConfig, model: &str| connect(&config, model, None).err().map(|e| e.to_string());
        let key = ProviderConfig { key: Some(Secret::new("sk-a\nb")), ..config() };
        assert_eq!(
            error(key, "m").as_deref(),
            Some("the key of acme in ACME_KEY holds characters that no key has; was it copied whole?")
        );
        let header = ProviderConfig { headers: vec![("x y".into(), Secret::new("v"))], ..config() };
        assert_eq!(error(header, "m").as_deref(), Some("\"x y\" of acme is no header that can be sent"));
        assert_eq!(error(config(), " ").as_deref(), Some("no model of acme is named; write acme/MODEL"));
    }

    #[test]
    fn windows_go_by_the_name() {
        for (model, expected) in [
            ("claude-sonnet-5-5", 1_000_000),
            ("claude-haiku-4-5", 200_000),
            ("anthropic/claude-opus-4-5", 200_000),
            ("gpt-5-mini", 400_000),
            ("deepseek-v4-pro", 1_000_000),
            ("llama3", 32_000),
        ] {
            assert_eq!(window_of(model), expected, "{model}");
        }
    }
}
