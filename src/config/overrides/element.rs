//! The values an override can give, and how they are written back as the text of an override.

use serde_yaml_ng::{Mapping, Value};

use crate::config::python_text::{float_text, str_of};
use crate::config::scalar::whole_number;

/// One parsed value. It remembers its quotes, because writing it back needs them.
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
    /// The value as the tree keeps it, or why it cannot.
    pub(crate) fn to_value(&self) -> Result<Value, String> {
        Ok(match self {
            Element::Null => Value::Null,
            Element::Bool(flag) => Value::from(*flag),
            Element::Int(whole) => Value::Number(whole_number(*whole)?),
            Element::Float(real) => Value::from(*real),
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

    /// The element as an override would spell it.
    pub fn to_text(&self) -> String {
        match self {
            Element::Null => "null".into(),
            Element::Bool(true) => "True".into(),
            Element::Bool(false) => "False".into(),
            Element::Int(whole) => whole.to_string(),
            Element::Float(real) => float_text(*real),
            Element::Text(text) if text.chars().all(stands_unquoted) => escaped(text),
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

/// Characters that an unquoted text has after a backslash.
const ESCAPED: &str = "\\()[]{}:=, \t";

/// Whether a character can be written without quotes. Others come out of interpolations, which may hold anything.
fn stands_unquoted(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_/-+.$%*@?|".contains(c) || ESCAPED.contains(c)
}

/// A backslash before each character that means something to the grammar.
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

/// `text` between quotes: those inside, and the backslashes that stand before a quote, are escaped.
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
