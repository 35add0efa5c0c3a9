//! `read`, `write`, `edit`.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use segue_log::{ActionKind, BlobHash, Block, Expect, code};
use segue_tool::{Known, ToolOutput};
use serde_json::{Value, json};

use crate::bench::{Bench, Told, error, helper_call, ok, told};

#[tokio::test]
async fn text_is_read_as_numbered_lines() {
    let bench = Bench::new();
    bench.put("a.txt", "one\ntwo\nthree\n");
    bench.put("empty", "");
    bench.put("windows", "\u{feff}one\r\ntwo\r\n");
    bench.put("latin", b"caf\xe9\n");
    bench.put("nul", b"\x7fELF\0\x01");
    bench.put("utf16", b"\xff\xfea\0");
    std::fs::create_dir(bench.cwd.join("folder")).unwrap();
    let cases: Vec<(Value, Told)> = vec![
        (json!({"path": "a.txt"}), ok("     1\tone\n     2\ttwo\n     3\tthree\n")),
        (json!({"path": "a.txt", "offset": 2, "limit": 1}), ok("     2\ttwo\n[Lines 2 to 2 of 3.]")),
        (json!({"path": "a.txt", "offset": 4}), ok("[There is no line 4: the file has 3 lines.]")),
        (json!({"path": "empty"}), ok("[The file is empty.]")),
        (
            json!({"path": "windows"}),
            ok("     1\tone\n     2\ttwo\n[The lines end in CR LF; `edit` keeps that.]"),
        ),
        (
            json!({"path": "latin"}),
            ok("     1\tcaf\u{fffd}\n[Some bytes are not UTF-8 and are shown as \u{fffd}.]"),
        ),
        (json!({"path": "nul"}), ok("A binary file, 6 bytes; it starts with 7f 45 4c 46 00 01.")),
        (
            json!({"path": "utf16"}),
            ok("A text file in UTF-16, 4 bytes. Convert it first, for example with iconv."),
        ),
        (json!({"path": "folder"}), error(code::FAILED, "folder is a folder; use `list`")),
        (
            json!({"path": "b.txt"}),
            error(code::FAILED, "b.txt does not exist; there is a.txt in the same folder"),
        ),
        (json!({"path": "quite/else"}), error(code::FAILED, "quite/else does not exist")),
        (json!({"path": "/dev/zero"}), error(code::FAILED, "cannot read /dev/zero: it is no regular file")),
    ];
    for (input, expected) in cases {
        assert_eq!(bench.call("read", input.clone()).await, expected, "{input}");
    }
}

#[tokio::test]
async fn images_are_shown_as_images() {
    let bench = Bench::new();
    for (bytes, media_type) in [
        (&b"\x89PNG\r\n\x1a\n\0\0"[..], "image/png"),
        (b"\xff\xd8\xff\xe0\0", "image/jpeg"),
        (b"GIF89a\0", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ] {
        bench.put("picture", bytes);
        let output = bench.run("read", json!({"path": "picture"}), bench.context()).await;
        let [Block::Image { media_type: found, .. }] = output.content.as_slice() else {
            panic!("{output:?}")
        };
        assert_eq!(found, media_type);
    }
    bench.put("picture", [b"\x89PNG\r\n\x1a\n".as_slice(), &vec![0; 5_000_000]].concat());
    let expected = ok("An image (image/png), 5000008 bytes: too large to be shown. Make it smaller first.");
    assert_eq!(bench.call("read", json!({"path": "picture"})).await, expected);
}

#[tokio::test]
async fn huge_files_and_lines_are_read_in_part() {
    let bench = Bench::new();
    // A sparse file of 3 GB whose first line ends after "start".
    let path = bench.put("huge", "start\nsecond\n");
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().set_len(3_000_000_000).unwrap();
    bench.put("huge.txt", "x".repeat(9000));
    let (_, text) = bench.call("read", json!({"path": "huge"})).await;
    assert!(text.starts_with("A binary file, 3000000000 bytes"), "{text}");

    let mut lines = "word\n".repeat(20_000_000);
    lines.push_str("end");
    bench.put("huge", lines);
    let expected = ok(
        "     2\tword\n     3\tword\n[Lines 2 to 3 of a file of 100000003 bytes, too large to be edited.]",
    );
    assert_eq!(bench.call("read", json!({"path": "huge", "offset": 2, "limit": 2})).await, expected);

    bench.put("long", format!("{}é", "x".repeat(1999)));
    let expected = ok(format!("     1\t{}… [1 bytes more in this line]\n", "x".repeat(1999)));
    assert_eq!(bench.call("read", json!({"path": "long"})).await, expected);
}

#[tokio::test]
async fn a_file_is_written_whole_with_its_folders_and_keeps_its_mode() {
    let bench = Bench::new();
    let expected = ok("Made src/deep/a.txt (2 lines, 4 bytes).");
    assert_eq!(bench.call("write", json!({"path": "src/deep/a.txt", "content": "1\n2\n"})).await, expected);
    let path = bench.cwd.join("src/deep/a.txt");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o754)).unwrap();
    let expected = ok(
        "Replaced src/deep/a.txt (1 lines, 2 bytes).\n--- src/deep/a.txt\n+++ src/deep/a.txt\n@@ -1,2 +1 @@\n-1\n-2\n+3",
    );
    let (code, text) = bench.call("write", json!({"path": "src/deep/a.txt", "content": "3\n"})).await;
    assert_eq!((code, text.trim_end().to_owned()), expected);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o754);
    let names: Vec<_> =
        std::fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a.txt"], "no temporary file is left");
}

