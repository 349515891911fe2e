//! Checks of the machine around the GPUs: engine, configuration, disk, memory, terminal.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use serde_json::json;

use super::{Finding, Look, machine::Screen};
use crate::{
    base::units::{bytes, millis},
    config::Dtype,
    engine::{
        Engine, EngineError, Prompts,
        candle::{CandleEngine, CandleOptions},
        sampling::Sampling,
    },
    model::ModelSpec,
};

/// The default run writes about a megabyte a minute; a disk with less than this is nearly full.
const LITTLE_DISK: u64 = 1_000_000_000;
const NO_DISK: u64 = 20_000_000;
/// The smallest model that comes with the program takes 0.6 GB.
const LITTLE_MEMORY: u64 = 1_000_000_000;
const LEAST_SIZE: (u16, u16) = (80, 24);

/// Makes a model of next to nothing and lets it say a few tokens.
pub(super) fn cpu_engine(_: &Look) -> Finding {
    const TOKENS: u32 = 8;
    let begun = std::time::Instant::now();
    match tiny_run(TOKENS) {
        Ok(()) => {
            let took = millis(begun.elapsed().as_secs_f64() * 1e3);
            Finding::pass(format!("works: a tiny model was made and gave {TOKENS} tokens in {took}"))
        }
        Err(error) => Finding::fail(error.to_string())
            .remedy("this is a fault of the program or its build; `cargo test` tells more"),
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
        sampling: Sampling::greedy(),
        cuda_graphs: true,
    };
    let mut engine = CandleEngine::new(&options, &mut |_, _, _| true)?;
    engine.prefill(&Prompts { ids: vec![1, 2, 3, 4], batch: 1 })?;
    (1..tokens).try_for_each(|_| engine.decode().map(drop))?;
    engine.synchronize()
}

pub(super) fn config(look: &Look) -> Finding {
    match &look.machine.runs {
        Ok(_) => Finding::pass("composes"),
        Err(why) => Finding::fail(why.clone()).remedy("llmprof-tui config shows what is composed from where"),
    }
}

pub(super) fn disk(look: &Look) -> Finding {
    let Ok(runs) = &look.machine.runs else {
        return Finding::skip("where runs go is not known (see config)");
    };
    let Some(there) = nearest(runs) else {
        return Finding::fail(format!("{} is nowhere", runs.display())).remedy("set hydra.run.dir");
    };
    let shown = runs.display();
    let elsewhere = "set hydra.run.dir to a folder that is yours, or output.record=false";
    if let Err(error) = access(&there, Access::WRITE_OK | Access::EXEC_OK) {
        return Finding::fail(format!("{shown} cannot be written ({error}): runs would not be recorded"))
            .remedy(elsewhere);
    }
    let Ok(system) = statvfs(&there) else {
        return Finding::skip(format!("{shown}: what is free there is not told"));
    };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let words = format!("{} free for {shown}", bytes(free));
    match free {
        _ if free < NO_DISK => {
            Finding::fail(format!("{words}: runs would not be recorded")).remedy(elsewhere)
        }
        _ if free < LITTLE_DISK => {
            Finding::warn(words).remedy("make room, or set hydra.run.dir to another disk")
        }
        _ => Finding::pass(words),
    }
}

/// The folder itself, or the nearest above it that is there: it will be made below that.
fn nearest(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|path| path.is_dir()).map(Path::to_owned)
}

pub(super) fn memory(look: &Look) -> Finding {
    match look.machine.free_memory {
        None => Finding::skip("the system does not tell what is free"),
        Some(free) if free < LITTLE_MEMORY => {
            Finding::warn(format!("{} free: hardly enough for the smallest model", bytes(free)))
                .remedy("end what takes it, or give the container more")
        }
        Some(free) => Finding::pass(format!("{} free", bytes(free))),
    }
}

pub(super) fn terminal(look: &Look) -> Finding {
    let machine = &look.machine;
    let Screen { terminal, size } = machine.screen;
    if !terminal {
        return Finding::skip("no terminal here: the screen cannot be drawn, `llmprof-tui run` works");
    }
    let term = machine.variable("TERM").unwrap_or("unknown");
    let inside = ["TMUX", "STY", "ZELLIJ"].into_iter().find(|name| machine.variable(name).is_some());
    let inside = inside.map_or("", |name| match name {
        "TMUX" => ", in tmux",
        "STY" => ", in screen",
        _ => ", in zellij",
    });
    let measure =
        size.map_or_else(|| "of unknown size".to_owned(), |(columns, rows)| format!("{columns}×{rows}"));
    let words = format!("{measure}, {}{inside} ({term})", colours(look));
    match size {
        _ if term == "dumb" => Finding::warn(format!("{words}: it cannot place a cursor"))
            .remedy("use another terminal, or `llmprof-tui run`"),
        Some((columns, rows)) if columns < LEAST_SIZE.0 || rows < LEAST_SIZE.1 => Finding::warn(format!(
            "{words}: smaller than {}×{}, panes leave things out",
            LEAST_SIZE.0, LEAST_SIZE.1
        ))
        .remedy("make the window larger, or its letters smaller"),
        _ => Finding::pass(words),
    }
}

fn colours(look: &Look) -> &'static str {
    let variable = |name| look.machine.variable(name);
    let term = variable("TERM").unwrap_or_default();
    match variable("COLORTERM") {
        _ if variable("NO_COLOR").is_some() => "no colours (NO_COLOR)",
        Some("truecolor" | "24bit") => "all colours",
        _ if ["256", "kitty", "alacritty"].iter().any(|name| term.contains(name)) => "256 colours",
        _ => "16 colours (COLORTERM=truecolor, where it has more)",
    }
}

pub(super) fn locale(look: &Look) -> Finding {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| Some((name, look.machine.variable(name)?)));
    let remedy = "export LANG=C.UTF-8";
    match set {
        Some((name, value)) if is_utf8(value) => Finding::pass(format!("{name}={value}")),
        Some((name, value)) => {
            Finding::warn(format!("{name}={value} is not UTF-8: lines and bars may look broken"))
                .remedy(remedy)
        }
        None => Finding::warn("no LANG is set, so nothing promises UTF-8: lines and bars may look broken")
            .remedy(remedy),
    }
}

/// Whether a locale's name promises UTF-8.
pub(super) fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}
