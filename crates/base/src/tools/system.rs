//! Files, variables and programs of the system. Tests use a simulated one.

use std::{
    collections::HashMap,
    env, fs,
    path::{Component, Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use super::process::{self, ToolError};

/// The root of the file system, and environment variables.
#[derive(Debug, Clone)]
pub struct System {
    /// `/`, or the directory that replaces it.
    pub root: PathBuf,
    pub variables: HashMap<String, String>,
    /// Stops running programs when set.
    pub stop: Arc<AtomicBool>,
}

impl System {
    /// The system that this program runs on.
    pub fn here() -> System {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        System {
            root: PathBuf::from("/"),
            variables: env::vars_os().filter_map(text).collect(),
            stop: Arc::default(),
        }
    }

    /// A variable that is set and not empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether this is Linux under WSL, where the driver is that of Windows.
    pub fn is_wsl(&self) -> bool {
        self.read("/proc/sys/kernel/osrelease")
            .is_some_and(|release| release.to_lowercase().contains("microsoft"))
    }

    /// The file system path of `path`.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let below = path.as_ref().components().filter(|part| !matches!(part, Component::RootDir));
        self.root.join(below.collect::<PathBuf>())
    }

    pub fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok()
    }

    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).exists()
    }

    /// The existing paths that match a pattern, sorted. Each part of it may have one `*`.
    pub fn matching(&self, pattern: &str) -> Vec<PathBuf> {
        let mut found = vec![PathBuf::from("/")];
        for part in pattern.split('/').filter(|part| !part.is_empty()) {
            found = match part.split_once('*') {
                None => found.into_iter().map(|dir| dir.join(part)).filter(|path| self.has(path)).collect(),
                Some((head, tail)) => {
                    let fits = |name: &str| {
                        name.len() >= head.len() + tail.len()
                            && name.starts_with(head)
                            && name.ends_with(tail)
                    };
                    found
                        .iter()
                        .flat_map(|dir| {
                            self.names_in(dir).into_iter().filter(|n| fits(n)).map(|n| dir.join(n))
                        })
                        .collect()
                }
            };
        }
        found
    }

    /// The names in a directory, sorted; empty if the directory does not exist.
    pub fn names_in(&self, dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(self.at(dir)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The path with all links resolved, relative to the root.
    pub fn real(&self, path: &Path) -> PathBuf {
        let Ok(real) = self.at(path).canonicalize() else { return path.to_owned() };
        let root = self.root.canonicalize().unwrap_or_else(|_| self.root.clone());
        real.strip_prefix(&root).map_or(real.clone(), |below| Path::new("/").join(below))
    }

    /// The output of a program, which is killed at `until`.
    pub fn output(&self, program: &Path, args: &[&str], until: Instant) -> Result<String, ToolError> {
        process::output(&self.at(program), args, until, &self.stop)
    }

    /// The directories in a variable such as PATH.
    pub fn folders(&self, variable: &str) -> Vec<PathBuf> {
        let listed = self.variable(variable).unwrap_or_default().split(':');
        listed.filter(|folder| folder.starts_with('/')).map(PathBuf::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_existing_paths() {
        let root = tempfile::tempdir().unwrap();
        for dir in ["usr/local/cuda-12.4/bin", "usr/local/cuda-13.0/bin", "usr/local/other/bin", "opt"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        fs::write(root.path().join("usr/local/cuda-13.0/bin/nsys"), "").unwrap();
        let system = System { root: root.path().to_owned(), ..System::here() };
        let names = |pattern| system.matching(pattern);
        assert_eq!(names("/usr/local/cuda*/bin").len(), 2);
        assert_eq!(names("/usr/local/cuda*/bin/nsys"), [PathBuf::from("/usr/local/cuda-13.0/bin/nsys")]);
        assert_eq!(names("/opt"), [PathBuf::from("/opt")]);
        assert!(names("/nowhere/*").is_empty());
        std::os::unix::fs::symlink("cuda-13.0", root.path().join("usr/local/cuda")).unwrap();
        let linked = Path::new("/usr/local/cuda/bin/nsys");
        assert_eq!(system.real(linked), Path::new("/usr/local/cuda-13.0/bin/nsys"));
    }
}
