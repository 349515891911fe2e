//! Other YAML files (manifests, pins, metadata), read into types and written from them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::conf_tree::read_text;
use crate::error::{ConfigError, Origin};
use crate::yaml;

/// Why a YAML file cannot be read or written.
#[derive(Debug, Error)]
pub enum DocumentError {
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },

    #[error(transparent)]
    Yaml(#[from] ConfigError),

    #[error("{}, line {line}{}: {message}", .path.display(), at_key(.key))]
    WrongShape { path: PathBuf, line: usize, key: String, message: String },

    #[error("cannot write {}: {source}", .path.display())]
    Unwritable { path: PathBuf, source: std::io::Error },
}

fn at_key(key: &str) -> String {
    if key.is_empty() || key == "." { String::new() } else { format!(", key {key}") }
}

/// Reads the YAML file `path` as a `T`; an error names the file, the line and the key.
pub fn read_yaml<T: DeserializeOwned>(path: &Path) -> Result<T, DocumentError> {
    let text =
        read_text(path).map_err(|source| DocumentError::Unreadable { path: path.to_owned(), source })?;
    parse_yaml(&text, path)
}

/// Parses `text` as [`read_yaml`] does; errors name `path`.
pub fn parse_yaml<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, DocumentError> {
    // The first parse limits size and depth; the second one has typed errors with lines.
    yaml::parse(text, &Origin::File { path: path.display().to_string().into(), line: 1 })?;
    serde_path_to_error::deserialize(serde_yaml_ng::Deserializer::from_str(text)).map_err(|error| {
        let key = error.path().to_string();
        let inner = error.into_inner();
        let line = inner.location().map_or(1, |location| location.line());
        let message = inner.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        // The message of the parser starts with the key, which the error prints already.
        let message = message.strip_prefix(&format!("{key}: ")).unwrap_or(message).to_owned();
        DocumentError::WrongShape { path: path.to_owned(), line, key, message }
    })
}

/// Writes `value` as YAML after `heading` (comment lines or empty). The file is replaced atomically, and links are replaced
/// rather than followed.
pub fn write_yaml<T: Serialize>(path: &Path, heading: &str, value: &T) -> Result<(), DocumentError> {
    let failed = |source| DocumentError::Unwritable { path: path.to_owned(), source };
    let text = serde_yaml_ng::to_string(value).map_err(|e| failed(std::io::Error::other(e)))?;
    let temporary = path.with_extension("yaml.new");
    // A link, or the rest of an earlier attempt.
    let _ = fs::remove_file(&temporary);
    let written = File::create_new(&temporary)
        .and_then(|mut file| file.write_all(format!("{heading}{text}").as_bytes()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, Serialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Pin {
        name: String,
        files: Vec<u32>,
    }

    fn read(text: &str) -> Result<Vec<Pin>, DocumentError> {
        parse_yaml(text, Path::new("pins.yaml"))
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let table = [
            ("- name: a\n  files: [1]\n- name: b\n  files: [x]\n", "pins.yaml, line 4, key [1].files[0]: "),
            ("- name: a\n  file: [1]\n", "unknown field `file`"),
            ("- name: a\n", "missing field `files`"),
            ("- name: [\n", "bad YAML in pins.yaml, line "),
            ("a: &x [*x]", "pins.yaml"),
        ];
        for (text, expected) in table {
            let message = read(text).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("pins.yaml, line"), "{text:?}: {message}");
        }
    }

    #[test]
    fn written_documents_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pins.yaml");
        let pins = vec![Pin { name: "a: #1".into(), files: vec![1, 2] }];
        write_yaml(&path, "# Pins.\n", &pins).unwrap();
        assert_eq!(read_yaml::<Vec<Pin>>(&path).unwrap(), pins);
        assert!(fs::read_to_string(&path).unwrap().starts_with("# Pins.\n"));
        let error = read_yaml::<Vec<Pin>>(dir.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }

    #[test]
    fn links_are_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let [path, temporary, other] =
            ["pins.yaml", "pins.yaml.new", "other"].map(|name| dir.path().join(name));
        fs::write(&other, "kept").unwrap();
        for link in [&path, &temporary] {
            std::os::unix::fs::symlink(&other, link).unwrap();
        }
        write_yaml(&path, "", &Vec::<Pin>::new()).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
        assert!(!path.is_symlink() && !temporary.is_symlink());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        write_yaml(&path, "", &Vec::<Pin>::new()).unwrap_err();
        assert!(!temporary.exists(), "a failed attempt leaves nothing");
    }
}
