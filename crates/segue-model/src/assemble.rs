//! Deltas put together into a message.

use segue_log::{Block, CallId, Usage};
use serde_json::{Map, Value};

use crate::model::{Delta, Stop};

/// Folds the deltas of one answer into the blocks of a message. The ids of its calls come from the closure it is given.
pub struct Assembler {
    parts: Vec<Part>,
    usage: Usage,
    stop: Option<Stop>,
    mint: Box<dyn FnMut() -> CallId + Send>,
    /// The part that the last piece was given out of.
    last_given: Option<usize>,
}

/// A message, whole or cut short.
#[derive(Debug, Clone, PartialEq)]
pub struct Assembled {
    /// Text, thinking, and requests: as [`Block::ToolRequest`] where the message is whole, else as [`Block::PartialRequest`].
    pub content: Vec<Block>,
    /// Tokens used, as far as the provider said.
    pub usage: Usage,
    /// Why the model stopped; none if it was cut off.
    pub stop: Option<Stop>,
}

/// A block that is being built, and how much of it [`Assembler::take_new`] has given out.
enum Part {
    Text { text: String, given: usize },
    Thinking { text: String, signature: Option<String>, redacted: Option<String>, given: usize, sealed: bool },
    Request { index: usize, provider_id: String, tool: String, json: String, given: usize, told: bool },
}

impl Assembler {
    /// An empty message.
    pub fn new(mint: impl FnMut() -> CallId + Send + 'static) -> Self {
        Self {
            parts: Vec::new(),
            usage: Usage::default(),
            stop: None,
            mint: Box::new(mint),
            last_given: None,
        }
    }

    /// Takes up a delta.
    pub fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Text(more) => match self.parts.last_mut() {
                Some(Part::Text { text, .. }) => text.push_str(&more),
                _ if more.is_empty() => {}
                _ => self.parts.push(Part::Text { text: more, given: 0 }),
            },
            Delta::Thinking(more) => match self.parts.last_mut() {
                Some(Part::Thinking { text, signature: None, redacted: None, .. }) => text.push_str(&more),
                _ if more.is_empty() => {}
                _ => self.parts.push(thinking(more, None, None)),
            },
            Delta::Signature(seal) => match self.parts.last_mut() {
                Some(Part::Thinking { signature, redacted: None, sealed: false, .. }) => {
                    signature.get_or_insert_default().push_str(&seal);
                }
                _ => self.parts.push(thinking(String::new(), Some(seal), None)),
            },
            Delta::Redacted(data) => self.parts.push(thinking(String::new(), None, Some(data))),
            Delta::Request { index, provider_id, tool } => {
                self.parts.push(Part::Request {
                    index,
                    provider_id,
                    tool,
                    json: String::new(),
                    given: 0,
                    told: false,
                });
            }
            Delta::RequestInput { index, json: more } => {
                let found = self.parts.iter_mut().rev().find_map(|part| match part {
                    Part::Request { index: at, json, .. } if *at == index => Some(json),
                    _ => None,
                });
                if let Some(json) = found {
                    json.push_str(&more);
                }
            }
            Delta::Usage(usage) => self.usage = usage,
            Delta::Stop(stop) => self.stop = Some(stop),
        }
    }

    /// True if nothing of the message's content has come.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Tokens used so far, as far as the provider said.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What came since the previous call, for a record of a message in the making. A piece of a request names the tool
    /// unless it goes on with the piece before it.
    pub fn take_new(&mut self) -> Vec<Block> {
        let mut out = Vec::new();
        for (at, part) in self.parts.iter_mut().enumerate() {
            if let Some(piece) = part.piece(self.last_given == Some(at)) {
                out.push(piece);
                self.last_given = Some(at);
            }
        }
        out
    }

    /// The whole message. Without a stop, and where the stop says that the answer is not all there or not to be acted
    /// on (`max_tokens`, a refusal), its requests are none: see [`Assembler::cut`].
    pub fn finish(self) -> Assembled {
        match self.stop {
            Some(Stop::End | Stop::Tools | Stop::Other(_)) => self.build(true),
            Some(Stop::MaxTokens | Stop::Refused) | None => self.build(false),
        }
    }

    /// The message as far as it came: every request of it was half made, as nobody can tell how it would have gone on.
    pub fn cut(mut self) -> Assembled {
        self.stop = None;
        self.build(false)
    }

    fn build(mut self, whole: bool) -> Assembled {
        let mut content = Vec::new();
        for part in std::mem::take(&mut self.parts) {
            match part {
                Part::Text { text, .. } if text.trim().is_empty() => {}
                Part::Text { text, .. } => content.push(Block::Text { text }),
                Part::Thinking { text, signature, redacted, .. } => {
                    content.push(Block::Thinking { text, signature, redacted });
                }
                Part::Request { provider_id, tool, json, .. } if whole => {
                    content.push(Block::ToolRequest {
                        call_id: (self.mint)(),
                        provider_id,
                        tool,
                        input: input(json),
                    });
                }
                Part::Request { tool, json, .. } => content.push(Block::PartialRequest { tool, input: json }),
            }
        }
        Assembled { content, usage: self.usage, stop: self.stop }
    }
}

