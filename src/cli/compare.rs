//! `compare` and `baseline`: whether one run is faster than another.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};

use super::{
    Failure,
    args::{ConfigArgs, ConfigRequest, resolve_run, runs_root},
    print, print_data, print_json,
};
use llmprof_analysis::compare::{DEFAULT_METRICS, Gate, MIN_RUNS, Metric, Options, fact_names};
use llmprof_base::process::{eprint_line, shutdown::Cause};
use llmprof_config::Override;
use llmprof_run::{
    compare::{self, CompareError, GatedComparison, Repeat, RepeatSide, Written},
    plan::Plan,
};

pub(super) const EXAMPLES: &str = "\
A and B are runs, snapshots (RUN/snapshots/NAME.json), sweeps (compared job by job) or baselines.
A run may be given as latest, latest~1 (the one before it), or an unambiguous part of its path.

Two recorded runs:
  llmprof-tui compare latest~1 latest
  llmprof-tui compare runs/…/2026-01-01_12-00-00 12-10-00
In CI, with a baseline named main:
  llmprof-tui compare main runs/… --gate 'tpot<=+2%' --gate 'ttft<=+5%'
  llmprof-tui compare main runs/… --metric tpot,itl.p99 --md
Interleaved runs of two configurations:
  llmprof-tui compare --repeat 20 -- runtime.cuda_graphs=true vs runtime.cuda_graphs=false

Exit codes: 0 decided and every gate holds, 1 a gate is broken, 2 bad usage or unreadable input,
3 undecided.";

#[derive(Debug, Clone, Args)]
pub(super) struct CompareArgs {
    /// Run, snapshot, sweep or baseline to compare with (before)
    #[arg(required_unless_present = "repeat")]
    a: Option<String>,
    /// Run, snapshot, sweep or baseline to judge (after)
    #[arg(required_unless_present = "repeat")]
    b: Option<String>,
    /// Compare only these metrics: ttft, tpot, itl (with .mean, .p50, .p90, .p99), decode_tok_s, prefill_tok_s, …
    #[arg(long, value_delimiter = ',', value_name = "METRIC")]
    metric: Vec<Metric>,
    /// Fail unless this limit holds, e.g. tpot<=+2%; repeatable
    #[arg(long, value_name = "GATE")]
    gate: Vec<Gate>,
    /// Treat differences of up to PERCENT as equal
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT")]
    margin: f64,
    /// Accept these facts as intended differences: gpu, driver, …
    #[arg(long, value_delimiter = ',', value_name = "FACT")]
    meant: Vec<String>,
    /// Print one JSON object on stdout instead of text
    #[arg(long, conflicts_with_all = ["md", "html"])]
    json: bool,
    /// Print Markdown, e.g. for a pull request
    #[arg(long, conflicts_with = "html")]
    md: bool,
    /// Print a self-contained HTML page
    #[arg(long)]
    html: bool,
    /// Run both sides interleaved, N times each (at least 5), and compare them pair by pair
    #[arg(long, value_name = "N", requires = "sides", conflicts_with_all = ["a", "b"])]
    repeat: Option<usize>,
    /// With --repeat: start no new pair after SECONDS
    #[arg(long, value_name = "SECONDS", requires = "repeat")]
    max_time: Option<f64>,
    /// With --repeat: run everything in one process instead of one process per run
    #[arg(long, requires = "repeat")]
    same_process: bool,
    /// With --repeat: the overrides of A, the word vs, the overrides of B
    #[arg(last = true, value_name = "OVERRIDES", requires = "repeat")]
    sides: Vec<String>,
}

#[derive(Debug, Clone, Subcommand)]
pub(super) enum BaselineCommand {
    /// Save a run as a small file, baselines/NAME.json
    Save {
        /// Name of the baseline: letters, digits, '-', '_' and '.'
        name: String,
        /// Run directory, latest, latest~1 or a part of its path (default: the newest run, unless it is simulated or
        /// part of a sweep)
        run: Option<PathBuf>,
    },
    /// List the saved baselines
    List,
}

