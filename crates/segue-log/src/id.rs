//! Identifiers. Text from outside becomes one of these before it touches a path or a query.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A string that is not an identifier of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {kind}: {text:?}")]
pub struct BadId {
    /// What was expected.
    pub kind: &'static str,
    /// What was given, cut to 100 characters.
    pub text: String,
}

impl BadId {
    fn new(kind: &'static str, text: &str) -> Self {
        Self { kind, text: text.chars().take(100).collect() }
    }
}

/// A session's id: a UUIDv7, always written hyphenated and in lower case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(Uuid);

impl SessionId {
    /// Mints a new id; ids minted later sort later.
    pub fn mint() -> Self {
        Self(Uuid::now_v7())
    }
}

impl FromStr for SessionId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId::new("session id", text);
        if text.len() != 36 || text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(bad());
        }
        Uuid::try_parse(text).map(Self).map_err(|_| bad())
    }
}

impl TryFrom<String> for SessionId {
    type Error = BadId;

    fn try_from(text: String) -> Result<Self, BadId> {
        text.parse()
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_hyphenated())
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

macro_rules! text_id {
    ($name:ident, $kind:literal, $doc:literal, $max:literal) => {
        #[doc = $doc]
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                let fits = !text.is_empty()
                    && text.len() <= $max
                    && text
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':'))
                    && !text.starts_with('.');
                if fits { Ok(Self(text.to_owned())) } else { Err(BadId::new($kind, text)) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(CallId, "call id", "The id of one tool call, minted by Segue and unique in its session.", 64);
text_id!(PromptId, "prompt id", "The id of one prompt; clients may choose it. Unique in its session.", 128);

impl CallId {
    /// Mints a new id from 64 random bits.
    pub fn mint() -> Self {
        Self(format!("call_{}", short_random()))
    }
}

impl PromptId {
    /// Mints a new id from 64 random bits.
    pub fn mint() -> Self {
        Self(format!("prompt_{}", short_random()))
    }
}

fn short_random() -> String {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    format!("{:016x}", high ^ low.rotate_left(32))
}

/// The SHA-256 of a blob's bytes: its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlobHash([u8; 32]);

impl BlobHash {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl FromStr for BlobHash {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId::new("SHA-256 hash", text);
        if text.len() != 64 {
            return Err(bad());
        }
        let mut out = [0u8; 32];
        for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let mut value = 0u8;
            for digit in pair {
                let nibble = match digit {
                    b'0'..=b'9' => digit - b'0',
                    b'a'..=b'f' => digit - b'a' + 10,
                    _ => return Err(bad()),
                };
                value = (value << 4) | nibble;
            }
            *byte = value;
        }
        Ok(Self(out))
    }
}

impl TryFrom<String> for BlobHash {
    type Error = BadId;

    fn try_from(text: String) -> Result<Self, BadId> {
        text.parse()
    }
}

impl From<BlobHash> for String {
    fn from(hash: BlobHash) -> Self {
        hash.to_string()
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_from_outside_are_checked() {
        let id = SessionId::mint();
        assert_eq!(id.to_string().parse::<SessionId>(), Ok(id));
        for bad in [
            "",
            "../etc/passwd",
            "0190a8c0",
            &id.to_string().to_uppercase(),
            &format!("{id} "),
            "é".repeat(18).as_str(),
        ] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?}");
        }
        for bad in ["", "../x", ".hidden", "a/b", "a b", &"x".repeat(65)] {
            assert!(bad.parse::<CallId>().is_err(), "{bad:?}");
        }
        assert_eq!(CallId::mint().as_str().len(), 21);
    }

    #[test]
    fn hashes_round_trip() {
        let hash = BlobHash::of(b"abc");
        assert_eq!(hash.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert!("BA".repeat(32).parse::<BlobHash>().is_err());
    }
}
