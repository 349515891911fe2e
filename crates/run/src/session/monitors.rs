//! What a session checks and reports while its run is in progress.

use std::collections::HashSet;

use super::Session;
use crate::{metrics_endpoint::MetricsEndpoint, observer::Observer, plan::Plan, work::Work};
use llmprof_analysis::alert::{Alerts, Figure};
use llmprof_base::process::stops::Stops;
use llmprof_config::Until;
use llmprof_event::{AlertChanged, Event, Level};
use llmprof_record::{report::prometheus_text, state::RunState};
use llmprof_sources::attach::ProcessInfo;

/// Maximum number of reported processes: a GPU may have any number.
const MAX_OFFERS: usize = 16;
/// A GPU that has reported no temperature by then has none.
const TEMPERATURE_TIMEOUT_S: f64 = 30.0;

pub(super) struct Monitors {
    /// Overhead of the profiler itself.
    pub(super) observer: Observer,
    /// Stops of this process.
    pub(super) stops: Stops,
    alerts: Alerts,
    /// Serves the metrics of the run while it is in progress.
    pub(super) endpoint: Option<MetricsEndpoint>,
    /// Processes on a monitored GPU that were reported.
    offered: HashSet<u32>,
    loss_reported: bool,
}

impl Monitors {
    pub(super) fn new(plan: &Plan) -> Monitors {
        Monitors {
            observer: Observer::default(),
            stops: Stops::default(),
            alerts: Alerts::new(plan.alerts.clone()),
            endpoint: None,
            offered: HashSet::new(),
            loss_reported: false,
        }
    }
}

impl Session {
    pub(super) fn serve_metrics(&mut self) {
        let Some(address) = self.plan.metrics_address else { return };
        match MetricsEndpoint::start(address) {
            Ok(endpoint) => {
                let bound = endpoint.address;
                self.monitors.endpoint = Some(endpoint);
                let text = format!("metrics for Prometheus are at http://{bound}/metrics");
                self.notice(Level::Info, "metrics", text);
                if !bound.ip().is_loopback() {
                    let text = format!("{bound} can be reached from other machines");
                    self.notice(Level::Warn, "metrics", text);
                }
            }
            Err(e) => {
                self.notice(Level::Error, "metrics", format!("output.metrics={address} cannot be used: {e}"))
            }
        }
    }

    pub(super) fn tick(&mut self) {
        if let Some(recorder) = self.recording.recorder() {
            recorder.tick();
        }
        if !self.monitors.loss_reported
            && let Some(loss) = self.loss()
        {
            self.monitors.loss_reported = true;
            self.notice(Level::Error, "recorder", loss.to_string());
        }
        self.follow_tool();
        if self.closed {
            return;
        }
        if let Some(endpoint) = &mut self.monitors.endpoint {
            endpoint.update(|| prometheus_text(&self.state));
        }
        self.finish_when_steady();
        self.offer_to_follow();
        self.check_alerts();
        let unwritten = self.recording.recorder().map_or(0, |recorder| recorder.lost());
        let lost = unwritten + self.inbox.rx.lost();
        if let Some(sample) = self.monitors.observer.due(self.inbox.rx.len() as u64, lost) {
            self.emit(Event::Observer(sample));
        }
    }

    /// Reports changed alerts.
    fn check_alerts(&mut self) {
        if self.monitors.alerts.is_empty() {
            return;
        }
        for changed in changed_alerts(&mut self.monitors.alerts, &self.state) {
            self.emit(Event::AlertChanged(changed));
        }
    }

    /// While a GPU is monitored: reports how to profile the programs on it.
    fn offer_to_follow(&mut self) {
        match self.plan.work {
            Work::Watch => {}
            Work::Model(_) | Work::Sim | Work::Python(_) | Work::Server(_) | Work::Program(_) => return,
        }
        let on_card = self.state.gpus.iter().flat_map(|gpu| &gpu.processes).filter(|process| !process.own);
        let offered = &mut self.monitors.offered;
        let new: Vec<u32> = on_card.map(|process| process.pid).filter(|pid| offered.insert(*pid)).collect();
        let before = offered.len() - new.len();
        for pid in new.into_iter().take(MAX_OFFERS.saturating_sub(before)) {
            if let Some(process) = ProcessInfo::read(pid) {
                self.notice(Level::Info, "watch", process.offer());
            }
        }
    }

    /// Ends a run with `runtime.until=steady` once the GPU's temperature is steady.
    fn finish_when_steady(&mut self) {
        let runtime = &self.plan.composed.config.runtime;
        if runtime.until != Some(Until::Steady) || self.control.is_finishing() {
            return;
        }
        let heat = self.state.profiled_gpu().and_then(|gpu| gpu.heat());
        let is_ready = self.state.prepare_ms.is_some();
        let text = match heat {
            Some(heat) if heat.steady => heat.describe().unwrap_or_default(),
            _ if self.state.now.secs() >= runtime.until_max_s => {
                format!(
                    "the GPU did not reach steady state within runtime.until_max_s={}",
                    runtime.until_max_s
                )
            }
            None if is_ready && self.state.now.secs() > TEMPERATURE_TIMEOUT_S => {
                "runtime.until=steady needs a GPU that reports its temperature; there is none".to_owned()
            }
            _ => return,
        };
        self.control.finish();
        self.notice(Level::Info, "gpu", format!("{text}: the run ends with this request"));
    }
}

/// The alerts that have changed with the latest values of servers and GPUs. A server that does not answer has only its
/// silence.
fn changed_alerts(alerts: &mut Alerts, state: &RunState) -> Vec<AlertChanged> {
    let mut changed = Vec::new();
    for server in state.servers() {
        let Some(url) = server.url() else { continue };
        let silent = server.silent_for(state.now);
        let latest = server.latest.as_ref().filter(|_| silent.is_none());
        changed.extend(alerts.update(url, |figure| match figure {
            Figure::Silent => Some(silent.unwrap_or_default().as_secs_f64()),
            _ => figure.in_sample(latest?),
        }));
    }
    for gpu in &state.gpus {
        let of = format!("GPU {}", gpu.info.index);
        changed.extend(alerts.update(&of, |figure| match figure {
            Figure::Gpu(reading) => gpu.series(reading).last().map(|(_, value)| f64::from(value)),
            _ => None,
        }));
    }
    changed
}
