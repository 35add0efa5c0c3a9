//! What goes wrong at the other end, and what is said of it.

use std::net::TcpListener;
use std::time::Duration;

use futures::StreamExt;
use segue_model::{Api, Delta, ModelError, ProviderConfig, Secret, connect};
use segue_testkit::{ModelServer, Reply};
use serde_json::json;

use crate::requests::*;

const BOTH: [Api; 2] = [Api::Anthropic, Api::OpenAi];

fn acme() -> String {
    "acme".into()
}

fn broken(message: &str) -> ModelError {
    ModelError::Broken { provider: acme(), message: message.into() }
}

fn server_error(status: u16, message: &str) -> ModelError {
    ModelError::Server { provider: acme(), status, retry_after: None, message: message.into() }
}

fn too_long(message: &str) -> ModelError {
    ModelError::TooLong { provider: acme(), message: message.into() }
}

fn rejected(status: u16, message: &str) -> ModelError {
    ModelError::Rejected { provider: acme(), status, message: message.into() }
}

fn key(message: &str) -> ModelError {
    ModelError::Key { provider: acme(), variable: Some("TEST_KEY".into()), message: message.into() }
}

fn text_of(deltas: &[Delta]) -> String {
    deltas.iter().map(|delta| if let Delta::Text(text) = delta { text.as_str() } else { "" }).collect()
}

/// The text that came before the error, and the error.
async fn failure(api: Api, reply: Reply) -> (String, Option<ModelError>) {
    let server = ModelServer::start().await;
    server.push(reply);
    let (deltas, error) = ask(&*impatient(&server, api), &hello()).await;
    assert!(
        !deltas.iter().any(|delta| matches!(delta, Delta::Stop(_))),
        "a failed answer stopped: {deltas:?}"
    );
    if let Some(error) = &error {
        assert!(!error.to_string().contains(KEY) && !format!("{error:?}").contains(KEY), "{error:?}");
    }
    (text_of(&deltas), error)
}

