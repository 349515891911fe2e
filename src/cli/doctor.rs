//! `doctor`: checks of this machine, profiler overhead and measured peaks.

use std::{
    env,
    io::{self, IsTerminal},
    mem,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::Value;

use super::{
    Failure,
    args::{ConfigArgs, runs_root},
    print_json, print_styled,
    remote::RemoteArgs,
};
use llmprof_base::{
    process::{eprint_line, shutdown::Shutdown},
    units::three_digits,
};
use llmprof_run::doctor::{
    self, Machine, client,
    overhead::{self, OverheadError, Progress},
    peaks::{self, PeaksError},
    show,
};
use llmprof_workload::Control;

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui doctor               one line per check, and remedies
  llmprof-tui doctor --json        schema, program, checks (id, status, found, remedy, ms), summary
  llmprof-tui doctor --overhead    TPOT of the default model with and without sampling
  llmprof-tui doctor --overhead --seconds 120 model=qwen2_5_7b model.dtype=bf16
  llmprof-tui doctor --peaks       measured FLOP/s and bandwidth, next to the specified ones
  llmprof-tui doctor --peaks runtime.device=cpu runtime.threads=4
  llmprof-tui doctor --client --streams 1000   what the client of servers adds to latencies

Exit codes: 0 ok, 1 a check failed or the measurement was too short.";

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    #[command(flatten)]
    pub(super) remote: RemoteArgs,
    /// Measure the profiler overhead: TPOT with and without sampling, interleaved on one engine
    #[arg(long)]
    overhead: bool,
    /// Measure the peaks of the device with a large GEMM, a read and a copy
    #[arg(long, conflicts_with = "overhead")]
    peaks: bool,
    /// Measure the latency that the load generator adds, against a server of known timing in this process
    #[arg(long, conflicts_with_all = ["overhead", "peaks"])]
    client: bool,
    /// With --client: send N requests at a time
    #[arg(long, requires = "client", default_value_t = 100)]
    streams: u32,
    /// Measure for SECONDS: --overhead in total (default: 60), --peaks per load (default: 3), --client (default: 5)
    #[arg(long)]
    seconds: Option<f64>,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    pub(super) json: bool,
}

/// Minimum interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Time for cancelled work to end.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(1500);

pub(super) async fn run(args: DoctorArgs) -> Result<u8, Failure> {
    match args {
        DoctorArgs { overhead: true, .. } => measure_overhead(&args).await,
        DoctorArgs { peaks: true, .. } => measure_peaks(&args).await,
        DoctorArgs { client: true, .. } => measure_client(&args).await,
        DoctorArgs { seconds: Some(_), .. } => {
            Err(Failure::usage("--seconds needs --overhead, --peaks or --client"))
        }
        _ => examine(&args).await,
    }
}

impl DoctorArgs {
    fn duration(&self, default_s: f64) -> Result<Duration, Failure> {
        let seconds = self.seconds.unwrap_or(default_s);
        let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
        duration.ok_or_else(|| Failure::usage(format_args!("--seconds {seconds}: expected a number above 0")))
    }

    fn print(&self, json: &Value, text: &str) -> Result<(), Failure> {
        match self.json {
            true => print_json(json),
            false => print_styled(text.trim_end()),
        }
    }
}

async fn examine(args: &DoctorArgs) -> Result<u8, Failure> {
    args.config.reject_bare_words()?;
    let cwd = env::current_dir().unwrap_or_default();
    // A configuration that does not compose is one of the findings.
    let runs = args.config.compose().map(|composed| cwd.join(runs_root(&composed)));
    let machine = Arc::new(Machine::here(runs.map_err(|failure| failure.to_string())));
    let style = show::Style::for_machine(&machine, io::stdout().is_terminal());
    let stop = Arc::clone(&machine.stop);
    let work = move || {
        let on_terminal = io::stderr().is_terminal();
        doctor::examine(&machine, doctor::TIMEOUTS, &mut |id| {
            if on_terminal {
                eprint_line(format_args!("checking {id} …"));
            }
        })
    };
    let report = cancellable(work, || stop.store(true, Ordering::Release)).await?;
    args.print(&show::json(&report), &show::text(&report, style))?;
    Ok(report.exit_code())
}

async fn measure_peaks(args: &DoctorArgs) -> Result<u8, Failure> {
    let duration = args.duration(3.0)?;
    let (device, threads) = peaks::device(&args.config.compose()?)?;
    let control = Control::default();
    let cancelled = control.clone();
    let work = move || {
        let seconds = three_digits(duration.as_secs_f64());
        peaks::measure(device, threads, duration, &control, &mut |load| {
            eprint_line(format_args!("{load} for {seconds} s"));
        })
    };
    let measured = cancellable(work, || cancelled.cancel()).await??;
    args.print(&measured.json(), &measured.text())?;
    Ok(0)
}

async fn measure_client(args: &DoctorArgs) -> Result<u8, Failure> {
    let duration = args.duration(5.0)?;
    let streams = args.streams.clamp(1, 10_000);
    let control = Control::default();
    let cancelled = control.clone();
    eprint_line(format_args!("{streams} streams for {} s", three_digits(duration.as_secs_f64())));
    let work = move || client::measure(streams, duration, &control);
    let measured = cancellable(work, || cancelled.cancel()).await?.map_err(Failure::work)?;
    args.print(&measured.json(), &measured.text())?;
    Ok(0)
}

async fn measure_overhead(args: &DoctorArgs) -> Result<u8, Failure> {
    let limit = args.duration(60.0)?;
    let plan = overhead::plan(args.config.compose()?)?;
    plan.check_machine()?;
    let control = Control::default();
    let cancelled = control.clone();
    let work = move || {
        let mut printed: Option<(Instant, Progress)> = None;
        overhead::measure(&plan, limit, &control, &mut |progress| {
            let is_due = printed.as_ref().is_none_or(|(time, last)| {
                time.elapsed() >= PROGRESS_INTERVAL || mem::discriminant(last) != mem::discriminant(&progress)
            });
            if is_due {
                eprint_line(&progress);
                printed = Some((Instant::now(), progress));
            }
        })
        .map_err(Failure::from)
    };
    let measured = cancellable(work, || cancelled.cancel()).await??;
    args.print(&measured.json(), &measured.text())?;
    Ok(measured.exit_code())
}

/// Runs `work` on its own thread. On a signal it calls `cancel`, waits a moment and fails.
async fn cancellable<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    cancel: impl FnOnce(),
) -> Result<T, Failure> {
    let mut shutdown = Shutdown::listen()?;
    let (tx, mut rx) = tokio::sync::oneshot::channel();
    thread::Builder::new().name("llmprof-doctor".to_owned()).spawn(move || tx.send(work()).is_ok())?;
    tokio::select! {
        Ok(done) = &mut rx => Ok(done),
        cause = shutdown.requested() => {
            cancel();
            let _ = tokio::time::timeout(CANCEL_TIMEOUT, rx).await;
            Err(Failure::Interrupted(cause))
        }
    }
}

impl From<OverheadError> for Failure {
    fn from(e: OverheadError) -> Self {
        match e {
            OverheadError::Plan(e) => e.into(),
            OverheadError::Engine(e) => e.into(),
            OverheadError::SamplerEnded => Failure::work(e),
            e => Failure::usage(e),
        }
    }
}

impl From<PeaksError> for Failure {
    fn from(e: PeaksError) -> Self {
        match e {
            PeaksError::Engine(e) => e.into(),
            PeaksError::Simulated => Failure::usage(e),
        }
    }
}
