//! `third_party/`: reference sources, pinned in `third_party.yaml` and never edited.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::AssetError;
use super::fetch;
use super::git;
use super::hub::{Hub, RepoId};
use super::manifest::{main_branch, require_known};
use super::paths;
use llmprof_base::shell::quoted;
use llmprof_config::{read_yaml, write_yaml};

const HEADING: &str = "\
# Pinned reference sources. `llmprof-tui third-party status` compares them with the files on disk,
# `third-party update` fetches them. `update` and `fetch --source-only` write this file.
";

/// All pins.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    #[serde(default)]
    pub hf: Vec<HubPin>,
    #[serde(default)]
    pub github: Vec<GitPin>,
}

/// Sources of a hub repository, under `hf/<org>/<repo>/`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubPin {
    pub repo: String,
    /// A commit.
    pub revision: String,
    /// The branch that `update --latest` follows.
    #[serde(default = "main_branch")]
    pub track: String,
}

/// A git repository, under `github/<name>/`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitPin {
    pub name: String,
    pub url: String,
    /// A commit or a tag.
    pub revision: String,
    /// The commit of `revision` when it was fetched: tags can move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The directories to check out; empty for all.
    #[serde(default)]
    pub paths: Vec<String>,
    #[serde(default = "main_branch")]
    pub track: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
}

/// The status of one pin.
#[derive(Debug, Serialize)]
pub struct Status {
    pub name: String,
    pub dir: PathBuf,
    pub pinned: String,
    pub found: Option<String>,
    pub state: State,
    pub note: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The files on disk equal the pinned ones.
    InPlace,
    Absent,
    /// Another revision is on disk.
    Differs,
    /// The pinned revision, edited.
    Changed,
    Unknown,
}

impl State {
    pub fn label(self) -> &'static str {
        match self {
            State::InPlace => "in place",
            State::Absent => "absent",
            State::Differs => "differs",
            State::Changed => "changed",
            State::Unknown => "unknown",
        }
    }
}

/// The new revision of a pin before it is fetched.
#[derive(Debug, Clone)]
pub enum PinUpdate {
    Keep,
    To(String),
    Latest,
}

/// The names of the pinned sources below `root`. Every field of every pin is checked.
pub fn pinned_names(root: &Path) -> Result<Vec<String>, AssetError> {
    let Pins { hf, github } = Pins::read(root)?;
    Ok(hf.into_iter().map(|pin| pin.repo).chain(github.into_iter().map(|pin| pin.name)).collect())
}

impl Pins {
    fn path(root: &Path) -> PathBuf {
        root.join("third_party/third_party.yaml")
    }

    pub fn read(root: &Path) -> Result<Pins, AssetError> {
        let path = Pins::path(root);
        if !path.exists() {
            return Err(AssetError::NoManifest { path });
        }
        let pins: Pins = read_yaml(&path)?;
        for pin in &pins.hf {
            RepoId::parse(&pin.repo)?;
            paths::require_reference("revision", &pin.revision)?;
            paths::require_reference("track", &pin.track)?;
        }
        for pin in &pins.github {
            pin.check()?;
        }
        Ok(pins)
    }

    /// The pins, or none if the file does not exist.
    pub fn read_or_default(root: &Path) -> Result<Pins, AssetError> {
        if Pins::path(root).exists() { Pins::read(root) } else { Ok(Pins::default()) }
    }

    pub fn write(&self, root: &Path) -> Result<(), AssetError> {
        let path = Pins::path(root);
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(AssetError::io("create", dir))?;
        }
        Ok(write_yaml(&path, HEADING, self)?)
    }

    fn names(&self) -> Vec<String> {
        let hub = self.hf.iter().map(|pin| pin.repo.clone());
        hub.chain(self.github.iter().map(|pin| pin.name.clone())).collect()
    }

    /// Pins `repo` at `commit`.
    pub fn pin_hub(&mut self, repo: &RepoId, commit: &str) {
        let name = repo.to_string();
        match self.hf.iter_mut().find(|pin| pin.repo == name) {
            Some(pin) => pin.revision = commit.to_owned(),
            None => self.hf.push(HubPin { repo: name, revision: commit.to_owned(), track: main_branch() }),
        }
    }

    /// The status of all pins, or of the one with that name.
    pub fn status(&self, root: &Path, name: Option<&str>) -> Result<Vec<Status>, AssetError> {
        require_known("pin", name, &self.names())?;
        let selected = |own: &str| name.is_none_or(|name| name == own);
        let hub = self.hf.iter().filter(|pin| selected(&pin.repo)).map(|pin| pin.status(root));
        let git = self.github.iter().filter(|pin| selected(&pin.name)).map(|pin| pin.status(root));
        Ok(hub.chain(git).collect())
    }
}

/// The directory for the sources of `repo`, whose path contains no link.
pub fn hub_dir(root: &Path, repo: &RepoId) -> Result<PathBuf, AssetError> {
    let dir = root.join("third_party/hf").join(repo.to_string());
    paths::require_no_links(root, &dir)?;
    Ok(dir)
}

