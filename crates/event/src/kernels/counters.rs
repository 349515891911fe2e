//! Counters of a kernel under the tool's names, and the meaning of the known ones.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

/// One counter over some launches.
///
/// Amounts (bytes, instructions) are averaged over launches. Rates (percents, ratios, anything "per") are weighted by the
/// duration of each launch: a short launch shows little about a rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// Launches with a value.
    pub n: u64,
    pub min: f64,
    pub max: f64,
    weight: f64,
    weighted: f64,
}

impl Counter {
    pub const NONE: Counter =
        Counter { n: 0, min: f64::INFINITY, max: f64::NEG_INFINITY, weight: 0.0, weighted: 0.0 };

    #[inline]
    pub fn add(&mut self, value: f64, weight: f64) {
        self.n += 1;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.weight += weight;
        self.weighted += weight * value;
    }

    pub fn merge(&mut self, other: &Counter) {
        self.n += other.n;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.weight += other.weight;
        self.weighted += other.weighted;
    }

    /// The mean; `None` if nothing was counted.
    pub fn mean(&self) -> Option<f64> {
        let mean = self.weighted / self.weight;
        (self.n > 0 && mean.is_finite()).then_some(mean)
    }
}

/// Whether a counter is averaged by time.
pub fn is_rate(name: &str, base_unit: &str) -> bool {
    base_unit == "%"
        || base_unit.contains('/')
        || base_unit == "Hz"
        || name.ends_with(".pct")
        || name.ends_with(".ratio")
}

/// The counters of a row by name, each with its base unit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Recorded", into = "Recorded")]
pub struct Counters(BTreeMap<Arc<str>, (Arc<str>, Counter)>);

/// Counters in a recording.
type Recorded = BTreeMap<String, (String, Counter)>;

impl From<Recorded> for Counters {
    fn from(recorded: Recorded) -> Counters {
        let shared = |(name, (unit, counter)): (String, (String, Counter))| {
            (Arc::from(name), (Arc::from(unit), counter))
        };
        Counters(recorded.into_iter().map(shared).collect())
    }
}

impl From<Counters> for Recorded {
    fn from(counters: Counters) -> Recorded {
        counters.iter().map(|(name, unit, counter)| (name.to_owned(), (unit.to_owned(), *counter))).collect()
    }
}

impl Counters {
    /// Adds the counter of another row or launch.
    pub fn merge(&mut self, name: &Arc<str>, unit: &Arc<str>, counter: &Counter) {
        if counter.n == 0 {
            return;
        }
        match self.0.get_mut(name) {
            Some((_, known)) => known.merge(counter),
            None => {
                self.0.insert(Arc::clone(name), (Arc::clone(unit), *counter));
            }
        }
    }

    pub fn merge_all(&mut self, other: &Counters) {
        for (name, (unit, counter)) in &other.0 {
            self.merge(name, unit, counter);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Names, base units and counters, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Counter)> {
        self.0.iter().map(|(name, (unit, counter))| (&**name, &**unit, counter))
    }

    pub fn get(&self, name: &str) -> Option<&Counter> {
        self.0.get(name).map(|(_, counter)| counter)
    }

    /// The mean of a counter in its base unit.
    pub fn mean(&self, name: &str) -> Option<f64> {
        self.get(name)?.mean()
    }

    fn first(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| self.mean(name))
    }

    fn sum_of(&self, names: &[&str]) -> Option<f64> {
        let mut found = names.iter().filter_map(|name| self.mean(name)).peekable();
        found.peek()?;
        Some(found.sum())
    }
}

