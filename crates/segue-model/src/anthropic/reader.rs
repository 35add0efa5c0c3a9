//! Reads the answer to a Messages request.

use std::collections::VecDeque;

use segue_log::Usage;
use serde_json::Value;

use crate::failure::Said;
use crate::model::{Delta, Stop};
use crate::wire::{self, Fault};

/// What has been read of an answer.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    usage: Usage,
    stop: Option<Stop>,
    /// How many requests have begun.
    requests: usize,
    block: Option<Open>,
}

/// The block that is being streamed.
#[derive(Debug)]
enum Open {
    /// A request, the arguments that came with its start, and whether more have come since.
    Request {
        input: Value,
        has_more: bool,
    },
    Other,
}

impl wire::Reader for Reader {
    fn event(&mut self, data: &str, out: &mut VecDeque<Delta>) -> Result<bool, Fault> {
        let event: Value = serde_json::from_str(data)
            .map_err(|error| Fault::Garbage(format!("an event is no JSON: {error}")))?;
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.count(&event["message"]["usage"], out),
            "content_block_start" => {
                self.close(out);
                self.open(&event["content_block"], out);
            }
            "content_block_delta" => self.more(&event["delta"], out),
            "content_block_stop" => self.close(out),
            "message_delta" => {
                self.count(&event["usage"], out);
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    self.stop = Some(stop(reason));
                }
            }
            "message_stop" => return Ok(self.stop.is_some()),
            "error" => return Err(Fault::Said(Said::of_value(&event))),
            _ if event["error"].is_object() => return Err(Fault::Said(Said::of_value(&event))),
            // Pings, and events that are yet to be invented, which the API asks to pass over.
            _ => {}
        }
        Ok(false)
    }

    fn whole(&mut self, answer: &Value, out: &mut VecDeque<Delta>) -> Result<(), Fault> {
        if answer["type"] == "error" || answer["error"].is_object() {
            return Err(Fault::Said(Said::of_value(answer)));
        }
        let Some(content) = answer["content"].as_array() else {
            return Err(Fault::Garbage("a message without content came".into()));
        };
        for block in content {
            self.open(block, out);
            if let Some(seal) = block["signature"].as_str().filter(|seal| !seal.is_empty()) {
                out.push_back(Delta::Signature(seal.to_owned()));
            }
            self.close(out);
        }
        self.count(&answer["usage"], out);
        self.stop = answer["stop_reason"].as_str().map(stop);
        Ok(())
    }

    fn end(&mut self, out: &mut VecDeque<Delta>) -> Option<Stop> {
        let stop = self.stop.take()?;
        self.close(out);
        Some(stop)
    }
}

impl Reader {
    fn open(&mut self, block: &Value, out: &mut VecDeque<Delta>) {
        let text = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
        self.block = Some(Open::Other);
        match block["type"].as_str().unwrap_or_default() {
            "text" => push_text(Delta::Text, text("text"), out),
            "thinking" => push_text(Delta::Thinking, text("thinking"), out),
            "redacted_thinking" => out.push_back(Delta::Redacted(text("data"))),
            "tool_use" => {
                let index = self.requests;
                self.requests += 1;
                out.push_back(Delta::Request { index, provider_id: text("id"), tool: text("name") });
                self.block = Some(Open::Request { input: block["input"].clone(), has_more: false });
            }
            _ => {}
        }
    }

    fn more(&mut self, delta: &Value, out: &mut VecDeque<Delta>) {
        let text = |key: &str| delta[key].as_str().unwrap_or_default().to_owned();
        match delta["type"].as_str().unwrap_or_default() {
            "text_delta" => push_text(Delta::Text, text("text"), out),
            "thinking_delta" => push_text(Delta::Thinking, text("thinking"), out),
            "signature_delta" => push_text(Delta::Signature, text("signature"), out),
            "input_json_delta" => {
                let json = text("partial_json");
                if let (Some(Open::Request { has_more, .. }), false) = (&mut self.block, json.is_empty()) {
                    *has_more = true;
                    out.push_back(Delta::RequestInput { index: self.requests.saturating_sub(1), json });
                }
            }
            _ => {}
        }
    }

    /// Some servers give all arguments with the start of a request.
    fn close(&mut self, out: &mut VecDeque<Delta>) {
        if let Some(Open::Request { input, has_more: false }) = self.block.take()
            && !input.is_null()
            && input != Value::Object(serde_json::Map::new())
        {
            out.push_back(Delta::RequestInput {
                index: self.requests.saturating_sub(1),
                json: input.to_string(),
            });
        }
    }

    /// The counts are totals; later events leave out those that have not changed.
    fn count(&mut self, usage: &Value, out: &mut VecDeque<Delta>) {
        let before = self.usage;
        for (key, count) in [
            ("input_tokens", &mut self.usage.input),
            ("output_tokens", &mut self.usage.output),
            ("cache_read_input_tokens", &mut self.usage.cache_read),
            ("cache_creation_input_tokens", &mut self.usage.cache_write),
        ] {
            if let Some(tokens) = usage[key].as_u64() {
                *count = tokens;
            }
        }
        if self.usage != before {
            out.push_back(Delta::Usage(self.usage));
        }
    }
}

fn push_text(kind: fn(String) -> Delta, text: String, out: &mut VecDeque<Delta>) {
    if !text.is_empty() {
        out.push_back(kind(text));
    }
}

fn stop(reason: &str) -> Stop {
    match reason {
        "end_turn" | "stop_sequence" => Stop::End,
        "tool_use" => Stop::Tools,
        "max_tokens" | "model_context_window_exceeded" => Stop::MaxTokens,
        "refusal" => Stop::Refused,
        other => Stop::Other(other.to_owned()),
    }
}
