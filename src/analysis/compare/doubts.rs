//! Why a run is not to be believed when it is held against another.

use super::sample::Sample;
use crate::base::units::{percent, percent_change};
use crate::event::Outcome;

/// The first third and the last of a run further apart than this, and than chance makes them, are no one speed.
const DRIFT: f64 = 0.03;
/// So many standard errors are no chance.
const NO_CHANCE: f64 = 3.0;
/// A greater spread of TPOT is no one speed either.
const WILDEST_CV: f64 = 0.25;
/// More of the CPU in other hands changes what is measured.
const OTHERS: f32 = 0.2;

/// What speaks against a run's times, in words; empty where nothing does. Runs done `in_turn` may drift: it is in neither's
/// favour.
pub fn doubts(sample: &Sample, in_turn: bool) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(tool) = &sample.facts.run.perturbed {
        doubts.push(format!("it ran under {tool}, which changes every time"));
    }
    if sample.facts.outcome == Some(Outcome::Failed) {
        doubts.push("the run failed".to_owned());
    }
    let tpots = sample.tpots_ns();
    if let Some(drift) = drift(&tpots).filter(|_| !in_turn) {
        doubts.push(format!(
            "it drifts: TPOT of its last third is {} off that of its first; more runtime.warmup, or runtime.until=steady",
            percent_change(100.0 * drift)
        ));
    }
    if let Some(cv) = variation(&tpots).filter(|cv| *cv > WILDEST_CV) {
        doubts.push(format!("TPOT is no one value: its coefficient of variation is {}", percent(100.0 * cv)));
    }
    match sample.others {
        0 => {}
        1 => doubts.push("another process was on the card".to_owned()),
        n => doubts.push(format!("{n} other processes were on the card")),
    }
    if let Some(taken) = sample.cpu_taken.filter(|taken| *taken > OTHERS) {
        doubts.push(format!("other processes took {} of the CPU", percent(100.0 * taken)));
    }
    if sample.events_lost > 0 {
        doubts.push(format!("{} events were lost", sample.events_lost));
    }
    doubts
}

/// What is worth knowing of a run that can be believed.
pub fn remarks(sample: &Sample) -> Vec<String> {
    let mut remarks = Vec::new();
    match sample.facts.outcome {
        None => remarks.push("it has no end: it is still being written, or was killed".to_owned()),
        Some(Outcome::Interrupted) => remarks.push("it was interrupted".to_owned()),
        _ => {}
    }
    if sample.facts.run.simulated {
        remarks.push("simulated: none of this was measured".to_owned());
    }
    if (sample.requests.len() as u64) < sample.measured {
        remarks.push(format!("{} of its requests were kept", sample.requests.len()));
    }
    remarks
}

/// The coefficient of variation.
pub fn variation(values: &[f64]) -> Option<f64> {
    let (mean, variance) = moments(values)?;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

fn moments(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    Some((mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0)))
}

/// By how much the last third differs from the first, where that is more than chance and more than little.
fn drift(values: &[f64]) -> Option<f64> {
    let third = values.len() / 3;
    if third < 3 {
        return None;
    }
    let ((first, spread), (last, spread_last)) =
        (moments(&values[..third])?, moments(&values[values.len() - third..])?);
    let error = ((spread + spread_last) / third as f64).sqrt();
    let by = last / first - 1.0;
    (by.abs() > DRIFT && (last - first).abs() > NO_CHANCE * error).then_some(by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::noise;

    #[test]
    fn noise_is_no_drift_and_warming_up_is() {
        let steady = |seed| (0..30).map(|i| 10.0 + 0.3 * noise::bell(seed, i)).collect::<Vec<f64>>();
        let alarms = (0..500).filter(|seed| drift(&steady(*seed)).is_some()).count();
        assert!(alarms < 5, "{alarms} of 500");
        let warming: Vec<f64> =
            steady(1).iter().enumerate().map(|(i, v)| v * (1.2 - 0.2 * i as f64 / 30.0)).collect();
        assert!(drift(&warming).unwrap() < -0.05);
        assert_eq!(drift(&[1.0, 2.0, 3.0]), None);
        assert!(variation(&[1.0]).is_none() && variation(&[2.0, 2.0]) == Some(0.0));
    }
}
