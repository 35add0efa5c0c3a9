//! Keeps the generated part of a document true: what the code says stands between two marks.

use std::path::Path;

const BEGIN: &str = "<!-- generated: begin -->\n";
const END: &str = "<!-- generated: end -->\n";

/// Fails if `generated` is not what stands in `docs/<name>`; with `UPDATE_DOCS` set it is written there.
pub fn check(name: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let text = std::fs::read_to_string(&path).expect("the document is there");
    let (before, rest) = text.split_once(BEGIN).expect("the first mark is there");
    let (held, after) = rest.split_once(END).expect("the second mark is there");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{generated}{END}{after}"))
            .expect("the document can be written");
    } else {
        assert_eq!(held, generated, "docs/{name} is behind the code; run the test with UPDATE_DOCS=1");
    }
}
