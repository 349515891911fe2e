//! The summary of a run in a few sentences.

use super::{gpu_idle::GpuIdle, metrics::Metrics, recording_cost::RecordingCost, trust::Evenness};
use llmprof_base::units::{grouped, millis, percent, percent_change, scaled, three_digits};

/// The input of the summary. Everything is measured, except the bytes of a step.
#[derive(Debug, Clone, Copy)]
pub struct Measurements<'a> {
    pub metrics: &'a Metrics,
    /// Whether TPOT is even between requests; `None` for fewer than two.
    pub tpot: Option<Evenness>,
    pub idle: Option<GpuIdle>,
    /// The measurements that `metrics` leaves out because kernels were recorded.
    pub recorded: Option<&'a Metrics>,
    pub recording_cost: Option<RecordingCost>,
    pub batch: u32,
    /// Tokens of a sequence in a decode step: more than one only with draft tokens.
    pub tokens_per_step: Option<f64>,
    /// Bytes that a decode step reads, from the model's shape.
    pub step_bytes: Option<u64>,
    /// Share of the CPU that other processes used, if the workload runs on the CPU.
    pub cpu_taken_by_others: Option<f32>,
    pub simulated: bool,
    /// Whether the steps are those of another program, and therefore inferred.
    pub inferred: bool,
}

/// The system itself uses a smaller share of the CPU.
const MIN_EXTERNAL_LOAD: f32 = 0.1;

/// The distribution of time, and the variation of latencies; `None` before the first measurement.
pub fn summary(run: &Measurements<'_>) -> Option<String> {
    let m = run.metrics;
    let decode_tok_s = m.decode_tok_s()?;
    let mut text = match run.inferred {
        // The number of sequences per step is not known.
        true => {
            format!("By its inferred steps the program decodes at {} steps/s", three_digits(decode_tok_s))
        }
        false => format!("Decode runs at {} tok/s", three_digits(decode_tok_s)),
    };
    if let Some(tokens) = run.tokens_per_step {
        text += &format!(" with {} tokens per step", three_digits(tokens));
    }
    if let Some(step_bytes) = run.step_bytes {
        let tokens = f64::from(run.batch) * run.tokens_per_step.unwrap_or(1.0);
        let bytes_s = step_bytes as f64 * decode_tok_s / tokens;
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
    text += &variation(run);
    text += &recording(run).map_or_else(String::new, |sentence| format!(" {sentence}"));
    text += &run.idle.map_or_else(String::new, |idle| format!(" {idle}"));
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

/// The variation of TPOT between requests, and of ITL between tokens.
fn variation(run: &Measurements<'_>) -> String {
    let itl = &run.metrics.itl;
    let name = if run.tokens_per_step.is_some() { "Step" } else { "ITL" };
    let tokens = match (itl.percentile_ms(50.0), itl.percentile_ms(99.0)) {
        (Some(p50), Some(p99)) => {
            format!("{name} p99 {} is {} × p50 {}.", millis(p99), three_digits(p99 / p50), millis(p50))
        }
        _ => format!("Too few tokens (n={}) for {name} p99.", itl.n()),
    };
    run.tpot.map_or_else(String::new, |evenness| format!("{evenness}. ")) + &tokens
}

/// The time that is left out because kernels were recorded, and the overhead of recording.
fn recording(run: &Measurements<'_>) -> Option<String> {
    let recorded = run.recorded?;
    let mut text = format!(
        "Latencies leave out {} while kernels were recorded",
        match (recorded.output_tokens as f64
            / f64::from(run.batch.max(1))
            / run.tokens_per_step.unwrap_or(1.0))
        .round() as u64
        {
            1 => "1 step".to_owned(),
            steps => format!("{} steps", grouped(steps as i64)),
        }
    );
    if let (Some(without), Some(with)) = (run.metrics.itl.mean_ms(), recorded.itl.mean_ms()) {
        let name = if run.tokens_per_step.is_some() { "step" } else { "ITL" };
        text += &format!(": mean {name} {} without, {} with", millis(without), millis(with));
    }
    if let Some(cost) = run.recording_cost.filter(|cost| cost.cost_pct > 0.0) {
        text += &format!("; recording costs {} of a step", percent_change(cost.cost_pct));
    }
    Some(text + ".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::{Conditions, TrustInput, evenness, trust};

    fn run(m: &Metrics) -> Measurements<'_> {
        Measurements {
            metrics: m,
            tpot: None,
            idle: None,
            recorded: None,
            recording_cost: None,
            batch: 1,
            tokens_per_step: None,
            step_bytes: Some(538_000_000),
            cpu_taken_by_others: None,
            simulated: false,
            inferred: false,
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
        assert!(summary(&run(&m)).unwrap().contains("ITL p99 50.0 ms is 1.00 × p50 50.0 ms"));
        (0..10).for_each(|_| m.next_token(500_000_000, 1));
        assert!(summary(&run(&m)).unwrap().contains("ITL p99 500 ms is 10.0 × p50 50.0 ms"));
    }

    #[test]
    fn variation_is_described_as_in_trust() {
        let mut m = Metrics::default();
        m.first_token(100_000_000, 128, 1);
        (0..200).for_each(|_| m.next_token(50_000_000, 1));
        for (tpots, word) in
            [([1.0, 1.01, 0.99], "even"), ([1.0, 1.1, 0.9], "uneven"), ([1.0, 2.0, 0.5], "unstable")]
        {
            let text = summary(&Measurements { tpot: evenness(&tpots), ..run(&m) }).unwrap();
            assert!(text.contains(&format!("TPOT is {word}: ")), "{text}");
            let conditions = Conditions::default();
            let judged = trust(&TrustInput {
                conditions,
                tool: None,
                outcome: None,
                tpots_ns: &tpots,
                interleaved: false,
            });
            let issue =
                judged.issues.iter().map(ToString::to_string).find(|issue| issue.starts_with("TPOT is"));
            match issue {
                Some(issue) => assert!(text.contains(&issue), "{text} {issue}"),
                None => assert_eq!(word, "even"),
            }
        }
    }

    #[test]
    fn excluded_recorded_spans_are_reported() {
        let (mut without, mut with) = (Metrics::default(), Metrics::default());
        without.first_token(100_000_000, 128, 1);
        (0..200).for_each(|_| without.next_token(800_000, 1));
        (0..100).for_each(|_| with.next_token(1_100_000, 1));
        let text = summary(&Measurements { recorded: Some(&with), ..run(&without) }).unwrap();
        assert!(
            text.contains(
                "leave out 100 steps while kernels were recorded: mean ITL 0.800 ms without, 1.10 ms with."
            ),
            "{text}"
        );
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
