//! The passes of a tool over a run, and the merging of their tables.

use super::{Rerun, command};
use gpu_traces::top::TopKernel;
use llmprof_config::RunConfig;
use llmprof_event::{
    Tool,
    kernels::{
        KernelTable,
        counters::{Counters, missing_metrics},
        names::ncu_regex,
    },
};

/// One run under the tool. nsys records all kernels in one pass. ncu profiles one kernel per pass: its limit on
/// launches counts all kernels together, so the first kernels would use it up.
#[derive(Debug, Clone)]
pub struct Pass {
    /// Prefix of its files; empty for a single pass.
    pub name: String,
    pub config: RunConfig,
    /// The kernel to profile: its name, and the pattern for ncu.
    pub kernel: Option<String>,
    pub regex: Option<String>,
    pub is_one_of_several: bool,
    /// A note for the report on how kernels were chosen.
    pub remark: Option<String>,
}

pub fn passes(rerun: &Rerun) -> Vec<Pass> {
    let (config, device) = (&rerun.config, &rerun.device);
    let single = |config: RunConfig, remark: Option<String>| {
        let name = String::new();
        vec![Pass { name, config, kernel: None, regex: None, is_one_of_several: false, remark }]
    };
    if rerun.tool == Tool::Nsys {
        return single(command::child_config(config, device, config.profiling.nsys.requests), None);
    }
    let child = command::child_config_for_ncu(config, device);
    let k = config.profiling.ncu.top_k as usize;
    let listed: Vec<&TopKernel> = rerun.kernels.iter().flat_map(|list| &list.kernels).take(k).collect();
    if listed.is_empty() {
        let remark = format!(
            "no list of kernels (profiling.ncu.kernels) and no table of kernels to choose from: these are the first {} \
             launches",
            command::UNFILTERED_LAUNCHES
        );
        return single(child, Some(remark));
    }
    let several = listed.len() > 1;
    let pass = |(index, kernel): (usize, &&TopKernel)| Pass {
        name: format!("{:02}", index + 1),
        config: child.clone(),
        kernel: Some(if kernel.family.is_empty() { kernel.name.clone() } else { kernel.family.clone() }),
        regex: Some(if kernel.regex.is_empty() { ncu_regex(&kernel.name) } else { kernel.regex.clone() }),
        is_one_of_several: several,
        remark: None,
    };
    listed.iter().enumerate().map(pass).collect()
}

/// Adds tables to those of the same kind and GPU. Rows of the same kernel, grid and range are merged.
pub fn join(tables: &mut Vec<KernelTable>, more: Vec<KernelTable>) {
    for table in more {
        let same = |known: &&mut KernelTable| known.kind == table.kind && known.device == table.device;
        let Some(known) = tables.iter_mut().find(same) else {
            tables.push(table);
            continue;
        };
        known.busy = known.busy.zip(table.busy).map(|(known, more)| known.plus(more));
        known.graphs = known.graphs.max(table.graphs);
        for row in table.rows {
            let same = known.rows.iter_mut().find(|one| {
                one.name == row.name
                    && one.grid == row.grid
                    && one.block == row.block
                    && one.range == row.range
            });
            match same {
                Some(one) => one.absorb(&row),
                None => known.rows.push(row),
            }
        }
        for note in table.notes {
            if !known.notes.contains(&note) {
                known.notes.push(note);
            }
        }
    }
}

/// The metrics that no row has.
pub fn missing(table: &KernelTable, asked: &[String]) -> Vec<String> {
    let mut got = Counters::default();
    table.rows.iter().for_each(|row| got.merge_all(&row.counters));
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    missing_metrics(&asked, &got).into_iter().map(str::to_owned).collect()
}
