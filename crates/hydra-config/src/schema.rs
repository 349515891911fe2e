//! The type of a configuration.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};
use serde_yaml_ng::Value;

use crate::alias::Alias;

/// A type that a configuration is deserialised into.
///
/// In addition to the keys of the job it gets `hydra`, with the part of Hydra's own configuration that a job needs;
/// see [`HydraConfig`]. The user's own keys at the top level, to which other values refer, are not passed to it unless
/// they are misspelled keys of the schema.
pub trait Schema: DeserializeOwned {
    /// Keys that are accepted under another name.
    const ALIASES: &'static [Alias] = &[];

    /// The first value outside its range.
    fn out_of_range(&self) -> Option<OutOfRange> {
        None
    }

    /// Whether the keys under `key` have no types. `???` may remain there.
    fn is_untyped(_key: &str) -> bool {
        false
    }
}

/// Any configuration, without types.
impl Schema for Value {
    fn is_untyped(_key: &str) -> bool {
        true
    }
}

/// A value outside its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfRange {
    pub key: String,
    pub got: String,
    pub expected: String,
}

/// The part of Hydra's own configuration that a job needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HydraConfig {
    pub run: HydraRun,
    pub job: HydraJob,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HydraRun {
    pub dir: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HydraJob {
    #[serde(deserialize_with = "text_or_scalar")]
    pub name: String,
}

/// Accepts a number or a boolean as text, as in `experiment=42`; for `#[serde(deserialize_with)]`.
pub fn text_or_scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct TextOrScalar;

    impl Visitor<'_> for TextOrScalar {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
            Ok(value.to_owned())
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<String, E> {
            Ok(value.to_string())
        }
    }

    deserializer.deserialize_any(TextOrScalar)
}
