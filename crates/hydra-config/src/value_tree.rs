//! The tree of values: dotted keys, OmegaConf's merge rules, and the origin of each value.

use std::{collections::BTreeMap, iter};

use serde_yaml_ng::{Mapping, Value};

use crate::error::{ConfigError, Names, Origin};
use crate::typed;
use crate::yaml::Document;

/// Maximum number of parts of a key, which limits the recursion depth.
pub(crate) const MAX_KEY_PARTS: usize = 32;

/// The placeholder of a value that must be set.
pub(crate) const MISSING: &str = "???";

/// The origin of the value at each dotted key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// The origin of `key` or of its nearest ancestor.
    pub(crate) fn get(&self, key: &str) -> Origin {
        nearest(&self.0, key).cloned().unwrap_or(Origin::Composition)
    }

    /// The origin of `key`, then those of its parts.
    pub(crate) fn at_and_below(&self, key: &str) -> impl Iterator<Item = Origin> {
        let below = format!("{key}.");
        let range = self.0.range(below.clone()..);
        let parts =
            range.take_while(move |(path, _)| path.starts_with(&below)).map(|(_, origin)| origin.clone());
        iter::once(self.get(key)).chain(parts)
    }

    fn set(&mut self, key: &str, origin: Origin) {
        self.0.insert(key.to_owned(), origin);
    }
}

/// Whether new keys may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    Open,
    Closed,
}

/// A configuration during its composition.
#[derive(Debug, Clone)]
pub(crate) struct ValueTree {
    pub(crate) root: Value,
    pub(crate) origins: Origins,
}

impl Default for ValueTree {
    fn default() -> ValueTree {
        ValueTree { root: Value::Mapping(Mapping::new()), origins: Origins::default() }
    }
}

impl ValueTree {
    /// Merges the content of a file at `package` and creates the maps above it.
    pub(crate) fn merge_document(
        &mut self,
        package: &str,
        document: &Document,
        file: &Origin,
    ) -> Result<(), ConfigError> {
        let skip = if package.is_empty() { 0 } else { package.len() + 1 };
        let origin_of = |key: &str| file.at_line(document.line_of(key.get(skip..).unwrap_or_default()));
        let content = match &document.value {
            Value::Null => Value::Mapping(Mapping::new()),
            content => content.clone(),
        };
        let parts = package.split('.').filter(|part| !part.is_empty());
        let embedded = parts
            .rev()
            .fold(content, |child, part| Value::Mapping([(Value::from(part), child)].into_iter().collect()));
        merge(&mut self.root, embedded, "", Keys::Open, &origin_of, &mut self.origins)
    }

    /// Sets the value at `key`: lists and maps are merged, other values are replaced. With closed keys only existing keys
    /// can be changed.
    pub(crate) fn update(
        &mut self,
        key: &str,
        value: Value,
        keys: Keys,
        origin: &Origin,
    ) -> Result<(), ConfigError> {
        let bad =
            |message: String| ConfigError::BadMerge { key: key.to_owned(), message, origin: origin.clone() };
        let parts: Vec<&str> = key.split('.').collect();
        if parts.len() > MAX_KEY_PARTS {
            return Err(bad(format!("the key has more than {MAX_KEY_PARTS} parts")));
        }
        if keys == Keys::Closed && !self.contains(&parts) {
            return Err(self.unknown_key(key, origin));
        }
        let mut node = &mut self.root;
        let mut path = String::new();
        for part in &parts {
            if !matches!(node, Value::Mapping(_) | Value::Sequence(_)) {
                *node = Value::Mapping(Mapping::new());
                self.origins.set(&path, origin.clone());
            }
            node = match node {
                Value::Mapping(entries) => entries.entry(Value::from(*part)).or_insert(Value::Null),
                Value::Sequence(items) => {
                    let len = items.len();
                    let item = part.parse::<usize>().ok().and_then(|n| items.get_mut(n));
                    item.ok_or_else(|| bad(format!("{path} is a list of {len}; it has no {part:?}")))?
                }
                _ => return Err(bad(format!("{path} has no keys"))),
            };
            path = child_path(&path, part);
        }
        let origin_of = |_: &str| origin.clone();
        if is_container(node) && is_container(&value) {
            return merge(node, value, key, keys, &origin_of, &mut self.origins);
        }
        record(&value, key, &origin_of, &mut self.origins);
        *node = value;
        Ok(())
    }