impl Part {
    /// What has not been given out yet; `goes_on` if the last piece given out was this part's.
    fn piece(&mut self, goes_on: bool) -> Option<Block> {
        match self {
            Self::Text { text, given } => rest(text, given).map(|text| Block::Text { text }),
            Self::Thinking { text, signature, redacted, given, sealed } => {
                let more = rest(text, given);
                let has_seal = !*sealed && (signature.is_some() || redacted.is_some());
                *sealed |= has_seal;
                (more.is_some() || has_seal).then(|| Block::Thinking {
                    text: more.unwrap_or_default(),
                    signature: signature.clone().filter(|_| has_seal),
                    redacted: redacted.clone().filter(|_| has_seal),
                })
            }
            Self::Request { tool, json, given, told, .. } => {
                let is_first = !std::mem::replace(told, true);
                let more = rest(json, given);
                (is_first || more.is_some()).then(|| Block::PartialRequest {
                    tool: if goes_on { String::new() } else { tool.clone() },
                    input: more.unwrap_or_default(),
                })
            }
        }
    }
}

fn thinking(text: String, signature: Option<String>, redacted: Option<String>) -> Part {
    Part::Thinking { text, signature, redacted, given: 0, sealed: false }
}

fn rest(text: &str, given: &mut usize) -> Option<String> {
    let more = text.get(*given..).unwrap_or_default();
    *given = text.len();
    (!more.is_empty()).then(|| more.to_owned())
}

