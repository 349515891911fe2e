//! The command line: one file for each command.

pub mod completion;
pub mod cost;
pub mod diagnose;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use color_eyre::eyre::{Report, eyre};

use crate::{
    analysis::compare::{Gate, Metric, Options, USUAL, fact_names},
    assets::{AssetError, commands as assets},
    base::table::aligned,
    base::units::{grouped, millis, three_digits},
    cli::{completion::Shell, cost::CostError},
    compare::{self, CompareError, Judged, Repeat},
    config::{Composed, ConfTree, DefaultsItem, Form, compose, expand_sweep, yaml_text},
    doctor::{
        self, Machine,
        overhead::{self, OverheadError},
        peaks::{self, PeaksError},
        show,
    },
    engine::{EngineError, driver::Control},
    event::{Envelope, Event, GivenPeaks, KernelReport, Level, Notice, Outcome, Stamp},
    kernels::{
        KernelsError,
        commands::{self as kernels, Answer, KernelsArgs, ListError, Wish},
    },
    process::{
        crash, logfile,
        shutdown::{Cause, Shutdown},
    },
    report::{self, kernels_text, run_json, verdict_of},
    run::{
        headless::{self, say},
        plan::{Plan, PlanError},
        session::{Ended, Session},
        sweep::{Runner, Sweep, SweepError, sweep_json, table_text},
    },
    rundir::{EventReader, Player, RunDir},
    state::{KEPT_REPORTS, RunState},
    tui::{self, App, Live, ui::KernelsSettings},
};

const ABOUT: &str =
    "A live profiler for LLM inference: runs a model and shows what the GPU and the tokens do, and why";

const EXAMPLES: &str = "\
Examples:
  llmprof-tui                                  profile the default model on this machine
  llmprof-tui --model qwen2_5_0_5b model.dtype=bf16
  llmprof-tui runtime=sim                      try the screens without any hardware
  llmprof-tui run --json runtime.requests=20   headless, one JSON object on stdout
  llmprof-tui run -m model=qwen3_0_6b,smollm2_135m runtime.batch_size=1,4   every combination, one by one
  llmprof-tui run --resume runs/baseline/multirun/2026-01-01_12-00-00
  llmprof-tui config model=qwen2_5_7b --package model.arch
  llmprof-tui replay runs/baseline/smollm2_135m/2026-01-01_12-00-00
  llmprof-tui demo
  llmprof-tui watch                            what holds the GPU back while another program uses it
  llmprof-tui report runs/baseline/smollm2_135m/2026-01-01_12-00-00   its reports and plots, made anew
  llmprof-tui diagnose gpu.csv                 why was it slow? of a run, or of a log of nvidia-smi
  llmprof-tui compare runs/… runs/…            did it help? a verdict with its interval, and code or heat
  llmprof-tui kernels out.sqlite               which kernels take the time: of nsys, ncu and cuBLAS logs
  llmprof-tui cost --model qwen2_5_7b --gpu h100 model.dtype=bf16   what would it do on that card?
  llmprof-tui run profiling=nsys               the same run under Nsight Systems, as a table; profiling=ncu for counters
  llmprof-tui fetch qwen2_5_0_5b               weights from the hub
  llmprof-tui doctor                           what works on this machine, and what to do about the rest

Exit codes: 0 ok, 1 the run failed or was not fully recorded, or a gate is broken, 2 bad usage or config, 3 undecided,
130/143 interrupted.";

const COMPARE: &str = "\
A and B are runs, snapshots (RUN/snapshots/NAME.json), sweeps (job by job) or baselines by name.
Examples:
  llmprof-tui compare runs/baseline/qwen2_5_7b/2026-01-01_12-00-00 runs/baseline/qwen2_5_7b/2026-01-01_12-10-00
  llmprof-tui compare main runs/… --gate 'tpot.p50<=+2%' --gate 'ttft.p50<=+5%'      for CI, main being a baseline
  llmprof-tui compare main runs/… --metric tpot.p50,itl.p99 --md
  llmprof-tui compare --repeat 20 -- runtime.cuda_graphs=true vs runtime.cuda_graphs=false      both in turn

Exit codes: 0 decided and every gate held, 1 a gate is broken, 2 bad usage or nothing to read, 3 undecided.";

const DIAGNOSE: &str = "\
A log that can be diagnosed:
  nvidia-smi -lms 200 --format=csv -f gpu.csv --query-gpu=timestamp,index,name,utilization.gpu,utilization.memory,\
clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active,power.limit,power.max_limit,clocks.max.sm
  llmprof-tui diagnose gpu.csv";

const COST: &str = "\
Examples:
  llmprof-tui cost --model llama3_1_8b --gpu h100 model.dtype=bf16
  llmprof-tui cost --model qwen2_5_7b --gpu rtx_4090 --weight-bits 4.5 dataset.prompt_tokens=4096 runtime.batch_size=8
  llmprof-tui cost model.config_json=mixtral/config.json --gpu h200 --json";

const COMPLETION: &str = "\
bash: eval \"$(llmprof-tui completion bash)\" in ~/.bashrc
zsh:  source <(llmprof-tui completion zsh) in ~/.zshrc, after compinit
fish: llmprof-tui completion fish | source in ~/.config/fish/config.fish";

const DOCTOR: &str = "\
Examples:
  llmprof-tui doctor                           one line for each thing that matters, and a remedy where there is one
  llmprof-tui doctor --json                    schema, program, checks (id, status, found, remedy, ms), summary
  llmprof-tui doctor --overhead                TPOT with the sampler on and off, in turn, on the default model
  llmprof-tui doctor --overhead --seconds 120 model=qwen2_5_7b model.dtype=bf16
  llmprof-tui doctor --peaks                   operations and bytes a second that this device reaches, beside those stated
  llmprof-tui doctor --peaks runtime.device=cpu runtime.threads=4

Exit codes: 0 unless a check fails, or too little could be measured to say anything: 1.";

#[derive(Debug, Parser)]
#[command(name = "llmprof-tui", version, about = ABOUT, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    several: Several,
}

/// What to run.
#[derive(Debug, Clone, Default, Args)]
struct What {
    /// Short for the override model=MODEL
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Take configuration from this directory before the built-in one (default: ./conf, if it is there)
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    /// Print the configuration and do nothing else, as the command `config` does
    #[arg(long, value_name = "WHAT")]
    cfg: Option<Cfg>,
    /// Hydra-style overrides: key=value, group=option, +key=value, ~key
    #[arg(value_name = "OVERRIDES")]
    overrides: Vec<String>,
}

/// Which configuration to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Cfg {
    /// The job's
    Job,
    /// Hydra's own
    Hydra,
}

