//! The bound class of a kernel, and the rule that decided it.

use serde::Serialize;

use llmprof_base::units::{percent, three_digits};
use llmprof_event::kernels::{KernelRow, counters::CounterMeans};

/// The bound class of a kernel with its rule, or the missing counters.
pub fn verdict(kernel: &KernelRow) -> Result<Verdict, String> {
    classify(&kernel.known())
}

/// FLOP/s and bandwidth of a kernel from its counters, if they were recorded.
pub fn achieved(kernel: &KernelRow) -> Achieved {
    Achieved::from_counters(&kernel.known())
}

/// The bound class of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    Memory,
    Compute,
    /// Memory and compute.
    Balanced,
    /// Neither: it waits.
    Latency,
    /// It is too short to fill the GPU.
    Launch,
}

impl Class {
    pub fn word(self) -> &'static str {
        match self {
            Class::Memory => "memory",
            Class::Compute => "compute",
            Class::Balanced => "balanced",
            Class::Latency => "latency",
            Class::Launch => "launch",
        }
    }
}

/// A class and the reason for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    pub class: Class,
    /// The rule with its numbers.
    pub rule: String,
}

/// A unit is busy from this utilisation on; Nsight Compute's rules call it well utilised.
const BUSY_PCT: f64 = 60.0;
/// The utilisation of two units is equal within this difference.
const EVEN_PCT: f64 = 10.0;
/// Launch overhead is a few microseconds.
pub const SHORT_NS: f64 = 5_000.0;
/// With fewer warps, a scheduler cannot hide latency.
const LOW_OCCUPANCY_PCT: f64 = 25.0;

/// The class by utilisation of memory and compute in percent, and the rule that decided it.
pub(super) fn class_of(memory: f64, compute: f64, duration_ns: Option<f64>) -> (Class, String) {
    let idle = memory.max(compute) < BUSY_PCT;
    match duration_ns.filter(|ns| *ns < SHORT_NS) {
        Some(ns) if idle => (
            Class::Launch,
            format!(
                "both under {BUSY_PCT} %, and only {} µs long: launch overhead is about the same",
                three_digits(ns / 1e3)
            ),
        ),
        _ if idle => (Class::Latency, format!("both under {BUSY_PCT} %")),
        _ if memory.min(compute) >= BUSY_PCT && (memory - compute).abs() <= EVEN_PCT => {
            (Class::Balanced, format!("both at {BUSY_PCT} % or more, within {EVEN_PCT} of each other"))
        }
        _ if memory > compute => (Class::Memory, format!("at {BUSY_PCT} % or more, and above compute")),
        _ => (Class::Compute, format!("at {BUSY_PCT} % or more, and above memory")),
    }
}

/// The class by counters, or the missing counters.
pub fn classify(known: &CounterMeans) -> Result<Verdict, String> {
    let (Some(dram), Some(sm)) = (known.dram_pct, known.sm_pct) else {
        return Err(missing(known));
    };
    // Caches are memory too: they may be the bottleneck while DRAM is idle.
    let memory = known.memory_pct.map_or(dram, |busiest| busiest.max(dram));
    let unit = if memory > dram { "the memory hierarchy" } else { "DRAM" };
    let (class, mut rule) = class_of(memory, sm, known.duration_ns);
    if class == Class::Latency {
        rule += &latency_details(known);
    }
    let numbers = format!("{unit} {}, SM {} of peak", percent(memory), percent(sm));
    Ok(Verdict { class, rule: format!("{numbers}: {rule}") })
}

/// Why neither memory nor SMs are busy.
fn latency_details(known: &CounterMeans) -> String {
    let mut details = Vec::new();
    if let Some(waves) = known.waves_per_sm.filter(|waves| *waves < 1.0) {
        details.push(format!("its grid fills {} of the GPU", percent(waves * 100.0)));
    }
    if let Some(occupancy) = known.occupancy_pct.filter(|pct| *pct < LOW_OCCUPANCY_PCT) {
        details.push(format!("{} occupancy", percent(occupancy)));
    }
    if let Some((reason, _)) = known.stalls.first() {
        details.push(format!("main stall: {reason}"));
    }
    if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) }
}

