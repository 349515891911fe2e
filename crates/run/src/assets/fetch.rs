//! Downloads a model, or its sources only, from the hub.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use super::digest::{self, Digests, Hasher};
use super::error::AssetError;
use super::hub::{Hub, Listing, RemoteFile, RepoId, Source, check_free_space};
use super::paths;
use super::progress::Progress;
use llmprof_base::{
    dir::write,
    read::{self, MAX_DOCUMENT},
};
use llmprof_config::{ConfTree, Names, compose, glob_matches};

/// Files downloaded in parallel: enough to hide the latency of the hub, without much load on it.
const PARALLEL_DOWNLOADS: usize = 4;

/// The files that a run needs. Most other files contain the same weights in another format.
const MODEL_FILES: [&str; 8] =
    ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "*.py", "LICENSE*", "README.md"];

const SOURCE_FILES: [&str; 3] = ["*.py", "config.json", "LICENSE*"];

/// The file in a directory of fetched sources that records their hashes, to detect edits.
const RECEIPT: &str = ".pin.json";

/// The result of a fetch.
#[derive(Debug, Serialize)]
pub struct Fetched {
    pub schema: u32,
    pub repo: String,
    pub commit: String,
    pub dir: PathBuf,
    pub files: Vec<FetchedFile>,
}

#[derive(Debug, Serialize)]
pub struct FetchedFile {
    pub path: String,
    pub bytes: u64,
    /// Whether it was already in the cache.
    pub cached: bool,
}

/// The content of [`RECEIPT`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub revision: String,
    /// Path and git object id of the content.
    pub files: BTreeMap<String, String>,
}

/// The repository of `model`, which is `org/name` or an option of `conf/model/`.
pub fn repository(model: &str, tree: &ConfTree) -> Result<RepoId, AssetError> {
    if model.contains('/') {
        return RepoId::parse(model);
    }
    let all = tree.options("model");
    if !all.iter().any(|name| name == model) {
        return Err(AssetError::Unknown {
            kind: "model",
            name: model.to_owned(),
            names: Names::near(model, &all).into(),
            note: "; write a repository of the hub as org/name",
        });
    }
    let composed = compose(tree, &[format!("model={model}")])?;
    let hub = composed.config.model.hub.ok_or_else(|| AssetError::BadName {
        what: "model",
        name: model.to_owned(),
        why: "its configuration has no repository (model.hub)".into(),
    })?;
    RepoId::parse(&hub)
}

/// Downloads the files of `repo` that a run needs (or `all` files) to the cache.
pub fn model(
    hub: &Hub,
    repo: &RepoId,
    revision: &str,
    all: bool,
    quiet: bool,
) -> Result<Fetched, AssetError> {
    let cache = hub.cache();
    if hub.offline
        && let Some(commit) = cache.commit(repo, revision)
        && let Some(files) = snapshot_files(&cache.snapshot(repo, &commit))
    {
        let dir = cache.snapshot(repo, &commit);
        return Ok(Fetched { schema: 1, repo: repo.to_string(), commit, dir, files });
    }
    let commit = hub.resolve(repo, revision)?;
    let mut listing = hub.list(repo, &commit)?;
    if !all {
        listing.files.retain(|file| !file.path.contains('/') && matches_any(&MODEL_FILES, &file.path));
    }
    require_files(repo, &listing, "--all fetches every file of the repository")?;
    let (mut cached, mut missing) = (Vec::new(), Vec::new());
    for file in listing.files {
        let present = cache.has(repo, &commit, &file) || cache.reuse(repo, &commit, &file)?;
        if present { &mut cached } else { &mut missing }.push(file);
    }
    // Files with the same content share one blob and one download.
    let mut oids = HashSet::new();
    let (unique, copies): (Vec<_>, Vec<_>) = missing.iter().partition(|file| oids.insert(&file.oid));
    let bytes = unique.iter().map(|file| file.size).sum();
    check_free_space(cache.root(), bytes)?;
    let progress = Progress::new(bytes, quiet);
    let source = Source::new(hub, repo, &commit);
    let downloaded = in_parallel(&unique, &source, |file| {
        let partial = cache.partial(repo, file)?;
        let mut shown = progress.file(&file.path, file.size);
        let digests = source.download(file, &partial, &mut |present| shown.set(present))?;
        cache.insert(repo, &commit, file, &digests)?;
        shown.finish();
        Ok(())
    });
    progress.clear();
    downloaded?;
    for file in copies {
        if !cache.reuse(repo, &commit, file)? {
            let why = "another process removed the file with the same content".into();
            let (repo, file) = (repo.to_string(), file.path.clone());
            return Err(AssetError::HubFile { repo, file, why, remedy: "run the same command again".into() });
        }
    }
    // Last, so that a revision never refers to an incomplete snapshot.
    cache.record_revision(repo, revision, &commit)?;
    let dir = cache.snapshot(repo, &commit);
    Ok(Fetched { schema: 1, repo: repo.to_string(), commit, dir, files: fetched_files(cached, missing) })
}

