//! Links from `models/` and `datasets/` to where the data lies: a plan from the manifests, then the work.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::archive;
use super::error::AssetError;
use super::hub;
use super::manifest::{
    ArchiveEntry, DatasetManifest, Env, ModelEntry, ModelManifest, dataset_manifests, known,
};
use super::paths;

/// The two kinds of things that are linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Models,
    Datasets,
}

impl Kind {
    fn one(self) -> &'static str {
        match self {
            Kind::Models => "model",
            Kind::Datasets => "dataset",
        }
    }
}

/// One thing to link.
#[derive(Debug)]
pub(crate) struct Item {
    kind: Kind,
    name: String,
    link: PathBuf,
    base: PathBuf,
    /// Places below `base` where it may lie, the likeliest first.
    places: Vec<PathBuf>,
    required: Vec<String>,
    archives: Vec<ArchiveEntry>,
    optional: bool,
    remedy: String,
}

/// How it stands with one thing, in the end.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) link: PathBuf,
    pub(crate) target: Option<PathBuf>,
    pub(crate) state: State,
    /// Archives extracted, or to be extracted.
    pub(crate) extracted: Vec<PathBuf>,
    /// What to know about it, in words.
    pub(crate) note: Option<String>,
    /// Whether this makes the command fail.
    pub(crate) failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Linked,
    Replaced,
    Unchanged,
    /// The link there was is kept, as the answer was no.
    Kept,
    WouldLink,
    WouldReplace,
    Absent,
    Incomplete,
    Failed,
}

impl State {
    pub(crate) fn word(self) -> &'static str {
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
pub(crate) fn plan(
    root: &Path,
    kind: Option<Kind>,
    names: &[String],
    env: &Env,
) -> Result<Vec<Item>, AssetError> {
    let mut items = Vec::new();
    // Datasets first, as in the workspace scripts this follows.
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
        known(kind.map_or("model or dataset", Kind::one), names, &all)?;
        items.retain(|item| names.contains(&item.name));
        // What is asked for by name has to be there.
        items.iter_mut().for_each(|item| item.optional = false);
    }
    Ok(items)
}

fn below(what: &'static str, text: &str) -> Result<PathBuf, AssetError> {
    paths::relative(text).map_err(|why| AssetError::BadName {
        what,
        name: text.to_owned(),
        why: format!("it {why}"),
    })
}

fn model_item(root: &Path, base: &Path, entry: ModelEntry) -> Result<Item, AssetError> {
    let mut places = Vec::new();
    if let Some(path) = &entry.path {
        places.push(base.join(below("path", path)?));
    }
    if let Some(repo) = &entry.hub {
        places.extend(hub::cached_snapshot(base, repo, &entry.revision));
        places.push(base.join(below("hub repository", repo)?));
    }
    places.push(base.join(&entry.name));
    let remedy = match &entry.hub {
        Some(repo) => format!("get it with: llmprof-tui fetch {repo}"),
        None => "put it there, or set the variable".to_owned(),
    };
    Ok(Item {
        kind: Kind::Models,
        link: root.join("models").join(&entry.name),
        name: entry.name,
        base: base.to_owned(),
        places,
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
        places: vec![base.join(below("path", &manifest.path)?)],
        base,
        required: manifest.required,
        archives: manifest.archives,
        optional: manifest.optional,
        remedy: format!("put it there or set {vars}; datasets/{name}/README.md says where it comes from"),
    })
}

/// What stands where the link should be.
enum Standing {
    Nothing,
    Same,
    Other(PathBuf),
    /// No link at all: never touched.
    Occupied,
}

