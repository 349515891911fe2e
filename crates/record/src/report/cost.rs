//! The cost of a model on a GPU, computed from its shape: `static_compute.json` and `static_compute.md`.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{MAX_TITLE, list_item};
use llm_cost::{
    Operator, OperatorKind, Shape, Step,
    cost::{Amounts, CONTEXT_BYTES, OperatorCost, StepCost},
};
use llmprof_analysis::{classify::Class, peaks::Peaks, roofline::Roof};
use llmprof_base::{
    cells,
    foreign::{MAX_LINE, line},
    table::{Cell, Column, Table},
    units::{Unit, bytes, grouped, millis, scaled, three_digits},
};
use llmprof_config::PreprocessConfig;

mod gpu;
#[cfg(test)]
mod tests;
mod vision;

use vision::Vision;

pub use gpu::{CostGpu, known_gpus};

/// Version of `static_compute.json` and `cost --json`.
pub const SCHEMA: u32 = 1;

/// The assumptions behind the estimate.
pub const ASSUMPTIONS: [&str; 9] = [
    "a multiplication and an addition count as two FLOPs",
    "weights, keys and values are read once per step; every operator reads and writes its activations",
    "logits are computed for the last position of each sequence only, in f32",
    "gate_up includes the activation function; rope includes biases, head norms and the KV cache write",
    "experts are equally likely; routing is part of gate_up",
    "the decode step is estimated at the middle of the output",
    "vision encoders attend over whole views or windows, not causally; their weights are read once for all images",
    "unfused: the time at the peaks if every operator is a separate kernel and its activations pass through memory; \
     lower bounds assume that activations stay on the chip, so they are shorter",
    "lower bounds are the larger of FLOPs / peak and bytes of weights and KV cache / bandwidth; gaps between kernels are \
     not included",
];

/// A model, a workload, and the GPU to estimate for, if any.
#[derive(Debug, Clone)]
pub struct CostQuery {
    pub model: String,
    pub shape: Shape,
    pub batch: u64,
    /// Text tokens of a prompt; its images add theirs.
    pub prompt_tokens: u64,
    /// Widths and heights of the images in each prompt, if the model has vision encoders.
    pub images: Vec<(u32, u32)>,
    pub preprocess: Option<PreprocessConfig>,
    pub output_tokens: u64,
    pub gpu: Option<CostGpu>,
    /// The peaks of `gpu` or given ones; or why they are not known.
    pub peaks: Result<Peaks, String>,
    /// FLOP/s of the type that quantised matrices are multiplied in, if the GPU has it.
    pub narrow_flops: Option<f64>,
}

/// FLOPs, bytes, memory and latency bounds of one [`CostQuery`].
pub struct CostEstimate {
    query: CostQuery,
    vision: Option<Vision>,
    /// Tokens of a prompt: text and images.
    prompt: u64,
    prefill: StepCost,
    decode: StepCost,
}

/// The largest workload that fits into the memory of a GPU; `None` if not even a batch of one fits.
struct Capacity {
    free_bytes: u64,
    /// The largest batch of sequences with the query's lengths.
    largest_batch: Option<u64>,
    /// The longest context with the query's batch.
    largest_context: Option<u64>,
}

/// The shortest possible time of `flops` and `moved_bytes`, and the limit that sets it.
fn lower_bound(roof: &Roof, flops: f64, moved_bytes: f64) -> (f64, Class) {
    let compute = flops / roof.flops >= moved_bytes / roof.bytes_per_s;
    (roof.min_seconds(flops, moved_bytes), if compute { Class::Compute } else { Class::Memory })
}

/// A lower bound of a time, and the limit that sets it.
type Bound = (f64, Class);

/// Lower bounds of TTFT and TPOT.
struct LatencyBounds {
    /// The time of the vision encoders, before the prefill.
    vision: Option<Bound>,
    prefill: Bound,
    tpot: Bound,
}

impl LatencyBounds {
    /// The sum of both phases, with the limit of the longer one.
    fn ttft(&self) -> Bound {
        match self.vision {
            None => self.prefill,
            Some(vision) => {
                let longer = if vision.0 > self.prefill.0 { vision } else { self.prefill };
                (vision.0 + self.prefill.0, longer.1)
            }
        }
    }
}

