//! Results that are too large for a model: head and tail stay, the whole goes into a blob.

use segue_log::Block;

use crate::tool::{ToolHost, ToolOutput};

/// The most bytes of text that one result brings to the model.
pub const RESULT_LIMIT: usize = 100 * 1024;

/// The most bytes of one result that are kept at all.
pub const KEEP_LIMIT: usize = 50 * 1024 * 1024;

/// The most Base64 characters of an image that providers take.
pub(crate) const IMAGE_LIMIT: usize = 5 * 1024 * 1024;

/// Cuts a result down to [`RESULT_LIMIT`] bytes of text and to images that providers take. What was left out is kept
/// as a blob whose hash stands in the text. Every result goes through this once, whichever tool made it.
pub async fn fit(mut output: ToolOutput, host: &dyn ToolHost) -> ToolOutput {
    if output.content.is_empty() {
        output.content.push(Block::text("(nothing)"));
    }
    for block in &mut output.content {
        if let Block::Image { media_type, data } = block
            && data.len() > IMAGE_LIMIT
        {
            let told =
                format!("[an image ({media_type}) too large to be shown: {} bytes of Base64]", data.len());
            let bytes = std::mem::take(data).into_bytes();
            let total = bytes.len() as u64;
            let kept = keep(bytes, total, host).await;
            *block = Block::text(format!("{told} {kept}"));
        }
    }
    let total: usize = output.content.iter().filter_map(text_in).map(str::len).sum();
    if total <= RESULT_LIMIT {
        return output;
    }
    let (texts, mut rest): (Vec<_>, Vec<_>) =
        output.content.into_iter().partition(|block| text_in(block).is_some());
    let whole = texts.iter().filter_map(text_in).collect::<Vec<_>>().join("\n");
    drop(texts);
    let (head, tail) = head_and_tail(&whole, RESULT_LIMIT);
    let left_out = whole.len() - head.len() - tail.len();
    let (head, tail) = (head.to_owned(), tail.to_owned());
    let total = whole.len() as u64;
    let kept = keep(whole.into_bytes(), total, host).await;
    rest.insert(0, Block::text(format!("{head}\n[{left_out} bytes left out here. {kept}]\n{tail}")));
    output.content = rest;
    output
}

fn text_in(block: &Block) -> Option<&str> {
    match block {
        Block::Text { text } => Some(text),
        Block::Resource { text: Some(text), .. } => Some(text),
        _ => None,
    }
}

/// Keeps the first of `total` bytes as a blob, as many as there are in `bytes` and may be kept, and says so in a sentence.
pub(crate) async fn keep(mut bytes: Vec<u8>, total: u64, host: &dyn ToolHost) -> String {
    bytes.truncate(KEEP_LIMIT);
    let kept = bytes.len();
    let dropped = total.saturating_sub(kept as u64);
    match host.put_blob(bytes).await {
        Ok(hash) if dropped == 0 => format!("The whole is kept as blob {hash}."),
        Ok(hash) => {
            format!("The first {kept} bytes are kept as blob {hash}; the last {dropped} were dropped.")
        }
        Err(failure) => format!("The rest could not be kept: {failure}."),
    }
}

/// The two ends of `text` that together have at most `limit` bytes, cut between characters.
pub(crate) fn head_and_tail(text: &str, limit: usize) -> (&str, &str) {
    if text.len() <= limit {
        return (text, "");
    }
    let (head, _) = text.split_at(text.floor_char_boundary(limit / 2));
    let (_, tail) = text.split_at(text.ceil_char_boundary(text.len() - (limit - limit / 2)));
    (head, tail)
}

/// At most `limit` bytes of `text`, cut between characters, with a mark where something is missing.
pub(crate) fn clip(text: &str, limit: usize) -> std::borrow::Cow<'_, str> {
    if text.len() <= limit {
        return text.into();
    }
    let (head, _) = text.split_at(text.floor_char_boundary(limit));
    format!("{head}… [{} bytes more]", text.len() - head.len()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_cut_between_characters() {
        for (text, limit, expected) in [
            ("short", 5, ("short", "")),
            ("abcdefgh", 4, ("ab", "gh")),
            ("ééééé", 5, ("é", "é")),
            ("日本語日本語", 7, ("日", "語")),
        ] {
            assert_eq!(head_and_tail(text, limit), expected, "{text}");
        }
        assert_eq!(clip("日本", 4), "日… [3 bytes more]");
    }
}