impl Item {
    /// Does what is to be done, or with `dry_run` says what would be. `confirm` is asked before a link is replaced.
    pub(crate) fn apply(
        &self,
        dry_run: bool,
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
        if let Err(e) = self.work(dry_run, confirm, &mut outcome) {
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

    fn work(
        &self,
        dry_run: bool,
        confirm: &mut dyn FnMut(&str) -> Result<bool, AssetError>,
        outcome: &mut Outcome,
    ) -> Result<(), AssetError> {
        let Some(target) = self.find()? else {
            outcome.state = State::Absent;
            let looked = self.places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
            outcome.note = Some(format!("not at {looked}; {}", self.remedy));
            return Ok(());
        };
        outcome.target = Some(target.clone());
        let coming = self.extract(&target, dry_run, outcome)?;
        let missing = self.missing(&target, &coming)?;
        if !missing.is_empty() {
            outcome.state = State::Incomplete;
            let missing = missing.join(", ");
            outcome.note = Some(format!("{} lacks {missing}; {}", target.display(), self.remedy));
            return Ok(());
        }
        outcome.state = match (self.standing(&target)?, dry_run) {
            (Standing::Same, _) => State::Unchanged,
            (Standing::Nothing, true) => State::WouldLink,
            (Standing::Nothing, false) => {
                self.make_link(&target)?;
                State::Linked
            }
            (Standing::Other(_), true) => State::WouldReplace,
            (Standing::Other(old), false) => {
                let question = format!(
                    "{} points to {}; point it to {}?",
                    self.link.display(),
                    old.display(),
                    target.display()
                );
                if confirm(&question)? {
                    self.make_link(&target)?;
                    State::Replaced
                } else {
                    outcome.note = Some(format!("it points to {}", old.display()));
                    State::Kept
                }
            }
            (Standing::Occupied, _) => {
                return Err(AssetError::Failed(format!(
                    "{} is there and is no link; move it away and run this again",
                    self.link.display()
                )));
            }
        };
        Ok(())
    }

    fn find(&self) -> Result<Option<PathBuf>, AssetError> {
        if !self.base.is_dir() {
            return Ok(None);
        }
        for place in &self.places {
            if let Some(real) = paths::resolve_below(&self.base, place)? {
                if !real.is_dir() {
                    return Err(AssetError::Failed(format!(
                        "{} is a file; a directory was expected",
                        place.display()
                    )));
                }
                return Ok(Some(real));
            }
        }
        Ok(None)
    }

    /// Extracts what is not extracted yet; gives the directories that a dry run would have made.
    fn extract(
        &self,
        target: &Path,
        dry_run: bool,
        outcome: &mut Outcome,
    ) -> Result<Vec<PathBuf>, AssetError> {
        let mut coming = Vec::new();
        for entry in &self.archives {
            let file = target.join(below("archive", &entry.file)?);
            let into = below("directory", &entry.into)?;
            let place = target.join(&into);
            if paths::resolve_below(target, &place)?.is_some() {
                continue;
            }
            let Some(file) = paths::resolve_below(target, &file)? else { continue };
            // A link above the place would carry the files elsewhere.
            for above in into.ancestors().skip(1).filter(|a| !a.as_os_str().is_empty()) {
                paths::resolve_below(target, &target.join(above))?;
            }
            if dry_run {
                archive::check(&file)?;
                coming.push(into);
            } else {
                archive::extract(&file, &place)?;
            }
            outcome.extracted.push(file);
        }
        Ok(coming)
    }

    /// The required files that are not there, not counting what lies below `coming`.
    fn missing(&self, target: &Path, coming: &[PathBuf]) -> Result<Vec<String>, AssetError> {
        let mut missing = Vec::new();
        for pattern in &self.required {
            let path = below("required file", pattern)?;
            if coming.iter().any(|dir| path.starts_with(dir)) {
                continue;
            }
            let last = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let there = if last.contains('*') {
                let dir = target.join(path.parent().unwrap_or(Path::new("")));
                let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
                let mut fitting = entries.filter(|e| paths::fits(&last, &e.file_name().to_string_lossy()));
                fitting.any(|e| e.path().exists())
            } else {
                paths::resolve_below(&self.base, &target.join(&path))?.is_some()
            };
            if !there {
                missing.push(pattern.clone());
            }
        }
        Ok(missing)
    }

    fn standing(&self, target: &Path) -> Result<Standing, AssetError> {
        match fs::symlink_metadata(&self.link) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Standing::Nothing),
            Err(e) => Err(AssetError::io("look at", &self.link)(e)),
            Ok(meta) if !meta.is_symlink() => Ok(Standing::Occupied),
            Ok(_) => {
                let old = fs::read_link(&self.link).map_err(AssetError::io("read", &self.link))?;
                let same = old == target || self.link.canonicalize().is_ok_and(|real| real == target);
                Ok(if same { Standing::Same } else { Standing::Other(old) })
            }
        }
    }

    /// Makes the link, or turns it, in one step.
    fn make_link(&self, target: &Path) -> Result<(), AssetError> {
        let beside = self.link.with_file_name(format!(".{}.new-{}", self.name, std::process::id()));
        link_to(target, &beside).map_err(AssetError::io("make the link", &self.link))?;
        fs::rename(&beside, &self.link).map_err(|e| {
            let _ = fs::remove_file(&beside);
            AssetError::io("make the link", &self.link)(e)
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
