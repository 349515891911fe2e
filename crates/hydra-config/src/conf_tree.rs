//! The configuration files: those of a directory, then those compiled into the program.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::error::{ConfigError, Origin};
use crate::yaml;

/// Maximum depth of groups, so that listing ends even if a link points to a parent directory.
const MAX_GROUP_DEPTH: usize = 6;

/// The files of a configuration: groups are folders, options are the `.yaml` files in them.
#[derive(Debug, Clone, Default)]
pub struct ConfTree {
    dir: Option<PathBuf>,
    built_in: BTreeMap<String, String>,
}

/// The text of a file and its origin.
#[derive(Debug, Clone)]
pub(crate) struct ConfFile {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

impl ConfTree {
    /// A tree of the given files (`model/tiny.yaml` and its text), which count as built in.
    pub fn from_files<P: Into<String>, T: Into<String>>(files: impl IntoIterator<Item = (P, T)>) -> ConfTree {
        let built_in = files.into_iter().map(|(path, text)| (path.into(), text.into())).collect();
        ConfTree { dir: None, built_in }
    }

    /// The same tree with the files of `dir` in place of built-in ones of the same name.
    pub fn with_dir(self, dir: impl Into<PathBuf>) -> Result<ConfTree, ConfigError> {
        let dir = dir.into();
        match dir.is_dir() {
            true => Ok(ConfTree { dir: Some(dir), ..self }),
            false => Err(ConfigError::MissingDir { path: dir }),
        }
    }

    /// All groups, sorted; a nested one is written `model/qwen`. One whose name begins with `_`, such as `model/_shared`, is
    /// only for the defaults lists of options and is left out.
    pub fn groups(&self) -> Vec<String> {
        let group = |path: String| path.rsplit_once('/').map(|(group, _)| group.to_owned());
        let is_listed = |group: &String| !group.split('/').any(|name| name.starts_with('_'));
        let groups: BTreeSet<String> = self.paths().into_iter().filter_map(group).filter(is_listed).collect();
        groups.into_iter().collect()
    }

    /// The options of `group`, sorted; empty if there is no such group.
    pub fn options(&self, group: &str) -> Vec<String> {
        let option = |path: &String| {
            let (parent, file) = path.rsplit_once('/')?;
            if parent != group { None } else { file.strip_suffix(".yaml").map(str::to_owned) }
        };
        self.paths().iter().filter_map(option).collect()
    }

    /// Whether there is a directory of this name.
    pub fn has_group(&self, group: &str) -> bool {
        if !is_plain_path(group) {
            return false;
        }
        let inside = |path: &String| path.strip_prefix(group).is_some_and(|rest| rest.starts_with('/'));
        let in_dir = self.dir.as_ref().is_some_and(|dir| dir.join(group).is_dir());
        in_dir || self.built_in.keys().any(inside)
    }

    /// The directories searched for files, in order.
    pub fn search_path(&self) -> Vec<String> {
        let dir = self.dir.as_ref().map(|dir| dir.display().to_string());
        dir.into_iter().chain(["the files built into the program".to_owned()]).collect()
    }

    /// The file `name` (a path without `.yaml`); `None` if there is none.
    pub(crate) fn read(&self, name: &str) -> Result<Option<ConfFile>, ConfigError> {
        if !is_plain_path(name) {
            return Ok(None);
        }
        let path = if name.ends_with(".yaml") { name.to_owned() } else { format!("{name}.yaml") };
        if let Some(dir) = &self.dir {
            let full = dir.join(&path);
            match read_text(&full) {
                Ok(text) => {
                    let origin = Origin::File { path: full.display().to_string().into(), line: 1 };
                    return Ok(Some(ConfFile { text, origin }));
                }
                Err(error) if is_absent(&error) => {}
                Err(source) => return Err(ConfigError::Unreadable { path: full, source }),
            }
        }
        let built_in = self.built_in.get(&path);
        Ok(built_in.map(|text| ConfFile {
            text: text.clone(),
            origin: Origin::BuiltIn { path: path.into(), line: 1 },
        }))
    }

