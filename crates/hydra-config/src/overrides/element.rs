//! The values of overrides, and their text in an override.

use serde_yaml_ng::{Mapping, Value};

use crate::python_text::{float_text, str_of};
use crate::scalar::integer;

/// One parsed value. It keeps its quotes, to be written as it was.
#[derive(Debug, Clone, PartialEq)]
pub enum Element {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Quoted(String, Quote),
    List(Vec<Element>),
    Dict(Vec<(Element, Element)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quote {
    Single,
    Double,
}

impl Quote {
    pub(super) fn mark(self) -> char {
        match self {
            Quote::Single => '\'',
            Quote::Double => '"',
        }
    }
}

impl Element {
    /// The value in the tree, or why it is invalid.
    pub(crate) fn to_value(&self) -> Result<Value, String> {
        Ok(match self {
            Element::Null => Value::Null,
            Element::Bool(flag) => Value::from(*flag),
            Element::Int(value) => Value::Number(integer(*value)?),
            Element::Float(value) => Value::from(*value),
            Element::Text(text) | Element::Quoted(text, _) => Value::from(text.as_str()),
            Element::List(items) => {
                Value::Sequence(items.iter().map(Element::to_value).collect::<Result<_, _>>()?)
            }
            Element::Dict(entries) => {
                let mut mapping = Mapping::new();
                for (key, value) in entries {
                    if matches!(key, Element::Null) {
                        return Err("null cannot be a key".into());
                    }
                    mapping.insert(Value::from(str_of(&key.to_value()?)), value.to_value()?);
                }
                Value::Mapping(mapping)
            }
        })
    }

    /// The element as an override writes it.
    pub fn to_text(&self) -> String {
        match self {
            Element::Null => "null".into(),
            Element::Bool(true) => "True".into(),
            Element::Bool(false) => "False".into(),
            Element::Int(value) => value.to_string(),
            Element::Float(value) => float_text(*value),
            Element::Text(text) if text.chars().all(is_unquoted) => escaped(text),
            Element::Text(text) => quoted(text, Quote::Single.mark()),
            Element::Quoted(text, quote) => quoted(text, quote.mark()),
            Element::List(items) => {
                format!("[{}]", items.iter().map(Element::to_text).collect::<Vec<_>>().join(","))
            }
            Element::Dict(entries) => {
                let entry =
                    |(key, value): &(Element, Element)| format!("{}:{}", key.to_text(), value.to_text());
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
            }
        }
    }

    /// The text of a quoted or unquoted string.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Element::Text(text) | Element::Quoted(text, _) => Some(text),
            _ => None,
        }
    }
}

/// Characters that need a backslash in unquoted text.
const ESCAPED: &str = "\\()[]{}:=, \t";

/// Whether a character can be written without quotes. Interpolations can contain other characters.
fn is_unquoted(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_/-+.$%*@?|".contains(c) || ESCAPED.contains(c)
}

/// `text` with a backslash before each special character.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if ESCAPED.contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// `text` in quotes. Quotes inside it, and the backslashes before a quote, are escaped.
fn quoted(text: &str, mark: char) -> String {
    let mut out = String::from(mark);
    let mut backslashes = 0;
    for c in text.chars() {
        if c == mark {
            out.extend(std::iter::repeat_n('\\', backslashes + 1));
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
        out.push(c);
    }
    out.extend(std::iter::repeat_n('\\', backslashes));
    out.push(mark);
    out
}
