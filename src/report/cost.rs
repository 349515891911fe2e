//! The cost of a model on a GPU, computed from its shape: `static_compute.json` and `static_compute.md`.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::{
    analysis::{
        classify::Class,
        peaks::{GPUS, GpuPeaks, Peaks, peaks},
        roofline::Roof,
    },
    base::{
        table,
        units::{bytes, grouped, millis, scaled, three_digits},
    },
    event::GivenPeaks,
    model::{
        Shape, Step,
        cost::{Amounts, CONTEXT_BYTES, OperatorCost, StepCost},
    },
};

/// Version of `static_compute.json` and `cost --json`.
pub const SCHEMA: u32 = 1;

/// The assumptions behind the estimate.
pub const ASSUMPTIONS: [&str; 7] = [
    "a multiplication and an addition count as two FLOPs",
    "weights, keys and values are read once per step; every operator reads and writes its activations",
    "logits are computed for the last position of each sequence only, in f32",
    "gate_up includes the activation function; rope includes biases, head norms and the KV cache write",
    "experts are equally likely; routing is part of gate_up",
    "the decode step is estimated at the middle of the output",
    "lower bounds are the larger of FLOPs / peak and bytes of weights and KV cache / bandwidth; gaps between kernels are \
     not included",
];

/// The column of the table that is text again.
const BOUND_COLUMN: usize = 10;

/// A model, a workload, and the GPU to estimate for, if any.
#[derive(Debug, Clone)]
pub struct CostQuery {
    pub model: String,
    pub shape: Shape,
    pub batch: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub gpu: Option<&'static GpuPeaks>,
    pub given_peaks: GivenPeaks,
}

/// The names of the GPUs whose peaks are built in.
pub fn known_gpus() -> String {
    GPUS.iter().map(|gpu| gpu.name).collect::<Vec<_>>().join(", ")
}

/// FLOPs, bytes, memory and latency bounds of one [`CostQuery`].
pub struct CostEstimate {
    query: CostQuery,
    prefill: StepCost,
    decode: StepCost,
    peaks: Result<Peaks, String>,
}

/// What fits into the memory of a GPU; `None` where not even one fits.
struct Capacity {
    free_bytes: u64,
    /// Of sequences of the query's lengths.
    largest_batch: Option<u64>,
    /// Of the query's batch.
    largest_context: Option<u64>,
}

/// The shortest possible time of `flops` and `moved_bytes`, and the limit that sets it.
fn lower_bound(roof: &Roof, flops: f64, moved_bytes: f64) -> (f64, Class) {
    let compute = flops / roof.flops >= moved_bytes / roof.bytes_per_s;
    (roof.min_seconds(flops, moved_bytes), if compute { Class::Compute } else { Class::Memory })
}

/// Lower bounds of TTFT and TPOT.
struct LatencyBounds {
    ttft_s: f64,
    ttft_class: Class,
    tpot_s: f64,
    tpot_class: Class,
}

impl CostEstimate {
    pub fn new(query: CostQuery) -> CostEstimate {
        let CostQuery { shape, batch, prompt_tokens, output_tokens, gpu, given_peaks, .. } = &query;
        CostEstimate {
            prefill: shape.cost(Step::prefill(*batch, *prompt_tokens)),
            decode: shape.cost(Step::decode(*batch, prompt_tokens.saturating_add(output_tokens / 2))),
            peaks: peaks(gpu.map(|gpu| gpu.name), &shape.dtype, *given_peaks),
            query,
        }
    }

    fn capacity(&self) -> Option<Capacity> {
        let CostQuery { shape, batch, prompt_tokens, output_tokens, gpu, .. } = &self.query;
        let free_bytes = gpu.as_ref()?.mem_bytes.saturating_sub(CONTEXT_BYTES);
        Some(Capacity {
            free_bytes,
            largest_batch: shape.largest_batch(*prompt_tokens, *output_tokens, free_bytes),
            largest_context: shape.largest_context(*batch, *output_tokens, free_bytes),
        })
    }

    fn latency_bounds(&self, roof: &Roof) -> LatencyBounds {
        let bound = |total: Amounts| lower_bound(roof, total.flops(), total.certain_bytes());
        let (ttft_s, ttft_class) = bound(self.prefill.total());
        let (tpot_s, tpot_class) = bound(self.decode.total());
        LatencyBounds { ttft_s, ttft_class, tpot_s, tpot_class }
    }

