//! The file `synced`: the highest durable seq, kept beside the log. It is overwritten after each sync of the log and
//! not synced itself, so it can be too low, never too high.

use segue_log::Seq;

/// The file's name.
pub(super) const NAME: &str = "synced";
const LEN: usize = 30;

/// The file's content: 20 digits, a blank, their CRC-32C in hex, a newline. Always of one length, so that an
/// overwrite needs no truncation.
pub(super) fn encode(seq: Seq) -> String {
    let digits = format!("{seq:020}");
    let crc = crc32c::crc32c(digits.as_bytes());
    format!("{digits} {crc:08x}\n")
}

/// Reads the file's content; 0, which is always safe, for anything that is not whole.
pub(super) fn decode(bytes: &[u8]) -> Seq {
    std::str::from_utf8(bytes)
        .ok()
        .filter(|text| text.len() == LEN)
        .and_then(|text| text.get(..20))
        .and_then(|digits| digits.parse().ok())
        .filter(|seq| encode(*seq).as_bytes() == bytes)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_file_counts() {
        for seq in [0, 1, 42, u64::MAX] {
            let text = encode(seq);
            assert_eq!((text.len(), decode(text.as_bytes())), (LEN, seq));
            for at in 0..LEN {
                let mut bad = text.clone().into_bytes();
                bad[at] ^= 1;
                assert_eq!(decode(&bad), 0, "byte {at} of {text:?}");
                assert_eq!(decode(&text.as_bytes()[..at]), 0, "cut at {at}");
            }
        }
    }
}
