//! Getting a model, or only its sources, from the hub.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use super::digest::{self, Digests, Hasher};
use super::error::AssetError;
use super::hub::{Hub, Listing, RemoteFile, RepoId, Source, check_room};
use super::paths;
use super::progress::Progress;
use crate::config::{ConfTree, Names, compose};

/// Files fetched side by side: enough to hide the hub's answering time, too few to hurt anyone.
const AT_ONCE: usize = 4;

/// What a run needs of a repository. Others hold the same weights in other forms.
const MODEL_FILES: [&str; 8] =
    ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "*.py", "LICENSE*", "README.md"];

const SOURCE_FILES: [&str; 3] = ["*.py", "config.json", "LICENSE*"];

/// Beside fetched sources: what they are, so that an edit is seen.
const RECEIPT: &str = ".pin.json";

/// What was fetched, or was there already.
#[derive(Debug, Serialize)]
pub(super) struct Fetched {
    pub(super) schema: u32,
    pub(super) repo: String,
    pub(super) commit: String,
    pub(super) dir: PathBuf,
    pub(super) files: Vec<FetchedFile>,
}

#[derive(Debug, Serialize)]
pub(super) struct FetchedFile {
    pub(super) path: String,
    pub(super) bytes: u64,
    /// Whether it was there before.
    pub(super) cached: bool,
}

/// What stands in [`RECEIPT`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Receipt {
    pub(super) revision: String,
    /// Path and git object id of the content.
    pub(super) files: BTreeMap<String, String>,
}

/// The repository `model` means: `org/name` itself, or an option of `conf/model/`.
pub(super) fn repository(model: &str, tree: &ConfTree) -> Result<RepoId, AssetError> {
    if model.contains('/') {
        return RepoId::parse(model);
    }
    let all = tree.options("model");
    if !all.iter().any(|name| name == model) {
        return Err(AssetError::Unknown {
            kind: "model",
            name: model.to_owned(),
            names: Names::near(model, &all).into(),
            note: "; a repository of the hub is written org/name",
        });
    }
    let composed = compose(tree, &[format!("model={model}")])?;
    let hub = composed.config.model.hub.ok_or_else(|| AssetError::BadName {
        what: "model",
        name: model.to_owned(),
        why: "its configuration names no repository (model.hub)".into(),
    })?;
    RepoId::parse(&hub)
}

