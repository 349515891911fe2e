//! `bootstrap.yaml`: what should be linked, where it is looked for, and what it must hold.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::AssetError;
use super::paths;
use crate::config::{Names, read_yaml};

/// How a variable of the environment is looked up; tests bring their own.
pub(super) type Env<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// Where things are looked for: the first variable that is set, else the default.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Base {
    /// Names of variables; `HF_HOME/hub` is the directory `hub` below the variable's.
    pub(super) env: Vec<String>,
    /// `~` is the home directory.
    pub(super) default: String,
}

impl Base {
    pub(super) fn resolve(&self, env: &Env) -> Result<PathBuf, AssetError> {
        for entry in &self.env {
            let (name, below) = entry.split_once('/').unwrap_or((entry, ""));
            if let Some(value) = env(name).filter(|v| !v.is_empty()) {
                let dir = PathBuf::from(value);
                return Ok(absolute(&if below.is_empty() { dir } else { dir.join(below) }));
            }
        }
        let home = env("HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
        match self.default.strip_prefix('~') {
            Some(rest) => match home {
                Some(home) => Ok(absolute(&home.join(rest.trim_start_matches('/')))),
                None => Err(AssetError::Usage(format!(
                    "HOME is not set, so {} names nothing; set {}",
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
    /// The link's name; by custom that of the option in `conf/model/`.
    pub(super) name: String,
    /// Repository on the hub, from which the places to look follow.
    pub(super) hub: Option<String>,
    #[serde(default = "main_branch")]
    pub(super) revision: String,
    /// Where it lies below the base, where that does not follow from `hub`.
    pub(super) path: Option<String>,
    /// Files it must hold; `*` stands for anything within the last name.
    #[serde(default)]
    pub(super) required: Vec<String>,
    /// Its absence is no failure unless it is asked for by name.
    #[serde(default)]
    pub(super) optional: bool,
}

fn main_branch() -> String {
    "main".into()
}

/// `datasets/<name>/bootstrap.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DatasetManifest {
    pub(super) base: Base,
    /// Where it lies below the base.
    pub(super) path: String,
    #[serde(default)]
    pub(super) required: Vec<String>,
    /// Archives to extract beside themselves.
    #[serde(default)]
    pub(super) archives: Vec<ArchiveEntry>,
    #[serde(default)]
    pub(super) optional: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArchiveEntry {
    /// Below the dataset's directory.
    pub(super) file: String,
    /// The directory it becomes, below the dataset's; one that exists is left alone.
    pub(super) into: String,
}

impl ModelManifest {
    pub(super) fn read(root: &Path) -> Result<ModelManifest, AssetError> {
        let path = root.join("models/bootstrap.yaml");
        let manifest: ModelManifest = read_manifest(&path)?;
        for entry in &manifest.models {
            paths::plain_name("model name", &entry.name)?;
            if entry.hub.is_none() && entry.path.is_none() {
                let why = format!("neither hub nor path is given for it in {}", path.display());
                return Err(AssetError::BadName { what: "model", name: entry.name.clone(), why });
            }
        }
        Ok(manifest)
    }
}

/// Every dataset that has a manifest, by name; none is an empty map.
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

/// Refuses names that are not among `all`.
pub(super) fn known(kind: &'static str, names: &[String], all: &[String]) -> Result<(), AssetError> {
    match names.iter().find(|name| !all.contains(name)) {
        None => Ok(()),
        Some(name) => Err(AssetError::Unknown {
            kind,
            name: name.clone(),
            names: Names::near(name, all).into(),
            note: "",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_wins() {
        let base = Base { env: vec!["A".into(), "B/hub".into()], default: "~/x".into() };
        let with = |vars: &'static [(&str, &str)]| {
            let env = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(*v));
            base.resolve(&env).map(|p| p.display().to_string()).map_err(|e| e.to_string())
        };
        assert_eq!(with(&[("A", "/a"), ("B", "/b")]).unwrap(), "/a");
        assert_eq!(with(&[("A", ""), ("B", "/b")]).unwrap(), "/b/hub");
        assert_eq!(with(&[("HOME", "/home/u")]).unwrap(), "/home/u/x");
        assert_eq!(with(&[]).unwrap_err(), "HOME is not set, so ~/x names nothing; set A or B/hub");
    }
}
