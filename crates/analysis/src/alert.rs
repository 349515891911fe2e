//! Alerts: conditions on the figures of servers and GPUs, e.g. `ttft_ms>500`, and the times at which they become true
//! or false.

use std::{collections::BTreeSet, fmt, str::FromStr};

use thiserror::Error;

use llmprof_event::{
    AlertChanged, ServerSample,
    readings::{Kind, Reading},
};

type ServerFigure = (&'static str, fn(&ServerSample) -> Option<f64>);

/// The figures of a server, under the names of `last_sample` in JSON.
const SERVER_FIGURES: [ServerFigure; 14] = [
    ("running", |sample| sample.running),
    ("queued", |sample| sample.queued),
    ("kv_used", |sample| sample.kv_used),
    ("preemptions", |sample| sample.preemptions),
    ("prefix_hits", |sample| sample.prefix_hits),
    ("prompt_tok_s", |sample| sample.prompt_tok_s),
    ("output_tok_s", |sample| sample.output_tok_s),
    ("requests_s", |sample| sample.requests_s),
    ("batch", |sample| sample.batch),
    ("queue_ms", |sample| sample.queue_ms),
    ("prefill_ms", |sample| sample.prefill_ms),
    ("decode_ms", |sample| sample.decode_ms),
    ("ttft_ms", |sample| sample.ttft_ms),
    ("tpot_ms", |sample| sample.tpot_ms),
];
/// The time for which a server has not answered.
const SILENT: &str = "silent_s";

/// The figure of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// An index into the figures of servers.
    Server(usize),
    Silent,
    Gpu(Reading),
}

impl Figure {
    fn named(name: &str) -> Option<Figure> {
        let server = SERVER_FIGURES.iter().position(|(known, _)| *known == name).map(Figure::Server);
        let silent = (name == SILENT).then_some(Figure::Silent);
        server.or(silent).or_else(|| gauges().find(|reading| reading.about().key == name).map(Figure::Gpu))
    }

    fn name(self) -> &'static str {
        match self {
            Figure::Server(index) => SERVER_FIGURES[index].0,
            Figure::Silent => SILENT,
            Figure::Gpu(reading) => reading.about().key,
        }
    }

    /// The value of a figure of servers in a sample.
    pub fn in_sample(self, sample: &ServerSample) -> Option<f64> {
        match self {
            Figure::Server(index) => (SERVER_FIGURES[index].1)(sample),
            _ => None,
        }
    }
}

fn gauges() -> impl Iterator<Item = Reading> {
    Reading::ALL.iter().copied().filter(|reading| reading.about().kind == Kind::Gauge)
}

/// A figure above or below a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alert {
    pub figure: Figure,
    pub above: bool,
    pub limit: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AlertError {
    #[error(
        "{alert:?}: no > or <; an alert is FIGURE>LIMIT or FIGURE<LIMIT in quotation marks, for example 'ttft_ms>500'"
    )]
    NoSign { alert: String },
    #[error("{alert:?}: no figure {name:?}; the figures are {}", figures().join(", "))]
    Figure { alert: String, name: String },
    #[error("{alert:?}: {found:?} is not a number")]
    Limit { alert: String, found: String },
}

/// The names of all figures.
pub fn figures() -> Vec<&'static str> {
    let server = SERVER_FIGURES.iter().map(|(name, _)| *name).chain([SILENT]);
    server.chain(gauges().map(|reading| reading.about().key)).collect()
}

impl FromStr for Alert {
    type Err = AlertError;

    fn from_str(text: &str) -> Result<Alert, AlertError> {
        let alert = || text.to_owned();
        let sign = text.find(['<', '>']).ok_or_else(|| AlertError::NoSign { alert: alert() })?;
        let (name, limit) = (text[..sign].trim(), text[sign + 1..].trim());
        let figure = Figure::named(name)
            .ok_or_else(|| AlertError::Figure { alert: alert(), name: name.to_owned() })?;
        let number = limit.parse().ok().filter(|limit: &f64| limit.is_finite());
        let limit = number.ok_or_else(|| AlertError::Limit { alert: alert(), found: limit.to_owned() })?;
        Ok(Alert { figure, above: text[sign..].starts_with('>'), limit })
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.figure.name(), if self.above { ">" } else { "<" }, self.limit)
    }
}

impl Alert {
    fn is_crossed(&self, value: f64) -> bool {
        if self.above { value > self.limit } else { value < self.limit }
    }
}

/// The alerts of a run, and the servers and GPUs for which each is true.
#[derive(Debug, Clone, Default)]
pub struct Alerts {
    alerts: Vec<Alert>,
    crossed: BTreeSet<(usize, String)>,
}

impl Alerts {
    pub fn new(alerts: Vec<Alert>) -> Alerts {
        Alerts { alerts, crossed: BTreeSet::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.alerts.is_empty()
    }

    /// Returns the changes for the server or GPU `of`. A figure without a value changes nothing.
    pub fn update(&mut self, of: &str, value: impl Fn(Figure) -> Option<f64>) -> Vec<AlertChanged> {
        let mut changed = Vec::new();
        for (i, alert) in self.alerts.iter().enumerate() {
            let Some(value) = value(alert.figure) else { continue };
            let (key, crossed) = ((i, of.to_owned()), alert.is_crossed(value));
            let is_new = if crossed { self.crossed.insert(key) } else { self.crossed.remove(&key) };
            if is_new {
                changed.push(AlertChanged { alert: alert.to_string(), of: of.to_owned(), value, crossed });
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_parsed_and_errors_list_the_valid_names() {
        for text in ["ttft_ms>500", "output_tok_s<12.5", "silent_s>10", "temp_c>85"] {
            assert_eq!(text.parse::<Alert>().unwrap().to_string(), text);
        }
        assert_eq!(" queued > 3 ".parse::<Alert>().unwrap().to_string(), "queued>3");
        for (bad, word) in [
            ("ttft_ms", "no > or <"),
            ("ttft_ms=500", "in quotation marks"),
            ("ttft>500", "no figure \"ttft\"; the figures are running, queued"),
            ("energy_mj>1", "no figure"),
            ("queued>", "\"\" is not a number"),
            ("queued>many", "\"many\" is not a number"),
            ("queued>inf", "is not a number"),
            ("queued>=3", "\"=3\" is not a number"),
        ] {
            let error = bad.parse::<Alert>().unwrap_err().to_string();
            assert!(error.contains(word), "{bad}: {error}");
        }
    }

    #[test]
    fn an_alert_is_raised_once_for_each_server_until_it_is_over() {
        let mut alerts = Alerts::new(vec!["queued>10".parse().unwrap(), "output_tok_s<5".parse().unwrap()]);
        let mut at = |of: &str, queued: Option<f64>| -> Vec<String> {
            let sample = ServerSample { queued, output_tok_s: Some(9.0), ..ServerSample::default() };
            alerts.update(of, |figure| figure.in_sample(&sample)).iter().map(ToString::to_string).collect()
        };
        assert_eq!(at("a", Some(10.0)), [""; 0], "the limit itself is within");
        assert_eq!(at("a", Some(14.0)), ["alert queued>10: 14.0 (a)"]);
        assert_eq!(at("a", Some(15.0)), [""; 0], "it is known");
        assert_eq!(at("b", Some(11.0)), ["alert queued>10: 11.0 (b)"]);
        assert_eq!(at("a", None), [""; 0], "no value is no news");
        assert_eq!(at("a", Some(2.0)), ["no longer queued>10: 2.00 (a)"]);
        assert_eq!(at("a", Some(20.0)), ["alert queued>10: 20.0 (a)"]);
    }
}
