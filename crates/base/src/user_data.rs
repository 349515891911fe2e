//! Files of this program in the user's data directory, for other programs to read.

use std::{
    env, fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
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

/// Writes `name` into `dir`, which is created for this user only; returns its path. A file with the same content is
/// kept. A program that has opened an older file keeps that one: the file is replaced, not overwritten.
pub fn keep_file(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> io::Result<PathBuf> {
    let path = dir.join(name);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if !is_own(&fs::metadata(dir)?) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is writable by other users or belongs to another user", dir.display()),
        ));
    }
    // Only a regular file of this user is read: a FIFO would never end, and a file that others can write is untrusted.
    let there = fs::symlink_metadata(&path).ok();
    let is_kept =
        there.is_some_and(|there| there.is_file() && is_own(&there) && there.len() == bytes.len() as u64);
    if is_kept && fs::read(&path).is_ok_and(|there| there == bytes) {
        return Ok(path);
    }
    let mut partial = tempfile::Builder::new().prefix(".partial").tempfile_in(dir)?;
    partial.write_all(bytes)?;
    partial.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    partial.persist(&path)?;
    Ok(path)
}

/// Whether it belongs to this user and no other can write it.
fn is_own(there: &fs::Metadata) -> bool {
    there.uid() == rustix::process::getuid().as_raw() && there.mode() & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn only_a_regular_file_that_no_other_user_can_write_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let keep = || keep_file(dir.path(), "file", b"one", 0o700).unwrap();
        let is_plain = || {
            let there = fs::symlink_metadata(&path).unwrap();
            there.is_file() && there.mode() & 0o777 == 0o700 && fs::read(&path).unwrap() == b"one"
        };
        // Reading a FIFO would never end.
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        keep();
        assert!(is_plain());
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, b"one").unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        keep();
        assert!(is_plain(), "a link is replaced");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o722)).unwrap();
        keep();
        assert!(is_plain(), "others could have written it");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = keep_file(dir.path(), "file", b"one", 0o700).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    /// Its content is right, but its owner could change it at any time.
    #[test]
    #[ignore = "needs root, who alone can give files away; .ci/run runs it"]
    fn a_file_of_another_user_is_replaced_and_a_directory_refused() {
        let own = rustix::process::getuid().as_raw();
        let dir = tempfile::tempdir().unwrap();
        let path = keep_file(dir.path(), "file", b"one", 0o700).unwrap();
        let owner = || fs::symlink_metadata(&path).unwrap().uid();
        chown(&path, Some(12345), None).unwrap();
        assert_eq!(owner(), 12345);
        keep_file(dir.path(), "file", b"one", 0o700).unwrap();
        assert_eq!((owner(), fs::read(&path).unwrap()), (own, b"one".to_vec()), "it is replaced");
        chown(dir.path(), Some(12345), None).unwrap();
        let refused = keep_file(dir.path(), "file", b"one", 0o700).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("belongs to another user"), "{refused}");
        // The file in it is not replaced either.
        assert!(keep_file(dir.path(), "file", b"two", 0o700).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        chown(dir.path(), Some(own), None).unwrap();
    }

    #[test]
    fn a_file_is_replaced_if_it_differs() {
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
