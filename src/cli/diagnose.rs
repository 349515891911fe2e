//! `diagnose`: the ledger and the verdict of a recorded run, or of a log of telemetry.

use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use thiserror::Error;

use crate::{
    analysis::{
        energy::{Energy, energy},
        throttle::{Diagnosis, Evidence, MissingReasons, diagnose, table},
    },
    base::units::three_digits,
    event::readings::Reading,
    rundir::{EventReader, Next, ReadError, RunDir},
    state::RunState,
    telemetry::log::{self, LogError, LoggedGpu},
};

#[derive(Debug, Error)]
pub enum DiagnoseError {
    #[error(transparent)]
    Run(#[from] ReadError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("{path}: {source}; diagnose takes a run directory, an nvml.csv or a CSV log of nvidia-smi")]
    Open { path: PathBuf, source: std::io::Error },
    #[error("nothing was seen of a GPU in {path}{why}; a diagnosis needs a run with a GPU's telemetry")]
    NothingSeen { path: PathBuf, why: String },
}

/// What is known of one card.
pub struct Diagnosed {
    pub gpu: String,
    pub diagnosis: Diagnosis,
    pub energy: Option<Energy>,
    /// Where it comes from, in words.
    pub source: String,
}

/// Reads `path` and says what it tells of each GPU; the one that matters comes first.
pub fn diagnosed(path: &Path) -> Result<Vec<Diagnosed>, DiagnoseError> {
    let is_run = path.is_dir() || path.extension().is_some_and(|extension| extension == "ndjson");
    let found = if is_run { of_run(path)? } else { of_log(path)? };
    if found.is_empty() {
        return Err(DiagnoseError::NothingSeen { path: path.to_owned(), why: String::new() });
    }
    Ok(found)
}

fn of_run(path: &Path) -> Result<Vec<Diagnosed>, DiagnoseError> {
    let mut reader = EventReader::open(&RunDir::open(path).events())?;
    let mut state = RunState::default();
    while let Next::Event(envelope) = reader.read_next()? {
        state.apply(&envelope);
    }
    if state.gpus.is_empty() {
        let why = state.gpu_absent.as_ref().map_or_else(String::new, |absent| format!(": {}", absent.reason));
        return Err(DiagnoseError::NothingSeen { path: path.to_owned(), why });
    }
    let mut found = of_state(&state);
    for of_gpu in &mut found {
        if state.finished.is_none() {
            of_gpu.source += " that has no end: it is still being written, or was cut off";
        }
        if reader.skipped() > 0 {
            of_gpu.source += &format!(", {} lines could not be read", reader.skipped());
        }
    }
    Ok(found)
}

/// What the state of a run tells of each GPU, the profiled one first.
pub fn of_state(state: &RunState) -> Vec<Diagnosed> {
    let mut gpus: Vec<_> = state.gpus.iter().collect();
    gpus.sort_by_key(|gpu| !gpu.info.profiled);
    let of = |gpu: &&crate::state::GpuState| {
        Some(Diagnosed {
            gpu: format!("GPU {} · {}", gpu.info.index, gpu.info.name),
            diagnosis: state.diagnosis_of(gpu)?,
            energy: energy(&gpu.ledger),
            source: format!("{} s of a run", three_digits(gpu.ledger.span_s())),
        })
    };
    gpus.iter().filter_map(of).collect()
}

fn of_log(path: &Path) -> Result<Vec<Diagnosed>, DiagnoseError> {
    let file = File::open(path).map_err(|source| DiagnoseError::Open { path: path.to_owned(), source })?;
    let log = log::read(&path.display().to_string(), BufReader::new(file))?;
    Ok(log.gpus.iter().filter_map(|gpu| of_logged(gpu, log.skipped)).collect())
}

fn of_logged(gpu: &LoggedGpu, skipped: u64) -> Option<Diagnosed> {
    let diagnosis = diagnose(&Evidence {
        info: &gpu.info,
        ledger: &gpu.ledger,
        workload: None,
        tpot_ms: None,
        device_share: None,
        temp_c: gpu.last.get(Reading::Temp),
        fan_pct: gpu.last.get(Reading::Fan),
        pcie_width: gpu.last.get(Reading::PcieWidth),
        others: &[],
        lost: None,
        missing_reasons: MissingReasons::NotLogged,
    })?;
    let skipped = if skipped > 0 { format!(", {skipped} rows could not be read") } else { String::new() };
    Some(Diagnosed {
        gpu: format!("GPU {} · {}", gpu.info.index, gpu.info.name),
        diagnosis,
        energy: energy(&gpu.ledger),
        source: format!("{} s in {} rows of a log{skipped}", three_digits(gpu.ledger.span_s()), gpu.rows),
    })
}

/// The diagnosis for people.
pub fn text(found: &Diagnosed) -> String {
    let Diagnosed { gpu, diagnosis, energy, source } = found;
    let mut out = format!("{gpu} ({source})\n\n{}\n", diagnosis.verdict);
    if !diagnosis.causes.is_empty() {
        out += &format!("\n{}\n\n", table::text(&diagnosis.causes));
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

/// The same for machines: that of the first GPU, and of all.
pub fn to_json(found: &[Diagnosed]) -> Value {
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
