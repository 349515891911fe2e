//! Links in `models/` and `datasets/` to the data on disk, as the manifests describe them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::archive::{self, Limits};
use super::error::AssetError;
use super::hub;
use super::manifest::{
    ArchiveEntry, DatasetManifest, Env, ModelEntry, ModelManifest, dataset_manifests, require_known,
};
use super::paths;
use llmprof_base::shell::quoted;
use llmprof_config::glob_matches;

/// The kinds of assets that are linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Models,
    Datasets,
}

impl Kind {
    fn singular(self) -> &'static str {
        match self {
            Kind::Models => "model",
            Kind::Datasets => "dataset",
        }
    }
}

/// A link to create.
#[derive(Debug)]
pub struct Item {
    kind: Kind,
    name: String,
    link: PathBuf,
    base: PathBuf,
    /// Possible targets below `base`, most likely first.
    candidates: Vec<PathBuf>,
    required: Vec<String>,
    archives: Vec<ArchiveEntry>,
    optional: bool,
    remedy: String,
}

/// The result for one link.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub kind: Kind,
    pub name: String,
    pub link: PathBuf,
    pub target: Option<PathBuf>,
    pub state: State,
    /// Archives extracted, or to be extracted.
    pub extracted: Vec<PathBuf>,
    /// The cause and the remedy, if there is a problem.
    pub note: Option<String>,
    /// Whether the command fails because of it.
    pub failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Linked,
    Replaced,
    Unchanged,
    /// The existing link was kept because the user declined.
    Kept,
    WouldLink,
    WouldReplace,
    Absent,
    Incomplete,
    Failed,
}

impl State {
    pub fn label(self) -> &'static str {
        match self {
            State::Linked => "linked",
            State::Replaced => "replaced",
            State::Unchanged => "unchanged",
            State::Kept => "kept",
            State::WouldLink => "would link",
            State::WouldReplace => "would replace",
            State::Absent => "absent",
            State::Incomplete => "incomplete",
            State::Failed => "failed",
        }
    }
}

/// Reads the manifests below `root`: all of `kind` (or of both), or those with the given names.
pub fn plan(root: &Path, kind: Option<Kind>, names: &[String], env: &Env) -> Result<Vec<Item>, AssetError> {
    let mut items = Vec::new();

    if kind != Some(Kind::Models) {
        for (name, manifest) in dataset_manifests(root)? {
            items.push(dataset_item(root, &name, manifest, env)?);
        }
    }
    if kind != Some(Kind::Datasets) {
        let manifest = ModelManifest::read(root)?;
        let base = manifest.base.resolve(env)?;
        for entry in manifest.models {
            items.push(model_item(root, &base, entry)?);
        }
    }
    if !names.is_empty() {
        let all: Vec<String> = items.iter().map(|item| item.name.clone()).collect();
        let kind = kind.map_or("model or dataset", Kind::singular);
        require_known(kind, names.iter().map(String::as_str), &all)?;
        items.retain(|item| names.contains(&item.name));
        // An asset requested by name must exist.
        items.iter_mut().for_each(|item| item.optional = false);
    }
    Ok(items)
}

fn model_item(root: &Path, base: &Path, entry: ModelEntry) -> Result<Item, AssetError> {
    let mut candidates = Vec::new();
    if let Some(path) = &entry.path {
        candidates.push(base.join(paths::require_relative("path", path)?));
    }
    if let Some(repo) = &entry.hub {
        candidates.extend(hub::cached_snapshot(base, repo, &entry.revision));
        candidates.push(base.join(paths::require_relative("hub repository", repo)?));
    }
    candidates.push(base.join(&entry.name));
    let remedy = match &entry.hub {
        Some(repo) => format!("run: llmprof-tui fetch {}", quoted(repo)),
        None => "copy it there, or set the environment variable".to_owned(),
    };
    Ok(Item {
        kind: Kind::Models,
        link: root.join("models").join(&entry.name),
        name: entry.name,
        base: base.to_owned(),
        candidates,
        required: entry.required,
        archives: Vec::new(),
        optional: entry.optional,
        remedy,
    })
}

fn dataset_item(root: &Path, name: &str, manifest: DatasetManifest, env: &Env) -> Result<Item, AssetError> {
    let base = manifest.base.resolve(env)?;
    let vars = manifest.base.env.join(" or ");
    Ok(Item {
        kind: Kind::Datasets,
        name: name.to_owned(),
        link: root.join("datasets").join(name).join("source-data"),
        candidates: vec![base.join(paths::require_relative("path", &manifest.path)?)],
        base,
        required: manifest.required,
        archives: manifest.archives,
        optional: manifest.optional,
        remedy: format!("copy it there or set {vars}; see datasets/{name}/README.md"),
    })
}

/// The object at the path of the link.
enum Existing {
    Nothing,
    SameLink,
    OtherLink(PathBuf),
    /// A file or a directory, which is never replaced.
    NotALink,
}

impl Item {
    /// Creates the link, or reports with `dry_run` what would be done. `confirm` decides whether a link is replaced.
    pub fn apply(
        &self,
        dry_run: bool,
        limits: Limits,
        confirm: &mut dyn FnMut(&str) -> Result<bool, AssetError>,
    ) -> Outcome {
        let mut outcome = Outcome {
            kind: self.kind,
            name: self.name.clone(),
            link: self.link.clone(),
            target: None,
            state: State::Failed,
            extracted: Vec::new(),
            note: None,
            failed: false,
        };
        if let Err(e) = self.create(dry_run, limits, confirm, &mut outcome) {
            outcome.state = State::Failed;
            outcome.note = Some(e.to_string());
        }
        outcome.failed = match outcome.state {
            State::Failed | State::Incomplete | State::Kept => true,
            State::Absent => !self.optional,
            _ => false,
        };
        outcome
    }

