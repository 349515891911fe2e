//! Simulated kernels: those of the CUDA engine by name, with times that follow from a model's cost on a GPU and add up
//! to the simulated step.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::card::SimCard;
use llm_cost::{Operator, Shape, Step, cost::Amounts};
use llmprof_analysis::roofline::Roof;
use llmprof_base::noise;
use llmprof_event::{
    Event, EventTx, KernelSpan, KernelTrace, KernelWindow, Phase, Stamp, StepTimeline, TraceState,
    kernels::KernelRow,
};

/// Simulated time between two windows, and between two timelines.
const WINDOW_NS: u64 = 1_000_000_000;
const TIMELINE_NS: u64 = 3_000_000_000;
/// The duration of a nearly empty kernel.
const LEAST_NS: f64 = 1_600.0;
/// The gap between two kernels: as nodes of a graph, and launched one by one.
const GRAPH_GAP_NS: f64 = 350.0;
const LAUNCH_GAP_NS: f64 = 2_600.0;
/// The overhead of recording: a share of a step in a graph, and the time per launch without one.
const RECORDED_GRAPH_SHARE: f64 = 0.01;
const RECORDED_LAUNCH_NS: f64 = 1_500.0;
/// The host's share of a step.
const HOST_SHARE: f64 = 0.02;

/// Steps of one phase to make kernels for.
pub struct SimSteps<'a> {
    pub shape: &'a Shape,
    pub card: &'static SimCard,
    pub phase: Phase,
    /// A representative step.
    pub step: Step,
    pub steps: u64,
    /// Duration of each on the host.
    pub step_ns: u64,
    /// Whether the step is one CUDA graph.
    pub graph: bool,
    pub seed: u64,
}

/// A kernel of an operator.
struct Launch {
    name: String,
    grid: [u32; 3],
    block: u32,
    operator: Operator,
    layer: Option<u16>,
    ns: f64,
}

/// The duration of such a step on the GPU: its kernels, the gaps between them and the host's share.
pub(super) fn nominal_ns(of: &SimSteps<'_>) -> f64 {
    let launches = launches(of);
    let at_work: f64 = launches.iter().map(|launch| launch.ns).sum();
    let gaps_ns = gap_ns(of) * launches.len().saturating_sub(1) as f64;
    (at_work + gaps_ns) / (1.0 - HOST_SHARE)
}

fn gap_ns(of: &SimSteps<'_>) -> f64 {
    if of.graph { GRAPH_GAP_NS } else { LAUNCH_GAP_NS }
}

/// The kernels of these steps, and the timeline of one of them.
pub fn sim_kernels(of: &SimSteps<'_>) -> (KernelWindow, StepTimeline) {
    let mut launches = launches(of);
    let gap_ns = gap_ns(of);
    let span_ns = of.step_ns as f64 * (1.0 - HOST_SHARE);
    // If the step is shorter than its gaps, the gaps shrink too.
    let gaps_ns = (gap_ns * launches.len().saturating_sub(1) as f64).min(span_ns / 2.0);
    let at_work: f64 = launches.iter().map(|launch| launch.ns).sum();
    let scale = (span_ns - gaps_ns) / at_work.max(1.0);
    for (n, launch) in launches.iter_mut().enumerate() {
        let jitter = 1.0 + 0.02 * noise::bell(of.seed, n as u64);
        launch.ns = (launch.ns * scale * jitter).max(1.0).round();
    }
    let gap_ns = gaps_ns / launches.len().saturating_sub(1).max(1) as f64;
    let timeline = timeline(of.phase, &launches, gap_ns);
    let busy_ns: f64 = launches.iter().map(|launch| launch.ns).sum();
    let span_ns = (busy_ns + gaps_ns) as u64;
    let n = launches.len() as u64 * of.steps;
    let window = KernelWindow {
        overlaps: None,
        phase: of.phase,
        steps: of.steps,
        span_ns: span_ns * of.steps,
        busy_ns: busy_ns as u64 * of.steps,
        between_ns: of.step_ns.saturating_sub(span_ns) * of.steps,
        launches: n,
        graph_launches: if of.graph { n } else { 0 },
        dropped: 0,
        unmeasured: 0,
        prompt_tokens: None,
        tokens: None,
        rows: rows(of, &launches),
    };
    (window, timeline)
}

