//! Files of this program in the user's own data, for other programs to read.

use std::{
    env, fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The directory of this program's data; `None` for a user without a home.
pub fn user_data_dir() -> Option<PathBuf> {
    let home = env::var_os("HOME")
        .filter(|home| !home.is_empty())
        .map(|home| PathBuf::from(home).join(".local/share"));
    let data = env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute()).or(home);
    data.map(|data| data.join("llmprof"))
}

/// Writes `name` into `dir`, which is made for this user alone, unless it is there already; returns its path. A program that has opened
/// an older one keeps that: the file is replaced, not written.
pub fn keep_file(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> io::Result<PathBuf> {
    let path = dir.join(name);
    if fs::read(&path).is_ok_and(|there| there == bytes) {
        return Ok(path);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut partial = tempfile::Builder::new().prefix(".partial").tempfile_in(dir)?;
    partial.write_all(bytes)?;
    partial.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    partial.persist(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_where_it_differs() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("data");
        let path = keep_file(&inner, "file", b"one", 0o600).unwrap();
        assert_eq!(path, inner.join("file"));
        assert_eq!(inner.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let open = fs::File::open(&path).unwrap();
        keep_file(&inner, "file", b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(io::read_to_string(open).unwrap(), "one");
    }
}