    /// Whether every part of a key exists. A scalar counts as an empty map.
    fn contains(&self, parts: &[&str]) -> bool {
        parts.iter().try_fold(&self.root, |node, part| child(node, part)).is_some()
    }

    /// Removes the entry at `key` from its map; false if there is none.
    pub(crate) fn remove(&mut self, key: &str, origin: &Origin) -> bool {
        let (parent, name) = key.rsplit_once('.').unwrap_or(("", key));
        let Some(Value::Mapping(entries)) = value_at_mut(&mut self.root, parent) else { return false };
        self.origins.set(parent, origin.clone());
        entries.shift_remove(name).is_some()
    }

    /// The error for an unknown key.
    pub(crate) fn unknown_key(&self, key: &str, origin: &Origin) -> ConfigError {
        let names = Names::near_keys(key, &keys_to_suggest(key, &self.root)).into();
        ConfigError::UnknownKey { key: key.to_owned(), names, origin: origin.clone(), add_with: None }
    }
}

/// Maps are merged key by key, `???` keeps the existing value, any other value replaces it.
fn merge(
    target: &mut Value,
    value: Value,
    path: &str,
    keys: Keys,
    origin_of: &dyn Fn(&str) -> Origin,
    origins: &mut Origins,
) -> Result<(), ConfigError> {
    match (target, value) {
        (Value::Mapping(into), Value::Mapping(from)) => {
            for (name, value) in from {
                let path = child_path(path, name.as_str().unwrap_or_default());
                match into.get_mut(&name) {
                    Some(target) => merge(target, value, &path, keys, origin_of, origins)?,
                    None if keys == Keys::Closed => {
                        let known: Vec<String> = into.keys().map(key_text).collect();
                        let names = Names::near(&key_text(&name), &known).into();
                        let origin = origin_of(&path);
                        return Err(ConfigError::UnknownKey { key: path, names, origin, add_with: None });
                    }
                    None => {
                        record(&value, &path, origin_of, origins);
                        into.insert(name, value);
                    }
                }
            }
            Ok(())
        }
        (target @ Value::Sequence(_), value @ Value::Mapping(_))
        | (target @ Value::Mapping(_), value @ Value::Sequence(_)) => Err(ConfigError::BadMerge {
            key: path.to_owned(),
            message: format!(
                "{} cannot be merged into {}",
                typed::described(&value),
                typed::described(target)
            ),
            origin: origin_of(path),
        }),
        (_, Value::String(text)) if text == MISSING => Ok(()),
        (target, value) => {
            record(&value, path, origin_of, origins);
            *target = value;
            Ok(())
        }
    }
}

fn record(value: &Value, key: &str, origin_of: &dyn Fn(&str) -> Origin, origins: &mut Origins) {
    origins.set(key, origin_of(key));
    for (name, value) in value.as_mapping().into_iter().flatten() {
        record(value, &child_path(key, name.as_str().unwrap_or_default()), origin_of, origins);
    }
}

fn is_container(value: &Value) -> bool {
    matches!(value, Value::Mapping(_) | Value::Sequence(_))
}

fn key_text(key: &Value) -> String {
    key.as_str().unwrap_or_default().to_owned()
}

/// `parent.name`, or `name` at the top.
pub(crate) fn child_path(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// The entry of `key` or of its nearest ancestor.
pub(crate) fn nearest<'m, T>(entries: &'m BTreeMap<String, T>, key: &str) -> Option<&'m T> {
    let mut keys = std::iter::successors(Some(key), |key| key.rsplit_once('.').map(|(parent, _)| parent));
    keys.find_map(|key| entries.get(key))
}

/// The entry of a map, or the item of a list, by its name.
pub(crate) fn child<'v>(node: &'v Value, part: &str) -> Option<&'v Value> {
    match node {
        Value::Mapping(entries) => entries.get(part),
        Value::Sequence(items) => items.get(part.parse::<usize>().ok()?),
        _ => None,
    }
}

/// The value at a dotted key; the empty key is the root.
pub(crate) fn value_at<'v>(root: &'v Value, key: &str) -> Option<&'v Value> {
    key.split('.').filter(|part| !part.is_empty()).try_fold(root, |node, part| child(node, part))
}

fn value_at_mut<'v>(root: &'v mut Value, key: &str) -> Option<&'v mut Value> {
    let mut parts = key.split('.').filter(|part| !part.is_empty());
    parts.try_fold(root, |node, part| node.as_mapping_mut()?.get_mut(part))
}