fn rows(of: &SimSteps<'_>, launches: &[Launch]) -> Vec<KernelRow> {
    let mut rows: Vec<KernelRow> = Vec::new();
    for launch in launches {
        let row = KernelRow {
            calls: of.steps,
            total_ns: Some(launch.ns * of.steps as f64),
            mean_ns: Some(launch.ns),
            min_ns: Some(launch.ns),
            max_ns: Some(launch.ns),
            grid: Some(launch.grid),
            block: Some([launch.block, 1, 1]),
            operator: Some(launch.operator),
            graph_calls: Some(if of.graph { of.steps } else { 0 }),
            ..KernelRow::named(&launch.name)
        };
        let same = |known: &&mut KernelRow| {
            known.name == row.name && known.operator == row.operator && known.grid == row.grid
        };
        match rows.iter_mut().find(same) {
            Some(known) => known.absorb(&row),
            None => rows.push(row),
        }
    }
    rows
}

fn timeline(phase: Phase, launches: &[Launch], gap_ns: f64) -> StepTimeline {
    let mut timeline = StepTimeline { phase, ..StepTimeline::default() };
    let mut at = 0.0;
    for launch in launches {
        let known = timeline.names.iter().position(|name| *name == launch.name);
        let name = known.unwrap_or_else(|| {
            timeline.names.push(launch.name.clone());
            timeline.names.len() - 1
        });
        timeline.spans.push(KernelSpan {
            name: name as u16,
            operator: Some(launch.operator),
            layer: launch.layer,
            start_ns: at as u64,
            ns: launch.ns as u64,
        });
        at += launch.ns + gap_ns;
    }
    timeline
}

/// A step's kernels in order, each with its duration.
fn launches(of: &SimSteps<'_>) -> Vec<Launch> {
    let cost = of.shape.cost(of.step);
    let roof = of.card.roof(&of.shape.dtype);
    let once = |operator: Operator, all: &mut Vec<Launch>| {
        if let Some(cost) = cost.operator(operator) {
            all.extend(of_operator(of, operator, None, &cost.each(), &roof));
        }
    };
    let mut all = Vec::new();
    once(Operator::Embedding, &mut all);
    let layers = cost.layers.iter().flat_map(|kind| (0..kind.layer.count).map(move |_| kind));
    for (layer, kind) in layers.enumerate() {
        for cost in &kind.operators {
            all.extend(of_operator(of, cost.operator, u16::try_from(layer).ok(), &cost.all, &roof));
        }
    }
    for operator in [Operator::FinalNorm, Operator::LmHead, Operator::Sampling] {
        once(operator, &mut all);
    }
    all
}

