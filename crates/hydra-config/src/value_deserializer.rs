//! A deserializer for YAML values with typed errors.

use std::fmt::{self, Display};

use serde::de::{
    self, DeserializeOwned, Expected, IntoDeserializer, Unexpected, Visitor,
    value::{MapDeserializer, SeqDeserializer, StrDeserializer},
};
use serde_yaml_ng::Value;

/// Why a value does not have the requested type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mismatch {
    UnknownKey {
        name: String,
        known: &'static [&'static str],
    },
    MissingKey(&'static str),
    UnknownName {
        known: &'static [&'static str],
    },
    /// The requested type, as serde describes it.
    Expected(String),
    Other(String),
}

impl Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::UnknownKey { name, .. } => write!(f, "unknown key {name}"),
            Mismatch::MissingKey(name) => write!(f, "missing key {name}"),
            Mismatch::UnknownName { known } => write!(f, "expected one of {}", known.join(", ")),
            Mismatch::Expected(expected) => write!(f, "expected {expected}"),
            Mismatch::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Mismatch {}

impl de::Error for Mismatch {
    fn custom<T: Display>(message: T) -> Mismatch {
        Mismatch::Other(message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Mismatch {
        Mismatch::Expected(expected.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Mismatch {
        Mismatch::Expected(expected.to_string())
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Mismatch {
        Mismatch::UnknownKey { name: name.to_owned(), known }
    }

    fn missing_field(name: &'static str) -> Mismatch {
        Mismatch::MissingKey(name)
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Mismatch {
        Mismatch::UnknownName { known }
    }
}

/// The fields of a struct; `None` for other types.
pub(crate) fn fields_of<T: DeserializeOwned>() -> Option<&'static [&'static str]> {
    match T::deserialize(Fields).err()? {
        Mismatch::UnknownKey { known, .. } => Some(known),
        _ => None,
    }
}

/// A deserializer that refuses everything, and a struct with the names of its fields.
struct Fields;

impl<'de> de::Deserializer<'de> for Fields {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        Err(de::Error::invalid_type(Unexpected::Unit, &visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Mismatch> {
        Err(de::Error::unknown_field("", fields))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map enum option newtype_struct identifier ignored_any
    }
}

/// A YAML value as a deserializer.
#[derive(Clone, Copy)]
pub(crate) struct Node<'de>(pub(crate) &'de Value);

impl<'de> IntoDeserializer<'de, Mismatch> for Node<'de> {
    type Deserializer = Node<'de>;

    fn into_deserializer(self) -> Node<'de> {
        self
    }
}

impl<'de> de::Deserializer<'de> for Node<'de> {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => visitor.visit_u64(value),
                (None, Some(value)) => visitor.visit_i64(value),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Sequence(items) => visitor.visit_seq(SeqDeserializer::new(items.iter().map(Node))),
            Value::Mapping(entries) => {
                visitor.visit_map(MapDeserializer::new(entries.iter().map(|(k, v)| (Node(k), Node(v)))))
            }
            Value::Tagged(_) => Err(de::Error::invalid_type(Unexpected::Other("tag"), &visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        match self.0 {
            Value::String(name) => visitor.visit_enum(StrDeserializer::new(name)),
            _ => Err(de::Error::invalid_type(Unexpected::Other("value"), &visitor)),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}
