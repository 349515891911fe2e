//! Checks whether a model fits, before anything is allocated.

use crate::kv::KvShape;
use decoder_ops::QUERY_BLOCK;
use llm_cost::ModelSpec;
use llmprof_config::{Dtype, KvCacheDtype};
use llmprof_workload::EngineError;
use rustix::{
    param::page_size,
    process::{Resource, getrlimit},
};
use sysinfo::{CGroupLimits, ProcessRefreshKind, ProcessesToUpdate};

/// The smallest model that comes with the program.
const SMALLEST_MODEL: &str = "smollm2_135m";

/// The memory that a run needs, on any device.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    pub weight_bytes: u64,
    pub cache_bytes: u64,
    /// Activations, tables and everything else.
    pub workspace_bytes: u64,
}

impl Footprint {
    /// For `weight_bytes` of weights and sequences with a `cache`, `prompt` of their positions in the prefill, on the CPU.
    pub fn new(spec: &ModelSpec, dtype: Dtype, weight_bytes: u64, (cache, prompt): (KvShape, usize)) -> Self {
        let KvShape { batch, positions, dtype: kv_cache } = cache;
        let rows = product(&[batch, prompt]);
        // The wide activations of one layer are live at a time, plus the residual stream and its norm.
        let row_floats = product(&[3, spec.mlp_row_width()])
            .saturating_add(product(&[4, spec.hidden]))
            .saturating_add(product(&[2, spec.heads, spec.head_dim]));
        let scores = product(&[batch, spec.heads, QUERY_BLOCK.min(prompt), positions]);
        let activations = rows
            .saturating_mul(row_floats)
            .saturating_add(scores)
            .saturating_add(product(&[batch, spec.vocab]));
        let widened = match dtype {
            Dtype::F32 => 0,
            // The head is multiplied with one row per sequence.
            Dtype::F16 | Dtype::Bf16 => product(&[2, spec.widest_mlp(), spec.hidden]),
        };
        // Keys and values of one layer as f32.
        let read = match kv_cache {
            KvCacheDtype::Auto => 0,
            _ => product(&[2, batch, spec.kv_heads, positions, spec.head_dim]),
        };
        Footprint {
            weight_bytes,
            cache_bytes: cache.bytes(spec, dtype),
            workspace_bytes: activations.saturating_add(widened).saturating_add(read).saturating_mul(4),
        }
    }

    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.cache_bytes).saturating_add(self.workspace_bytes)
    }
}

/// A saturating product.
pub fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1, |product: u64, &factor| product.saturating_mul(factor as u64))
}

/// Memory available without swapping, within the limits of the process and of its control groups; `None` if the system does
/// not report it.
pub fn free_bytes() -> Option<u64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let own = sysinfo::get_current_pid().ok();
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(own.as_slice()),
        true,
        ProcessRefreshKind::nothing(),
    );
    // The file cache of a control group can be evicted, so only resident memory counts.
    let group = |limits: CGroupLimits| limits.total_memory.saturating_sub(limits.rss);
    let own_group = own.and_then(|pid| system.process(pid)?.cgroup_limits());
    let available = Some(system.available_memory()).filter(|&bytes| bytes > 0);
    let groups = system.cgroup_limits().into_iter().chain(own_group).map(group);
    groups.chain(available).chain(free_address_space()).min()
}

/// The rest of the limit on address space (`ulimit -v`), if there is one.
fn free_address_space() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').next()?.parse().ok()?;
    Some(limit.saturating_sub(pages.saturating_mul(page_size() as u64)))
}

/// Refuses a model that does not fit into `free_bytes`, and suggests one that does. `weight_bytes` returns the bytes of its
/// weights if unquantised ones are kept in a type.
pub fn check(
    spec: &ModelSpec,
    model: &str,
    dtype: Dtype,
    weight_bytes: &dyn Fn(Dtype) -> u64,
    (cache, prompt): (KvShape, usize),
    free_bytes: u64,
) -> Result<(), EngineError> {
    // A shorter context has a shorter prompt.
    let footprint = |dtype, positions: usize| {
        let sizes = (KvShape { positions, ..cache }, prompt.min(positions));
        Footprint::new(spec, dtype, weight_bytes(dtype), sizes)
    };
    check_footprint(model, dtype, &footprint, (cache.batch, cache.positions), free_bytes, None)
}

