//! What limits this run, in a sentence.

use super::metrics::Metrics;
use crate::base::units::{millis, percent, scaled, three_digits};

/// What the sentence is drawn from. Everything in it was measured, but for the bytes of a step.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub metrics: &'a Metrics,
    pub batch: u32,
    /// Bytes a decode step has to read, from the model's shape.
    pub step_bytes: Option<u64>,
    /// Share of the machine's CPU that other processes took meanwhile, where the workload runs on the CPU.
    pub cpu_taken_by_others: Option<f32>,
    pub simulated: bool,
}

/// Less than this of the CPU is what any system takes for itself.
const WORTH_A_WORD: f32 = 0.1;

/// Tells where the time goes and whether tokens come evenly. Silent until something was measured.
pub fn sentence(evidence: &Evidence<'_>) -> Option<String> {
    let m = evidence.metrics;
    let decode_tok_s = m.decode_tok_s()?;
    let mut words = format!("Decode runs at {} tok/s", three_digits(decode_tok_s));
    if let Some(step_bytes) = evidence.step_bytes {
        let bytes_s = step_bytes as f64 * decode_tok_s / f64::from(evidence.batch);
        words += &format!(
            ", reading about {} of weights and cache (estimated from the model's shape)",
            scaled(bytes_s, "B/s")
        );
    }
    words += ". ";
    let (prefill, decode) = (m.ttft.sum_secs(), m.itl.sum_secs());
    let share = 100.0 * decode / (prefill + decode);
    let share = if share > 99.0 { "More than 99 %".to_owned() } else { percent(share) };
    words += &format!("{share} of the measured time is decode. ");
    words += &evenness(m);
    if let Some(share) = m.device_share() {
        let idle = (100.0 * (1.0 - share)).max(0.0);
        words +=
            &format!(" Between decode steps the GPU idles {} of the time, by its own clock.", percent(idle));
    }
    if let Some(taken) = evidence.cpu_taken_by_others.filter(|taken| *taken >= WORTH_A_WORD) {
        words += &format!(
            " Other processes took {} of the CPU meanwhile: these numbers are those of a shared machine.",
            percent(100.0 * taken)
        );
    }
    if evidence.simulated {
        words += " Simulated: none of this was measured.";
    }
    Some(words)
}

fn evenness(m: &Metrics) -> String {
    let (Some(p50), Some(p99)) = (m.itl.percentile_ms(50.0), m.itl.percentile_ms(99.0)) else {
        return format!("Too few tokens (n={}) to say how evenly they come.", m.itl.n());
    };
    let ratio = p99 / p50;
    match ratio {
        r if r < 1.25 => format!("Tokens come evenly: ITL p99 is {} × p50.", three_digits(r)),
        r if r < 2.0 => format!("Tokens come a little unevenly: ITL p99 is {} × p50.", three_digits(r)),
        r => format!(
            "Tokens come unevenly: ITL p99 {} is {} × p50 {}.",
            millis(p99),
            three_digits(r),
            millis(p50)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(m: &Metrics) -> Evidence<'_> {
        Evidence {
            metrics: m,
            batch: 1,
            step_bytes: Some(538_000_000),
            cpu_taken_by_others: None,
            simulated: false,
        }
    }

    #[test]
    fn says_nothing_before_a_token_and_what_it_knows_after() {
        let mut m = Metrics::default();
        assert_eq!(sentence(&evidence(&m)), None);
        m.first_token(100_000_000, 128, 1);
        m.next_token(50_000_000, 1);
        let early = sentence(&evidence(&m)).unwrap();
        assert!(
            early.contains("20.0 tok/s") && early.contains("10.8 GB/s") && early.contains("Too few"),
            "{early}"
        );
        (0..200).for_each(|_| m.next_token(50_000_000, 1));
        assert!(sentence(&evidence(&m)).unwrap().contains("evenly"));
        (0..10).for_each(|_| m.next_token(500_000_000, 1));
        assert!(sentence(&evidence(&m)).unwrap().contains("unevenly"));
    }

    #[test]
    fn a_shared_machine_is_called_one() {
        let mut m = Metrics::default();
        m.first_token(100_000_000, 128, 1);
        m.next_token(50_000_000, 1);
        for (taken, said) in [(None, false), (Some(0.04), false), (Some(0.7), true)] {
            let words = sentence(&Evidence { cpu_taken_by_others: taken, ..evidence(&m) }).unwrap();
            assert_eq!(words.contains("70 % of the CPU"), said, "{words}");
        }
    }
}