/// Arguments as JSON. Models that have none to give send nothing, or null. What is no JSON stays the text that it was,
/// and so does a JSON string, so that it can be sent back as it came.
fn input(json: String) -> Value {
    if json.trim().is_empty() {
        return Value::Object(Map::new());
    }
    match serde_json::from_str(&json) {
        Ok(Value::Null) => Value::Object(Map::new()),
        Ok(Value::String(_)) | Err(_) => Value::String(json),
        Ok(value) => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(text: &str) -> Delta {
        Delta::Text(text.into())
    }

    fn call(index: usize, id: &str, tool: &str) -> Delta {
        Delta::Request { index, provider_id: id.into(), tool: tool.into() }
    }

    fn args(index: usize, json: &str) -> Delta {
        Delta::RequestInput { index, json: json.into() }
    }

    fn assembler() -> Assembler {
        let mut number = 0;
        Assembler::new(move || {
            number += 1;
            format!("call_{number}").parse().unwrap()
        })
    }

    fn assemble(deltas: Vec<Delta>) -> Assembler {
        let mut assembler = assembler();
        deltas.into_iter().for_each(|delta| assembler.push(delta));
        assembler
    }

    fn request(number: u32, provider_id: &str, tool: &str, input: Value) -> Block {
        let call_id = format!("call_{number}").parse().unwrap();
        Block::ToolRequest { call_id, provider_id: provider_id.into(), tool: tool.into(), input }
    }

    fn partial(tool: &str, input: &str) -> Block {
        Block::PartialRequest { tool: tool.into(), input: input.into() }
    }

    fn thought(text: &str, signature: Option<&str>, redacted: Option<&str>) -> Block {
        Block::Thinking {
            text: text.into(),
            signature: signature.map(str::to_owned),
            redacted: redacted.map(str::to_owned),
        }
    }

    #[test]
    fn blocks_are_put_together_in_order() {
        let usage = Usage { input: 3, output: 4, ..Usage::default() };
        let whole = assemble(vec![
            Delta::Thinking("hm".into()),
            Delta::Thinking("m".into()),
            Delta::Signature("seal".into()),
            Delta::Thinking("again".into()),
            Delta::Redacted("x".into()),
            Delta::Signature("hidden".into()),
            text("a"),
            text("b"),
            call(0, "p0", "read"),
            call(1, "p1", "bash"),
            args(0, "{\"a\""),
            args(1, "{}"),
            args(0, ":1}"),
            text(" \n"),
            Delta::Usage(Usage::default()),
            Delta::Usage(usage),
            Delta::Stop(Stop::Tools),
        ]);
        assert_eq!(
            whole.finish(),
            Assembled {
                content: vec![
                    thought("hmm", Some("seal"), None),
                    thought("again", None, None),
                    thought("", None, Some("x")),
                    thought("", Some("hidden"), None),
                    Block::text("ab"),
                    request(1, "p0", "read", json!({"a": 1})),
                    request(2, "p1", "bash", json!({})),
                ],
                usage,
                stop: Some(Stop::Tools),
            }
        );
    }

    #[test]
    fn arguments_are_an_object_or_what_came() {
        for (json, expected) in [
            ("", json!({})),
            (" ", json!({})),
            ("null", json!({})),
            ("{\"a\":[1]}", json!({"a": [1]})),
            ("[1]", json!([1])),
            ("\"text\"", json!("\"text\"")),
            ("{\"a\":", json!("{\"a\":")),
            ("no json", json!("no json")),
        ] {
            let whole = assemble(vec![call(0, "", "t"), args(0, json), Delta::Stop(Stop::Tools)]);
            assert_eq!(whole.finish().content, [request(1, "", "t", expected)], "{json:?}");
        }
    }

    #[test]
    fn requests_of_a_message_cut_short_are_none() {
        let deltas =
            || vec![text("a"), call(0, "", "read"), args(0, "{}"), call(1, "", "bash"), args(1, "{\"c")];
        let content = vec![Block::text("a"), partial("read", "{}"), partial("bash", "{\"c")];
        let expected = |stop| Assembled { content: content.clone(), usage: Usage::default(), stop };
        assert_eq!(assemble(deltas()).cut(), expected(None));
        assert_eq!(assemble(deltas()).finish(), expected(None));
        for stop in [Stop::MaxTokens, Stop::Refused] {
            let mut assembler = assemble(deltas());
            assembler.push(Delta::Stop(stop.clone()));
            assert_eq!(assembler.finish(), expected(Some(stop)));
        }
    }

    #[test]
    fn pieces_are_given_once() {
        let mut it = assembler();
        let mut step = |deltas: Vec<Delta>, expected: Vec<Block>| {
            deltas.into_iter().for_each(|delta| it.push(delta));
            assert_eq!(it.take_new(), expected);
            assert_eq!(it.take_new(), []);
        };
        step(vec![], vec![]);
        step(vec![Delta::Thinking("a".into())], vec![thought("a", None, None)]);
        step(
            vec![Delta::Thinking("b".into()), Delta::Signature("s".into()), text("é")],
            vec![thought("b", Some("s"), None), Block::text("é")],
        );
        step(vec![text("1"), call(0, "", "read")], vec![Block::text("1"), partial("read", "")]);
        step(vec![args(0, "{\"a\":")], vec![partial("", "{\"a\":")]);
        step(vec![args(0, "1"), call(1, "", "bash")], vec![partial("", "1"), partial("bash", "")]);
        step(vec![args(0, "}"), args(1, "{}")], vec![partial("read", "}"), partial("bash", "{}")]);
        step(vec![args(1, " "), Delta::Stop(Stop::Tools)], vec![partial("", " ")]);
    }
}
