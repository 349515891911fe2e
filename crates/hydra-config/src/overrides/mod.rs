//! Overrides on the command line: `key=value`, `group=option`, `+key=value`, `++key=value`, `~key`.

mod element;
mod function;
mod grammar;
mod sweep;

use std::{fmt, sync::Arc};

pub use element::{Element, Quote};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
pub use sweep::{Sweep, expand_sweep, glob_matches};

use crate::error::{ConfigError, Origin};

const MAX_BYTES: usize = 16 * 1024;

/// A parsed override. The composition decides whether its key is a group or a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// As it was typed.
    pub text: String,
    pub action: Action,
    /// A dotted key or a group (`model/arch`).
    pub key: String,
    /// The package after `@`.
    pub package: Option<String>,
    /// `None` for `~key`.
    pub value: Option<OverrideValue>,
}

/// The effect of an override on its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `key=value`: the key must exist.
    Change,
    /// `+key=value`: the key must not exist.
    Add,
    /// `++key=value`: the key may exist.
    Put,
    /// `~key`, or `~key=value` if the key must have that value.
    Remove,
}

impl Action {
    /// The action of an override and the text after its prefix.
    pub(crate) fn split_prefix(word: &str) -> (Action, &str) {
        let with = |action: Action| Some((action, word.strip_prefix(action.prefix())?));
        with(Action::Put)
            .or_else(|| with(Action::Add))
            .or_else(|| with(Action::Remove))
            .unwrap_or((Action::Change, word))
    }

    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Action::Change => "",
            Action::Add => "+",
            Action::Put => "++",
            Action::Remove => "~",
        }
    }
}

/// The value after the `=`.
#[derive(Debug, Clone, PartialEq)]
pub enum OverrideValue {
    Single(Element),
    /// Several values, one for each run.
    Sweep(Sweep),
}

impl OverrideValue {
    /// The value in a context that does not allow a sweep.
    fn single(self, context: &str) -> Result<Element, String> {
        match self {
            OverrideValue::Single(element) => Ok(element),
            OverrideValue::Sweep(_) => Err(format!("a sweep is not allowed inside {context}")),
        }
    }
}

/// An override, or text that is parsed as one.
pub trait AsOverride {
    fn as_override(&self) -> Result<Override, ConfigError>;
}

impl AsOverride for Override {
    fn as_override(&self) -> Result<Override, ConfigError> {
        Ok(self.clone())
    }
}

impl AsOverride for &str {
    fn as_override(&self) -> Result<Override, ConfigError> {
        Override::parse(self)
    }
}

impl AsOverride for String {
    fn as_override(&self) -> Result<Override, ConfigError> {
        Override::parse(self)
    }
}

/// The overrides, parsed where they are text.
pub(crate) fn parsed(overrides: &[impl AsOverride]) -> Result<Vec<Override>, ConfigError> {
    overrides.iter().map(AsOverride::as_override).collect()
}

impl Override {
    pub const NONE: &'static [Override] = &[];

    /// `key=value`.
    pub fn new(key: &str, value: Element) -> Override {
        Override {
            text: format!("{key}={}", value.to_text()),
            action: Action::Change,
            key: key.to_owned(),
            package: None,
            value: Some(OverrideValue::Single(value)),
        }
    }

    /// `key=text`, in quotes if the grammar would read anything else than this text without them.
    pub fn of_text(key: &str, text: &str) -> Override {
        let bare = Override::parse(&format!("{key}={text}"));
        let quoted = || Override::new(key, Element::Quoted(text.to_owned(), Quote::Single));
        bare.ok().filter(|bare| bare.value_text() == Some(text)).unwrap_or_else(quoted)
    }

    /// `key=['text',…]`.
    pub fn of_texts(key: &str, texts: &[String]) -> Override {
        let quoted = texts.iter().map(|text| Element::Quoted(text.clone(), Quote::Single));
        Override::new(key, Element::List(quoted.collect()))
    }

    /// The key with its package, and the text of the value; empty for `~key`.
    pub fn key_and_value(&self) -> (&str, &str) {
        Override::split(&self.text)
    }

