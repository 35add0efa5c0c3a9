//! Points in time as the log writes them.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A point in time, UTC, to the millisecond; written as RFC 3339.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time {
    millis: i64,
}

impl Time {
    /// The present, by the machine's clock.
    pub fn now() -> Self {
        Self { millis: Timestamp::now().as_millisecond() }
    }

    /// A time from milliseconds since 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self { millis }
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.millis
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stamp = Timestamp::from_millisecond(self.millis).unwrap_or_default();
        write!(f, "{stamp:.3}")
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let stamp: Timestamp = text.parse().map_err(|_| format!("not an RFC 3339 time: {text:?}"))?;
        Ok(Self { millis: stamp.as_millisecond() })
    }
}

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Time> for String {
    fn from(time: Time) -> Self {
        time.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        let time = Time::from_millis(1_796_083_200_007);
        assert_eq!(time.to_string(), "2026-12-01T00:00:00.007Z");
        assert_eq!(time.to_string().parse(), Ok(time));
        assert!("yesterday".parse::<Time>().is_err());
    }
}
