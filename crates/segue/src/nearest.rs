//! "Did you mean …?"

/// The candidate that `word` is probably a mistyped form of: at most one edit for each three characters, and no
/// more than three.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = word.chars().count().div_ceil(3).min(3);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word.to_lowercase(), candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_named() {
        let names = ["sessions", "models", "config", "demo"];
        for (word, expected) in [
            ("sesions", Some("sessions")),
            ("session", Some("sessions")),
            ("Model", Some("models")),
            ("dmeo", Some("demo")),
            ("hello", None),
            ("hi", None),
            ("fix", None),
            ("refactor", None),
        ] {
            assert_eq!(nearest(word, names), expected, "{word}");
        }
    }
}
