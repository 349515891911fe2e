//! A run as documents, plots and numbers: pure functions of its state, so that a live run, a replay and `report RUN`
//! write identical files.

mod account;
mod assumptions;
mod bill;
pub mod cost;
mod exports;
mod head;
mod html;
mod inputs;
mod items;
mod launches;
mod markdown;
mod metrics;
mod operators;
mod ops_csv;
pub mod plots;
mod prometheus;
mod ranks;
mod remake;
mod server;
mod stakeholder;

pub use account::{account_text, all_owners, considerable_owners, python_lines};
pub use bill::bill_text;
pub use launches::{StackFormat, launches_json, launches_table, launches_text, stacks_file};
pub use markdown::{kernels_text, latency_table, report_md};
pub use metrics::{DEFINITIONS, metrics_json, run_json};
pub use ops_csv::COLUMNS as OPS_COLUMNS;
pub use prometheus::prometheus_text;
pub use ranks::{ranks_json, ranks_text};
pub use remake::{Remade, ReportError, remake};
use serde::Serialize;
pub use server::{watched_server_json, watched_server_text};

use crate::state::RunState;
use cost::{CostEstimate, CostGpu, CostQuery};
use llmprof_base::{
    foreign::{MAX_LINE, line, visible},
    markup::inert_markdown,
};

/// A file of a run's reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub name: &'static str,
    pub content: String,
}

/// Every document a run can have, in reading order.
pub const NAMES: [&str; 21] = [
    "report.md",
    "report.html",
    "stakeholder_summary.md",
    "operators.md",
    "ops.csv",
    "requests.csv",
    "metrics.json",
    "inputs.yaml",
    "assumptions.md",
    "static_compute.json",
    "static_compute.md",
    "account.svg",
    "throughput.svg",
    "latency.svg",
    "telemetry.svg",
    "context.svg",
    "kernels.svg",
    "counters.svg",
    "roofline.svg",
    "profile_export_aiperf.json",
    "vllm_bench.json",
];

/// The documents of a run for which there is data.
pub fn documents(state: &RunState) -> Vec<Document> {
    let plots = plots::all(state);
    let cost = cost_estimate(state);
    let content = |name: &str| match name {
        "report.md" => Some(markdown::report_with_plots(state, &plots)),
        "report.html" => Some(html::report_html(state, &plots)),
        "stakeholder_summary.md" => Some(stakeholder::summary_md(state)),
        "operators.md" => operators::operators_md(state),
        "ops.csv" => ops_csv::ops_csv(state),
        "requests.csv" => bill::requests_csv(state),
        "metrics.json" => Some(json_text(&metrics_json(state))),
        "inputs.yaml" => inputs::inputs_yaml(state),
        "assumptions.md" => Some(assumptions::assumptions_md(state)),
        "static_compute.json" => cost.as_ref().map(|cost| json_text(&cost.json())),
        "static_compute.md" => cost.as_ref().map(CostEstimate::markdown),
        "profile_export_aiperf.json" => state.load_tested().map(|_| json_text(&exports::aiperf_json(state))),
        "vllm_bench.json" => state.load_tested().map(|_| json_text(&exports::vllm_json(state))),
        plot => plots.iter().find(|made| made.name == plot).map(|made| made.svg.clone()),
    };
    NAMES
        .into_iter()
        .filter_map(|name| Some(Document { name, content: safe(name, content(name)?) }))
        .collect()
}

/// Sanitises untrusted names and messages in a document.
fn safe(name: &str, content: String) -> String {
    match name.ends_with(".md") {
        true => inert_markdown(&content),
        false => visible(&content).into_owned(),
    }
}

/// The name of the workload, for headings.
fn title(state: &RunState) -> String {
    state.run.as_ref().map_or_else(|| "run".to_owned(), |run| line(&run.model, MAX_TITLE))
}

/// One item of a list, on one line.
fn list_item(text: &str) -> String {
    format!("- {}\n", line(text, MAX_LINE))
}

/// A paragraph of one line.
fn paragraph(text: &str) -> String {
    format!("{}\n\n", line(text, MAX_LINE))
}

const MAX_TITLE: usize = 200;

/// The cost of the run's model on the run's GPU, if its shape was recorded.
fn cost_estimate(state: &RunState) -> Option<CostEstimate> {
    let run = state.run.as_ref()?;
    Some(CostEstimate::new(CostQuery {
        model: run.model.clone(),
        shape: (**run.shape.as_ref()?).clone(),
        batch: u64::from(run.batch),
        prompt_tokens: u64::from(run.prompt_tokens),
        images: state.vision.as_ref().map(|tally| tally.sizes.clone()).unwrap_or_default(),
        preprocess: None,
        output_tokens: u64::from(run.output_tokens),
        gpu: state.profiled_gpu().map(|gpu| CostGpu::reported(&gpu.info)),
        peaks: state.peaks(),
        narrow_flops: None,
    }))
}

fn json_text(value: &impl Serialize) -> String {
    // The writer cannot fail: keys are strings, and numbers that are not finite become null.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