fn missing(known: &CounterMeans) -> String {
    let mut missing = Vec::new();
    if known.dram_pct.is_none() {
        missing.push("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed");
    }
    if known.sm_pct.is_none() {
        missing.push("sm__throughput.avg.pct_of_peak_sustained_elapsed");
    }
    format!("not counted: {}", missing.join(", "))
}

/// Rates and intensity of an average launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Achieved {
    pub flop_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// Arithmetic intensity: operations per byte of DRAM.
    pub flop_per_byte: Option<f64>,
}

impl Achieved {
    pub fn from_counters(known: &CounterMeans) -> Achieved {
        let seconds = known.duration_ns.filter(|ns| *ns > 0.0).map(|ns| ns * 1e-9);
        let flops = known.flops.as_ref().map(|flops| flops.total);
        let over = |amount: Option<f64>| Some(amount? / seconds?);
        let bytes_per_s = over(known.dram_bytes).or(known.dram_bytes_per_s);
        let bytes = known.dram_bytes.or_else(|| Some(known.dram_bytes_per_s? * seconds?));
        Achieved {
            flop_per_s: over(flops),
            bytes_per_s,
            flop_per_byte: flops.zip(bytes.filter(|bytes| *bytes > 0.0)).map(|(flops, bytes)| flops / bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::kernels::counters::Flops;

    fn known(dram: f64, sm: f64, us: f64) -> CounterMeans {
        CounterMeans {
            dram_pct: Some(dram),
            sm_pct: Some(sm),
            duration_ns: Some(us * 1e3),
            ..CounterMeans::default()
        }
    }

    #[test]
    fn kernels_are_classified_by_rule() {
        for (dram, sm, us, wanted) in [
            (87.0, 30.0, 70.0, Class::Memory),
            (17.0, 93.0, 900.0, Class::Compute),
            (75.0, 70.0, 900.0, Class::Balanced),
            (95.0, 70.0, 900.0, Class::Memory),
            (3.0, 10.0, 2.4, Class::Launch),
            (3.0, 10.0, 20.0, Class::Latency),
            (87.0, 30.0, 3.0, Class::Memory),
            (59.9, 59.9, 5.0, Class::Latency),
        ] {
            let verdict = classify(&known(dram, sm, us)).unwrap();
            assert_eq!(verdict.class, wanted, "{dram} {sm} {us}: {}", verdict.rule);
            assert!(verdict.rule.contains("DRAM") && verdict.rule.contains("60 %"), "{}", verdict.rule);
        }
    }

    #[test]
    fn the_rule_explains_low_utilisation() {
        let idle = CounterMeans {
            waves_per_sm: Some(0.03),
            occupancy_pct: Some(1.56),
            stalls: vec![("long scoreboard".to_owned(), 9.0)],
            ..known(0.25, 0.49, 19.7)
        };
        let rule = classify(&idle).unwrap().rule;
        for words in ["3.0 % of the GPU", "1.6 % occupancy", "long scoreboard"] {
            assert!(rule.contains(words), "{rule}");
        }
        let cached = CounterMeans { memory_pct: Some(85.0), ..known(20.0, 30.0, 50.0) };
        let verdict = classify(&cached).unwrap();
        assert_eq!(verdict.class, Class::Memory);
        assert!(verdict.rule.contains("memory hierarchy 85 %"), "{}", verdict.rule);
    }

    #[test]
    fn missing_counters_are_named() {
        let no_sm = CounterMeans { sm_pct: None, ..known(80.0, 0.0, 9.0) };
        let why = classify(&no_sm).unwrap_err();
        assert!(why.contains("sm__throughput") && !why.contains("dram"), "{why}");
    }

    #[test]
    fn rates_where_the_counters_allow() {
        let flops = Flops { total: 4e9, tensor: None, counted: String::new() };
        let all = CounterMeans { dram_bytes: Some(2e9), flops: Some(flops), ..known(50.0, 50.0, 1000.0) };
        let achieved = Achieved::from_counters(&all);
        assert_eq!(achieved.flop_per_byte, Some(2.0));
        assert!((achieved.flop_per_s.unwrap() / 4e12 - 1.0).abs() < 1e-12);
        assert_eq!(Achieved::from_counters(&CounterMeans::default()), Achieved::default());
    }
}
