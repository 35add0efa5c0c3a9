//! Where a path given by a model really leads.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use segue_log::{Action, ActionKind, code, escape_rule, literal_rule};

use crate::tool::{Failure, Scope};

/// Links followed on the way to one file before it counts as a loop, as on Linux.
const MAX_LINKS: usize = 40;

/// A path with every link and `..` on the way followed; the last parts need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where it leads, absolute.
    pub path: PathBuf,
    /// The same for people and rules: relative to the working folder if it lies in there.
    pub shown: String,
    /// True if it lies in a folder of the scope.
    pub inside: bool,
}

impl Place {
    /// Follows `asked`, which is relative to the scope's working folder or absolute.
    ///
    /// # Errors
    /// If it cannot be followed: a loop of links.
    pub fn find(scope: &Scope, asked: &str) -> Result<Self, Failure> {
        let follow = |path: &Path| {
            resolve(path).map_err(|source| Failure {
                code: code::FAILED.to_owned(),
                message: format!("cannot follow the path {}: {source}", path.display()),
            })
        };
        let cwd = follow(&scope.cwd)?;
        let path = follow(&cwd.join(asked))?;
        let in_extra = || {
            scope
                .extra
                .iter()
                .filter_map(|folder| resolve(folder).ok())
                .any(|folder| path.starts_with(folder))
        };
        let inside = path.starts_with(&cwd) || in_extra();
        let shown = match path.strip_prefix(&cwd) {
            Ok(rest) if rest.as_os_str().is_empty() => ".".to_owned(),
            Ok(rest) => rest.display().to_string(),
            Err(_) => path.display().to_string(),
        };
        Ok(Self { path, shown, inside })
    }

    /// What looking at it is, for permissions.
    pub fn reading(&self) -> ActionKind {
        if self.inside { ActionKind::Read } else { ActionKind::ReadOutside }
    }

    /// The action of a tool that looks at it: `shown` is what a person is shown.
    pub fn looked_at(self, tool: &str, shown: String) -> Action {
        Action { kind: self.reading(), rule: literal_rule(tool, &self.shown), shown, subject: self.shown }
    }

    /// What changing it is, for permissions.
    pub fn writing(&self) -> ActionKind {
        if self.inside { ActionKind::Write } else { ActionKind::WriteOutside }
    }

    /// The literal rule that allows `tool` in the folder of this file, or on this very file where that would be the
    /// whole working folder or the whole machine.
    pub fn folder_rule(&self, tool: &str) -> String {
        match Path::new(&self.shown).parent() {
            Some(folder) if folder.parent().is_some() => {
                format!("{tool}({}/**)", escape_rule(&folder.display().to_string()))
            }
            _ => literal_rule(tool, &self.shown),
        }
    }
}

/// Follows every link and `..` of an absolute path. Parts that do not exist are kept as they are.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut ahead: Vec<OsString> = Vec::new();
    let push = |ahead: &mut Vec<OsString>, path: &Path| {
        ahead.extend(path.components().rev().map(|part| part.as_os_str().to_owned()));
    };
    push(&mut ahead, path);
    let mut reached = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => {
                reached.pop();
            }
            Some(Component::Normal(name)) => {
                let next = reached.join(name);
                match std::fs::read_link(&next) {
                    Ok(target) => {
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(io::Error::other("too many symbolic links"));
                        }
                        push(&mut ahead, &target);
                    }
                    // No link, or nothing there, or a folder that cannot be searched: the next look at it will tell.
                    Err(_) => reached = next,
                }
            }
            Some(Component::RootDir) => reached = PathBuf::from("/"),
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
    }
    Ok(reached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_and_dots_are_followed_to_where_they_lead() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().canonicalize().unwrap();
        let cwd = root.join("work");
        std::fs::create_dir_all(cwd.join("src")).unwrap();
        symlink("..", cwd.join("up")).unwrap();
        symlink("nowhere/new.txt", cwd.join("dangling")).unwrap();
        symlink("loop", cwd.join("loop")).unwrap();
        let scope = Scope { cwd: cwd.clone(), extra: vec![root.join("more")], calls: PathBuf::new() };
        let outside = |rest: &str| (root.join(rest).display().to_string(), false);
        for (asked, expected) in [
            ("src/a.rs", ("src/a.rs".to_owned(), true)),
            (".", (".".to_owned(), true)),
            ("src/../b", ("b".to_owned(), true)),
            ("../x", outside("x")),
            ("up/x", outside("x")),
            ("up/work/x", ("x".to_owned(), true)),
            ("dangling", ("nowhere/new.txt".to_owned(), true)),
            ("/etc/passwd", ("/etc/passwd".to_owned(), false)),
            ("missing/../../x", outside("x")),
            ("../more/x", (root.join("more/x").display().to_string(), true)),
            ("../workmate", outside("workmate")),
        ] {
            let place = Place::find(&scope, asked).unwrap();
            assert_eq!((place.shown, place.inside), expected, "{asked}");
        }
        assert!(Place::find(&scope, "loop").is_err());
    }

    #[test]
    fn a_rule_names_the_folder_or_the_file() {
        for (shown, rule) in [
            ("src/a.rs", "edit(src/**)"),
            ("src/deep/a.rs", "edit(src/deep/**)"),
            ("a.rs", "edit(a.rs)"),
            ("/etc/passwd", "edit(/etc/**)"),
            ("/passwd", "edit(/passwd)"),
            ("app/[a*]/b", r"edit(app/[a\*]/**)"),
            ("what?", r"edit(what\?)"),
            ("a*b/c", r"edit(a\*b/**)"),
        ] {
            let place = Place { path: PathBuf::new(), shown: shown.to_owned(), inside: true };
            assert_eq!(place.folder_rule("edit"), rule);
        }
    }
}
