//! The servers of a run, and alerts.

use super::{KEPT_ALERTS, MAX_WATCHED, RunState, ServerState, push_bounded};
use llmprof_event::{AlertChanged, Level, Notice, ServerFound, ServerSample, ServerSilent, Stamp};

impl RunState {
    /// All servers, in the configured order.
    pub fn servers(&self) -> impl Iterator<Item = &ServerState> {
        std::iter::once(&self.server).chain(&self.more_servers)
    }

    /// The server that does not answer, or the number of several that do not.
    pub fn silence(&self) -> Option<String> {
        match self.servers().filter(|server| server.silent.is_some()).count() {
            0 => None,
            _ if self.more_servers.is_empty() => self.server.silence(self.now),
            silent => Some(format!("{silent} of {} servers do not answer", self.servers().count())),
        }
    }

    /// The server with this index; `None` if it is not monitored.
    fn server_at(&mut self, number: u32) -> Option<&mut ServerState> {
        let Some(index) = (number as usize).checked_sub(1) else { return Some(&mut self.server) };
        if number as usize >= MAX_WATCHED {
            return None;
        }
        if index >= self.more_servers.len() {
            self.more_servers.resize_with(index + 1, ServerState::default);
        }
        self.more_servers.get_mut(index)
    }

    pub(super) fn server_found(&mut self, t: Stamp, found: &ServerFound) {
        if self.startup.end(t) {
            self.forget_start();
        }
        if let Some(server) = self.server_at(found.server) {
            server.found(found);
        }
    }

    pub(super) fn server_sample(&mut self, t: Stamp, sample: &ServerSample) {
        let measures = self.counted_to.is_some() || self.load_tested().is_none();
        if let Some(server) = self.server_at(sample.server) {
            server.sample(t, sample, measures);
        }
    }

    pub(super) fn server_silent(&mut self, t: Stamp, silent: &ServerSilent) {
        if let Some(server) = self.server_at(silent.server) {
            server.silent(t, silent);
        }
    }

    pub(super) fn alert_changed(&mut self, t: Stamp, alert: &AlertChanged) {
        self.alerts_crossed += u64::from(alert.crossed);
        self.alerts_changed += 1;
        push_bounded(&mut self.alerts, KEPT_ALERTS, (t, alert.clone()));
        let level = if alert.crossed { Level::Warn } else { Level::Info };
        self.log.add(t, &Notice { level, source: "alert".to_owned(), text: alert.to_string() });
    }
}
