//! Measured operators: the time of each, compared with its cost.

use serde::Serialize;

use super::{
    classify::{self, Verdict},
    roofline::{Roof, Share, Timed, estimated},
};
use llm_cost::{Operator, cost::StepCost};
use llmprof_event::{OperatorTime, kernels::KernelRow};

/// Measured time of an operator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spent<'a> {
    pub operator: Option<Operator>,
    /// The kernel that was timed; `None` if the operator itself was.
    pub kernel: Option<&'a str>,
    pub calls: u64,
    pub ns: f64,
}

impl<'a> From<&'a KernelRow> for Spent<'a> {
    fn from(row: &'a KernelRow) -> Spent<'a> {
        let ns = row.total_ns.unwrap_or(0.0);
        Spent { operator: row.operator, kernel: Some(&row.name), calls: row.calls, ns }
    }
}

impl From<&OperatorTime> for Spent<'_> {
    fn from(time: &OperatorTime) -> Spent<'static> {
        Spent { operator: Some(time.operator), kernel: None, calls: time.calls, ns: time.ns as f64 }
    }
}

/// An operator over the steps of a phase; times are means of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperatorRow {
    /// `None` for kernels without a known operator.
    pub operator: Option<Operator>,
    /// Kernel launches per step; calls per step if the operator itself was timed.
    pub calls_per_step: f64,
    pub ns_per_step: f64,
    /// Share of the time of all operators.
    pub share: f64,
    /// Kernels by name with their share of its time, in descending order; empty if the operator itself was timed.
    pub kernels: Vec<(String, f64)>,
    /// Its work per step and the time of that; `None` if its cost is not known.
    pub achieved: Option<Timed>,
    /// Percentages of both ceilings, if they are known.
    pub pct_of_peaks: Option<Share>,
    /// Whether its cost exceeds the peak.
    #[serde(skip)]
    pub is_above_peak: bool,
    /// Its bound by [`estimated`], or the reason why that is not known.
    #[serde(skip)]
    pub verdict: Result<Verdict, String>,
}

/// A kernel with this share of its operator's time represents it.
const DOMINANT: f64 = 0.9;

impl OperatorRow {
    pub fn name(&self) -> &'static str {
        self.operator.map_or("(others)", Operator::name)
    }

    /// The one kernel with nearly all of its time.
    pub fn dominant_kernel(&self) -> Option<&str> {
        self.kernels.first().filter(|(_, share)| *share >= DOMINANT).map(|(name, _)| name.as_str())
    }
}

