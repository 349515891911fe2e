//! What can go wrong with assets, told with the name of the thing and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::{ConfigError, DocumentError, Names};

#[derive(Debug, Error)]
pub enum AssetError {
    #[error("no manifest at {}; run this in the project's directory or name it with --root", .path.display())]
    NoManifest { path: PathBuf },

    #[error("{0}")]
    Document(DocumentError),

    #[error(transparent)]
    Config(#[from] ConfigError),

    #[error("unknown {kind} {name:?}{names}{note}")]
    Unknown { kind: &'static str, name: String, names: Box<Names>, note: &'static str },

    #[error("bad {what} {name:?}: {why}")]
    BadName { what: &'static str, name: String, why: String },

    #[error("{0}")]
    Usage(String),

    #[error("cannot {doing} {}: {source}{}", .path.display(), remedy(.source))]
    Io { doing: &'static str, path: PathBuf, source: io::Error },

    #[error(
        "{} leads out of {} (to {}); set the variable to the place itself, or link it by hand",
        .path.display(), .root.display(), .real.display()
    )]
    LeadsOut { path: PathBuf, root: PathBuf, real: PathBuf },

    #[error("{}: the entry {entry:?} {why}; nothing was extracted", .archive.display())]
    BadEntry { archive: PathBuf, entry: String, why: String },

    #[error("{}: {why}", .archive.display())]
    BadArchive { archive: PathBuf, why: String },

    #[error("{repo}: {why}; {remedy}")]
    Hub { repo: String, why: String, remedy: String },

    #[error("{repo}, {file}: {why}; {remedy}")]
    HubFile { repo: String, file: String, why: String, remedy: String },

    #[error("git {command}: {why}")]
    Git { command: String, why: String },

    #[error("{0}")]
    Failed(String),
}

impl AssetError {
    /// Whether the caller's words are at fault (exit code 2), not the work (exit code 1).
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            AssetError::NoManifest { .. }
                | AssetError::Document(DocumentError::Yaml(_) | DocumentError::WrongShape { .. })
                | AssetError::Config(_)
                | AssetError::Unknown { .. }
                | AssetError::BadName { .. }
                | AssetError::Usage(_)
        )
    }

    /// For `map_err`: what was being done, and to what.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AssetError {
        let path = path.to_owned();
        move |source| AssetError::Io { doing, path, source }
    }
}

impl From<DocumentError> for AssetError {
    /// The file errors of a document get the same remedies as all others.
    fn from(error: DocumentError) -> AssetError {
        match error {
            DocumentError::Unreadable { path, source } => AssetError::Io { doing: "read", path, source },
            DocumentError::Unwritable { path, source } => AssetError::Io { doing: "write", path, source },
            other => AssetError::Document(other),
        }
    }
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; allow this user to write there, or choose another place",
        io::ErrorKind::ReadOnlyFilesystem => "; the disk is mounted read-only: choose another place",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room and run the same command again: what is there is kept"
        }
        io::ErrorKind::IsADirectory => "; a file was expected, and this is a directory",
        io::ErrorKind::NotADirectory => "; a directory was expected above it, and that is a file",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_disk_name_the_path_and_the_remedy() {
        for (kind, wanted) in [
            (io::ErrorKind::StorageFull, "make room"),
            (io::ErrorKind::PermissionDenied, "allow this user"),
            (io::ErrorKind::IsADirectory, "this is a directory"),
            (io::ErrorKind::ReadOnlyFilesystem, "read-only"),
        ] {
            let error = AssetError::io("write", Path::new("cache/x"))(kind.into());
            let text = error.to_string();
            assert!(text.starts_with("cannot write cache/x: ") && text.contains(wanted), "{text}");
            assert!(!error.is_usage());
        }
    }
}
