//! The Hugging Face hub, over `hf-hub`: what a repository holds at a revision, and its bytes.
//!
//! `hf-hub` knows addresses, tokens, redirects and the listing. Beside it stand here: resuming (its own
//! downloads begin anew), sizes and hashes (it checks neither), time limits, and `HF_HUB_OFFLINE`.

mod cache;
mod download;
mod trouble;

use std::env;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use hf_hub::repository::RepoTreeEntry;
use hf_hub::{HFClient, HFRepository, HFResult, RepoTypeModel};

pub(super) use cache::{Cache, cached_snapshot, is_commit};
pub(super) use download::Source;

use super::error::AssetError;
use super::paths;
use trouble::explain;

/// Longest wait for an answer, and for the next bytes of one.
const PATIENCE: Duration = Duration::from_secs(60);

/// `org/name`, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepoId {
    owner: String,
    name: String,
}

impl RepoId {
    pub(super) fn parse(text: &str) -> Result<RepoId, AssetError> {
        let why = "a hub repository is written org/name";
        let bad = || AssetError::BadName { what: "hub repository", name: text.into(), why: why.into() };
        let (owner, name) = text.split_once('/').ok_or_else(bad)?;
        paths::plain_name("hub repository", owner)?;
        paths::plain_name("hub repository", name)?;
        Ok(RepoId { owner: owner.into(), name: name.into() })
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// A file of a repository, as the hub lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteFile {
    pub(super) path: String,
    pub(super) size: u64,
    /// What git calls the file, or the pointer that stands for it.
    pub(super) oid: String,
    /// Whether a pointer stands for it.
    pub(super) large: bool,
}

/// What a repository holds at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<RemoteFile>,
}

/// The hub, as the environment says it is reached.
pub(super) struct Hub {
    client: HFClient,
    pub(super) offline: bool,
}

impl Hub {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE` and `HF_HUB_OFFLINE`.
    pub(super) fn from_env() -> Result<Hub, AssetError> {
        let client = HFClient::builder()
            .user_agent(concat!("llmprof-tui/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| AssetError::Usage(format!("HF_ENDPOINT is no address of a hub: {e}")))?;
        let yes = |value: String| matches!(value.to_lowercase().as_str(), "1" | "true" | "yes" | "on");
        Ok(Hub { client, offline: env::var("HF_HUB_OFFLINE").is_ok_and(yes) })
    }

    pub(super) fn cache(&self) -> Cache {
        Cache::at(self.client.cache_dir())
    }

    /// The commit `revision` stands for now.
    pub(super) async fn commit_of(&self, repo: &RepoId, revision: &str) -> Result<String, AssetError> {
        check_revision(revision)?;
        if is_commit(revision) {
            return Ok(revision.to_owned());
        }
        self.online(repo)?;
        let asked = self.repository(repo);
        let info = self.wait(asked.info().revision(revision).send()).await;
        let info = info.map_err(|e| self.explain(repo, None, e))?;
        info.sha.filter(|sha| is_commit(sha)).ok_or_else(|| AssetError::Hub {
            repo: repo.to_string(),
            why: format!("the hub names no commit for {revision:?}"),
            remedy: "name a commit with --revision".into(),
        })
    }

    /// Everything `repo` holds at `commit`, sorted by path.
    pub(super) async fn list(&self, repo: &RepoId, commit: &str) -> Result<Listing, AssetError> {
        self.online(repo)?;
        let asked = self.repository(repo);
        let tree = asked.list_tree().revision(commit).recursive(true).send();
        let mut tree = Box::pin(tree.map_err(|e| self.explain(repo, None, Trouble::Hub(e)))?);
        let mut files = Vec::new();
        loop {
            let next = tokio::time::timeout(PATIENCE, tree.next()).await;
            let entry = match next.map_err(|_| self.explain(repo, None, Trouble::Silence))? {
                None => break,
                Some(entry) => entry.map_err(|e| self.explain(repo, None, Trouble::Hub(e)))?,
            };
            if let RepoTreeEntry::File { oid, size, path, lfs, .. } = entry {
                let why = |why| self.explain(repo, Some(&path), Trouble::BadName(why));
                paths::relative(&path).map_err(why)?;
                // Some listings give the pointer's size for the file and the file's within `lfs`.
                let size = lfs.as_ref().and_then(|lfs| lfs.size).unwrap_or(size);
                files.push(RemoteFile { path, size, oid, large: lfs.is_some() });
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Listing { commit: commit.to_owned(), files })
    }

    fn repository(&self, repo: &RepoId) -> HFRepository<RepoTypeModel> {
        self.client.model(&repo.owner, &repo.name)
    }

    async fn wait<T>(&self, answer: impl Future<Output = HFResult<T>>) -> Result<T, Trouble> {
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(answered) => answered.map_err(Trouble::Hub),
            Err(_) => Err(Trouble::Silence),
        }
    }

    fn explain(&self, repo: &RepoId, file: Option<&str>, trouble: Trouble) -> AssetError {
        explain(self.client.endpoint(), repo, file, trouble)
    }

    fn online(&self, repo: &RepoId) -> Result<(), AssetError> {
        if !self.offline {
            return Ok(());
        }
        Err(AssetError::Hub {
            repo: repo.to_string(),
            why: format!(
                "HF_HUB_OFFLINE is set, and it is not whole in {}",
                self.client.cache_dir().display()
            ),
            remedy: "unset HF_HUB_OFFLINE to get it, or point HF_HOME to where it is".into(),
        })
    }
}

/// A revision goes into addresses and file names: it must not climb.
fn check_revision(revision: &str) -> Result<(), AssetError> {
    let why = match paths::relative(revision) {
        Ok(_) if !revision.starts_with('-') => return Ok(()),
        Ok(_) => "begins with a dash".to_owned(),
        Err(why) => why,
    };
    Err(AssetError::BadName { what: "revision", name: revision.into(), why: format!("it {why}") })
}

/// What may come instead of an answer.
enum Trouble {
    Hub(hf_hub::HFError),
    Silence,
    BadName(String),
}

/// Whether there is room for `bytes` more below `dir`; unknown is taken for yes.
pub(super) fn check_room(dir: &Path, bytes: u64) -> Result<(), AssetError> {
    let existing = dir.ancestors().find(|d| d.exists()).unwrap_or(dir);
    let Ok(disk) = rustix::fs::statvfs(existing) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if bytes <= free {
        return Ok(());
    }
    use crate::base::units::bytes as shown;
    Err(AssetError::Failed(format!(
        "{} has {} free, and {} are to come; make room, or set HF_HOME to another disk",
        existing.display(),
        shown(free),
        shown(bytes)
    )))
}