/// Like [`check`]; `footprint` returns the memory of the run for a type and a number of positions. The memory is
/// the machine's, or that of `gpu`.
pub fn check_footprint(
    model: &str,
    dtype: Dtype,
    footprint: &dyn Fn(Dtype, usize) -> Footprint,
    (batch, positions): (usize, usize),
    free_bytes: u64,
    gpu: Option<&str>,
) -> Result<(), EngineError> {
    let half = footprint(Dtype::Bf16, positions);
    let fits = |positions: usize| footprint(dtype, positions).total_bytes() <= free_bytes;
    if fits(positions) {
        return Ok(());
    }
    let footprint = footprint(dtype, positions);
    let mut remedies = Vec::new();
    let shorter = match longest(positions, &fits) {
        Some(most) => format!("a smaller runtime.batch_size or a context of at most {most} positions"),
        None => "a smaller runtime.batch_size or dataset.prompt_tokens".to_owned(),
    };
    if footprint.weight_bytes < free_bytes && (batch > 1 || positions > 256) {
        remedies.push(shorter.as_str());
    }
    if dtype == Dtype::F32 && half.total_bytes() <= free_bytes {
        remedies.push("model.dtype=bf16");
    }
    let smallest = format!("model={SMALLEST_MODEL}");
    if model != SMALLEST_MODEL {
        remedies.push(&smallest);
    }
    let needed = footprint.total_bytes();
    remedies.push(match gpu {
        Some(_) => "stopping other processes on the GPU",
        None if free_address_space().is_some_and(|left| left < needed) => {
            "a higher limit on address space (ulimit -v)"
        }
        None => "an NVIDIA GPU",
    });
    Err(EngineError::OutOfMemory {
        what: model.to_owned(),
        need: gigabytes(footprint.total_bytes()),
        dtype: dtype.name().to_owned(),
        free: match gpu {
            Some(gpu) => format!("{} on {gpu}", gigabytes(free_bytes)),
            None => gigabytes(free_bytes),
        },
        remedy: alternatives(&remedies),
    })
}

/// The largest number of positions below `positions` that `fits`, as a multiple of 64.
fn longest(positions: usize, fits: &dyn Fn(usize) -> bool) -> Option<usize> {
    const STEP: usize = 64;
    let (mut fitting, mut beyond) = (0, positions.div_ceil(STEP));
    while beyond - fitting > 1 {
        let middle = fitting + (beyond - fitting) / 2;
        match fits(middle * STEP) {
            true => fitting = middle,
            false => beyond = middle,
        }
    }
    (fitting > 0).then_some(fitting * STEP)
}

/// Decimal, as vendors of memory and GPUs count; small values in megabytes.
pub fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..100_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

fn alternatives(all: &[&str]) -> String {
    match all {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [one, other] => format!("{one} or {other}"),
        [first @ .., last] => format!("{}, or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn qwen2_5_7b() -> ModelSpec {
        ModelSpec::from_hf(&json!({
            "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
            "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "max_position_embeddings": 131072
        }))
        .unwrap()
    }

    #[test]
    fn refusals_say_what_would_fit() {
        // model, dtype, batch, positions, free, message
        let table = [
            (
                Dtype::F32,
                1,
                160,
                21_900_000_000,
                "qwen2_5_7b needs 30.5 GB as f32, 21.9 GB free; \
                 try model.dtype=bf16, model=smollm2_135m, or an NVIDIA GPU",
            ),
            (
                Dtype::F32,
                1,
                160,
                4_000_000_000,
                "qwen2_5_7b needs 30.5 GB as f32, 4.0 GB free; try model=smollm2_135m or an NVIDIA GPU",
            ),
            (
                Dtype::Bf16,
                1,
                160,
                4_000_000_000,
                "qwen2_5_7b needs 15.8 GB as bf16, 4.0 GB free; try model=smollm2_135m or an NVIDIA GPU",
            ),
            (
                Dtype::Bf16,
                64,
                8192,
                21_900_000_000,
                "qwen2_5_7b needs 217.7 GB as bf16, 21.9 GB free; try a smaller runtime.batch_size or a \
                 context of at most 192 positions, model=smollm2_135m, or an NVIDIA GPU",
            ),
        ];
        let spec = qwen2_5_7b();
        let weights = |dtype| spec.weight_bytes(dtype);
        let sizes = |batch: usize, positions: usize| (KvShape::from((batch, positions)), positions);
        for (dtype, batch, positions, free, message) in table {
            let error =
                check(&spec, "qwen2_5_7b", dtype, &weights, sizes(batch, positions), free).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        assert!(check(&spec, "qwen2_5_7b", Dtype::Bf16, &weights, sizes(1, 160), 21_900_000_000).is_ok());
    }

    #[test]
    fn the_longest_context_that_fits_is_found() {
        assert_eq!(longest(8192, &|positions| positions <= 1000), Some(960));
        assert_eq!(longest(8192, &|positions| positions <= 8191), Some(8128));
        assert_eq!(longest(8192, &|_| false), None);
        assert_eq!(longest(usize::MAX, &|positions| positions <= 64), Some(64));
    }

    #[test]
    fn absurd_requests_do_not_overflow() {
        let footprint = Footprint::new(
            &qwen2_5_7b(),
            Dtype::F32,
            1,
            (KvShape::from((usize::MAX, usize::MAX)), usize::MAX),
        );
        assert_eq!(footprint.total_bytes(), u64::MAX);
    }

    #[test]
    fn some_memory_is_free() {
        assert!(free_bytes().is_some());
    }
}