impl CostEstimate {
    pub fn new(query: CostQuery) -> CostEstimate {
        let CostQuery { shape, batch, prompt_tokens, output_tokens, .. } = &query;
        let vision = Vision::from_query(&query);
        let prompt = prompt_tokens.saturating_add(vision.as_ref().map_or(0, Vision::tokens));
        CostEstimate {
            prefill: shape.cost(Step::prefill(*batch, prompt)),
            decode: shape.cost(Step::decode(*batch, prompt.saturating_add(output_tokens / 2))),
            vision,
            prompt,
            query,
        }
    }

    fn capacity(&self) -> Option<Capacity> {
        let CostQuery { shape, batch, output_tokens, gpu, .. } = &self.query;
        let free_bytes = gpu.as_ref()?.memory?.0.saturating_sub(CONTEXT_BYTES);
        Some(Capacity {
            free_bytes,
            largest_batch: shape.largest_batch(self.prompt, *output_tokens, free_bytes),
            largest_context: shape.largest_context(*batch, *output_tokens, free_bytes),
        })
    }

    fn latency_bounds(&self, roof: &Roof) -> LatencyBounds {
        let bound = |cost: &StepCost| {
            let flops = cost.operators.iter().map(|cost| self.equivalent_flops(cost)).sum();
            lower_bound(roof, flops, cost.total().certain_bytes())
        };
        LatencyBounds {
            vision: self.vision.as_ref().map(|vision| vision.bound(roof)),
            prefill: bound(&self.prefill),
            tpot: bound(&self.decode),
        }
    }

    /// The FLOPs at the model's type that would take as long as the operator, for matrices that are multiplied faster
    /// in their own type.
    fn equivalent_flops(&self, cost: &OperatorCost) -> f64 {
        let flops = cost.all.flops();
        let is_narrow = cost.operator.kind() == OperatorKind::Matmul && cost.operator != Operator::LmHead;
        match (&self.query.peaks, self.query.narrow_flops) {
            (Ok(peaks), Some(narrow)) if is_narrow => {
                flops - cost.all.matmul_flops * (1.0 - peaks.flops / narrow).max(0.0)
            }
            _ => flops,
        }
    }

    /// `static_compute.json`.
    pub fn json(&self) -> Value {
        let CostQuery { model, shape, batch, output_tokens, gpu, .. } = &self.query;
        let memory = shape.memory(*batch, self.prompt, self.prompt.saturating_add(*output_tokens));
        let capacity = self.capacity();
        let bounds = |roof: &Roof| {
            let bounds = self.latency_bounds(roof);
            let ((ttft_s, ttft_class), (tpot_s, tpot_class)) = (bounds.ttft(), bounds.tpot);
            let mut object = json!({
                "ttft_ms": ttft_s * 1e3, "ttft_bound": ttft_class, "tpot_ms": tpot_s * 1e3, "tpot_bound": tpot_class,
                "prefill_tok_s": *batch as f64 * self.prompt as f64 / bounds.prefill.0,
                "decode_tok_s": *batch as f64 / tpot_s,
            });
            if let Some((seconds, class)) = bounds.vision {
                (object["vision_ms"], object["vision_bound"]) = (json!(seconds * 1e3), json!(class));
            }
            object
        };
        let peaks = self.query.peaks.as_ref().ok();
        json!({
            "schema": SCHEMA,
            "model": model,
            "shape": shape,
            "parameters": shape.parameters(),
            "active_parameters": shape.active_parameters(),
            "weight_bytes": shape.weight_bytes,
            "kv_bytes_per_position": shape.kv_bytes_per_position(),
            "workload": {
                "batch": batch, "prompt_tokens": self.prompt, "output_tokens": output_tokens,
                "image_tokens": self.vision.as_ref().map_or(0, Vision::tokens),
            },
            "vision": self.vision.as_ref().map(|vision| vision.json(shape)),
            "prefill": step_json(&self.prefill),
            "decode": step_json(&self.decode),
            "memory": {
                "weight_bytes": memory.weight_bytes, "kv_bytes": memory.kv_bytes,
                "workspace_bytes": memory.workspace_bytes, "total_bytes": memory.total(),
            },
            "gpu": gpu.as_ref().map(|gpu| &gpu.name),
            "gpu_memory_bytes": gpu.as_ref().and_then(|gpu| Some(gpu.memory?.0)),
            "gpu_memory_basis": gpu.as_ref().and_then(|gpu| Some(gpu.memory?.1)),
            "fits": capacity.as_ref().map(|capacity| memory.total() <= capacity.free_bytes),
            "largest_batch": capacity.as_ref().and_then(|capacity| capacity.largest_batch),
            "largest_context": capacity.as_ref().and_then(|capacity| capacity.largest_context),
            "peaks": peaks,
            "no_peaks": self.query.peaks.as_ref().err(),
            "lower_bounds": peaks.map(|peaks| bounds(&Roof::stated(peaks))),
            "lower_bounds_as_measured": peaks.and_then(|peaks| Some(bounds(&measured(peaks, &shape.dtype)?))),
            "assumptions": ASSUMPTIONS,
        })
    }