/// How to print a configuration.
#[derive(Debug, Clone, Default, Args)]
struct Show {
    /// Print this part alone
    #[arg(long, value_name = "KEY")]
    package: Option<String>,
    /// Leave ${…} as it was written
    #[arg(long)]
    no_resolve: bool,
    /// Tell how it was composed instead
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["package", "no_resolve"])]
    info: Option<Info>,
    /// As JSON rather than YAML
    #[arg(long)]
    json: bool,
}

/// What can be told of a composition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Info {
    /// The files in the order of merging, where each goes and what asked for it
    Defaults,
    /// Where files are looked for
    Searchpath,
}

/// Several runs in place of one.
#[derive(Debug, Clone, Default, Args)]
struct Several {
    /// Run every combination of the values that overrides list (key=a,b), one after another
    #[arg(long, short, conflicts_with = "cfg")]
    multirun: bool,
    /// Take up a sweep where it stopped
    #[arg(long, value_name = "DIR", conflicts_with_all = ["multirun", "model", "conf_dir", "cfg", "overrides"])]
    resume: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the workload without a screen
    Run {
        #[command(flatten)]
        what: What,
        #[command(flatten)]
        several: Several,
        /// Print one JSON object on stdout instead of words
        #[arg(long)]
        json: bool,
        /// No progress on stderr
        #[arg(long, short)]
        quiet: bool,
    },
    /// Open a recorded run in the same screens; a run still being written is followed
    Replay {
        /// A run directory, or its events.ndjson
        run: PathBuf,
        /// Where to begin: a time in seconds, or "end"
        #[arg(long, default_value = "0", value_name = "SECONDS|end")]
        at: At,
        /// Begin playing at this speed
        #[arg(long, default_value_t = 1.0)]
        speed: f64,
    },
    /// Play a recording that comes with the program: a simulated one, which says so, or one made on an H200
    Demo {
        /// Which one
        #[arg(default_value = "simulated")]
        recording: DemoRecording,
        /// Begin playing at this speed
        #[arg(long, default_value_t = 1.0)]
        speed: f64,
    },
    /// Say whether B is the same as A, faster or slower, and whether it is the code or the clock
    #[command(after_help = COMPARE)]
    Compare(CompareArgs),
    /// Keep a run to compare others with, under baselines/ in this directory
    #[command(subcommand)]
    Baseline(BaselineCommand),
    /// Say what held the card back: of a recorded run, an nvml.csv, or a log that nvidia-smi wrote
    #[command(after_help = DIAGNOSE)]
    Diagnose {
        /// A run directory, or a CSV file
        path: PathBuf,
        /// Print one JSON object on stdout instead of words
        #[arg(long)]
        json: bool,
    },
    /// Make the reports of a recorded run anew, from its events alone; of a sweep, those of every job
    Report {
        /// A run directory, its events.ndjson, or the directory of a sweep
        run: PathBuf,
        /// Write them into this directory (default: the run's own)
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Print one JSON object on stdout instead of words
        #[arg(long)]
        json: bool,
    },
    /// Show the kernels in what nsys, ncu or cuBLAS wrote: which take the time, and what bounds them
    Kernels(KernelsArgs),
    /// Reckon what a model costs and what a card would make of it: operations, bytes, memory, lower bounds. No GPU, no
    /// weights
    #[command(after_help = COST)]
    Cost {
        #[command(flatten)]
        what: What,
        /// The card: h100, rtx_4090, … or as the driver calls it
        #[arg(long, value_name = "GPU")]
        gpu: Option<String>,
        /// Bits of a weight, where they are quantised: 4.5, 8
        #[arg(long, value_name = "BITS")]
        weight_bits: Option<f64>,
        /// Write static_compute.json and static_compute.md into this directory (default: the working one; with --json,
        /// none)
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Print one JSON object on stdout instead of words
        #[arg(long)]
        json: bool,
    },
    /// Look at the GPU while others use it: its pane and the diagnosis, without a workload of ours
    Watch {
        #[command(flatten)]
        what: What,
        /// Without a screen: look so long, then print the diagnosis
        #[arg(long = "for", value_name = "SECONDS")]
        seconds: Option<f64>,
        /// With --for, print one JSON object on stdout instead of words
        #[arg(long, requires = "seconds")]
        json: bool,
        /// Keep what was seen as a run
        #[arg(long)]
        record: bool,
    },
    /// Print the resolved configuration
    Config {
        #[command(flatten)]
        what: What,
        #[command(flatten)]
        show: Show,
    },
    /// Say what works on this machine, what does not, and what to do; or measure what the profiler costs, or what the device can do
    #[command(after_help = DOCTOR)]
    Doctor {
        #[command(flatten)]
        what: What,
        /// Measure TPOT with the sampler of GPU and host and without it, in turn, on one engine
        #[arg(long)]
        overhead: bool,
        /// Measure what the device can do at most: a large matrix product, a read and a copy
        #[arg(long, conflicts_with = "overhead")]
        peaks: bool,
        /// Measure for this long: --overhead in all (60), --peaks each thing (3)
        #[arg(long)]
        seconds: Option<f64>,
        /// Print one JSON object on stdout instead of words
        #[arg(long)]
        json: bool,
    },
    /// Print the script that completes words at TAB
    #[command(after_help = COMPLETION)]
    Completion { shell: Shell },
    /// What a script asks at TAB
    #[command(name = completion::QUESTION, hide = true)]
    Complete {
        shell: Shell,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        sent: Vec<OsString>,
    },
    #[command(flatten)]
    Assets(assets::AssetCommand),
}

/// What to compare, how strictly, and how to tell it.
#[derive(Debug, Clone, Args)]
struct CompareArgs {
    /// A run, a snapshot, a sweep or a baseline: what was before
    #[arg(required_unless_present = "repeat")]
    a: Option<String>,
    /// The same: what is now
    #[arg(required_unless_present = "repeat")]
    b: Option<String>,
    /// Compare these alone: ttft, tpot, itl (with .mean, .p50, .p90, .p99), decode_tok_s, prefill_tok_s, …
    #[arg(long, value_delimiter = ',', value_name = "METRIC")]
    metric: Vec<Metric>,
    /// A bound to keep, as tpot.p50<=+2%; may be given several times
    #[arg(long, value_name = "GATE")]
    gate: Vec<Gate>,
    /// Differences up to so many percent are none
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT")]
    margin: f64,
    /// These differ on purpose, though no override says so: gpu, driver, …
    #[arg(long, value_delimiter = ',', value_name = "FACT")]
    meant: Vec<String>,
    /// Print one JSON object on stdout instead of words
    #[arg(long, conflicts_with_all = ["md", "html"])]
    json: bool,
    /// Print Markdown, for a pull request
    #[arg(long, conflicts_with = "html")]
    md: bool,
    /// Print an HTML page that needs nothing else
    #[arg(long)]
    html: bool,
    /// Run both sides in turn, so many times each at the most, and compare them pair by pair
    #[arg(long, value_name = "N", requires = "sides", conflicts_with_all = ["a", "b"])]
    repeat: Option<usize>,
    /// With --repeat, begin no pair after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "repeat")]
    max_time: Option<f64>,
    /// With --repeat, the overrides of A, the word vs, the overrides of B
    #[arg(last = true, value_name = "OVERRIDES", requires = "repeat")]
    sides: Vec<String>,
}

