//! The grammar of one override: `key=value`, `+key=value`, `++key=value`, `~key`, `~key=value`.

use serde_yaml_ng::Value;

use super::error::{ConfigError, Origin};
use super::value_tree::MAX_KEY_PARTS;
use super::yaml;

const MAX_BYTES: usize = 16 * 1024;

/// One parsed override. Whether its key is a group or a value is for the composition to know.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// As it was typed.
    pub text: String,
    pub key: String,
    pub action: Action,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// `key=value`: the key is there.
    Change(Value),
    /// `+key=value`: the key is not there.
    Add(Value),
    /// `++key=value`: whether it is there or not.
    Put(Value),
    /// `~key`, or `~key=value` where it must have that value.
    Remove(Option<Value>),
}

impl Override {
    pub fn parse(text: &str) -> Result<Override, ConfigError> {
        let bad = |message: String| ConfigError::BadOverride { text: shortened(text), message };
        if text.len() > MAX_BYTES {
            return Err(bad(format!("it is longer than {MAX_BYTES} bytes")));
        }
        let (key, raw) = match text.split_once('=') {
            Some((key, raw)) => (key.trim(), Some(raw.trim())),
            None => (text.trim(), None),
        };
        let (prefix, key) = match key {
            _ if key.starts_with("++") => ("++", &key[2..]),
            _ if key.starts_with('+') => ("+", &key[1..]),
            _ if key.starts_with('~') => ("~", &key[1..]),
            _ => ("", key),
        };
        check_key(key).map_err(bad)?;
        let value = raw.map(|raw| parse_value(raw, text)).transpose()?;
        let action = match (prefix, value) {
            ("~", value) => Action::Remove(value),
            (_, None) => return Err(bad(format!("no value; write {prefix}{key}=VALUE"))),
            ("+", Some(value)) => Action::Add(value),
            ("++", Some(value)) => Action::Put(value),
            (_, Some(value)) => Action::Change(value),
        };
        Ok(Override { text: text.to_owned(), key: key.to_owned(), action })
    }

    pub(super) fn origin(&self) -> Origin {
        Origin::Override(shortened(&self.text))
    }
}

