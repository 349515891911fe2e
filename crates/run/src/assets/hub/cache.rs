//! The hub's cache on disk, in the layout that all hub clients share: blobs by hash, snapshots by commit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{RemoteFile, RepoId};
use crate::assets::{
    digest::{self, Digests},
    error::AssetError,
    paths,
};
use llmprof_base::read::{self, MAX_DOCUMENT};

/// A cache directory (`$HF_HUB_CACHE`, `$HF_HOME/hub`, `~/.cache/huggingface/hub`).
pub(in crate::assets) struct Cache {
    layout: hf_hub::Cache,
}

/// Whether a revision is a full commit id.
pub(in crate::assets) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The snapshot of `repo` at `revision` in the cache `base`, if there is one.
pub(in crate::assets) fn cached_snapshot(base: &Path, repo: &str, revision: &str) -> Option<PathBuf> {
    let repo = RepoId::parse(repo).ok()?;
    let cache = Cache::new(hf_hub::Cache::new(base.to_owned()));
    let commit = cache.commit(&repo, revision)?;
    Some(cache.snapshot(&repo, &commit)).filter(|dir| dir.is_dir())
}

impl Cache {
    pub(super) fn new(layout: hf_hub::Cache) -> Cache {
        Cache { layout }
    }

    pub(in crate::assets) fn root(&self) -> &Path {
        self.layout.path()
    }

    pub(in crate::assets) fn snapshot(&self, repo: &RepoId, commit: &str) -> PathBuf {
        self.layout.model(repo.to_string()).pointer_path(commit)
    }

    fn blob(&self, repo: &RepoId, name: &str) -> PathBuf {
        self.layout.model(repo.to_string()).blob_path(name)
    }

    /// The commit of `revision` when it was last fetched.
    pub(in crate::assets) fn commit(&self, repo: &RepoId, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let name = paths::relative(revision).ok()?;
        let folder = self.root().join(repo.at_revision(revision).folder_name());
        let text = read::text(&folder.join("refs").join(name), MAX_DOCUMENT).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Whether the snapshot has `file` with its size.
    pub(in crate::assets) fn has(&self, repo: &RepoId, commit: &str, file: &RemoteFile) -> bool {
        let Ok(path) = paths::relative(&file.path) else { return false };
        fs::metadata(self.snapshot(repo, commit).join(path))
            .is_ok_and(|m| m.is_file() && m.len() == file.size)
    }

    /// The path of `file` during its download. Creates its directory.
    pub(in crate::assets) fn partial(&self, repo: &RepoId, file: &RemoteFile) -> Result<PathBuf, AssetError> {
        paths::plain_name("object id", &file.oid)?;
        let partial = self.blob(repo, &format!("{}.incomplete", file.oid));
        create_parent(&partial)?;
        Ok(partial)
    }

    /// Adds a complete download to the snapshot.
    pub(in crate::assets) fn insert(
        &self,
        repo: &RepoId,
        commit: &str,
        file: &RemoteFile,
        digests: &Digests,
    ) -> Result<(), AssetError> {
        let partial = self.partial(repo, file)?;
        let name = if file.is_lfs { &digests.sha256 } else { &digests.git_blob };
        let blob = partial.with_file_name(name);
        fs::rename(&partial, &blob).map_err(AssetError::io("create", &blob))?;
        self.link(repo, commit, file, name)
    }

    /// Adds a file to the snapshot if another revision or another client has already downloaded its blob.
    pub(in crate::assets) fn reuse(
        &self,
        repo: &RepoId,
        commit: &str,
        file: &RemoteFile,
    ) -> Result<bool, AssetError> {
        let blobs = fs::read_dir(self.blob(repo, "")).into_iter().flatten().flatten();
        for blob in blobs.filter(|blob| blob.metadata().is_ok_and(|m| m.len() == file.size)) {
            let Ok(name) = blob.file_name().into_string() else { continue };
            // The name of a blob is its hash, which gives the object id of the listing.
            let oid = if file.is_lfs { digest::lfs_pointer_blob(&name, file.size) } else { name.clone() };
            if oid == file.oid {
                return self.link(repo, commit, file, &name).map(|()| true);
            }
        }
        Ok(false)
    }

    /// Links `file` of the snapshot to the blob `name`.
    fn link(&self, repo: &RepoId, commit: &str, file: &RemoteFile, name: &str) -> Result<(), AssetError> {
        let path = paths::relative(&file.path).map_err(AssetError::Failed)?;
        let link = self.snapshot(repo, commit).join(&path);
        create_parent(&link)?;
        match fs::remove_file(&link) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(AssetError::io("replace", &link)(e)),
            _ => {}
        }
        let up = "../".repeat(path.components().count() + 1);
        link_or_copy(&link, &self.blob(repo, name), &format!("{up}blobs/{name}"))
            .map_err(AssetError::io("create", &link))
    }

    /// Records that `revision` is `commit`.
    pub(in crate::assets) fn record_revision(
        &self,
        repo: &RepoId,
        revision: &str,
        commit: &str,
    ) -> Result<(), AssetError> {
        if is_commit(revision) {
            return Ok(());
        }
        let name = paths::relative(revision).map_err(AssetError::Failed)?;
        let layout = self.layout.repo(repo.at_revision(&name.to_string_lossy()));
        layout.create_ref(commit).map_err(AssetError::io("write the revision below", self.root()))
    }
}

fn create_parent(path: &Path) -> Result<(), AssetError> {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir).map_err(AssetError::io("create", dir))
}

#[cfg(unix)]
fn link_or_copy(link: &Path, _blob: &Path, target: &str) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn link_or_copy(link: &Path, blob: &Path, _target: &str) -> io::Result<()> {
    fs::copy(blob, link).map(drop)
}