#[derive(Debug, Clone, Subcommand)]
enum BaselineCommand {
    /// Keep a run under a name, as a small file: baselines/NAME.json
    Save {
        name: String,
        /// A run directory; without it the newest run
        run: Option<PathBuf>,
    },
    /// Tell which there are
    List,
}

/// A moment in a recording.
#[derive(Debug, Clone, Copy)]
enum At {
    Second(f64),
    End,
}

impl std::str::FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<At, String> {
        match text {
            "end" => Ok(At::End),
            _ => match text.parse::<f64>() {
                Ok(secs) if secs >= 0.0 && secs.is_finite() => Ok(At::Second(secs)),
                _ => Err("a time is a number of seconds, or \"end\"".into()),
            },
        }
    }
}

/// The recordings behind `demo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DemoRecording {
    /// A simulated card that gets hot
    Simulated,
    /// Qwen2.5-7B on an H200, long prompts: the power cap holds the clock
    H200Prefill,
    /// Qwen2.5-7B on an H200, long answers: it does not
    H200Decode,
    /// Qwen2.5-7B on an H200: its kernels as they ran, and ncu's counters of the longest
    H200Kernels,
}

impl DemoRecording {
    fn bytes(self) -> &'static [u8] {
        match self {
            DemoRecording::Simulated => include_bytes!("../../assets/demo/events.ndjson"),
            DemoRecording::H200Prefill => include_bytes!("../../assets/demo/h200_prefill/events.ndjson"),
            DemoRecording::H200Decode => include_bytes!("../../assets/demo/h200_decode/events.ndjson"),
            DemoRecording::H200Kernels => include_bytes!("../../assets/demo/h200_kernels/events.ndjson"),
        }
    }
}

/// A mistake of the caller's: exit code 2.
struct Usage(String);

/// Parses the command line, does what it says, and gives the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are answers, not mistakes.
            let code = if e.use_stderr() { 2 } else { 0 };
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    crash::keep_panics();
    logfile::install();
    let done = std::panic::catch_unwind(|| dispatch(cli));
    match done {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(Failure::Usage(Usage(text)))) => {
            say(format_args!("error: {text}"));
            ExitCode::from(2)
        }
        Ok(Err(Failure::Work(report))) => {
            say(format_args!("error: {report}"));
            ExitCode::from(1)
        }
        Err(_) => {
            say(format_args!(
                "error: {}",
                crash::first_panic().unwrap_or_else(|| "a panic without words".into())
            ));
            say("This is a fault of the program. The run's llmprof.log has the details.");
            ExitCode::from(1)
        }
    }
}

enum Failure {
    Usage(Usage),
    Work(Report),
}

impl From<Usage> for Failure {
    fn from(usage: Usage) -> Self {
        Failure::Usage(usage)
    }
}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        Failure::Work(report)
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Failure::Work(e.into())
    }
}

fn dispatch(cli: Cli) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match cli.command {
        None if cli.what.cfg.is_some() => show_config(&cli.what, &Show::default()),
        Some(Command::Run { what, json, .. }) if what.cfg.is_some() => {
            show_config(&what, &Show { json, ..Show::default() })
        }
        Some(Command::Doctor { what, json, .. }) if what.cfg.is_some() => {
            show_config(&what, &Show { json, ..Show::default() })
        }
        None => match what_sweep(&cli.what, &cli.several, || need_terminal("llmprof-tui run"))? {
            Some(runner) => runtime.block_on(profile_sweep(runner)),
            None => runtime.block_on(profile(cli.what)),
        },
        Some(Command::Run { what, several, json, quiet }) => match what_sweep(&what, &several, || Ok(()))? {
            Some(runner) => runtime.block_on(run_sweep(runner, json, quiet)),
            None => runtime.block_on(run(&what, json, quiet)),
        },
        Some(Command::Replay { run, at, speed }) => {
            let dir = RunDir::open(&run);
            let events = dir.events();
            let player = Player::open(move || EventReader::open(&events)).map_err(Report::from)?;
            runtime.block_on(play(player, Some(dir), at, speed))
        }
        Some(Command::Demo { recording, speed }) => {
            let player = Player::open(move || EventReader::embedded("the demo", recording.bytes()))
                .map_err(Report::from)?;
            runtime.block_on(play(player, None, At::Second(0.0), speed))
        }
        Some(Command::Watch { mut what, seconds, json, record }) => {
            let asked = ["runtime=watch".to_owned(), format!("output.record={record}")];
            what.overrides.splice(0..0, asked);
            match seconds {
                Some(seconds) if !(0.0..=1e9).contains(&seconds) => {
                    Err(Usage(format!("--for {seconds}: a time is a number of seconds")).into())
                }
                Some(seconds) => runtime.block_on(watch_for(&what, seconds, json)),
                None => runtime.block_on(profile(what)),
            }
        }
        Some(Command::Diagnose { path, json }) => {
            let found = diagnose::diagnosed(&path).map_err(Report::from)?;
            if json {
                print_out(&diagnose::to_json(&found).to_string())?;
            } else {
                print_out(&found.iter().map(diagnose::text).collect::<Vec<_>>().join("\n\n"))?;
            }
            Ok(0)
        }
        Some(Command::Report { run, out, json }) if Sweep::is_in(&run) => {
            report_sweep(&run, out.as_deref(), json)
        }
        Some(Command::Report { run, out, json }) => {
            let made = report::remake(&run, out.as_deref()).map_err(Report::from)?;
            print_out(&if json { made.json().to_string() } else { made.text() })?;
            made.remarks.iter().for_each(|remark| say(format_args!("note: {remark}")));
            Ok(0)
        }
        Some(Command::Kernels(args)) => match kernels::run(args, tui::terminal::is_there())? {
            Answer::Screen { reports, wish, errors } if !reports.is_empty() => {
                runtime.block_on(look_at_kernels(reports, wish, errors))
            }
            answer => tell_kernels(answer),
        },
        Some(Command::Cost { what, json, .. }) if what.cfg.is_some() => {
            show_config(&what, &Show { json, ..Show::default() })
        }
        Some(Command::Cost { what, gpu, weight_bits, out, json }) => {
            reckon(&what, gpu.as_deref(), weight_bits, out, json)
        }
        Some(Command::Compare(args)) => match args.repeat {
            Some(most) => runtime.block_on(compare_in_turn(&args, most)),
            None => compare_recorded(&args),
        },
        Some(Command::Baseline(command)) => keep_baseline(command),
        Some(Command::Config { what, show }) => show_config(&what, &show),
        Some(Command::Doctor { what, overhead: true, seconds, json, .. }) => {
            runtime.block_on(measure_overhead(&what, seconds.unwrap_or(60.0), json))
        }
        Some(Command::Doctor { what, peaks: true, seconds, json, .. }) => {
            runtime.block_on(measure_peaks(&what, seconds.unwrap_or(3.0), json))
        }
        Some(Command::Doctor { seconds: Some(_), .. }) => {
            Err(Usage("--seconds says how long --overhead or --peaks measures".to_owned()).into())
        }
        Some(Command::Doctor { what, json, .. }) => runtime.block_on(examine(&what, json)),
        Some(Command::Completion { shell }) => {
            print_out(shell.script().trim_end())?;
            Ok(0)
        }
        Some(Command::Complete { shell, sent }) => Ok(complete(shell, &sent)),
        Some(Command::Assets(command)) => {
            let done = assets::run(command)?;
            print_out(&done.text)?;
            Ok(done.code)
        }
    }
}

