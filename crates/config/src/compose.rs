//! Composes runs from the files compiled into the program and those of a directory.

use std::path::{Path, PathBuf};

use hydra_config::{AsOverride, ComposeContext, Composition, ConfTree, ConfigError, Override};
use include_dir::{Dir, include_dir};

use super::{Composed, RunConfig};

static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../conf");

/// Only the files compiled into the program.
pub fn built_in() -> ConfTree {
    let mut files = Vec::new();
    let mut folders = vec![&BUILT_IN];
    while let Some(folder) = folders.pop() {
        folders.extend(folder.dirs());
        for file in folder.files() {
            if let (Some(path), Some(text)) = (file.path().to_str(), file.contents_utf8()) {
                files.push((path.replace('\\', "/"), text));
            }
        }
    }
    ConfTree::from_files(files)
}

/// The files of `dir`, and the built-in files that `dir` does not have.
pub fn over_built_in(dir: impl Into<PathBuf>) -> Result<ConfTree, ConfigError> {
    built_in().with_dir(dir)
}

/// The tree that a command uses: `conf_dir` if given (it must exist), else `conf/` in `cwd` if it exists, else the
/// built-in files.
pub fn find_tree(conf_dir: Option<&Path>, cwd: &Path) -> Result<ConfTree, ConfigError> {
    match conf_dir {
        Some(dir) => over_built_in(dir),
        None if cwd.join("conf").is_dir() => over_built_in(cwd.join("conf")),
        None => Ok(built_in()),
    }
}

/// The current time and the working directory of this process.
pub fn current_context() -> ComposeContext {
    ComposeContext::current("llmprof-tui")
}

/// Composes `config.yaml`, the options its defaults list names, and `overrides`.
pub fn compose(tree: &ConfTree, overrides: &[impl AsOverride]) -> Result<Composed, ConfigError> {
    compose_in(tree, overrides, &current_context())
}

/// [`compose`] with a given time and working directory.
pub fn compose_in(
    tree: &ConfTree,
    overrides: &[impl AsOverride],
    context: &ComposeContext,
) -> Result<Composed, ConfigError> {
    hydra_config::compose(tree, overrides, context)
}

/// The content of a sweep's `multirun.yaml`; see [`hydra_config::multirun_yaml`].
pub fn multirun_yaml(
    tree: &ConfTree,
    overrides: &[Override],
    jobs: &[Vec<Override>],
    context: &ComposeContext,
) -> Result<String, ConfigError> {
    hydra_config::multirun_yaml::<RunConfig>(tree, overrides, jobs, context)
}

/// The composition as it was written: nothing is resolved, and values may have any type.
pub fn compose_untyped(tree: &ConfTree, overrides: &[impl AsOverride]) -> Result<Composition, ConfigError> {
    Composition::with_schema::<RunConfig>(tree, overrides, &current_context())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Candidates;

    #[test]
    fn a_command_finds_its_tree() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find_tree(None, dir.path()).unwrap().search_path().len(), 1);
        std::fs::create_dir(dir.path().join("conf")).unwrap();
        assert_eq!(find_tree(None, dir.path()).unwrap().search_path().len(), 2);
        assert!(find_tree(None, Path::new("/nowhere")).is_ok());
        let error = find_tree(Some(Path::new("/nowhere/../../conf")), Path::new("/")).unwrap_err();
        assert_eq!(error.to_string(), "no configuration directory at /nowhere/../../conf");
    }

    #[test]
    fn typed_keys_complete_their_values() {
        let tree = built_in();
        let candidates = Candidates::new(&tree, &[]);
        let values = |word: &str| -> Vec<String> {
            candidates.overrides(word).into_iter().map(|one| one.text[word.len()..].to_owned()).collect()
        };
        assert_eq!(values("model.dtype=")[..4], ["auto", "bf16", "f16", "f32"]);
        assert_eq!(values("model.dtype=q4_k"), ["_m"]);
        assert_eq!(values("output.record="), ["false", "true"]);
        assert_eq!(values("output.tui.ascii="), ["false", "null", "true"]);
        assert_eq!(values("output.tui.theme=li"), ["ght"]);
        assert_eq!(values("telemetry.probe="), ["auto", "none", "nvml", "sim"]);
        assert_eq!(values("model.dtype=f32,")[..3], ["auto", "bf16", "f16"]);
        assert_eq!(values("runtime.seed="), ["0"]);
        let notes = candidates.overrides("model=smollm2_135m");
        assert_eq!(notes[0].note, "SmolLM2 135M: the default, small enough for any laptop.");
    }
}
