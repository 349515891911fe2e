//! Plots of a run as SVG.

mod account;
mod canvas;
mod context;
mod counters;
mod kernel_shares;
mod latency;
mod roofline;
mod telemetry;
mod throughput;

pub use canvas::{Format, ON_DARK, hex};

use crate::state::RunState;

/// A plot and the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plot {
    pub name: &'static str,
    pub title: &'static str,
    pub svg: String,
}

type Draw = fn(&RunState, Format) -> Option<String>;

const PLOTS: [(&str, &str, Draw); 8] = [
    ("account.svg", "Where the time goes: each nanosecond has one owner", account::account_svg),
    (
        "throughput.svg",
        "Tokens per second over time, with prefills and incidents",
        throughput::throughput_svg,
    ),
    ("latency.svg", "ITL: histogram and cumulative distribution", latency::latency_svg),
    (
        "telemetry.svg",
        "Power, clock and temperature of the GPU, its limits in grey, and what limited its clock",
        telemetry::telemetry_svg,
    ),
    ("context.svg", "ITL by context length, with the prediction from the model's cost", context::context_svg),
    ("kernels.svg", "Kernels by share of time", kernel_shares::kernel_shares_svg),
    (
        "counters.svg",
        "Counters of the kernels under ncu, as histograms weighted by their time",
        counters::counters_svg,
    ),
    ("roofline.svg", "Roofline", roofline::svg),
];

/// The roofline as a separate file.
pub fn roofline_svg(state: &RunState) -> Option<String> {
    roofline::svg(state, Format::File)
}

/// A plot by the name of its file, in another format.
pub fn drawn(state: &RunState, name: &str, format: Format) -> Option<String> {
    let (.., draw) = PLOTS.into_iter().find(|(known, ..)| *known == name)?;
    draw(state, format)
}

/// Every plot for which there is data.
pub fn all(state: &RunState) -> Vec<Plot> {
    PLOTS
        .into_iter()
        .filter_map(|(name, title, draw)| Some(Plot { name, title, svg: draw(state, Format::File)? }))
        .collect()
}
