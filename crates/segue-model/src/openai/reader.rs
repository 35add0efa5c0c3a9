//! Reads the answer to a Chat Completions request.

use std::collections::VecDeque;

use segue_log::Usage;
use serde_json::Value;

use crate::failure::Said;
use crate::model::{Delta, Stop};
use crate::wire::{self, Fault};

/// What has been read of an answer.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    calls: Vec<Call>,
    stop: Option<Stop>,
    refused: bool,
}

/// A tool call that is being streamed.
#[derive(Debug)]
struct Call {
    /// The endpoint's own index; several calls can have the same.
    index: Option<u64>,
    id: String,
    tool: String,
    json: String,
    /// True once the request has been given out, which waits for the tool's name.
    told: bool,
}

impl wire::Reader for Reader {
    fn event(&mut self, data: &str, out: &mut VecDeque<Delta>) -> Result<bool, Fault> {
        if data.trim() == "[DONE]" {
            return Ok(true);
        }
        let chunk: Value = serde_json::from_str(data)
            .map_err(|error| Fault::Garbage(format!("an event is no JSON: {error}")))?;
        self.check(&chunk)?;
        self.choice(&chunk["choices"][0], "delta", out)?;
        count(&chunk, out);
        // The count of tokens comes after the reason to stop, so the end is the stream's.
        Ok(false)
    }

    fn whole(&mut self, answer: &Value, out: &mut VecDeque<Delta>) -> Result<(), Fault> {
        self.check(answer)?;
        let choice = &answer["choices"][0];
        if !choice["message"].is_object() {
            return Err(Fault::Garbage("an answer without a message came".into()));
        }
        self.choice(choice, "message", out)?;
        count(answer, out);
        Ok(())
    }

    fn end(&mut self, out: &mut VecDeque<Delta>) -> Option<Stop> {
        let stop = self.stop.take()?;
        for (index, call) in self.calls.iter_mut().enumerate() {
            call.tell(index, out);
        }
        Some(match stop {
            Stop::End | Stop::Tools if self.refused => Stop::Refused,
            // Not every endpoint says that it stopped for calls, and some say so without any.
            Stop::End if !self.calls.is_empty() => Stop::Tools,
            Stop::Tools if self.calls.is_empty() => Stop::End,
            stop => stop,
        })
    }
}

impl Reader {
    fn check(&self, value: &Value) -> Result<(), Fault> {
        match &value["error"] {
            Value::Null if value.is_object() => Ok(()),
            Value::Null => Err(Fault::Garbage("an event is no JSON object".into())),
            _ => Err(Fault::Said(Said::of_value(value))),
        }
    }

    fn choice(&mut self, choice: &Value, key: &str, out: &mut VecDeque<Delta>) -> Result<(), Fault> {
        let delta = &choice[key];
        let reasoning = delta["reasoning_content"].as_str().or(delta["reasoning"].as_str());
        if let Some(text) = reasoning.filter(|text| !text.is_empty()) {
            out.push_back(Delta::Thinking(text.to_owned()));
        }
        // Some endpoints give a list of parts instead of text.
        let parts = delta["content"].as_array().into_iter().flatten().map(|part| &part["text"]);
        for text in parts.chain([&delta["content"]]).filter_map(Value::as_str).filter(|text| !text.is_empty())
        {
            out.push_back(Delta::Text(text.to_owned()));
        }
        if let Some(text) = delta["refusal"].as_str().filter(|text| !text.is_empty()) {
            self.refused = true;
            out.push_back(Delta::Text(text.to_owned()));
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(call, out);
        }
        match choice["finish_reason"].as_str() {
            None | Some("") => {}
            // So DeepSeek and gateways say that they broke off.
            Some(reason @ ("error" | "insufficient_system_resource")) => {
                return Err(Fault::Garbage(format!("the provider stopped: {reason}")));
            }
            Some(reason) => self.stop = Some(stop(reason)),
        }
        Ok(())
    }

    fn call(&mut self, piece: &Value, out: &mut VecDeque<Delta>) {
        let function = &piece["function"];
        let index = piece["index"].as_u64();
        let id = piece["id"].as_str().unwrap_or_default();
        let tool = function["name"].as_str().unwrap_or_default();
        let json = match &function["arguments"] {
            Value::String(json) => json.clone(),
            Value::Null => String::new(),
            value => value.to_string(),
        };
        let at = self.continued(index, id, tool, &json).unwrap_or_else(|| {
            let (id, tool) = (id.to_owned(), tool.to_owned());
            self.calls.push(Call { index, id, tool, json: String::new(), told: false });
            self.calls.len() - 1
        });
        let Some(call) = self.calls.get_mut(at) else { return };
        if call.id.is_empty() {
            call.id = id.to_owned();
        }
        if call.tool.is_empty() {
            call.tool = tool.to_owned();
        }
        if call.told && !json.is_empty() {
            out.push_back(Delta::RequestInput { index: at, json: json.clone() });
        }
        call.json.push_str(&json);
        if !call.tool.is_empty() {
            call.tell(at, out);
        }
    }

    /// Which call a piece goes on with; none if it begins another. The index should tell, but there are endpoints that
    /// leave it out, give the same one to every call, or repeat id and name in every piece.
    fn continued(&self, index: Option<u64>, id: &str, tool: &str, json: &str) -> Option<usize> {
        let (at, call) = match index {
            Some(_) => self.calls.iter().enumerate().rev().find(|(_, call)| call.index == index)?,
            None => self.calls.iter().enumerate().next_back()?,
        };
        let other_id = !id.is_empty() && !call.id.is_empty() && id != call.id;
        let begins_anew = !tool.is_empty() && !json.is_empty() && is_complete(&call.json);
        (!other_id && !begins_anew).then_some(at)
    }
}

impl Call {
    /// Gives out the request and what came of its arguments before its name was known.
    fn tell(&mut self, index: usize, out: &mut VecDeque<Delta>) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        out.push_back(Delta::Request { index, provider_id: self.id.clone(), tool: self.tool.clone() });
        if !self.json.is_empty() {
            out.push_back(Delta::RequestInput { index, json: self.json.clone() });
        }
    }
}

fn is_complete(json: &str) -> bool {
    serde_json::from_str::<Value>(json).is_ok_and(|value| value.is_object())
}

/// OpenAI counts what its cache held as part of the prompt; DeepSeek says so in its own words.
fn count(chunk: &Value, out: &mut VecDeque<Delta>) {
    let usage = &chunk["usage"];
    if !usage.is_object() {
        return;
    }
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    let cache_read = number(if cached.is_u64() { cached } else { &usage["prompt_cache_hit_tokens"] });
    out.push_back(Delta::Usage(Usage {
        input: number(&usage["prompt_tokens"]).saturating_sub(cache_read),
        output: number(&usage["completion_tokens"]),
        cache_read,
        cache_write: 0,
    }));
}

fn stop(reason: &str) -> Stop {
    match reason {
        "stop" => Stop::End,
        "tool_calls" | "function_call" => Stop::Tools,
        "length" => Stop::MaxTokens,
        "content_filter" => Stop::Refused,
        other => Stop::Other(other.to_owned()),
    }
}
