//! The Hugging Face hub: the content of a repository at a revision, and its files.
//!
//! `hf-hub` provides addresses, the token, request headers and the layout of the cache. This module adds the file
//! listing with sizes and hashes, resumed downloads, verification, time limits and `HF_HUB_OFFLINE`.

mod cache;
mod download;
mod request;

use std::env;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder};
use hf_hub::{Repo, RepoType};
use serde::Deserialize;
use ureq::http::Uri;
use ureq::tls::TlsConfig;

pub(super) use cache::{Cache, cached_snapshot, is_commit};
pub(super) use download::Source;

use super::error::AssetError;
use super::paths;
use request::Target;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Longest wait for a connection, for a response, and for the next bytes of one.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Maximum number of pages; a page has up to a thousand files.
const MAX_PAGES: usize = 1000;

/// A validated `org/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoId {
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

    /// This repository in terms of `hf-hub`.
    fn at_revision(&self, revision: &str) -> Repo {
        Repo::with_revision(self.to_string(), RepoType::Model, revision.to_owned())
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
    /// The git object id of the file, or of its LFS pointer.
    pub(super) oid: String,
    /// Whether git stores an LFS pointer in place of the file.
    pub(super) is_lfs: bool,
}

/// The files of a repository at one commit, sorted by path.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<RemoteFile>,
}

/// The hub that the environment selects.
pub struct Hub {
    api: Api,
    /// Without a trailing slash.
    endpoint: String,
    uri: Uri,
    cache: Cache,
    token: Option<String>,
    tls: TlsConfig,
    time_limit: Duration,
    pub(super) offline: bool,
}

#[derive(Deserialize)]
struct RevisionInfo {
    sha: Option<String>,
}

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    path: String,
    lfs: Option<LfsPointer>,
}

#[derive(Deserialize)]
struct LfsPointer {
    size: Option<u64>,
}

impl Hub {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and `SSL_CERT_FILE`.
    pub fn from_env() -> Result<Hub, AssetError> {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        if variable("HF_HOME").is_none() && env::home_dir().is_none() {
            return Err(AssetError::Usage("no home directory; set HF_HOME to a directory for models".into()));
        }
        let home = hf_hub::Cache::from_env();
        let token = variable("HF_TOKEN").or_else(|| home.token());
        let cache = variable("HF_HUB_CACHE").map_or(home, |dir| hf_hub::Cache::new(dir.into()));
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.into());
        let is_true = |value: String| matches!(value.to_lowercase().as_str(), "1" | "true" | "yes" | "on");
        let offline = variable("HF_HUB_OFFLINE").is_some_and(is_true);
        let hub = Hub::new(&endpoint, cache, token)?;
        match variable("SSL_CERT_FILE") {
            Some(path) => Ok(Hub { tls: request::tls_with_roots(Path::new(&path))?, offline, ..hub }),
            None => Ok(Hub { offline, ..hub }),
        }
    }

    fn new(endpoint: &str, cache: hf_hub::Cache, token: Option<String>) -> Result<Hub, AssetError> {
        let endpoint = endpoint.trim_end_matches('/');
        let bad = || AssetError::Usage("HF_ENDPOINT must be an http:// or https:// address".into());
        let uri: Uri = endpoint.parse().map_err(|_| bad())?;
        if uri.host().is_none() || !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(bad());
        }
        let api = ApiBuilder::from_cache(cache.clone())
            .with_endpoint(endpoint.to_owned())
            .with_token(token.clone())
            .with_user_agent(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|e| AssetError::Failed(format!("cannot set up the hub client: {e}")))?;
        let cache = Cache::new(cache);
        let endpoint = endpoint.to_owned();
        let tls = TlsConfig::default();
        Ok(Hub { api, endpoint, uri, cache, token, tls, time_limit: TIME_LIMIT, offline: false })
    }

    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The current commit of `revision`.
    pub fn resolve(&self, repo: &RepoId, revision: &str) -> Result<String, AssetError> {
        // A revision becomes part of addresses and file names.
        paths::require_reference("revision", revision)?;
        if is_commit(revision) {
            return Ok(revision.to_owned());
        }
        self.require_online(repo)?;
        let repository = repo.at_revision(&request::percent_encode(revision));
        let address = format!("{}/api/{}", self.endpoint, repository.api_url());
        let info = self.get_json::<RevisionInfo>(&self.api.repo(repository), &address);
        let (info, _) = info.map_err(|e| self.describe(repo, Target::Revision(revision), &e))?;
        info.sha.filter(|sha| is_commit(sha)).ok_or_else(|| AssetError::Hub {
            repo: repo.to_string(),
            why: format!("the hub reports no commit for {revision:?}"),
            remedy: "pass a commit with --revision".into(),
        })
    }

    /// All files of `repo` at `commit`.
    pub(super) fn list(&self, repo: &RepoId, commit: &str) -> Result<Listing, AssetError> {
        self.require_online(repo)?;
        let repository = self.api.repo(repo.at_revision(commit));
        let tree = format!("{}/api/models/{repo}/tree/{commit}", self.endpoint);
        let mut query = Some("recursive=true".to_owned());
        let mut files = Vec::new();
        let mut pages = 0;
        while let Some(page) = query {
            let (entries, next_page) = self
                .get_json::<Vec<TreeEntry>>(&repository, &format!("{tree}?{page}"))
                .map_err(|e| self.describe(repo, Target::Revision(commit), &e))?;
            pages += 1;
            if next_page.is_some() && (entries.is_empty() || pages >= MAX_PAGES) {
                return Err(AssetError::Hub {
                    repo: repo.to_string(),
                    why: format!("the list of its files does not end (page {pages})"),
                    remedy: "check that HF_ENDPOINT is the address of a hub".into(),
                });
            }
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                paths::relative(&entry.path).map_err(|why| AssetError::HubFile {
                    repo: repo.to_string(),
                    file: entry.path.clone(),
                    why: format!("the file name {why}"),
                    remedy: "do not trust this repository".into(),
                })?;
                // Some listings give the size of the pointer, and the size of the file in `lfs`.
                let size = entry.lfs.as_ref().and_then(|lfs| lfs.size).unwrap_or(entry.size);
                let is_lfs = entry.lfs.is_some();
                files.push(RemoteFile { path: entry.path, size, oid: entry.oid, is_lfs });
            }
            query = next_page;
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Listing { commit: commit.to_owned(), files })
    }

    fn require_online(&self, repo: &RepoId) -> Result<(), AssetError> {
        if !self.offline {
            return Ok(());
        }
        Err(AssetError::Hub {
            repo: repo.to_string(),
            why: format!(
                "HF_HUB_OFFLINE is set, and the files are incomplete in {}",
                self.cache.root().display()
            ),
            remedy: "unset HF_HUB_OFFLINE to download them, or set HF_HOME to the directory that has them"
                .into(),
        })
    }
}