/// Brings what a run needs of `repo` (or `all` of it) into the cache.
pub(super) async fn model(
    hub: &Hub,
    repo: &RepoId,
    revision: &str,
    all: bool,
    quiet: bool,
) -> Result<Fetched, AssetError> {
    let cache = hub.cache();
    if hub.offline
        && let Some(commit) = cache.commit(repo, revision)
        && let Some(files) = listed(&cache.snapshot(repo, &commit))
    {
        let dir = cache.snapshot(repo, &commit);
        return Ok(Fetched { schema: 1, repo: repo.to_string(), commit, dir, files });
    }
    let commit = hub.commit_of(repo, revision).await?;
    let mut listing = hub.list(repo, &commit).await?;
    if !all {
        listing.files.retain(|file| !file.path.contains('/') && wanted(&MODEL_FILES, &file.path));
    }
    nothing_is_wrong(repo, &listing, "--all fetches everything it holds")?;
    let (mut cached, mut missing) = (Vec::new(), Vec::new());
    for file in listing.files {
        let there = cache.has(repo, &commit, &file) || cache.adopt(repo, &commit, &file)?;
        if there { &mut cached } else { &mut missing }.push(file);
    }
    let bytes = missing.iter().map(|file| file.size).sum();
    check_room(cache.root(), bytes)?;
    let progress = Progress::new(bytes, quiet);
    let source = Source { hub, repo, commit: &commit };
    let done = futures::stream::iter(&missing)
        .map(|file| async {
            let partial = cache.partial(repo, file)?;
            let mut shown = progress.file(&file.path, file.size);
            let digests = source.download(file, &partial, &mut |have| shown.at(have)).await?;
            cache.keep(repo, &commit, file, &digests)?;
            shown.done();
            Ok::<_, AssetError>(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await;
    progress.end();
    done?;
    // Last, so that a revision never stands for a snapshot that is not whole.
    cache.remember(repo, revision, &commit)?;
    let dir = cache.snapshot(repo, &commit);
    Ok(Fetched { schema: 1, repo: repo.to_string(), commit, dir, files: told(cached, missing) })
}

/// Brings the sources of `repo` at `commit` to `dir`, read-only, and takes away what is no longer among them.
pub(super) async fn sources(
    hub: &Hub,
    repo: &RepoId,
    commit: &str,
    dir: &Path,
    quiet: bool,
) -> Result<Fetched, AssetError> {
    let before = read_receipt(dir);
    if let Some(receipt) = before.as_ref().filter(|r| r.revision == commit && changes(dir, r).is_empty()) {
        let files = receipt.files.keys().map(|path| FetchedFile {
            bytes: fs::metadata(dir.join(path)).map_or(0, |m| m.len()),
            path: path.clone(),
            cached: true,
        });
        let (repo, commit, dir) = (repo.to_string(), commit.to_owned(), dir.to_owned());
        return Ok(Fetched { schema: 1, repo, commit, files: files.collect(), dir });
    }
    let mut listing = hub.list(repo, commit).await?;
    listing.files.retain(|file| wanted(&SOURCE_FILES, &file.path));
    nothing_is_wrong(repo, &listing, "it holds no sources")?;
    fs::create_dir_all(dir).map_err(AssetError::io("make", dir))?;
    let progress = Progress::new(listing.files.iter().map(|f| f.size).sum(), quiet);
    let source = Source { hub, repo, commit };
    let mut receipt = Receipt { revision: commit.to_owned(), files: BTreeMap::new() };
    for file in &listing.files {
        let mut shown = progress.file(&file.path, file.size);
        let digests = bring_source(&source, file, dir, &mut |have| shown.at(have)).await?;
        shown.done();
        receipt.files.insert(file.path.clone(), digests.git_blob);
    }
    progress.end();
    for old in before.unwrap_or_default().files.keys().filter(|old| !receipt.files.contains_key(*old)) {
        if let Ok(old) = paths::relative(old) {
            // A file that is gone already is what was wanted.
            let _ = fs::remove_file(dir.join(old));
        }
    }
    let path = dir.join(RECEIPT);
    let text = serde_json::to_string_pretty(&receipt).map_err(|e| AssetError::Failed(e.to_string()))?;
    fs::write(&path, text).map_err(AssetError::io("write", &path))?;
    let (repo, commit, dir) = (repo.to_string(), commit.to_owned(), dir.to_owned());
    Ok(Fetched { schema: 1, repo, commit, dir, files: told(Vec::new(), listing.files) })
}

async fn bring_source(
    source: &Source<'_>,
    file: &RemoteFile,
    dir: &Path,
    came: &mut dyn FnMut(u64),
) -> Result<Digests, AssetError> {
    paths::plain_name("object id", &file.oid)?;
    let partial = dir.join(format!(".{}.incomplete", file.oid));
    let digests = source.download(file, &partial, came).await?;
    let path = dir.join(paths::relative(&file.path).map_err(AssetError::Failed)?);
    if let Some(above) = path.parent() {
        fs::create_dir_all(above).map_err(AssetError::io("make", above))?;
    }
    let mut rights = fs::metadata(&partial).map_err(AssetError::io("read", &partial))?.permissions();
    rights.set_readonly(true);
    fs::set_permissions(&partial, rights).map_err(AssetError::io("write", &partial))?;
    fs::rename(&partial, &path).map_err(AssetError::io("make", &path))?;
    Ok(digests)
}

pub(super) fn read_receipt(dir: &Path) -> Option<Receipt> {
    let text = fs::read_to_string(dir.join(RECEIPT)).ok()?;
    let receipt: Receipt = serde_json::from_str(&text).ok()?;
    receipt.files.keys().all(|path| paths::relative(path).is_ok()).then_some(receipt)
}

/// The files of `receipt` that are gone or are not what was fetched.
pub(super) fn changes(dir: &Path, receipt: &Receipt) -> Vec<String> {
    let same = |path: &str, oid: &str| {
        let path = dir.join(path);
        let size = fs::metadata(&path).map(|m| m.len())?;
        let mut hasher = Hasher::new(size);
        digest::feed(&mut hasher, &path, size)?;
        Ok::<bool, std::io::Error>(hasher.finish().git_blob == oid)
    };
    let changed = receipt.files.iter().filter(|(path, oid)| !same(path, oid).unwrap_or(false));
    changed.map(|(path, _)| path.clone()).collect()
}

fn wanted(patterns: &[&str], path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    patterns.iter().any(|pattern| paths::fits(pattern, name))
}

fn nothing_is_wrong(repo: &RepoId, listing: &Listing, remedy: &str) -> Result<(), AssetError> {
    if !listing.files.is_empty() {
        return Ok(());
    }
    let why = format!("there is nothing to fetch at {}", listing.commit);
    Err(AssetError::Hub { repo: repo.to_string(), why, remedy: remedy.into() })
}

fn told(cached: Vec<RemoteFile>, fetched: Vec<RemoteFile>) -> Vec<FetchedFile> {
    let tell = |cached| move |file: RemoteFile| FetchedFile { path: file.path, bytes: file.size, cached };
    let mut files: Vec<FetchedFile> =
        cached.into_iter().map(tell(true)).chain(fetched.into_iter().map(tell(false))).collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// The files of a snapshot; `None` where there are none, or one is a link to nothing.
fn listed(snapshot: &Path) -> Option<Vec<FetchedFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(snapshot).ok()? {
        let entry = entry.ok()?;
        let meta = fs::metadata(entry.path()).ok()?;
        if meta.is_file() {
            let path = entry.file_name().to_string_lossy().into_owned();
            files.push(FetchedFile { path, bytes: meta.len(), cached: true });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Some(files).filter(|files| !files.is_empty())
}
