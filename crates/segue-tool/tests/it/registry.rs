//! The check of calls, and results too large for a model.

use segue_log::{Block, Outcome, code};
use segue_tool::{ToolOutput, fit};
use serde_json::{Value, json};

use crate::bench::{Bench, told};

#[test]
fn wrong_calls_are_told_what_is_wrong_and_where() {
    let bench = Bench::new();
    let cases: Vec<(&str, Value, &str, &str)> = vec![
        ("raed", json!({}), code::UNKNOWN_TOOL, "there is no tool \"raed\"; did you mean read?"),
        (
            "compile",
            json!({}),
            code::UNKNOWN_TOOL,
            "there is no tool \"compile\"; there are: bash, edit, glob, grep, list, read, todo, write",
        ),
        (
            "read",
            json!("{\"path\": "),
            code::INVALID_INPUT,
            "the arguments of read are not JSON (EOF while parsing a value at line 1 column 9): {\"path\": ",
        ),
        ("read", json!("[1]"), code::INVALID_INPUT, "the arguments of read are not a JSON object: [1]"),
        (
            "read",
            json!("{}"),
            code::INVALID_INPUT,
            "the arguments of read are a string with JSON in it, not a JSON object: {}",
        ),
        ("read", json!([1]), code::INVALID_INPUT, "the arguments of read are not a JSON object: [1]"),
        (
            "read",
            json!({"offset": 0, "size": 1}),
            code::INVALID_INPUT,
            "the arguments of read do not fit its schema:\n- at /offset: 0 is less than the minimum of 1\n- Additional properties are not allowed ('size' was unexpected)\n- \"path\" is a required property",
        ),
        (
            "todo",
            json!({"items": [{"text": "a", "state": "done"}]}),
            code::INVALID_INPUT,
            "the arguments of todo do not fit its schema:\n- at /items/0/state: \"done\" is not one of \"pending\", \"in_progress\" or \"completed\"",
        ),
    ];
    for (tool, input, code, message) in cases {
        let failure = bench.tools.check(tool, &input).err().unwrap();
        assert_eq!((failure.code.as_str(), failure.message.as_str()), (code, message));
    }
    assert_eq!(bench.tools.check("read", &json!({"path": "a"})).ok().map(|tool| tool.name()), Some("read"));
}

#[test]
fn the_list_of_tools_is_the_same_each_time_and_every_schema_is_an_object() {
    let bench = Bench::new();
    let specs = bench.tools.specs();
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["bash", "edit", "glob", "grep", "list", "read", "todo", "write"]);
    assert!(specs.iter().all(|spec| spec.input_schema["type"] == "object" && !spec.description.is_empty()));
    assert_eq!(specs, Bench::new().tools.specs());
}

#[tokio::test]
async fn a_result_of_fifty_megabytes_goes_to_a_blob_and_its_ends_to_the_model() {
    let bench = Bench::new();
    let whole = "日本語 ".repeat(5_242_880);
    let whole = &whole[..50 * 1024 * 1024 - 10];
    let output = fit(ToolOutput::ok(whole), &*bench.host).await;
    let (hash, kept) = bench.only_blob();
    assert!(kept == whole.as_bytes());
    let (code, text) = told(&output);
    assert_eq!(code, "");
    let (head, rest) = text.split_once("\n[").unwrap();
    let (mark, tail) = rest.split_once("]\n").unwrap();
    assert!(whole.starts_with(head) && whole.ends_with(tail));
    let left_out = whole.len() - head.len() - tail.len();
    assert_eq!(mark, format!("{left_out} bytes left out here. The whole is kept as blob {hash}."));
    assert!(head.len() + tail.len() <= 100 * 1024 && head.len() + tail.len() > 99 * 1024);
}

#[tokio::test]
async fn results_that_fit_stay_as_they_are_and_an_empty_one_says_so() {
    let bench = Bench::new();
    let output = ToolOutput::error(code::FAILED, "x".repeat(100 * 1024));
    assert_eq!(fit(output.clone(), &*bench.host).await, output);
    let empty = ToolOutput { outcome: Outcome::Ok, code: None, content: Vec::new() };
    assert_eq!(fit(empty, &*bench.host).await, ToolOutput::ok("(nothing)"));
    let many = ToolOutput { content: vec![Block::text("y".repeat(60 * 1024)); 2], ..output };
    assert_eq!(fit(many, &*bench.host).await.content.len(), 1);
    assert_eq!(bench.only_blob().1.len(), 120 * 1024 + 1);
}
