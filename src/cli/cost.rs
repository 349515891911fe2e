//! What a model would do on a card: its cost in words and numbers, from its shape alone.

use std::{fmt::Write, path::Path};

use serde_json::{Value, json};

use crate::{
    analysis::{
        peaks::{GPUS, GpuPeaks, Peaks, peaks},
        roofline::Roof,
    },
    base::{
        table::aligned,
        units::{bytes, grouped, millis, scaled, three_digits},
    },
    config::{RunConfig, Weights},
    event::GivenPeaks,
    model::{
        Shape, SpecError, Step,
        cost::{Amounts, CONTEXT_BYTES, StepCost},
        spec,
    },
    run::inputs::{InputsError, Model},
};

/// Version of `static_compute.json` and `cost --json`.
pub const SCHEMA: u32 = 1;

/// What the numbers rest on.
pub const ASSUMPTIONS: [&str; 7] = [
    "a multiplication and an addition are two operations",
    "weights, keys and values are read once for a step, activations go in and out of every operator",
    "logits are made of the last position of each sequence alone, in f32",
    "gate_up has the activation, rope has biases, norms of heads and the write into the cache",
    "of experts each is as likely as any other; the choice is part of gate_up",
    "decode is reckoned in the middle of the output",
    "lower bounds are the greater of operations / peak and bytes of weights and cache / bandwidth; nothing is lost between \
     kernels",
];

/// A model, a workload, and the card it is held against, if any.
#[derive(Debug, Clone)]
pub struct Question {
    pub model: String,
    pub shape: Shape,
    pub batch: u64,
    pub prompt: u64,
    pub output: u64,
    pub gpu: Option<&'static GpuPeaks>,
    pub given: GivenPeaks,
}

/// The card called `name`; otherwise which ones there are.
pub fn gpu_named(name: &str) -> Result<&'static GpuPeaks, String> {
    GpuPeaks::named(name).ok_or_else(|| {
        let known: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
        format!(
            "--gpu {name}: what it can do at most is not known here; known are {}; or leave it out and give \
             hardware.peaks.flops=… hardware.peaks.bytes_per_s=…",
            known.join(", ")
        )
    })
}

/// The shape that `config` names: of weights where it names some, else of a `config.json` or `model.arch`.
pub fn shape_of(config: &RunConfig) -> Result<Shape, CostError> {
    let dtype = config.model.dtype;
    if let Weights::Path(path) = &config.model.weights {
        let model = Model::open(config)?;
        return model.shape(dtype).ok_or_else(|| CostError::Unknown { weights: path.display().to_string() });
    }
    let shape = match &config.model.config_json {
        Some(path) => Shape::from_hf(&spec::read_config_json(Path::new(path))?, dtype)
            .map_err(|cause| SpecError::InFile { path: path.into(), cause: Box::new(cause) })?,
        None => Shape::from_hf(&config.model.arch, dtype)?,
    };
    Ok(shape)
}

#[derive(Debug, thiserror::Error)]
pub enum CostError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Inputs(#[from] InputsError),
    #[error(
        "what the model in {weights} costs can't be reckoned: its family is not one of ours, nor one with experts"
    )]
    Unknown { weights: String },
}

/// Everything that is answered.
pub struct Answer<'a> {
    question: &'a Question,
    prefill: StepCost,
    decode: StepCost,
    peaks: Result<Peaks, String>,
}

impl Question {
    pub fn answer(&self) -> Answer<'_> {
        let gpu = self.gpu.map(|gpu| gpu.name);
        Answer {
            question: self,
            prefill: self.shape.cost(Step::prefill(self.batch, self.prompt)),
            decode: self.shape.cost(Step::decode(self.batch, self.prompt.saturating_add(self.output / 2))),
            peaks: peaks(gpu, &self.shape.dtype, self.given),
        }
    }
}

