//! `watch`: GPUs and servers without a workload, in the TUI or for a fixed time.

use clap::Args;

use super::{
    Failure,
    args::{ConfigArgs, ConfigRequest, in_quotes, quoted_list, take_urls, time_of},
    diagnose, print_data, print_json, profile, remote,
    remote::{RemoteArgs, Shown},
};
use llmprof_base::process::eprint_line;
use llmprof_record::{
    report::{watched_server_json, watched_server_text},
    state::RunState,
};
use llmprof_run::headless;

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui watch                                the GPUs of this machine
  llmprof-tui watch http://localhost:8000          a server's queue, batch and KV cache; several URLs are a list
  llmprof-tui watch http://a:8000 http://b:8000 --alert 'ttft_ms>500' --alert 'silent_s>10'
  llmprof-tui watch --for 60 --alert 'temp_c>85'   exit code 1 if the limit was crossed";

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    #[command(flatten)]
    pub(super) remote: RemoteArgs,
    /// Monitor for SECONDS without the TUI, then print the diagnosis; exit with 1 if a server does not answer at the end or an alert was crossed
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<f64>,
    /// With --for: print one JSON object on stdout instead of text
    #[arg(long, requires = "seconds")]
    pub(super) json: bool,
    /// Read the GPUs from NVIDIA's DCGM exporter instead of NVML, e.g. http://node7:9400
    #[arg(long, value_name = "URL")]
    dcgm: Option<String>,
    /// Ring the bell and log a line when CONDITION becomes true, e.g. 'ttft_ms>500', 'output_tok_s<100', 'silent_s>10'; repeatable
    #[arg(long = "alert", value_name = "CONDITION")]
    alerts: Vec<String>,
    /// Record the samples as a run
    #[arg(long)]
    record: bool,
}

impl WatchArgs {
    /// The configuration with the overrides of a watch; the user's own come last and take precedence.
    pub(super) fn watch_config(&self) -> Result<ConfigRequest, Failure> {
        let mut config = self.config.clone();
        let urls = take_urls(&mut config.overrides);
        let mut request =
            config.request_with(&["runtime=watch", &format!("output.record={}", self.record)])?;
        let servers = (!urls.is_empty()).then(|| format!("telemetry.server={}", quoted_list(&urls)));
        let alerts =
            (!self.alerts.is_empty()).then(|| format!("telemetry.alerts={}", quoted_list(&self.alerts)));
        let dcgm = self.dcgm.as_ref().map(|url| format!("telemetry.dcgm={}", in_quotes(url)));
        for option in [servers, alerts, dcgm] {
            request.add(option.as_slice())?;
        }
        Ok(request)
    }

    /// Watches a program of which only GPU and memory can be seen.
    pub(super) fn from_outside(config: ConfigArgs, seconds: Option<f64>, json: bool) -> WatchArgs {
        WatchArgs {
            config,
            remote: RemoteArgs::default(),
            seconds,
            json,
            dcgm: None,
            alerts: Vec::new(),
            record: false,
        }
    }
}

pub(super) async fn run(args: WatchArgs) -> Result<u8, Failure> {
    with_remark(args, None).await
}

/// Watches; the remark is shown in Log, or on stderr without a screen.
pub(super) async fn with_remark(args: WatchArgs, remark: Option<String>) -> Result<u8, Failure> {
    let mut config = args.watch_config()?;
    if args.remote.host.is_some() {
        // The local screen reads the remote recording.
        config.add(&["output.record=true".to_owned()])?;
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
    let urls: Vec<String> =
        plan.composed.config.telemetry.server.as_ref().map_or(Vec::new(), |urls| urls.all().to_vec());
    remark.iter().for_each(eprint_line);
    let watched = headless::watch(plan, time).await?;
    let state = &watched.state;
    if let Some(first) = urls.first().filter(|_| state.servers().all(|server| !server.is_there())) {
        return Err(unseen(first, state));
    }
    print_watched(state, args.json)?;
    let failures: Vec<String> = failures(&urls, state);
    failures.iter().for_each(|failure| eprint_line(format_args!("error: {failure}")));
    if has_failed(state) {
        return Ok(1);
    }
    Ok(watched.cause.map_or(0, |cause| cause.exit_code()))
}

/// Whether a server does not answer at the end, or an alert was crossed.
pub(super) fn has_failed(state: &RunState) -> bool {
    state.silence().is_some() || state.alerts_crossed > 0
}

/// No server has reported metrics.
fn unseen(url: &str, state: &RunState) -> Failure {
    match state.server.silence(state.now).filter(|_| !state.server.has_unknown_metrics) {
        Some(silence) => Failure::work(format_args!("{url}: {silence}")),
        None => Failure::work(format_args!(
            "{url} has no metrics that are known here: vLLM, SGLang (--enable-metrics), TensorRT-LLM, Triton, llama.cpp (--metrics) and TGI \
             are; name the page itself where it is not at /metrics"
        )),
    }
}

/// The servers that do not answer at the end.
fn failures(urls: &[String], state: &RunState) -> Vec<String> {
    let silences = state.servers().zip(urls).filter_map(|(server, url)| {
        let silence = server.silence(state.now)?;
        Some(if urls.len() > 1 { format!("{url}: {silence}") } else { silence })
    });
    silences.collect()
}

/// Prints the observations of a server or of the GPUs.
pub(super) fn print_watched(state: &RunState, json: bool) -> Result<(), Failure> {
    match (state.servers().any(|server| server.is_there()), json) {
        (true, true) => return print_json(&watched_server_json(state)),
        (true, false) => return print_data(&watched_server_text(state)),
        (false, _) => {}
    }
    if let Some(absent) = state.gpu_absent.as_ref().filter(|_| state.gpus.is_empty()) {
        return Err(Failure::work(format_args!("{}; {}", absent.reason, absent.remedy)));
    }
    diagnose::print_all(&diagnose::of_state(state), json)
}
