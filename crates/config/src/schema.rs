//! Additions to the composition: other names of keys, and valid ranges.

use hydra_config::{Alias, OutOfRange, Schema};

use super::{RunConfig, tool_config::BadWord};

/// Maximum pixels of a side of a view of an image.
const MAX_SIDE: u32 = 1 << 14;
/// Maximum pixels of a view.
const MAX_PIXELS: u32 = MAX_SIDE * MAX_SIDE;

impl Schema for RunConfig {
    /// Names of keys in configurations that were written for PyTorch harnesses.
    const ALIASES: &'static [Alias] = &[
        Alias { name: "runtime.num_new_tokens", key: "infer.max_new_tokens" },
        Alias { name: "model.path", key: "model.weights" },
        Alias { name: "runtime.torch_profiler.enabled", key: "profiling.torch.enable" },
        Alias { name: "dataset.subset_filelist", key: "dataset.sampling.subset_filelist" },
    ];

    fn out_of_range(&self) -> Option<OutOfRange> {
        let (key, got, expected) = first_out_of_range(self)?;
        Some(OutOfRange { key: key.to_owned(), got, expected })
    }

    fn is_untyped(key: &str) -> bool {
        key == "model.arch"
    }
}

/// The first invalid value: its key, the value and the expected range.
fn first_out_of_range(config: &RunConfig) -> Option<(&'static str, String, String)> {
    let RunConfig { model, dataset, runtime, infer, hardware, profiling, output, hydra, .. } = config;
    let sim = &runtime.sim;
    let sampling = dataset.sampling.as_ref();
    let images = dataset.images.as_ref();
    let samples = sampling.and_then(|sampling| sampling.num_samples_per_epoch).unwrap_or(1);
    let preprocess = model.preprocess.clone().unwrap_or_default();
    let side = |given: Option<u32>| given.unwrap_or(1);
    let integers = [
        ("model.preprocess.base_size", side(preprocess.base_size), 1, MAX_SIDE, "null or 1 to 16384"),
        ("model.preprocess.image_size", side(preprocess.image_size), 1, MAX_SIDE, "null or 1 to 16384"),
        ("model.preprocess.patch_size", side(preprocess.patch_size), 1, 1024, "null or 1 to 1024"),
        (
            "model.preprocess.downsample_ratio",
            side(preprocess.downsample_ratio),
            1,
            1024,
            "null or 1 to 1024",
        ),
        ("model.preprocess.min_pixels", side(preprocess.min_pixels), 1, MAX_PIXELS, "null or 1 to 268435456"),
        ("model.preprocess.max_pixels", side(preprocess.max_pixels), 1, MAX_PIXELS, "null or 1 to 268435456"),
        ("dataset.sampling.num_epochs", sampling.map_or(1, |s| s.num_epochs), 1, u32::MAX, "at least 1"),
        ("dataset.sampling.num_samples_per_epoch", samples.min(1) as u32, 1, 1, "null or at least 1"),
        ("dataset.prompt_tokens", dataset.prompt_tokens, 1, u32::MAX, "at least 1"),
        ("runtime.threads", runtime.threads.unwrap_or(1), 1, 4096, "null or 1 to 4096"),
        ("runtime.batch_size", runtime.batch_size, 1, u32::MAX, "at least 1"),
        ("runtime.requests", runtime.requests.unwrap_or(1), 1, u32::MAX, "null or at least 1"),
        ("infer.max_new_tokens", infer.max_new_tokens, 1, u32::MAX, "at least 1"),
        ("profiling.nvml.interval_ms", profiling.nvml.interval_ms, 10, u32::MAX, "at least 10"),
        ("profiling.host.interval_ms", profiling.host.interval_ms, 10, u32::MAX, "at least 10"),
        ("profiling.torch.steps", profiling.torch.steps, 1, 1000, "1 to 1000"),
        ("dataset.images.per_request", images.map_or(1, |images| images.per_request), 1, 64, "1 to 64"),
        ("dataset.images.width", images.map_or(1, |images| images.width), 1, 16_384, "1 to 16384"),
        ("dataset.images.height", images.map_or(1, |images| images.height), 1, 16_384, "1 to 16384"),
        ("profiling.nsys.requests", profiling.nsys.requests, 1, 100, "1 to 100"),
        ("profiling.ncu.top_k", profiling.ncu.top_k, 1, 100, "1 to 100"),
        ("profiling.ncu.launch_count", profiling.ncu.launch_count, 1, 100_000, "1 to 100000"),
        ("output.flush_ms", output.flush_ms, 1, 60_000, "1 to 60000"),
        ("output.tui.fps", output.tui.fps, 1, 60, "1 to 60"),
    ];
    let floats = [
        ("cost.gpu_hour", config.cost.gpu_hour.unwrap_or(0.0), 0.0, "null or a finite number, 0 or more"),
        (
            "hardware.expected_power_limit_w",
            hardware.expected_power_limit_w.unwrap_or(1.0),
            f64::MIN_POSITIVE,
            "null or a finite number above 0",
        ),
        (
            "hardware.peaks.flops",
            hardware.peaks.flops.unwrap_or(1.0),
            f64::MIN_POSITIVE,
            "null or a finite number above 0",
        ),
        (
            "hardware.peaks.bytes_per_s",
            hardware.peaks.bytes_per_s.unwrap_or(1.0),
            f64::MIN_POSITIVE,
            "null or a finite number above 0",
        ),
        (
            "hardware.isolation.max_other_cpu_pct",
            hardware.isolation.max_other_cpu_pct,
            0.0,
            "a finite number, 0 or more",
        ),
        (
            "runtime.sim.prefill_tok_s",
            sim.prefill_tok_s.unwrap_or(1.0),
            f64::MIN_POSITIVE,
            "null or a finite number above 0",
        ),
        ("runtime.sim.itl_ms", sim.itl_ms.unwrap_or(0.0), 0.0, "null or a finite number, 0 or more"),
        ("runtime.sim.jitter", sim.jitter, 0.0, "a finite number, 0 or more"),
        ("runtime.sim.speed", sim.speed, 0.0, "a finite number, 0 or more"),
    ];
    let texts = [
        ("experiment", &config.experiment),
        ("model.name", &model.name),
        ("dataset.name", &dataset.name),
        ("runtime.device", &runtime.device),
        ("hydra.run.dir", &hydra.run.dir),
    ];
    let integer = integers
        .into_iter()
        .find(|&(_, got, min, max, _)| got < min || got > max)
        .map(|(key, got, _, _, expected)| (key, got.to_string(), expected.to_owned()));
    let float = floats
        .into_iter()
        .find(|&(_, got, min, _)| !got.is_finite() || got < min)
        .map(|(key, got, _, expected)| (key, got.to_string(), expected.to_owned()));
    let text = texts
        .into_iter()
        .find(|(_, got)| got.trim().is_empty())
        .map(|(key, got)| (key, format!("{got:?}"), "text that is not empty".to_owned()));
    let arch = (!model.arch.is_object() && model.config_json.is_none()).then(|| {
        ("model.arch", model.arch.to_string(), "keys and values, or a model.config_json".to_owned())
    });
    let word = profiling.nsys.bad_word().or_else(|| profiling.ncu.bad_word());
    let word = word.map(|BadWord { key, word, expected }| (key, format!("{word:?}"), expected));
    let duty = profiling.cupti.duty.filter(|duty| !(0.0..=1.0).contains(duty));
    let duty = duty.map(|duty| ("profiling.cupti.duty", duty.to_string(), "null or 0 to 1".to_owned()));
    integer.or(float).or(duty).or(text).or(arch).or(word)
}
