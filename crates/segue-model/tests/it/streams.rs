//! Answers, as they are read from a real socket.

use segue_log::Usage;
use segue_model::{Api, Delta, Stop};
use segue_testkit::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::requests::*;

/// Deltas with their pieces put together, so that they do not depend on where the server cut them.
fn joined(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut out: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (out.last_mut(), delta) {
            (Some(Delta::Text(text)), Delta::Text(more))
            | (Some(Delta::Thinking(text)), Delta::Thinking(more)) => {
                text.push_str(&more);
            }
            (Some(Delta::RequestInput { index, json }), Delta::RequestInput { index: at, json: more })
                if *index == at =>
            {
                json.push_str(&more);
            }
            (Some(Delta::Usage(usage)), Delta::Usage(more)) => *usage = more,
            (_, delta) => out.push(delta),
        }
    }
    // The first count of tokens says little; the last one counts.
    let last = out.iter().rposition(|delta| matches!(delta, Delta::Usage(_)));
    let mut n = 0;
    out.retain(|delta| {
        n += 1;
        !matches!(delta, Delta::Usage(_)) || Some(n - 1) == last
    });
    out
}

async fn check(api: Api, reply: Reply, expected: Vec<Delta>) {
    let server = ModelServer::start().await;
    server.push(reply.clone());
    let (deltas, error) = ask(&*model(&server, api, "acme"), &hello()).await;
    assert_eq!((joined(deltas), error), (joined(expected), None), "{api:?} {reply:?}");
}

fn usage(input: u64, output: u64, cache_read: u64, cache_write: u64) -> Delta {
    Delta::Usage(Usage { input, output, cache_read, cache_write })
}

fn says(text: &str) -> Delta {
    Delta::Text(text.into())
}

fn thinks(text: &str) -> Delta {
    Delta::Thinking(text.into())
}

fn seal(text: &str) -> Delta {
    Delta::Signature(text.into())
}

fn begins(index: usize, id: &str, tool: &str) -> Delta {
    Delta::Request { index, provider_id: id.into(), tool: tool.into() }
}

fn args(index: usize, json: &str) -> Delta {
    Delta::RequestInput { index, json: json.into() }
}

fn stops(stop: Stop) -> Delta {
    Delta::Stop(stop)
}

/// Everything at once: streamed, cut into chunks of any size, and in one piece.
#[tokio::test]
async fn answers_are_read_however_they_come() {
    let reply = || {
        Reply::new()
            .and_thinking("let me see")
            .and_text("Größe 数字 🎼 said")
            .and_call("read", json!({"path": "é"}))
            .and_call("list", json!({}))
            .usage(10, 20, 30, 40)
    };
    let anthropic = vec![
        thinks("let me see"),
        seal("seal of 10 bytes"),
        says("Größe 数字 🎼 said"),
        begins(0, "toolu_1_1", "read"),
        args(0, "{\"path\":\"é\"}"),
        begins(1, "toolu_1_2", "list"),
        args(1, "{}"),
        usage(10, 20, 30, 40),
        stops(Stop::Tools),
    ];
    let openai = vec![
        thinks("let me see"),
        says("Größe 数字 🎼 said"),
        begins(0, "call_1_1", "read"),
        args(0, "{\"path\":\"é\"}"),
        begins(1, "call_1_2", "list"),
        args(1, "{}"),
        usage(10, 20, 30, 0),
        stops(Stop::Tools),
    ];
    for form in [|reply: Reply| reply, |reply: Reply| reply.chunks(1), |reply: Reply| reply.chunks(7)] {
        check(Api::Anthropic, form(reply()), anthropic.clone()).await;
        check(Api::OpenAi, form(reply()), openai.clone()).await;
    }
    // In one piece, empty arguments come as an empty object, which says no more than none.
    let whole: Vec<Delta> = anthropic.into_iter().filter(|delta| *delta != args(1, "{}")).collect();
    check(Api::Anthropic, reply().plain(), whole.clone()).await;
    check(Api::Anthropic, reply().plain().chunks(3), whole).await;
    check(Api::OpenAi, reply().plain(), openai).await;
}

