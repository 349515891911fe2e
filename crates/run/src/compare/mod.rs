//! `compare` and `baseline`: compares two runs, snapshots, sweeps or baselines.

mod baseline;
mod error;
mod html;
mod read;
mod repeat;
mod samples;
mod text;
#[cfg(test)]
mod trust_tests;

pub use baseline::{
    Baseline, Saved, Written, baseline_names, baselines, baselines_text, newest as newest_for_baseline,
    run_spread, save as save_baseline,
};
pub use error::CompareError;
pub use html::html;
pub use read::compare_recordings;
pub use repeat::{PlanRun, Repeat, RepeatSide, Repeated, pairs_to_run, repeat_dir, split_sides};
pub use samples::read_run;
pub use text::{
    changed_families, comparison_table, describe_difference, describe_method, describe_side, exit_code, json,
    markdown, text, undecided_reasons, visible_rows,
};

use llmprof_analysis::compare::{Comparison, Difference, Gate, GateOutcome};

/// A comparison with the outcome of its gates.
pub struct GatedComparison {
    /// The overrides that identify it, if there are several.
    pub label: Option<String>,
    pub comparison: Comparison,
    pub gates: Vec<(Gate, GateOutcome)>,
}

impl GatedComparison {
    pub fn new(label: Option<String>, comparison: Comparison, gates: &[Gate]) -> GatedComparison {
        let missing = || GateOutcome::Undecided("the metric was not compared".to_owned());
        // A limit on a change says nothing about two different workloads, unless the user ignores the difference.
        let other = comparison.changed_workload().find(|difference| !difference.is_ignored());
        let other = other.map(|difference| {
            let Difference { what, a, b, .. } = difference;
            format!("the runs differ in {what} ({a} and {b}); if the gate is meant across that, pass --meant '{what}'")
        });
        let gates = gates.iter().map(|gate| {
            let outcome = match &other {
                Some(why) => GateOutcome::Undecided(why.clone()),
                None => comparison.row(gate.metric).map_or_else(missing, |row| gate.check(row)),
            };
            (*gate, outcome)
        });
        GatedComparison { gates: gates.collect(), label, comparison }
    }
}
