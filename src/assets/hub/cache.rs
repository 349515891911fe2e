//! The hub's cache on disk, in the layout all hub clients share: blobs by hash, snapshots by commit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{RemoteFile, RepoId};
use crate::assets::digest::{self, Digests};
use crate::assets::error::AssetError;
use crate::assets::paths;

/// A cache directory (`$HF_HUB_CACHE`, `$HF_HOME/hub`, `~/.cache/huggingface/hub`).
pub(in crate::assets) struct Cache {
    root: PathBuf,
}

/// Whether a revision is a full commit id.
pub(in crate::assets) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The snapshot of `repo` at `revision` in the cache `base`, as far as the cache can tell.
pub(in crate::assets) fn cached_snapshot(base: &Path, repo: &str, revision: &str) -> Option<PathBuf> {
    let repo = RepoId::parse(repo).ok()?;
    let cache = Cache::at(base);
    let commit = cache.commit(&repo, revision)?;
    Some(cache.snapshot(&repo, &commit)).filter(|dir| dir.is_dir())
}

impl Cache {
    pub(in crate::assets) fn at(root: &Path) -> Cache {
        Cache { root: root.to_owned() }
    }

    fn folder(&self, repo: &RepoId) -> PathBuf {
        self.root.join(format!("models--{}--{}", repo.owner, repo.name))
    }

    pub(in crate::assets) fn root(&self) -> &Path {
        &self.root
    }

    pub(in crate::assets) fn snapshot(&self, repo: &RepoId, commit: &str) -> PathBuf {
        self.folder(repo).join("snapshots").join(commit)
    }

    /// The commit a revision was when it was last fetched.
    pub(in crate::assets) fn commit(&self, repo: &RepoId, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let name = paths::relative(revision).ok()?;
        let text = fs::read_to_string(self.folder(repo).join("refs").join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Whether `file` lies in the snapshot with its size.
    pub(in crate::assets) fn has(&self, repo: &RepoId, commit: &str, file: &RemoteFile) -> bool {
        let Ok(path) = paths::relative(&file.path) else { return false };
        fs::metadata(self.snapshot(repo, commit).join(path))
            .is_ok_and(|m| m.is_file() && m.len() == file.size)
    }

    /// Where `file` grows while it is fetched; its directory is there afterwards.
    pub(in crate::assets) fn partial(&self, repo: &RepoId, file: &RemoteFile) -> Result<PathBuf, AssetError> {
        let dir = self.folder(repo).join("blobs");
        fs::create_dir_all(&dir).map_err(AssetError::io("make", &dir))?;
        paths::plain_name("object id", &file.oid)?;
        Ok(dir.join(format!("{}.incomplete", file.oid)))
    }

    /// Takes a whole file into the snapshot.
    pub(in crate::assets) fn keep(
        &self,
        repo: &RepoId,
        commit: &str,
        file: &RemoteFile,
        digests: &Digests,
    ) -> Result<(), AssetError> {
        let partial = self.partial(repo, file)?;
        let name = if file.large { &digests.sha256 } else { &digests.git_blob };
        let blob = partial.with_file_name(name);
        fs::rename(&partial, &blob).map_err(AssetError::io("make", &blob))?;
        self.show(repo, commit, file, name)
    }

    /// Takes a file into the snapshot that another revision, or another client, brought here before.
    pub(in crate::assets) fn adopt(
        &self,
        repo: &RepoId,
        commit: &str,
        file: &RemoteFile,
    ) -> Result<bool, AssetError> {
        let blobs = fs::read_dir(self.folder(repo).join("blobs")).into_iter().flatten().flatten();
        for blob in blobs.filter(|blob| blob.metadata().is_ok_and(|m| m.len() == file.size)) {
            let Ok(name) = blob.file_name().into_string() else { continue };
            // A blob's name is its hash, so the listing's id can be told from it.
            let oid = if file.large { digest::lfs_pointer_blob(&name, file.size) } else { name.clone() };
            if oid == file.oid {
                return self.show(repo, commit, file, &name).map(|()| true);
            }
        }
        Ok(false)
    }

    /// Points from the snapshot to the blob of that name.
    fn show(&self, repo: &RepoId, commit: &str, file: &RemoteFile, blob: &str) -> Result<(), AssetError> {
        let below = paths::relative(&file.path).map_err(AssetError::Failed)?;
        let link = self.snapshot(repo, commit).join(&below);
        if let Some(dir) = link.parent() {
            fs::create_dir_all(dir).map_err(AssetError::io("make", dir))?;
        }
        match fs::remove_file(&link) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(AssetError::io("replace", &link)(e)),
            _ => {}
        }
        let up = "../".repeat(below.components().count() + 1);
        point(&link, &self.folder(repo).join("blobs").join(blob), &format!("{up}blobs/{blob}"))
            .map_err(AssetError::io("make", &link))
    }

    /// Remembers what `revision` stood for.
    pub(in crate::assets) fn remember(
        &self,
        repo: &RepoId,
        revision: &str,
        commit: &str,
    ) -> Result<(), AssetError> {
        if is_commit(revision) {
            return Ok(());
        }
        let name = paths::relative(revision).map_err(AssetError::Failed)?;
        let path = self.folder(repo).join("refs").join(name);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(AssetError::io("make", dir))?;
        }
        fs::write(&path, commit).map_err(AssetError::io("write", &path))
    }
}

#[cfg(unix)]
fn point(link: &Path, _blob: &Path, target: &str) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn point(link: &Path, blob: &Path, _target: &str) -> io::Result<()> {
    fs::copy(blob, link).map(drop)
}