pub(super) async fn run(args: CompareArgs) -> Result<u8, Failure> {
    match args.repeat {
        Some(n) => compare_interleaved(&args, n).await,
        None => compare_recorded(&args),
    }
}

impl CompareArgs {
    /// The requested metrics and those of the gates.
    fn options(&self) -> Result<Options, Failure> {
        let margin = Some(self.margin / 100.0).filter(|margin| (0.0..=1.0).contains(margin));
        let margin = margin.ok_or_else(|| {
            Failure::usage(format_args!("--margin {}: expected 0 to 100 percent", self.margin))
        })?;
        if let Some(unknown) = self.meant.iter().find(|name| !fact_names().contains(&name.as_str())) {
            let known = fact_names().join(", ");
            return Err(Failure::usage(format_args!(
                "--meant {unknown}: unknown fact; known facts: {known}"
            )));
        }
        let mut metrics = if self.metric.is_empty() { DEFAULT_METRICS.to_vec() } else { self.metric.clone() };
        for gate in &self.gate {
            if !metrics.contains(&gate.metric) {
                metrics.push(gate.metric);
            }
        }
        let headline = self.metric.first().copied();
        Ok(Options { metrics, headline, margin, meant: self.meant.clone(), ..Options::default() })
    }

    fn print(&self, comparisons: &[GatedComparison]) -> Result<u8, Failure> {
        let each = |format: fn(&GatedComparison) -> String| {
            comparisons.iter().map(format).collect::<Vec<_>>().join("\n\n")
        };
        match (self.json, self.md, self.html) {
            (true, ..) => print_json(&compare::json(comparisons))?,
            (_, true, _) => print_data(&each(compare::markdown))?,
            (.., true) => print_data(&compare::html(comparisons))?,
            _ => print(&each(compare::text))?,
        }
        Ok(compare::exit_code(comparisons))
    }
}

fn compare_recorded(args: &CompareArgs) -> Result<u8, Failure> {
    let options = args.options()?;
    let (a, b) = (args.a.as_deref().unwrap_or_default(), args.b.as_deref().unwrap_or_default());
    // Reserved names of runs cannot be baselines.
    let found = |name: &str| resolve_run(Path::new(name)).ok().and_then(|path| fs::canonicalize(path).ok());
    if let (Some(first), Some(second)) = (found(a), found(b))
        && first == second
    {
        eprint_line(format_args!(
            "note: A and B are the same recording, {}; a row that is not SAME has too few samples",
            first.display()
        ));
    }
    let runs = runs_root(&ConfigArgs::default().compose()?);
    args.print(&compare::compare_recordings(a, b, &runs, &options, &args.gate)?)
}

