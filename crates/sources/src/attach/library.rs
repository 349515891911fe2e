//! The library as a file that other programs can load.

use std::{io, path::PathBuf};

use llmprof_base::user_data::{keep_file, user_data_dir};

pub(super) const NAME: &str = "libllmprof_inject.so";

/// Writes the library to a place where programs of this user can load it, unless it exists; returns its path.
pub fn library_file() -> io::Result<PathBuf> {
    let keep = |dir: PathBuf| keep_file(&dir, NAME, llmprof_inject::LIBRARY, 0o700);
    match user_data_dir().map(keep) {
        Some(Ok(path)) => Ok(path),
        // The home directory is not writable, e.g. in some containers.
        _ => keep(super::private_dir::shared_directory()?),
    }
}