/// The least time of a step, and what sets it.
fn least(roof: &Roof, total: &Amounts) -> (f64, &'static str) {
    let (flops, bytes) = (total.flops(), total.certain_bytes());
    let seconds = roof.least_seconds(flops, bytes);
    (seconds, if flops / roof.flops >= bytes / roof.bytes_per_s { "compute" } else { "memory" })
}

impl Answer<'_> {
    /// What fits into the card's memory: sequences of these lengths, and positions of this batch.
    fn fits(&self) -> Option<(u64, Option<u64>, Option<u64>)> {
        let Question { shape, batch, prompt, output, gpu, .. } = self.question;
        let free = gpu.as_ref()?.mem_bytes.saturating_sub(CONTEXT_BYTES);
        Some((
            free,
            shape.largest_batch(*prompt, *output, free),
            shape.largest_context(*batch, *output, free),
        ))
    }

    /// For machines, and `static_compute.json`.
    pub fn json(&self) -> Value {
        let Question { model, shape, batch, prompt, output, gpu, .. } = self.question;
        let memory = shape.memory(*batch, *prompt, prompt.saturating_add(*output));
        let fits = self.fits();
        let bounds = |roof: &Roof| {
            let (ttft, by_ttft) = least(roof, &self.prefill.total());
            let (tpot, by_tpot) = least(roof, &self.decode.total());
            json!({
                "ttft_ms": ttft * 1e3, "ttft_bound": by_ttft, "tpot_ms": tpot * 1e3, "tpot_bound": by_tpot,
                "prefill_tok_s": *batch as f64 * *prompt as f64 / ttft, "decode_tok_s": *batch as f64 / tpot,
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
            "workload": {"batch": batch, "prompt_tokens": prompt, "output_tokens": output},
            "prefill": step_json(&self.prefill),
            "decode": step_json(&self.decode),
            "memory": {
                "weight_bytes": memory.weight_bytes, "kv_bytes": memory.kv_bytes,
                "workspace_bytes": memory.workspace_bytes, "total_bytes": memory.total(),
            },
            "gpu": gpu.map(|gpu| gpu.name),
            "gpu_memory_bytes": gpu.map(|gpu| gpu.mem_bytes),
            "fits": gpu.map(|_| fits.is_some_and(|(free, ..)| memory.total() <= free)),
            "largest_batch": fits.and_then(|(_, batch, _)| batch),
            "largest_context": fits.and_then(|(_, _, context)| context),
            "peaks": peaks,
            "no_peaks": self.peaks.as_ref().err(),
            "lower_bounds": peaks.map(|peaks| bounds(&Roof::stated(peaks))),
            "lower_bounds_as_measured": peaks.and_then(|peaks| Some(bounds(&measured(peaks, &shape.dtype)?))),
            "assumptions": ASSUMPTIONS,
        })
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = self.headline();
        out.push_str("\n\n");
        for (title, cost) in self.steps() {
            let _ = writeln!(out, "{title}");
            out += &indented(&self.rows(cost));
            out.push('\n');
        }
        for line in self.last_words() {
            let _ = writeln!(out, "{line}");
        }
        out.trim_end().to_owned()
    }

    /// `static_compute.md`.
    pub fn markdown(&self) -> String {
        let mut out = format!("# What {} costs\n\n{}\n\n", self.question.model, self.headline());
        for (title, cost) in self.steps() {
            let _ = writeln!(out, "## {title}\n");
            for (i, row) in self.rows(cost).iter().enumerate() {
                let _ = writeln!(out, "| {} |", row.join(" | "));
                if i == 0 {
                    let _ = writeln!(out, "|{}", "---|".repeat(row.len()));
                }
            }
            out.push('\n');
        }
        let _ = writeln!(out, "## Memory and lower bounds\n");
        for line in self.last_words() {
            let _ = writeln!(out, "- {}", line.trim());
        }
        let _ = writeln!(out, "\n## What the numbers rest on\n");
        for assumption in ASSUMPTIONS {
            let _ = writeln!(out, "- {assumption}");
        }
        out
    }

    fn headline(&self) -> String {
        let Question { model, shape, batch, prompt, output, .. } = self.question;
        let parameters = match shape.experts {
            None => format!("{} parameters", grouped(shape.parameters() as i64)),
            Some(_) => format!(
                "{} parameters, of which {} for each token",
                grouped(shape.parameters() as i64),
                grouped(shape.active_parameters() as i64)
            ),
        };
        let bits = 8.0 * shape.bytes_per_weight();
        let quantised = match (bits - 8.0 * shape.number_bytes as f64).abs() < 0.01 {
            true => String::new(),
            false => format!(" at {} bits each", three_digits(bits)),
        };
        format!(
            "{model} as {}: {parameters}, {} of weights{quantised}, {} of cache for each position.\n\
             Batch {batch}, {prompt} prompt tokens, {output} output tokens.",
            shape.dtype,
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
            (title(format!("Prefill of {} tokens", self.question.prompt), &self.prefill), &self.prefill),
            (title(format!("Decode step after {context} positions"), &self.decode), &self.decode),
        ]
    }

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
        let all: u64 = cost.operators.iter().map(|cost| cost.calls).sum();
        for (name, calls, amounts) in operators.chain([("all", all, cost.total())]) {
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
            if let Some(roof) = roof {
                let (flops, moved) = (amounts.flops(), amounts.bytes());
                row.push(millis(roof.least_seconds(flops, moved) * 1e3));
                let compute = flops / roof.flops >= moved / roof.bytes_per_s;
                row.push(if compute { "compute" } else { "memory" }.to_owned());
            }
            rows.push(row);
        }
        rows
    }

    /// Memory, and what a card would make of it.
    fn last_words(&self) -> Vec<String> {
        let Question { shape, batch, prompt, output, gpu, .. } = self.question;
        let memory = shape.memory(*batch, *prompt, prompt.saturating_add(*output));
        let mut words = vec![format!(
            "Memory: {} of weights, {} of cache, {} of workspace: {} in all.",
            bytes(memory.weight_bytes),
            bytes(memory.kv_bytes),
            bytes(memory.workspace_bytes),
            bytes(memory.total())
        )];
        if prompt.saturating_add(*output) > shape.max_positions {
            words.push(format!(
                "{} positions are more than the {} the model was made for: a run of them is refused.",
                grouped(prompt.saturating_add(*output) as i64),
                grouped(shape.max_positions as i64)
            ));
        }
        let peaks = match (&self.peaks, gpu) {
            (Ok(peaks), _) => peaks,
            (Err(_), None) => {
                let known: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
                words.push(format!("--gpu says what a card would make of it: {}.", known.join(", ")));
                return words;
            }
            (Err(why), Some(_)) => {
                words.push(format!("No lower bounds: {why}."));
                return words;
            }
        };
        if let (Some(gpu), Some((free, largest_batch, largest_context))) = (gpu, self.fits()) {
            let fits = if memory.total() <= free { "fits" } else { "does not fit" };
            let most = |n: Option<u64>| n.map_or_else(|| "none".to_owned(), |n| grouped(n as i64));
            words.push(format!(
                "It {fits} into the {} of a {}: the largest batch of these lengths is {}, the longest context of this batch {}.",
                bytes(gpu.mem_bytes),
                gpu.name,
                most(largest_batch),
                most(largest_context)
            ));
        }
        let clock = peaks.clock_mhz.map_or_else(String::new, |mhz| format!(" at {} MHz", three_digits(mhz)));
        words.push(format!(
            "Ceilings: {} in {}{clock}, {} ({}).",
            scaled(peaks.flops, "FLOP/s"),
            shape.dtype,
            scaled(peaks.bytes_per_s, "B/s"),
            peaks.source
        ));
        words.push(self.bounds("Lower bounds", &Roof::stated(peaks)));
        if let (Some(roof), Some(found)) = (measured(peaks, &shape.dtype), peaks.measured) {
            let reached = format!("{} and {}", scaled(roof.flops, "FLOP/s"), scaled(roof.bytes_per_s, "B/s"));
            words.push(self.bounds(&format!("With what was reached ({reached}; {})", found.how), &roof));
        }
        words
    }

    fn bounds(&self, title: &str, roof: &Roof) -> String {
        let (ttft, by_ttft) = least(roof, &self.prefill.total());
        let (tpot, by_tpot) = least(roof, &self.decode.total());
        format!(
            "{title}: TTFT {} ({by_ttft}), TPOT {} ({by_tpot}): {} tok/s at most.",
            millis(ttft * 1e3),
            millis(tpot * 1e3),
            three_digits(self.question.batch as f64 / tpot)
        )
    }
}