    /// All `.yaml` files of the directory and of the program, relative to the tree, sorted.
    fn paths(&self) -> BTreeSet<String> {
        let mut paths: BTreeSet<String> = self.built_in.keys().cloned().collect();
        if let Some(dir) = &self.dir {
            list(dir, "", 0, &mut paths);
        }
        paths.retain(|path| path.ends_with(".yaml"));
        paths
    }
}

/// Whether `name` is a relative path without `.` and `..`, which stays inside the tree.
fn is_plain_path(name: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', '\0']);
    name.split('/').all(plain)
}

/// The text of a file, cut far above the size limit so that the parser still refuses a file that is too long.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        // Opening a pipe without a writer would block.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut text = String::new();
    std::fs::File::open(path)?.take(16 * yaml::MAX_BYTES as u64).read_to_string(&mut text)?;
    Ok(text)
}

/// A name that is too long for the file system cannot exist either.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename
    )
}

/// Adds the files under `dir`. Directories that cannot be listed are skipped; reading a file in one reports the error.
fn list(dir: &Path, prefix: &str, depth: usize, paths: &mut BTreeSet<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if path.is_dir() {
            if depth < MAX_GROUP_DEPTH && !name.starts_with('.') {
                list(&path, &format!("{prefix}{name}/"), depth + 1, paths);
            }
        } else {
            paths.insert(format!("{prefix}{name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_options() {
        let tree = ConfTree::from_files([
            ("config.yaml", ""),
            ("model/a.yaml", ""),
            ("model/b.yaml", ""),
            ("model/qwen/c.yaml", ""),
            ("notes/readme.md", ""),
        ]);
        assert_eq!(tree.groups(), ["model", "model/qwen"]);
        assert_eq!(tree.options("model"), ["a", "b"]);
        assert_eq!(tree.options("model/qwen"), ["c"]);
        assert!(tree.options("nothing").is_empty());
    }

    fn over(dir: &Path) -> ConfTree {
        ConfTree::from_files([("model/a.yaml", "name: a"), ("model/b.yaml", "name: b")])
            .with_dir(dir)
            .unwrap()
    }

    #[test]
    fn files_of_a_directory_replace_built_in_ones() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("model")).unwrap();
        std::fs::write(dir.path().join("model/mine.yaml"), "name: mine").unwrap();
        std::fs::write(dir.path().join("model/a.yaml"), "name: changed").unwrap();
        let tree = over(dir.path());
        assert_eq!(tree.options("model"), ["a", "b", "mine"]);
        assert_eq!(tree.read("model/a").unwrap().unwrap().text, "name: changed");
        assert!(matches!(tree.read("model/b").unwrap().unwrap().origin, Origin::BuiltIn { .. }));
    }

    #[test]
    fn names_stay_inside_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("conf")).unwrap();
        std::fs::write(dir.path().join("secret.yaml"), "a: 1").unwrap();
        let tree = over(&dir.path().join("conf"));
        let absolute = dir.path().join("secret").display().to_string();
        let long = "x".repeat(5000);
        for name in ["../secret", "model/../../secret", "", "model//a", &absolute, "a\0b", &long] {
            assert!(tree.read(name).unwrap().is_none(), "{name:?}");
        }
    }

    #[test]
    fn a_named_directory_must_exist() {
        let error = ConfTree::default().with_dir("/nowhere/conf").unwrap_err();
        assert_eq!(error.to_string(), "no configuration directory at /nowhere/conf");
    }

    #[test]
    fn a_file_that_is_not_text_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.yaml"), [0xff, 0xfe, 0x00]).unwrap();
        let error = over(dir.path()).read("config").unwrap_err();
        assert!(error.to_string().contains("config.yaml"), "{error}");
    }
}
