//! One file's bytes: begun where the last attempt ended, counted, and hashed against the hub's listing.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use hf_hub::{HFError, HFRepository, RepoTypeModel};

use super::{Hub, PATIENCE, RemoteFile, RepoId, Trouble};
use crate::assets::digest::{self, Digests, Hasher};
use crate::assets::error::AssetError;

/// Attempts in a row that bring no byte before giving up.
const FRUITLESS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// A repository at a commit, to download from.
pub(in crate::assets) struct Source<'a> {
    pub(in crate::assets) hub: &'a Hub,
    pub(in crate::assets) repo: &'a RepoId,
    pub(in crate::assets) commit: &'a str,
}

/// How an attempt ended without an error of ours.
enum Attempt {
    Whole,
    /// The connection broke; what came is kept.
    Broken(Trouble),
}

impl Source<'_> {
    /// Brings `file` to `partial`, whole and checked. `came` hears how many bytes are there.
    ///
    /// What `partial` holds from before is kept and continued; if the whole then has the wrong hash, it is
    /// fetched anew once.
    pub(in crate::assets) async fn download(
        &self,
        file: &RemoteFile,
        partial: &Path,
        came: &mut dyn FnMut(u64),
    ) -> Result<Digests, AssetError> {
        let opened = OpenOptions::new().create(true).read(true).append(true).open(partial);
        let mut out = opened.map_err(AssetError::io("write", partial))?;
        match out.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(self.refuse(file, "another fetch is at it".into(), "wait for that one".into()));
            }
            // A file system without locks: two fetches at once would be caught by the hash.
            Err(TryLockError::Error(_)) => {}
        }
        let mut resumed = length(&out, partial)? > 0;
        loop {
            let digests = self.bring(file, partial, &mut out, came).await?;
            let known_as = match file.large {
                true => digest::lfs_pointer_blob(&digests.sha256, file.size),
                false => digests.git_blob.clone(),
            };
            if known_as == file.oid {
                return Ok(digests);
            }
            out.set_len(0).map_err(AssetError::io("write", partial))?;
            if !resumed {
                let why = "the bytes that came have another hash than the hub lists".into();
                return Err(self.refuse(
                    file,
                    why,
                    "run the same command again; if it stays, tell the hub".into(),
                ));
            }
            resumed = false;
        }
    }

    /// Attempts until all bytes are there, and hashes them.
    async fn bring(
        &self,
        file: &RemoteFile,
        partial: &Path,
        out: &mut File,
        came: &mut dyn FnMut(u64),
    ) -> Result<Digests, AssetError> {
        let mut fruitless = 0;
        let mut pause = FIRST_PAUSE;
        loop {
            if length(out, partial)? > file.size {
                out.set_len(0).map_err(AssetError::io("write", partial))?;
            }
            let before = length(out, partial)?;
            let mut hasher = Hasher::new(file.size);
            digest::feed(&mut hasher, partial, before).map_err(AssetError::io("read", partial))?;
            came(before);
            if before == file.size {
                return Ok(hasher.finish());
            }
            match self.attempt(file, partial, out, &mut hasher, came).await? {
                Attempt::Whole => return Ok(hasher.finish()),
                Attempt::Broken(trouble) => {
                    let brought = length(out, partial)? > before;
                    fruitless = if brought { 0 } else { fruitless + 1 };
                    if fruitless >= FRUITLESS {
                        return Err(self.hub.explain(self.repo, Some(&file.path), trouble));
                    }
                    pause = if brought { FIRST_PAUSE } else { pause * 2 };
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    async fn attempt(
        &self,
        file: &RemoteFile,
        partial: &Path,
        out: &mut File,
        hasher: &mut Hasher,
        came: &mut dyn FnMut(u64),
    ) -> Result<Attempt, AssetError> {
        let mut have = length(out, partial)?;
        let repository: HFRepository<RepoTypeModel> = self.hub.repository(self.repo);
        let ask = repository.download_file_stream().filename(&file.path).revision(self.commit);
        // Without a beginning there is no range to ask for, and servers that know none do too.
        let answer = match have {
            0 => self.hub.wait(ask.send()).await,
            _ => self.hub.wait(ask.range(have..file.size).send()).await,
        };
        let (length_told, mut stream) = match answer {
            Ok(answer) => answer,
            Err(Trouble::Hub(HFError::Http { context })) if context.status.as_u16() == 416 => {
                return Err(self.wrong_size(file, have, out));
            }
            Err(trouble) if may_pass(&trouble) => return Ok(Attempt::Broken(trouble)),
            Err(trouble) => return Err(self.hub.explain(self.repo, Some(&file.path), trouble)),
        };
        match length_told {
            // The whole comes although only the rest was asked for.
            Some(told) if have > 0 && told == file.size => {
                out.set_len(0).map_err(AssetError::io("write", partial))?;
                (have, *hasher) = (0, Hasher::new(file.size));
            }
            Some(told) if have + told != file.size => return Err(self.wrong_size(file, have + told, out)),
            _ => {}
        }
        loop {
            let chunk = match tokio::time::timeout(PATIENCE, stream.next()).await {
                Err(_) => return Ok(Attempt::Broken(Trouble::Silence)),
                Ok(None) if have == file.size => return Ok(Attempt::Whole),
                Ok(None) => return Err(self.wrong_size(file, have, out)),
                Ok(Some(Err(e))) => return Ok(Attempt::Broken(Trouble::Hub(e))),
                Ok(Some(Ok(chunk))) => chunk,
            };
            have += chunk.len() as u64;
            if have > file.size {
                return Err(self.wrong_size(file, have, out));
            }
            out.write_all(&chunk).map_err(AssetError::io("write", partial))?;
            hasher.update(&chunk);
            came(have);
        }
    }

    fn wrong_size(&self, file: &RemoteFile, has: u64, out: &File) -> AssetError {
        // What came is of no use; that it could not be emptied will be told by the next attempt.
        let _ = out.set_len(0);
        let why = format!("it has {has} bytes, and the hub lists {}", file.size);
        self.refuse(file, why, "run the same command again; if it stays, tell the hub".into())
    }

    fn refuse(&self, file: &RemoteFile, why: String, remedy: String) -> AssetError {
        AssetError::HubFile { repo: self.repo.to_string(), file: file.path.clone(), why, remedy }
    }
}

fn length(file: &File, path: &Path) -> Result<u64, AssetError> {
    file.metadata().map(|m| m.len()).map_err(AssetError::io("read", path))
}

/// Whether trying again may help.
fn may_pass(trouble: &Trouble) -> bool {
    match trouble {
        Trouble::Silence | Trouble::Hub(HFError::Request { .. } | HFError::RateLimited { .. }) => true,
        Trouble::Hub(HFError::Http { context }) => context.status.is_server_error(),
        _ => false,
    }
}