/// An override as messages quote it.
fn shortened(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn check_key(key: &str) -> Result<(), String> {
    if key.is_empty() {
        return Err("it names no key".into());
    }
    if key.contains('@') {
        return Err("packages (group@package) are not understood".into());
    }
    let odd = |c: char| !(c.is_alphanumeric() || "_-./".contains(c));
    if let Some(c) = key.chars().find(|&c| odd(c)) {
        return Err(format!("{c:?} cannot stand in a key"));
    }
    if key.split(['.', '/']).any(str::is_empty) {
        return Err("the key has an empty part".into());
    }
    if key.split(['.', '/']).count() > MAX_KEY_PARTS {
        return Err(format!("the key has more than {MAX_KEY_PARTS} parts"));
    }
    Ok(())
}

/// Lists, maps and quoted text are YAML; anything else is one scalar, so that `a: b` and `#1` are text.
fn parse_value(raw: &str, text: &str) -> Result<Value, ConfigError> {
    if raw.starts_with(['[', '{', '"', '\'']) {
        let origin = Origin::Override(shortened(text));
        return yaml::parse(raw, &origin).map_err(|error| match error {
            ConfigError::BadYaml { message, .. } => {
                ConfigError::BadOverride { text: shortened(text), message: format!("bad value: {message}") }
            }
            other => other,
        });
    }
    Ok(parse_scalar(raw))
}

fn parse_scalar(raw: &str) -> Value {
    match raw.to_ascii_lowercase().as_str() {
        "null" => return Value::Null,
        "true" => return Value::from(true),
        "false" => return Value::from(false),
        _ => {}
    }
    // Only what looks like a number: Rust also reads "infinity" and "nan" with any capitals.
    let digits = raw.trim_start_matches(['+', '-']);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') || raw.ends_with('_') {
        return match digits.to_ascii_lowercase().as_str() {
            "inf" if raw.starts_with('-') => Value::from(f64::NEG_INFINITY),
            "inf" => Value::from(f64::INFINITY),
            "nan" => Value::from(f64::NAN),
            _ => Value::from(raw),
        };
    }
    let plain = raw.replace('_', "");
    if let Ok(number) = plain.parse::<u64>() {
        Value::from(number)
    } else if let Ok(number) = plain.parse::<i64>() {
        Value::from(number)
    } else if let Ok(number) = plain.parse::<f64>() {
        Value::from(number)
    } else {
        Value::from(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn yaml(text: &str) -> Value {
        serde_yaml_ng::from_str(text).unwrap()
    }

    #[test]
    fn actions() {
        let table = [
            ("model=qwen", "model", Action::Change(Value::from("qwen"))),
            ("a.b=1", "a.b", Action::Change(Value::from(1))),
            (" a.b = 1 ", "a.b", Action::Change(Value::from(1))),
            ("+a=b", "a", Action::Add(Value::from("b"))),
            ("++a=b", "a", Action::Put(Value::from("b"))),
            ("~a", "a", Action::Remove(None)),
            ("~a.b=1", "a.b", Action::Remove(Some(Value::from(1)))),
            ("a/b=c", "a/b", Action::Change(Value::from("c"))),
            ("a=b=c", "a", Action::Change(Value::from("b=c"))),
        ];
        for (text, key, action) in table {
            let parsed = Override::parse(text).unwrap();
            assert_eq!((parsed.key.as_str(), parsed.action), (key, action), "{text}");
        }
    }

    #[test]
    fn values() {
        let table = [
            ("", Value::from("")),
            ("null", Value::Null),
            ("True", Value::from(true)),
            ("false", Value::from(false)),
            ("-3", Value::from(-3)),
            ("1_000", Value::from(1000)),
            ("18446744073709551615", Value::from(u64::MAX)),
            ("2.5", Value::from(2.5)),
            ("1e3", Value::from(1000.0)),
            ("inf", Value::from(f64::INFINITY)),
            ("infinity", Value::from("infinity")),
            ("cuda:0", Value::from("cuda:0")),
            ("a: b", Value::from("a: b")),
            ("#1", Value::from("#1")),
            ("*x", Value::from("*x")),
            ("2024-01-01", Value::from("2024-01-01")),
            ("1.2.3", Value::from("1.2.3")),
            ("${model.name}", Value::from("${model.name}")),
            ("'null'", Value::from("null")),
            ("\"a\\tb\"", Value::from("a\tb")),
            ("[1, x, null]", yaml("[1, x, null]")),
            ("{a: 1, b: {c: 2}}", yaml("{a: 1, b: {c: 2}}")),
        ];
        for (raw, wanted) in table {
            assert_eq!(Override::parse(&format!("k={raw}")).unwrap().action, Action::Change(wanted), "{raw}");
        }
    }

    #[test]
    fn refusals() {
        let table = [
            ("", "names no key"),
            ("=1", "names no key"),
            ("model", "no value; write model=VALUE"),
            ("+model", "no value; write +model=VALUE"),
            ("--json", "no value"),
            ("a b=1", "' ' cannot stand in a key"),
            ("a..b=1", "empty part"),
            (".a=1", "empty part"),
            ("a@b=1", "packages"),
            ("a=[1", "bad value"),
            ("a='b", "bad value"),
            ("a='b' c", "bad value"),
        ];
        for (text, wanted) in table {
            let message = Override::parse(text).unwrap_err().to_string();
            assert!(message.contains(wanted), "{text:?}: {message}");
        }
        for text in [
            "a.".repeat(40) + "a=1",
            "a=".to_owned() + &"[".repeat(20_000),
            "a=".to_owned() + &"[".repeat(500),
        ] {
            assert!(Override::parse(&text).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in any::<String>()) {
            if let Ok(parsed) = Override::parse(&text) {
                prop_assert!(text.contains(&parsed.key));
            }
        }

        #[test]
        fn text_near_the_grammar(text in r"[+~]{0,3}[a-c./@]{0,6}=?[\[\]{}'&*!#:, 0-9a-e_.$-]{0,16}") {
            if let Ok(parsed) = Override::parse(&text) {
                prop_assert_eq!(Override::parse(&parsed.text).unwrap().key, parsed.key);
            }
        }

        #[test]
        fn numbers_are_read_back(number in any::<i64>(), fraction in -1e12..1e12f64) {
            prop_assert_eq!(parse_scalar(&number.to_string()), Value::from(number));
            prop_assert_eq!(parse_scalar(&format!("{fraction:?}")), Value::from(fraction));
        }
    }
}