/// Makes the reports of every job that was recorded, and `sweep.csv`. A job that can't be read does not keep the others
/// from theirs.
fn report_sweep(dir: &Path, out: Option<&Path>, json: bool) -> Result<u8, Failure> {
    let planned = Sweep::open(dir).map_err(Report::from)?;
    let (mut made, mut failed) = (Vec::new(), Vec::new());
    for (at, job) in planned.jobs.iter().enumerate() {
        let run = planned.job_dir(at);
        let place = planned.place(at);
        if !RunDir::open(&run).events().exists() {
            say(format_args!("note: {place} was not recorded"));
            continue;
        }
        match report::remake(&run, out.map(|out| out.join(&job.subdir)).as_deref()) {
            Ok(remade) => {
                say(format_args!("{place}: {}", remade.dir.display()));
                remade.remarks.iter().for_each(|remark| say(format_args!("note: {remark}")));
                made.push(remade);
            }
            Err(e) => {
                say(format_args!("error: {place}: {e}"));
                failed.push((run, e.to_string()));
            }
        }
    }
    let csv_dir = out.unwrap_or(dir);
    fs::create_dir_all(csv_dir).map_err(|e| eyre!("{} can't be written: {e}", csv_dir.display()))?;
    // What became of the jobs is read off the reports that were just made.
    let csv = Sweep::open(dir).and_then(|sweep| sweep.write_csv(csv_dir)).map_err(Report::from)?;
    if json {
        let error = |(run, error): &(PathBuf, String)| serde_json::json!({"dir": run, "error": error});
        let object = serde_json::json!({
            "schema": 1,
            "sweep_csv": csv,
            "jobs": made.iter().map(|remade| remade.json()).collect::<Vec<_>>(),
            "errors": failed.iter().map(error).collect::<Vec<_>>(),
        });
        print_out(&object.to_string())?;
    } else {
        let dirs = made.iter().map(|remade| remade.dir.display().to_string());
        let lines: Vec<String> = dirs.chain([csv.display().to_string()]).collect();
        print_out(&lines.join("\n"))?;
    }
    Ok(if failed.is_empty() { 0 } else { 1 })
}

/// Says what a model costs, and keeps it.
fn reckon(
    what: &What,
    gpu: Option<&str>,
    weight_bits: Option<f64>,
    out: Option<PathBuf>,
    json: bool,
) -> Result<u8, Failure> {
    let config = what.compose()?.config;
    let mut shape = cost::shape_of(&config)?;
    if let Some(bits) = weight_bits {
        if !(0.5..=64.0).contains(&bits) {
            return Err(Usage(format!("--weight-bits {bits}: a weight has 0.5 to 64 bits")).into());
        }
        shape = shape.quantised(bits);
    }
    let question = cost::Question {
        model: config.model.name.clone(),
        shape,
        batch: u64::from(config.runtime.batch_size),
        prompt: u64::from(config.dataset.prompt_tokens),
        output: u64::from(config.infer.max_new_tokens),
        gpu: gpu.map(cost::gpu_named).transpose().map_err(Usage)?,
        given: GivenPeaks {
            flops: config.hardware.peaks.flops,
            bytes_per_s: config.hardware.peaks.bytes_per_s,
        },
    };
    let answer = question.answer();
    let object = serde_json::to_string_pretty(&answer.json()).map_err(Report::from)?;
    print_out(&if json { object.clone() } else { answer.text() })?;
    if let Some(dir) = out.or_else(|| (!json).then(|| PathBuf::from("."))) {
        for (name, content) in
            [("static_compute.json", object + "\n"), ("static_compute.md", answer.markdown())]
        {
            let path = dir.join(name);
            fs::write(&path, content).map_err(|e| eyre!("{} can't be written: {e}", path.display()))?;
        }
        say(format_args!("kept in {} and static_compute.md", dir.join("static_compute.json").display()));
    }
    Ok(0)
}

impl From<CostError> for Failure {
    fn from(e: CostError) -> Self {
        Usage(e.to_string()).into()
    }
}

impl CompareArgs {
    /// What is to be compared; a gate's metric is compared though it was not asked for.
    fn options(&self) -> Result<Options, Usage> {
        let margin = Some(self.margin / 100.0).filter(|margin| (0.0..=1.0).contains(margin));
        let margin =
            margin.ok_or_else(|| Usage(format!("--margin {}: a margin is 0 to 100 percent", self.margin)))?;
        if let Some(odd) = self.meant.iter().find(|name| !fact_names().contains(&name.as_str())) {
            let known = fact_names().join(", ");
            return Err(Usage(format!("--meant {odd}: nothing is called that; there are {known}")));
        }
        let mut metrics = if self.metric.is_empty() { USUAL.to_vec() } else { self.metric.clone() };
        for gate in &self.gate {
            if !metrics.contains(&gate.metric) {
                metrics.push(gate.metric);
            }
        }
        Ok(Options { metrics, margin, meant: self.meant.clone(), ..Options::default() })
    }

    fn tell(&self, judged: &[Judged]) -> Result<u8, Failure> {
        let each = |of: fn(&Judged) -> String| judged.iter().map(of).collect::<Vec<_>>().join("\n\n");
        let text = match (self.json, self.md, self.html) {
            (true, ..) => serde_json::to_string_pretty(&compare::json(judged)).map_err(Report::from)?,
            (_, true, _) => each(compare::markdown),
            (.., true) => compare::html(judged),
            _ => each(compare::text),
        };
        print_out(&text)?;
        Ok(compare::exit_code(judged))
    }
}

/// Holds two recordings against each other.
fn compare_recorded(args: &CompareArgs) -> Result<u8, Failure> {
    let options = args.options()?;
    let (a, b) = (args.a.as_deref().unwrap_or_default(), args.b.as_deref().unwrap_or_default());
    if fs::canonicalize(a).is_ok_and(|first| fs::canonicalize(b).is_ok_and(|second| first == second)) {
        say("A and B are the same recording: whatever is not SAME has too few values to be sure");
    }
    args.tell(&compare::compared(a, b, &options, &args.gate)?)
}