    /// `static_compute.json`.
    pub fn json(&self) -> Value {
        let CostQuery { model, shape, batch, prompt_tokens, output_tokens, gpu, .. } = &self.query;
        let memory = shape.memory(*batch, *prompt_tokens, prompt_tokens.saturating_add(*output_tokens));
        let capacity = self.capacity();
        let bounds = |roof: &Roof| {
            let LatencyBounds { ttft_s, ttft_class, tpot_s, tpot_class } = self.latency_bounds(roof);
            json!({
                "ttft_ms": ttft_s * 1e3, "ttft_bound": ttft_class, "tpot_ms": tpot_s * 1e3, "tpot_bound": tpot_class,
                "prefill_tok_s": *batch as f64 * *prompt_tokens as f64 / ttft_s,
                "decode_tok_s": *batch as f64 / tpot_s,
            })
        };
        let peaks = self.peaks.as_ref().ok();
        json!({
            "schema": SCHEMA,
            "model": model,
            "shape": shape,
            "parameters": shape.parameters(),
            "active_parameters": shape.active_parameters(),
            "weight_bytes": shape.weight_bytes,
            "kv_bytes_per_position": shape.kv_bytes_per_position(),
            "workload": {"batch": batch, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens},
            "prefill": step_json(&self.prefill),
            "decode": step_json(&self.decode),
            "memory": {
                "weight_bytes": memory.weight_bytes, "kv_bytes": memory.kv_bytes,
                "workspace_bytes": memory.workspace_bytes, "total_bytes": memory.total(),
            },
            "gpu": gpu.map(|gpu| gpu.name),
            "gpu_memory_bytes": gpu.map(|gpu| gpu.mem_bytes),
            "fits": capacity.as_ref().map(|capacity| memory.total() <= capacity.free_bytes),
            "largest_batch": capacity.as_ref().and_then(|capacity| capacity.largest_batch),
            "largest_context": capacity.as_ref().and_then(|capacity| capacity.largest_context),
            "peaks": peaks,
            "no_peaks": self.peaks.as_ref().err(),
            "lower_bounds": peaks.map(|peaks| bounds(&Roof::stated(peaks))),
            "lower_bounds_as_measured": peaks.and_then(|peaks| Some(bounds(&measured(peaks, &shape.dtype)?))),
            "assumptions": ASSUMPTIONS,
        })
    }

    /// The estimate for a terminal.
    pub fn text(&self) -> String {
        let mut out = self.headline();
        out.push_str("\n\n");
        for (title, cost) in self.steps() {
            let table = table::aligned(&self.rows(cost), |column| (1..BOUND_COLUMN).contains(&column));
            let _ = writeln!(out, "{title}\n  {}\n", table.replace('\n', "\n  "));
        }
        out + &self.memory_and_bounds().join("\n")
    }

    /// `static_compute.md`.
    pub fn markdown(&self) -> String {
        let mut out = format!("# Cost of {}\n\n{}\n\n", self.query.model, self.headline());
        for (title, cost) in self.steps() {
            let table = table::markdown(&self.rows(cost), |column| (1..BOUND_COLUMN).contains(&column));
            let _ = writeln!(out, "## {title}\n\n{table}");
        }
        let list = |out: &mut String, lines: &[&str]| {
            for line in lines {
                let _ = writeln!(out, "- {line}");
            }
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
            Some(_) => format!(" ({} active per token)", grouped(shape.active_parameters() as i64)),
        };
        let bits = 8.0 * shape.bytes_per_weight();
        let quantised = match (bits - 8.0 * shape.number_bytes as f64).abs() < 0.01 {
            true => String::new(),
            false => format!(" ({} bits per weight)", three_digits(bits)),
        };
        format!(
            "{model}, {}: {} parameters{active}, {} of weights{quantised}, {} of KV cache per position.\n\
             Batch {batch}, {prompt_tokens} prompt tokens, {output_tokens} output tokens.",
            shape.dtype,
            grouped(shape.parameters() as i64),
            bytes(shape.weight_bytes),
            bytes(shape.kv_bytes_per_position()),
        )
    }

    fn steps(&self) -> [(String, &StepCost); 2] {
        let title = |name: String, cost: &StepCost| {
            let total = cost.total();
            let intensity = total.intensity().map_or_else(|| "–".to_owned(), three_digits);
            format!(
                "{name}: {}, {}, {intensity} FLOP/B",
                scaled(total.flops(), "FLOP"),
                scaled(total.bytes(), "B")
            )
        };
        let context = self.decode.step.past;
        [
            (title(format!("Prefill of {} tokens", self.query.prompt_tokens), &self.prefill), &self.prefill),
            (title(format!("Decode step at position {context}"), &self.decode), &self.decode),
        ]
    }

