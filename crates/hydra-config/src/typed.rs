//! Deserialises the resolved tree into a [`Schema`], with errors that name the key and its origin.

use serde_yaml_ng::Value;

use crate::error::{ConfigError, Names};
use crate::schema::{OutOfRange, Schema};
use crate::value_deserializer::{Mismatch, Node, fields_of};
use crate::value_tree::{MISSING, Origins, child_path};

/// Deserialises `tree` and validates its values.
pub(crate) fn typed<C: Schema>(tree: &Value, origins: &Origins) -> Result<C, ConfigError> {
    let tree = &known_part::<C>(tree);
    if let Some(key) = first_missing::<C>(tree, "") {
        return Err(ConfigError::MissingValue { origin: origins.get(&key), key });
    }
    let config: C =
        serde_path_to_error::deserialize(Node(tree)).map_err(|error| explain::<C>(error, tree, origins))?;
    match config.out_of_range() {
        Some(OutOfRange { key, got, expected }) => {
            let origin = origins.get(&key);
            Err(ConfigError::OutOfRange { key, got, expected, origin })
        }
        None => Ok(config),
    }
}

/// `tree` without aliases and without the user's own keys at the top level. Misspelled keys of the schema remain in it,
/// and are then refused.
fn known_part<C: Schema>(tree: &Value) -> Value {
    let mut part = tree.clone();
    for alias in C::ALIASES {
        remove(&mut part, alias.name);
    }
    if let (Value::Mapping(entries), Some(known)) = (&mut part, fields_of::<C>()) {
        entries.retain(|name, _| {
            let name = name.as_str().unwrap_or_default();
            known.contains(&name) || known.iter().any(|known| is_misspelling(name, known))
        });
    }
    part
}

/// Whether `name` is a misspelling of `known`: it differs by one letter, or by two in a longer name.
fn is_misspelling(name: &str, known: &str) -> bool {
    let allowed = if known.len() > 6 { 2 } else { 1 };
    name.len().abs_diff(known.len()) <= allowed && strsim::damerau_levenshtein(name, known) <= allowed
}

fn remove(tree: &mut Value, key: &str) {
    let (parent, name) = key.rsplit_once('.').unwrap_or(("", key));
    let parent =
        parent.split('.').filter(|part| !part.is_empty()).try_fold(tree, |node, part| node.get_mut(part));
    if let Some(Value::Mapping(entries)) = parent {
        entries.shift_remove(name);
    }
}

/// The first typed key whose value is `???`.
fn first_missing<C: Schema>(node: &Value, key: &str) -> Option<String> {
    match node {
        Value::String(text) if text == MISSING => Some(key.to_owned()),
        Value::Mapping(entries) if !C::is_untyped(key) => entries.iter().find_map(|(name, value)| {
            first_missing::<C>(value, &child_path(key, name.as_str().unwrap_or_default()))
        }),
        _ => None,
    }
}

fn explain<C: Schema>(
    error: serde_path_to_error::Error<Mismatch>,
    tree: &Value,
    origins: &Origins,
) -> ConfigError {
    let path = error.path().to_string();
    let path = if path == "." { "" } else { path.as_str() };
    match error.into_inner() {
        Mismatch::UnknownKey { name, known } => {
            // Depending on the version of the crates the path ends in the unknown key or in its parent.
            let parent = match path.rsplit_once('.') {
                Some((parent, last)) if last == name => parent,
                None if path == name => "",
                _ => path,
            };
            let key = child_path(parent, &name);
            let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
            let names = Names::near(&name, &known).into();
            ConfigError::UnknownKey { origin: origins.get(&key), key, names, add_with: None }
        }
        Mismatch::MissingKey(name) => {
            ConfigError::MissingKey { origin: origins.get(path), key: child_path(path, name) }
        }
        mismatch => {
            let found = path.split('.').try_fold(tree, |node, part| node.get(part));
            // A value that is not text is refused before it is compared with the names. Query the names here.
            let names = found.filter(|value| !value.is_string()).and_then(|_| refusal::<C>(path, tree, ""));
            let expected = match (names, mismatch) {
                (Some(Mismatch::UnknownName { known }), _) | (_, Mismatch::UnknownName { known }) => {
                    one_of(known)
                }
                (_, Mismatch::Expected(expected)) => described_type(&expected),
                (_, other) => other.to_string(),
            };
            ConfigError::WrongType {
                key: path.to_owned(),
                got: found.map_or_else(|| "another type".into(), described),
                expected,
                origin: origins.get(path),
            }
        }
    }
}

/// The allowed values at `path` if it is an enumeration or a boolean, else empty.
pub(crate) fn allowed_values<C: Schema>(path: &str, tree: &Value) -> Vec<String> {
    match refusal::<C>(path, tree, "") {
        Some(Mismatch::UnknownName { known }) => known.iter().map(|&name| name.to_owned()).collect(),
        Some(_) if refusal::<C>(path, tree, true).is_none() => vec!["true".into(), "false".into()],
        _ => Vec::new(),
    }
}

/// Why `value` is invalid at `path`; `None` if it is valid or there is no such path.
fn refusal<C: Schema>(path: &str, tree: &Value, value: impl Into<Value>) -> Option<Mismatch> {
    let mut trial = known_part::<C>(tree);
    *path.split('.').try_fold(&mut trial, |node, part| node.get_mut(part))? = value.into();
    let error = serde_path_to_error::deserialize::<_, C>(Node(&trial)).err()?;
    (error.path().to_string() == path).then(|| error.into_inner())
}

fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".into(),
        [only] => (*only).into(),
        [first, second] => format!("{first} or {second}"),
        several => format!("one of {}", several.join(", ")),
    }
}

/// A type as an error names it, from serde's description of it.
fn described_type(expected: &str) -> String {
    match expected {
        "u32" => "an integer from 0 to 4294967295".into(),
        "a nonzero u32" => "an integer from 1 to 4294967295".into(),
        "u64" => "an integer, 0 or more".into(),
        "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "text".into(),
        other if other.starts_with("struct ") || other.contains("map") => "keys and values".into(),
        other => other.replace('`', ""),
    }
}

/// A value as an error quotes it.
pub(crate) fn described(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.chars().count() > MAX_CHARS => {
            format!("the text {:?}…", text.chars().take(MAX_CHARS).collect::<String>())
        }
        Value::String(text) => format!("the text {text:?}"),
        Value::Sequence(items) => format!("a list of {}", items.len()),
        Value::Mapping(_) => "keys and values".into(),
        Value::Tagged(_) => "a tagged value".into(),
    }
}