    /// The estimate for a terminal.
    pub fn text(&self) -> String {
        let mut out = self.headline();
        out.push_str("\n\n");
        for (title, table) in self.phases() {
            let _ = writeln!(out, "{title}\n  {}\n", table.text().replace('\n', "\n  "));
        }
        out + &self.memory_and_bounds().join("\n")
    }

    /// `static_compute.md`.
    pub fn markdown(&self) -> String {
        let model = line(&self.query.model, MAX_TITLE);
        let mut out = format!("# Cost of {model}\n\n{}\n\n", self.headline());
        for (title, table) in self.phases() {
            let _ = writeln!(out, "## {title}\n\n{}", table.markdown());
        }
        let list = |out: &mut String, lines: &[&str]| {
            lines.iter().for_each(|line| *out += &list_item(line));
        };
        let _ = writeln!(out, "## Memory and lower bounds\n");
        let lines = self.memory_and_bounds();
        list(&mut out, &lines.iter().map(String::as_str).collect::<Vec<_>>());
        let _ = writeln!(out, "\n## Assumptions\n");
        list(&mut out, &ASSUMPTIONS);
        out
    }

    fn headline(&self) -> String {
        let CostQuery { model, shape, batch, prompt_tokens, output_tokens, .. } = &self.query;
        let active = match shape.experts {
            None => String::new(),
            Some(_) => {
                let active = shape.active_parameters();
                // The published figures of some models exclude the table of which a token reads one row.
                let table = if shape.tied_embeddings { 0 } else { shape.vocab * shape.hidden };
                let without = grouped(active.saturating_sub(table) as i64);
                format!(
                    " ({} active per token, {without} without the embedding table)",
                    grouped(active as i64)
                )
            }
        };
        let bits = 8.0 * shape.bytes_per_weight();
        let quantised = match (bits - 8.0 * shape.number_bytes as f64).abs() < 0.01 {
            true => String::new(),
            false => format!(" ({} bits per weight)", three_digits(bits)),
        };
        let state = match shape.state_bytes() {
            0 => String::new(),
            state => format!(", {} of state per sequence", bytes(state)),
        };
        let stored = match &shape.quantisation {
            None => String::new(),
            Some(found) => line(&format!("Quantised: {found}."), MAX_LINE) + "\n",
        };
        let (in_vision, weights) = match &shape.vision {
            None => (String::new(), shape.weight_bytes),
            Some(vision) => (
                format!(", {} more in the vision encoder", grouped(vision.parameters() as i64)),
                shape.weight_bytes.saturating_add(vision.weight_bytes),
            ),
        };
        let size = format!(
            "{model}, {}: {} parameters{active}{in_vision}, {} of weights{quantised}, {} of KV cache per position{state}.",
            shape.dtype,
            grouped(shape.parameters() as i64),
            bytes(weights),
            bytes(shape.kv_bytes_per_position()),
        );
        let of_pictures = match &self.vision {
            None => String::new(),
            Some(vision) => format!(" of text and {} of images", vision.tokens()),
        };
        format!(
            "{}\n{stored}Batch {batch}, {prompt_tokens} prompt tokens{of_pictures}, {output_tokens} output tokens.",
            line(&size, MAX_LINE)
        )
    }

