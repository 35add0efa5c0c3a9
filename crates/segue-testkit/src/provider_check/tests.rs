use serde_json::{Value, json};

use super::{check_anthropic, check_openai};

type Change = (&'static str, fn(&mut Value));

/// Applies each change to a good body; an empty text says that it is still good, another one that it is found out so.
fn check(check: fn(&Value) -> Result<(), String>, good: &Value, changes: &[Change]) {
    assert_eq!(check(good), Ok(()));
    for (n, (expected, change)) in changes.iter().enumerate() {
        let mut body = good.clone();
        change(&mut body);
        match check(&body) {
            Ok(()) => assert!(expected.is_empty(), "change {n} was taken instead of {expected:?}: {body}"),
            Err(problem) => {
                assert!(
                    !expected.is_empty() && problem.contains(expected),
                    "change {n}: {problem:?}, not {expected:?}"
                );
            }
        }
    }
}

fn push(list: &mut Value, value: Value) {
    list.as_array_mut().unwrap().push(value);
}

#[test]
fn anthropic_bodies_good_and_bad() {
    let good = json!({
        "model": "m",
        "max_tokens": 4000,
        "system": [{"type": "text", "text": "be good", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "read", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "reading"},
                {"type": "tool_use", "id": "a", "name": "read", "input": {}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "one"},
                {"type": "tool_result", "tool_use_id": "b", "is_error": true, "content": [{"type": "text", "text": "two"}]},
                {"type": "text", "text": "go on"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ]},
        ],
    });
    check(
        check_anthropic,
        &good,
        &[
            ("model", |b| b["model"] = json!("")),
            ("max_tokens", |b| b["max_tokens"] = Value::Null),
            ("max_tokens", |b| b["max_tokens"] = json!(0)),
            ("system", |b| b["system"] = json!(" ")),
            ("", |b| b["system"] = json!("text")),
            ("tool name", |b| b["tools"][0]["name"] = json!("a b")),
            ("twice", |b| {
                let tool = b["tools"][0].clone();
                push(&mut b["tools"], tool);
            }),
            ("schema", |b| b["tools"][0]["input_schema"] = json!({})),
            ("must define tools", |b| b["tools"] = Value::Null),
            ("budget_tokens", |b| b["thinking"]["budget_tokens"] = json!(100)),
            ("budget_tokens", |b| b["thinking"]["budget_tokens"] = json!(4000)),
            ("temperature", |b| b["temperature"] = json!(0.5)),
            ("", |b| b["temperature"] = json!(1.0)),
            ("empty", |b| b["messages"] = json!([])),
            ("is due", |b| b["messages"][0]["role"] = json!("assistant")),
            ("is due", |b| b["messages"][2]["role"] = json!("system")),
            ("white space", |b| b["messages"][0]["content"] = json!(" \n")),
            ("empty", |b| b["messages"][0]["content"] = json!([])),
            ("end with a user", |b| push(&mut b["messages"], json!({"role": "assistant", "content": "x"}))),
            ("white space", |b| b["messages"][1]["content"][1]["text"] = json!(" ")),
            ("signature", |b| b["messages"][1]["content"][0]["signature"] = json!("")),
            ("start of the last", |b| {
                b["messages"][1]["content"].as_array_mut().unwrap().remove(0);
            }),
            ("", |b| {
                b["thinking"] = json!({"type": "adaptive"});
                b["messages"][1]["content"].as_array_mut().unwrap().remove(0);
            }),
            ("cannot be thinking", |b| {
                push(&mut b["messages"][1]["content"], json!({"type": "redacted_thinking", "data": "x"}));
            }),
            ("thinking takes no", |b| {
                b["messages"][1]["content"][0]["cache_control"] = json!({"type": "ephemeral"})
            }),
            ("pattern", |b| b["messages"][1]["content"][2]["id"] = json!("a.b")),
            ("unique", |b| b["messages"][1]["content"][3]["id"] = json!("a")),
            ("not an object", |b| b["messages"][1]["content"][2]["input"] = json!("raw")),
            ("no tool name", |b| b["messages"][1]["content"][2]["name"] = json!("")),
            ("has no tool_result", |b| {
                b["messages"][2]["content"].as_array_mut().unwrap().remove(1);
            }),
            ("second tool_result", |b| {
                let result = b["messages"][2]["content"][0].clone();
                b["messages"][2]["content"].as_array_mut().unwrap().insert(0, result);
            }),
            ("no tool_use", |b| b["messages"][2]["content"][0]["tool_use_id"] = json!("z")),
            ("after other content", |b| b["messages"][2]["content"].as_array_mut().unwrap().swap(1, 2)),
            ("without tool_result", |b| b["messages"][2]["content"] = json!("go on")),
            ("missing", |b| b["messages"][2]["content"][1]["content"] = json!("")),
            ("image", |b| b["messages"][2]["content"][3]["source"]["media_type"] = json!("image/bmp")),
            ("Base64", |b| b["messages"][2]["content"][3]["source"]["data"] = json!("é")),
            ("found 5", |b| {
                b["tools"][0]["cache_control"] = json!({"type": "ephemeral"});
                for n in 0..3 {
                    b["messages"][2]["content"][n]["cache_control"] = json!({"type": "ephemeral"});
                }
            }),
        ],
    );
}

#[test]
fn openai_bodies_good_and_bad() {
    let call =
        |id: &str| json!({"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}});
    let good = json!({
        "model": "m",
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_completion_tokens": 10,
        "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": "two"},
            {"role": "tool", "tool_call_id": "a", "content": ""},
            {"role": "user", "content": [
                {"type": "text", "text": "go on"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ]},
        ],
    });
    check(
        check_openai,
        &good,
        &[
            ("model", |b| b["model"] = Value::Null),
            ("stream_options", |b| b["stream"] = json!(false)),
            ("max_tokens", |b| b["max_tokens"] = json!(3)),
            ("positive", |b| b["max_completion_tokens"] = json!(-1)),
            ("between", |b| b["temperature"] = json!(3)),
            ("function name", |b| b["tools"][0]["function"]["name"] = json!("a.b")),
            ("schema", |b| b["tools"][0]["function"]["parameters"] = Value::Null),
            ("empty", |b| b["tools"] = json!([])),
            ("empty", |b| b["messages"][1]["content"] = json!("")),
            ("neither", |b| b["messages"][2]["tool_calls"] = Value::Null),
            ("empty", |b| b["messages"][2]["tool_calls"] = json!([])),
            ("unique", |b| b["messages"][2]["tool_calls"][1]["id"] = json!("a")),
            ("longer than 40", |b| b["messages"][2]["tool_calls"][1]["id"] = json!("x".repeat(41))),
            ("not text", |b| b["messages"][2]["tool_calls"][0]["function"]["arguments"] = json!({})),
            ("no answer before it", |b| {
                b["messages"].as_array_mut().unwrap().remove(3);
            }),
            ("answers no open", |b| b["messages"][4]["tool_call_id"] = json!("b")),
            ("have no answer", |b| b["messages"].as_array_mut().unwrap().truncate(4)),
            ("", |b| b["messages"].as_array_mut().unwrap().truncate(5)),
            ("ends with", |b| push(&mut b["messages"], json!({"role": "assistant", "content": "x"}))),
            ("not known", |b| b["messages"][1]["role"] = json!("human")),
            ("image", |b| b["messages"][5]["content"][1]["image_url"]["url"] = json!("file:///x")),
        ],
    );
}