/// Runs both sides in turn and holds them against each other.
async fn compare_in_turn(args: &CompareArgs, most_pairs: usize) -> Result<u8, Failure> {
    let options = args.options()?;
    let limit = match args.max_time.map(Duration::try_from_secs_f64) {
        Some(Err(_)) => return Err(Usage("--max-time: a time is a number of seconds".to_owned()).into()),
        limit => limit.and_then(Result::ok),
    };
    let (of_a, of_b) = compare::sides(&args.sides)?;
    let planned = |overrides: &[String]| {
        let what = What { overrides: overrides.to_vec(), ..What::default() };
        let plan = what.plan()?;
        plan.check_machine()?;
        Ok::<Plan, Failure>(plan)
    };
    let (a, b) = (planned(&of_a)?, planned(&of_b)?);
    let mut remarks: Vec<&String> = a.remarks.iter().chain(&b.remarks).collect();
    remarks.dedup();
    remarks.into_iter().for_each(|remark| say(format_args!("note: {remark}")));
    let dir = compare::kept_in(&runs_root(&a.composed));
    let repeat = Repeat { a, b, most_pairs, limit, dir };
    let repeated = repeat.run(&options).await?;
    if let Some(cause) = &repeated.cause {
        say(format_args!("interrupted: {cause}"));
    }
    let interrupted = repeated.cause.as_ref().map(Cause::exit_code);
    let Some(comparison) = repeated.comparison(&options, &of_a, &of_b) else {
        say("no pair was completed: nothing can be said");
        return Ok(interrupted.unwrap_or(3));
    };
    let judged = [Judged::new(None, comparison, &args.gate)];
    repeat.keep(&judged[0])?;
    say(format_args!("kept in {}", repeat.dir.display()));
    let code = args.tell(&judged)?;
    Ok(interrupted.unwrap_or(code))
}

impl From<CompareError> for Failure {
    fn from(e: CompareError) -> Self {
        match e {
            // One means that a gate is broken: a run that failed is none of the caller's words, but neither that.
            CompareError::Failed { .. } | CompareError::Io { .. } => Failure::Work(e.into()),
            e => Usage(e.to_string()).into(),
        }
    }
}

fn keep_baseline(command: BaselineCommand) -> Result<u8, Failure> {
    match command {
        BaselineCommand::Save { name, run } => {
            let root = runs_root(&What::default().compose()?);
            let (path, sample) = compare::save_baseline(&name, run.as_deref(), &root)?;
            print_out(&format!("{} keeps {}, {} requests", path.display(), sample.name, sample.measured))?;
            if sample.facts.outcome.is_none() {
                say("note: the run has no end: it is still being written, or was cut off");
            }
        }
        BaselineCommand::List => print_out(&compare::baselines_text(&compare::baselines()))?,
    }
    Ok(0)
}

/// Prints what is in files of kernels. What can be read is shown though another file can't.
fn tell_kernels(answer: Answer) -> Result<u8, Failure> {
    match answer {
        Answer::Text { text, errors } => {
            if !text.is_empty() {
                print_out(&text)?;
            }
            Ok(unread(&errors))
        }
        Answer::Screen { errors, .. } => Ok(unread(&errors)),
        Answer::List { list, to: None } => {
            print_out(yaml_text(&list).trim_end())?;
            Ok(0)
        }
        Answer::List { list, to: Some(path) } => {
            fs::write(&path, yaml_text(&list))
                .map_err(|e| eyre!("{} can't be written: {e}", path.display()))?;
            say(format_args!("{} kernels listed in {}", list.kernels.len(), path.display()));
            Ok(0)
        }
    }
}

/// Names files that can't be read; the exit code that means.
fn unread(errors: &[KernelsError]) -> u8 {
    errors.iter().for_each(|e| say(format_args!("error: {e}")));
    u8::from(!errors.is_empty())
}

/// The screen with what is in files of kernels.
async fn look_at_kernels(
    reports: Vec<KernelReport>,
    wish: Wish,
    errors: Vec<KernelsError>,
) -> Result<u8, Failure> {
    let composed = What::default().compose()?;
    let mut state = RunState::default();
    let mut add = |event| state.apply(&Envelope { t: Stamp::default(), event });
    let notice = |level, text| Event::Notice(Notice { level, source: "kernels".to_owned(), text });
    if let Some(over) = reports.len().checked_sub(KEPT_REPORTS).filter(|over| *over > 0) {
        let text = format!("the first {over} files have no room beside the others; --text shows all");
        add(notice(Level::Warn, text));
    }
    errors.iter().for_each(|e| add(notice(Level::Error, e.to_string())));
    reports.into_iter().for_each(|report| add(Event::KernelReport(Box::new(report))));
    let settings = KernelsSettings {
        source: Some(0),
        group: wish.group,
        sort: wish.sort,
        filter: wish.filter.unwrap_or_default(),
        ..KernelsSettings::default()
    };
    let tui = composed.config.output.tui.clone();
    let shutdown = Shutdown::listen()?;
    let app = App::of_files(&tui, state, settings, runs_root(&composed));
    let left = leave(app.run(tui.mouse, shutdown).await)?;
    Ok(left.max(unread(&errors)))
}

impl From<ListError> for Failure {
    fn from(e: ListError) -> Self {
        Failure::Work(e.into())
    }
}

/// Answers a script. Whatever goes wrong, nothing is said: the user is in the middle of a line.
fn complete(shell: Shell, sent: &[OsString]) -> u8 {
    let sent: Vec<String> = sent.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let cwd = env::current_dir().unwrap_or_default();
    let answer = std::panic::catch_unwind(|| completion::answer(shell, &sent, Cli::command(), &cwd));
    let _ = io::stdout().write_all(answer.unwrap_or_default().as_bytes());
    0
}

impl From<AssetError> for Failure {
    fn from(e: AssetError) -> Self {
        if e.is_usage() { Usage(e.to_string()).into() } else { Failure::Work(e.into()) }
    }
}

fn show_config(what: &What, show: &Show) -> Result<u8, Failure> {
    let composed = what.compose()?;
    let value = match (show.info, what.cfg) {
        (Some(info), _) if !show.json => {
            print_out(told(&composed, info).trim_end())?;
            return Ok(0);
        }
        (Some(Info::Searchpath), _) => serde_json::json!(composed.search_path()),
        (Some(Info::Defaults), _) => {
            let item = |item: &DefaultsItem| {
                serde_json::json!({
                    "config": item.config, "package": item.package, "parent": item.parent,
                    "self": item.is_self, "from": item.origin.to_string(),
                })
            };
            composed.defaults().iter().map(item).collect()
        }
        (None, Some(Cfg::Hydra)) => return print_yaml_or_json(&composed.hydra(), show.json),
        (None, _) => {
            let form = if show.no_resolve { Form::AsWritten } else { Form::Resolved };
            let value = composed.package(show.package.as_deref().unwrap_or_default(), form);
            return print_yaml_or_json(&value.map_err(|e| Usage(e.to_string()))?, show.json);
        }
    };
    print_out(&serde_json::to_string_pretty(&value).map_err(Report::from)?)?;
    Ok(0)
}

