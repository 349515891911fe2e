//! The kernels with the most time, as a list to profile.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use llmprof_event::kernels::{Group, KernelTable, Kind, names};

/// A list of kernels for `ncu`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopList {
    /// The file it was made from, and its kind.
    #[serde(default)]
    pub from: String,
    #[serde(default)]
    pub source: String,
    /// The share of the time of these kernels, in percent.
    pub share_pct: Option<f64>,
    pub kernels: Vec<TopKernel>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopKernel {
    pub name: String,
    #[serde(default)]
    pub family: String,
    /// For `ncu -k regex:…`, which matches the function name. Optional in lists written by hand.
    #[serde(default)]
    pub regex: String,
    #[serde(default)]
    pub launches: u64,
    pub total_ns: Option<f64>,
    pub mean_ns: Option<f64>,
    pub share_pct: Option<f64>,
}

/// The first `k` kernels by time; `None` if no table has kernels.
pub fn top(from: &str, tables: &[KernelTable], k: usize) -> Option<TopList> {
    // Each GPU has its own table.
    let kernels = || tables.iter().filter(|table| table.kind == Kind::Kernels);
    let first = kernels().next()?;
    let same_source = kernels().filter(|table| table.source == first.source);
    let rows = same_source.flat_map(|table| table.rows.iter().cloned()).collect();
    let mut table = KernelTable { rows, ..first.clone() }.grouped(Group::Name);
    table.sort(Default::default());
    if table.nested {
        // The first row of a name is that of the outermost range.
        let mut seen = HashSet::new();
        table.rows.retain(|row| seen.insert(row.name.clone()));
    }
    let total = table.total().filter(|total| *total > 0.0);
    let share = |ns: Option<f64>| Some((ns? / total? * 1000.0).round() / 10.0);
    table.top(k);
    let kernels = table
        .rows
        .iter()
        .map(|row| TopKernel {
            name: row.name.clone(),
            family: row.family.clone(),
            regex: names::ncu_regex(&row.name),
            launches: row.calls,
            total_ns: row.total_ns,
            mean_ns: row.mean_ns.map(f64::round),
            share_pct: share(row.total_ns),
        })
        .collect();
    let listed = table.total();
    Some(TopList { from: from.to_owned(), source: table.source.clone(), share_pct: share(listed), kernels })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ncu::read_raw;

    #[test]
    fn rows_are_sorted_by_time() {
        let raw = include_bytes!("../../../tests/fixtures/h200_ncu_raw.csv");
        let tables = [read_raw("raw", &raw[..]).unwrap()];
        let list = top("raw.csv", &tables, 3).unwrap();
        assert_eq!(list.kernels.len(), 3);
        assert_eq!((list.kernels[0].name.as_str(), list.kernels[0].launches), ("rmsnorm_bf16", 4));
        assert_eq!(list.kernels[0].regex, "^rmsnorm_bf16$");
        let parts: f64 = list.kernels.iter().filter_map(|kernel| kernel.share_pct).sum();
        assert!((parts - list.share_pct.unwrap()).abs() < 0.2);
        assert_eq!(top("x", &[], 3), None);
    }
}
