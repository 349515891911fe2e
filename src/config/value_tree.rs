//! The tree of values: dotted keys, merging, and where each value came from.

use std::collections::BTreeMap;

use serde_yaml_ng::{Mapping, Value};

use super::error::Origin;
use super::typed;

/// Keys nest this deep at most; deeper ones are a mistake, and deep trees cost stack.
pub(super) const MAX_KEY_PARTS: usize = 32;

/// Where the value at each dotted key came from.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// The origin of `key`, or of the nearest key above it.
    pub(super) fn of(&self, key: &str) -> Origin {
        let mut key = key;
        loop {
            if let Some(origin) = self.0.get(key) {
                return origin.clone();
            }
            match key.rsplit_once('.') {
                Some((above, _)) => key = above,
                None => return Origin::Composition,
            }
        }
    }

    pub(super) fn set(&mut self, key: &str, origin: &Origin) {
        self.0.insert(key.to_owned(), origin.clone());
    }
}

/// Merges `value` at `key`, making the maps above it; the error says what stands in the way.
pub(super) fn merge_at(
    root: &mut Value,
    key: &str,
    value: Value,
    origin: &Origin,
    origins: &mut Origins,
) -> Result<(), String> {
    if key.split('.').count() > MAX_KEY_PARTS {
        return Err(format!("the key has more than {MAX_KEY_PARTS} parts"));
    }
    let mut node = root;
    let mut path = String::new();
    for part in key.split('.').filter(|part| !part.is_empty()) {
        if node.is_null() {
            *node = Value::Mapping(Mapping::new());
        }
        let Value::Mapping(entries) = node else {
            return Err(format!("{path} is {}, not a map", typed::described(node)));
        };
        path = child_path(&path, part);
        node = entries.entry(Value::from(part)).or_insert(Value::Null);
    }
    merge_into(node, value, key, origin, origins);
    Ok(())
}

/// Maps merge key by key; anything else replaces what was there.
fn merge_into(target: &mut Value, value: Value, key: &str, origin: &Origin, origins: &mut Origins) {
    origins.set(key, origin);
    match (target, value) {
        (Value::Mapping(into), Value::Mapping(from)) => {
            for (name, value) in from {
                let path = child_path(key, name.as_str().unwrap_or_default());
                merge_into(into.entry(name).or_insert(Value::Null), value, &path, origin, origins);
            }
        }
        (target, value) => {
            record(&value, key, origin, origins);
            *target = value;
        }
    }
}

fn record(value: &Value, key: &str, origin: &Origin, origins: &mut Origins) {
    origins.set(key, origin);
    for (name, value) in value.as_mapping().into_iter().flatten() {
        record(value, &child_path(key, name.as_str().unwrap_or_default()), origin, origins);
    }
}

/// `above.name`, or `name` at the top.
pub(super) fn child_path(above: &str, name: &str) -> String {
    if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") }
}

pub(super) fn value_at<'v>(root: &'v Value, key: &str) -> Option<&'v Value> {
    key.split('.').try_fold(root, |node, part| node.as_mapping()?.get(part))
}

pub(super) fn value_at_mut<'v>(root: &'v mut Value, key: &str) -> Option<&'v mut Value> {
    let mut parts = key.split('.').filter(|part| !part.is_empty());
    parts.try_fold(root, |node, part| node.as_mapping_mut()?.get_mut(part))
}

/// Every dotted key under `root`.
pub(super) fn keys_of(root: &Value) -> Vec<String> {
    let mut keys = Vec::new();
    let mut pending = vec![(String::new(), root)];
    while let Some((above, node)) = pending.pop() {
        for (name, value) in node.as_mapping().into_iter().flatten() {
            let key = child_path(&above, name.as_str().unwrap_or_default());
            pending.push((key.clone(), value));
            keys.push(key);
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(text: &str) -> Value {
        serde_yaml_ng::from_str(text).unwrap()
    }

    #[test]
    fn merging() {
        let table = [
            ("{}", "a.b", "1", "{a: {b: 1}}"),
            ("{a: {b: 1, c: 2}}", "a", "{b: 3}", "{a: {b: 3, c: 2}}"),
            ("{a: {b: 1}}", "a", "5", "{a: 5}"),
            ("{a: 5}", "a", "{b: 1}", "{a: {b: 1}}"),
            ("{a: [1, 2]}", "a", "[3]", "{a: [3]}"),
            ("{a: null}", "a.b", "1", "{a: {b: 1}}"),
            ("{a: 1}", "", "{b: 2}", "{a: 1, b: 2}"),
        ];
        for (root, key, value, wanted) in table {
            let mut tree = yaml(root);
            merge_at(&mut tree, key, yaml(value), &Origin::Composition, &mut Origins::default()).unwrap();
            assert_eq!(tree, yaml(wanted), "{root} + {key}: {value}");
        }
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        let deep = "a.".repeat(10_000) + "a";
        for (key, wanted) in [("a.b.c", "a.b is 1, not a map"), (deep.as_str(), "more than 32 parts")] {
            let mut tree = yaml("{a: {b: 1}}");
            let outcome =
                merge_at(&mut tree, key, Value::Null, &Origin::Composition, &mut Origins::default());
            assert!(outcome.unwrap_err().contains(wanted));
        }
    }

    #[test]
    fn the_latest_origin_is_kept_for_each_key() {
        let (file, given) = (Origin::File("f".into()), Origin::Override("o".into()));
        let (mut tree, mut origins) = (yaml("{}"), Origins::default());
        merge_at(&mut tree, "a", yaml("{b: 1, c: {d: 2}}"), &file, &mut origins).unwrap();
        merge_at(&mut tree, "a.c.d", yaml("3"), &given, &mut origins).unwrap();
        for (key, wanted) in [("a.b", &file), ("a.c", &file), ("a.c.d", &given), ("a.c.d.e", &given)] {
            assert_eq!(origins.of(key), *wanted, "{key}");
        }
        assert_eq!(origins.of("x"), Origin::Composition);
    }
}
