//! The summary of a run in a few sentences.

use super::metrics::Metrics;
use crate::base::units::{millis, percent, scaled, three_digits};

/// The input of the summary. Everything is measured, except for the bytes of a step.
#[derive(Debug, Clone, Copy)]
pub struct Measurements<'a> {
    pub metrics: &'a Metrics,
    pub batch: u32,
    /// Bytes that a decode step reads, from the model's shape.
    pub step_bytes: Option<u64>,
    /// Share of the CPU that other processes used, where the workload runs on the CPU.
    pub cpu_taken_by_others: Option<f32>,
    pub simulated: bool,
}

/// Any system uses a smaller share of the CPU itself.
const MIN_EXTERNAL_LOAD: f32 = 0.1;

/// Where the time goes, and how much the latency varies; `None` before the first measurement.
pub fn summary(run: &Measurements<'_>) -> Option<String> {
    let m = run.metrics;
    let decode_tok_s = m.decode_tok_s()?;
    let mut text = format!("Decode runs at {} tok/s", three_digits(decode_tok_s));
    if let Some(step_bytes) = run.step_bytes {
        let bytes_s = step_bytes as f64 * decode_tok_s / f64::from(run.batch);
        text += &format!(
            ", reading about {} of weights and cache (estimated from the model's shape)",
            scaled(bytes_s, "B/s")
        );
    }
    text += ". ";
    let (prefill, decode) = (m.ttft.sum_secs(), m.itl.sum_secs());
    let share = 100.0 * decode / (prefill + decode);
    let share = if share > 99.0 { "More than 99 %".to_owned() } else { percent(share) };
    text += &format!("{share} of the measured time is decode. ");
    text += &variation(m);
    if let Some(share) = m.device_share() {
        let idle = (100.0 * (1.0 - share)).max(0.0);
        text += &format!(
            " The GPU is idle between decode steps {} of the time, by its own clock.",
            percent(idle)
        );
    }
    if let Some(taken) = run.cpu_taken_by_others.filter(|taken| *taken >= MIN_EXTERNAL_LOAD) {
        text += &format!(
            " External load: other processes used {} of the CPU during the run.",
            percent(100.0 * taken)
        );
    }
    if run.simulated {
        text += " Simulated: none of this was measured.";
    }
    Some(text)
}

fn variation(m: &Metrics) -> String {
    let (Some(p50), Some(p99)) = (m.itl.percentile_ms(50.0), m.itl.percentile_ms(99.0)) else {
        return format!("Too few tokens (n={}) for ITL p99.", m.itl.n());
    };
    let ratio = p99 / p50;
    match ratio {
        r if r < 1.25 => format!("Token latency is stable: ITL p99 is {} × p50.", three_digits(r)),
        r if r < 2.0 => format!("Token latency varies a little: ITL p99 is {} × p50.", three_digits(r)),
        r => format!(
            "Token latency varies: ITL p99 {} is {} × p50 {}.",
            millis(p99),
            three_digits(r),
            millis(p50)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(m: &Metrics) -> Measurements<'_> {
        Measurements {
            metrics: m,
            batch: 1,
            step_bytes: Some(538_000_000),
            cpu_taken_by_others: None,
            simulated: false,
        }
    }

    #[test]
    fn the_summary_begins_with_the_first_decode_token() {
        let mut m = Metrics::default();
        assert_eq!(summary(&run(&m)), None);
        m.first_token(100_000_000, 128, 1);
        m.next_token(50_000_000, 1);
        let early = summary(&run(&m)).unwrap();
        assert!(
            early.contains("20.0 tok/s") && early.contains("10.8 GB/s") && early.contains("Too few"),
            "{early}"
        );
        (0..200).for_each(|_| m.next_token(50_000_000, 1));
        assert!(summary(&run(&m)).unwrap().contains("latency is stable"));
        (0..10).for_each(|_| m.next_token(500_000_000, 1));
        assert!(summary(&run(&m)).unwrap().contains("latency varies: "));
    }

    #[test]
    fn external_load_is_reported() {
        let mut m = Metrics::default();
        m.first_token(100_000_000, 128, 1);
        m.next_token(50_000_000, 1);
        for (taken, reported) in [(None, false), (Some(0.04), false), (Some(0.7), true)] {
            let text = summary(&Measurements { cpu_taken_by_others: taken, ..run(&m) }).unwrap();
            assert_eq!(text.contains("70 % of the CPU"), reported, "{text}");
        }
    }
}
