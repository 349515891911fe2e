//! `watch`: GPUs and servers without a workload, in the TUI or for a fixed time.

use clap::Args;

use super::{
    Failure,
    args::{ConfigArgs, ConfigRequest},
    launch::launch,
    remote::RemoteArgs,
    request::{RunRequest, Shown},
};
use llmprof_config::{Element, Override};

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
        let (mut request, urls) = self.config.request_and_urls()?;
        request.preset(watching(self.record));
        let list = |key: &str, texts: &[String]| (!texts.is_empty()).then(|| Override::of_texts(key, texts));
        let dcgm = self.dcgm.as_ref().map(|url| Override::of_text("telemetry.dcgm", url));
        let options = [list("telemetry.server", &urls), list("telemetry.alerts", &self.alerts), dcgm];
        request.overrides.extend(options.into_iter().flatten());
        Ok(request)
    }
}

/// The overrides of a run that only monitors.
pub(super) fn watching(record: bool) -> [Override; 2] {
    [Override::of_text("runtime", "watch"), Override::new("output.record", Element::Bool(record))]
}

pub(super) async fn run(args: WatchArgs) -> Result<u8, Failure> {
    let mut config = args.watch_config()?;
    if args.remote.host.is_some() {
        // The local screen reads the remote recording.
        config.overrides.push(Override::new("output.record", Element::Bool(true)));
    }
    let headless = args.seconds.is_some();
    let shown = Shown { headless, json: args.json, quiet: false, seconds: args.seconds };
    launch(RunRequest { config, program: None, shown, remark: None }, &args.remote).await
}
