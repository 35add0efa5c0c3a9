//! What leaves the house: request bodies as they arrive on a real socket. The server refuses what a provider would.

use segue_log::{Block, Message};
use segue_model::{Api, Parameters, Request, anthropic, openai};
use segue_testkit::provider_check::{check_anthropic, check_openai};
use segue_testkit::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::requests::*;

/// The body that a request arrives as, which has to be one that the provider takes.
async fn sent(api: Api, provider: &str, request: &Request) -> Value {
    let server = ModelServer::start().await;
    server.push(Reply::text("ok"));
    let (_, error) = ask(&*model(&server, api, provider), request).await;
    assert_eq!((error, server.violations()), (None, vec![]), "{:#?}", server.bodies());
    server.bodies().remove(0)
}

/// Two rounds: one with thinking, two calls and a picture, and one that was cut short, with a note.
fn long() -> Request {
    let model = "acme/model-1";
    Request {
        system: "Be good.".into(),
        tools: vec![read_tool()],
        messages: vec![
            user("look"),
            assistant(
                model,
                vec![
                    thought("hm", Some("seal")),
                    redacted("hidden"),
                    text("I read."),
                    call("call_a", "read", json!({"path": "a"})),
                    call("call_b", "read", json!("{\"path\":")),
                ],
            ),
            from_user(vec![result("call_a", vec![Block::text("one"), image()]), failed("call_b", "no JSON")]),
            assistant(model, vec![thought("so", Some("seal2")), text("Done.")]),
            from_user(vec![block("and"), noted("something"), block("now?")]),
        ],
        ..Request::default()
    }
}

#[tokio::test]
async fn anthropic_is_sent_the_whole_conversation() {
    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        sent(Api::Anthropic, "acme", &long()).await,
        json!({
            "model": "model-1",
            "max_tokens": 32000,
            "stream": true,
            "system": [{"type": "text", "text": "Be good.", "cache_control": mark}],
            "tools": [{
                "name": "read",
                "description": "Reads a file.",
                "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
                "cache_control": mark,
            }],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "look"}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "seal"},
                    {"type": "redacted_thinking", "data": "hidden"},
                    {"type": "text", "text": "I read."},
                    {"type": "tool_use", "id": "call_a", "name": "read", "input": {"path": "a"}},
                    {"type": "tool_use", "id": "call_b", "name": "read", "input": {"invalid_json": "{\"path\":"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "call_a", "content": [
                        {"type": "text", "text": "one"},
                        {"type": "image", "source": {
                            "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=",
                        }},
                    ]},
                    {
                        "type": "tool_result", "tool_use_id": "call_b", "is_error": true,
                        "content": [{"type": "text", "text": "no JSON"}],
                        "cache_control": mark,
                    },
                ]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "so", "signature": "seal2"},
                    {"type": "text", "text": "Done."},
                ]},
                {"role": "user", "content": [
                    {"type": "text", "text": "and"},
                    {"type": "text", "text": "<segue-note>something</segue-note>"},
                    {"type": "text", "text": "now?", "cache_control": mark},
                ]},
            ],
        })
    );
}

#[tokio::test]
async fn openai_is_sent_the_whole_conversation() {
    assert_eq!(
        sent(Api::OpenAi, "openai", &long()).await,
        json!({
            "model": "model-1",
            "stream": true,
            "stream_options": {"include_usage": true},
            "tools": [{"type": "function", "function": {
                "name": "read",
                "description": "Reads a file.",
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            }}],
            "messages": [
                {"role": "system", "content": "Be good."},
                {"role": "user", "content": "look"},
                {"role": "assistant", "content": "I read.", "tool_calls": [
                    {"id": "call_a", "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"a\"}"}},
                    {"id": "call_b", "type": "function", "function": {"name": "read", "arguments": "{\"path\":"}},
                ]},
                {"role": "tool", "tool_call_id": "call_a", "content": "one"},
                {"role": "tool", "tool_call_id": "call_b", "content": "no JSON"},
                {"role": "user", "content": [
                    {"type": "text", "text": "Images from the result of call_a:"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                ]},
                {"role": "assistant", "content": "Done."},
                {"role": "user", "content": [
                    {"type": "text", "text": "and"},
                    {"type": "text", "text": "<segue-note>something</segue-note>"},
                    {"type": "text", "text": "now?"},
                ]},
            ],
        })
    );
}

#[tokio::test]
async fn keys_and_headers_arrive() {
    let server = ModelServer::start().await;
    for (api, header, value) in [
        (Api::Anthropic, "x-api-key", KEY.to_owned()),
        (Api::OpenAi, "authorization", format!("Bearer {KEY}")),
    ] {
        ask(&*model(&server, api, "acme"), &hello()).await;
        let request = server.requests().pop().unwrap();
        assert_eq!(request.headers.get(header), Some(&value));
        let version = request.headers.get("anthropic-version").map(String::as_str);
        assert_eq!(version, (api == Api::Anthropic).then_some("2023-06-01"));
    }
    let paths: Vec<String> = server.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/v1/messages", "/v1/chat/completions"]);
}