#[tokio::test]
async fn reasons_to_stop_are_told_apart() {
    for (word, expected) in [
        ("end_turn", Stop::End),
        ("stop_sequence", Stop::End),
        ("tool_use", Stop::Tools),
        ("max_tokens", Stop::MaxTokens),
        ("model_context_window_exceeded", Stop::MaxTokens),
        ("refusal", Stop::Refused),
        ("pause_turn", Stop::Other("pause_turn".into())),
        ("news", Stop::Other("news".into())),
    ] {
        check(
            Api::Anthropic,
            Reply::text("a").stop(word),
            vec![says("a"), usage(10, 5, 0, 0), stops(expected)],
        )
        .await;
    }
    for (word, expected) in [
        ("stop", Stop::End),
        ("length", Stop::MaxTokens),
        ("content_filter", Stop::Refused),
        ("tool_calls", Stop::End),
        ("news", Stop::Other("news".into())),
    ] {
        check(Api::OpenAi, Reply::text("a").stop(word), vec![says("a"), usage(10, 5, 0, 0), stops(expected)])
            .await;
    }
    let refused = vec![says("I will not"), usage(10, 5, 0, 0), stops(Stop::Refused)];
    check(Api::Anthropic, Reply::new().and_refusal("I will not"), refused.clone()).await;
    check(Api::OpenAi, Reply::new().and_refusal("I will not"), refused).await;
    let calls = vec![begins(0, "c", "t"), args(0, "{}"), usage(10, 5, 0, 0), stops(Stop::Tools)];
    check(Api::OpenAi, Reply::new().and_raw_call("c", "t", "{}").stop("stop"), calls).await;
}

#[tokio::test]
async fn hidden_thinking_is_kept() {
    let event = |value: Value| Reply::new().and_redacted("xyz").and_event(value);
    check(
        Api::Anthropic,
        event(json!({"type": "ping"})),
        vec![Delta::Redacted("xyz".into()), usage(10, 5, 0, 0), stops(Stop::End)],
    )
    .await;
    // Events that do not exist yet are passed over, as the API asks.
    check(
        Api::Anthropic,
        event(json!({"type": "from_the_future", "index": 9})),
        vec![Delta::Redacted("xyz".into()), usage(10, 5, 0, 0), stops(Stop::End)],
    )
    .await;
}

/// A stream of Chat Completions with these tool calls, one list a chunk.
fn openai_calls(chunks: &[Value]) -> Reply {
    chunks.iter().fold(Reply::new().stop("tool_calls"), |reply, calls| {
        reply.and_event(
            json!({"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": null}]}),
        )
    })
}