    /// The same for the text of an override.
    pub fn split(text: &str) -> (&str, &str) {
        let (_, text) = Action::split_prefix(text);
        text.split_once('=').unwrap_or((text, ""))
    }

    pub fn texts(overrides: &[Override]) -> Vec<String> {
        overrides.iter().map(|given| given.text.clone()).collect()
    }

    /// The value, if it is text.
    pub fn value_text(&self) -> Option<&str> {
        match &self.value {
            Some(OverrideValue::Single(element)) => element.as_text(),
            Some(OverrideValue::Sweep(_)) | None => None,
        }
    }

    /// Whether it gives the key `key` a value, or selects an option of the group `key`.
    pub fn sets(&self, key: &str) -> bool {
        self.action != Action::Remove && self.package.is_none() && self.key == key
    }

    /// Whether it sets `key` or a key below it.
    pub fn sets_within(&self, key: &str) -> bool {
        let is_below = self.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
        self.sets(key) || (self.action != Action::Remove && self.package.is_none() && is_below)
    }

    /// Parses an override by Hydra's grammar.
    pub fn parse(text: &str) -> Result<Override, ConfigError> {
        let bad = |message: String| ConfigError::BadOverride { text: shortened(text), message };
        if text.len() > MAX_BYTES {
            return Err(bad(format!("longer than {MAX_BYTES} bytes")));
        }
        grammar::parse(text).map_err(bad)
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin::Override(Arc::from(shortened(&self.text)))
    }

    /// `key` or `group@package`, the key of a choice in the defaults list.
    pub(crate) fn choice_key(&self) -> String {
        match &self.package {
            Some(package) => format!("{}@{package}", self.key),
            None => self.key.clone(),
        }
    }

    pub(crate) fn bad(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::BadOverride { text: shortened(&self.text), message: message.into() }
    }

    /// Whether the key belongs to Hydra's own configuration.
    pub(crate) fn is_hydra(&self) -> bool {
        self.key.starts_with("hydra.") || self.key.starts_with("hydra/")
    }
}

/// Written as its text.
impl Serialize for Override {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Override {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Override, D::Error> {
        Override::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// The text of an override in messages, truncated.
fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_yaml_ng::Value;

