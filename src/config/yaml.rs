//! Reading YAML text into a value tree whose size and depth are bounded whatever the text says.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_yaml_ng::{Mapping, Value};

use super::error::{ConfigError, Origin};

/// Longest text read.
pub(super) const MAX_BYTES: usize = 64 * 1024;

/// Bytes of keys and strings, plus a flat charge for each node, that one text may expand to.
const MAX_WEIGHT: usize = 4 * 1024 * 1024;
const NODE_WEIGHT: usize = 64;

/// Brackets left open at any point, wherever they stand. The parser refuses nesting past 128, but only
/// after scanning, and scanning takes the square of the nesting.
const MAX_OPEN_BRACKETS: usize = 512;

/// Parses one document. Tags are refused; aliases are expanded up to a bound; an empty text is null.
pub(super) fn parse(text: &str, origin: &Origin) -> Result<Value, ConfigError> {
    if text.len() > MAX_BYTES {
        return Err(ConfigError::TooLarge { origin: origin.clone(), bytes: text.len(), limit: MAX_BYTES });
    }
    if let Some(line) = line_nested_too_deep(text) {
        let message = "brackets nest too deep".into();
        return Err(ConfigError::BadYaml { origin: origin.clone(), line, column: 1, message });
    }
    let weight = Cell::new(0);
    let value = Bounded { weight: &weight }.deserialize(serde_yaml_ng::Deserializer::from_str(text));
    let merged = value.and_then(|mut value| value.apply_merge().map(|()| value));
    merged.map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let message = error.to_string();
        // The place is told in words of our own; drop the parser's copy of it.
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        ConfigError::BadYaml { origin: origin.clone(), line, column, message }
    })
}

fn line_nested_too_deep(text: &str) -> Option<usize> {
    let (mut open, mut line) = (0usize, 1);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            b'\n' => line += 1,
            _ => {}
        }
        if open > MAX_OPEN_BRACKETS {
            return Some(line);
        }
    }
    None
}

/// Builds a `Value` while counting what it weighs, so that aliases of aliases end in an error.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    weight: &'a Cell<usize>,
}

impl Bounded<'_> {
    fn charge<E: Error>(self, text_bytes: usize) -> Result<(), E> {
        self.weight.set(self.weight.get() + NODE_WEIGHT + text_bytes);
        if self.weight.get() > MAX_WEIGHT {
            return Err(E::custom("it expands to far more than a configuration holds (aliases of aliases?)"));
        }
        Ok(())
    }

    fn scalar<E: Error>(self, value: impl Into<Value>) -> Result<Value, E> {
        self.charge(0)?;
        Ok(value.into())
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a plain YAML value without a tag")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.scalar(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        self.scalar(Value::Null)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.charge(value.len())?;
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.charge(0)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Sequence(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.charge(0)?;
        let mut mapping = Mapping::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.charge(key.len())?;
            if mapping.contains_key(key.as_str()) {
                return Err(A::Error::custom(format_args!("the key {key:?} stands here twice")));
            }
            mapping.insert(Value::from(key), entries.next_value_seed(self)?);
        }
        Ok(Value::Mapping(mapping))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, ConfigError> {
        parse(text, &Origin::File("conf/a.yaml".into()))
    }

    #[test]
    fn reads_what_the_parser_reads() {
        for text in ["", "a: 1", "a: [1, 2.5, x, null, true]", "a: &x {b: 1}\nc: *x", "- -3", "a: .inf"] {
            assert_eq!(read(text).unwrap(), serde_yaml_ng::from_str::<Value>(text).unwrap(), "{text:?}");
        }
    }

    #[test]
    fn merge_keys_are_merged() {
        assert_eq!(read("a: &x {b: 1}\nc: {<<: *x, d: 2}").unwrap()["c"]["b"], Value::from(1));
    }

    #[test]
    fn bad_text_is_told_with_its_place() {
        let table = [
            ("a: 1\nb: [1,", "line 3, column 1"),
            ("a: 1\na: 2\n", "line 1, column 1: the key \"a\" stands here twice"),
            ("a: *x", "line 1, column 4"),
            ("a: !tag 1", "without a tag"),
            ("a: 1\n---\nb: 1", "more than one document"),
        ];
        for (text, wanted) in table {
            let message = read(text).unwrap_err().to_string();
            assert!(message.starts_with("bad YAML in conf/a.yaml, line "), "{message}");
            assert!(message.contains(wanted), "{text:?}: {message}");
        }
    }

    #[test]
    fn hostile_text_is_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for n in 1..12 {
            let below = n - 1;
            let nine = vec![format!("*a{below}"); 9].join(", ");
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
            assert!(read(&text).is_err(), "{}…", &text[..20]);
        }
    }
}
