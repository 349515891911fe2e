//! The download of one file: resumed where the last attempt ended, with its size and hash verified.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hf_hub::api::sync::ApiRepo;
use ureq::http::StatusCode;

use super::request::{RequestError, Target, percent_encode};
use super::{Hub, RemoteFile, RepoId};
use crate::assets::{
    digest::{self, Digests, Hasher},
    error::AssetError,
};

/// Consecutive attempts without a new byte before a download fails.
const MAX_EMPTY_ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const BUFFER_BYTES: usize = 256 << 10;
const REPORT_IT: &str =
    "run the same command again; if it fails again, report it to the owner of the repository";

/// A repository at a commit, as the source of downloads on several threads.
pub(in crate::assets) struct Source<'a> {
    hub: &'a Hub,
    repo: &'a RepoId,
    repository: ApiRepo,
    cancelled: AtomicBool,
}

/// How an attempt ended without a permanent error.
enum Attempt {
    Complete,
    /// The connection broke. The partial file keeps the bytes that arrived.
    Interrupted(RequestError),
}

impl<'a> Source<'a> {
    pub(in crate::assets) fn new(hub: &'a Hub, repo: &'a RepoId, commit: &str) -> Source<'a> {
        let repository = hub.api.repo(repo.at_revision(commit));
        Source { hub, repo, repository, cancelled: AtomicBool::new(false) }
    }

    /// Ends all downloads from this source. Their partial files are kept.
    pub(in crate::assets) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Downloads `file` to `partial` and verifies it. `progress` receives the number of bytes present.
    ///
    /// Continues from what `partial` already has. If the hash of the result is wrong, the download starts again once.
    pub(in crate::assets) fn download(
        &self,
        file: &RemoteFile,
        partial: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Digests, AssetError> {
        // The directory below `third_party/` may be untrusted.
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let opened =
            OpenOptions::new().create(true).read(true).append(true).custom_flags(no_link).open(partial);
        let mut out = opened.map_err(AssetError::io("write", partial))?;
        if !out.metadata().is_ok_and(|found| found.is_file()) {
            return Err(self.refuse(file, "the file of an earlier download is not a file", "remove it"));
        }
        match out.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(self.refuse(
                    file,
                    "another process is downloading this file",
                    "wait until it has finished",
                ));
            }
            // A file system without locks. The hash detects two downloads to one file.
            Err(TryLockError::Error(_)) => {}
        }
        let mut resumed = length(&out, partial)? > 0;
        loop {
            let digests = self.fill(file, partial, &mut out, progress)?;
            let oid = match file.is_lfs {
                true => digest::lfs_pointer_blob(&digests.sha256, file.size),
                false => digests.git_blob.clone(),
            };
            if oid == file.oid {
                return Ok(digests);
            }
            out.set_len(0).map_err(AssetError::io("write", partial))?;
            if !resumed {
                return Err(self.refuse(file, "its hash differs from the one the hub lists", REPORT_IT));
            }
            resumed = false;
        }
    }

    /// Requests the missing bytes until the file is complete, and hashes it.
    fn fill(
        &self,
        file: &RemoteFile,
        partial: &Path,
        out: &mut File,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Digests, AssetError> {
        let mut empty_attempts = 0;
        let mut pause = FIRST_PAUSE;
        loop {
            if length(out, partial)? > file.size {
                out.set_len(0).map_err(AssetError::io("write", partial))?;
            }
            let before = length(out, partial)?;
            let mut hasher = Hasher::new(file.size);
            digest::feed(&mut hasher, partial, before).map_err(AssetError::io("read", partial))?;
            progress(before);
            if before == file.size {
                return Ok(hasher.finish());
            }
            match self.attempt(file, partial, out, &mut hasher, progress)? {
                Attempt::Complete => return Ok(hasher.finish()),
                Attempt::Interrupted(error) => {
                    let advanced = length(out, partial)? > before;
                    empty_attempts = if advanced { 0 } else { empty_attempts + 1 };
                    if empty_attempts >= MAX_EMPTY_ATTEMPTS {
                        return Err(self.hub.describe(self.repo, Target::File(&file.path), &error));
                    }
                    pause = if advanced { FIRST_PAUSE } else { pause * 2 };
                    thread::sleep(pause);
                }
            }
        }
    }

    fn attempt(
        &self,
        file: &RemoteFile,
        partial: &Path,
        out: &mut File,
        hasher: &mut Hasher,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Attempt, AssetError> {
        self.check_cancelled(file)?;
        let mut present = length(out, partial)?;
        let address = self.repository.url(&percent_encode(&file.path));
        // The first request has no range, so that servers without ranges work.
        let range = (present > 0).then_some(present..file.size);
        let response = match self.hub.get(&self.repository, &address, range) {
            Ok(response) => response,
            Err(RequestError::Status { status: StatusCode::RANGE_NOT_SATISFIABLE, .. }) => {
                return Err(self.wrong_size(file, present, out));
            }
            Err(error) if error.is_transient() => return Ok(Attempt::Interrupted(error)),
            Err(error) => return Err(self.hub.describe(self.repo, Target::File(&file.path), &error)),
        };
        if present > 0 && response.status() != StatusCode::PARTIAL_CONTENT {
            // The server ignored the range and sends the file from its start.
            out.set_len(0).map_err(AssetError::io("write", partial))?;
            (present, *hasher) = (0, Hasher::new(file.size));
        }
        let body = response.into_body();
        if let Some(announced) = body.content_length()
            && present + announced != file.size
        {
            return Err(self.wrong_size(file, present + announced, out));
        }
        let mut reader = body.into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            self.check_cancelled(file)?;
            let chunk = match reader.read(&mut buffer) {
                Ok(0) if present == file.size => return Ok(Attempt::Complete),
                Ok(0) => return Err(self.wrong_size(file, present, out)),
                Ok(n) => &buffer[..n],
                Err(error) => return Ok(Attempt::Interrupted(error.into())),
            };
            present += chunk.len() as u64;
            if present > file.size {
                return Err(self.wrong_size(file, present, out));
            }
            out.write_all(chunk).map_err(AssetError::io("write", partial))?;
            hasher.update(chunk);
            progress(present);
        }
    }

    fn check_cancelled(&self, file: &RemoteFile) -> Result<(), AssetError> {
        match self.cancelled.load(Ordering::Relaxed) {
            true => Err(self.refuse(file, "the download of another file failed", "see that error")),
            false => Ok(()),
        }
    }

    fn wrong_size(&self, file: &RemoteFile, actual: u64, out: &File) -> AssetError {
        // The bytes are useless. If they cannot be removed, the next attempt reports it.
        let _ = out.set_len(0);
        self.refuse(file, &format!("it has {actual} bytes, and the hub lists {}", file.size), REPORT_IT)
    }

    fn refuse(&self, file: &RemoteFile, why: &str, remedy: &str) -> AssetError {
        let (repo, file) = (self.repo.to_string(), file.path.clone());
        AssetError::HubFile { repo, file, why: why.into(), remedy: remedy.into() }
    }
}

fn length(file: &File, path: &Path) -> Result<u64, AssetError> {
    file.metadata().map(|m| m.len()).map_err(AssetError::io("read", path))
}
