//! Paths that stay below a root, whatever a manifest, an archive or a hub says.

use std::io;
use std::path::{Component, Path, PathBuf};

use super::error::AssetError;

/// Longest path taken from outside; file systems refuse longer ones anyway, with worse words.
const MAX_LEN: usize = 4096;

/// `text` as a relative path of plain names, or why it is none.
///
/// The result has no `..`, no root, no drive and no empty name, so that joining it to a directory
/// never leaves that directory.
pub fn relative(text: &str) -> Result<PathBuf, String> {
    if text.len() > MAX_LEN {
        return Err("is too long for a path".into());
    }
    if text.contains('\0') {
        return Err("has a NUL in it".into());
    }
    // Archives made elsewhere write `\`; here it would be part of a name, there it climbs.
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
            ".." => return Err("climbs out with \"..\"".into()),
            name => path.push(name),
        }
    }
    if path.as_os_str().is_empty() {
        return Err("names nothing".into());
    }
    Ok(path)
}

/// Whether a link at `link` (relative to a root) with the text `target` stays below that root.
///
/// `..` may only lead the target: after a name, which may itself be a link, it climbs from where that
/// link points, and counting names would not notice.
pub fn link_stays(link: &Path, target: &str) -> bool {
    if target.is_empty() || target.contains(['\0', '\\']) || target.len() > MAX_LEN {
        return false;
    }
    let mut depth = link.components().count().saturating_sub(1);
    let mut named = false;
    for part in Path::new(target).components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) => named = true,
            Component::ParentDir if depth > 0 && !named => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

/// A name that is one directory: no separators, not hidden, nothing odd.
pub(super) fn plain_name(what: &'static str, name: &str) -> Result<(), AssetError> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > 100 {
        "it is longer than 100 characters"
    } else if name.starts_with(['.', '-']) {
        "it begins with a dot or a dash"
    } else if !name.chars().all(fine) {
        "only letters, digits, '-', '_' and '.' may stand in it"
    } else {
        return Ok(());
    };
    Err(AssetError::BadName { what, name: name.to_owned(), why: why.into() })
}

/// `path` with its links resolved, which must lie below `root`; `None` where there is nothing.
pub(super) fn resolve_below(root: &Path, path: &Path) -> Result<Option<PathBuf>, AssetError> {
    let absent = |e: &io::Error| matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(e) if absent(&e) => return Ok(None),
        Err(e) => return Err(AssetError::io("look at", path)(e)),
    };
    let real_root = root.canonicalize().map_err(AssetError::io("look at", root))?;
    if !real.starts_with(&real_root) {
        return Err(AssetError::LeadsOut { path: path.to_owned(), root: root.to_owned(), real });
    }
    Ok(Some(real))
}

/// Whether `name` fits `pattern`, in which `*` stands for any run of characters.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let (last, between) = parts.split_last().unwrap_or((&"", &[]));
    for part in between {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_climb_are_refused() {
        for bad in [
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
            assert!(relative(bad).is_err(), "{bad:?}");
        }
        for (good, wanted) in
            [("a", "a"), ("./a//b/", "a/b"), ("a\\b", "a/b"), ("...", "..."), ("a..b", "a..b")]
        {
            assert_eq!(relative(good).unwrap(), Path::new(wanted), "{good:?}");
        }
    }

    #[test]
    fn links_stay_or_not() {
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
    fn patterns() {
        for (pattern, name, wanted) in [
            ("*.py", "a.py", true),
            ("*.py", "a.pyc", false),
            ("LICENSE*", "LICENSE.txt", true),
            ("model-*-of-*.safetensors", "model-1-of-2.safetensors", true),
            ("a*a", "a", false),
            ("config.json", "config.json", true),
            ("*", "", true),
        ] {
            assert_eq!(fits(pattern, name), wanted, "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn a_relative_path_never_leaves_its_root(text in "[a./\\\\:~\0 ]{0,24}|\\PC{0,40}") {
            if let Ok(path) = relative(&text) {
                prop_assert!(path.is_relative());
                prop_assert!(path.components().all(|c| matches!(c, Component::Normal(_))), "{path:?}");
                prop_assert!(Path::new("/root").join(&path).starts_with("/root"));
            }
        }

        #[test]
        fn a_link_that_stays_never_leaves(link in "[a/]{1,8}", target in "[a./]{0,16}") {
            if let Ok(link) = relative(&link) && link_stays(&link, &target) {
                let mut at: Vec<String> = link.parent().unwrap().components()
                    .map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
                for part in target.split('/') {
                    match part {
                        "" | "." => {}
                        ".." => prop_assert!(at.pop().is_some()),
                        name => at.push(name.into()),
                    }
                }
            }
        }
    }
}
