//! The files of a run directory, and the list of runs.

use std::{
    ffi::OsStr,
    fmt, fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use thiserror::Error;

use llmprof_analysis::metrics::MetricsSummary;
use llmprof_base::{dir::read_file, units::percent_change};
use llmprof_event::Outcome;

/// Maximum size of `metrics.json` in bytes: many times that of a real one.
const MAX_RESULT_BYTES: u64 = 64 << 20;

/// Maximum characters of a snapshot's name: with a number appended, it is a valid file name in every script.
pub const MAX_SNAPSHOT_NAME: usize = 60;

/// A path at which no directory can be created.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} is not the path of a new directory; give one, such as runs/mine", .path.display())]
pub struct NoNewDir {
    path: PathBuf,
}

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Creates a new directory at `path`, or one with a number appended if it exists already.
    pub fn create(path: &Path) -> io::Result<RunDir> {
        let name = RunDir::name_in(path).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let name = name.to_string_lossy();
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        for n in 1..1000 {
            let candidate = if n == 1 { path.to_owned() } else { path.with_file_name(format!("{name}-{n}")) };
            match fs::create_dir(&candidate) {
                Ok(()) => return Ok(RunDir(candidate)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "a thousand runs have this name"))
    }

    /// The name of a directory that can be created at `path`. `.` and `..` are refused: they exist, and a number would
    /// make a different name of them.
    pub fn name_in(path: &Path) -> Result<&OsStr, NoNewDir> {
        path.file_name().ok_or_else(|| NoNewDir { path: path.to_owned() })
    }

    /// An existing run, from its directory or its `events.ndjson`.
    pub fn open(path: &Path) -> RunDir {
        match path.file_name() {
            Some(name) if name == "events.ndjson" => {
                RunDir(path.parent().unwrap_or(Path::new(".")).to_owned())
            }
            _ => RunDir(path.to_owned()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `path`, which is in this directory, relative to it.
    pub fn below<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.0).unwrap_or(path)
    }

    pub fn events(&self) -> PathBuf {
        self.0.join("events.ndjson")
    }

    pub fn nvml_csv(&self) -> PathBuf {
        self.0.join("nvml.csv")
    }

    /// For Chrome and Perfetto.
    pub fn trace(&self) -> PathBuf {
        self.0.join("trace.json")
    }

    pub fn config(&self) -> PathBuf {
        self.0.join("config.yaml")
    }

    pub fn overrides(&self) -> PathBuf {
        self.0.join("overrides.yaml")
    }

    /// Hydra's files: the configuration as written, Hydra's settings, the overrides.
    pub fn hydra(&self) -> PathBuf {
        self.0.join(".hydra")
    }

    pub fn environment(&self) -> PathBuf {
        self.0.join("env.json")
    }

    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.json")
    }

    pub fn predictions(&self) -> PathBuf {
        self.0.join("predictions").join("predictions.jsonl")
    }

    /// The result in `metrics.json`; `None` while the run is being recorded, or when it was killed.
    pub fn result(&self) -> Option<RunResult> {
        read_file(&self.metrics(), MAX_RESULT_BYTES).ok().and_then(|text| serde_json::from_slice(&text).ok())
    }

    pub fn log(&self) -> PathBuf {
        self.0.join("llmprof.log")
    }

    pub fn snapshot(&self, name: &str) -> PathBuf {
        self.0.join("snapshots").join(snapshot_file(name))
    }
}

/// The name of the file of a snapshot. Different snapshots may have the same.
pub fn snapshot_file(name: &str) -> String {
    let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(safe).collect();
    format!("{}.json", name.trim_start_matches('.'))
}

/// The directory of the runs of repeated comparisons, below the root of all runs.
pub fn comparisons_dir(root: &Path) -> PathBuf {
    root.join("compare")
}

/// The directory of the repeated comparison that the run `dir` belongs to.
pub fn pairs_of(root: &Path, dir: &Path) -> Option<PathBuf> {
    let pairs = dir.parent()?;
    (pairs.parent()? == comparisons_dir(root)).then(|| pairs.to_owned())
}

/// A run in the list of runs.
#[derive(Debug, Clone)]
pub struct RunEntry {
    pub dir: RunDir,
    pub experiment: String,
    pub model: String,
    pub name: String,
    pub modified: SystemTime,
    pub kind: RunKind,
    /// The directory of the sweep that it is a job of.
    pub sweep: Option<PathBuf>,
    /// The directory of the repeated comparison that it is a run of.
    pub pairs: Option<PathBuf>,
    /// `None` while the run is being recorded, or when it was killed.
    pub result: Option<RunResult>,
    /// A program is recording it.
    pub running: bool,
    /// False if the directory did not answer in time; nothing else is known about it.
    pub answers: bool,
}

/// The part of `metrics.json` that the list shows.
#[derive(Debug, Clone, Deserialize)]
pub struct RunResult {
    #[serde(deserialize_with = "outcome")]
    pub outcome: Outcome,
    #[serde(default)]
    pub cause: Option<String>,
    #[serde(default)]
    pub run: Option<RunKind>,
    pub metrics: MetricsSummary,
    #[serde(default, deserialize_with = "if_valid")]
    pub diagnosis: Option<Judged>,
    #[serde(default, deserialize_with = "if_valid")]
    pub trust: Option<TrustScore>,
}

/// An unknown outcome counts as not completed.
fn outcome<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Outcome, D::Error> {
    let known = serde_json::from_value(serde_json::Value::deserialize(deserializer)?);
    Ok(known.unwrap_or(Outcome::Interrupted))
}

/// `None` for a value that another version wrote in a different form.
fn if_valid<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(deserializer)?).ok())
}

