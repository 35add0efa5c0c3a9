//! Walks through a folder as `glob`, `grep` and `list` do it: what `.gitignore` names is passed over, `.git` always.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use ignore::{DirEntry, Walk, WalkBuilder};
use segue_log::code;

use crate::tool::Failure;

/// Everything below `root` that is not ignored, folder by folder, by name. Hidden files are included, links not followed.
pub(super) fn walk(root: &Path, depth: Option<usize>) -> Walk {
    // Outside a repository the folders above have no say: a home folder kept in git may ignore all that is in it.
    let in_repository = root.ancestors().any(|folder| folder.join(".git").exists());
    WalkBuilder::new(root)
        .hidden(false)
        .parents(in_repository)
        .require_git(false)
        .git_global(false)
        .max_depth(depth)
        .filter_entry(|entry| entry.file_name() != ".git")
        .sort_by_file_name(|a, b| a.cmp(b))
        .build()
}

/// True for a regular file.
pub(super) fn is_file(entry: &DirEntry) -> bool {
    entry.file_type().is_some_and(|kind| kind.is_file())
}

/// Matches paths relative to a root. A pattern without a slash matches names at any depth.
pub(super) fn matcher(pattern: &str) -> Result<GlobMatcher, Failure> {
    let anchored = if pattern.contains('/') {
        pattern.trim_start_matches('/').to_owned()
    } else {
        format!("**/{pattern}")
    };
    GlobBuilder::new(anchored.trim_start_matches("./"))
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| Failure {
            code: code::INVALID_INPUT.to_owned(),
            message: format!("the pattern {pattern:?} is wrong: {error}"),
        })
}

/// A path below `root` as the model may use it again: relative to the working folder where it can be.
pub(super) fn name(cwd: &Path, path: &Path) -> String {
    path.strip_prefix(cwd).unwrap_or(path).display().to_string()
}
