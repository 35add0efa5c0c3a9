//! What a command writes: the whole in a file that outlives this process, its two ends in memory for the model.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use crate::limit::KEEP_LIMIT;

/// Bytes of the start and of the end that the model is shown.
const END: usize = 15_000;

/// Output as it arrives.
#[derive(Debug, Default)]
pub(super) struct Output {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    file: Option<File>,
    /// Bytes of a character whose end has not come yet; for live output only.
    unfinished: Vec<u8>,
}

/// Output as the model is shown it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// The text, with a mark where something was left out.
    pub text: String,
    /// How many bytes were left out.
    pub left_out: u64,
    /// How many there were.
    pub total: u64,
}

impl Output {
    /// Output whose whole goes to a new file at `path`, too.
    pub fn kept_at(path: &Path) -> std::io::Result<Self> {
        Ok(Self { file: Some(File::create(path)?), ..Self::default() })
    }

    /// The output that an earlier process kept at `path`; empty if it kept none.
    pub fn read_back(path: &Path) -> Self {
        let mut output = Self::default();
        if let Ok(mut file) = File::open(path) {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = file.read(&mut buffer) {
                output.push(buffer.get(..read).unwrap_or_default());
            }
        }
        output
    }

    /// Takes what arrived and returns it as text for people who watch.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        if let Some(file) = &mut self.file {
            let room = (KEEP_LIMIT as u64).saturating_sub(self.total);
            let (kept, _) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            // Output that cannot be kept is no reason to break a running command; its ends are in memory.
            if file.write_all(kept).is_err() {
                self.file = None;
            }
        }
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(END - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let surplus = self.tail.len().saturating_sub(END);
        self.tail.drain(..surplus);
        self.live(bytes)
    }

    fn live(&mut self, bytes: &[u8]) -> String {
        self.unfinished.extend_from_slice(bytes);
        let end = self.unfinished.len() - unfinished_at_end(&self.unfinished);
        let rest = self.unfinished.split_off(end);
        String::from_utf8_lossy(&std::mem::replace(&mut self.unfinished, rest)).into_owned()
    }

    /// True if the model is not shown all of it.
    pub fn is_cut(&self) -> bool {
        self.total > (self.head.len() + self.tail.len()) as u64
    }

    /// What the model is shown, cut between characters.
    pub fn shown(&self) -> Shown {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if !self.is_cut() {
            let text = String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
            return Shown { text, left_out: 0, total: self.total };
        }
        let (head, _) = self.head.split_at(self.head.len() - unfinished_at_end(&self.head));
        let continued = tail.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        let (_, tail) = tail.split_at(continued);
        let left_out = self.total - (head.len() + tail.len()) as u64;
        let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
        Shown {
            text: format!("{head}\n[{left_out} bytes left out here]\n{tail}"),
            left_out,
            total: self.total,
        }
    }
}

/// How many bytes at the end begin a character that is not complete.
fn unfinished_at_end(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let Some(byte) = bytes.get(bytes.len() - back) else { break };
        if byte & 0xc0 == 0x80 {
            continue;
        }
        let needed = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        return if needed > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_text_has_whole_characters_only() {
        let mut output = Output::default();
        let pieces: Vec<String> =
            ["é".as_bytes(), b"a\xe6\x97", b"\xa5b", b"\xf0\x9f", b"\x98\x80", b"\xff!"]
                .iter()
                .map(|bytes| output.push(bytes))
                .collect();
        assert_eq!(pieces, ["é", "a", "日b", "", "😀", "\u{fffd}!"]);
    }

    #[test]
    fn only_the_ends_of_long_output_are_shown_and_no_character_is_split() {
        let mut output = Output::default();
        let text = format!("x{}", "日".repeat(20_000));
        for piece in text.as_bytes().chunks(777) {
            output.push(piece);
        }
        let shown = output.shown();
        assert!(!shown.text.contains('\u{fffd}'));
        let (head, tail) =
            shown.text.split_once(&format!("\n[{} bytes left out here]\n", shown.left_out)).unwrap();
        assert_eq!((head.len(), tail.len(), shown.total), (14_998, 15_000, 60_001));
        assert!(text.starts_with(head) && text.ends_with(tail));
    }

    #[test]
    fn short_output_is_shown_as_it_is() {
        let mut output = Output::default();
        output.push(b"a\xffb");
        assert_eq!(output.shown(), Shown { text: "a\u{fffd}b".to_owned(), left_out: 0, total: 3 });
    }
}