/// How a configuration was composed, in a table.
fn told(composed: &Composed, info: Info) -> String {
    if info == Info::Searchpath {
        return composed.search_path().join("\n");
    }
    let mut rows = vec![["CONFIG", "PACKAGE", "NAMED BY", "FROM"].map(str::to_owned)];
    for item in composed.defaults() {
        let config = if item.is_self { format!("{} (_self_)", item.config) } else { item.config.clone() };
        let package = if item.package.is_empty() { "_global_".into() } else { item.package.clone() };
        let parent = item.parent.clone().unwrap_or_else(|| "-".into());
        rows.push([config, package, parent, item.origin.to_string()]);
    }
    aligned(&rows, |_| false)
}

impl What {
    /// As typed, `--model` first.
    fn typed_overrides(&self) -> Vec<String> {
        self.model.iter().map(|m| format!("model={m}")).chain(self.overrides.iter().cloned()).collect()
    }

    fn all_overrides(&self) -> Vec<String> {
        with_shape_name(self.typed_overrides())
    }

    fn tree(&self) -> Result<ConfTree, Usage> {
        let cwd =
            env::current_dir().map_err(|e| Usage(format!("the working directory can't be told: {e}")))?;
        ConfTree::find(self.conf_dir.as_deref(), &cwd).map_err(|e| Usage(e.to_string()))
    }

    fn compose(&self) -> Result<Composed, Usage> {
        self.check_words()?;
        compose(&self.tree()?, &self.all_overrides()).map_err(|e| Usage(e.to_string()))
    }

    /// A bare word is a mistyped command more often than anything else.
    fn check_words(&self) -> Result<(), Usage> {
        let Some(word) = self.overrides.iter().find(|o| !o.contains('=') && !o.starts_with('~')) else {
            return Ok(());
        };
        let cli = Cli::command();
        let commands: Vec<&str> =
            cli.get_subcommands().filter(|command| !command.is_hide_set()).map(|c| c.get_name()).collect();
        let near: Vec<&str> =
            commands.iter().filter(|c| strsim::damerau_levenshtein(c, word) <= 2).copied().collect();
        let hint =
            if near.is_empty() { String::new() } else { format!(" Did you mean {}?", near.join(", ")) };
        let all = commands.join(", ");
        Err(Usage(format!("{word:?} is neither a command ({all}) nor an override (key=value).{hint}")))
    }

    fn plan(&self) -> Result<Plan, Failure> {
        Ok(Plan::new(self.compose()?)?)
    }
}

/// A shape from a file is not the model that the defaults name.
fn with_shape_name(mut overrides: Vec<String>) -> Vec<String> {
    let given = |key: &str| overrides.iter().find_map(|o| o.strip_prefix(key)).map(str::to_owned);
    if let (Some(path), None) = (given("model.config_json="), given("model.name=")) {
        overrides.push(format!("model.name={}", shape_name(Path::new(&path))));
    }
    overrides
}

/// The sweep that is asked for, if one is: every job looked at, and its directory made. `ready` may still object before
/// that.
fn what_sweep(
    what: &What,
    several: &Several,
    ready: impl FnOnce() -> Result<(), Usage>,
) -> Result<Option<Runner>, Failure> {
    if let Some(dir) = &several.resume {
        ready()?;
        let tree_of = |conf_dir: Option<&Path>| {
            What { conf_dir: conf_dir.map(Path::to_owned), ..What::default() }.tree()
        };
        let runner = Runner::resume(dir, |conf_dir| tree_of(conf_dir).map_err(Failure::from))?;
        if runner.sweep.is_complete() {
            say("every job of this sweep is completed already");
        }
        return Ok(Some(runner));
    }
    if !several.multirun {
        return Ok(None);
    }
    what.check_words()?;
    let (tree, typed) = (what.tree()?, what.typed_overrides());
    let jobs = expand_sweep(&tree, &typed).map_err(|e| Usage(e.to_string()))?;
    let jobs = jobs.into_iter().map(with_shape_name).collect();
    ready()?;
    Ok(Some(Runner::begin(tree, what.conf_dir.clone(), typed, jobs)?))
}

impl From<SweepError> for Failure {
    fn from(e: SweepError) -> Self {
        if e.is_usage() { Usage(e.to_string()).into() } else { Failure::Work(e.into()) }
    }
}

/// What to call a shape that was read from `path`: the file's name, or its directory's where it is a plain
/// `config.json`.
fn shape_name(path: &Path) -> String {
    let stem = path.file_stem().filter(|stem| *stem != "config");
    let name = stem.or_else(|| path.parent().and_then(Path::file_name)).unwrap_or(OsStr::new("custom"));
    let safe = |c: char| if c.is_alphanumeric() || "-_".contains(c) { c } else { '_' };
    name.to_string_lossy().chars().map(safe).collect()
}

