//! A pause between two jobs.

use std::{fmt, time::Duration};

/// The GPU's temperature, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Temperature {
    Celsius(f32),
    /// The last reading failed; the next may succeed.
    NotRead,
    /// It cannot be read at all.
    Unavailable,
}

/// The display of a cool-down: `cool-down 4 s`, `cool-down 54 °C to below 45 °C, at most 120 s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CooldownStatus {
    /// Until the end of the minimum.
    pub left: Duration,
    /// Until the end of the maximum.
    pub left_at_most: Duration,
    pub temperature: Temperature,
    pub below_c: Option<f64>,
}

impl fmt::Display for CooldownStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = |d: Duration| d.as_secs_f64().ceil() as u64;
        let min = (!self.left.is_zero()).then(|| format!("{} s", secs(self.left)));
        let temperature = match (self.below_c, self.temperature) {
            (None, _) => None,
            (_, Temperature::Unavailable) => Some("no temperature".to_owned()),
            (_, Temperature::NotRead) => Some("temperature not read".to_owned()),
            (Some(below), Temperature::Celsius(temp)) if f64::from(temp) < below => {
                Some(format!("{temp:.0} °C"))
            }
            (Some(below), Temperature::Celsius(temp)) => Some(format!("{temp:.0} °C to below {below} °C")),
        };
        let max = (self.left.is_zero() && self.below_c.is_some())
            .then(|| format!("at most {} s", secs(self.left_at_most)));
        let parts: Vec<String> = [min, temperature, max].into_iter().flatten().collect();
        write!(f, "cool-down {}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_shown() {
        let status = |left, temperature, below_c| CooldownStatus {
            left: Duration::from_millis(left),
            left_at_most: Duration::from_secs(60),
            temperature,
            below_c,
        };
        let table = [
            (status(3200, Temperature::NotRead, None), "cool-down 4 s"),
            (status(3200, Temperature::Unavailable, Some(45.0)), "cool-down 4 s, no temperature"),
            (status(3200, Temperature::Celsius(54.4), Some(45.0)), "cool-down 4 s, 54 °C to below 45 °C"),
            (status(3200, Temperature::Celsius(44.4), Some(45.0)), "cool-down 4 s, 44 °C"),
            (
                status(0, Temperature::Celsius(54.4), Some(45.0)),
                "cool-down 54 °C to below 45 °C, at most 60 s",
            ),
        ];
        for (status, wanted) in table {
            assert_eq!(status.to_string(), wanted);
        }
    }
}
