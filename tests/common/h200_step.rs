//! Synthetic kernel records: decode steps of a 7B model in bf16 on an H200, with times of the right order.

use llmprof::{
    event::{
        Event, KernelSpan, KernelTrace, KernelWindow, Phase, StepTimeline, TraceState, kernels::KernelRow,
    },
    model::Operator as O,
};

pub const LAYERS: u16 = 28;
pub const STEPS: u64 = 1204;

/// Operator, kernel, time in nanoseconds, grid, block, registers, shared memory.
type Launch = (Option<O>, &'static str, u64, [u32; 3], u32, u32, u64);

const LAYER: [Launch; 8] = [
    (Some(O::AttentionNorm), "rms_norm_bf16", 2_010, [1, 1, 1], 1024, 24, 144),
    (Some(O::Qkv), "skinny_8_bf16", 9_120, [144, 1, 1], 256, 168, 18_432),
    (Some(O::Rope), "rope_bf16", 2_480, [36, 1, 1], 64, 32, 0),
    (Some(O::Attention), "decode_attention_128_bf16", 8_050, [4, 32, 1], 256, 210, 66_560),
    (Some(O::AttentionOutput), "skinny_8_bf16", 7_030, [112, 1, 1], 256, 168, 18_432),
    (Some(O::MlpNorm), "rms_norm_bf16", 1_990, [1, 1, 1], 1024, 24, 144),
    (Some(O::GateUp), "skinny_gated_8_bf16", 62_300, [1184, 1, 1], 256, 168, 18_432),
    (Some(O::Down), "skinny_8_bf16", 33_100, [112, 1, 1], 256, 168, 18_432),
];
const BEFORE: [Launch; 1] = [(Some(O::Embedding), "embed_bf16", 1_700, [1, 1, 1], 256, 16, 0)];
const AFTER: [Launch; 4] = [
    (Some(O::FinalNorm), "rms_norm_bf16", 2_000, [1, 1, 1], 1024, 24, 144),
    (Some(O::LmHead), "skinny_logits_8_bf16", 251_000, [4752, 1, 1], 256, 168, 18_432),
    (Some(O::Sampling), "pick_likeliest", 6_400, [1, 1, 1], 1024, 28, 8_192),
    (None, "step_done", 1_300, [1, 1, 1], 32, 12, 0),
];

/// All launches of a step in their order, with their layers.
fn step() -> impl Iterator<Item = (Option<u16>, &'static Launch)> {
    let layers = (0..LAYERS).flat_map(|layer| LAYER.iter().map(move |launch| (Some(layer), launch)));
    BEFORE.iter().map(|launch| (None, launch)).chain(layers).chain(AFTER.iter().map(|launch| (None, launch)))
}

/// One step with `gap_ns` between its kernels.
pub fn timeline(gap_ns: u64) -> StepTimeline {
    let mut timeline = StepTimeline { phase: Phase::Decode, ..StepTimeline::default() };
    let mut at = 0;
    for (layer, (operator, name, ns, ..)) in step() {
        let known = timeline.names.iter().position(|known| known == name);
        let place = known.unwrap_or_else(|| {
            timeline.names.push((*name).to_owned());
            timeline.names.len() - 1
        });
        timeline.spans.push(KernelSpan {
            name: place as u16,
            operator: *operator,
            layer,
            start_ns: at,
            ns: *ns,
        });
        at += ns + gap_ns;
    }
    timeline
}

/// The kernels of `steps` steps.
pub fn window(steps: u64, gap_ns: u64, in_graphs: bool) -> KernelWindow {
    let mut rows: Vec<KernelRow> = Vec::new();
    for (_, (operator, name, ns, grid, block, registers, shared)) in step() {
        let row = KernelRow {
            calls: steps,
            total_ns: Some((steps * ns) as f64),
            mean_ns: Some(*ns as f64),
            min_ns: Some(*ns as f64 * 0.96),
            max_ns: Some(*ns as f64 * 1.11),
            grid: Some(*grid),
            block: Some([*block, 1, 1]),
            registers: Some(*registers),
            shared_bytes: Some(*shared),
            operator: *operator,
            graph_calls: Some(if in_graphs { steps } else { 0 }),
            ..KernelRow::named(*name)
        };
        match rows.iter_mut().find(|known| known.name == row.name && known.operator == row.operator) {
            Some(known) => known.absorb(&row),
            None => rows.push(row),
        }
    }
    let launches = step().count() as u64;
    let busy: u64 = step().map(|(_, launch)| launch.2).sum();
    KernelWindow {
        overlaps: None,
        phase: Phase::Decode,
        steps,
        span_ns: steps * (busy + gap_ns * (launches - 1)),
        busy_ns: steps * busy,
        between_ns: steps * 20_000,
        launches: steps * launches,
        graph_launches: if in_graphs { steps * launches } else { 0 },
        dropped: 0,
        unmeasured: 0,
        prompt_tokens: None,
        tokens: None,
        rows,
    }
}

/// Prefills of 512 tokens.
fn prefill() -> KernelWindow {
    let row = |operator, name: &str, calls: u64, ns: u64| KernelRow {
        calls,
        total_ns: Some((calls * ns) as f64),
        mean_ns: Some(ns as f64),
        operator: Some(operator),
        ..KernelRow::named(name)
    };
    KernelWindow {
        overlaps: None,
        phase: Phase::Prefill,
        steps: 4,
        span_ns: 4 * 12_600_000,
        busy_ns: 4 * 12_100_000,
        between_ns: 0,
        launches: 4 * 311,
        graph_launches: 0,
        dropped: 0,
        unmeasured: 0,
        prompt_tokens: None,
        tokens: None,
        rows: vec![
            row(O::GateUp, "nvjet_sm90_tst_256x128_64x4_2x1_v_bz_coopA_TNT", 112, 215_000),
            row(O::Down, "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT", 112, 112_000),
            row(O::Attention, "prefill_attention_128_bf16", 112, 21_000),
        ],
    }
}

/// The kernel events of a recording.
pub fn events(gap_ns: u64, in_graphs: bool) -> Vec<Event> {
    vec![
        Event::KernelTrace(KernelTrace { tool: "CUPTI 13.0".into(), state: TraceState::On }),
        Event::Kernels(Box::new(prefill())),
        Event::Kernels(Box::new(window(STEPS / 2, gap_ns, in_graphs))),
        Event::Kernels(Box::new(window(STEPS - STEPS / 2, gap_ns, in_graphs))),
        Event::StepTimeline(Box::new(timeline(gap_ns))),
    ]
}
