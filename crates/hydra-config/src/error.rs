//! Errors of a configuration, each with the key and the file or override it comes from.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file of the configuration tree. Line 1 represents the file.
    File { path: Arc<str>, line: usize },
    /// A line of a file compiled into the program.
    BuiltIn { path: Arc<str>, line: usize },
    /// An override, as it was typed.
    Override(Arc<str>),
    /// The composition, if no single file or override is the cause.
    Composition,
}

impl Origin {
    /// The same file at another line.
    pub(crate) fn at_line(&self, line: usize) -> Origin {
        match self.clone() {
            Origin::File { path, .. } => Origin::File { path, line },
            Origin::BuiltIn { path, .. } => Origin::BuiltIn { path, line },
            other => other,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line: 0 | 1 } => write!(f, "{path}"),
            Origin::File { path, line } => write!(f, "{path}, line {line}"),
            Origin::BuiltIn { path, line: 0 | 1 } => write!(f, "conf/{path} (built in)"),
            Origin::BuiltIn { path, line } => write!(f, "conf/{path}, line {line} (built in)"),
            Origin::Override(text) => write!(f, "the override {text:?}"),
            Origin::Composition => write!(f, "the composed configuration"),
        }
    }
}

#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("no configuration directory at {}", .path.display())]
    MissingDir { path: PathBuf },

    #[error("cannot read {}: {source}", .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },

    #[error("{origin} has {bytes} bytes; the maximum is {limit}")]
    TooLarge { origin: Origin, bytes: usize, limit: usize },

    #[error("bad YAML in {origin}, line {line}, column {column}: {message}")]
    BadYaml { origin: Origin, line: usize, column: usize, message: String },

    #[error("cannot merge {origin} at {key}: {message}")]
    BadMerge { key: String, message: String, origin: Origin },

    #[error("bad defaults list in {origin}: {message}")]
    BadDefaults { origin: Origin, message: String },

    #[error("bad override {text:?}: {message}")]
    BadOverride { text: String, message: String },

    #[error("unknown group {group:?}{names}; from {origin}")]
    UnknownGroup { group: String, names: Box<Names>, origin: Origin },

    #[error("unknown option {option:?} for group {group:?}{names}; from {origin}")]
    UnknownOption { group: String, option: String, names: Box<Names>, origin: Origin },

    #[error("unknown key {key:?}{names}; from {origin}{}", plus_note(.add_with))]
    UnknownKey {
        key: String,
        names: Box<Names>,
        origin: Origin,
        /// The override that would add the key, if the configuration accepts it.
        add_with: Option<String>,
    },

    #[error("there is no {package:?} in the configuration{names}")]
    UnknownPackage { package: String, names: Box<Names> },

    #[error("{key} has no value yet (???); set it with {key}=…; from {origin}")]
    MissingValue { key: String, origin: Origin },

    #[error("missing key {key:?} in {origin}")]
    MissingKey { key: String, origin: Origin },

    #[error("wrong value for {key}: got {got}, expected {expected}; from {origin}")]
    WrongType { key: String, got: String, expected: String, origin: Origin },

    #[error("value out of range for {key}: got {got}, expected {expected}; from {origin}")]
    OutOfRange { key: String, got: String, expected: String, origin: Origin },

    #[error("cannot resolve {text:?} at {key}: {message}; from {origin}")]
    Interpolation { key: String, text: String, message: String, origin: Origin },

    #[error("interpolation cycle: {}", .path.join(" → "))]
    Cycle { path: Vec<String> },
}

fn plus_note(add_with: &Option<String>) -> String {
    add_with.as_ref().map(|text| format!("; to add it, write {text:?}")).unwrap_or_default()
}

/// The known names, and those similar to the unknown one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub near: Vec<String>,
    /// Empty if the list is too long to be useful.
    pub all: Vec<String>,
}

/// Minimum Jaro-Winkler similarity of a suggestion.
const MIN_SIMILARITY: f64 = 0.8;
const MAX_SUGGESTIONS: usize = 3;

impl Names {
    /// The names of `all` that are similar to `name`, and `all`.
    pub fn near(name: &str, all: &[String]) -> Names {
        Names { near: nearest(name, all, strsim::jaro_winkler), all: all.to_vec() }
    }

    /// The dotted keys of `all` that are similar to `key`. The last part has the most weight, so that `batch_size` finds
    /// `runtime.batch_size`, and `runtime.batchsize` does not find every key of `runtime`.
    pub fn near_keys(key: &str, all: &[String]) -> Names {
        fn parts(key: &str) -> (&str, &str) {
            key.rsplit_once('.').unwrap_or(("", key))
        }
        let similarity = |a: &str, b: &str| {
            let ((parent_a, last_a), (parent_b, last_b)) = (parts(a), parts(b));
            0.9 * strsim::jaro_winkler(last_a, last_b) + 0.1 * strsim::jaro_winkler(parent_a, parent_b)
        };
        Names { near: nearest(key, all, similarity), all: Vec::new() }
    }
}

fn nearest(name: &str, all: &[String], similarity: impl Fn(&str, &str) -> f64) -> Vec<String> {
    // The cost is the product of both lengths, and no known name is this long.
    if name.len() > 256 {
        return Vec::new();
    }
    let unknown = name.to_lowercase();
    let mut scored: Vec<(f64, &String)> = all
        .iter()
        .map(|name| (similarity(&unknown, &name.to_lowercase()), name))
        .filter(|(score, _)| *score >= MIN_SIMILARITY)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    scored.dedup_by(|a, b| a.1 == b.1);
    scored.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name.clone()).collect()
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.near.is_empty() {
            write!(f, "; did you mean {}?", self.near.join(", "))?;
        }
        if !self.all.is_empty() {
            write!(f, " (all: {})", self.all.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn similar_names_are_suggested() {
        let models = owned(&["llama3_2_1b", "mistral_7b", "qwen2_5_0_5b", "qwen2_5_7b", "smollm2_135m"]);
        let table = [
            ("qwen", vec!["qwen2_5_7b", "qwen2_5_0_5b"]),
            ("Mistral", vec!["mistral_7b"]),
            ("smollm", vec!["smollm2_135m"]),
            ("zzz", vec![]),
            ("", vec![]),
        ];
        for (name, near) in table {
            assert_eq!(Names::near(name, &models).near, near, "{name:?}");
        }
    }

    #[test]
    fn similar_keys_are_found_by_their_last_part() {
        let keys = owned(&["runtime.batch_size", "runtime.seed", "infer.max_new_tokens"]);
        for key in ["batch_size", "runtime.batchsize", "infer.batch_size"] {
            assert_eq!(Names::near_keys(key, &keys).near.first().unwrap(), "runtime.batch_size", "{key}");
        }
    }

    #[test]
    fn a_very_long_name_is_not_compared() {
        assert!(Names::near(&"q".repeat(1 << 20), &owned(&["qqq"])).near.is_empty());
    }
}
