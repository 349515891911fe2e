//! Numbers in a range, as serde reads them.

use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected},
};

pub fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    validated(deserializer, |x| (0.0..=1e9).contains(&x), "a number of seconds, 0 or more")
}

pub fn optional_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    struct Seconds(#[serde(deserialize_with = "seconds")] f64);

    Ok(Option::<Seconds>::deserialize(deserializer)?.map(|Seconds(secs)| secs))
}

pub fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    validated(deserializer, |x| x > 0.0, "a number above 0")
}

pub fn optional_above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    struct AboveZero(#[serde(deserialize_with = "above_zero")] f64);

    Ok(Option::<AboveZero>::deserialize(deserializer)?.map(|AboveZero(x)| x))
}

pub fn probability_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    validated(deserializer, |x| (0.0..=1.0).contains(&x), "a number from 0 to 1")
}

pub fn probability<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    validated(deserializer, |x| x > 0.0 && x <= 1.0, "a number above 0, at most 1")
}

fn validated<'de, D: Deserializer<'de>>(
    deserializer: D,
    is_valid: fn(f64) -> bool,
    expected: &'static str,
) -> Result<f64, D::Error> {
    let x = f64::deserialize(deserializer)?;
    match x.is_finite() && is_valid(x) {
        true => Ok(x),
        false => Err(Error::invalid_value(Unexpected::Float(x), &expected)),
    }
}
