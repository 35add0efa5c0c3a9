//! Whatever a conversation holds, both providers take what is made of it.

use std::collections::HashSet;

use proptest::prelude::*;
use segue_log::{AssistantPart, Block, Message, UserPart, note};
use segue_model::{Parameters, Request, anthropic, openai};
use segue_testkit::provider_check::{check_anthropic, check_openai};
use serde_json::{Value, json};

use crate::requests::{image, read_tool};

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just(" \n".to_owned()), Just("数字 🎼".to_owned()), ".{1,12}"]
}

fn any_block() -> impl Strategy<Value = Block> {
    prop_oneof![
        4 => any_text().prop_map(Block::text),
        1 => Just(image()),
        1 => Just(Block::Image { media_type: "image/tiff".into(), data: "AA".into() }),
        1 => Just(Block::Image { media_type: "image/png".into(), data: String::new() }),
        1 => (any_text(), proptest::option::of(any_text()))
            .prop_map(|(uri, text)| Block::Resource { uri, media_type: None, text }),
        1 => Just(Block::Unknown(json!({"type": "video"}))),
        1 => Just(Block::PartialRequest { tool: "x".into(), input: "y".into() }),
    ]
}

fn any_input() -> impl Strategy<Value = Value> {
    prop_oneof![Just(json!({"a": [1]})), Just(json!([1])), any_text().prop_map(Value::String)]
}

fn any_part() -> impl Strategy<Value = AssistantPart> {
    prop_oneof![
        any_text().prop_map(|text| AssistantPart::Text { text }),
        (any_text(), proptest::option::of(any_text()), proptest::option::of("[a-z]{3}"))
            .prop_map(|(text, signature, redacted)| AssistantPart::Thinking { text, signature, redacted }),
        ("[a-z.:0-9]{0,50}", any_text(), any_input())
            .prop_map(|(wire_id, tool, input)| AssistantPart::Request { wire_id, tool, input }),
    ]
}

fn any_result() -> impl Strategy<Value = (bool, Vec<Block>)> {
    (any::<bool>(), proptest::collection::vec(any_block(), 0..3))
}

/// What a round is made of: the model's name and parts, results to hand out, and what the user says after them.
type Round = (usize, Vec<AssistantPart>, Vec<(bool, Vec<Block>)>, Vec<Block>, bool);

fn any_round() -> impl Strategy<Value = Round> {
    (
        0..3usize,
        proptest::collection::vec(any_part(), 1..5),
        proptest::collection::vec(any_result(), 5),
        proptest::collection::vec(any_block(), 0..3),
        any::<bool>(),
    )
}

/// Makes a conversation that keeps what [`Message`] promises: ids unique, each request answered, the user last.
fn conversation(first: Vec<Block>, rounds: Vec<Round>) -> Vec<Message> {
    let mut used = HashSet::new();
    let mut messages = vec![Message::User { parts: first.into_iter().map(UserPart::Block).collect() }];
    for (model, parts, results, said, noted) in rounds {
        let parts: Vec<AssistantPart> = parts
            .into_iter()
            .filter(|part| match part {
                AssistantPart::Request { wire_id, .. } => used.insert(wire_id.clone()),
                _ => true,
            })
            .collect();
        let mut answers: Vec<UserPart> = parts
            .iter()
            .filter_map(|part| match part {
                AssistantPart::Request { wire_id, .. } => Some(wire_id.clone()),
                _ => None,
            })
            .zip(results)
            .map(|(wire_id, (error, content))| UserPart::Result { wire_id, error, content })
            .collect();
        answers.extend(said.into_iter().map(UserPart::Block));
        if noted {
            answers.push(UserPart::Note { text: note("late") });
        }
        let model =
            ["acme/claude-sonnet-4-5", "deepseek/v4", "openai/gpt"].get(model).map(|name| (*name).to_owned());
        messages.push(Message::Assistant { parts, model });
        messages.push(Message::User { parts: answers });
    }
    messages
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_body_is_one_that_its_provider_takes(
        first in proptest::collection::vec(any_block(), 1..3),
        rounds in proptest::collection::vec(any_round(), 0..4),
        system in any_text(),
        with_tools: bool,
        thinking_tokens in proptest::option::of(0..100_000u64),
    ) {
        let request = Request {
            system,
            messages: conversation(first, rounds),
            tools: if with_tools { vec![read_tool()] } else { vec![] },
            parameters: Parameters { thinking_tokens, temperature: Some(0.5), ..Parameters::default() },
        };
        for model in ["claude-sonnet-4-5", "claude-opus-5"] {
            let body = anthropic::body(&request, "acme", model);
            prop_assert_eq!(check_anthropic(&body), Ok(()), "{:#}", body);
        }
        for provider in ["openai", "deepseek", "acme"] {
            let body = openai::body(&request, provider, "m");
            prop_assert_eq!(check_openai(&body), Ok(()), "{:#}", body);
        }
    }
}
