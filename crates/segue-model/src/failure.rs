//! From what a provider says to a [`ModelError`].

use std::time::{Duration, SystemTime};

use segue_log::strip_controls;
use serde_json::Value;

use crate::error::{ModelError, Secret};

/// The longest message of a provider that is passed on, in characters.
const LONGEST_MESSAGE: usize = 400;

/// An error in a provider's words.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Said {
    /// Its codes and types, whatever it gives.
    pub(crate) codes: Vec<String>,
    pub(crate) message: String,
}

impl Said {
    /// Reads the body of an error answer.
    pub(crate) fn of_body(body: &str) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(value) => Self::of_value(&value),
            Err(_) if body.trim_start().starts_with('<') => Self::plain("the answer is a web page"),
            Err(_) => Self::plain(body.trim()),
        }
    }

    /// Reads an error object, in any of the usual shapes.
    pub(crate) fn of_value(value: &Value) -> Self {
        let value = value.as_array().and_then(|list| list.first()).unwrap_or(value);
        let inner = value.get("error").filter(|error| error.is_object()).unwrap_or(value);
        let codes = ["code", "type", "status"]
            .iter()
            .filter_map(|key| match inner.get(key) {
                Some(Value::String(word)) => Some(word.clone()),
                Some(Value::Number(number)) => Some(number.to_string()),
                _ => None,
            })
            .collect();
        let message = ["message", "detail", "error", "msg"]
            .iter()
            .find_map(|key| inner.get(key).and_then(Value::as_str))
            .map_or_else(|| value.to_string(), str::to_owned);
        Self { codes, message }
    }

    fn plain(message: &str) -> Self {
        Self { codes: Vec::new(), message: message.to_owned() }
    }

    fn has(&self, code: &str) -> bool {
        self.codes.iter().any(|known| known == code)
    }

    /// The HTTP status that an error in the middle of a stream would have had; none if it does not say.
    pub(crate) fn status(&self) -> Option<u16> {
        self.codes.iter().find_map(|code| match code.as_str() {
            "invalid_request_error" | "context_length_exceeded" => Some(400),
            "authentication_error" | "invalid_api_key" => Some(401),
            "billing_error" => Some(402),
            "permission_error" => Some(403),
            "not_found_error" | "model_not_found" => Some(404),
            "request_too_large" => Some(413),
            "rate_limit_error" | "rate_limit_exceeded" | "insufficient_quota" => Some(429),
            "api_error" | "server_error" | "internal_error" => Some(500),
            "timeout_error" => Some(504),
            "overloaded_error" => Some(529),
            number => number.parse().ok().filter(|status| (400..600).contains(status)),
        })
    }

    fn is_too_long(&self, status: u16) -> bool {
        const TEXTS: [&str; 10] = [
            "prompt is too long",
            "input is too long",
            "exceed context limit",
            "context length",
            "context window",
            "context size",
            "maximum context",
            "reduce the length",
            "input token count",
            "too many input tokens",
        ];
        let text = self.message.to_lowercase();
        status == 413
            || (matches!(status, 400 | 422)
                && (self.has("context_length_exceeded")
                    || self.has("exceed_context_size_error")
                    || TEXTS.iter().any(|known| text.contains(known))))
    }
}

/// Who answered, and what must not be repeated of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Who {
    pub(crate) provider: String,
    pub(crate) key_variable: Option<String>,
    pub(crate) secrets: Vec<Secret>,
}

impl Who {
    /// The error that an answer of this status is.
    pub(crate) fn refused(&self, status: u16, said: &Said, retry_after: Option<Duration>) -> ModelError {
        let provider = self.provider.clone();
        let message = self.clean(&said.message);
        match status {
            401 | 403 => ModelError::Key { provider, variable: self.key_variable.clone(), message },
            // No waiting helps an empty account.
            429 if said.has("insufficient_quota") => ModelError::Rejected { provider, status, message },
            429 => ModelError::RateLimited { provider, retry_after, message },
            408 | 500.. => ModelError::Server { provider, status, retry_after, message },
            _ if said.is_too_long(status) => ModelError::TooLong { provider, message },
            _ => ModelError::Rejected { provider, status, message },
        }
    }

    /// The error that came in the middle of an answer.
    pub(crate) fn interrupted(&self, said: &Said) -> ModelError {
        match said.status() {
            Some(status) => self.refused(status, said, None),
            None => self.broken(&said.message),
        }
    }

    pub(crate) fn broken(&self, message: &str) -> ModelError {
        ModelError::Broken { provider: self.provider.clone(), message: self.clean(message) }
    }

