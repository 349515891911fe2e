//! `bootstrap.yaml`: the links to create, where to search for their targets, and the required files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::AssetError;
use super::paths;
use llmprof_config::{Names, read_yaml};

/// Looks up an environment variable.
pub(super) type Env<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// The base directory: that of the first variable that is set, else the default.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Base {
    /// Environment variables; `HF_HOME/hub` is the directory `hub` below `$HF_HOME`.
    pub(super) env: Vec<String>,
    /// `~` is the home directory.
    pub(super) default: String,
}

impl Base {
    pub(super) fn resolve(&self, env: &Env) -> Result<PathBuf, AssetError> {
        for entry in &self.env {
            let (name, subdir) = entry.split_once('/').unwrap_or((entry, ""));
            if let Some(value) = env(name).filter(|v| !v.is_empty()) {
                let dir = PathBuf::from(value);
                return Ok(absolute(&if subdir.is_empty() { dir } else { dir.join(subdir) }));
            }
        }
        let home = env("HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
        match self.default.strip_prefix('~') {
            Some(rest) => match home {
                Some(home) => Ok(absolute(&home.join(rest.trim_start_matches('/')))),
                None => Err(AssetError::Usage(format!(
                    "HOME is not set, so {} cannot be resolved; set {}",
                    self.default,
                    self.env.join(" or ")
                ))),
            },
            None => Ok(absolute(Path::new(&self.default))),
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// `models/bootstrap.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelManifest {
    pub(super) base: Base,
    pub(super) models: Vec<ModelEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelEntry {
    /// The name of the link, usually that of the option in `conf/model/`.
    pub(super) name: String,
    /// The repository on the hub, which determines where to search.
    pub(super) hub: Option<String>,
    #[serde(default = "main_branch")]
    pub(super) revision: String,
    /// The path below the base, if `hub` does not determine it.
    pub(super) path: Option<String>,
    /// Required files; the last component can be a shell pattern.
    #[serde(default)]
    pub(super) required: Vec<String>,
    /// It may be absent, unless it is requested by name.
    #[serde(default)]
    pub(super) optional: bool,
}

pub(super) fn main_branch() -> String {
    "main".into()
}

/// `datasets/<name>/bootstrap.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DatasetManifest {
    pub(super) base: Base,
    /// The path below the base.
    pub(super) path: String,
    #[serde(default)]
    pub(super) required: Vec<String>,
    /// Archives to extract.
    #[serde(default)]
    pub(super) archives: Vec<ArchiveEntry>,
    #[serde(default)]
    pub(super) optional: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArchiveEntry {
    /// The archive, relative to the dataset directory.
    pub(super) file: String,
    /// The target directory, relative to the dataset directory; skipped if it exists.
    pub(super) into: String,
}

impl ModelManifest {
    pub(super) fn read(root: &Path) -> Result<ModelManifest, AssetError> {
        let path = root.join("models/bootstrap.yaml");
        let manifest: ModelManifest = read_manifest(&path)?;
        for entry in &manifest.models {
            paths::plain_name("model name", &entry.name)?;
            if entry.hub.is_none() && entry.path.is_none() {
                let why = format!("it has neither hub nor path in {}", path.display());
                return Err(AssetError::BadName { what: "model", name: entry.name.clone(), why });
            }
        }
        Ok(manifest)
    }
}

/// The manifests of all datasets that have one, by name.
pub(super) fn dataset_manifests(root: &Path) -> Result<BTreeMap<String, DatasetManifest>, AssetError> {
    let mut found = BTreeMap::new();
    for name in dataset_names(root)? {
        let path = root.join("datasets").join(&name).join("bootstrap.yaml");
        if path.exists() {
            found.insert(name, read_manifest(&path)?);
        }
    }
    Ok(found)
}

/// The directories under `datasets/`.
pub(super) fn dataset_names(root: &Path) -> Result<Vec<String>, AssetError> {
    let dir = root.join("datasets");
    if !dir.is_dir() {
        return Err(AssetError::NoManifest { path: dir });
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir).map_err(AssetError::io("list", &dir))? {
        let entry = entry.map_err(AssetError::io("list", &dir))?;
        if entry.path().is_dir()
            && let Ok(name) = entry.file_name().into_string()
            && !name.starts_with('.')
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read_manifest<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, AssetError> {
    if !path.exists() {
        return Err(AssetError::NoManifest { path: path.to_owned() });
    }
    Ok(read_yaml(path)?)
}

/// Refuses names that are not in `all`.
pub(super) fn require_known<'n>(
    kind: &'static str,
    names: impl IntoIterator<Item = &'n str>,
    all: &[String],
) -> Result<(), AssetError> {
    match names.into_iter().find(|name| !all.iter().any(|known| known == name)) {
        None => Ok(()),
        Some(name) => Err(AssetError::Unknown {
            kind,
            name: name.to_owned(),
            names: Names::near(name, all).into(),
            note: "",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_set_variable_is_used() {
        let base = Base { env: vec!["A".into(), "B/hub".into()], default: "~/x".into() };
        let with = |vars: &'static [(&str, &str)]| {
            let env = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(*v));
            base.resolve(&env).map(|p| p.display().to_string()).map_err(|e| e.to_string())
        };
        assert_eq!(with(&[("A", "/a"), ("B", "/b")]).unwrap(), "/a");
        assert_eq!(with(&[("A", ""), ("B", "/b")]).unwrap(), "/b/hub");
        assert_eq!(with(&[("HOME", "/home/u")]).unwrap(), "/home/u/x");
        assert_eq!(with(&[]).unwrap_err(), "HOME is not set, so ~/x cannot be resolved; set A or B/hub");
    }
}