/// The kind of a run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RunKind {
    /// Nothing in it was measured.
    pub simulated: bool,
    pub experiment: Option<String>,
    pub model: Option<String>,
    pub dtype: Option<String>,
    pub batch: Option<u32>,
    pub overrides: Vec<String>,
}

/// The diagnosis of the run's GPU.
#[derive(Debug, Clone, Deserialize)]
pub struct Judged {
    pub verdict: String,
    pub throttled: bool,
    #[serde(default)]
    pub causes: Vec<JudgedCause>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct JudgedCause {
    pub reason: String,
    pub fault: Option<bool>,
    pub cost_pct: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct TrustScore {
    pub score: u32,
    pub of: u32,
    #[serde(default, rename = "doubts")]
    pub issues: Vec<String>,
}

/// How a run ended or, if it completed, what limited it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict<'a> {
    Running,
    /// It was killed, or is still running.
    NoEnd,
    Ended(Outcome),
    Throttled {
        reason: &'a str,
        /// The loss of speed in the phase.
        cost_pct: Option<f64>,
    },
    Unthrottled,
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Running => f.write_str("running"),
            Verdict::NoEnd => f.write_str("no end"),
            Verdict::Ended(outcome) => outcome.fmt(f),
            Verdict::Throttled { reason, cost_pct: None } => f.write_str(reason),
            Verdict::Throttled { reason, cost_pct: Some(cost) } => {
                write!(f, "{reason} {}", percent_change(-cost))
            }
            Verdict::Unthrottled => f.write_str("not throttled"),
        }
    }
}