#[tokio::test]
async fn a_link_is_followed_and_stays_a_link() {
    let bench = Bench::new();
    bench.put("real", "old");
    symlink("real", bench.cwd.join("link")).unwrap();
    symlink("made/later", bench.cwd.join("dangling")).unwrap();
    bench.call("write", json!({"path": "link", "content": "new"})).await;
    bench.call("write", json!({"path": "dangling", "content": "there"})).await;
    assert_eq!((bench.bytes("real"), bench.bytes("made/later")), (b"new".to_vec(), b"there".to_vec()));
    assert!(bench.cwd.join("link").is_symlink() && bench.cwd.join("dangling").is_symlink());
}

#[tokio::test]
async fn nothing_outside_the_working_folder_is_changed_without_permission() {
    let bench = Bench::new();
    let outside = bench.root.join("secret");
    std::fs::write(&outside, "old").unwrap();
    symlink("..", bench.cwd.join("up")).unwrap();
    symlink("../secret", bench.cwd.join("link")).unwrap();
    let message = format!("{} lies outside the working folder {}", outside.display(), bench.cwd.display());
    for path in ["../secret", "up/secret", "link", outside.to_str().unwrap()] {
        let input = json!({"path": path, "content": "new"});
        assert_eq!(bench.call("write", input.clone()).await, error(code::DENIED, &message), "{path}");
        let action = bench.tools.get("write").unwrap().action(&input, &bench.scope());
        assert_eq!(
            (action.kind, action.subject.as_str()),
            (ActionKind::WriteOutside, outside.to_str().unwrap())
        );
        bench.call("read", json!({"path": path})).await;
        let input = json!({"path": path, "old_string": "old", "new_string": "new"});
        assert_eq!(bench.call("edit", input).await, error(code::DENIED, &message), "{path}");
    }
    assert_eq!(std::fs::read(&outside).unwrap(), b"old");
    let mut context = bench.context();
    context.permitted = true;
    let output = bench.run("write", json!({"path": "link", "content": "new"}), context).await;
    assert_eq!(told(&output).0, "");
    assert_eq!(std::fs::read(&outside).unwrap(), b"new");
}

#[tokio::test]
async fn an_edit_needs_one_exact_match_in_a_file_that_was_read_and_is_unchanged() {
    let bench = Bench::new();
    bench.put("a.txt", "one\n  two\none\n");
    let edit = |old: &str, new: &str| json!({"path": "a.txt", "old_string": old, "new_string": new});
    assert_eq!(
        bench.call("edit", edit("two", "2")).await,
        error(code::FAILED, "a.txt must be read before it is edited")
    );
    bench.call("read", json!({"path": "a.txt", "limit": 1})).await;
    for (input, expected) in [
        (
            edit("one", "1"),
            "old_string occurs 2 times in a.txt (lines 1, 3); add lines around it until it is unique, or set replace_all",
        ),
        (
            edit("three", "3"),
            "old_string does not occur in a.txt; it must match exactly, white space included",
        ),
        (
            edit("one\ntwo", "3"),
            "old_string does not occur in a.txt; it must match exactly, white space included. Its first line, apart from white space around it, is at line 1, 3",
        ),
    ] {
        assert_eq!(bench.call("edit", input).await, error(code::FAILED, expected));
    }
    assert_eq!(
        bench.call("edit", edit("two", "two")).await,
        error(code::INVALID_INPUT, "old_string and new_string are the same; nothing would change")
    );
    let expected = ok("Edited a.txt.\n--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-  two\n+  2\n one\n");
    assert_eq!(bench.call("edit", edit("two", "2")).await, expected);
    // What the edit itself made counts as seen.
    assert_eq!(
        bench
            .call(
                "edit",
                json!({"path": "a.txt", "old_string": "one", "new_string": "1", "replace_all": true})
            )
            .await
            .0,
        ""
    );
    assert_eq!(bench.bytes("a.txt"), b"1\n  2\n1\n");
    bench.put("a.txt", "1\n  2\n1\nforeign\n");
    assert_eq!(
        bench.call("edit", edit("2", "3")).await,
        error(code::FAILED, "a.txt has changed since you last read it; read it again before editing it")
    );
}

