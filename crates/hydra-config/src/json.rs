//! Configurations as JSON, which has no infinities and no NaN.

use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;
use serde_yaml_ng::Value;

use crate::python_text::float_text;

/// `value` as JSON. Infinities and NaN become the texts `inf`, `-inf` and `nan`, as overrides write them.
pub fn to_json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(flag) => Json::from(*flag),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(value), ..) => Json::from(value),
            (None, Some(value), _) => Json::from(value),
            (None, None, Some(value)) if value.is_finite() => Json::from(value),
            (.., value) => Json::from(float_text(value.unwrap_or(f64::NAN))),
        },
        Value::String(text) => Json::from(text.as_str()),
        Value::Sequence(items) => items.iter().map(to_json).collect(),
        Value::Mapping(entries) => {
            let entry = |(key, value): (&Value, &Value)| Some((key.as_str()?.to_owned(), to_json(value)));
            Json::Object(entries.iter().filter_map(entry).collect())
        }
        Value::Tagged(tagged) => to_json(&tagged.value),
    }
}

/// Any value as [`to_json`] writes it; for `#[serde(deserialize_with)]`.
pub fn json_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
    Value::deserialize(deserializer).map(|value| to_json(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_becomes_null() {
        let value: Value =
            serde_yaml_ng::from_str("{a: .inf, b: [-.inf, .nan, 1.5, -3, null], c: 18446744073709551615}")
                .unwrap();
        let wanted = serde_json::json!({"a": "inf", "b": ["-inf", "nan", 1.5, -3, null], "c": u64::MAX});
        assert_eq!(to_json(&value), wanted);
    }
}