    /// The titles and tables of the phases, in the order of execution.
    fn phases(&self) -> Vec<(String, Table)> {
        let title = |name: String, total: &Amounts| {
            let intensity = total.intensity().map_or_else(|| "–".to_owned(), three_digits);
            format!(
                "{name}: {}, {}, {intensity} FLOP/B",
                scaled(total.flops(), "FLOP"),
                scaled(total.bytes(), "B")
            )
        };
        let step = |name: String, cost: &StepCost| {
            let rows = self.rows(&cost.operators, |cost| self.equivalent_flops(cost));
            (title(name, &cost.total()), rows)
        };
        let vision = self.vision.as_ref().map(|vision| {
            let total = vision.cost.total();
            (title(vision.title(), &total), self.rows(&vision.cost.operators, |cost| cost.all.flops()))
        });
        let context = self.decode.step.past;
        let prefill = step(format!("Prefill of {} tokens", self.prompt), &self.prefill);
        let decode = step(format!("Decode step at position {context}"), &self.decode);
        vision.into_iter().chain([prefill, decode]).collect()
    }

    /// The operators of a phase as a table with a heading and a row of totals. `flops` gives the FLOPs that determine
    /// the time.
    fn rows(&self, operators: &[OperatorCost], flops: impl Fn(&OperatorCost) -> f64) -> Table {
        let roof = self.query.peaks.as_ref().ok().map(Roof::stated);
        let number = |title, unit| Column::number(title).unit(unit);
        let mut table = Table::new([
            Column::text("operator"),
            number("calls", Unit::Count),
            number("parameters", Unit::Scaled("")),
            number("FLOP", Unit::Scaled("")),
            number("weights", Unit::Scaled("B")),
            number("activations", Unit::Scaled("B")),
            number("KV read", Unit::Scaled("B")),
            number("KV written", Unit::Scaled("B")),
            Column::number("FLOP/B"),
        ]);
        if roof.is_some() {
            table.columns.extend([number("unfused", Unit::Millis), Column::text("bound")]);
        }
        let (mut calls_of_all, mut seconds_of_all) = (0, 0.0);
        for one in operators {
            let OperatorCost { operator, calls, all } = one;
            let time = roof.map(|roof| lower_bound(&roof, flops(one), all.bytes()));
            calls_of_all += calls;
            seconds_of_all += time.map_or(0.0, |(seconds, _)| seconds);
            table.push(row(
                operator.name(),
                *calls,
                all,
                time.map(|(seconds, class)| (seconds, Some(class))),
            ));
        }
        // Its operators have different limits.
        let total: Amounts = operators.iter().map(|cost| cost.all).sum();
        table.push(row("total", calls_of_all, &total, roof.map(|_| (seconds_of_all, None))));
        table
    }

    /// Memory, peaks and latency bounds, one statement per line.
    fn memory_and_bounds(&self) -> Vec<String> {
        let CostQuery { shape, batch, output_tokens, gpu, .. } = &self.query;
        let positions = self.prompt.saturating_add(*output_tokens);
        let memory = shape.memory(*batch, self.prompt, positions);
        let mut lines = vec![format!(
            "Memory: {} of weights, {} of KV cache, {} of workspace, {} in total.",
            bytes(memory.weight_bytes),
            bytes(memory.kv_bytes),
            bytes(memory.workspace_bytes),
            bytes(memory.total())
        )];
        if let Some(parts) = self.vision.as_ref().and_then(Vision::parts) {
            lines.insert(0, parts);
        }
        if positions > shape.max_positions {
            lines.push(format!(
                "{} positions exceed the model's maximum of {}: a run of this length is refused.",
                grouped(positions as i64),
                grouped(shape.max_positions as i64)
            ));
        }
        if let Some(CostGpu { name, memory: Some((mem_bytes, basis)) }) = gpu
            && let Some(capacity) = self.capacity()
        {
            let fits = if memory.total() <= capacity.free_bytes { "Fits" } else { "Does not fit" };
            let largest_batch = match capacity.largest_batch {
                Some(batch) => format!("the largest batch with these lengths is {}", grouped(batch as i64)),
                None => "no batch with these lengths fits".to_owned(),
            };
            let longest_context = match capacity.largest_context {
                Some(context) => {
                    format!("the longest context with this batch is {}", grouped(context as i64))
                }
                None => "no context with this batch fits".to_owned(),
            };
            lines.push(format!(
                "{fits} into {} of GPU memory ({name}, {basis}): {largest_batch}, {longest_context}.",
                bytes(*mem_bytes),
            ));
        }
        let peaks = match (&self.query.peaks, gpu) {
            (Ok(peaks), _) => peaks,
            (Err(_), None) => {
                lines.push(format!("For latency bounds pass --gpu: {}.", known_gpus().join(", ")));
                return lines;
            }
            (Err(why), Some(_)) => {
                lines.push(format!("No lower bounds: {why}."));
                return lines;
            }
        };
        let clock = peaks.clock_mhz.map_or_else(String::new, |mhz| format!(" at {} MHz", three_digits(mhz)));
        lines.push(format!(
            "Peaks: {} in {}{clock}, {} ({}).",
            scaled(peaks.flops, "FLOP/s"),
            shape.dtype,
            scaled(peaks.bytes_per_s, "B/s"),
            peaks.source
        ));
        if let (Some(narrow), Some(found)) = (self.query.narrow_flops, &shape.quantisation)
            && let Some(arithmetic) = &found.arithmetic
        {
            lines.push(format!(
                "Matrix products of quantised weights: {} in {arithmetic}.",
                scaled(narrow, "FLOP/s")
            ));
        }
        lines.push(self.bounds_line("Lower bounds", &Roof::stated(peaks)));
        if let (Some(roof), Some(found)) = (measured(peaks, &shape.dtype), peaks.measured) {
            let reached = format!("{} and {}", scaled(roof.flops, "FLOP/s"), scaled(roof.bytes_per_s, "B/s"));
            lines.push(self.bounds_line(&format!("With measured peaks ({reached}; {})", found.how), &roof));
        }
        lines
    }