    fn value_of(text: &str) -> Value {
        match Override::parse(text).unwrap().value {
            Some(OverrideValue::Single(element)) => element.to_value().unwrap(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn keys_and_actions() {
        let table = [
            ("model=qwen", Action::Change, "model", None),
            ("a.b=1", Action::Change, "a.b", None),
            ("a.0.b=1", Action::Change, "a.0.b", None),
            ("$a.b-c=1", Action::Change, "$a.b-c", None),
            ("+a=b", Action::Add, "a", None),
            ("++a=b", Action::Put, "a", None),
            ("~a", Action::Remove, "a", None),
            ("~a.b=1", Action::Remove, "a.b", None),
            ("a/b=c", Action::Change, "a/b", None),
            ("a/b@c.d=e", Action::Change, "a/b", Some("c.d")),
            ("+a@_global_=e", Action::Add, "a", Some("_global_")),
        ];
        for (text, action, key, package) in table {
            let parsed = Override::parse(text).unwrap();
            assert_eq!((parsed.action, parsed.key.as_str()), (action, key), "{text}");
            assert_eq!(parsed.package.as_deref(), package, "{text}");
        }
    }

    #[test]
    fn text_is_quoted_if_necessary() {
        for (text, expected) in [
            ("a/b.json", "k=a/b.json"),
            ("my model", "k=my model"),
            ("true", "k='true'"),
            ("1e3", "k='1e3'"),
            (" a", "k=' a'"),
            ("a,b", "k='a,b'"),
            ("it's", r"k='it\'s'"),
            ("é", "k='é'"),
            ("", "k="),
        ] {
            let made = Override::of_text("k", text);
            assert_eq!(made.text, expected);
            assert_eq!(made.value_text(), Some(text));
            assert_eq!(Override::parse(&made.text).unwrap(), made);
        }
    }

    #[test]
    fn made_overrides_are_those_that_are_parsed() {
        for made in [
            Override::new("k", Element::Bool(true)),
            Override::new("k", Element::Int(7)),
            Override::new("k", Element::Float(0.5)),
            Override::of_texts("k", &["http://a".to_owned(), "it's".to_owned()]),
        ] {
            assert_eq!(Override::parse(&made.text).unwrap(), made);
        }
    }

    #[test]
    fn an_override_has_a_key_and_a_value() {
        for (text, expected) in [
            ("a.b=1", ("a.b", "1")),
            ("+model@draft=x", ("model@draft", "x")),
            ("++a='b=c'", ("a", "'b=c'")),
            ("~a", ("a", "")),
        ] {
            let given = Override::parse(text).unwrap();
            assert_eq!(given.key_and_value(), expected, "{text}");
            assert_eq!(serde_json::to_value(&given).unwrap(), text);
            assert_eq!(serde_json::from_value::<Override>(text.into()).unwrap(), given);
        }
        assert!(serde_json::from_value::<Override>("a".into()).is_err());
    }

    #[test]
    fn keys_that_are_set() {
        let set = |text: &str| Override::parse(text).unwrap();
        assert!(set("model=a").sets("model") && set("++model.arch=a").sets("model.arch"));
        for other in ["~model", "model@draft=a", "model.arch=a", "models=a"] {
            assert!(!set(other).sets("model"), "{other}");
        }
        assert!(set("model=a").sets_within("model") && set("+model.arch.x=a").sets_within("model"));
        for other in ["~model.arch", "models.arch=a", "model@draft=a"] {
            assert!(!set(other).sets_within("model"), "{other}");
        }
    }

    #[test]
    fn values() {
        let yaml = |text: &str| serde_yaml_ng::from_str::<Value>(text).unwrap();
        let table = [
            ("", Value::from("")),
            (" ", Value::from("")),
            ("null", Value::Null),
            ("True", Value::from(true)),
            ("fAlse", Value::from(false)),
            ("-3", Value::from(-3)),
            ("1_000", Value::from(1000)),
            ("18446744073709551615", Value::from(u64::MAX)),
            ("2.5", Value::from(2.5)),
            ("1e3", Value::from(1000.0)),
            ("inf", Value::from(f64::INFINITY)),
            ("infinity", Value::from("infinity")),
            ("yes", Value::from("yes")),
            ("cuda:0", Value::from("cuda:0")),
            ("a: b", Value::from("a: b")),
            ("  a  b  ", Value::from("a  b")),
            ("2024-01-01", Value::from("2024-01-01")),
            ("1.2.3", Value::from("1.2.3")),
            ("010", Value::from("010")),
            ("${model.name}", Value::from("${model.name}")),
            ("a${b}c", Value::from("a${b}c")),
            ("'null'", Value::from("null")),
            (r"'it\'s'", Value::from("it's")),
            (r"'a\\'", Value::from(r"a\")),
            (r"'a\nb'", Value::from(r"a\nb")),
            ("\"a,b\"", Value::from("a,b")),
            (r"a\,b", Value::from("a,b")),
            (r"a\ ", Value::from("a ")),
            ("[]", yaml("[]")),
            ("[1, x, null,[ 'a b' ]]", yaml("[1, x, null, ['a b']]")),
            ("{}", yaml("{}")),
            ("{a: 1, b: {c: [2]}, 3:x}", yaml("{a: 1, b: {c: [2]}, '3': x}")),
            ("{a:b:c}", yaml("{a: 'b:c'}")),
            ("int(2.7)", Value::from(2)),
            ("int('12')", Value::from(12)),
            ("float(3)", Value::from(3.0)),
            ("str(1.0)", Value::from("1.0")),
            ("str(true)", Value::from("true")),
            ("bool(TRUE)", Value::from(true)),
            ("int([1.5, '2'])", yaml("[1, 2]")),
            ("str({a: 1})", yaml("{a: '1'}")),
            ("float(value=1)", Value::from(1.0)),
            ("json_str({a: [1, null]})", Value::from(r#"{"a":[1,null]}"#)),
        ];
        for (raw, expected) in table {
            assert_eq!(value_of(&format!("k={raw}")), expected, "{raw}");
        }
    }

    #[test]
    fn invalid_overrides_are_refused() {
        let table = [
            ("", "missing key"),
            ("=1", "missing key"),
            ("model", "missing value; write model=VALUE"),
            ("+model", "missing value; write +model=VALUE"),
            ("--json", "is not allowed in a key"),
            ("a b=1", "' ' is not allowed in a key"),
            (" a=1", "' ' is not allowed in a key"),
            ("a..b=1", "is not allowed in a key"),
            (".a=1", "is not allowed in a key"),
            ("a[0]=1", "'[' is not allowed in a key"),
            ("a/b.c=1", "mixes a group and a dotted key"),
            ("a@b:c=1", "renaming a package"),
            ("a=[1", "the list is not closed"),
            ("a={b: 1", "the map is not closed"),
            ("a='b", "quote"),
            ("a='b' c", "after the quoted text"),
            ("a=b=c", "'='"),
            ("a=#1", "'#'"),
            ("a=é", "'é'"),
            ("a={'b': 1}", "a key of a map"),
            ("a=${b", "'{'"),
            ("a=nope(1)", "unknown function \"nope\""),
            ("a=int(x)", "int: \"x\" is not an integer"),
            ("a=int(null)", "int: null"),
            ("a=bool(x)", "bool"),
            ("a=choice()", "choice needs at least one value"),
            ("a=choice(choice(1,2))", "choice is not allowed inside a choice"),
            ("a=[choice(1,2)]", "a sweep is not allowed inside a list"),
            ("a=interval(0,1)", "interval"),
            ("a=shuffle(1,2)", "shuffle"),
            ("a=sort(1,2)", "sort"),
            ("a=tag(t,choice(1,2))", "tag"),
            ("a=range(1,2,0)", "step"),
            ("a=1,,2", "missing value"),
            ("a=99999999999999999999", "64 bits"),
        ];
        for (text, expected) in table {
            let outcome = Override::parse(text).and_then(|parsed| match &parsed.value {
                Some(OverrideValue::Single(element)) => {
                    element.to_value().map_err(|message| parsed.bad(message))
                }
                _ => Ok(Value::Null),
            });
            let message = match outcome {
                Ok(_) => panic!("{text:?} was accepted"),
                Err(error) => error.to_string(),
            };
            assert!(message.contains(expected), "{text:?}: {message}");
        }
        for text in [
            "a.".repeat(40) + "a=1",
            "a=".to_owned() + &"[".repeat(20_000),
            "a=".to_owned() + &"[".repeat(500),
            "a=".to_owned() + &"int(".repeat(500),
        ] {
            assert!(Override::parse(&text).is_err());
        }
    }

    #[test]
    fn interpolations_are_written_and_parsed_back() {
        for text in [r"a=[${.cy'\}]", r#"a=${b"'}"#, "a=${b#é}", "a=x${b\n}y"] {
            let given = |text: &str| match Override::parse(text).unwrap().value {
                Some(OverrideValue::Single(element)) => element,
                other => panic!("{text}: {other:?}"),
            };
            let element = given(text);
            let again = given(&format!("a={}", element.to_text()));
            assert_eq!(again.to_value(), element.to_value(), "{text}");
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
        fn text_near_the_grammar(
            text in r"[+~]{0,3}[a-c./@]{0,6}=?([\[\]{}'():,= 0-9a-e_.$\\-]|choice\(|range\(|int\(|glob\(){0,16}"
        ) {
            if let Ok(Override { value: Some(OverrideValue::Single(element)), .. }) = Override::parse(&text) {
                // The written text parses to the same value.
                let again = Override::parse(&format!("k={}", element.to_text())).unwrap();
                match again.value {
                    Some(OverrideValue::Single(again)) => prop_assert_eq!(
                        format!("{:?}", again.to_value()), format!("{:?}", element.to_value()), "{}", text
                    ),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }

        #[test]
        fn numbers_are_parsed_back(number in any::<i64>(), fraction in -1e12..1e12f64) {
            prop_assert_eq!(value_of(&format!("k={number}")), Value::from(number));
            prop_assert_eq!(value_of(&format!("k={fraction:?}")), Value::from(fraction));
        }
    }
}