#[tokio::test]
async fn refusals_are_told_apart() {
    for api in BOTH {
        for (reply, expected) in [
            (Reply::refusal(401, "authentication_error", "invalid key"), key("invalid key")),
            (Reply::refusal(403, "permission_error", "not yours"), key("not yours")),
            (Reply::refusal(400, "invalid_request_error", "bad field"), rejected(400, "bad field")),
            (Reply::refusal(404, "not_found_error", "model: model-1"), rejected(404, "model: model-1")),
            (Reply::refusal(400, "context_length_exceeded", "no room"), too_long("no room")),
            (
                Reply::refusal(400, "invalid_request_error", "prompt is too long: 3 tokens > 2 maximum"),
                too_long("prompt is too long: 3 tokens > 2 maximum"),
            ),
            (Reply::error(413, "too large"), too_long("too large")),
            (Reply::error(500, ""), server_error(500, "Internal Server Error")),
            (Reply::error(502, "<html>bad gateway</html>"), server_error(502, "the answer is a web page")),
            (Reply::refusal(529, "overloaded_error", "Overloaded"), server_error(529, "Overloaded")),
            (
                Reply::error(307, "").header("location", "http://elsewhere/"),
                rejected(307, "it redirects to http://elsewhere/; is the base URL right?"),
            ),
            (Reply::error(500, "half an err").then_drop(), server_error(500, "half an err")),
        ] {
            assert_eq!(
                failure(api, reply.clone()).await,
                (String::new(), Some(expected)),
                "{api:?} {reply:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_wait_that_is_asked_for_is_passed_on() {
    for api in BOTH {
        let limited =
            |header: &str, value: &str| Reply::refusal(429, "rate_limit_error", "slow").header(header, value);
        for (reply, wait) in [
            (limited("retry-after", "7"), Duration::from_secs(7)),
            (limited("retry-after-ms", "1500"), Duration::from_millis(1500)),
            (limited("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), Duration::ZERO),
        ] {
            let expected =
                ModelError::RateLimited { provider: acme(), retry_after: Some(wait), message: "slow".into() };
            assert_eq!(failure(api, reply).await, (String::new(), Some(expected)));
        }
        let busy = failure(api, Reply::error(503, "busy").header("retry-after", "2")).await.1.unwrap();
        assert_eq!(busy.retry_after(), Some(Duration::from_secs(2)));
        assert!(busy.is_retryable());
    }
}

/// Some servers repeat the key that they refuse, and terminals obey what they are shown.
#[tokio::test]
async fn no_error_text_holds_a_key_or_obeys_the_server() {
    for api in BOTH {
        let message = format!("no such key: {KEY}\u{1b}[2J {}", "x".repeat(5000));
        let (_, error) = failure(api, Reply::refusal(401, "authentication_error", &message)).await;
        let expected = format!("no such key: [key] {}…", "x".repeat(400 - "no such key: [key] ".len()));
        assert_eq!(error, Some(key(&expected)));
        let (_, error) = failure(api, Reply::error(400, format!("{{\"unknown\":\"{KEY}\"}}"))).await;
        assert_eq!(error, Some(rejected(400, "{\"unknown\":\"[key]\"}")));
        let event =
            json!({"type": "error", "error": {"type": "api_error", "message": format!("with {KEY}")}});
        let (_, error) = failure(api, Reply::new().and_event(event).then_hang()).await;
        assert_eq!(error, Some(server_error(500, "with [key]")));
    }
    let server = ModelServer::start().await;
    let config = ProviderConfig {
        headers: vec![("x-token".into(), Secret::new("token-999"))],
        base_url: format!("{}/?v=2&sig=signed-888", server.url()),
        ..config(&server, Api::OpenAi, "acme")
    };
    server.push(Reply::error(400, format!("{KEY} token-999 signed-888 2")));
    let (_, error) = ask(&*connect(&config, "m", None).unwrap(), &hello()).await;
    assert_eq!(error, Some(rejected(400, "[key] [key] [key] 2")));
    assert_eq!(server.requests()[0].headers.get("x-token").map(String::as_str), Some("token-999"));
}

#[tokio::test]
async fn what_came_before_an_answer_broke_off_is_given() {
    for api in BOTH {
        let garbage = "an event is no JSON: expected value at line 1 column 1";
        for (reply, text, expected) in [
            (Reply::text("half an").then_end(), "half an", broken("it ended before it was whole")),
            (Reply::text("half an").and_raw("data: what\n\n").then_hang(), "half an", broken(garbage)),
            (
                Reply::text("half an").and_raw(b"data: \xff\xfe\n\n".to_vec()).then_hang(),
                "half an",
                broken("bytes that are no UTF-8 came"),
            ),
            (
                Reply::text("half an").and_raw(b"data: \xe6\x95".to_vec()).then_end(),
                "half an",
                broken("bytes that are no UTF-8 came"),
            ),
            (Reply::body(""), "", broken("it ended before it was whole")),
            (Reply::body("what is this?\n\n"), "", broken("it ended before it was whole")),
            (Reply::body("<html>login</html>"), "", broken("a web page came; is the base URL right?")),
            (
                Reply::body("{\"half\":"),
                "",
                broken("what came is no JSON: EOF while parsing a value at line 1 column 8"),
            ),
        ] {
            assert_eq!(failure(api, reply.clone()).await, (text.into(), Some(expected)), "{api:?} {reply:?}");
        }
        let (text, error) = failure(api, Reply::text("half an").then_drop()).await;
        assert!(matches!(error, Some(ModelError::Broken { .. })), "{error:?}");
        assert_eq!(text, "half an");
        let (_, error) = failure(api, Reply::dropped()).await;
        assert!(matches!(error, Some(ModelError::Broken { .. })), "{error:?}");
    }
    let (_, error) = failure(Api::Anthropic, Reply::body("{}")).await;
    assert_eq!(error, Some(broken("a message without content came")));
    let (_, error) = failure(Api::OpenAi, Reply::body("{}")).await;
    assert_eq!(error, Some(broken("an answer without a message came")));
    for reason in ["error", "insufficient_system_resource"] {
        let (text, error) = failure(Api::OpenAi, Reply::text("half").stop(reason)).await;
        assert_eq!(
            (text.as_str(), error),
            ("half", Some(broken(&format!("the provider stopped: {reason}"))))
        );
    }
    // The end of the stream is no reason to stop.
    let (text, error) =
        failure(Api::OpenAi, Reply::text("half").and_raw("data: [DONE]\n\n").then_hang()).await;
    assert_eq!((text.as_str(), error), ("half", Some(broken("it ended before it was whole"))));
}

#[tokio::test]
async fn errors_in_mid_stream_are_of_their_kind() {
    let error = |kind: &str| json!({"type": "error", "error": {"type": kind, "message": "oh"}});
    for api in BOTH {
        for (kind, expected) in [
            ("overloaded_error", server_error(529, "oh")),
            ("server_error", server_error(500, "oh")),
            (
                "rate_limit_error",
                ModelError::RateLimited { provider: acme(), retry_after: None, message: "oh".into() },
            ),
            ("authentication_error", key("oh")),
            ("context_length_exceeded", too_long("oh")),
            ("invalid_request_error", rejected(400, "oh")),
            ("never heard of", broken("oh")),
        ] {
            let (text, found) = failure(api, Reply::text("half").and_event(error(kind)).then_hang()).await;
            assert_eq!((text.as_str(), found), ("half", Some(expected)), "{api:?} {kind}");
            let whole = Reply::body(error(kind).to_string());
            assert!(failure(api, whole).await.1.is_some());
        }
    }
}

#[tokio::test]
async fn silence_is_a_time_out() {
    let replies =
        || [(Reply::silent(), ""), (Reply::new().then_hang(), ""), (Reply::text("half").then_hang(), "half")];
    let cases = BOTH.into_iter().flat_map(|api| replies().map(|(reply, text)| (api, reply, text)));
    futures::future::join_all(cases.map(async |(api, reply, text)| {
        let server = ModelServer::start().await;
        server.push(reply);
        let (deltas, error) = ask(&*impatient(&server, api), &hello()).await;
        let timed_out = ModelError::TimedOut { provider: acme(), after: SOON };
        assert_eq!((text_of(&deltas).as_str(), error), (text, Some(timed_out)));
    }))
    .await;
}

#[tokio::test]
async fn an_address_without_a_server_is_unreachable() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (base, url) in [
        (format!("http://{free}"), format!("http://{free}/v1/messages")),
        (format!("http://{free}/x?token=abc"), format!("http://{free}/x/v1/messages")),
    ] {
        let model = connect(&ProviderConfig::new("acme", Api::Anthropic, base), "m", None).unwrap();
        let (_, error) = ask(&*model, &hello()).await;
        let Some(ModelError::Unreachable { url: shown, message }) = error else { panic!("{error:?}") };
        assert_eq!(shown, url);
        assert!(message.contains("refused"), "{message}");
    }
}

/// Dropping the stream ends the request: the server's next write finds nobody.
#[tokio::test]
async fn a_dropped_stream_is_over_and_the_next_request_works() {
    for api in BOTH {
        let server = ModelServer::start().await;
        server.push(Reply::text("one two three").pace(Duration::from_millis(5)).then_hang());
        let model = model(&server, api, "acme");
        let mut stream = model.stream(&hello()).await.unwrap();
        while !matches!(stream.next().await.unwrap().unwrap(), Delta::Text(_)) {}
        drop(stream);
        server.push(Reply::text("again"));
        let (deltas, error) = ask(&*model, &hello()).await;
        assert_eq!((text_of(&deltas).as_str(), error), ("again", None));
    }
}

/// Without a script the server knows nothing but the request, so a right answer proves what was sent.
#[tokio::test]
async fn the_server_answers_from_the_conversation_alone() {
    for api in BOTH {
        let server = ModelServer::start().await;
        let model = model(&server, api, "acme");
        let past = vec![
            from_user(vec![block("remember the number 42")]),
            assistant("acme/x", vec![text("Noted: 42.")]),
            from_user(vec![block("what number did I name?"), noted("remember the number 7")]),
        ];
        let (deltas, _) = ask(&*model, &request(past)).await;
        assert_eq!(text_of(&deltas), "The number is 7.");
        let (deltas, _) = ask(&*model, &request(vec![user("what number did I name?")])).await;
        assert_eq!(text_of(&deltas), "I know no number.");
        let results = vec![
            user("use read {\"path\":\"a\"}"),
            assistant("acme/x", vec![call("c", "read", json!({"path": "a"}))]),
            from_user(vec![result("c", vec![segue_log::Block::text("inside a")]), noted("late")]),
        ];
        let (deltas, _) = ask(&*model, &request(results)).await;
        assert_eq!(text_of(&deltas), "Results: inside a");
        assert_eq!(server.wait_for_requests(3).await.len(), 3);
    }
}

/// Wherever an answer is cut, it is either whole already or known to be broken, and its text is a beginning of the whole.
#[tokio::test]
async fn an_answer_cut_at_any_byte_is_not_taken_for_whole() {
    let anthropic = [
        r#"{"type":"message_start","message":{"usage":{"input_tokens":1,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"grün 数字"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}"#,
        r#"{"type":"message_stop"}"#,
    ];
    let openai = [
        r#"{"choices":[{"index":0,"delta":{"content":"grün "},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"数字"},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ];
    let server = ModelServer::start().await;
    for (api, events, stop) in
        [(Api::Anthropic, &anthropic[..], "end_turn"), (Api::OpenAi, &openai[..], "\"stop\"")]
    {
        let model = model(&server, api, "acme");
        let bytes = events.iter().map(|data| format!("data: {data}\n\n")).collect::<String>().into_bytes();
        // The answer is whole once the event that says why it stopped is.
        let said = String::from_utf8_lossy(&bytes).find(stop).unwrap();
        let said = said + bytes[said..].iter().position(|byte| *byte == b'\n').unwrap();
        for cut in 0..=bytes.len() {
            server.push(Reply::body(&bytes[..cut]));
            let (deltas, error) = ask(&*model, &hello()).await;
            let stopped = matches!(deltas.last(), Some(Delta::Stop(_)));
            assert!("grün 数字".starts_with(&text_of(&deltas)), "cut at {cut}: {deltas:?}");
            if cut < said {
                assert!(
                    !stopped && matches!(error, Some(ModelError::Broken { .. })),
                    "cut at {cut}: {deltas:?} {error:?}"
                );
            } else if cut == bytes.len() {
                assert!(stopped && error.is_none(), "cut at {cut}: {error:?}");
            } else {
                assert_ne!(stopped, error.is_some(), "cut at {cut}: {deltas:?} {error:?}");
            }
        }
    }
}
