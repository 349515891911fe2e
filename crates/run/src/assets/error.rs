//! Errors of the asset commands, each with the file or name and a remedy.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use llmprof_config::{ConfigError, DocumentError, Names};

#[derive(Debug, Error)]
pub enum AssetError {
    #[error("no manifest at {}; run this command in the project directory or pass --root", .path.display())]
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

    #[error("cannot {operation} {}: {source}{}", .path.display(), remedy(.source))]
    Io { operation: &'static str, path: PathBuf, source: io::Error },

    #[error(
        "{} points outside of {} (to {}); set the environment variable to that directory, or create the link by hand",
        .path.display(), .root.display(), .real.display()
    )]
    OutsideRoot { path: PathBuf, root: PathBuf, real: PathBuf },

    #[error("{}: the entry {entry:?} {why}; nothing was extracted", .archive.display())]
    BadEntry { archive: PathBuf, entry: String, why: String },

    #[error("{}: {why}", .archive.display())]
    BadArchive { archive: PathBuf, why: String },

    #[error("{repo}: {why}; {remedy}")]
    Hub { repo: String, why: String, remedy: String },

    #[error("{repo}, {file}: {why}; {remedy}")]
    HubFile { repo: String, file: String, why: String, remedy: String },

    #[error("{} is not a checkout of this program: {why}; remove it, then run llmprof-tui third-party update", .dir.display())]
    ForeignCheckout { dir: PathBuf, why: String },

    #[error("{} is a link; remove it: this program writes only below {}", .path.display(), .root.display())]
    Link { path: PathBuf, root: PathBuf },

    #[error("git {command}: {why}")]
    Git { command: String, why: String },

    #[error("{0}")]
    Failed(String),
}

impl AssetError {
    /// Whether the arguments or manifests are invalid (exit code 2); other errors have exit code 1.
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

    /// For `map_err`: the failed operation and its path.
    pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AssetError {
        let path = path.to_owned();
        move |source| AssetError::Io { operation, path, source }
    }
}

impl From<DocumentError> for AssetError {
    /// File errors of documents get the same remedies as other file errors.
    fn from(error: DocumentError) -> AssetError {
        match error {
            DocumentError::Unreadable { path, source } => AssetError::Io { operation: "read", path, source },
            DocumentError::Unwritable { path, source } => AssetError::Io { operation: "write", path, source },
            other => AssetError::Document(other),
        }
    }
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; give this user access, or choose another directory",
        io::ErrorKind::ReadOnlyFilesystem => "; the disk is mounted read-only: choose another directory",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space and run the same command again: existing files are kept"
        }
        io::ErrorKind::IsADirectory => "; it is a directory, not a file",
        io::ErrorKind::NotADirectory => "; one of its parents is a file, not a directory",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_errors_name_the_path_and_the_remedy() {
        for (kind, expected) in [
            (io::ErrorKind::StorageFull, "free some space"),
            (io::ErrorKind::PermissionDenied, "give this user access"),
            (io::ErrorKind::IsADirectory, "it is a directory"),
            (io::ErrorKind::ReadOnlyFilesystem, "read-only"),
        ] {
            let error = AssetError::io("write", Path::new("cache/x"))(kind.into());
            let text = error.to_string();
            assert!(text.starts_with("cannot write cache/x: ") && text.contains(expected), "{text}");
            assert!(!error.is_usage());
        }
    }
}