/// Checks the messages that a conversation is sent as.
async fn check(api: Api, provider: &str, messages: Vec<Message>, expected: Value) {
    let body = sent(api, provider, &request(messages)).await;
    let mut messages = body["messages"].clone();
    for block in
        messages.as_array_mut().unwrap().iter_mut().flat_map(|m| m["content"].as_array_mut()).flatten()
    {
        block.as_object_mut().unwrap().remove("cache_control");
    }
    assert_eq!(messages, expected);
}

#[tokio::test]
async fn reasoning_goes_back_where_it_came_from() {
    let round = |model: &str| {
        vec![
            user("one"),
            assistant(model, vec![thought("t1", None), text("a1")]),
            user("two"),
            assistant(model, vec![thought("t2", None), call("c", "read", json!({}))]),
            from_user(vec![result("c", vec![Block::text("r")])]),
            assistant(model, vec![thought("t3", None), text("a3")]),
            user("three"),
        ]
    };
    let call = json!([{"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}]);
    // DeepSeek refuses a round with calls that comes without its reasoning, and passes over that of other rounds.
    check(
        Api::OpenAi,
        "deepseek",
        round("deepseek/x"),
        json!([
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "a1"},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": null, "reasoning_content": "t2", "tool_calls": call},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
            {"role": "assistant", "content": "a3", "reasoning_content": "t3"},
            {"role": "user", "content": "three"},
        ]),
    )
    .await;
    // It also refuses calls of another model's without the field.
    check(
        Api::OpenAi,
        "deepseek",
        round("anthropic/x"),
        json!([
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "a1"},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": null, "reasoning_content": "", "tool_calls": call},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
            {"role": "assistant", "content": "a3", "reasoning_content": ""},
            {"role": "user", "content": "three"},
        ]),
    )
    .await;
    check(
        Api::OpenAi,
        "acme",
        round("deepseek/x"),
        json!([
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "a1"},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": null, "tool_calls": call},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
            {"role": "assistant", "content": "a3"},
            {"role": "user", "content": "three"},
        ]),
    )
    .await;
}

#[tokio::test]
async fn thinking_goes_to_its_provider_only_and_never_unsealed() {
    let with =
        |model: &str, thinking| vec![user("q"), assistant(model, vec![thinking, text("a")]), user("go")];
    let without = json!([
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
    ]);
    check(Api::Anthropic, "acme", with("other/x", thought("t", Some("s"))), without.clone()).await;
    check(Api::Anthropic, "acme", with("acme/x", thought("t", None)), without).await;
    // With nothing else said, what is left of the conversation stays in order.
    let alone = vec![user("q"), assistant("other/x", vec![thought("t", Some("s"))]), user("go")];
    check(
        Api::Anthropic,
        "acme",
        alone,
        json!([
            {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "go"}]},
        ]),
    )
    .await;
}

#[tokio::test]
async fn what_a_provider_would_refuse_is_put_otherwise() {
    let odd = || {
        vec![
            from_user(vec![
                block(" "),
                block("q"),
                noted("n"),
                segue_log::UserPart::Block(Block::Image {
                    media_type: "image/bmp".into(),
                    data: "AA".into(),
                }),
                segue_log::UserPart::Block(Block::Resource {
                    uri: "file:///a".into(),
                    media_type: None,
                    text: Some("inside".into()),
                }),
            ]),
            assistant(
                "kimi/x",
                vec![
                    call("functions.read:0", "no such tool!", json!([1])),
                    call(&"x".repeat(64), "", json!({})),
                ],
            ),
            from_user(vec![
                result("functions.read:0", vec![Block::text(" ")]),
                result(&"x".repeat(64), vec![image()]),
            ]),
        ]
    };
    let long = "x".repeat(64);
    check(Api::Anthropic, "acme", odd(), json!([
        {"role": "user", "content": [
            {"type": "text", "text": "q"},
            {"type": "text", "text": "<segue-note>n</segue-note>"},
            {"type": "text", "text": "[an image of type image/bmp that cannot be shown here]"},
            {"type": "text", "text": "<resource uri=\"file:///a\">\ninside\n</resource>"},
        ]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "call_0", "name": "no_such_tool_", "input": {"invalid_json": "[1]"}},
            {"type": "tool_use", "id": long, "name": "unknown", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "call_0", "content": [{"type": "text", "text": "(empty)"}]},
            {"type": "tool_result", "tool_use_id": long, "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
            ]},
        ]},
    ]))
    .await;
    check(Api::OpenAi, "acme", odd(), json!([
        {"role": "user", "content": "q\n\n<segue-note>n</segue-note>\n\n[an image of type image/bmp that cannot be shown here]\n\n<resource uri=\"file:///a\">\ninside\n</resource>"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "no_such_tool_", "arguments": "[1]"}},
            {"id": "call_1", "type": "function", "function": {"name": "unknown", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "call_0", "content": "(empty)"},
        {"role": "tool", "tool_call_id": "call_1", "content": "(the image follows)"},
        {"role": "user", "content": [
            {"type": "text", "text": "Images from the result of call_1:"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        ]},
    ]))
    .await;
}