    /// A text of the provider's as it may be shown: no keys, nothing that a terminal obeys, one line, not too long.
    pub(crate) fn clean(&self, text: &str) -> String {
        // The keys go first, while they are still as they were sent; and last, should the rest have laid one bare.
        let text = self.scrub(text.to_owned());
        let text = strip_controls(&text);
        let text = self.scrub(text.split_whitespace().collect::<Vec<_>>().join(" "));
        let mut chars = text.chars();
        let mut out: String = chars.by_ref().take(LONGEST_MESSAGE).collect();
        if chars.next().is_some() {
            out.push('…');
        }
        if out.is_empty() { "no reason given".to_owned() } else { out }
    }

    fn scrub(&self, text: String) -> String {
        self.secrets.iter().fold(text, |text, secret| secret.scrub(&text))
    }
}

/// How long a provider asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date.
pub(crate) fn retry_after<'a>(header: impl Fn(&str) -> Option<&'a str>, now: SystemTime) -> Option<Duration> {
    let number = |name: &str| header(name)?.trim().parse::<f64>().ok().filter(|number| *number >= 0.0);
    if let Some(ms) = number("retry-after-ms") {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    if let Some(seconds) = number("retry-after") {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(header("retry-after")?.trim()).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who() -> Who {
        Who {
            provider: "acme".into(),
            key_variable: Some("ACME_KEY".into()),
            secrets: vec![Secret::new("sk-12345")],
        }
    }

    #[test]
    fn answers_become_errors_of_their_kind() {
        let provider = || "acme".to_owned();
        let rejected = |status, message: &str| ModelError::Rejected {
            provider: provider(),
            status,
            message: message.into(),
        };
        let too_long = |message: &str| ModelError::TooLong { provider: provider(), message: message.into() };
        let server = |status, message: &str| ModelError::Server {
            provider: provider(),
            status,
            retry_after: None,
            message: message.into(),
        };
        let limited = |message: &str| ModelError::RateLimited {
            provider: provider(),
            retry_after: None,
            message: message.into(),
        };
        let key = |message: &str| ModelError::Key {
            provider: provider(),
            variable: Some("ACME_KEY".into()),
            message: message.into(),
        };
        for (status, body, expected) in [
            (
                401,
                r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#,
                key("invalid x-api-key"),
            ),
            (
                403,
                r#"{"error":{"message":"Incorrect API key provided: sk-12345."}}"#,
                key("Incorrect API key provided: [key]."),
            ),
            (429, r#"{"error":{"message":"slow down","type":"requests"}}"#, limited("slow down")),
            (
                429,
                r#"{"error":{"message":"no money","code":"insufficient_quota"}}"#,
                rejected(429, "no money"),
            ),
            (500, "", server(500, "no reason given")),
            (502, "<html>Bad Gateway</html>", server(502, "the answer is a web page")),
            (
                529,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                server(529, "Overloaded"),
            ),
            (
                400,
                r#"{"error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
                too_long("prompt is too long: 210000 tokens > 200000 maximum"),
            ),
            (
                400,
                r#"{"error":{"code":"context_length_exceeded","message":"too much"}}"#,
                too_long("too much"),
            ),
            (
                400,
                r#"{"error":"This model's maximum context length is 8192 tokens"}"#,
                too_long("This model's maximum context length is 8192 tokens"),
            ),
            (413, "Request Entity Too Large", too_long("Request Entity Too Large")),
            (
                400,
                r#"[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]"#,
                rejected(400, "bad"),
            ),
            (404, r#"{"detail":"model not found"}"#, rejected(404, "model not found")),
            (400, "a\u{1b}[31mred\u{7} \n b", rejected(400, "ared b")),
            (400, "sk-1\u{7}2345", rejected(400, "[key]")),
        ] {
            assert_eq!(who().refused(status, &Said::of_body(body), None), expected, "{status} {body}");
        }
        let long = who().refused(400, &Said::of_body(&"x".repeat(10_000)), None).to_string();
        assert!(long.chars().count() < 500, "{long}");
    }

    #[test]
    fn the_wait_is_read_in_all_its_forms() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (headers, expected) in [
            (&[][..], None),
            (&[("retry-after", "3")], Some(Duration::from_secs(3))),
            (&[("retry-after", "0.5")], Some(Duration::from_millis(500))),
            (&[("retry-after-ms", "250"), ("retry-after", "3")], Some(Duration::from_millis(250))),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT")], Some(Duration::from_secs(3))),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT")], Some(Duration::ZERO)),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "-1")], None),
            (&[("retry-after", "1e300")], None),
        ] {
            let header = |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
            assert_eq!(retry_after(header, now), expected, "{headers:?}");
        }
    }
}
