//! `watch`: the GPU without a workload, in the TUI or for a fixed time.

use clap::Args;

use super::{
    Failure,
    args::{ConfigArgs, take_url, time_of},
    diagnose, print_data, print_json, profile, remote,
    remote::{RemoteArgs, Shown},
};
use crate::{
    process::eprint_line,
    report::{watched_server_json, watched_server_text},
    run::headless,
    state::RunState,
};

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    #[command(flatten)]
    pub(super) remote: RemoteArgs,
    /// Monitor for this long without the TUI, then print the diagnosis; exit code 1 where a watched server is silent at the end
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<f64>,
    /// With --for, print one JSON object on stdout instead of text
    #[arg(long, requires = "seconds")]
    pub(super) json: bool,
    /// Read the GPUs from NVIDIA's DCGM exporter instead of NVML, as http://node7:9400
    #[arg(long, value_name = "URL")]
    dcgm: Option<String>,
    /// Record the samples as a run
    #[arg(long)]
    record: bool,
}

impl WatchArgs {
    /// The configuration with the overrides that make a run a watch; the user's own come last and win.
    pub(super) fn watch_config(&self) -> ConfigArgs {
        let mut config = self.config.clone();
        let watch = ["runtime=watch".to_owned(), format!("output.record={}", self.record)];
        take_url(&mut config.overrides, "telemetry.server");
        let dcgm = self.dcgm.iter().map(|url| format!("telemetry.dcgm='{}'", url.replace('\'', "")));
        config.overrides.extend(dcgm);
        config.overrides.splice(0..0, watch);
        config
    }

    /// Watches for a program of which nothing more can be seen.
    pub(super) fn from_outside(config: ConfigArgs, seconds: Option<f64>, json: bool) -> WatchArgs {
        WatchArgs { config, remote: RemoteArgs::default(), seconds, json, dcgm: None, record: false }
    }
}

pub(super) async fn run(args: WatchArgs) -> Result<u8, Failure> {
    with_remark(args, None).await
}

/// Watches; the remark stands in Log, and on stderr where there is no screen.
pub(super) async fn with_remark(args: WatchArgs, remark: Option<String>) -> Result<u8, Failure> {
    let mut config = args.watch_config();
    if args.remote.host.is_some() {
        // What is shown here is read from the recording there.
        config.overrides.push("output.record=true".to_owned());
        let shown = Shown {
            headless: args.seconds.is_some(),
            json: args.json,
            seconds: args.seconds,
            watch: true,
            ..Shown::default()
        };
        if let Some(code) = remote::profile(&args.remote, &config, None, shown).await? {
            return Ok(code);
        }
    }
    let Some(seconds) = args.seconds else { return profile::profile(config, remark).await };
    let time = time_of(seconds)?;
    let plan = config.plan()?;
    let watched_url = plan.composed.config.telemetry.server.clone();
    remark.iter().for_each(eprint_line);
    let watched = headless::watch(plan, time).await?;
    if let Some(url) = watched_url.filter(|_| !watched.state.server.is_there()) {
        return Err(Failure::work(format_args!(
            "{url} has no metrics that are known here: vLLM, SGLang (--enable-metrics), TensorRT-LLM, Triton, llama.cpp (--metrics) and TGI \
             are; name the page itself where it is not at /metrics"
        )));
    }
    print_watched(&watched.state, args.json)?;
    if let Some(silence) = watched.state.server.silence(watched.state.now) {
        eprint_line(format_args!("error: {silence}"));
        return Ok(1);
    }
    Ok(watched.cause.map_or(0, |cause| cause.exit_code()))
}

/// What was seen, of a server or of the GPUs.
pub(super) fn print_watched(state: &RunState, json: bool) -> Result<(), Failure> {
    match (state.server.is_there(), json) {
        (true, true) => return print_json(&watched_server_json(state)),
        (true, false) => return print_data(&watched_server_text(state)),
        (false, _) => {}
    }
    if let Some(absent) = state.gpu_absent.as_ref().filter(|_| state.gpus.is_empty()) {
        return Err(Failure::work(format_args!("{}; {}", absent.reason, absent.remedy)));
    }
    diagnose::print_all(&diagnose::of_state(state), json)
}
