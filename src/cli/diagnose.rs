//! `diagnose`: what slowed the GPU in a recorded run or a telemetry log.

use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::{Value, json};

use super::{Failure, args::resolve_run, print, print_data, read_run};
use llmprof_analysis::{
    energy::{Energy, energy},
    throttle::{Diagnosis, Evidence, diagnose, table},
};
use llmprof_base::{
    foreign::{MAX_LINE, line},
    units::three_digits,
};
use llmprof_event::readings::Reading;
use llmprof_record::state::{GpuState, RunState};
use llmprof_sources::telemetry::log::{self, LoggedGpu, TelemetryLog};

pub(super) const EXAMPLES: &str = "\
Record a log to diagnose:
  nvidia-smi -lms 200 --format=csv -f gpu.csv --query-gpu=timestamp,index,name,utilization.gpu,utilization.memory,\
clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active,power.limit,power.max_limit,clocks.max.sm,\
clocks.max.mem
  llmprof-tui diagnose gpu.csv
  nvidia-smi dmon -s pucv -o DT -f dmon.txt
  llmprof-tui diagnose dmon.txt";

#[derive(Debug, Args)]
pub(super) struct DiagnoseArgs {
    /// Run (its directory, latest, latest~1 or a part of its path) or log (nvml.csv, nvidia-smi --format=csv, nvidia-smi dmon)
    path: PathBuf,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    json: bool,
}

/// The diagnosis of one GPU.
pub(super) struct Diagnosed {
    gpu: String,
    diagnosis: Diagnosis,
    energy: Option<Energy>,
    /// The source of the diagnosis.
    source: String,
}

pub(super) fn run(args: &DiagnoseArgs) -> Result<u8, Failure> {
    print_all(&diagnosed(&resolve_run(&args.path)?)?, args.json)?;
    Ok(0)
}

/// Prints the diagnosis of every GPU.
pub(super) fn print_all(found: &[Diagnosed], json: bool) -> Result<(), Failure> {
    match json {
        true => print_data(&to_json(found).to_string()),
        false => print(&found.iter().map(text).collect::<Vec<_>>().join("\n\n")),
    }
}

/// Reads `path` and diagnoses each GPU in it, the profiled one first.
fn diagnosed(path: &Path) -> Result<Vec<Diagnosed>, Failure> {
    let is_run = path.is_dir() || path.extension().is_some_and(|extension| extension == "ndjson");
    let found = if is_run { of_run(path)? } else { of_log(path)? };
    if found.is_empty() {
        return Err(no_samples(path, ""));
    }
    Ok(found)
}

fn no_samples(path: &Path, why: &str) -> Failure {
    let path = path.display();
    Failure::work(format_args!("{path} has no GPU samples{why}; a diagnosis needs a run with GPU telemetry"))
}

fn of_run(path: &Path) -> Result<Vec<Diagnosed>, Failure> {
    let (state, skipped) = read_run(path)?;
    if state.gpus.is_empty() {
        let why = state.gpu_absent.as_ref().map_or_else(String::new, |absent| format!(": {}", absent.reason));
        return Err(no_samples(path, &why));
    }
    let mut found = of_state(&state);
    for of_gpu in &mut found {
        if state.finished.is_none() {
            of_gpu.source += ", without an end: the run is still being recorded, or was interrupted";
        }
        if skipped > 0 {
            of_gpu.source += &format!(", {skipped} unreadable lines skipped");
        }
    }
    Ok(found)
}

/// The diagnosis of each GPU of a run, the profiled one first.
pub(super) fn of_state(state: &RunState) -> Vec<Diagnosed> {
    let mut gpus: Vec<_> = state.gpus.iter().collect();
    gpus.sort_by_key(|gpu| !gpu.info.profiled);
    let of = |gpu: &&GpuState| {
        Some(Diagnosed {
            gpu: format!("GPU {} · {}", gpu.info.index, gpu.info.name),
            diagnosis: state.diagnosis_of(gpu)?,
            energy: state.energy(gpu),
            source: format!("{} s of a run", three_digits(gpu.ledger.span_s())),
        })
    };
    gpus.iter().filter_map(of).collect()
}

fn of_log(path: &Path) -> Result<Vec<Diagnosed>, Failure> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| {
        Failure::work(format_args!(
            "{name}: {e}; diagnose reads a run directory, an nvml.csv or a log of nvidia-smi"
        ))
    })?;
    let log = log::read(&name, BufReader::new(file)).map_err(Failure::work)?;
    Ok(log.gpus.iter().filter_map(|gpu| of_logged(gpu, &log)).collect())
}

fn of_logged(gpu: &LoggedGpu, log: &TelemetryLog) -> Option<Diagnosed> {
    let diagnosis = diagnose(&Evidence {
        info: &gpu.info,
        ledger: &gpu.ledger,
        workload: None,
        tpot_ms: None,
        device_share: None,
        fan_pct: gpu.last.get(Reading::Fan),
        pcie_width: gpu.last.get(Reading::PcieWidth),
        others: &[],
        lost: gpu.lost.as_ref(),
        began: log.began,
    })?;
    let mut source = format!("{} s in {} rows of a log", three_digits(gpu.ledger.span_s()), gpu.rows);
    if log.skipped > 0 {
        source += &format!(", {} unreadable rows skipped", log.skipped);
    }
    if log.gpus.len() > 1 {
        source += &format!("; {}", log.identified_by);
    }
    if log.assumed_interval {
        source += "; no times: 1 s between polls is assumed, nvidia-smi dmon -o DT records them";
    }
    if gpu.last.get(Reading::GpuUtil).is_none() && !gpu.ledger.has_phases() {
        source += "; no utilisation: load is estimated from clock event reasons, clock and power";
    }
    Some(Diagnosed {
        gpu: format!("GPU {} · {}", gpu.info.index, gpu.info.name),
        diagnosis,
        energy: energy(&gpu.ledger),
        source,
    })
}

fn text(found: &Diagnosed) -> String {
    let Diagnosed { gpu, diagnosis, energy, source } = found;
    let heading = line(&format!("{gpu} ({source})"), MAX_LINE);
    let mut out = format!("{heading}\n\n{}\n", diagnosis.verdict);
    if !diagnosis.causes.is_empty() {
        out += &format!("\n{}\n\n", table::table(&diagnosis.causes).text());
        for cause in diagnosis.causes.iter().filter(|cause| cause.cost_pct.is_some()) {
            out += &format!("{}, {}: {}\n", cause.phase, cause.reason, cause.basis);
        }
    }
    if let Some(energy) = energy {
        out += &format!("\nEnergy:\n  {}\n", energy.lines().join("\n  "));
    }
    for advice in &diagnosis.advice {
        out += &format!("\n→ {advice}.");
    }
    out.trim_end().to_owned()
}

/// The diagnosis of the first GPU, and of all of them under `gpus`.
fn to_json(found: &[Diagnosed]) -> Value {
    let of = |found: &Diagnosed| {
        json!({
            "gpu": found.gpu,
            "source": found.source,
            "verdict": found.diagnosis.verdict,
            "tone": found.diagnosis.tone,
            "causes": found.diagnosis.causes,
            "advice": found.diagnosis.advice,
            "energy": found.energy,
        })
    };
    let mut object = found.first().map_or(json!({}), of);
    object["schema"] = json!(1);
    object["gpus"] = found.iter().map(of).collect();
    object
}