#[tokio::test]
async fn line_ends_marks_and_foreign_bytes_survive_an_edit() {
    let bench = Bench::new();
    for (before, old, new, after) in [
        (&b"a\r\nb\r\nc\r\n"[..], "a\nb", "x\ny", &b"x\r\ny\r\nc\r\n"[..]),
        (b"\xef\xbb\xbfa\nb\n", "a", "x", b"\xef\xbb\xbfx\nb\n"),
        (b"a\r\nb\nc", "b", "x\ny", b"a\r\nx\ny\nc"),
        (b"caf\xe9 a", "a\u{0}", "", b"caf\xe9 a"),
        (b"\xff a \xfe", " a ", "", b"\xff\xfe"),
    ] {
        bench.put("f", before);
        bench.call("read", json!({"path": "f"})).await;
        bench.call("edit", json!({"path": "f", "old_string": old, "new_string": new})).await;
        assert_eq!(bench.bytes("f"), after, "{old:?}");
    }
}

#[tokio::test]
async fn a_change_between_record_and_body_is_told_and_not_overwritten() {
    let bench = Bench::new();
    let path = bench.put("a.txt", "old");
    bench.call("read", json!({"path": "a.txt"})).await;
    for (tool, input) in [
        ("write", json!({"path": "a.txt", "content": "new"})),
        ("edit", json!({"path": "a.txt", "old_string": "old", "new_string": "new"})),
    ] {
        let mut context = bench.context();
        context.expect = bench.expect(tool, &input, &context).await.unwrap();
        std::fs::write(&path, "old, changed by somebody").unwrap();
        let (code, text) = told(&bench.tools.get(tool).unwrap().run(input, &context).await);
        assert_eq!(code, code::FAILED);
        assert!(text.contains("chang"), "{text}");
        assert_eq!(bench.bytes("a.txt"), b"old, changed by somebody");
        std::fs::write(&path, "old").unwrap();
    }
}

#[tokio::test]
async fn what_is_expected_names_both_hashes_and_keeps_the_old_content() {
    let bench = Bench::new();
    let path = bench.put("a.txt", "old");
    let expect =
        bench.expect("write", &json!({"path": "a.txt", "content": "new"}), &bench.context()).await.unwrap();
    let before = BlobHash::of(b"old");
    assert_eq!(
        expect,
        Some(Expect { path, before: Some(before), after: BlobHash::of(b"new"), kept: Some(before) })
    );
    assert_eq!(bench.blob(&before), b"old");
    assert_eq!(bench.bytes("a.txt"), b"old", "nothing is changed yet");
    let expect =
        bench.expect("write", &json!({"path": "b.txt", "content": "new"}), &bench.context()).await.unwrap();
    let path = bench.cwd.join("b.txt");
    assert_eq!(expect, Some(Expect { path, before: None, after: BlobHash::of(b"new"), kept: None }));
}

#[tokio::test]
async fn a_look_at_the_file_tells_what_became_of_a_change() {
    let bench = Bench::new();
    let path = bench.cwd.join("a.txt");
    let shown = path.display();
    let hash = |text: &str| Some(BlobHash::of(text.as_bytes()));
    let made =
        || Known::Result(ToolOutput::ok(format!("{shown} has the intended content: the change was made.")));
    let not_made = |state: &str| {
        Known::Result(ToolOutput::error(
            code::NOT_APPLIED,
            format!("{shown} {state}: the change was not made. It may be tried again if still wanted."),
        ))
    };
    for (before, after, now, expected) in [
        (Some("old"), "new", Some("new"), made()),
        (Some("old"), "new", Some("old"), not_made("is as it was before the call")),
        (Some("old"), "new", Some("else"), Known::Nothing),
        (Some("old"), "new", None, Known::Nothing),
        (None, "new", None, not_made("does not exist, as before the call")),
        (None, "new", Some("new"), made()),
        (
            Some("same"),
            "same",
            Some("same"),
            Known::Result(ToolOutput::ok(format!(
                "{shown} has the intended content; it had it before the call, too."
            ))),
        ),
    ] {
        match now {
            Some(now) => std::fs::write(&path, now).unwrap(),
            None => std::fs::remove_file(&path).unwrap_or_default(),
        }
        let expect = Expect {
            path: path.clone(),
            before: before.and_then(hash),
            after: hash(after).unwrap(),
            kept: None,
        };
        for tool in ["write", "edit"] {
            let found = bench.evidence(tool, &bench.context(), Some(expect.clone()), false).await;
            assert_eq!(found, expected, "{before:?} {after} {now:?}");
        }
    }
}

