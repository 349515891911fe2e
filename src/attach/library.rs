//! The library as a file that other programs can load.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Writes the library where programs of this user can load it, unless it is there already; returns its path. A program that has
/// loaded an older one keeps that: the file is replaced, not written.
pub fn library_file() -> io::Result<PathBuf> {
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let data = env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute()).or(home);
    let tried = data.map(|data| write_into(&data.join("llmprof")));
    match tried {
        Some(Ok(path)) => Ok(path),
        // A home that cannot be written, as in some containers.
        _ => write_into(&super::socket::shared_directory()?),
    }
}

fn write_into(dir: &Path) -> io::Result<PathBuf> {
    let bytes = llmprof_inject::LIBRARY;
    let path = dir.join("libllmprof_inject.so");
    if fs::read(&path).is_ok_and(|there| there == bytes) {
        return Ok(path);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut partial = tempfile::Builder::new().prefix(".library").tempfile_in(dir)?;
    io::Write::write_all(&mut partial, bytes)?;
    partial.as_file().set_permissions(fs::Permissions::from_mode(0o700))?;
    partial.persist(&path)?;
    Ok(path)
}
