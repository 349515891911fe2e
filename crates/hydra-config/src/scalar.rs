//! Unquoted YAML scalars: YAML 1.1 as PyYAML reads it, with OmegaConf's floats and without timestamps.

use serde_yaml_ng::{Number, Value};

use crate::python_text::str_of;

/// The value of an unquoted scalar.
pub(crate) fn plain_scalar(text: &str) -> Result<Value, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Ok(Value::from(true));
        }
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(Value::from(false));
        }
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return Ok(Value::from(text));
    }
    if let Some(value) = float(text) {
        return Ok(Value::from(value));
    }
    match int(text) {
        Some(value) => integer(value).map(Value::Number),
        None => Ok(Value::from(text)),
    }
}

/// The text of a key. A key that parses as a number or a boolean is written as Python prints it.
pub(crate) fn key_text(text: &str) -> Result<String, String> {
    match plain_scalar(text)? {
        Value::Null => Err("null cannot be a key".into()),
        key => Ok(str_of(&key)),
    }
}

/// `value` as a YAML number, which has 64 bits.
pub(crate) fn integer(value: i128) -> Result<Number, String> {
    if let Ok(signed) = i64::try_from(value) {
        return Ok(Number::from(signed));
    }
    u64::try_from(value).map(Number::from).map_err(|_| format!("{value} does not fit in 64 bits"))
}

fn split_sign(text: &str) -> (i128, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    }
}

fn int(text: &str) -> Option<i128> {
    let (sign, body) = split_sign(text);
    let radix = |digits: &str, radix: u32| {
        let plain = digits.replace('_', "");
        let is_number = !plain.is_empty() && plain.chars().all(|c| c.is_digit(radix));
        // Longer numbers saturate and are then refused as too large.
        is_number.then(|| i128::from_str_radix(&plain, radix).unwrap_or(i128::MAX))
    };
    let magnitude = if let Some(digits) = body.strip_prefix("0b") {
        radix(digits, 2)
    } else if let Some(digits) = body.strip_prefix("0x") {
        radix(digits, 16)
    } else if body == "0" {
        Some(0)
    } else if let Some(digits) = body.strip_prefix('0') {
        radix(digits, 8)
    } else if body.contains(':') && body.starts_with(|c: char| c.is_ascii_digit()) {
        sexagesimal(body)
    } else if body.starts_with(|c: char| c.is_ascii_digit()) {
        radix(body, 10)
    } else {
        None
    };
    magnitude.map(|magnitude| sign.saturating_mul(magnitude))
}

/// Base 60: `1:30` is 90.
fn sexagesimal(body: &str) -> Option<i128> {
    let mut parts = body.split(':');
    let head = parts.next()?.replace('_', "");
    let start = head.parse::<i128>().ok().filter(|_| head.bytes().all(|b| b.is_ascii_digit()))?;
    parts.try_fold(start, |sum, part| {
        let small = (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        let below_sixty = part.parse::<i128>().ok().filter(|n| small && *n < 60)?;
        sum.checked_mul(60)?.checked_add(below_sixty)
    })
}

fn float(text: &str) -> Option<f64> {
    let (sign, body) = split_sign(text);
    let sign = sign as f64;
    match body {
        ".inf" | ".Inf" | ".INF" => return Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" if body.len() == text.len() => return Some(f64::NAN),
        _ => {}
    }
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (body, None),
    };
    let (integer, fraction) = match mantissa.split_once('.') {
        Some((integer, fraction)) => (integer, Some(fraction)),
        None => (mantissa, None),
    };
    if let Some(exponent) = exponent {
        let signed = exponent.starts_with(['+', '-']);
        let unsigned = exponent.trim_start_matches(['+', '-']);
        let plain = !unsigned.is_empty()
            && unsigned.len() + usize::from(signed) == exponent.len()
            && unsigned.bytes().all(|b| b.is_ascii_digit());
        // `.5e3` is text for PyYAML: without digits before the point the exponent needs a sign.
        if !plain || (integer.is_empty() && !signed) {
            return None;
        }
    }
    if integer.contains(':') {
        let minutes = sexagesimal(integer).filter(|_| exponent.is_none())? as f64;
        let fraction = fraction.filter(|fraction| digits(fraction))?.replace('_', "");
        return Some(sign * (minutes + format!("0.{fraction}0").parse::<f64>().ok()?));
    }
    let valid_start = match integer.is_empty() {
        true => body.len() == text.len() && fraction?.starts_with(|c: char| c.is_ascii_digit()),
        false => integer.starts_with(|c: char| c.is_ascii_digit()) && digits(integer),
    };
    if !valid_start || !fraction.is_none_or(digits) || (fraction.is_none() && exponent.is_none()) {
        return None;
    }
    body.replace('_', "").parse::<f64>().ok().map(|value| sign * value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_parse_as_in_pyyaml() {
        let table = [
            ("yes", Value::from(true)),
            ("Off", Value::from(false)),
            ("y", Value::from("y")),
            ("~", Value::Null),
            ("010", Value::from(8)),
            ("09", Value::from("09")),
            ("0x1F", Value::from(31)),
            ("-0b11", Value::from(-3)),
            ("1_000", Value::from(1000)),
            ("1:30", Value::from(90)),
            ("1:90", Value::from("1:90")),
            ("1:30.5", Value::from(90.5)),
            ("1e3", Value::from(1000.0)),
            ("1.e3", Value::from(1000.0)),
            ("1.", Value::from(1.0)),
            (".5", Value::from(0.5)),
            (".5e3", Value::from(".5e3")),
            ("-.5", Value::from("-.5")),
            ("-.inf", Value::from(f64::NEG_INFINITY)),
            ("2024-01-01", Value::from("2024-01-01")),
            ("1.2.3", Value::from("1.2.3")),
            ("-", Value::from("-")),
            ("18446744073709551615", Value::from(u64::MAX)),
        ];
        for (text, expected) in table {
            assert_eq!(plain_scalar(text), Ok(expected), "{text:?}");
        }
        assert!(plain_scalar("18446744073709551616").is_err());
        assert_eq!(key_text("1"), Ok("1".into()));
        assert!(key_text("~").is_err());
    }
}
