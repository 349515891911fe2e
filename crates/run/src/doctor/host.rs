//! Checks of the host: engine, configuration, disk, memory, terminal.

use rustix::fs::{Access, access, statvfs};
use serde_json::json;

use super::{Context, Finding, machine::Screen};
use llm_cost::ModelSpec;
use llmprof_base::units::{bytes, millis};
use llmprof_config::{Dtype, KvCacheDtype};
use llmprof_engine::{
    candle::{CandleEngine, CandleOptions},
    sampling::Sampling,
};
use llmprof_workload::{Engine, EngineError, Prompts};

/// The default run writes about 1 MB per minute; a disk with less free space than this is nearly full.
const LOW_DISK_BYTES: u64 = 1_000_000_000;
const FULL_DISK_BYTES: u64 = 20_000_000;
/// The smallest model needs 0.6 GB.
const LOW_MEMORY_BYTES: u64 = 1_000_000_000;
const MIN_COLUMNS: u16 = 80;
const MIN_ROWS: u16 = 24;

/// Runs a tiny model for a few tokens.
pub(super) fn cpu_engine(_: &Context) -> Finding {
    const TOKENS: u32 = 8;
    let begun = std::time::Instant::now();
    match tiny_run(TOKENS) {
        Ok(()) => {
            let duration = millis(begun.elapsed().as_secs_f64() * 1e3);
            Finding::pass(format!("works: a tiny model generated {TOKENS} tokens in {duration}"))
        }
        Err(error) => Finding::fail(error.to_string())
            .remedy("this is a bug in the program or its build; run `cargo test`"),
    }
}

fn tiny_run(tokens: u32) -> Result<(), EngineError> {
    let shape = json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "max_position_embeddings": 64,
    });
    let options = CandleOptions {
        spec: ModelSpec::from_hf(&shape).map_err(|e| EngineError::Backend(e.to_string()))?,
        model: "a tiny model".to_owned(),
        dtype: Dtype::F32,
        threads: Some(1),
        batch: 1,
        max_positions: 32,
        prompt_tokens: 4,
        seed: 0,
        checkpoint: None,
        scheme: None,
        sampling: Sampling::greedy(),
        cuda_graphs: true,
        cublas: true,
        fused_step: true,
        kv_cache: KvCacheDtype::Auto,
        step_positions: 1,
    };
    let mut engine = CandleEngine::new(&options, &mut |_, _, _| true)?;
    engine.prefill(&Prompts { ids: vec![1, 2, 3, 4], batch: 1 })?;
    (1..tokens).try_for_each(|_| engine.decode().map(drop))?;
    engine.synchronize()
}

pub(super) fn config(context: &Context) -> Finding {
    match &context.machine.runs {
        Ok(_) => Finding::pass("valid"),
        Err(why) => {
            Finding::fail(why.clone()).remedy("correct the file; `llmprof-tui config` prints the result")
        }
    }
}

pub(super) fn disk(context: &Context) -> Finding {
    let Ok(runs) = &context.machine.runs else {
        return Finding::skip("the run directory is unknown (see config)");
    };
    let dir = runs.display();
    // The directory itself, or the nearest existing one above it.
    let Some(existing) = runs.ancestors().find(|path| path.is_dir()) else {
        return Finding::fail(format!("{dir} does not exist")).remedy("set hydra.run.dir");
    };
    let remedy = "set hydra.run.dir to a writable directory, or output.record=false";
    if let Err(error) = access(existing, Access::WRITE_OK | Access::EXEC_OK) {
        return Finding::fail(format!("{dir} cannot be written ({error}): runs would not be recorded"))
            .remedy(remedy);
    }
    let Ok(system) = statvfs(existing) else {
        return Finding::skip(format!("{dir}: free space unknown"));
    };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let text = format!("{} free for {dir}", bytes(free));
    match free {
        ..FULL_DISK_BYTES => Finding::fail(format!("{text}: runs would not be recorded")).remedy(remedy),
        FULL_DISK_BYTES..LOW_DISK_BYTES => {
            Finding::warn(text).remedy("free some space, or set hydra.run.dir to another disk")
        }
        _ => Finding::pass(text),
    }
}

pub(super) fn memory(context: &Context) -> Finding {
    match context.machine.free_memory {
        None => Finding::skip("the system does not report free memory"),
        Some(free @ ..LOW_MEMORY_BYTES) => {
            Finding::warn(format!("{} free: hardly enough for the smallest model", bytes(free)))
                .remedy("stop other programs, or raise the container's memory limit")
        }
        Some(free) => Finding::pass(format!("{} free", bytes(free))),
    }
}

pub(super) fn terminal(context: &Context) -> Finding {
    let machine = &context.machine;
    let Screen { terminal, size } = machine.screen;
    if !terminal {
        return Finding::skip("not a terminal: the TUI cannot be shown, `llmprof-tui run` works");
    }
    let term = machine.variable("TERM").unwrap_or("unknown");
    let multiplexers = [("TMUX", ", in tmux"), ("STY", ", in screen"), ("ZELLIJ", ", in zellij")];
    let inside = multiplexers.into_iter().find(|(name, _)| machine.variable(name).is_some());
    let inside = inside.map_or("", |(_, text)| text);
    let dimensions =
        size.map_or_else(|| "unknown size".to_owned(), |(columns, rows)| format!("{columns}×{rows}"));
    let text = format!("{dimensions}, {}{inside} ({term})", colours(context));
    match size {
        _ if term == "dumb" => Finding::warn(format!("{text}: it cannot move the cursor"))
            .remedy("use another terminal, or `llmprof-tui run`"),
        Some((columns, rows)) if columns < MIN_COLUMNS || rows < MIN_ROWS => {
            Finding::warn(format!("{text}: smaller than {MIN_COLUMNS}×{MIN_ROWS}, panes show less"))
                .remedy("enlarge the window, or use a smaller font")
        }
        _ => Finding::pass(text),
    }
}

fn colours(context: &Context) -> &'static str {
    let variable = |name| context.machine.variable(name);
    let term = variable("TERM").unwrap_or_default();
    match variable("COLORTERM") {
        _ if variable("NO_COLOR").is_some() => "no colours (NO_COLOR)",
        Some("truecolor" | "24bit") => "true colour",
        _ if ["256", "kitty", "alacritty"].iter().any(|name| term.contains(name)) => "256 colours",
        _ => "16 colours (set COLORTERM=truecolor if it has more)",
    }
}

pub(super) fn locale(context: &Context) -> Finding {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| Some((name, context.machine.variable(name)?)));
    let remedy = "export LANG=C.UTF-8";
    match set {
        Some((name, value)) if is_utf8(value) => Finding::pass(format!("{name}={value}")),
        Some((name, value)) => {
            Finding::warn(format!("{name}={value} is not UTF-8: lines and bars may look broken"))
                .remedy(remedy)
        }
        None => Finding::warn("LANG is not set, so UTF-8 is not assured: lines and bars may look broken")
            .remedy(remedy),
    }
}

/// Whether the name of a locale contains UTF-8.
pub(super) fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}