/// The operators of `spent`, over `steps` steps of `cost` each, the longest first.
pub fn operator_rows(
    spent: &[Spent<'_>],
    steps: u64,
    cost: Option<&StepCost>,
    roof: Result<Roof, &str>,
) -> Vec<OperatorRow> {
    let total: f64 = spent.iter().map(|spent| spent.ns).sum();
    if steps == 0 || total <= 0.0 {
        return Vec::new();
    }
    let mut rows: Vec<OperatorRow> = Vec::new();
    for &Spent { operator, kernel, calls, ns } in spent {
        let index = rows.iter().position(|known| known.operator == operator).unwrap_or_else(|| {
            rows.push(OperatorRow {
                operator,
                calls_per_step: 0.0,
                ns_per_step: 0.0,
                share: 0.0,
                kernels: Vec::new(),
                achieved: None,
                pct_of_peaks: None,
                is_above_peak: false,
                verdict: Err(String::new()),
            });
            rows.len() - 1
        });
        let row = &mut rows[index];
        row.calls_per_step += calls as f64 / steps as f64;
        row.ns_per_step += ns / steps as f64;
        let Some(kernel) = kernel else { continue };
        match row.kernels.iter_mut().find(|(name, _)| name == kernel) {
            Some((_, sum)) => *sum += ns,
            None => row.kernels.push((kernel.to_owned(), ns)),
        }
    }
    for row in &mut rows {
        let ns = row.ns_per_step * steps as f64;
        row.share = ns / total;
        row.kernels.iter_mut().for_each(|(_, sum)| *sum /= ns.max(1.0));
        row.kernels.sort_by(|a, b| b.1.total_cmp(&a.1));
        row.verdict = judge(row, cost, roof);
    }
    rows.sort_by(|a, b| b.ns_per_step.total_cmp(&a.ns_per_step));
    rows
}

/// Sets what the row achieved, and returns its bound.
fn judge(
    row: &mut OperatorRow,
    cost: Option<&StepCost>,
    roof: Result<Roof, &str>,
) -> Result<Verdict, String> {
    let operator = row.operator.ok_or("the operator of these kernels is not known")?;
    let cost = cost
        .and_then(|cost| cost.operator(operator))
        .ok_or_else(|| format!("the cost of {operator} in this model is not known"))?;
    let timed = Timed { flops: cost.all.flops(), bytes: cost.all.bytes(), seconds: row.ns_per_step * 1e-9 };
    let roof = match roof {
        Ok(roof) => roof,
        Err(why) => {
            row.achieved = Some(timed);
            return Err(why.to_owned());
        }
    };
    let share = timed.share_of(&roof);
    row.is_above_peak = share.is_err();
    row.pct_of_peaks = Some(share.map_err(|above| above.to_string())?);
    row.achieved = Some(timed);
    let calls = cost.calls.max(1) as f64;
    let call =
        Timed { flops: timed.flops / calls, bytes: timed.bytes / calls, seconds: timed.seconds / calls };
    estimated("operator", &call, &roof).map_err(|above| above.to_string())
}

/// What bounds a kernel: by its counters if they were read, else by the cost of the operator that it represents.
pub fn kernel_verdict(kernel: &KernelRow, operators: &[OperatorRow]) -> Result<Verdict, String> {
    let counted = classify::verdict(kernel);
    if counted.is_ok() {
        return counted;
    }
    let Some(operator) = kernel.operator else { return counted };
    let Some(row) = operators.iter().find(|row| row.operator == Some(operator)) else { return counted };
    match row.dominant_kernel() {
        Some(name) if name == kernel.name => row.verdict.clone(),
        _ => Err(format!(
            "one of {} kernels of {operator}: the cost is known for the operator only",
            row.kernels.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::classify::Class;
    use llm_cost::{Shape, Step};

    const ROOF: Roof = Roof { flops: 989.4e12, bytes_per_s: 4.8e12 };

    fn cost() -> StepCost {
        // Qwen2.5-7B, as in a recording.
        let shape: Shape = serde_json::from_value(json!({
            "vocab": 152064, "hidden": 3584, "intermediate": 18944, "heads": 28, "kv_heads": 4, "head_dim": 128,
            "max_positions": 131072, "layers": [{"count": 28}], "qkv_bias": true, "dtype": "bf16",
            "number_bytes": 2, "weight_bytes": 15_231_233_024u64
        }))
        .unwrap();
        shape.cost(Step::decode(1, 512))
    }

    fn spent(rows: &[KernelRow]) -> Vec<Spent<'_>> {
        rows.iter().map(Spent::from).collect()
    }

    /// 100 steps of 28 layers.
    fn kernel(name: &str, operator: Option<Operator>, us: f64) -> KernelRow {
        KernelRow {
            calls: 2800,
            total_ns: Some(2800.0 * us * 1e3),
            mean_ns: Some(us * 1e3),
            operator,
            ..KernelRow::named(name)
        }
    }

    #[test]
    fn kernels_become_operators_with_their_bounds() {
        // As measured on an H200.
        let rows = [
            kernel("skinny_bf16", Some(Operator::Qkv), 10.8),
            kernel("skinny_gated_bf16", Some(Operator::GateUp), 70.9),
            kernel("split", Some(Operator::Attention), 6.0),
            kernel("merge", Some(Operator::Attention), 2.0),
            kernel("rms_norm_bf16", Some(Operator::MlpNorm), 2.0),
            kernel("memset", None, 1.0),
        ];
        let cost = cost();
        let all = operator_rows(&spent(&rows), 100, Some(&cost), Ok(ROOF));
        let names: Vec<&str> = all.iter().map(OperatorRow::name).collect();
        assert_eq!(names, ["gate_up", "qkv", "attention", "mlp_norm", "(others)"]);
        let class = |at: usize| all[at].verdict.as_ref().ok().map(|verdict| verdict.class);
        assert_eq!(class(0), Some(Class::Memory));
        assert_eq!(class(1), Some(Class::Memory));
        assert_eq!(class(3), Some(Class::Launch));
        assert_eq!(class(4), None);
        // 3.83 TB/s of weights: 80 % of the datasheet's peak.
        assert!((79.0..81.0).contains(&all[0].pct_of_peaks.unwrap().bytes_pct), "{:?}", all[0]);
        assert!((all[0].share - 70.9 / 92.7).abs() < 1e-9);
        assert_eq!((all[2].calls_per_step, all[2].ns_per_step), (56.0, 224_000.0));

        assert_eq!(kernel_verdict(&rows[1], &all).unwrap().class, Class::Memory);
        let why = kernel_verdict(&rows[2], &all).unwrap_err();
        assert!(why.contains("one of 2 kernels of attention"), "{why}");
        assert!(kernel_verdict(&rows[5], &all).is_err());
    }

    #[test]
    fn an_operator_that_was_timed_itself_has_no_kernels() {
        let time =
            |operator, ns| OperatorTime { operator, calls: 2800, ns, min_ns: 1, max_ns: ns, heap: None };
        let times = [time(Operator::Qkv, 100_000_000), time(Operator::Activation, 300_000_000)];
        let spent: Vec<Spent<'_>> = times.iter().map(Spent::from).collect();
        let cost = cost();
        let all = operator_rows(&spent, 100, Some(&cost), Err("no peaks"));
        assert_eq!((all[0].operator, all[0].share), (Some(Operator::Activation), 0.75));
        assert!(all[0].achieved.is_none(), "its cost is part of another operator's");
        assert_eq!((all[1].calls_per_step, all[1].ns_per_step), (28.0, 1_000_000.0));
        assert!(all[1].kernels.is_empty() && all[1].dominant_kernel().is_none());
        assert_eq!(all[1].achieved.unwrap().seconds, 1e-3);
    }

    #[test]
    fn unknown_costs_and_peaks_are_reported() {
        let rows = [kernel("skinny_bf16", Some(Operator::Qkv), 10.8)];
        let no_cost = operator_rows(&spent(&rows), 100, None, Ok(ROOF));
        assert!(no_cost[0].verdict.as_ref().unwrap_err().contains("qkv"));
        assert_eq!(no_cost[0].achieved, None);
        let cost = cost();
        let no_roof = operator_rows(&spent(&rows), 100, Some(&cost), Err("no peaks"));
        assert_eq!(no_roof[0].verdict, Err("no peaks".to_owned()));
        assert!(no_roof[0].achieved.is_some() && no_roof[0].pct_of_peaks.is_none());
        assert!(operator_rows(&spent(&rows), 0, None, Ok(ROOF)).is_empty());
        assert!(operator_rows(&[], 5, None, Ok(ROOF)).is_empty());
    }
}
