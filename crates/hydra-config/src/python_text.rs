//! Values as Python's `str()` and `repr()` write them, as OmegaConf does for interpolations inside text.

use serde_yaml_ng::{Number, Value};

/// `str(value)`: text unchanged, everything else as `repr`.
pub(crate) fn str_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => repr_of(other),
    }
}

/// `repr(value)`.
fn repr_of(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number_text(number),
        Value::String(text) => quoted(text),
        Value::Sequence(items) => format!("[{}]", items.iter().map(repr_of).collect::<Vec<_>>().join(", ")),
        Value::Mapping(entries) => {
            let entry = |(key, value)| format!("{}: {}", repr_of(key), repr_of(value));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        Value::Tagged(tagged) => repr_of(&tagged.value),
    }
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => float_text(float),
        _ => number.to_string(),
    }
}

/// The shortest text that parses back as `value`, with an exponent if Python uses one.
pub(crate) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// In single quotes, or in double quotes if the text contains single quotes only.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_prints_them() {
        let table = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, expected) in table {
            assert_eq!(float_text(value), expected);
        }
    }

    #[test]
    fn containers_as_python_prints_them() {
        let value: Value = serde_yaml_ng::from_str("[1, a, \"it's\", null, true, {k: 1.0}]").unwrap();
        assert_eq!(str_of(&value), "[1, 'a', \"it's\", None, True, {'k': 1.0}]");
    }
}