    /// The operators of a step as a table with a heading and a row of totals.
    fn rows(&self, cost: &StepCost) -> Vec<Vec<String>> {
        let roof = self.peaks.as_ref().ok().map(Roof::stated);
        let mut titles = vec![
            "operator",
            "calls",
            "parameters",
            "FLOP",
            "weights",
            "activations",
            "KV read",
            "KV written",
            "FLOP/B",
        ];
        if roof.is_some() {
            titles.extend(["at least", "bound"]);
        }
        let mut rows = vec![titles.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        let operators = cost.operators.iter().map(|cost| (cost.operator.name(), cost.calls, cost.all));
        let calls: u64 = cost.operators.iter().map(|cost| cost.calls).sum();
        for (name, calls, amounts) in operators.chain([("total", calls, cost.total())]) {
            let amount = |value: f64, unit: &str| {
                if value > 0.0 { scaled(value, unit).trim().to_owned() } else { "–".to_owned() }
            };
            let mut row = vec![
                name.to_owned(),
                grouped(calls as i64),
                amount(amounts.parameters, ""),
                amount(amounts.flops(), ""),
                amount(amounts.weight_bytes, "B"),
                amount(amounts.activation_bytes, "B"),
                amount(amounts.kv_read_bytes, "B"),
                amount(amounts.kv_write_bytes, "B"),
                amounts.intensity().map_or_else(|| "–".to_owned(), three_digits),
            ];
            if let Some(roof) = &roof {
                let (seconds, class) = lower_bound(roof, amounts.flops(), amounts.bytes());
                row.extend([millis(seconds * 1e3), class.word().to_owned()]);
            }
            rows.push(row);
        }
        rows
    }

    /// Memory, peaks and latency bounds, one statement per line.
    fn memory_and_bounds(&self) -> Vec<String> {
        let CostQuery { shape, batch, prompt_tokens, output_tokens, gpu, .. } = &self.query;
        let positions = prompt_tokens.saturating_add(*output_tokens);
        let memory = shape.memory(*batch, *prompt_tokens, positions);
        let mut lines = vec![format!(
            "Memory: {} of weights, {} of KV cache, {} of workspace, {} in total.",
            bytes(memory.weight_bytes),
            bytes(memory.kv_bytes),
            bytes(memory.workspace_bytes),
            bytes(memory.total())
        )];
        if positions > shape.max_positions {
            lines.push(format!(
                "{} positions exceed the model's maximum of {}: a run of this length is refused.",
                grouped(positions as i64),
                grouped(shape.max_positions as i64)
            ));
        }
        let peaks = match (&self.peaks, gpu) {
            (Ok(peaks), _) => peaks,
            (Err(_), None) => {
                lines.push(format!("For latency bounds pass --gpu: {}.", known_gpus()));
                return lines;
            }
            (Err(why), Some(_)) => {
                lines.push(format!("No lower bounds: {why}."));
                return lines;
            }
        };
        if let (Some(gpu), Some(capacity)) = (gpu, self.capacity()) {
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
                "{fits} into {} of GPU memory ({}): {largest_batch}, {longest_context}.",
                bytes(gpu.mem_bytes),
                gpu.name,
            ));
        }
        let clock = peaks.clock_mhz.map_or_else(String::new, |mhz| format!(" at {} MHz", three_digits(mhz)));
        lines.push(format!(
            "Peaks: {} in {}{clock}, {} ({}).",
            scaled(peaks.flops, "FLOP/s"),
            shape.dtype,
            scaled(peaks.bytes_per_s, "B/s"),
            peaks.source
        ));
        lines.push(self.bounds_line("Lower bounds", &Roof::stated(peaks)));
        if let (Some(roof), Some(found)) = (measured(peaks, &shape.dtype), peaks.measured) {
            let reached = format!("{} and {}", scaled(roof.flops, "FLOP/s"), scaled(roof.bytes_per_s, "B/s"));
            lines.push(self.bounds_line(&format!("With measured peaks ({reached}; {})", found.how), &roof));
        }
        lines
    }

    fn bounds_line(&self, title: &str, roof: &Roof) -> String {
        let LatencyBounds { ttft_s, ttft_class, tpot_s, tpot_class } = self.latency_bounds(roof);
        format!(
            "{title}: TTFT {} ({}), TPOT {} ({}), at most {} tok/s.",
            millis(ttft_s * 1e3),
            ttft_class.word(),
            millis(tpot_s * 1e3),
            tpot_class.word(),
            three_digits(self.query.batch as f64 / tpot_s)
        )
    }
}

/// The measured peaks, for the types that they were measured with.
fn measured(peaks: &Peaks, dtype: &str) -> Option<Roof> {
    let found = peaks.measured.filter(|_| matches!(dtype, "bf16" | "f16"))?;
    Some(Roof { flops: found.bf16_flops, bytes_per_s: found.bytes_per_s })
}