/// Checks that `bytes` more fit below `dir`. Passes if the free space is unknown.
pub(super) fn check_free_space(dir: &Path, bytes: u64) -> Result<(), AssetError> {
    let existing = dir.ancestors().find(|d| d.exists()).unwrap_or(dir);
    let Ok(disk) = rustix::fs::statvfs(existing) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if bytes <= free {
        return Ok(());
    }
    use llmprof_base::units::bytes as format_bytes;
    Err(AssetError::Failed(format!(
        "{} has {} free, and the download needs {}; free some space, or set HF_HOME to another disk",
        existing.display(),
        format_bytes(free),
        format_bytes(bytes)
    )))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that sends `response` and then keeps the connection open.
    fn silent_server(response: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let mut connections = Vec::new();
            for mut stream in listener.incoming().flatten() {
                BufReader::new(&stream).read_line(&mut String::new()).unwrap();
                stream.write_all(response.as_bytes()).unwrap();
                connections.push(stream);
            }
        });
        address
    }

    #[test]
    fn silence_reaches_the_time_limit() {
        let cache = tempfile::tempdir().unwrap();
        for response in ["", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"] {
            let endpoint = silent_server(response);
            let hub = Hub::new(&endpoint, hf_hub::Cache::new(cache.path().into()), None).unwrap();
            let hub = Hub { time_limit: Duration::from_millis(200), ..hub };
            let error = hub.resolve(&RepoId::parse("org/tiny").unwrap(), "main").unwrap_err().to_string();
            assert!(error.contains(&format!("{endpoint} does not respond")), "{error}");
        }
    }

    #[test]
    fn endpoints_are_validated() {
        let cache = || hf_hub::Cache::new("cache".into());
        for bad in ["hub", "ftp://hub.example", "http://", "http://a b"] {
            assert!(Hub::new(bad, cache(), None).is_err(), "{bad}");
        }
        assert_eq!(Hub::new("https://hub.example/", cache(), None).unwrap().endpoint, "https://hub.example");
    }
}