    fn bounds_line(&self, title: &str, roof: &Roof) -> String {
        let bounds = self.latency_bounds(roof);
        let ((ttft_s, ttft_class), (tpot_s, tpot_class)) = (bounds.ttft(), bounds.tpot);
        let vision = bounds.vision.map_or_else(String::new, |(seconds, class)| {
            format!("vision {} ({}), ", millis(seconds * 1e3), class.word())
        });
        format!(
            "{title}: {vision}TTFT {} ({}), TPOT {} ({}), at most {} tok/s.",
            millis(ttft_s * 1e3),
            ttft_class.word(),
            millis(tpot_s * 1e3),
            tpot_class.word(),
            three_digits(self.query.batch as f64 / tpot_s)
        )
    }
}

/// A row of the table of operators, with its time at the peaks and the limit that sets it, if they are known.
fn row(name: &str, calls: u64, amounts: &Amounts, time: Option<(f64, Option<Class>)>) -> Vec<Cell> {
    let amount = |value: f64| Some(value).filter(|value| *value > 0.0);
    let mut row = cells![
        name,
        calls,
        amount(amounts.parameters),
        amount(amounts.flops()),
        amount(amounts.weight_bytes),
        amount(amounts.activation_bytes),
        amount(amounts.kv_read_bytes),
        amount(amounts.kv_write_bytes),
        amounts.intensity(),
    ];
    if let Some((seconds, class)) = time {
        row.extend(cells![seconds * 1e3, class.map(Class::word)]);
    }
    row
}

/// The measured peaks, for the types with which they were measured.
fn measured(peaks: &Peaks, dtype: &str) -> Option<Roof> {
    let found = peaks.measured.filter(|_| matches!(dtype, "bf16" | "f16"))?;
    Some(Roof { flops: found.bf16_flops, bytes_per_s: found.bytes_per_s })
}

fn with_sums(amounts: &Amounts) -> Value {
    let mut object = json!(amounts);
    object["flops"] = json!(amounts.flops());
    object["bytes"] = json!(amounts.bytes());
    object["flop_per_byte"] = json!(amounts.intensity());
    object
}

fn operators(all: &[OperatorCost]) -> Vec<Value> {
    let one = |cost: &OperatorCost| {
        let mut object = with_sums(&cost.all);
        object["operator"] = json!(cost.operator);
        object["calls"] = json!(cost.calls);
        object
    };
    all.iter().map(one).collect()
}

fn step_json(cost: &StepCost) -> Value {
    let layers: Vec<Value> = cost
        .layers
        .iter()
        .map(|kind| json!({"layers": kind.layer, "operators_of_one": operators(&kind.operators)}))
        .collect();
    json!({
        "step": cost.step,
        "total": with_sums(&cost.total()),
        "operators": operators(&cost.operators),
        "layers": layers,
    })
}