impl HubPin {
    fn status(&self, root: &Path) -> Status {
        let dir = root.join("third_party/hf").join(&self.repo);
        let receipt = fetch::read_receipt(&dir);
        let changed = receipt.as_ref().map(|r| fetch::changes(&dir, r)).unwrap_or_default();
        let found = receipt.map(|r| r.revision);
        let state = match &found {
            None if dir.exists() => State::Unknown,
            None => State::Absent,
            Some(found) if *found != self.revision => State::Differs,
            Some(_) if !changed.is_empty() => State::Changed,
            Some(_) => State::InPlace,
        };
        let note = match state {
            State::Changed => Some(format!("edited or missing: {}", changed.join(", "))),
            State::Unknown => Some("not created by this program".to_owned()),
            _ => None,
        };
        Status { name: self.repo.clone(), dir, pinned: self.revision.clone(), found, state, note }
    }
}

impl GitPin {
    fn check(&self) -> Result<(), AssetError> {
        paths::plain_name("pin", &self.name)?;
        git::require_url(&self.url)?;
        paths::require_reference("revision", &self.revision)?;
        paths::require_reference("track", &self.track)?;
        if let Some(commit) = self.commit.as_ref().filter(|commit| !git::is_commit(commit)) {
            let why = "a commit has 40 or 64 hexadecimal digits".into();
            return Err(AssetError::BadName { what: "commit", name: commit.clone(), why });
        }
        for path in &self.paths {
            paths::require_argument("path", path)?;
        }
        Ok(())
    }

    fn dir(&self, root: &Path) -> PathBuf {
        root.join("third_party/github").join(&self.name)
    }

    fn status(&self, root: &Path) -> Status {
        let dir = self.dir(root);
        let pinned = self.commit.clone().unwrap_or_else(|| self.revision.clone());
        let mut status =
            Status { name: self.name.clone(), pinned, found: None, state: State::Absent, note: None, dir };
        if !status.dir.exists() {
            return status;
        }
        let found = git::head(&status.dir).and_then(|head| Ok((head, git::is_changed(&status.dir)?)));
        match found {
            Ok((head, changed)) => {
                // The commit of a tag is unknown before it is fetched.
                let unresolved =
                    self.commit.is_none() && !self.revision.bytes().all(|b| b.is_ascii_hexdigit());
                status.state = match () {
                    () if unresolved => State::Unknown,
                    () if !head.starts_with(&status.pinned) => State::Differs,
                    () if changed => State::Changed,
                    () => State::InPlace,
                };
                status.note =
                    unresolved.then(|| "the commit is unknown before `third-party update`".to_owned());
                status.found = Some(head);
            }
            Err(e) => (status.state, status.note) = (State::Unknown, Some(e.to_string())),
        }
        status
    }

    /// Refuses to write through links, and into a checkout that this program did not create.
    fn require_own(&self, root: &Path) -> Result<(), AssetError> {
        let dir = self.dir(root);
        paths::require_no_links(root, &dir)?;
        match dir.join(".git").symlink_metadata() {
            Ok(_) => git::require_own(&dir),
            Err(_) => Ok(()),
        }
    }

    /// The commands that check out the pin.
    pub fn commands(&self, root: &Path) -> Vec<Vec<String>> {
        let revision = self.commit.as_deref().unwrap_or(&self.revision);
        git::checkout(&self.dir(root), &self.url, revision, &self.paths)
    }

    fn apply(&mut self, to: &PinUpdate) -> Result<(), AssetError> {
        match to {
            PinUpdate::Keep => return Ok(()),
            PinUpdate::To(revision) => self.revision = revision.clone(),
            PinUpdate::Latest => self.revision = git::remote_commit(&self.url, &self.track)?,
        }
        self.commit = None;
        self.check()
    }
}

/// Updates the pins (all, or the one with that name) and fetches them. `report` receives each step.
///
/// With `dry_run` nothing is changed, and `report` receives the commands.
pub fn update(
    root: &Path,
    name: Option<&str>,
    to: &PinUpdate,
    dry_run: bool,
    report: &mut dyn FnMut(String),
) -> Result<(), AssetError> {
    let mut pins = Pins::read(root)?;
    require_known("pin", name, &pins.names())?;
    let selected = |own: &str| name.is_none_or(|name| name == own);
    for index in 0..pins.hf.len() {
        let pin = pins.hf[index].clone();
        if !selected(&pin.repo) {
            continue;
        }
        let (repo, hub) = (RepoId::parse(&pin.repo)?, Hub::from_env()?);
        let revision = match to {
            PinUpdate::Keep => &pin.revision,
            PinUpdate::To(revision) => revision,
            PinUpdate::Latest => &pin.track,
        };
        if dry_run {
            let revision = quoted(revision);
            report(format!("llmprof-tui fetch {repo} --source-only --revision {revision}"));
            continue;
        }
        let dir = hub_dir(root, &repo)?;
        let commit = hub.resolve(&repo, revision)?;
        fetch::sources(&hub, &repo, &commit, &dir, false)?;
        report(format!("{repo} is at {commit}"));
        pins.hf[index].revision = commit;
        pins.write(root)?;
    }
    for index in 0..pins.github.len() {
        let mut pin = pins.github[index].clone();
        if !selected(&pin.name) {
            continue;
        }
        if !(dry_run && matches!(to, PinUpdate::Latest)) {
            pin.apply(to)?;
        }
        if !dry_run {
            pin.require_own(root)?;
        }
        for command in pin.commands(root) {
            if dry_run {
                let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
                report(format!("git {}", words.join(" ")));
            } else {
                git::run(&command)?;
            }
        }
        if dry_run {
            continue;
        }
        let commit = git::head(&pin.dir(root))?;
        report(format!("{} is at {commit}", pin.name));
        pin.commit = Some(commit);
        pins.github[index] = pin;
        pins.write(root)?;
    }
    Ok(())
}
