//! Server-sent events, as far as models use them: the data of each event.

/// The longest line taken, in bytes; longer ones are no answer of a model.
const LONGEST_LINE: usize = 64 << 20;

/// Cuts a stream of bytes into the data of its events. Chunks may end anywhere, in the middle of a character too.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    buffer: Vec<u8>,
    /// Up to here the buffer holds no line's end.
    scanned: usize,
    /// The data of the event that is being read; none before its first `data` line.
    data: Option<String>,
    begun: bool,
}

/// Bytes that are no event stream.
#[derive(Debug, PartialEq)]
pub(crate) struct Garbage(pub(crate) &'static str);

impl Decoder {
    /// Takes up bytes and gives the events that they complete; what came before garbage counts.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> (Vec<String>, Result<(), Garbage>) {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        let mut start = 0;
        let result = loop {
            let from = self.scanned.max(start);
            let Some(length) = self.buffer.get(from..).and_then(|rest| rest.iter().position(|b| *b == b'\n'))
            else {
                break if self.buffer.len() - start > LONGEST_LINE {
                    Err(Garbage("a line without end"))
                } else {
                    Ok(())
                };
            };
            let end = from + length;
            let line = self.buffer.get(start..end).unwrap_or_default().to_vec();
            start = end + 1;
            if let Err(garbage) = self.line(&line, &mut events) {
                break Err(garbage);
            }
        };
        self.buffer.drain(..start);
        self.scanned = self.buffer.len();
        (events, result)
    }

    /// The stream is over: the event that was not ended by an empty line, if there is one.
    pub(crate) fn finish(&mut self) -> (Vec<String>, Result<(), Garbage>) {
        let mut events = Vec::new();
        let rest = std::mem::take(&mut self.buffer);
        self.scanned = 0;
        let result = self.line(&rest, &mut events).and_then(|()| self.line(b"", &mut events));
        (events, result)
    }

    fn line(&mut self, line: &[u8], events: &mut Vec<String>) -> Result<(), Garbage> {
        let line = std::str::from_utf8(line).map_err(|_| Garbage("bytes that are no UTF-8"))?;
        let line = line.strip_suffix('\r').unwrap_or(line);
        let line =
            if std::mem::replace(&mut self.begun, true) { line } else { line.trim_start_matches('\u{feff}') };
        if line.is_empty() {
            events.extend(self.data.take());
        } else if let Some(value) = line.strip_prefix("data:").or_else(|| (line == "data").then_some("")) {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever way the bytes are cut into chunks, the events are the same.
    fn check(bytes: &[u8], expected: &[&str], result: Result<(), Garbage>) {
        for size in 1..=bytes.len().max(1) {
            let mut decoder = Decoder::default();
            let mut events = Vec::new();
            let mut outcome = Ok(());
            for chunk in bytes.chunks(size) {
                let (more, result) = decoder.push(chunk);
                events.extend(more);
                outcome = result;
                if outcome.is_err() {
                    break;
                }
            }
            if outcome.is_ok() {
                let (more, result) = decoder.finish();
                events.extend(more);
                outcome = result;
            }
            assert_eq!(
                (events, &outcome),
                (expected.iter().map(|e| (*e).to_owned()).collect(), &result),
                "chunks of {size}"
            );
        }
    }

    #[test]
    fn events_are_cut_out_however_the_chunks_fall() {
        check(b"", &[], Ok(()));
        check(b"data: a\n\ndata:b\n\n", &["a", "b"], Ok(()));
        check(
            b"\xef\xbb\xbfdata: a\r\n\r\n: ping\r\nevent: x\r\ndata: 1\r\ndata: 2\r\n\r\n",
            &["a", "1\n2"],
            Ok(()),
        );
        check("data: é数\n\ndata: 🎼\n\n".as_bytes(), &["é数", "🎼"], Ok(()));
        check(b"id: 7\nretry: 3\nnonsense\n\ndata: last", &["last"], Ok(()));
        check(b"data\n\n\n\n", &[""], Ok(()));
        check(b"data: a\n\ndata: \xff\n\ndata: b\n\n", &["a"], Err(Garbage("bytes that are no UTF-8")));
        check(b"data: a\n\n\xc3", &["a"], Err(Garbage("bytes that are no UTF-8")));
    }
}
