//! A kernel with its calls, times and counters.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{
    Durations, Measure,
    counters::{CounterMeans, Counters},
    names,
};
use llm_cost::Operator;

/// Three extents of a launch.
pub type Extent = [u32; 3];

/// A kernel, or another [`Kind`](super::Kind) of row. Values that the source does not report are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelRow {
    pub name: String,
    pub family: String,
    pub calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stddev_ns: Option<f64>,
    /// The distribution of the durations, if every call was timed.
    #[serde(skip_serializing_if = "Durations::is_empty")]
    pub durations: Durations,
    /// Also `None` if the launches differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grid: Option<Extent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<Extent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    /// Shared memory per block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_bytes: Option<u64>,
    /// The model's operator it belongs to, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<Operator>,
    /// The NVTX ranges around the launch, the outermost first, separated by slashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// The number of calls that were nodes of CUDA graphs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_calls: Option<u64>,
    /// Bytes moved by all calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// Operations of all calls, if the source reports the shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    /// The shape of a matrix product.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<Product>,
    #[serde(skip_serializing_if = "Counters::is_empty")]
    pub counters: Counters,
    /// Advice of the tool itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
}

/// The shape of a matrix product: an M×K matrix by a K×N one, `batch` times.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Product {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub batch: u64,
    /// The types of both operands and of the result; `None` if unknown.
    pub types: [Option<Cow<'static, str>>; 3],
}

impl Product {
    /// Operations of one call: a multiplication and an addition for each element of M×N×K, four times that of complex
    /// numbers.
    pub fn flops(&self) -> f64 {
        let complex = self.types.iter().flatten().any(|name| name.starts_with("complex"));
        let each = if complex { 8.0 } else { 2.0 };
        each * self.m as f64 * self.n as f64 * self.k as f64 * self.batch as f64
    }

    /// `512×1×896 bf16`, and the batch if it is larger than one.
    pub fn text(&self) -> String {
        let Product { m, n, k, batch, types } = self;
        let mut text = format!("{m}×{n}×{k}");
        if *batch != 1 {
            text += &format!(" ×{batch}");
        }
        if types.iter().all(Option::is_none) {
            return text;
        }
        let [a, b, c] = types.each_ref().map(|name| name.as_deref().unwrap_or("?"));
        if a == b && b == c {
            text + &format!(" {a}")
        } else if a == b && a != "?" {
            text + &format!(" {a} to {c}")
        } else {
            text + &format!(" {a}·{b} to {c}")
        }
    }
}

/// A finding of one of Nsight Compute's rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub rule: String,
    /// `OPT`, `WRN` or `INF`.
    pub kind: String,
    pub text: String,
    /// The estimated speedup in percent, and its scope (`global`, `local`).
    pub speedup_pct: Option<f64>,
    pub speedup_of: Option<String>,
}

impl KernelRow {
    pub fn named(name: impl Into<String>) -> KernelRow {
        let name = name.into();
        KernelRow { family: names::family(&name), name, ..KernelRow::default() }
    }

    pub fn known(&self) -> CounterMeans {
        let mut known = CounterMeans::from_counters(&self.counters);
        known.duration_ns = known.duration_ns.or(self.mean_ns);
        known
    }

    pub(super) fn amount(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Time => self.total_ns,
            Measure::Bytes => self.bytes,
            Measure::Flops => self.flops,
        }
    }

    /// Adds the calls of another row. Properties are kept if both rows agree; a median is no longer known.
    pub fn absorb(&mut self, other: &KernelRow) {
        let stddev = joint_stddev(self, other);
        let mean = joint_mean(self, other);
        fn agreed<T: PartialEq>(a: Option<T>, b: &Option<T>) -> Option<T> {
            a.filter(|a| b.as_ref() == Some(a))
        }
        fn both(a: Option<f64>, b: Option<f64>) -> Option<f64> {
            Some(a? + b?)
        }
        self.calls = self.calls.saturating_add(other.calls);
        self.total_ns = both(self.total_ns, other.total_ns);
        self.mean_ns = mean;
        self.median_ns = None;
        // If no call of one of them added time, it has none.
        self.min_ns = self.min_ns.into_iter().chain(other.min_ns).filter(|ns| *ns > 0.0).reduce(f64::min);
        self.max_ns = self.max_ns.zip(other.max_ns).map(|(a, b)| a.max(b));
        self.stddev_ns = stddev;
        self.durations.absorb(&other.durations);
        self.grid = agreed(self.grid, &other.grid);
        self.block = agreed(self.block, &other.block);
        self.registers = agreed(self.registers, &other.registers);
        self.shared_bytes = agreed(self.shared_bytes, &other.shared_bytes);
        self.operator = agreed(self.operator, &other.operator);
        self.range = agreed(self.range.take(), &other.range);
        self.graph_calls = self.graph_calls.zip(other.graph_calls).map(|(a, b)| a.saturating_add(b));
        self.bytes = both(self.bytes, other.bytes);
        self.flops = both(self.flops, other.flops);
        self.product = agreed(self.product.take(), &other.product);
        self.counters.merge_all(&other.counters);
        for advice in &other.advice {
            if !self.advice.iter().any(|known| known.rule == advice.rule) {
                self.advice.push(advice.clone());
            }
        }
    }
}

/// Means of recordings are rounded to this.
const MEAN_DIGITS_NS: f64 = 0.1;

/// The mean duration of the calls of both rows. It is not their total by their number: work that runs in parallel with
/// other work has a duration of its own, but adds less time.
fn joint_mean(a: &KernelRow, b: &KernelRow) -> Option<f64> {
    let sum = |row: &KernelRow| {
        let (calls, total) = (row.calls as f64, row.total_ns);
        let Some(by_mean) = row.mean_ns.map(|mean| mean * calls) else { return total };
        // Means are kept with few digits.
        Some(total.filter(|total| (total - by_mean).abs() <= MEAN_DIGITS_NS * calls).unwrap_or(by_mean))
    };
    let calls = a.calls.saturating_add(b.calls);
    Some((sum(a)? + sum(b)?) / calls as f64).filter(|_| calls > 0)
}

/// The standard deviation of the calls of both rows.
fn joint_stddev(a: &KernelRow, b: &KernelRow) -> Option<f64> {
    // A single call has no deviation of its own.
    let squares = |row: &KernelRow| {
        let stddev = row.stddev_ns.or((row.calls == 1).then_some(0.0))?;
        let (n, mean) = (row.calls as f64, row.mean_ns?);
        Some((n - 1.0).max(0.0) * stddev * stddev + n * mean * mean)
    };
    let n = a.calls as f64 + b.calls as f64;
    let mean = (a.calls as f64 * a.mean_ns? + b.calls as f64 * b.mean_ns?) / n;
    let joint = (squares(a)? + squares(b)? - n * mean * mean) / (n - 1.0);
    joint.is_finite().then(|| joint.max(0.0).sqrt())
}
