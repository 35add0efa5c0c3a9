//! The names under which tools of servers are offered.

use sha2::{Digest, Sha256};

/// The longest name that model providers accept.
const LONGEST: usize = 64;

/// `mcp__<server>__<tool>` in the letters that providers accept. One that is too long is cut, and ends in a hash of the
/// whole so that it stays its own.
pub(super) fn offered(server: &str, tool: &str) -> String {
    let plain = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
    };
    let mut name = format!("mcp__{}__{}", plain(server), plain(tool));
    if name.len() > LONGEST {
        let digest = Sha256::digest(format!("{server}\0{tool}"));
        let tail: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        name.truncate(LONGEST - tail.len() - 1);
        name.push('_');
        name.push_str(&tail);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_what_providers_accept() {
        let long = "a".repeat(80);
        let table = [
            ("docs", "search", "mcp__docs__search".to_owned()),
            ("my docs", "sea.rch/all", "mcp__my_docs__sea_rch_all".to_owned()),
            ("d", "größe", "mcp__d__gr__e".to_owned()),
            ("d", "", "mcp__d__".to_owned()),
            ("d", &long[..56], format!("mcp__d__{}", "a".repeat(56))),
            ("d", &long[..57], format!("mcp__d__{}_9c6ff0b6", "a".repeat(47))),
            ("d", &long, format!("mcp__d__{}_89ec0001", "a".repeat(47))),
        ];
        for (server, tool, expected) in table {
            let name = offered(server, tool);
            assert_eq!(name, expected, "{server:?} {tool:?}");
            assert!(name.len() <= 64);
        }
    }
}
