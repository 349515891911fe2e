//! `fleet`: many GPUs, read from Prometheus.

use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum, ValueHint};

use super::{Failure, args::ConfigArgs, print, print_json};
use llmprof_analysis::fleet::{Fleet, Order, Snapshot, summary, table};
use llmprof_app::fleet::{Feed, FleetApp, FleetStopped};
use llmprof_base::{
    process::{eprint_line, shutdown::Shutdown},
    read,
};
use llmprof_sources::fleet::{
    Client, FleetError, Header, Matcher, NodeLabel, Recorder, RecordingError, Source, Watch, is_label_name,
    json, login_of_token, read_recording,
};

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui fleet --prometheus http://prometheus:9090
  llmprof-tui fleet --prometheus https://prom.example.com/prometheus --bearer-token-file token
  llmprof-tui fleet --prometheus localhost:9090 --match 'cluster=\"a\"' --node-label node
  llmprof-tui fleet --prometheus localhost:9090 --json | jq '.gpus[] | select(.state == \"slow\")'
  llmprof-tui fleet --prometheus localhost:9090 --record fleet.ndjson
  llmprof-tui fleet --replay fleet.ndjson";

#[derive(Debug, Args)]
pub(super) struct FleetArgs {
    /// Address of Prometheus, e.g. http://prometheus:9090; a user name and a password in it are never shown
    #[arg(long, value_name = "URL", required_unless_present = "replay", conflicts_with = "replay")]
    prometheus: Option<String>,
    /// Read only series with this label, e.g. cluster="a"; also with !=, =~ and !~; repeatable
    #[arg(long = "match", value_name = "LABEL=VALUE", conflicts_with = "replay")]
    matchers: Vec<String>,
    /// Take the node's name from this label (default: the first of Hostname, node, host, instance and similar)
    #[arg(long, value_name = "LABEL", conflicts_with = "replay")]
    node_label: Option<String>,
    /// Compare GPUs with the same value of this label as peers (default: labels of jobs and pods)
    #[arg(long, value_name = "LABEL", conflicts_with = "replay")]
    work_label: Option<String>,
    /// Count errors and show histories over this time, e.g. 30m, 1h, 12h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time, conflicts_with = "replay")]
    window: Duration,
    /// Refresh the screen at this interval, e.g. 15s, 1m
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = time, conflicts_with = "replay")]
    interval: Duration,
    /// Wait at most this long for an answer from Prometheus
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time, conflicts_with = "replay")]
    timeout: Duration,
    /// Authenticate with the token in FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "replay")]
    bearer_token_file: Option<PathBuf>,
    /// Trust the certificate in FILE (PEM) in addition to the usual authorities
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "replay")]
    ca_file: Option<PathBuf>,
    /// Sort the GPUs
    #[arg(long, default_value = "lost")]
    sort: Sort,
    /// Print a table once instead of opening the screen (default when stdout is not a terminal)
    #[arg(long)]
    once: bool,
    /// Print one JSON object once
    #[arg(long)]
    json: bool,
    /// Record every refresh to a new file, or to a new file in a directory
    #[arg(long, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath, conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Show a recording instead of querying Prometheus
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    replay: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Sort {
    /// Largest loss first
    Lost,
    /// By name of the node
    Node,
    /// Highest first
    Temperature,
    /// Highest first
    Power,
    /// Lowest first
    Clock,
    /// Highest first
    Utilisation,
}

impl From<Sort> for Order {
    fn from(sort: Sort) -> Order {
        match sort {
            Sort::Lost => Order::Lost,
            Sort::Node => Order::Node,
            Sort::Temperature => Order::Temperature,
            Sort::Power => Order::Power,
            Sort::Clock => Order::Clock,
            Sort::Utilisation => Order::Utilisation,
        }
    }
}

/// `90s`, `30m`, `1h`, `2d`; a number alone is in seconds.
fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let unit = match unit {
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(format!("{text:?} is not a duration: write 30s, 15m, 1h or 2d")),
    };
    match number.trim().parse::<f64>() {
        Ok(n) if (1.0..=30.0 * 86400.0).contains(&(n * unit)) => Ok(Duration::from_secs_f64(n * unit)),
        _ => Err(format!("{text:?} is not a duration from 1s to 30d: write 30s, 15m, 1h or 2d")),
    }
}

impl From<FleetError> for Failure {
    fn from(e: FleetError) -> Self {
        match e {
            FleetError::Usage(_) => Failure::usage(e),
            e => Failure::work(e),
        }
    }
}

impl From<RecordingError> for Failure {
    fn from(e: RecordingError) -> Self {
        Failure::work(e)
    }
}

impl FleetArgs {
    fn source(&self, url: &str) -> Result<Source, Failure> {
        let mut source = Source::at(url)?;
        if let Some(path) = &self.bearer_token_file {
            let text = file("--bearer-token-file", path)?;
            let login = login_of_token(&text).ok_or_else(|| {
                Failure::usage(format_args!(
                    "--bearer-token-file {}: expected one line with a token",
                    path.display()
                ))
            })?;
            source.login = Some(login);
        }
        if let Some(path) = &self.ca_file {
            source.authorities = file("--ca-file", path)?.into_bytes();
        }
        if let Some(label) =
            [&self.node_label, &self.work_label].into_iter().flatten().find(|label| !is_label_name(label))
        {
            return Err(Failure::usage(format_args!("{label:?} cannot be the name of a label")));
        }
        source.node_label = self.node_label.clone().map_or(NodeLabel::Usual, NodeLabel::Named);
        source.work_label = self.work_label.clone();
        let matchers: Result<Vec<Matcher>, String> = self.matchers.iter().map(|text| text.parse()).collect();
        source.matchers = matchers.map_err(|e| Failure::usage(format_args!("--match: {e}")))?;
        (source.window, source.timeout) = (self.window, self.timeout);
        Ok(source)
    }

