//! `report`: the reports of a recorded run or sweep, written again from its events.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::{Value, json};

use super::{Failure, args::resolve_run, print, print_data};
use llmprof_base::{process::eprint_line, units::percent};
use llmprof_record::{
    report::{Remade, ReportError, remake},
    rundir::RunDir,
};
use llmprof_run::{
    progress_line::ProgressLine,
    sweep::{is_sweep, open_sweep, write_csv},
    time_left::TimeLeft,
};

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// Run directory, its events.ndjson, or directory of a sweep; also latest, latest~1 or a part of its path
    run: PathBuf,
    /// Write the reports to DIR (default: the run's own directory)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ReportArgs) -> Result<u8, Failure> {
    let run = resolve_run(&args.run)?;
    if is_sweep(&run) {
        return report_sweep(&run, args.out.as_deref(), args.json);
    }
    let written =
        remake_shown(&run, args.out.as_deref(), "", (&TimeLeft::start(), 1)).map_err(Failure::work)?;
    match args.json {
        true => print_data(&written.json().to_string())?,
        false => print(&written.text())?,
    }
    print_remarks(&written);
    Ok(0)
}

/// Writes the reports of a run, with progress on stderr.
fn remake_shown(
    run: &Path,
    out: Option<&Path>,
    label: &str,
    (time_left, parts): (&TimeLeft, usize),
) -> Result<Remade, ReportError> {
    let mut line = ProgressLine::new(false, "");
    let made = remake(run, out, &mut |share| {
        line.show_share(share);
        line.show(format!("{label}{} read", percent(100.0 * share)), "", time_left.estimate(parts, share));
    });
    line.clear();
    made
}

fn print_remarks(written: &Remade) {
    written.remarks.iter().for_each(|remark| eprint_line(format_args!("note: {remark}")));
}

/// Writes the reports of every recorded job, and `sweep.csv`. A job that cannot be read does not stop the others.
fn report_sweep(dir: &Path, out: Option<&Path>, json: bool) -> Result<u8, Failure> {
    let planned = open_sweep(dir).map_err(Failure::work)?;
    let (mut written, mut errors) = (Vec::new(), Vec::new());
    let recorded = |job: usize| RunDir::open(&planned.job_dir(job)).events().exists();
    let mut left = (0..planned.jobs.len()).filter(|job| recorded(*job)).count();
    let mut time_left = TimeLeft::start();
    for (i, job) in planned.jobs.iter().enumerate() {
        let run = planned.job_dir(i);
        let label = planned.label(i);
        if !recorded(i) {
            eprint_line(format_args!("note: {label} was not recorded"));
            continue;
        }
        let made = remake_shown(
            &run,
            out.map(|out| out.join(&job.subdir)).as_deref(),
            &format!("{label}: "),
            (&time_left, left),
        );
        time_left.part_done();
        left -= 1;
        match made {
            Ok(of_job) => {
                eprint_line(format_args!("{label}: {}", of_job.dir.display()));
                print_remarks(&of_job);
                written.push(of_job);
            }
            Err(e) => {
                eprint_line(format_args!("error: {label}: {e}"));
                errors.push(json!({"dir": run, "error": e.to_string()}));
            }
        }
    }
    let csv_dir = out.unwrap_or(dir);
    fs::create_dir_all(csv_dir).map_err(Failure::cannot_write(csv_dir))?;
    // Opened again: the outcome of each job is read from the reports just written.
    let csv = open_sweep(dir).and_then(|sweep| write_csv(&sweep, csv_dir)).map_err(Failure::work)?;
    let code = u8::from(!errors.is_empty());
    if json {
        let jobs: Vec<Value> = written.iter().map(Remade::json).collect();
        print_data(&json!({"schema": 1, "sweep_csv": csv, "jobs": jobs, "errors": errors}).to_string())?;
    } else {
        let dirs = written.iter().map(|of_job| of_job.dir.display().to_string());
        let lines: Vec<String> = dirs.chain([csv.display().to_string()]).collect();
        print(&lines.join("\n"))?;
    }
    Ok(code)
}
