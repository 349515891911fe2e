//! Parses YAML into a tree of values with the line of each key. Size and depth are limited for any input.

use std::collections::{BTreeMap, HashMap};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};
use serde_yaml_ng::{Mapping, Value};

use crate::error::{ConfigError, Origin};
use crate::scalar::{key_text, plain_scalar};
use crate::value_tree::{child_path, nearest};

/// Maximum length of a text.
pub(crate) const MAX_BYTES: usize = 64 * 1024;

/// Maximum size of an expanded text: bytes of keys and strings, plus a constant for each node.
const MAX_WEIGHT: usize = 4 * 1024 * 1024;
const NODE_WEIGHT: usize = 64;

/// Maximum nesting of lists and maps. The parser does not recurse, but users of the tree do.
const MAX_DEPTH: usize = 64;

/// One YAML document.
#[derive(Debug, Clone, Default)]
pub(crate) struct Document {
    pub(crate) value: Value,
    /// The line of each dotted key.
    pub(crate) lines: BTreeMap<String, usize>,
}

impl Document {
    /// The line of `key` or of its nearest ancestor.
    pub(crate) fn line_of(&self, key: &str) -> usize {
        nearest(&self.lines, key).copied().unwrap_or(1)
    }
}

/// Parses one document as PyYAML and OmegaConf do: YAML 1.1 scalars (`yes`, `off`, octals), no timestamps, unique keys.
/// Tags are refused, aliases are expanded up to a limit, and an empty text is null.
pub(crate) fn parse(text: &str, origin: &Origin) -> Result<Document, ConfigError> {
    if text.len() > MAX_BYTES {
        return Err(ConfigError::TooLarge { origin: origin.clone(), bytes: text.len(), limit: MAX_BYTES });
    }
    let mut reader = Reader::default();
    for event in Parser::new_from_str(text) {
        let outcome = match event {
            Ok((event, span)) => reader.take(event, span.start).map_err(|message| (span.start, message)),
            Err(error) => Err((*error.marker(), error.info().to_owned())),
        };
        outcome.map_err(|(marker, message)| ConfigError::BadYaml {
            origin: origin.clone(),
            line: marker.line(),
            column: marker.col() + 1,
            message,
        })?;
    }
    Ok(Document { value: reader.root.unwrap_or_default(), lines: reader.lines })
}

/// A list or a map whose end has not been parsed.
enum Open {
    List { items: Vec<Value>, anchor: usize },
    Map { entries: Mapping, merged: Mapping, key: Option<String>, path: String, anchor: usize },
}

/// The key whose value is merged into the map.
const MERGE: &str = "<<";

#[derive(Default)]
struct Reader {
    root: Option<Value>,
    documents: usize,
    open: Vec<Open>,
    anchors: HashMap<usize, (Value, usize)>,
    lines: BTreeMap<String, usize>,
    weight: usize,
}

impl Reader {
    fn take(&mut self, event: Event<'_>, marker: Marker) -> Result<(), String> {
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err("more than one document".into());
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = match &tag {
                    None => style != ScalarStyle::Plain,
                    Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => true,
                    Some(tag) => return Err(format!("the tag {} is not supported", tag.suffix)),
                };
                self.charge(text.len())?;
                if self.key_is_next() {
                    let is_merge = !is_text && text == MERGE;
                    let key = if is_text || is_merge { text.into_owned() } else { key_text(&text)? };
                    return self.key(key, is_merge, marker);
                }
                let value = if is_text { Value::from(text.as_ref()) } else { plain_scalar(&text)? };
                self.value(value, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.begin(tag.is_some(), |_| Ok(Open::List { items: Vec::new(), anchor }))
            }
            Event::MappingStart(anchor, tag) => self.begin(tag.is_some(), |path| {
                let (entries, merged) = (Mapping::new(), Mapping::new());
                Ok(Open::Map { entries, merged, key: None, path, anchor })
            }),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let (value, weight) = self
                    .anchors
                    .get(&anchor)
                    .cloned()
                    .ok_or("an alias refers to a value that contains it")?;
                self.charge(weight)?;
                if self.key_is_next() {
                    return Err("an alias cannot be a key".into());
                }
                self.value(value, 0)
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn charge(&mut self, bytes: usize) -> Result<(), String> {
        self.weight += NODE_WEIGHT + bytes;
        match self.weight > MAX_WEIGHT {
            true => Err("the expanded size exceeds the limit; check for aliases of aliases".into()),
            false => Ok(()),
        }
    }

    fn key_is_next(&self) -> bool {
        matches!(self.open.last(), Some(Open::Map { key: None, .. }))
    }

    fn key(&mut self, name: String, is_merge: bool, marker: Marker) -> Result<(), String> {
        let Some(Open::Map { entries, key, path, .. }) = self.open.last_mut() else { return Ok(()) };
        if !is_merge && entries.contains_key(name.as_str()) {
            return Err(format!("duplicate key {name:?}"));
        }
        self.lines.insert(child_path(path, &name), marker.line());
        *key = Some(name);
        Ok(())
    }

    fn begin(
        &mut self,
        tagged: bool,
        open: impl FnOnce(String) -> Result<Open, String>,
    ) -> Result<(), String> {
        if tagged {
            return Err("tags are not supported".into());
        }
        if self.key_is_next() {
            return Err("a key must be text, not a list or a map".into());
        }
        if self.open.len() == MAX_DEPTH {
            return Err(format!("lists and maps are nested more than {MAX_DEPTH} deep"));
        }
        self.charge(0)?;
        let path = match self.open.last() {
            Some(Open::Map { key: Some(key), path, .. }) => child_path(path, key),
            Some(Open::List { items, .. }) => self.list_path(items.len()),
            _ => String::new(),
        };
        let open = open(path)?;
        self.open.push(open);
        Ok(())
    }

    /// The path of an item of the innermost list.
    fn list_path(&self, index: usize) -> String {
        let mut indices = vec![index];
        for open in self.open.iter().rev().skip(1) {
            match open {
                Open::List { items, .. } => indices.push(items.len()),
                Open::Map { key, path, .. } => {
                    let start = child_path(path, key.as_deref().unwrap_or_default());
                    return indices.iter().rev().fold(start, |path, n| child_path(&path, &n.to_string()));
                }
            }
        }
        String::new()
    }

    fn end(&mut self) -> Result<(), String> {
        let (value, anchor) = match self.open.pop() {
            Some(Open::List { items, anchor }) => (Value::Sequence(items), anchor),
            Some(Open::Map { entries, merged, anchor, .. }) if merged.is_empty() => {
                (Value::Mapping(entries), anchor)
            }
            Some(Open::Map { entries, mut merged, anchor, .. }) => {
                for (key, value) in entries {
                    merged.insert(key, value);
                }
                (Value::Mapping(merged), anchor)
            }
            None => return Ok(()),
        };
        self.value(value, anchor)
    }

    fn value(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        if anchor > 0 {
            let weight = weight_of(&value);
            self.charge(weight)?;
            self.anchors.insert(anchor, (value.clone(), weight));
        }
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(Open::List { items, .. }) => items.push(value),
            Some(Open::Map { entries, merged, key, .. }) => match key.take() {
                Some(name) if name == MERGE => merge_maps(merged, value)?,
                Some(name) => {
                    entries.insert(Value::from(name), value);
                }
                None => {}
            },
        }
        Ok(())
    }
}