/// Calls `download` for each file on a few threads. The first error cancels the other downloads.
fn in_parallel(
    files: &[&RemoteFile],
    source: &Source<'_>,
    download: impl Fn(&RemoteFile) -> Result<(), AssetError> + Sync,
) -> Result<(), AssetError> {
    let (next, first_error) = (AtomicUsize::new(0), OnceLock::new());
    let worker = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = download(file) {
                // Later errors are consequences of the first.
                let _ = first_error.set(error);
                source.cancel();
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..PARALLEL_DOWNLOADS.min(files.len()) {
            scope.spawn(worker);
        }
    });
    first_error.into_inner().map_or(Ok(()), Err)
}

/// Downloads the sources of `repo` at `commit` to `dir`, read-only, and removes files that are no longer in it.
pub fn sources(
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
    let mut listing = hub.list(repo, commit)?;
    listing.files.retain(|file| matches_any(&SOURCE_FILES, &file.path));
    require_files(repo, &listing, "the repository has no sources")?;
    fs::create_dir_all(dir).map_err(AssetError::io("create", dir))?;
    let progress = Progress::new(listing.files.iter().map(|f| f.size).sum(), quiet);
    let source = Source::new(hub, repo, commit);
    let mut receipt = Receipt { revision: commit.to_owned(), files: BTreeMap::new() };
    let mut first_with: HashMap<&str, PathBuf> = HashMap::new();
    for file in &listing.files {
        let mut shown = progress.file(&file.path, file.size);
        let same = first_with.get(file.oid.as_str()).map(PathBuf::as_path);
        let (path, digests) = download_source(&source, file, dir, same, &mut |present| shown.set(present))?;
        first_with.entry(&file.oid).or_insert(path);
        shown.finish();
        receipt.files.insert(file.path.clone(), digests.git_blob);
    }
    progress.clear();
    for old in before.unwrap_or_default().files.keys().filter(|old| !receipt.files.contains_key(*old)) {
        if let Ok(old) = paths::relative(old) {
            let old = dir.join(old);
            paths::require_no_links(dir, old.parent().unwrap_or(dir))?;
            // It is fine if the file is already missing.
            let _ = fs::remove_file(old);
        }
    }
    let path = dir.join(RECEIPT);
    let text = serde_json::to_string_pretty(&receipt).map_err(|e| AssetError::Failed(e.to_string()))?;
    write(&path, text).map_err(AssetError::io("write", &path))?;
    let (repo, commit, dir) = (repo.to_string(), commit.to_owned(), dir.to_owned());
    Ok(Fetched { schema: 1, repo, commit, dir, files: fetched_files(Vec::new(), listing.files) })
}

/// Downloads `file` to its path in `dir`, or copies it from `same`, which has the same content.
fn download_source(
    source: &Source<'_>,
    file: &RemoteFile,
    dir: &Path,
    same: Option<&Path>,
    progress: &mut dyn FnMut(u64),
) -> Result<(PathBuf, Digests), AssetError> {
    paths::plain_name("object id", &file.oid)?;
    let partial = dir.join(format!(".{}.incomplete", file.oid));
    let path = dir.join(paths::relative(&file.path).map_err(AssetError::Failed)?);
    if let Some(parent) = path.parent() {
        paths::require_no_links(dir, parent)?;
        fs::create_dir_all(parent).map_err(AssetError::io("create", parent))?;
    }
    if let Some(same) = same {
        // The download finds it complete. A copy with permissions would be read-only.
        let copied = fs::read(same).and_then(|content| write(&partial, content));
        copied.map_err(AssetError::io("copy", same))?;
    }
    let digests = source.download(file, &partial, progress)?;
    let mut permissions = fs::metadata(&partial).map_err(AssetError::io("read", &partial))?.permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&partial, permissions).map_err(AssetError::io("write", &partial))?;
    fs::rename(&partial, &path).map_err(AssetError::io("create", &path))?;
    Ok((path, digests))
}

pub fn read_receipt(dir: &Path) -> Option<Receipt> {
    let text = read::text(&dir.join(RECEIPT), MAX_DOCUMENT).ok()?;
    let receipt: Receipt = serde_json::from_str(&text).ok()?;
    receipt.files.keys().all(|path| paths::relative(path).is_ok()).then_some(receipt)
}

/// The files of `receipt` that are missing or edited.
pub fn changes(dir: &Path, receipt: &Receipt) -> Vec<String> {
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

fn matches_any(patterns: &[&str], path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    patterns.iter().any(|pattern| glob_matches(pattern, name))
}

fn require_files(repo: &RepoId, listing: &Listing, remedy: &str) -> Result<(), AssetError> {
    if !listing.files.is_empty() {
        return Ok(());
    }
    let why = format!("there are no files to fetch at {}", listing.commit);
    Err(AssetError::Hub { repo: repo.to_string(), why, remedy: remedy.into() })
}

fn fetched_files(cached: Vec<RemoteFile>, downloaded: Vec<RemoteFile>) -> Vec<FetchedFile> {
    let file = |cached| move |file: RemoteFile| FetchedFile { path: file.path, bytes: file.size, cached };
    let mut files: Vec<FetchedFile> =
        cached.into_iter().map(file(true)).chain(downloaded.into_iter().map(file(false))).collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// The files of a snapshot. `None` if it has no files or a broken link.
fn snapshot_files(snapshot: &Path) -> Option<Vec<FetchedFile>> {
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