/// Endpoints differ in how they tell the pieces of one call from the next call.
#[tokio::test]
async fn calls_are_told_apart_whatever_the_endpoint_leaves_out() {
    let piece = |index: Option<u32>, id: Option<&str>, name: Option<&str>, arguments: Value| {
        let mut call = json!({"function": {"arguments": arguments}});
        if let Some(index) = index {
            call["index"] = json!(index);
        }
        if let Some(id) = id {
            call["id"] = json!(id);
        }
        if let Some(name) = name {
            call["function"]["name"] = json!(name);
        }
        call
    };
    let two = |first: &str, second: &str| {
        vec![
            begins(0, first, "a"),
            args(0, "{\"x\":1}"),
            begins(1, second, "b"),
            args(1, "{\"y\":2}"),
            usage(10, 5, 0, 0),
            stops(Stop::Tools),
        ]
    };
    // Both in one chunk, and as they should be.
    let together = json!([
        piece(Some(0), Some("p"), Some("a"), json!("{\"x\":1}")),
        piece(Some(1), Some("q"), Some("b"), json!("{\"y\":2}")),
    ]);
    check(Api::OpenAi, openai_calls(&[together]), two("p", "q")).await;
    // No index, the id only at the start.
    check(
        Api::OpenAi,
        openai_calls(&[
            json!([piece(None, Some("p"), Some("a"), json!("{\"x\""))]),
            json!([piece(None, None, None, json!(":1}"))]),
            json!([piece(None, Some("q"), Some("b"), json!("{\"y\":2}"))]),
        ]),
        two("p", "q"),
    )
    .await;
    // Index 0 for all, different ids.
    check(
        Api::OpenAi,
        openai_calls(&[
            json!([piece(Some(0), Some("p"), Some("a"), json!("{\"x\":1}"))]),
            json!([piece(Some(0), Some("q"), Some("b"), json!("{\"y\":2}"))]),
        ]),
        two("p", "q"),
    )
    .await;
    // The same id for all, and no index.
    check(
        Api::OpenAi,
        openai_calls(&[
            json!([piece(None, Some("p"), Some("a"), json!("{\"x\":1}"))]),
            json!([piece(None, Some("p"), Some("b"), json!("{\"y\":2}"))]),
        ]),
        two("p", "p"),
    )
    .await;
    // Neither id nor index; arguments as an object instead of text.
    check(
        Api::OpenAi,
        openai_calls(&[
            json!([piece(None, None, Some("a"), json!({"x": 1}))]),
            json!([piece(None, Some(""), Some("b"), json!({"y": 2}))]),
        ]),
        two("", ""),
    )
    .await;
    // Id and name in every piece.
    check(
        Api::OpenAi,
        openai_calls(&[
            json!([piece(Some(0), Some("p"), Some("a"), json!("{\"x\""))]),
            json!([piece(Some(0), Some("p"), Some("a"), json!(":1}"))]),
            json!([piece(Some(1), Some("q"), Some("b"), json!("{\"y\":2}"))]),
        ]),
        two("p", "q"),
    )
    .await;
    // The name after the id and the first arguments.
    check(
        Api::OpenAi,
        openai_calls(&[
            json!([piece(Some(0), Some("p"), None, json!("{\"x\""))]),
            json!([piece(Some(0), None, Some("a"), json!(":1}"))]),
            json!([piece(Some(1), Some("q"), Some("b"), json!("{\"y\":2}"))]),
        ]),
        two("p", "q"),
    )
    .await;
    // The same ids twice on the right indexes, as the test server sends them: they stay two calls.
    let repeated = Reply::new().and_raw_call("p", "a", "{\"x\":1}").and_raw_call("p", "b", "{\"y\":2}");
    check(Api::OpenAi, repeated.clone(), two("p", "p")).await;
    check(Api::Anthropic, repeated, two("p", "p")).await;
}

#[tokio::test]
async fn counts_of_other_endpoints_are_understood() {
    let event = json!({"choices": [], "usage": {
        "prompt_tokens": 100, "completion_tokens": 7, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40,
    }});
    let body = format!(
        "data: {}\n\ndata: {event}\n\ndata: [DONE]\n\n",
        json!({"choices": [{"delta": {"reasoning": "r", "content": "a"}, "finish_reason": "stop"}]})
    );
    check(
        Api::OpenAi,
        Reply::body(body),
        vec![thinks("r"), says("a"), usage(40, 7, 60, 0), stops(Stop::End)],
    )
    .await;
}

/// A connection that is dropped, hangs or closes after the reason to stop has come takes nothing from the answer.
#[tokio::test]
async fn an_answer_that_said_why_it_stopped_is_whole() {
    let finished = json!({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]});
    let stopped =
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}});
    let ends =
        [|reply: Reply| reply.then_end(), |reply: Reply| reply.then_drop(), |reply: Reply| reply.then_hang()];
    futures::future::join_all(ends.map(async |end| {
        let server = ModelServer::start().await;
        server.push(end(Reply::new().and_event(finished.clone())));
        let (deltas, error) = ask(&*impatient(&server, Api::OpenAi), &hello()).await;
        assert_eq!((deltas, error), (vec![says("a"), stops(Stop::End)], None));
        server.push(end(Reply::text("a").and_event(stopped.clone())));
        let (deltas, error) = ask(&*impatient(&server, Api::Anthropic), &hello()).await;
        assert_eq!((joined(deltas), error), (vec![says("a"), usage(10, 5, 0, 0), stops(Stop::End)], None));
    }))
    .await;
}
