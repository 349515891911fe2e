//! Pictures of a run as SVG.

mod canvas;
mod context;
mod kernel_shares;
mod latency;
mod roofline;
mod telemetry;
mod throughput;

pub use roofline::roofline_svg;

use crate::state::RunState;

/// A picture and the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plot {
    pub name: &'static str,
    pub title: &'static str,
    pub svg: String,
}

type Draw = fn(&RunState) -> Option<String>;

const PLOTS: [(&str, &str, Draw); 6] = [
    ("throughput.svg", "Tokens a second over time, with prefills and incidents", throughput::throughput_svg),
    ("latency.svg", "ITL: how many tokens took how long, and the share up to each", latency::latency_svg),
    (
        "telemetry.svg",
        "Power, clock and temperature of the card, its limits in grey, and what held its clock",
        telemetry::telemetry_svg,
    ),
    ("context.svg", "ITL against context, with what the model's cost says", context::context_svg),
    ("kernels.svg", "Kernels by their share of the time", kernel_shares::kernel_shares_svg),
    ("roofline.svg", "Roofline", roofline_svg),
];

/// Every picture there is something for.
pub fn all(state: &RunState) -> Vec<Plot> {
    PLOTS
        .into_iter()
        .filter_map(|(name, title, draw)| Some(Plot { name, title, svg: draw(state)? }))
        .collect()
}