#[test]
fn parameters_are_said_in_each_providers_words() {
    let parameters = Parameters {
        max_tokens: Some(500),
        temperature: Some(0.5),
        thinking_tokens: None,
        reasoning_effort: Some("high".into()),
    };
    let plain = Parameters { reasoning_effort: None, ..parameters.clone() };
    let thinking = Parameters { thinking_tokens: Some(2000), ..plain.clone() };
    let render = |api: Api, provider: &str, model: &str, parameters: &Parameters| {
        let request = Request { parameters: parameters.clone(), ..hello() };
        let mut body = match api {
            Api::Anthropic => anthropic::body(&request, provider, model),
            Api::OpenAi => openai::body(&request, provider, model),
        };
        let valid = if api == Api::Anthropic { check_anthropic(&body) } else { check_openai(&body) };
        assert_eq!(valid, Ok(()));
        let fields = body.as_object_mut().unwrap();
        for key in ["model", "stream", "stream_options", "messages"] {
            fields.remove(key);
        }
        body
    };
    for (api, provider, model, parameters, expected) in [
        (Api::Anthropic, "acme", "claude-sonnet-4-5", &plain, json!({"max_tokens": 500, "temperature": 0.5})),
        (
            Api::Anthropic,
            "acme",
            "claude-sonnet-4-5",
            &thinking,
            json!({"max_tokens": 2500, "thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ),
        // Later models refuse a budget.
        (
            Api::Anthropic,
            "acme",
            "claude-opus-5",
            &thinking,
            json!({"max_tokens": 500, "thinking": {"type": "adaptive"}}),
        ),
        (
            Api::Anthropic,
            "acme",
            "claude-opus-5",
            &parameters,
            json!({"max_tokens": 500, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        ),
        (
            Api::OpenAi,
            "openai",
            "gpt-5.5",
            &parameters,
            json!({"max_completion_tokens": 500, "temperature": 0.5, "reasoning_effort": "high"}),
        ),
        (Api::OpenAi, "acme", "x", &plain, json!({"max_tokens": 500, "temperature": 0.5})),
        (Api::OpenAi, "acme", "x", &Parameters::default(), json!({})),
    ] {
        assert_eq!(render(api, provider, model, parameters), expected, "{provider}/{model} {parameters:?}");
    }
}

/// A summary is asked for without tools, and calls in a history are refused where none are defined.
#[test]
fn a_history_with_calls_brings_its_tools_along() {
    let body = anthropic::body(&Request { tools: vec![], ..long() }, "acme", "model-1");
    assert_eq!(check_anthropic(&body), Ok(()));
    let tool = json!({
        "name": "read", "description": "", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"},
    });
    assert_eq!((&body["tools"], &body["tool_choice"]), (&json!([tool]), &json!({"type": "none"})));
    assert_eq!(anthropic::body(&hello(), "acme", "model-1")["tools"], Value::Null);
}

/// Turning thinking on in the middle of a round of calls is refused where the round began without.
#[test]
fn thinking_with_a_budget_waits_for_the_next_round() {
    let parameters = Parameters { thinking_tokens: Some(2000), ..Parameters::default() };
    let round = |thinking: Vec<_>| {
        let parts = [thinking, vec![call("c", "read", json!({}))]].concat();
        let messages =
            vec![user("q"), assistant("acme/x", parts), from_user(vec![result("c", vec![Block::text("r")])])];
        let request = Request { parameters: parameters.clone(), ..request(messages) };
        let body = anthropic::body(&request, "acme", "claude-sonnet-4-5");
        assert_eq!(check_anthropic(&body), Ok(()));
        body["thinking"].clone()
    };
    assert_eq!(round(vec![]), Value::Null);
    assert_eq!(round(vec![thought("t", Some("s"))]), json!({"type": "enabled", "budget_tokens": 2000}));
}

#[tokio::test]
async fn a_prompt_of_ten_megabytes_arrives_whole() {
    let prompt = "é".repeat(5 << 20);
    check(Api::OpenAi, "acme", vec![user(&prompt)], json!([{"role": "user", "content": prompt}])).await;
}
