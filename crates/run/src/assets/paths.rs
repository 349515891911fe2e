//! Validation of paths from manifests, archives and the hub, which must stay below a root directory.

use std::io;
use std::path::{Component, Path, PathBuf};

use super::error::AssetError;

/// Maximum length of a path.
const MAX_LEN: usize = 4096;

/// Maximum length of the name of a branch or a tag.
const MAX_REFERENCE: usize = 200;

/// `text` as a relative path, or why it is invalid.
///
/// The result has no `..`, no root, no drive and no empty name, so that joined to a directory it stays inside.
pub(super) fn relative(text: &str) -> Result<PathBuf, String> {
    if text.len() > MAX_LEN {
        return Err("is too long for a path".into());
    }
    if text.contains('\0') {
        return Err("contains a NUL character".into());
    }
    // Archives from Windows use `\` as a separator.
    let unified = text.replace('\\', "/");
    let bytes = unified.as_bytes();
    let drive = bytes.len() >= 2 && bytes[1] == b':' && bytes[0].is_ascii_alphabetic();
    if unified.starts_with('/') || drive {
        return Err("is an absolute path".into());
    }
    let mut path = PathBuf::new();
    for part in unified.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err("contains \"..\"".into()),
            name => path.push(name),
        }
    }
    if path.as_os_str().is_empty() {
        return Err("is empty".into());
    }
    Ok(path)
}

/// [`relative`] with an error that names the setting `what`.
pub(super) fn require_relative(what: &'static str, text: &str) -> Result<PathBuf, AssetError> {
    let bad = |why: String| AssetError::BadName { what, name: text.to_owned(), why: format!("it {why}") };
    relative(text).map_err(bad)
}

/// Refuses a name that git does not accept for a branch, a tag or a commit, or that it reads differently: as an option,
/// or as a refspec (`a:b`).
pub(super) fn require_reference(what: &'static str, text: &str) -> Result<(), AssetError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+/".contains(c);
    let part_fits =
        |part: &str| !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with(".lock");
    let why = if text.is_empty() || text.len() > MAX_REFERENCE {
        "a branch, a tag or a commit has 1 to 200 characters"
    } else if !text.chars().all(fits) || text.contains("..") || text.ends_with('.') || text.starts_with('+') {
        "only letters, digits, '-', '_', '.', '+' and '/' are allowed"
    } else if !text.split('/').all(part_fits) {
        "none of its parts may be empty, start with a dot or a dash, or end in .lock"
    } else {
        return Ok(());
    };
    Err(AssetError::BadName { what, name: text.to_owned(), why: why.into() })
}

/// Refuses `path`, below `root`, if it or a directory in it is a link, because the file would be written elsewhere.
pub(super) fn require_no_links(root: &Path, path: &Path) -> Result<(), AssetError> {
    let is_link = |path: &&Path| path.symlink_metadata().is_ok_and(|found| found.is_symlink());
    match path.ancestors().take_while(|path| *path != root).find(is_link) {
        Some(link) => Err(AssetError::Link { path: link.to_owned(), root: root.to_owned() }),
        None => Ok(()),
    }
}

/// Refuses a path that is not relative or that git would parse as an option.
pub(super) fn require_argument(what: &'static str, text: &str) -> Result<(), AssetError> {
    if text.starts_with('-') {
        let why = "it starts with a dash".into();
        return Err(AssetError::BadName { what, name: text.to_owned(), why });
    }
    require_relative(what, text).map(drop)
}

/// Whether a link at `link` (relative to a root) to `target` stays below the root.
///
/// `..` is allowed at the start of the target only. After a name, which can itself be a link, the result depends on the
/// target of that link.
pub(super) fn link_stays(link: &Path, target: &str) -> bool {
    if target.is_empty() || target.contains(['\0', '\\']) || target.len() > MAX_LEN {
        return false;
    }
    let mut depth = link.components().count().saturating_sub(1);
    let mut after_name = false;
    for part in Path::new(target).components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) => after_name = true,
            Component::ParentDir if depth > 0 && !after_name => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

/// Refuses a name that is not a single plain path component.
pub(super) fn plain_name(what: &'static str, name: &str) -> Result<(), AssetError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > 100 {
        "it is longer than 100 characters"
    } else if name.starts_with(['.', '-']) {
        "it starts with a dot or a dash"
    } else if !name.chars().all(is_plain) {
        "only letters, digits, '-', '_' and '.' are allowed"
    } else {
        return Ok(());
    };
    Err(AssetError::BadName { what, name: name.to_owned(), why: why.into() })
}