impl From<EngineError> for Failure {
    fn from(e: EngineError) -> Self {
        match e {
            EngineError::NoDevice { .. } | EngineError::ContextTooLong { .. } => {
                Failure::Usage(Usage(e.to_string()))
            }
            // The machine is at fault, not the words.
            e => Failure::Work(e.into()),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(e: PlanError) -> Self {
        match e {
            PlanError::Engine(e) => e.into(),
            e => Failure::Usage(Usage(e.to_string())),
        }
    }
}

async fn run(what: &What, json: bool, quiet: bool) -> Result<u8, Failure> {
    let plan = what.plan()?;
    plan.check_machine()?;
    for remark in &plan.remarks {
        say(format_args!("note: {remark}"));
    }
    let for_tools = plan.is_for_tools_alone();
    let finished = headless::run(plan, quiet).await?;
    let dir = finished.ended.dir.clone();
    if json {
        let text =
            serde_json::to_string_pretty(&run_json(&finished.state, dir.as_deref())).map_err(Report::from)?;
        print_out(&text)?;
    } else {
        let under_tools = kernels_text(&finished.state, KERNEL_ROWS);
        let own = if for_tools { kept_in(dir.as_deref()) } else { summary(&finished.state, dir.as_deref()) };
        let parts = [under_tools, own.trim().to_owned()];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        print_out(&parts.join("\n\n"))?;
    }
    let code = last_words(&finished.ended);
    if let Some(cause) = &finished.cause {
        say(format_args!("interrupted: {cause}"));
        return Ok(cause.exit_code());
    }
    Ok(code)
}

/// Looks at the GPU for a while and says what it saw.
async fn watch_for(what: &What, seconds: f64, json: bool) -> Result<u8, Failure> {
    let plan = what.plan()?;
    let watched = headless::watch(plan, Duration::from_secs_f64(seconds)).await?;
    if let Some(absent) = watched.state.gpu_absent.as_ref().filter(|_| watched.state.gpus.is_empty()) {
        return Err(Failure::Work(eyre!("{}; {}", absent.reason, absent.remedy)));
    }
    let found = diagnose::of_state(&watched.state);
    match json {
        true => print_out(&diagnose::to_json(&found).to_string())?,
        false => print_out(&found.iter().map(diagnose::text).collect::<Vec<_>>().join("\n\n"))?,
    }
    Ok(watched.cause.map_or(0, |cause| cause.exit_code()))
}

/// Looks at the machine and tells what works.
async fn examine(what: &What, json: bool) -> Result<u8, Failure> {
    what.check_words()?;
    let cwd = env::current_dir().unwrap_or_default();
    // A configuration that does not compose is one of the findings.
    let runs = what.compose().map(|composed| cwd.join(runs_root(&composed))).map_err(|Usage(text)| text);
    let machine = Arc::new(Machine::here(runs));
    let style = show::Style::of(&machine, io::stdout().is_terminal());
    let stop = Arc::clone(&machine.stop);
    let work = move || {
        let heard = io::stderr().is_terminal();
        doctor::examine(&machine, doctor::LIMIT, &mut |words| {
            if heard {
                say(words);
            }
        })
    };
    let report = match attended(work, || stop.store(true, Ordering::Release)).await? {
        Ok(report) => report,
        Err(cause) => return Ok(interrupted(&cause)),
    };
    match json {
        true => {
            print_out(&serde_json::to_string_pretty(&show::Object::from(&report)).map_err(Report::from)?)?
        }
        false => print_out(show::text(&report, style).trim_end())?,
    }
    Ok(report.exit_code())
}

/// A time to measure for.
fn a_time(seconds: f64) -> Result<Duration, Usage> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| Usage(format!("--seconds {seconds}: a time is a number above 0")))
}

fn print_measured(json: bool, object: &serde_json::Value, text: &str) -> Result<(), Failure> {
    match json {
        true => print_out(&serde_json::to_string_pretty(object).map_err(Report::from)?)?,
        false => print_out(text.trim_end())?,
    }
    Ok(())
}

/// Measures what the device can do at most and tells it.
async fn measure_peaks(what: &What, seconds: f64, json: bool) -> Result<u8, Failure> {
    let each = a_time(seconds)?;
    let (device, threads) = peaks::device(&what.compose()?)?;
    let control = Control::default();
    let cancelled = control.clone();
    let work = move || peaks::measure(device, threads, each, &control, &mut |words| say(words));
    let measured = match attended(work, || cancelled.cancel()).await? {
        Ok(measured) => measured?,
        Err(cause) => return Ok(interrupted(&cause)),
    };
    print_measured(json, &measured.json(), &measured.text())?;
    Ok(0)
}

/// Measures what the sampler costs and tells it.
async fn measure_overhead(what: &What, seconds: f64, json: bool) -> Result<u8, Failure> {
    let limit = a_time(seconds)?;
    let plan = overhead::plan(what.compose()?)?;
    plan.check_machine()?;
    let control = Control::default();
    let cancelled = control.clone();
    let work = move || {
        let mut said: Option<(Instant, String)> = None;
        overhead::measure(&plan, limit, &control, &mut |words| {
            // The first word names what is being done.
            let doing = words.split(' ').next().unwrap_or_default();
            if said.as_ref().is_none_or(|(at, said)| at.elapsed() >= BETWEEN_WORDS || said != doing) {
                said = Some((Instant::now(), doing.to_owned()));
                say(words);
            }
        })
    };
    let measured = match attended(work, || cancelled.cancel()).await? {
        Ok(measured) => measured?,
        Err(cause) => return Ok(interrupted(&cause)),
    };
    print_measured(json, &measured.json(), &measured.text())?;
    Ok(measured.exit_code())
}

const BETWEEN_WORDS: Duration = Duration::from_secs(2);
/// For work that was told to stop.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What `work` gives, from a thread of its own. A signal makes `stop` be called and is the answer then.
async fn attended<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    stop: impl FnOnce(),
) -> io::Result<Result<T, Cause>> {
    let mut shutdown = Shutdown::listen()?;
    let (tx, mut rx) = tokio::sync::oneshot::channel();
    thread::Builder::new().name("llmprof-doctor".to_owned()).spawn(move || tx.send(work()).is_ok())?;
    tokio::select! {
        Ok(done) = &mut rx => Ok(Ok(done)),
        cause = shutdown.requested() => {
            stop();
            let _ = tokio::time::timeout(PATIENCE, rx).await;
            Ok(Err(cause))
        }
    }
}

fn interrupted(cause: &Cause) -> u8 {
    say(format_args!("interrupted: {cause}"));
    cause.exit_code()
}

impl From<OverheadError> for Failure {
    fn from(e: OverheadError) -> Self {
        match e {
            OverheadError::Plan(e) => e.into(),
            OverheadError::Engine(e) => e.into(),
            OverheadError::SamplerGone => Failure::Work(e.into()),
            e => Failure::Usage(Usage(e.to_string())),
        }
    }
}

impl From<PeaksError> for Failure {
    fn from(e: PeaksError) -> Self {
        match e {
            PeaksError::Engine(e) => e.into(),
            PeaksError::Simulated => Failure::Usage(Usage(e.to_string())),
        }
    }
}

async fn run_sweep(mut runner: Runner, json: bool, quiet: bool) -> Result<u8, Failure> {
    let cause = headless::sweep(&mut runner, quiet).await?;
    if json {
        print_out(&serde_json::to_string_pretty(&sweep_json(&runner.sweep)).map_err(Report::from)?)?;
    } else {
        print_out(&format!("{}\n\nrecorded in {}", table_text(&runner.sweep), runner.sweep.dir.display()))?;
    }
    Ok(last_words_of_sweep(&runner, cause, "llmprof-tui run"))
}

/// Says on stderr what is left of a sweep and how to go on with it, and gives the exit code.
fn last_words_of_sweep(runner: &Runner, cause: Option<Cause>, command: &str) -> u8 {
    let sweep = &runner.sweep;
    if let Some(cause) = &cause {
        say(format_args!("interrupted: {cause}"));
    }
    if !sweep.is_complete() {
        let (of, done) = (sweep.jobs.len(), sweep.count(Outcome::Completed));
        let dir = sweep.dir.display().to_string();
        let dir = shlex::try_quote(&dir).map_or_else(|_| dir.clone(), |quoted| quoted.into_owned());
        say(format_args!("{done} of {of} jobs completed; the others: {command} --resume {dir}"));
    }
    cause.map_or_else(|| runner.exit_code(), |cause| cause.exit_code())
}