/// A process killed between making its temporary file and the rename left that file for ever.
/// The call's id is in its name, so that repair finds it and takes no other.
#[tokio::test]
async fn repair_clears_away_the_temporary_file_of_a_killed_write() {
    let bench = Bench::new();
    let context = bench.context();
    let expect = bench.expect("write", &json!({"path": "a.txt", "content": "new"}), &context).await.unwrap();
    let left = bench.put(&format!(".segue-{}-0.tmp", context.call_id), "ne");
    let other = bench.put(".segue-call_0-0.tmp", "of another call");
    bench.evidence("write", &context, expect.clone(), false).await;
    assert!(left.exists(), "a mere look changes nothing");
    bench.evidence("write", &context, expect, true).await;
    assert!(!left.exists() && other.exists());
}

#[tokio::test]
async fn a_process_that_dies_in_the_middle_of_a_write_leaves_the_old_file_whole() {
    let bench = Bench::new();
    let path = bench.put("a.txt", "old");
    let context = bench.context();
    let input = json!({"path": "a.txt", "content": "new\n".repeat(10_000)});
    let expect = bench.expect("write", &input, &context).await.unwrap();
    // The kernel kills a process that writes beyond this limit, 1024 bytes into the new file.
    let status = helper_call(&context, "write", &input, "ulimit -f 1").status().unwrap();
    assert_eq!(status.signal(), Some(25), "{status}");
    let names = || {
        let entries = std::fs::read_dir(&bench.cwd).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names().len(), 2, "{:?}", names());
    assert_eq!(bench.bytes("a.txt"), b"old");
    let text = format!(
        "{} is as it was before the call: the change was not made. It may be tried again if still wanted.",
        path.display()
    );
    let known = bench.evidence("write", &context, expect, true).await;
    assert_eq!(known, Known::Result(ToolOutput::error(code::NOT_APPLIED, text)));
    assert_eq!(names(), ["a.txt"]);
}

#[tokio::test]
async fn a_write_that_the_disk_does_not_take_is_told_and_leaves_the_old_file_whole() {
    let bench = Bench::new();
    bench.put("a.txt", "old");
    let input = json!({"path": "a.txt", "content": "new\n".repeat(10_000)});
    // With its signal ignored the limit is an error of the write, as a full disk is.
    let before = "trap '' XFSZ; ulimit -f 1";
    let output =
        helper_call(&bench.context(), "write", &input, before).stdout(Stdio::piped()).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("TOOL_FAILED") && told.contains("cannot write a.txt: writing"), "{told}");
    let names: Vec<_> =
        std::fs::read_dir(&bench.cwd).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!((names, bench.bytes("a.txt")), (vec!["a.txt".into()], b"old".to_vec()));
}

#[tokio::test]
async fn permissions_see_the_change_as_a_diff() {
    let bench = Bench::new();
    bench.put("src/a.txt", "one\ntwo\n");
    let action = |tool: &str, input: Value| bench.tools.get(tool).unwrap().action(&input, &bench.scope());
    let edit = action("edit", json!({"path": "src/a.txt", "old_string": "two", "new_string": "2"}));
    assert_eq!(edit.kind, ActionKind::Write);
    assert_eq!((edit.subject.as_str(), edit.rule.as_str()), ("src/a.txt", "edit(src/**)"));
    assert_eq!(edit.shown, "edit src/a.txt\n--- src/a.txt\n+++ src/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n");
    let write = action("write", json!({"path": "new.txt", "content": "1\n"}));
    assert_eq!((write.subject.as_str(), write.rule.as_str()), ("new.txt", "write(new.txt)"));
    assert_eq!(write.shown, "write new.txt\n--- /dev/null\n+++ new.txt\n@@ -0,0 +1 @@\n+1\n");
}
