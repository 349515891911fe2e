//! Why a run may or may not be compared with another.

use serde::Serialize;

use super::{metrics::Metrics, throttle::Diagnosis};
use crate::base::units::percent;

/// Five points; every doubt takes one.
pub const MOST: u32 = 5;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trust {
    pub score: u32,
    pub of: u32,
    /// What speaks against it, in words.
    pub doubts: Vec<String>,
}

/// Fewer requests give no idea of the spread.
const ENOUGH_REQUESTS: u64 = 5;
/// Median and 90th percentile of TPOT further apart than this are no one value.
const EVEN: f64 = 1.05;
/// More of the CPU in other hands is worth a doubt.
const OTHERS: f32 = 0.2;

/// What a run is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    pub metrics: &'a Metrics,
    pub diagnosis: Option<&'a Diagnosis>,
    /// Others who were on the card.
    pub others: usize,
    /// The share of the CPU that others took, where the workload runs on it.
    pub cpu_taken: Option<f32>,
    pub events_lost: u64,
    /// TPOT of the first requests over that of the last.
    pub drift: Option<f64>,
    /// The tool that the run was under.
    pub perturbed: Option<&'a str>,
}

/// `None` until something was measured.
pub fn trust(judged: &Judged<'_>) -> Option<Trust> {
    let metrics = judged.metrics;
    if metrics.itl.n() == 0 {
        return None;
    }
    let mut doubts = Vec::new();
    if metrics.requests < ENOUGH_REQUESTS {
        doubts.push(format!("only {} requests were measured", metrics.requests));
    }
    let spread =
        metrics.tpot.percentile_ms(90.0).zip(metrics.tpot.percentile_ms(50.0)).map(|(p90, p50)| p90 / p50);
    if let Some(spread) = spread.filter(|spread| *spread > EVEN) {
        doubts.push(format!("TPOT is uneven: p90 is {spread:.2} × p50"));
    }
    if let Some(drift) = judged.drift.filter(|drift| !(1.0 / EVEN..=EVEN).contains(drift)) {
        doubts
            .push(format!("it drifts: TPOT of the last requests is {:.2} × that of the first", 1.0 / drift));
    }
    if judged.diagnosis.is_some_and(|diagnosis| diagnosis.throttled) {
        doubts.push("the card was held back".to_owned());
    }
    if judged.others > 0 {
        doubts.push(format!("{} other processes were on the card", judged.others));
    }
    if let Some(taken) = judged.cpu_taken.filter(|taken| *taken > OTHERS) {
        doubts.push(format!("other processes took {} of the CPU", percent(100.0 * taken)));
    }
    if judged.events_lost > 0 {
        doubts.push(format!("{} events were lost", judged.events_lost));
    }
    let mut score = MOST.saturating_sub(doubts.len() as u32);
    if let Some(tool) = judged.perturbed {
        // However even it is, it is not the workload's own time.
        score = 0;
        doubts.insert(0, format!("it ran under {tool}: its latencies are not to be compared"));
    }
    Some(Trust { score, of: MOST, doubts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_doubt_takes_a_point() {
        let mut metrics = Metrics::default();
        fn judged(metrics: &Metrics) -> Judged<'_> {
            Judged {
                metrics,
                diagnosis: None,
                others: 0,
                cpu_taken: None,
                events_lost: 0,
                drift: None,
                perturbed: None,
            }
        }
        assert_eq!(trust(&judged(&metrics)), None);
        metrics.next_token(1_000_000, 1);
        assert_eq!(trust(&judged(&metrics)).unwrap().score, 4);
        metrics.requests = 20;
        (0..20).for_each(|_| metrics.tpot.record(1_000_000));
        assert_eq!(trust(&judged(&metrics)).unwrap().doubts, Vec::<String>::new());
        let shared = Judged { others: 2, drift: Some(0.8), events_lost: 3, ..judged(&metrics) };
        assert_eq!(trust(&shared).unwrap().score, 2);
        let perturbed = trust(&Judged { perturbed: Some("ncu"), ..judged(&metrics) }).unwrap();
        assert_eq!(perturbed.score, 0);
        assert_eq!(perturbed.doubts, ["it ran under ncu: its latencies are not to be compared"]);
    }
}