    fn header(&self, source: &Source) -> Header {
        let matchers = source.matchers.iter().map(ToString::to_string).collect();
        Header::new(source.endpoint.to_string(), self.node_label.clone(), matchers)
    }

    fn recorder(&self, header: &Header) -> Result<Option<Recorder>, Failure> {
        let Some(path) = &self.record else { return Ok(None) };
        let now = jiff::Zoned::now().strftime("%Y-%m-%d_%H-%M-%S").to_string();
        Ok(Some(Recorder::create(path, header, &now)?))
    }

    /// Whether the screen is opened.
    fn has_screen(&self) -> bool {
        !self.once && !self.json && io::stdout().is_terminal()
    }

    fn print(&self, snapshot: Snapshot, header: &Header) -> Result<u8, Failure> {
        let fleet = Fleet::new(snapshot);
        match self.json {
            true => print_json(&json(&fleet, header, self.sort.into()))?,
            false => print(&format!(
                "{}, {} ms for {}\n\n{}",
                summary(&fleet),
                fleet.snapshot.took_ms.round(),
                header.prometheus,
                table(&fleet, self.sort.into())
            ))?,
        }
        Ok(0)
    }
}

fn file(option: &str, path: &Path) -> Result<String, Failure> {
    read::text(path, 1 << 20).map_err(|e| Failure::usage(format_args!("{option} {}: {e}", path.display())))
}

pub(super) async fn run(args: FleetArgs) -> Result<u8, Failure> {
    let Some(url) = &args.prometheus else { return replay(&args).await };
    let source = args.source(url)?;
    let header = args.header(&source);
    if !args.has_screen() {
        let mut client = Client::new(source)?;
        let mut recorder = args.recorder(&header)?;
        let mut shutdown = Shutdown::listen()?;
        let snapshot = tokio::select! {
            snapshot = client.refresh(|_| ()) => snapshot?,
            cause = shutdown.requested() => return Err(Failure::Interrupted(cause)),
        };
        if let Some(recorder) = &mut recorder {
            recorder.record(&snapshot)?;
        }
        return args.print(snapshot, &header);
    }
    super::require_terminal("llmprof-tui fleet --once")?;
    let recorder = args.recorder(&header)?;
    let shutdown = Shutdown::listen()?;
    let watch = Watch::start(source, args.interval)?;
    show(&args, Feed::Live { watch, recorder }, header.prometheus, shutdown).await
}

async fn replay(args: &FleetArgs) -> Result<u8, Failure> {
    let Some(path) = &args.replay else { return Err(Failure::usage("--prometheus or --replay is needed")) };
    let mut recorded = read_recording(path)?;
    if recorded.skipped > 0 {
        eprint_line(format_args!(
            "{}: {} lines cannot be read and are left out",
            path.display(),
            recorded.skipped
        ));
    }
    if !args.has_screen() {
        let last = recorded.len() - 1;
        let snapshot = recorded.snapshot(last)?;
        return args.print(snapshot, &recorded.header);
    }
    super::require_terminal("llmprof-tui fleet --replay FILE --once")?;
    let shutdown = Shutdown::listen()?;
    let source = format!("recorded from {}", recorded.header.prometheus);
    show(args, Feed::Recorded(Box::new(recorded)), source, shutdown).await
}

async fn show(args: &FleetArgs, feed: Feed, source: String, shutdown: Shutdown) -> Result<u8, Failure> {
    let tui = ConfigArgs::default().compose()?.config.output.tui;
    let stopped = FleetApp::new(&tui, feed, source, args.sort.into()).run(tui.mouse, shutdown).await;
    let FleetStopped { cause, error, recorded, recording_failed, without_data } = stopped;
    if let Some(path) = recorded {
        eprint_line(format_args!("recorded in {}", path.display()));
    }
    if let Some(e) = error {
        return Err(Failure::work(format_args!("the terminal failed: {e}")));
    }
    if let Some(e) = recording_failed {
        return Err(Failure::work(format_args!("the recording is not complete: {e}")));
    }
    match (cause, without_data) {
        (Some(cause), _) => {
            eprint_line(format_args!("interrupted: {cause}"));
            Ok(cause.exit_code())
        }
        (None, Some(e)) => Err(Failure::work(e)),
        (None, None) => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_prometheus_writes_them() {
        for (text, secs) in
            [("90", 90), ("15s", 15), ("30m", 1800), ("1h", 3600), ("2d", 172_800), ("1.5h", 5400)]
        {
            assert_eq!(time(text).unwrap(), Duration::from_secs(secs), "{text}");
        }
        for text in ["", "h", "0", "-1s", "1y", "90d", "nan"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