/// Every dotted key under `root`.
pub(crate) fn keys_of(root: &Value) -> Vec<String> {
    let mut keys = Vec::new();
    let mut pending = vec![(String::new(), root)];
    while let Some((parent, node)) = pending.pop() {
        for (name, value) in node.as_mapping().into_iter().flatten() {
            let key = child_path(&parent, name.as_str().unwrap_or_default());
            pending.push((key.clone(), value));
            keys.push(key);
        }
    }
    keys
}

/// The keys to suggest for an unknown `key`. Hydra's own keys are suggested only for keys of Hydra.
pub(crate) fn keys_to_suggest(key: &str, root: &Value) -> Vec<String> {
    let is_hydra = |key: &str| key.starts_with("hydra");
    let mut keys = keys_of(root);
    keys.retain(|known| is_hydra(key) || !is_hydra(known));
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(text: &str) -> Value {
        serde_yaml_ng::from_str(text).unwrap()
    }

    fn tree(text: &str) -> ValueTree {
        ValueTree { root: yaml(text), origins: Origins::default() }
    }

    #[test]
    fn updates() {
        let table = [
            ("{}", "a.b", "1", Keys::Open, Some("{a: {b: 1}}")),
            ("{a: {b: 1, c: 2}}", "a", "{b: 3}", Keys::Closed, Some("{a: {b: 3, c: 2}}")),
            ("{a: {b: 1}}", "a", "{c: 3}", Keys::Closed, None),
            ("{a: {b: 1}}", "a", "{c: 3}", Keys::Open, Some("{a: {b: 1, c: 3}}")),
            ("{a: {b: 1}}", "a", "5", Keys::Closed, Some("{a: 5}")),
            ("{a: 5}", "a", "{b: 1}", Keys::Closed, Some("{a: {b: 1}}")),
            ("{a: 5}", "a.b", "1", Keys::Closed, None),
            ("{a: 5}", "a.b", "1", Keys::Open, Some("{a: {b: 1}}")),
            ("{a: [1, 2]}", "a", "[3]", Keys::Closed, Some("{a: [3]}")),
            ("{a: [1, 2]}", "a.1", "3", Keys::Closed, Some("{a: [1, 3]}")),
            ("{a: [1, 2]}", "a.2", "3", Keys::Open, None),
            ("{a: [1, 2]}", "a", "{b: 3}", Keys::Open, None),
            ("{a: null}", "a.b", "1", Keys::Open, Some("{a: {b: 1}}")),
        ];
        for (root, key, value, keys, expected) in table {
            let mut tree = tree(root);
            let outcome = tree.update(key, yaml(value), keys, &Origin::Composition);
            match expected {
                Some(expected) => assert_eq!(tree.root, yaml(expected), "{root} + {key}: {value}"),
                None => assert!(outcome.is_err(), "{root} + {key}: {value}"),
            }
        }
    }

    #[test]
    fn a_missing_value_keeps_the_existing_one() {
        let mut tree = tree("{a: 1}");
        let document = Document { value: yaml("{a: '???', b: '???'}"), ..Document::default() };
        tree.merge_document("", &document, &Origin::Composition).unwrap();
        assert_eq!(tree.root, yaml("{a: 1, b: '???'}"));
    }

    #[test]
    fn deep_keys_are_refused() {
        let deep = "a.".repeat(10_000) + "a";
        let error = tree("{}").update(&deep, Value::Null, Keys::Open, &Origin::Composition).unwrap_err();
        assert!(error.to_string().contains("more than 32 parts"));
    }

    #[test]
    fn each_key_has_its_latest_origin() {
        let file = Origin::File { path: "f".into(), line: 1 };
        let given = Origin::Override("o".into());
        let mut tree = ValueTree::default();
        let document = Document { value: yaml("{b: 1, c: {d: 2}}"), ..Document::default() };
        tree.merge_document("a", &document, &file).unwrap();
        tree.update("a.c.d", yaml("3"), Keys::Closed, &given).unwrap();
        for (key, expected) in [("a.b", &file), ("a.c", &file), ("a.c.d", &given), ("a.c.d.e", &given)] {
            assert_eq!(tree.origins.get(key), *expected, "{key}");
        }
        assert_eq!(tree.origins.get("x"), Origin::Composition);
    }
}