/// The kernels of one call of an operator; most have one.
fn of_operator(
    of: &SimSteps<'_>,
    operator: Operator,
    layer: Option<u16>,
    cost: &Amounts,
    roof: &Roof,
) -> Vec<Launch> {
    let decode = of.phase == Phase::Decode;
    let (dtype, dim) = (&of.shape.dtype, of.shape.head_dim);
    let rows = (of.step.batch * of.step.new).clamp(1, 1 << 20) as u32;
    // The share of either ceiling that such a kernel reaches.
    let (name, reach, grid, block) = match operator {
        Operator::Embedding => (format!("embed_{dtype}"), 0.5, [rows, 1, 1], 256),
        Operator::Rope => (format!("rope_{dtype}"), 0.4, [rows, of.shape.heads as u32, 1], 128),
        Operator::Attention if decode => {
            (format!("decode_attention_{dim}_{dtype}"), 0.55, [8, of.shape.kv_heads as u32, 1], 256)
        }
        Operator::Attention => (
            format!("prefill_attention_{dim}_{dtype}"),
            0.55,
            [rows.div_ceil(64), of.shape.heads as u32, 1],
            128,
        ),
        Operator::GateUp if decode => (format!("skinny_gated_{dtype}"), 0.92, [264, 1, 1], 256),
        Operator::Qkv | Operator::AttentionOutput | Operator::Down if decode => {
            (format!("skinny_{dtype}"), 0.88, [264, 1, 1], 256)
        }
        Operator::LmHead => (format!("skinny_{dtype}_f32"), 0.95, [528, 1, 1], 256),
        Operator::Qkv | Operator::AttentionOutput | Operator::Down | Operator::GateUp => {
            ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT".to_owned(), 0.72, [132, 1, 1], 384)
        }
        Operator::Sampling => ("pick_likeliest".to_owned(), 0.3, [64, of.step.batch as u32, 1], 256),
        _ => (format!("rms_norm_{dtype}"), 0.5, [rows, 1, 1], 1024),
    };
    let ns = roof.min_seconds(cost.flops(), cost.bytes()) * 1e9 / reach;
    let launch = |name: String, ns: f64| Launch { name, grid, block, operator, layer, ns: ns.max(LEAST_NS) };
    match operator {
        // Many rows use cuBLAS, and the activation is a separate kernel.
        Operator::GateUp if !decode => {
            let activation = rows as f64 * of.shape.intermediate as f64 * 3.0 * of.shape.number_bytes as f64;
            let gated = activation / roof.bytes_per_s / 0.8 * 1e9;
            vec![launch(name, ns), launch(format!("gated_{dtype}"), gated)]
        }
        _ => vec![launch(name, ns)],
    }
}

/// Sends kernel events as simulated time advances, while they are requested.
pub struct SimKernels {
    requested: Arc<AtomicBool>,
    recording: bool,
    shape: Shape,
    card: &'static SimCard,
    tx: EventTx,
    graphs: bool,
    seed: u64,
    phases: [Gathered; 2],
}

/// Steps of one phase that were not sent yet.
struct Gathered {
    phase: Phase,
    steps: u64,
    ns: u64,
    /// The latest of them and its start.
    last: Option<(Step, Stamp)>,
    window_at: Stamp,
    timeline_at: Option<Stamp>,
}

impl Gathered {
    fn new(phase: Phase, now: Stamp) -> Gathered {
        Gathered { phase, steps: 0, ns: 0, last: None, window_at: now, timeline_at: None }
    }
}

impl SimKernels {
    /// Records while `requested` is set. With `graphs`, a decode step is one CUDA graph.
    pub fn new(
        shape: Shape,
        card: &'static SimCard,
        tx: EventTx,
        (graphs, seed): (bool, u64),
        requested: Arc<AtomicBool>,
    ) -> SimKernels {
        let now = tx.clock().now();
        let phases = [Phase::Prefill, Phase::Decode].map(|phase| Gathered::new(phase, now));
        let mut kernels = SimKernels { requested, recording: false, shape, card, tx, graphs, seed, phases };
        kernels.follow_request();
        kernels
    }

    /// Starts or ends recording as requested.
    fn follow_request(&mut self) {
        let requested = self.requested.load(Ordering::Relaxed);
        if requested == self.recording {
            return;
        }
        self.finish();
        self.recording = requested;
        let state = if requested { TraceState::On } else { TraceState::Off };
        self.tx.send(Event::KernelTrace(KernelTrace { tool: "simulated".to_owned(), state }));
    }

    /// The additional time of the next step of `phase` because it is recorded.
    pub fn overhead_s(&mut self, phase: Phase, step_s: f64) -> f64 {
        self.follow_request();
        if !self.recording {
            return 0.0;
        }
        let layers: u64 = self.shape.layers.iter().map(|group| group.count).sum();
        match self.graphs && phase == Phase::Decode {
            true => step_s * RECORDED_GRAPH_SHARE,
            false => (8 * layers + 4) as f64 * RECORDED_LAUNCH_NS / 1e9,
        }
    }

    /// Adds a step that began at `start` and took `ns`; sends windows that are due.
    pub fn step(&mut self, phase: Phase, step: Step, start: Stamp, ns: u64) {
        if !self.recording {
            return;
        }
        let now = self.tx.clock().now();
        for at in 0..self.phases.len() {
            let gathered = &mut self.phases[at];
            if gathered.phase == phase {
                (gathered.steps, gathered.ns, gathered.last) =
                    (gathered.steps + 1, gathered.ns + ns, Some((step, start)));
            }
            if now.since(gathered.window_at).as_nanos() >= u128::from(WINDOW_NS) {
                self.send(at, now);
            }
        }
    }