fn step_json(cost: &StepCost) -> Value {
    let with_sums = |amounts: &Amounts| {
        let mut object = json!(amounts);
        object["flops"] = json!(amounts.flops());
        object["bytes"] = json!(amounts.bytes());
        object["flop_per_byte"] = json!(amounts.intensity());
        object
    };
    let operators = |all: &[OperatorCost]| -> Vec<Value> {
        let one = |cost: &OperatorCost| {
            let mut object = with_sums(&cost.all);
            object["operator"] = json!(cost.operator);
            object["calls"] = json!(cost.calls);
            object
        };
        all.iter().map(one).collect()
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{built_in, compose};

    fn query(overrides: &[&str], gpu: Option<&str>) -> CostQuery {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let config = compose(&built_in(), &overrides).unwrap().config;
        CostQuery {
            model: config.model.name.clone(),
            shape: Shape::from_hf(&config.model.arch, config.model.nominal_dtype()).unwrap(),
            batch: 1,
            prompt_tokens: 2048,
            output_tokens: 0,
            gpu: gpu.map(|name| GpuPeaks::named(name).unwrap()),
            given_peaks: GivenPeaks::default(),
        }
    }

    #[test]
    fn a_7b_on_an_h200_matches_the_estimate_by_hand() {
        let estimate = CostEstimate::new(query(&["model=qwen2_5_7b", "model.dtype=bf16"], Some("h200")));
        let json = estimate.json();
        // 14.14 GB of weights and 117 MB of cache at 4.8 TB/s; at the measured 4.5 TB/s, 3.17 ms.
        let tpot = json["lower_bounds"]["tpot_ms"].as_f64().unwrap();
        assert!((tpot - 2.9706).abs() < 0.001, "{tpot}");
        let tpot = json["lower_bounds_as_measured"]["tpot_ms"].as_f64().unwrap();
        assert!((tpot - 3.17).abs() < 0.01, "{tpot}");
        // 27.6 TFLOP at 989 TFLOP/s.
        let ttft = json["lower_bounds"]["ttft_ms"].as_f64().unwrap();
        assert!((ttft - 27.9).abs() < 0.1, "{ttft}");
        assert_eq!(json["lower_bounds"]["tpot_bound"], "memory");
        assert_eq!(json["lower_bounds"]["ttft_bound"], "compute");
        assert_eq!(json["parameters"], 7_615_616_512u64);
        assert_eq!(json["fits"], true);
        assert_eq!(json["largest_context"], 131_072);
        assert_eq!(json["decode"]["operators"].as_array().unwrap().len(), 12);
        let text = estimate.text();
        for expected in [
            "7,615,616,512 parameters",
            "gate_up",
            "Lower bounds: TTFT 27.9 ms (compute), TPOT 2.97 ms",
            "4.50 TB/s",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert!(estimate.markdown().contains("| operator | calls |"));
    }

    #[test]
    fn without_a_gpu_the_known_ones_are_listed() {
        let query = query(&["model=llama3_1_8b"], None);
        let estimate = CostEstimate::new(query.clone());
        assert!(estimate.text().contains("pass --gpu: ") && estimate.text().contains("h100_pcie"));
        assert_eq!(estimate.json()["lower_bounds"], Value::Null);
        let given_peaks = GivenPeaks { flops: Some(1e12), bytes_per_s: Some(1e11) };
        let given = CostEstimate::new(CostQuery { given_peaks, ..query });
        assert!(given.text().contains("(given: hardware.peaks)"));
    }

    #[test]
    fn positions_beyond_the_models_maximum_are_reported() {
        let text = |prompt_tokens| {
            CostEstimate::new(CostQuery { prompt_tokens, ..query(&["model=llama3_1_8b"], None) }).text()
        };
        let expected = "200,000 positions exceed the model's maximum of 131,072";
        assert!(text(200_000).contains(expected), "{}", text(200_000));
        assert!(!text(2000).contains("exceed"));
    }

    #[test]
    fn a_model_that_does_not_fit_is_reported() {
        let query = query(&["model=llama3_1_70b", "model.dtype=bf16"], Some("h100"));
        let estimate = CostEstimate::new(query.clone());
        assert_eq!(estimate.json()["fits"], false);
        assert_eq!(estimate.json()["largest_batch"], Value::Null);
        let expected = "Does not fit into 80.0 GB of GPU memory (h100): no batch with these lengths fits";
        assert!(estimate.text().contains(expected), "{}", estimate.text());
        let small = CostEstimate::new(CostQuery { shape: query.shape.clone().quantised(4.5), ..query });
        assert_eq!(small.json()["fits"], true);
        assert!(small.text().contains("(4.50 bits per weight)"), "{}", small.text());
    }
}