/// Adds the value of `<<`: a map, or a list of maps of which the first wins.
fn merge_maps(into: &mut Mapping, value: Value) -> Result<(), String> {
    let maps = match value {
        Value::Sequence(maps) => maps,
        map => vec![map],
    };
    for map in maps.into_iter().rev() {
        let Value::Mapping(entries) = map else { return Err("<< must be a map or a list of maps".into()) };
        for (key, value) in entries {
            into.insert(key, value);
        }
    }
    Ok(())
}

fn weight_of(value: &Value) -> usize {
    NODE_WEIGHT
        + match value {
            Value::String(text) => text.len(),
            Value::Sequence(items) => items.iter().map(weight_of).sum(),
            Value::Mapping(entries) => entries.iter().map(|(k, v)| weight_of(k) + weight_of(v)).sum(),
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, ConfigError> {
        parse(text, &Origin::File { path: "conf/a.yaml".into(), line: 1 }).map(|document| document.value)
    }

    #[test]
    fn values_equal_those_of_another_parser() {
        for text in ["", "a: 1", "a: [1, 2.5, x, null, true]", "a: &x {b: 1}\nc: *x", "- -3", "a: .inf"] {
            assert_eq!(read(text).unwrap(), serde_yaml_ng::from_str::<Value>(text).unwrap(), "{text:?}");
        }
    }

    #[test]
    fn merge_keys_are_merged() {
        let merged = read("a: &x {b: 1, d: 1}\nc: {<<: *x, d: 2}").unwrap();
        assert_eq!(merged["c"], serde_yaml_ng::from_str::<Value>("{b: 1, d: 2}").unwrap());
    }

    #[test]
    fn lines_of_keys() {
        let document =
            parse("# head\na:\n  b: 1\n  c:\n    - x: 1\n    - y: 2\n", &Origin::Composition).unwrap();
        for (key, line) in [("a", 2), ("a.b", 3), ("a.c", 4), ("a.c.0.x", 5), ("a.c.1.y", 6), ("a.b.z", 3)] {
            assert_eq!(document.line_of(key), line, "{key}");
        }
    }

    #[test]
    fn errors_name_line_and_column() {
        let table = [
            ("a: 1\nb: [1,", "line 3, column 1"),
            ("a: 1\na: 2\n", "line 2, column 1: duplicate key \"a\""),
            ("a: *x", "line 1, column 4"),
            ("a: !tag 1", "the tag tag is not supported"),
            ("a: 1\n---\nb: 1", "more than one document"),
            ("a:\n\t- b\n", "line 2"),
            ("? [a]\n: 1", "a key must be text"),
            ("a: &x [*x]", "a value that contains it"),
            ("a: {<<: 3}", "<< must be a map"),
        ];
        for (text, expected) in table {
            let message = read(text).unwrap_err().to_string();
            assert!(message.starts_with("bad YAML in conf/a.yaml, line "), "{message}");
            assert!(message.contains(expected), "{text:?}: {message}");
        }
    }

    #[test]
    fn hostile_text_is_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for n in 1..12 {
            let previous = n - 1;
            let nine = vec![format!("*a{previous}"); 9].join(", ");
            bomb.push_str(&format!("a{n}: &a{n} [{nine}]\n"));
        }
        let long = format!("a: &a {}\nb: [{}]", "x".repeat(20_000), vec!["*a"; 5_000].join(","));
        let deep = "[".repeat(MAX_BYTES);
        let balanced = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
        for text in [
            bomb,
            long,
            deep,
            balanced,
            "{a: ".repeat(10_000),
            "- ".repeat(30_000),
            "x".repeat(MAX_BYTES + 1),
        ] {
            // An expansion that is not refused early would not end.
            assert!(read(&text).is_err(), "{}…", &text[..20]);
        }
    }
}