    /// Sends the remaining steps.
    pub fn finish(&mut self) {
        let now = self.tx.clock().now();
        (0..self.phases.len()).for_each(|at| self.send(at, now));
    }

    fn send(&mut self, at: usize, now: Stamp) {
        let gathered = &mut self.phases[at];
        gathered.window_at = now;
        let Some((step, began)) = gathered.last.take() else { return };
        let steps = std::mem::take(&mut gathered.steps);
        let step_ns = std::mem::take(&mut gathered.ns) / steps;
        let of = SimSteps {
            shape: &self.shape,
            card: self.card,
            phase: gathered.phase,
            step,
            steps,
            step_ns,
            graph: self.graphs && gathered.phase == Phase::Decode,
            seed: self.seed ^ now.0,
        };
        let (window, mut timeline) = sim_kernels(&of);
        timeline.at = Some(began);
        let due = |last: Stamp| now.since(last).as_nanos() >= u128::from(TIMELINE_NS);
        let drawn = gathered.timeline_at.is_none_or(due);
        if drawn {
            gathered.timeline_at = Some(now);
        }
        self.tx.send(Event::Kernels(Box::new(window)));
        if drawn {
            self.tx.send(Event::StepTimeline(Box::new(timeline)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sim::card::H200;
    use llmprof_config::Dtype;

    fn shape() -> Shape {
        let config = json!({
            "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
            "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "max_position_embeddings": 131072
        });
        Shape::from_hf(&config, Dtype::Bf16).unwrap()
    }

    fn decode(shape: &Shape, step_ns: u64, graph: bool, seed: u64) -> (KernelWindow, StepTimeline) {
        let (phase, step) = (Phase::Decode, Step::decode(1, 512));
        sim_kernels(&SimSteps { shape, card: &H200, phase, step, steps: 10, step_ns, graph, seed })
    }

    #[test]
    fn kernels_add_up_to_their_step() {
        let shape = shape();
        for (step_ns, graph) in
            [(3_800_000, true), (3_800_000, false), (14_000_000, true), (50_000, true), (0, true)]
        {
            let (window, timeline) = decode(&shape, step_ns, graph, 1);
            assert_eq!(window.launches, 10 * timeline.spans.len() as u64);
            assert_eq!(window.graph_launches, if graph { window.launches } else { 0 });
            assert!(window.busy_ns <= window.span_ns);
            let rows: f64 = window.rows.iter().filter_map(|row| row.total_ns).sum();
            assert!((rows - window.busy_ns as f64).abs() < 100.0, "{rows}");
            let whole = (window.span_ns + window.between_ns) as f64 / 10.0;
            if step_ns > 1_000_000 {
                assert!((whole / step_ns as f64 - 1.0).abs() < 0.02, "{whole} {step_ns}");
            }
            assert!(timeline.spans.is_sorted_by_key(|span| span.start_ns));
            assert!(timeline.spans.iter().all(|span| (span.name as usize) < timeline.names.len()));
        }
    }

    #[test]
    fn kernels_are_those_of_the_engine() {
        let shape = shape();
        let (window, timeline) = decode(&shape, 3_800_000, true, 1);
        // Embedding, eight per layer, norm, head, sampling.
        assert_eq!(timeline.spans.len(), 1 + 28 * 8 + 3);
        let gate_up = window.rows.iter().find(|row| row.operator == Some(Operator::GateUp)).unwrap();
        assert_eq!((gate_up.name.as_str(), gate_up.calls), ("skinny_gated_bf16", 280));
        let most = window.rows.iter().max_by(|a, b| a.total_ns.unwrap().total_cmp(&b.total_ns.unwrap()));
        assert_eq!(most.unwrap().operator, Some(Operator::GateUp));
        assert_eq!(decode(&shape, 3_800_000, true, 1), (window, timeline));
    }
}