/// The requested metrics that no kernel has: ncu silently drops what it does not know.
///
/// A metric without a rollup (`dram__bytes`) is present if any of its rollups is.
pub fn missing_metrics<'a>(requested: &[&'a str], got: &Counters) -> Vec<&'a str> {
    let has = |metric: &str| {
        got.iter().any(|(name, _, _)| {
            name.strip_prefix(metric).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    requested.iter().copied().filter(|metric| !has(metric)).collect()
}

/// The known counters of an average launch. Counters that were not collected are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CounterMeans {
    pub duration_ns: Option<f64>,
    /// Percent of the peak as the tool reports it; some exceed 100.
    pub sm_pct: Option<f64>,
    pub dram_pct: Option<f64>,
    /// The busiest level of the memory hierarchy, DRAM or caches.
    pub memory_pct: Option<f64>,
    pub tensor_pct: Option<f64>,
    pub dram_bytes: Option<f64>,
    pub dram_bytes_per_s: Option<f64>,
    pub l1_hit_pct: Option<f64>,
    pub l2_hit_pct: Option<f64>,
    pub occupancy_pct: Option<f64>,
    pub occupancy_limit_pct: Option<f64>,
    /// The limits of blocks per SM, and their number; several if they limit alike.
    pub block_limit: Option<(Vec<&'static str>, f64)>,
    pub waves_per_sm: Option<f64>,
    pub registers: Option<f64>,
    pub shared_bytes: Option<f64>,
    /// Floating-point operations, if they were counted.
    pub flops: Option<Flops>,
    /// Stall reasons of warps in descending order, as warps (or cycles) per issued instruction.
    pub stalls: Vec<(String, f64)>,
}

/// Floating-point operations of a launch, and the instructions they were counted from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Flops {
    pub total: f64,
    pub tensor: Option<f64>,
    /// Which instructions were counted; others are not in the total.
    pub counted: String,
}

impl CounterMeans {
    pub fn from_counters(counters: &Counters) -> CounterMeans {
        let dram_bytes = counters.first(&["dram__bytes.sum"]).or_else(|| {
            let two = |read: &str, write: &str| counters.sum_of(&[read, write]);
            two("dram__bytes_read.sum", "dram__bytes_write.sum")
                .or_else(|| two("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"))
        });
        CounterMeans {
            duration_ns: counters.first(DURATION),
            sm_pct: counters.first(&[
                "sm__throughput.avg.pct_of_peak_sustained_elapsed",
                "GPU Speed Of Light Throughput: Compute (SM) Throughput",
                "GPU Speed Of Light: Compute (SM) [%]",
                "GPU Speed Of Light: SOL SM",
                "GPU Speed Of Light: SM [%]",
            ]),
            dram_pct: counters.first(&[
                "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
                "dram__throughput.avg.pct_of_peak_sustained_elapsed",
                "GPU Speed Of Light Throughput: DRAM Throughput",
                "GPU Speed Of Light: DRAM Throughput",
                "GPU Speed Of Light: SOL DRAM",
            ]),
            memory_pct: counters.first(&[
                "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
                "GPU Speed Of Light Throughput: Memory Throughput",
                "GPU Speed Of Light: Memory [%]",
                "GPU Speed Of Light: SOL Memory",
            ]),
            tensor_pct: counters.first(&[
                "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
                "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
                "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
            ]),
            dram_bytes,
            dram_bytes_per_s: counters
                .first(&["dram__bytes.sum.per_second", "Memory Workload Analysis: Memory Throughput"]),
            l1_hit_pct: counters
                .first(&["l1tex__t_sector_hit_rate.pct", "Memory Workload Analysis: L1/TEX Hit Rate"]),
            l2_hit_pct: counters
                .first(&["lts__t_sector_hit_rate.pct", "Memory Workload Analysis: L2 Hit Rate"]),
            occupancy_pct: counters.first(&[
                "sm__warps_active.avg.pct_of_peak_sustained_active",
                "Occupancy: Achieved Occupancy",
            ]),
            occupancy_limit_pct: counters
                .first(&["sm__maximum_warps_per_active_cycle_pct", "Occupancy: Theoretical Occupancy"]),
            block_limit: block_limit(counters),
            waves_per_sm: counters
                .first(&["launch__waves_per_multiprocessor", "Launch Statistics: Waves Per SM"]),
            registers: counters
                .first(&["launch__registers_per_thread", "Launch Statistics: Registers Per Thread"]),
            // The kernel's own shared memory, without the part that the driver reserves per block.
            shared_bytes: counters
                .sum_of(&["launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic"])
                .or_else(|| {
                    counters.sum_of(&[
                        "Launch Statistics: Static Shared Memory Per Block",
                        "Launch Statistics: Dynamic Shared Memory Per Block",
                    ])
                }),
            flops: flops(counters),
            stalls: stalls(counters),
        }
    }
}

fn block_limit(counters: &Counters) -> Option<(Vec<&'static str>, f64)> {
    const LIMITS: [(&str, &[&str]); 5] = [
        ("registers", &["launch__occupancy_limit_registers", "Occupancy: Block Limit Registers"]),
        ("shared memory", &["launch__occupancy_limit_shared_mem", "Occupancy: Block Limit Shared Mem"]),
        ("warps", &["launch__occupancy_limit_warps", "Occupancy: Block Limit Warps"]),
        ("barriers", &["launch__occupancy_limit_barriers", "Occupancy: Block Limit Barriers"]),
        ("blocks", &["launch__occupancy_limit_blocks", "Occupancy: Block Limit SM"]),
    ];
    let known: Vec<(&str, f64)> =
        LIMITS.iter().filter_map(|(what, names)| Some((*what, counters.first(names)?))).collect();
    let least = known.iter().map(|(_, blocks)| *blocks).min_by(f64::total_cmp)?;
    Some((known.iter().filter(|(_, blocks)| *blocks == least).map(|(what, _)| *what).collect(), least))
}

/// Names of the duration of a launch.
pub const DURATION: &[&str] = &[
    "gpu__time_duration.sum",
    "gpu__time_duration.avg",
    "gpu__time_duration.max",
    "GPU Speed Of Light Throughput: Duration",
    "GPU Speed Of Light: Duration",
];

/// Scalar instructions with the number of operations of each.
const SCALAR: [(&str, &[(&str, f64)]); 3] = [
    ("FP32", &[("fadd", 1.0), ("fmul", 1.0), ("ffma", 2.0)]),
    ("FP16", &[("hadd", 1.0), ("hmul", 1.0), ("hfma", 2.0)]),
    ("FP64", &[("dadd", 1.0), ("dmul", 1.0), ("dfma", 2.0)]),
];

fn flops(counters: &Counters) -> Option<Flops> {
    let mut counted = Vec::new();
    let mut total = 0.0;
    for (what, instructions) in SCALAR {
        let found: Vec<(&str, f64)> = instructions
            .iter()
            .filter_map(|(op, each)| {
                let name = |of| format!("{of}__sass_thread_inst_executed_op_{op}_pred_on.sum");
                let n = counters.mean(&name("smsp")).or_else(|| counters.mean(&name("sm")))?;
                Some((*op, n * each))
            })
            .collect();
        total += found.iter().map(|(_, flops)| flops).sum::<f64>();
        match found.len() {
            0 => {}
            3 => counted.push(what.to_owned()),
            _ => counted.push(format!(
                "{what} ({} only)",
                found.iter().map(|(op, _)| *op).collect::<Vec<_>>().join(", ")
            )),
        }
    }
    // One counter per pair of types; they do not overlap.
    let paths: Vec<f64> = counters
        .iter()
        .filter(|(name, ..)| {
            name.starts_with("sm__ops_path_tensor_src_")
                && name.ends_with(".sum")
                && !name.contains("sparsity_on")
        })
        .filter_map(|(_, _, counter)| counter.mean())
        .collect();
    let tensor = (!paths.is_empty()).then(|| paths.iter().sum::<f64>());
    if let Some(tensor) = tensor {
        total += tensor;
        counted.push("tensor cores".to_owned());
    }
    (!counted.is_empty()).then(|| Flops { total, tensor, counted: counted.join(", ") })
}

fn stalls(counters: &Counters) -> Vec<(String, f64)> {
    let reason = |name: &str| {
        let name = name.strip_prefix("smsp__average_warps_issue_stalled_").or_else(|| {
            name.strip_prefix("smsp__average_warp_latency_issue_stalled_")
                .or_else(|| name.strip_prefix("smsp__warp_issue_stalled_"))
        })?;
        let end = ["_per_issue_active.ratio", "_per_warp_active.pct", ".ratio"]
            .iter()
            .find_map(|end| name.strip_suffix(end))?;
        Some(end.replace('_', " "))
    };
    let mut found: Vec<(String, f64)> = counters
        .iter()
        .filter_map(|(name, _, counter)| Some((reason(name)?, counter.mean()?)))
        .filter(|(_, value)| *value > 0.0)
        .collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, a unit, and values with their weights.
    type Given<'g> = (&'g str, &'g str, &'g [(f64, f64)]);

    fn counters(of: &[Given]) -> Counters {
        let mut all = Counters::default();
        for (name, unit, values) in of {
            let mut counter = Counter::NONE;
            values.iter().for_each(|(value, weight)| counter.add(*value, *weight));
            all.merge(&Arc::from(*name), &Arc::from(*unit), &counter);
        }
        all
    }

    #[test]
    fn rates_are_weighted_by_time_and_amounts_by_launch() {
        let all = counters(&[("x.pct", "%", &[(80.0, 99.0), (0.0, 1.0)])]);
        assert_eq!(all.mean("x.pct"), Some(79.2));
        assert_eq!(Counter::NONE.mean(), None);
        assert!(is_rate("a.pct", "%") && is_rate("r", "byte/s") && !is_rate("dram__bytes.sum", "byte"));
    }

    #[test]
    fn uncounted_metrics_are_none() {
        let known = CounterMeans::from_counters(&Counters::default());
        assert_eq!(known, CounterMeans::default());
        let read_only = counters(&[("dram__bytes_read.sum", "byte", &[(5.0, 1.0)])]);
        assert_eq!(CounterMeans::from_counters(&read_only).dram_bytes, Some(5.0));
    }

    #[test]
    fn operations_name_the_instructions_they_were_counted_from() {
        let one: &[(f64, f64)] = &[(10.0, 1.0)];
        let all = counters(&[
            ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", one),
            ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst", one),
            ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", one),
            ("sm__sass_thread_inst_executed_op_dfma_pred_on.sum", "inst", one),
            ("sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", &[(1000.0, 1.0)]),
        ]);
        let flops = CounterMeans::from_counters(&all).flops.unwrap();
        assert_eq!((flops.total, flops.tensor), (1060.0, Some(1000.0)));
        assert_eq!(flops.counted, "FP32, FP64 (dfma only), tensor cores");
    }

    #[test]
    fn the_smallest_limit_limits_the_blocks() {
        let one = |name, blocks: &'static [(f64, f64)]| (name, "block", blocks);
        let all = counters(&[
            one("launch__occupancy_limit_registers", &[(4.0, 1.0)]),
            one("launch__occupancy_limit_warps", &[(4.0, 1.0)]),
            one("launch__occupancy_limit_blocks", &[(32.0, 1.0)]),
        ]);
        assert_eq!(CounterMeans::from_counters(&all).block_limit, Some((vec!["registers", "warps"], 4.0)));
    }

    #[test]
    fn dropped_metrics_are_found() {
        let got = counters(&[("dram__bytes.sum", "byte", &[(1.0, 1.0)])]);
        let requested =
            ["dram__bytes.sum", "dram__bytes", "dram__byte", "smsp__warp_stall_memory_dependency.pct"];
        assert_eq!(
            missing_metrics(&requested, &got),
            ["dram__byte", "smsp__warp_stall_memory_dependency.pct"]
        );
    }

    #[test]
    fn stalls_are_sorted_and_named() {
        let all = counters(&[
            ("smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", "inst", &[(1.0, 1.0)]),
            (
                "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
                "inst",
                &[(15.0, 1.0)],
            ),
            ("smsp__average_warps_issue_stalled_wait_per_issue_active.ratio", "inst", &[(0.0, 1.0)]),
        ]);
        let stalls = CounterMeans::from_counters(&all).stalls;
        assert_eq!(stalls, [("long scoreboard".to_owned(), 15.0), ("barrier".to_owned(), 1.0)]);
    }
}