/// What was reached of the ceilings, where someone looked, of the type that was looked at.
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
    let operators = |all: &[crate::model::cost::OperatorCost]| -> Vec<Value> {
        let one = |cost: &crate::model::cost::OperatorCost| {
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

/// An indented table; every column but the first is numbers.
fn indented(rows: &[Vec<String>]) -> String {
    aligned(rows, |column| column > 0).lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfTree, compose};

    fn question(overrides: &[&str], gpu: Option<&str>) -> Question {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let config = compose(&ConfTree::built_in(), &overrides).unwrap().config;
        Question {
            model: config.model.name.clone(),
            shape: shape_of(&config).unwrap(),
            batch: 1,
            prompt: 2048,
            output: 0,
            gpu: gpu.map(|name| gpu_named(name).unwrap()),
            given: GivenPeaks::default(),
        }
    }

    #[test]
    fn a_7b_on_an_h200_as_reckoned_by_hand() {
        let question = question(&["model=qwen2_5_7b", "model.dtype=bf16"], Some("h200"));
        let answer = question.answer();
        let json = answer.json();
        // 14.14 GB of weights and 117 MB of cache at 4.8 TB/s; at the 4.5 that were reached, 3.17 ms.
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
        let text = answer.text();
        for words in [
            "7,615,616,512 parameters",
            "gate_up",
            "Lower bounds: TTFT 27.9 ms (compute), TPOT 2.97 ms",
            "4.50 TB/s",
        ] {
            assert!(text.contains(words), "{text}");
        }
        assert!(answer.markdown().contains("| operator | calls |"));
    }

    #[test]
    fn without_a_card_it_says_which_there_are() {
        let question = question(&["model=llama3_1_8b"], None);
        let answer = question.answer();
        assert!(answer.text().contains("--gpu says") && answer.text().contains("h100_pcie"));
        assert_eq!(answer.json()["lower_bounds"], Value::Null);
        let given =
            Question { given: GivenPeaks { flops: Some(1e12), bytes_per_s: Some(1e11) }, ..question.clone() };
        assert!(given.answer().text().contains("(given: hardware.peaks)"));
        assert!(gpu_named("voodoo2").unwrap_err().contains("rtx_4090"));
    }

    #[test]
    fn more_than_the_model_was_made_for_is_said() {
        let asked = |prompt| Question { prompt, ..question(&["model=llama3_1_8b"], None) }.answer().text();
        let words = "200,000 positions are more than the 131,072 the model was made for";
        assert!(asked(200_000).contains(words), "{}", asked(200_000));
        assert!(!asked(2000).contains("was made for"));
    }

    #[test]
    fn too_large_is_said() {
        let question = question(&["model=llama3_1_70b", "model.dtype=bf16"], Some("h100"));
        let answer = question.answer();
        assert_eq!(answer.json()["fits"], false);
        assert_eq!(answer.json()["largest_batch"], Value::Null);
        assert!(answer.text().contains("does not fit into the 80.0 GB of a h100"), "{}", answer.text());
        let small = Question { shape: question.shape.clone().quantised(4.5), ..question.clone() };
        assert_eq!(small.answer().json()["fits"], true);
        assert!(small.answer().text().contains("at 4.50 bits each"));
    }
}
