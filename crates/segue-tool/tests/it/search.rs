//! `glob`, `grep`, `list`, `todo`.

use segue_log::{PlanEntry, code};
use serde_json::{Value, json};

use crate::bench::{Bench, Told, error, ok};

fn tree() -> Bench {
    let bench = Bench::new();
    bench.put(".gitignore", "target\n");
    bench.put(".git/config", "needle\n");
    bench.put("target/out.rs", "needle\n");
    bench.put("src/main.rs", "fn main() {\n    needle();\n}\n");
    bench.put("src/deep/lib.rs", "// Needle\n\n// two\n// needle three\n");
    bench.put("notes.md", "no such word\n");
    bench.put("binary.rs", b"needle\0\n");
    let old = std::fs::File::options().write(true).open(bench.cwd.join("src/main.rs")).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    bench
}

async fn check(bench: &Bench, tool: &str, cases: Vec<(Value, Told)>) {
    for (input, expected) in cases {
        assert_eq!(bench.call(tool, input.clone()).await, expected, "{tool} {input}");
    }
}

#[tokio::test]
async fn files_are_found_by_name_newest_first() {
    let cases = vec![
        (json!({"pattern": "src/**/*.rs"}), ok("src/deep/lib.rs\nsrc/main.rs")),
        (json!({"pattern": "main.*"}), ok("src/main.rs")),
        (json!({"pattern": "*.rs", "path": "src/deep"}), ok("src/deep/lib.rs")),
        (json!({"pattern": "*.{md,txt}"}), ok("notes.md")),
        (json!({"pattern": "out.rs"}), ok("No file matches out.rs in ..")),
        (
            json!({"pattern": "a[b"}),
            error(
                code::INVALID_INPUT,
                "the pattern \"a[b\" is wrong: error parsing glob '**/a[b': unclosed character class; missing ']'",
            ),
        ),
        (json!({"pattern": "*", "path": "nowhere"}), error(code::FAILED, "nowhere is no folder")),
    ];
    check(&tree(), "glob", cases).await;
}

#[tokio::test]
async fn text_is_found_with_its_place() {
    let cases = vec![
        (json!({"pattern": "needle"}), ok("src/deep/lib.rs:4:// needle three\nsrc/main.rs:2:    needle();")),
        (
            json!({"pattern": "NEEDLE", "ignore_case": true, "files_only": true}),
            ok("src/deep/lib.rs\nsrc/main.rs"),
        ),
        (json!({"pattern": "needle", "glob": "main.rs"}), ok("src/main.rs:2:    needle();")),
        (json!({"pattern": "needle", "path": "src/main.rs"}), ok("src/main.rs:2:    needle();")),
        (
            json!({"pattern": "needle", "context": 1}),
            ok(
                "src/deep/lib.rs-3-// two\nsrc/deep/lib.rs:4:// needle three\n--\nsrc/main.rs-1-fn main() {\nsrc/main.rs:2:    needle();\nsrc/main.rs-3-}",
            ),
        ),
        (
            json!({"pattern": "needle", "limit": 1}),
            ok("src/deep/lib.rs:4:// needle three\n[stopped after 1; there may be more]"),
        ),
        (json!({"pattern": "nowhere to be found"}), ok("Nothing in . matches nowhere to be found.")),
        (json!({"pattern": "a", "path": "nowhere"}), error(code::FAILED, "nowhere does not exist")),
    ];
    let bench = tree();
    check(&bench, "grep", cases).await;
    let (code, text) = bench.call("grep", json!({"pattern": "a("})).await;
    assert_eq!(code, code::INVALID_INPUT);
    assert!(text.contains("unclosed group"), "{text}");
}

#[tokio::test]
async fn folders_are_listed() {
    let bench = tree();
    std::os::unix::fs::symlink("notes.md", bench.cwd.join("link")).unwrap();
    let cases = vec![
        (
            json!({}),
            ok(".git/\n.gitignore (7)\nbinary.rs (8)\nlink -> notes.md\nnotes.md (13)\nsrc/\ntarget/"),
        ),
        (json!({"path": "src", "depth": 2}), ok("deep/\ndeep/lib.rs (34)\nmain.rs (28)")),
        (json!({"path": "notes.md", "depth": 2}), error(code::FAILED, "notes.md is no folder")),
    ];
    check(&bench, "list", cases).await;
    std::fs::create_dir(bench.cwd.join("none")).unwrap();
    assert_eq!(bench.call("list", json!({"path": "none"})).await, ok("The folder is empty."));
}

#[tokio::test]
async fn a_plan_goes_to_the_session_whole() {
    let bench = Bench::new();
    let items =
        json!({"items": [{"text": "look", "state": "completed"}, {"text": "do", "state": "in_progress"}]});
    assert_eq!(bench.call("todo", items).await, ok("The plan has 2 entries, 1 completed.\n[x] look\n[>] do"));
    let entry = |text: &str, state: &str| PlanEntry { text: text.to_owned(), state: state.to_owned() };
    assert_eq!(
        *bench.host.plans.lock().unwrap(),
        [vec![entry("look", "completed"), entry("do", "in_progress")]]
    );
}
