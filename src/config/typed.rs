//! Deserialises the resolved tree into a `RunConfig`, with errors that name the key and its origin.

use serde_yaml_ng::Value;

use super::error::{ConfigError, Names};
use super::run_config::RunConfig;
use super::value_deserializer::{Mismatch, Node};
use super::value_tree::{MISSING, Origins, child_path};

/// Deserialises `tree` and validates its values.
pub(super) fn typed(tree: &Value, origins: &Origins) -> Result<RunConfig, ConfigError> {
    if let Some(key) = first_missing(tree, "") {
        return Err(ConfigError::MissingValue { origin: origins.of(&key), key });
    }
    let config: RunConfig =
        serde_path_to_error::deserialize(Node(tree)).map_err(|error| explain(error, tree, origins))?;
    match first_out_of_range(&config) {
        Some((key, got, expected)) => {
            let origin = origins.of(&key);
            Err(ConfigError::OutOfRange { key, got, expected, origin })
        }
        None => Ok(config),
    }
}

/// The first key whose value is `???`. The untyped `model.arch` is not checked.
fn first_missing(node: &Value, key: &str) -> Option<String> {
    match node {
        Value::String(text) if text == MISSING => Some(key.to_owned()),
        Value::Mapping(entries) if key != "model.arch" => entries.iter().find_map(|(name, value)| {
            first_missing(value, &child_path(key, name.as_str().unwrap_or_default()))
        }),
        _ => None,
    }
}

fn explain(error: serde_path_to_error::Error<Mismatch>, tree: &Value, origins: &Origins) -> ConfigError {
    let path = error.path().to_string();
    let path = if path == "." { "" } else { path.as_str() };
    match error.into_inner() {
        Mismatch::UnknownKey { name, known } => {
            // Depending on the version of the crates the path ends in the unknown key or in its parent.
            let parent = match path.rsplit_once('.') {
                Some((parent, last)) if last == name => parent,
                None if path == name => "",
                _ => path,
            };
            let key = child_path(parent, &name);
            let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
            let names = Names::near(&name, &known).into();
            ConfigError::UnknownKey { origin: origins.of(&key), key, names, add_with: None }
        }
        Mismatch::MissingKey(name) => {
            ConfigError::MissingKey { origin: origins.of(path), key: child_path(path, name) }
        }
        mismatch => {
            let found = path.split('.').try_fold(tree, |node, part| node.get(part));
            // A value that is not text is refused before it is compared with the names. Query the names here.
            let names = found.filter(|value| !value.is_string()).and_then(|_| refusal(path, tree, ""));
            let expected = match (names, mismatch) {
                (Some(Mismatch::UnknownName { known }), _) | (_, Mismatch::UnknownName { known }) => {
                    one_of(known)
                }
                (_, Mismatch::Expected(expected)) => described_type(&expected),
                (_, other) => other.to_string(),
            };
            ConfigError::WrongType {
                key: path.to_owned(),
                got: found.map_or_else(|| "another type".into(), described),
                expected,
                origin: origins.of(path),
            }
        }
    }
}

/// The allowed values at `path` if it is an enumeration or a boolean, else empty.
pub(super) fn allowed_values(path: &str, tree: &Value) -> Vec<String> {
    match refusal(path, tree, "") {
        Some(Mismatch::UnknownName { known }) => known.iter().map(|&name| name.to_owned()).collect(),
        Some(_) if refusal(path, tree, true).is_none() => vec!["true".into(), "false".into()],
        _ => Vec::new(),
    }
}

/// Why `value` is invalid at `path`; `None` if it is valid or there is no such path.
fn refusal(path: &str, tree: &Value, value: impl Into<Value>) -> Option<Mismatch> {
    let mut trial = tree.clone();
    *path.split('.').try_fold(&mut trial, |node, part| node.get_mut(part))? = value.into();
    let error = serde_path_to_error::deserialize::<_, RunConfig>(Node(&trial)).err()?;
    (error.path().to_string() == path).then(|| error.into_inner())
}

fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".into(),
        [only] => (*only).into(),
        [first, second] => format!("{first} or {second}"),
        several => format!("one of {}", several.join(", ")),
    }
}

/// A type as an error names it, from serde's description of it.
fn described_type(expected: &str) -> String {
    match expected {
        "u32" => "an integer from 0 to 4294967295".into(),
        "a nonzero u32" => "an integer from 1 to 4294967295".into(),
        "u64" => "an integer, 0 or more".into(),
        "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "text".into(),
        other if other.starts_with("struct ") || other.contains("map") => "keys and values".into(),
        other => other.replace('`', ""),
    }
}

/// A value as an error quotes it.
pub(super) fn described(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.chars().count() > MAX_CHARS => {
            format!("the text {:?}…", text.chars().take(MAX_CHARS).collect::<String>())
        }
        Value::String(text) => format!("the text {text:?}"),
        Value::Sequence(items) => format!("a list of {}", items.len()),
        Value::Mapping(_) => "keys and values".into(),
        Value::Tagged(_) => "a tagged value".into(),
    }
}

/// The first invalid value: its key, the value and the expected range.
fn first_out_of_range(config: &RunConfig) -> Option<(String, String, &'static str)> {
    let RunConfig { model, dataset, runtime, infer, hardware, profiling, output, hydra, .. } = config;
    let sim = &runtime.sim;
    let sampling = dataset.sampling.as_ref();
    let samples = sampling.and_then(|sampling| sampling.num_samples_per_epoch).unwrap_or(1);
    let integers = [
        ("dataset.sampling.num_epochs", sampling.map_or(1, |s| s.num_epochs), 1, u32::MAX, "at least 1"),
        ("dataset.sampling.num_samples_per_epoch", samples.min(1) as u32, 1, 1, "null or at least 1"),
        ("dataset.prompt_tokens", dataset.prompt_tokens, 1, u32::MAX, "at least 1"),
        ("runtime.threads", runtime.threads.unwrap_or(1), 1, 4096, "null or 1 to 4096"),
        ("runtime.batch_size", runtime.batch_size, 1, u32::MAX, "at least 1"),
        ("runtime.requests", runtime.requests.unwrap_or(1), 1, u32::MAX, "null or at least 1"),
        ("infer.max_new_tokens", infer.max_new_tokens, 1, u32::MAX, "at least 1"),
        ("profiling.nvml.interval_ms", profiling.nvml.interval_ms, 10, u32::MAX, "at least 10"),
        ("profiling.host.interval_ms", profiling.host.interval_ms, 10, u32::MAX, "at least 10"),
        ("profiling.nsys.requests", profiling.nsys.requests, 1, 100, "1 to 100"),
        ("profiling.ncu.top_k", profiling.ncu.top_k, 1, 100, "1 to 100"),
        ("profiling.ncu.launch_count", profiling.ncu.launch_count, 1, 100_000, "1 to 100000"),
        ("output.flush_ms", output.flush_ms, 1, 60_000, "1 to 60000"),
        ("output.tui.fps", output.tui.fps, 1, 60, "1 to 60"),
    ];
    let floats = [
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
        .map(|(key, got, _, _, expected)| (key.to_owned(), got.to_string(), expected));
    let float = floats
        .into_iter()
        .find(|&(_, got, min, _)| !got.is_finite() || got < min)
        .map(|(key, got, _, expected)| (key.to_owned(), got.to_string(), expected));
    let text = texts
        .into_iter()
        .find(|(_, got)| got.trim().is_empty())
        .map(|(key, got)| (key.to_owned(), format!("{got:?}"), "text that is not empty"));
    let arch = (!model.arch.is_object() && model.config_json.is_none()).then(|| {
        ("model.arch".to_owned(), model.arch.to_string(), "keys and values, or a model.config_json")
    });
    integer.or(float).or(text).or(arch)
}