/// Says on stderr what went wrong with a run, and gives the exit code that says so too.
fn last_words(ended: &Ended) -> u8 {
    let failed = ended.finished.outcome == Outcome::Failed;
    if failed {
        say(format_args!("error: {}", ended.finished.cause.as_deref().unwrap_or("the run failed")));
    }
    // A run for tools alone has failed of these, and has said so.
    for trouble in ended.tool_troubles.iter().filter(|_| !failed) {
        say(format_args!("error: {trouble}"));
    }
    if let Some(loss) = &ended.loss {
        say(format_args!("error: {loss}"));
    }
    u8::from(failed || ended.loss.is_some() || !ended.tool_troubles.is_empty())
}

/// Prints the result. A reader that has seen enough and closed the pipe is no error of ours.
fn print_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

fn print_yaml_or_json(value: &impl serde::Serialize, json: bool) -> Result<u8, Failure> {
    let text = match json {
        true => serde_json::to_string_pretty(value).map_err(Report::from)?,
        false => yaml_text(value),
    };
    print_out(text.trim_end())?;
    Ok(0)
}

/// The result in words.
fn summary(state: &RunState, dir: Option<&Path>) -> String {
    let mut out = String::new();
    if let Some(run) = &state.run {
        let simulated = if run.simulated { ", simulated" } else { "" };
        out += &format!("{} as {} on {} ({}{simulated})\n\n", run.model, run.dtype, run.device, run.engine);
    }
    let total = &state.total;
    let latencies = total.latencies();
    let mut rows = vec![["", "mean", "p50", "p90", "p99", "n"].map(str::to_owned)];
    for (name, d) in latencies {
        let s = d.summary();
        let [mean, p50, p90, p99] =
            [s.mean, s.p50, s.p90, s.p99].map(|v| v.map_or_else(|| "-".into(), millis));
        rows.push([name.to_owned(), mean, p50, p90, p99, grouped(s.n as i64)]);
    }
    out += &aligned(&rows, |column| column > 0);
    out.push('\n');
    let rate = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{} tok/s", three_digits(v)));
    out += &format!("\nprefill {}, decode {}\n", rate(total.prefill_tok_s()), rate(total.decode_tok_s()));
    if let Some(sentence) = verdict_of(state) {
        out += &format!("{sentence}\n");
    }
    out + "\n" + &kept_in(dir)
}

/// Rows of a table of kernels.
const KERNEL_ROWS: usize = 20;

fn kept_in(dir: Option<&Path>) -> String {
    dir.map(|dir| format!("recorded in {}\n", dir.display())).unwrap_or_default()
}

/// The screen with a live run.
async fn profile(what: What) -> Result<u8, Failure> {
    let plan = what.plan()?;
    plan.check_machine()?;
    need_terminal("llmprof-tui run")?;
    let tui = plan.composed.config.output.tui.clone();
    let root = runs_root(&plan.composed);
    let replan_what = what.clone();
    let replan = move |overrides: &[String]| {
        let what = What { model: None, overrides: overrides.to_vec(), ..replan_what.clone() };
        what.plan().map_err(|failure| match failure {
            Failure::Usage(Usage(text)) => text,
            Failure::Work(report) => report.to_string(),
        })
    };
    // Listens before there is anything that a signal could leave half done.
    let shutdown = Shutdown::listen()?;
    let live = Live { session: Session::start(plan), replan: Box::new(replan), sweep: None };
    leave(App::of_run(&tui, live, root).run(tui.mouse, shutdown).await)
}

/// The screen with a sweep.
async fn profile_sweep(mut runner: Runner) -> Result<u8, Failure> {
    let shutdown = Shutdown::listen()?;
    let Some(session) = runner.start_next() else {
        runner.take_remarks().iter().for_each(say);
        say(table_text(&runner.sweep));
        return Ok(last_words_of_sweep(&runner, None, "llmprof-tui"));
    };
    let composed = &session.plan().composed;
    let (tui, root) = (composed.config.output.tui.clone(), runs_root(composed));
    let live = Live { session, replan: Box::new(|_| Err(String::new())), sweep: Some(runner) };
    leave(App::of_run(&tui, live, root).run(tui.mouse, shutdown).await)
}

/// The screen with a recording.
async fn play(mut player: Player, dir: Option<RunDir>, at: At, speed: f64) -> Result<u8, Failure> {
    need_terminal("llmprof-tui run, or read the run's report.md")?;
    if !(speed > 0.0 && speed.is_finite()) {
        return Err(Usage(format!("--speed {speed}: a speed is a number above 0")).into());
    }
    let composed = What::default().compose()?;
    player.speed = speed;
    match at {
        At::End => player.to_end(),
        At::Second(secs) => player.seek(Stamp::from_secs_f64(secs)).map_err(Report::from)?,
    }
    let tui = composed.config.output.tui.clone();
    let shutdown = Shutdown::listen()?;
    let app = App::of_recording(&tui, player, dir, runs_root(&composed));
    leave(app.run(tui.mouse, shutdown).await)
}

fn need_terminal(instead: &str) -> Result<(), Usage> {
    if tui::terminal::is_there() {
        return Ok(());
    }
    Err(Usage(format!("this is not a terminal, and the screen needs one; use {instead}")))
}

/// Where the runs are: the part of the run directory's pattern that does not change from run to run.
fn runs_root(composed: &Composed) -> PathBuf {
    let dir = PathBuf::from(&composed.config.hydra.run.dir);
    dir.iter()
        .next()
        .filter(|_| dir.is_relative())
        .map_or_else(|| dir.ancestors().nth(3).unwrap_or(&dir).to_owned(), PathBuf::from)
}

/// Tells, below the restored terminal, how the runs ended.
fn leave(stopped: tui::Stopped) -> Result<u8, Failure> {
    let mut code = 0;
    for ended in &stopped.runs {
        if let Some(dir) = &ended.dir {
            say(format_args!("{}: recorded in {}", ended.finished.outcome, dir.display()));
        }
        code = code.max(last_words(ended));
    }
    stopped.exported.iter().for_each(say);
    if let Some(e) = stopped.error {
        return Err(eyre!("the terminal failed: {e}").into());
    }
    if let Some(runner) = &stopped.sweep {
        say(format_args!("{}\n\nrecorded in {}", table_text(&runner.sweep), runner.sweep.dir.display()));
        return Ok(last_words_of_sweep(runner, stopped.cause, "llmprof-tui"));
    }
    match stopped.cause {
        Some(cause) => {
            say(format_args!("interrupted: {cause}"));
            Ok(cause.exit_code())
        }
        None => Ok(code),
    }
}
