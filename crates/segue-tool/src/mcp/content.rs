//! Results of servers as blocks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use segue_log::{Block, Outcome, code};

use crate::{ToolHost, ToolOutput};

/// How much text of one result reaches the model, in bytes; the whole is kept as a blob.
const SHOWN: usize = 64 * 1024;

/// What a server returned. Text beyond 64 KiB is cut out of the middle, and the whole kept as a blob of the session.
pub(super) async fn output(result: CallToolResult, host: &dyn ToolHost) -> ToolOutput {
    let mut content: Vec<Block> = result.content.into_iter().map(block).collect();
    if content.is_empty() {
        // A server should also say in text what it says in structure; one that does not is still heard.
        let text =
            result.structured_content.map_or_else(|| "(no content)".to_owned(), |value| value.to_string());
        content.push(Block::text(text));
    }
    for block in &mut content {
        if let Block::Text { text } | Block::Resource { text: Some(text), .. } = block
            && text.len() > SHOWN
        {
            *text = shortened(std::mem::take(text), host).await;
        }
    }
    let (outcome, code) = match result.is_error {
        Some(true) => (Outcome::Error, Some(code::FAILED.to_owned())),
        Some(false) | None => (Outcome::Ok, None),
    };
    ToolOutput { outcome, code, content }
}

async fn shortened(text: String, host: &dyn ToolHost) -> String {
    let (head, tail) = (text.floor_char_boundary(SHOWN / 2), text.ceil_char_boundary(text.len() - SHOWN / 2));
    let (first, last) = (text.get(..head).unwrap_or_default(), text.get(tail..).unwrap_or_default());
    let cut = tail - head;
    let kept = match host.put_blob(text.as_bytes().to_vec()).await {
        Ok(hash) => format!("the whole is kept as blob {hash}"),
        Err(error) => format!("the whole could not be kept: {error}"),
    };
    format!("{first}\n[… {cut} bytes left out; {kept} …]\n{last}")
}

fn block(content: ContentBlock) -> Block {
    match content {
        ContentBlock::Text(text) => Block::text(text.text),
        ContentBlock::Image(image) => Block::Image { media_type: image.mime_type, data: image.data },
        ContentBlock::Audio(audio) => left_out("audio", Some(&audio.mime_type), &audio.data),
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
                Block::Resource { uri, media_type: mime_type, text: Some(text) }
            }
            ResourceContents::BlobResourceContents { mime_type: Some(media_type), blob, .. }
                if media_type.starts_with("image/") =>
            {
                Block::Image { media_type, data: blob }
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                left_out(&uri, mime_type.as_deref(), &blob)
            }
            other => unsupported(&other),
        },
        ContentBlock::ResourceLink(link) => {
            Block::Resource { uri: link.uri, media_type: link.mime_type, text: None }
        }
        other => unsupported(&other),
    }
}

fn unsupported(content: &impl std::fmt::Debug) -> Block {
    Block::text(format!("[content of a kind that is not supported: {content:?}]"))
}

/// What stands for bytes that no model can be sent.
fn left_out(what: &str, media_type: Option<&str>, base64: &str) -> Block {
    let size = STANDARD.decode(base64).map_or(base64.len(), |bytes| bytes.len());
    Block::text(format!("[{what}: {} of {size} bytes, not shown]", media_type.unwrap_or("data")))
}
