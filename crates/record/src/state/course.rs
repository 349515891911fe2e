//! The course of a run: its start, pauses and stops, snapshots and its end.

use std::time::Duration;

use super::{
    ActiveRequest, FlightRecorder, KEPT_SNAPSHOTS, Loading, RequestTrace, RunState, Split, push_bounded,
};
use llmprof_event::{
    Notice, Preparing, ProcessStopped, Ready, RunFinished, RunStarted, SnapshotTaken, Stamp, WorkKind,
};

impl RunState {
    pub(super) fn run_started(&mut self, _: Stamp, run: &RunStarted) {
        self.server.set_slo(run.slo.unwrap_or_default());
        self.run = Some(run.clone());
    }

    pub(super) fn preparing(&mut self, t: Stamp, preparing: &Preparing) {
        match self.kind() {
            WorkKind::Program | WorkKind::Server => self.startup.begin(t),
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Watch => {}
        }
        Loading::update(&mut self.loading, t, preparing);
    }

    pub(super) fn ready(&mut self, _: Stamp, ready: &Ready) {
        self.loading = None;
        self.prepare_ms = Some(ready.prepare_ms);
    }

    pub(super) fn workload_paused(&mut self, t: Stamp) {
        self.workload_paused_at = Some(t);
        self.idle.paused();
    }

    pub(super) fn workload_resumed(&mut self, t: Stamp) {
        let Some(paused_at) = self.workload_paused_at.take() else { return };
        match self.kind().has_concurrent_requests() {
            // Earlier requests to a server continue during a pause: only the time without any token is left out.
            true => self.counted_to = self.counted_to.map(|to| to + t.since(to.max(paused_at))),
            false => self.leave_out(t.since(paused_at), ActiveRequest::leave_out),
        }
    }

    pub(super) fn process_stopped(&mut self, t: Stamp, stop: &ProcessStopped) {
        self.operators.stopped();
        // A pause of the workload is left out as a whole.
        if self.workload_paused_at.is_none() {
            self.leave_out(t.since(stop.since), ActiveRequest::stopped);
        }
    }

    /// Excludes `time` from measurements; `leave_out` does so for the active request.
    fn leave_out(&mut self, time: Duration, leave_out: impl Fn(&mut ActiveRequest, Duration)) {
        self.counted_to = self.counted_to.map(|to| to + time);
        self.first_request_at = self.first_request_at.map(|start| start + time);
        if self.active.count() > 0 {
            self.active.all().for_each(|active| leave_out(active, time));
            self.traces().for_each(RequestTrace::paused);
        }
    }

    pub(super) fn notice(&mut self, t: Stamp, notice: &Notice) {
        self.ranks.printed(notice);
        self.log.add(t, notice);
        if notice.is_output() {
            let is_ready = self.startup.line(t, &notice.text);
            if is_ready {
                self.forget_start();
            }
        }
    }

    /// Steps of a server's own warm-up do not belong to its requests.
    pub(super) fn forget_start(&mut self) {
        self.forget_requests();
        self.active.clear();
        self.by_context = Split::default();
        self.flight = FlightRecorder::default();
    }

    pub(super) fn snapshot_taken(&mut self, _: Stamp, taken: &SnapshotTaken) {
        let snapshot = self.window_snapshot(&taken.name);
        push_bounded(&mut self.snapshots, KEPT_SNAPSHOTS, snapshot);
        let now = self.now;
        self.window.both_mut().into_iter().for_each(|metrics| metrics.restart(now));
        self.trace.both_mut().into_iter().for_each(RequestTrace::restart);
        self.kernels.restart();
        self.operators.restart();
    }

    pub(super) fn run_finished(&mut self, t: Stamp, finished: &RunFinished) {
        self.bill.end(t);
        self.active.clear();
        self.loading = None;
        self.workload_paused_at = None;
        self.kernels.recording.end(t);
        self.server.late.end();
        self.finished = Some(finished.clone());
    }
}