impl RunEntry {
    /// A directory that does not answer.
    pub fn silent(root: &Path, dir: &Path) -> RunEntry {
        let name = dir.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty()).unwrap_or(dir);
        RunEntry {
            dir: RunDir(dir.to_owned()),
            experiment: String::new(),
            model: String::new(),
            name: name.display().to_string(),
            modified: SystemTime::UNIX_EPOCH,
            kind: RunKind::default(),
            sweep: None,
            pairs: None,
            result: None,
            running: false,
            answers: false,
        }
    }

    /// The directory of the sweep or of the pairs that it belongs to.
    pub fn set(&self) -> Option<&PathBuf> {
        self.sweep.as_ref().or(self.pairs.as_ref())
    }

    /// Nothing in it was measured.
    pub fn simulated(&self) -> bool {
        self.kind.simulated
    }

    pub fn metrics(&self) -> Option<&MetricsSummary> {
        self.result.as_ref().map(|result| &result.metrics)
    }

    pub fn verdict(&self) -> Verdict<'_> {
        let Some(result) = &self.result else {
            return if self.running { Verdict::Running } else { Verdict::NoEnd };
        };
        match (result.outcome, &result.diagnosis) {
            (Outcome::Completed, Some(judged)) if judged.throttled => {
                let faults = judged.causes.iter().filter(|cause| cause.fault == Some(true));
                let cost = |cause: &JudgedCause| cause.cost_pct.unwrap_or(0.0);
                match faults.max_by(|a, b| cost(a).total_cmp(&cost(b))) {
                    Some(worst) => Verdict::Throttled { reason: &worst.reason, cost_pct: worst.cost_pct },
                    None => Verdict::Throttled { reason: "throttled", cost_pct: None },
                }
            }
            (Outcome::Completed, Some(_)) => Verdict::Unthrottled,
            (outcome, _) => Verdict::Ended(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::list_runs, *};

    #[test]
    fn two_runs_in_one_second_get_two_directories() {
        let root = tempfile::tempdir().unwrap();
        let wanted = root.path().join("baseline/tiny/2026-01-01");
        let (a, b) = (RunDir::create(&wanted).unwrap(), RunDir::create(&wanted).unwrap());
        assert_eq!(a.path(), wanted);
        assert_eq!(b.path().file_name().unwrap(), "2026-01-01-2");
        fs::write(a.events(), "").unwrap();
        let runs = list_runs(root.path());
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].experiment.as_str(), runs[0].model.as_str()), ("baseline", "tiny"));
        assert!(runs[0].result.is_none());
    }

    #[test]
    fn a_directory_without_a_name_is_refused() {
        for path in [".", "..", "/", "a/.."] {
            let error = RunDir::create(Path::new(path)).unwrap_err().to_string();
            assert!(error.starts_with(path) && error.contains("such as runs/mine"), "{error}");
        }
        assert_eq!(RunDir::name_in(Path::new("./a/.")).unwrap(), "a");
    }

    fn result(diagnosis: serde_json::Value, trust: serde_json::Value) -> RunResult {
        let none = serde_json::json!({"n": 0});
        let metrics = serde_json::json!({
            "from_s": 0.0, "to_s": 1.0, "requests": 1, "output_tokens": 1,
            "ttft_ms": none, "tpot_ms": none, "itl_ms": none, "prefill_tok_s": null, "decode_tok_s": null,
        });
        let document = serde_json::json!({
            "outcome": "completed", "metrics": metrics, "diagnosis": diagnosis, "trust": trust,
        });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_verdict_names_the_limit_that_costs_most() {
        let cause = |reason: &str, fault: bool, cost: Option<f64>| serde_json::json!({"reason": reason, "fault": fault, "cost_pct": cost});
        let causes = [
            cause("idle", false, Some(50.0)),
            cause("power cap", true, Some(15.7)),
            cause("sync boost", true, None),
        ];
        let diagnosis = |throttled: bool| serde_json::json!({"verdict": "words", "throttled": throttled, "causes": causes});
        let mut run = RunEntry::silent(Path::new("runs"), Path::new("runs/x"));
        assert_eq!(run.verdict(), Verdict::NoEnd);
        run.running = true;
        assert_eq!(run.verdict().to_string(), "running");
        run.result =
            Some(result(diagnosis(true), serde_json::json!({"score": 4, "of": 5, "doubts": ["few"]})));
        assert_eq!(run.verdict().to_string(), "power cap -16 %");
        assert_eq!(run.result.as_ref().unwrap().trust.as_ref().unwrap().issues, ["few"]);
        run.result = Some(result(diagnosis(false), serde_json::Value::Null));
        assert_eq!(run.verdict(), Verdict::Unthrottled);
        // Values that another version wrote in a different form are left out.
        run.result = Some(result(serde_json::json!("text"), serde_json::json!({"score": "high"})));
        assert_eq!(run.verdict(), Verdict::Ended(Outcome::Completed));
        assert!(run.result.unwrap().trust.is_none());
    }

    #[test]
    fn a_snapshot_stays_inside_its_run() {
        let dir = RunDir(PathBuf::from("/runs/x"));
        for name in ["../../etc/passwd", "a b", "..", "/"] {
            assert_eq!(dir.snapshot(name).parent().unwrap(), Path::new("/runs/x/snapshots"), "{name}");
        }
    }
}