    fn create(
        &self,
        dry_run: bool,
        limits: Limits,
        confirm: &mut dyn FnMut(&str) -> Result<bool, AssetError>,
        outcome: &mut Outcome,
    ) -> Result<(), AssetError> {
        let Some(target) = self.find_target()? else {
            outcome.state = State::Absent;
            let searched: Vec<_> = self.candidates.iter().map(|path| path.display().to_string()).collect();
            outcome.note = Some(format!("not found at {}; {}", searched.join(", "), self.remedy));
            return Ok(());
        };
        outcome.target = Some(target.clone());
        let planned = self.extract(&target, dry_run, limits, outcome)?;
        let missing = self.missing(&target, &planned)?;
        if !missing.is_empty() {
            outcome.state = State::Incomplete;
            let missing = missing.join(", ");
            outcome.note = Some(format!("{} lacks {missing}; {}", target.display(), self.remedy));
            return Ok(());
        }
        outcome.state = match (self.existing(&target)?, dry_run) {
            (Existing::SameLink, _) => State::Unchanged,
            (Existing::Nothing, true) => State::WouldLink,
            (Existing::Nothing, false) => {
                self.write_link(&target)?;
                State::Linked
            }
            (Existing::OtherLink(_), true) => State::WouldReplace,
            (Existing::OtherLink(old), false) => {
                let question = format!(
                    "{} points to {}; replace it with a link to {}?",
                    self.link.display(),
                    old.display(),
                    target.display()
                );
                if confirm(&question)? {
                    self.write_link(&target)?;
                    State::Replaced
                } else {
                    outcome.note = Some(format!("it points to {}", old.display()));
                    State::Kept
                }
            }
            (Existing::NotALink, _) => {
                return Err(AssetError::Failed(format!(
                    "{} exists and is not a link; move it and run this command again",
                    self.link.display()
                )));
            }
        };
        Ok(())
    }

    fn find_target(&self) -> Result<Option<PathBuf>, AssetError> {
        if !self.base.is_dir() {
            return Ok(None);
        }
        for candidate in &self.candidates {
            if let Some(real) = paths::resolve_below(&self.base, candidate)? {
                if !real.is_dir() {
                    return Err(AssetError::Failed(format!(
                        "{} is a file, not a directory",
                        candidate.display()
                    )));
                }
                return Ok(Some(real));
            }
        }
        Ok(None)
    }

    /// Extracts the archives that are not extracted yet. Returns the directories that a dry run would create.
    fn extract(
        &self,
        target: &Path,
        dry_run: bool,
        limits: Limits,
        outcome: &mut Outcome,
    ) -> Result<Vec<PathBuf>, AssetError> {
        let mut planned = Vec::new();
        for entry in &self.archives {
            let file = target.join(paths::require_relative("archive", &entry.file)?);
            let into = paths::require_relative("directory", &entry.into)?;
            let directory = target.join(&into);
            if paths::resolve_below(target, &directory)?.is_some() {
                continue;
            }
            let Some(file) = paths::resolve_below(target, &file)? else { continue };
            // A parent that is a link could point outside of the target.
            for parent in into.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
                paths::resolve_below(target, &target.join(parent))?;
            }
            if dry_run {
                archive::check(&file, limits)?;
                planned.push(into);
            } else {
                archive::extract(&file, &directory, limits)?;
            }
            outcome.extracted.push(file);
        }
        Ok(planned)
    }

    /// The required files that do not exist, except those below `planned`.
    fn missing(&self, target: &Path, planned: &[PathBuf]) -> Result<Vec<String>, AssetError> {
        let mut missing = Vec::new();
        for pattern in &self.required {
            let path = paths::require_relative("required file", pattern)?;
            if planned.iter().any(|dir| path.starts_with(dir)) {
                continue;
            }
            let last = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let exists = if last.contains('*') {
                let dir = target.join(path.parent().unwrap_or(Path::new("")));
                let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
                let mut matching = entries.filter(|e| glob_matches(&last, &e.file_name().to_string_lossy()));
                matching.any(|e| e.path().exists())
            } else {
                paths::resolve_below(&self.base, &target.join(&path))?.is_some()
            };
            if !exists {
                missing.push(pattern.clone());
            }
        }
        Ok(missing)
    }

    fn existing(&self, target: &Path) -> Result<Existing, AssetError> {
        match fs::symlink_metadata(&self.link) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Existing::Nothing),
            Err(e) => Err(AssetError::io("access", &self.link)(e)),
            Ok(meta) if !meta.is_symlink() => Ok(Existing::NotALink),
            Ok(_) => {
                let old = fs::read_link(&self.link).map_err(AssetError::io("read", &self.link))?;
                let same = old == target || self.link.canonicalize().is_ok_and(|real| real == target);
                Ok(if same { Existing::SameLink } else { Existing::OtherLink(old) })
            }
        }
    }

    /// Creates or replaces the link atomically.
    fn write_link(&self, target: &Path) -> Result<(), AssetError> {
        let temporary = self.link.with_file_name(format!(".{}.new-{}", self.name, std::process::id()));
        link_to(target, &temporary).map_err(AssetError::io("create the link", &self.link))?;
        fs::rename(&temporary, &self.link).map_err(|e| {
            let _ = fs::remove_file(&temporary);
            AssetError::io("create the link", &self.link)(e)
        })
    }
}

#[cfg(unix)]
fn link_to(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn link_to(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_dir(target, link)
}