/// Runs both sides interleaved and compares them pair by pair.
async fn compare_interleaved(args: &CompareArgs, n: usize) -> Result<u8, Failure> {
    let options = args.options()?;
    let limit = args.max_time.map(Duration::try_from_secs_f64).transpose();
    let limit = limit.map_err(|_| Failure::usage("--max-time: expected a number of seconds"))?;
    let (of_a, of_b) = compare::split_sides(&args.sides)?;
    let parsed = |words: &[String]| ConfigArgs::with_overrides(words).request();
    let (of_a, of_b) = (parsed(&of_a)?.overrides, parsed(&of_b)?.overrides);
    let planned = |overrides: &[Override]| {
        let plan = ConfigRequest { overrides: overrides.to_vec(), ..ConfigRequest::default() }.plan()?;
        // A process that has opened a GPU keeps it open, and would count as another process for the runs, which check
        // for themselves.
        if args.same_process || !plan.uses_gpu() {
            plan.check_machine()?;
        }
        Ok::<Plan, Failure>(plan)
    };
    let (a, b) = (planned(&of_a)?, planned(&of_b)?);
    let mut remarks: Vec<&String> = a.remarks.iter().chain(&b.remarks).collect();
    remarks.dedup();
    remarks.into_iter().for_each(|remark| eprint_line(format_args!("note: {remark}")));
    let (pairs, note) = compare::pairs_to_run(n);
    note.iter().for_each(|note| eprint_line(format_args!("note: {note}")));
    let dir = compare::repeat_dir(&runs_root(&a.composed));
    let side = |plan: &Plan, overrides: &[Override]| RepeatSide {
        overrides: overrides.to_vec(),
        seed: plan.composed.config.runtime.seed,
    };
    let plan_run = |overrides: &[Override]| planned(overrides).map_err(|failure| failure.to_string());
    let repeat = Repeat {
        a: side(&a, &of_a),
        b: side(&b, &of_b),
        pairs,
        limit,
        dir,
        same_process: args.same_process.then_some(&plan_run),
    };
    let repeated = repeat.run(&options).await?;
    if let Some(cause) = &repeated.cause {
        eprint_line(format_args!("interrupted: {cause}"));
    }
    let interrupted = repeated.cause.as_ref().map(Cause::exit_code);
    let Some(comparison) = repeated.comparison(&options, &of_a, &of_b) else {
        eprint_line("no pair was completed: cannot compare");
        return Ok(interrupted.unwrap_or(3));
    };
    let comparisons = [GatedComparison::new(None, comparison, &args.gate)];
    repeat.save(&comparisons[0])?;
    eprint_line(format_args!("written to {}", repeat.dir.display()));
    let code = args.print(&comparisons)?;
    Ok(interrupted.unwrap_or(code))
}

impl From<CompareError> for Failure {
    fn from(e: CompareError) -> Self {
        match e {
            CompareError::Failed { .. } | CompareError::Io { .. } => Failure::work(e),
            e => Failure::usage(e),
        }
    }
}

pub(super) fn baseline(command: BaselineCommand) -> Result<u8, Failure> {
    match command {
        BaselineCommand::Save { name, run } => {
            let (which, run) = match run {
                Some(run) => ("", resolve_run(&run)?),
                None => {
                    let runs = runs_root(&ConfigArgs::default().compose()?);
                    ("the newest run, ", compare::newest_for_baseline(&runs)?)
                }
            };
            let Written { path, sample, runs } = compare::save_baseline(&name, &run)?;
            let path = path.display();
            print(&format!("saved {which}{} as {path} ({} requests)", sample.name, sample.measured))?;
            if runs > 1 {
                print(&format!(
                    "{runs} runs of this workload are saved under this name{}",
                    match runs.checked_sub(MIN_RUNS) {
                        Some(_) => ": comparisons of it include their variation from run to run".to_owned(),
                        None => format!(
                            "; from {MIN_RUNS} on, comparisons include their variation from run to run"
                        ),
                    }
                ))?;
            }
            if sample.facts.run.simulated {
                eprint_line("note: the run is simulated, not measured");
            }
            let trust = sample.trust(false);
            for issue in &trust.issues {
                eprint_line(format_args!("note: trust {} of {}: {issue}", trust.score, trust.of));
            }
            if sample.facts.outcome.is_none() {
                eprint_line(
                    "note: the recording has no end: the run is still being recorded, or was interrupted",
                );
            }
        }
        BaselineCommand::List => print(&compare::baselines_text(&compare::baselines()))?,
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        compare: CompareArgs,
    }

    #[test]
    fn the_headline_is_the_first_metric_that_was_asked_for() {
        let options = |args: &[&str]| {
            let args = ["compare", "a", "b"].iter().chain(args);
            Cli::try_parse_from(args).unwrap().compare.options().unwrap()
        };
        let metric = |name: &str| name.parse::<Metric>().unwrap();
        let of_gates = options(&["--metric", "ttft,itl.p99", "--gate", "tpot<=+2%"]);
        assert_eq!(of_gates.headline, Some(metric("ttft")));
        assert_eq!(of_gates.metrics, [metric("ttft"), metric("itl.p99"), metric("tpot")]);
        assert_eq!(options(&["--gate", "ttft<=+2%"]).headline, None, "a gate is no headline");
    }
}