/// `path` with its links resolved, which must be below `root`; `None` if it does not exist.
pub(super) fn resolve_below(root: &Path, path: &Path) -> Result<Option<PathBuf>, AssetError> {
    let absent = |e: &io::Error| matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(e) if absent(&e) => return Ok(None),
        Err(e) => return Err(AssetError::io("access", path)(e)),
    };
    let real_root = root.canonicalize().map_err(AssetError::io("access", root))?;
    if !real.starts_with(&real_root) {
        return Err(AssetError::OutsideRoot { path: path.to_owned(), root: root.to_owned(), real });
    }
    Ok(Some(real))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_outside_of_the_root_are_refused() {
        for invalid in [
            "../a",
            "a/../../b",
            "a/..",
            "/etc/passwd",
            "C:\\x",
            "c:x",
            "..\\a",
            "\\\\host\\x",
            "",
            ".",
            "a\0b",
        ] {
            assert!(relative(invalid).is_err(), "{invalid:?}");
        }
        for (valid, expected) in
            [("a", "a"), ("./a//b/", "a/b"), ("a\\b", "a/b"), ("...", "..."), ("a..b", "a..b")]
        {
            assert_eq!(relative(valid).unwrap(), Path::new(expected), "{valid:?}");
        }
    }

    #[test]
    fn links_stay_below_the_root() {
        for (link, target, stays) in [
            ("a", "b", true),
            ("d/a", "../b", true),
            ("a", "../b", false),
            ("d/a", "../../b", false),
            ("d/e/a", "../../b", true),
            ("d/e/a", "x/..", false),
            ("d/a", "x/../../../b", false),
            ("a", "/etc", false),
            ("a", "", false),
        ] {
            assert_eq!(link_stays(Path::new(link), target), stays, "{link} -> {target}");
        }
    }

    #[test]
    fn arguments_of_git_have_no_leading_dash() {
        assert!(require_argument("path", "src/a b").is_ok());
        for invalid in ["--upload-pack=x", "-b", "../x", ""] {
            assert!(require_argument("path", invalid).is_err(), "{invalid:?}");
            assert!(require_reference("revision", invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn references_are_those_of_git() {
        for valid in ["main", "v1.0", "refs/pr/1", "release-4.57", "0123456789abcdef", "a_b+c"] {
            require_reference("revision", valid).unwrap();
        }
        let invalid = [
            "a:b",
            "+refs/heads/x",
            "refs/heads/*",
            "a..b",
            "a~1",
            "HEAD^",
            "@{u}",
            "a b",
            "a\nb",
            "/a",
            "a/",
            "a//b",
            "a/-b",
            "a/.b",
            "a.lock",
            "a.",
        ];
        for invalid in invalid {
            assert!(require_reference("revision", invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn links_on_the_way_are_found() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b/c");
        std::fs::create_dir_all(root.path().join("a/real")).unwrap();
        require_no_links(root.path(), &path).unwrap();
        std::os::unix::fs::symlink("real", root.path().join("a/b")).unwrap();
        let error = require_no_links(root.path(), &path).unwrap_err().to_string();
        assert!(error.contains("a/b is a link"), "{error}");
        require_no_links(&root.path().join("a/b"), &path).unwrap();
    }

    proptest! {
        #[test]
        fn relative_paths_stay_below_the_root(text in "[a./\\\\:~\0 ]{0,24}|\\PC{0,40}") {
            if let Ok(path) = relative(&text) {
                prop_assert!(path.is_relative());
                prop_assert!(path.components().all(|c| matches!(c, Component::Normal(_))), "{path:?}");
                prop_assert!(Path::new("/root").join(&path).starts_with("/root"));
            }
        }

        #[test]
        fn accepted_links_stay_below_the_root(link in "[a/]{1,8}", target in "[a./]{0,16}") {
            if let Ok(link) = relative(&link) && link_stays(&link, &target) {
                let mut current: Vec<String> = link.parent().unwrap().components()
                    .map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
                for part in target.split('/') {
                    match part {
                        "" | "." => {}
                        ".." => prop_assert!(current.pop().is_some()),
                        name => current.push(name.into()),
                    }
                }
            }
        }
    }
}
