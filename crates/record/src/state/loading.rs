//! Durations: the loading of a model, and the rest of a run.

use super::RunState;
use llmprof_base::units::{rough_seconds, three_digits};
use llmprof_event::{Preparing, Stamp, WorkKind};

/// Earlier, a rate is mostly noise.
const MIN_ELAPSED_S: f64 = 0.5;

/// A step of preparing the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Loading {
    pub step: String,
    pub done: u64,
    pub total: u64,
    /// When this step was first reported.
    since: Stamp,
    /// When this step was last reported.
    at: Stamp,
}

impl Loading {
    pub(super) fn update(loading: &mut Option<Loading>, t: Stamp, report: &Preparing) {
        let since = loading.as_ref().filter(|known| known.step == report.step).map_or(t, |known| known.since);
        let (step, done, total) = (report.step.clone(), report.done, report.total);
        *loading = Some(Loading { step, done, total, since, at: t });
    }

    /// The share done; `None` for a step that does not report it.
    pub fn share(&self) -> Option<f64> {
        (self.total > 1).then(|| (self.done as f64 / self.total as f64).min(1.0))
    }

    fn elapsed_s(&self) -> Option<f64> {
        Some(self.at.since(self.since).as_secs_f64()).filter(|elapsed| *elapsed >= MIN_ELAPSED_S)
    }

    /// At the mean rate so far.
    pub fn left_s(&self) -> Option<f64> {
        let share = self.share().filter(|share| *share > 0.0)?;
        Some(self.elapsed_s()? * (1.0 - share) / share)
    }

    /// The progress of loading `bytes`: rate and time left.
    pub fn describe(&self, bytes: u64) -> String {
        let Some(share) = self.share() else { return format!("Loading {}.", self.step) };
        let gigabytes = |share: f64| share * bytes as f64 / 1e9;
        let mut text = format!(
            "Loading {}: {} of {} GB",
            self.step,
            three_digits(gigabytes(share)),
            three_digits(gigabytes(1.0))
        );
        if let (Some(elapsed), Some(left)) = (self.elapsed_s(), self.left_s()) {
            let rate = three_digits(gigabytes(share) / elapsed);
            text += &format!(", {rate} GB/s, about {} left", rough_seconds(left));
        }
        text + "."
    }
}

impl RunState {
    /// What the run waits for before the first request.
    pub fn loading_text(&self) -> Option<String> {
        let (loading, run) = (self.loading.as_ref()?, self.run.as_ref()?);
        Some(match run.kind {
            // It loads its model itself.
            WorkKind::Program | WorkKind::Server => format!("{}.", loading.step),
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Watch => {
                loading.describe(run.weight_bytes)
            }
        })
    }

    /// A request was started.
    pub fn has_begun(&self) -> bool {
        self.first_request_at.is_some()
    }

    /// The remaining time of the run in seconds, from the requests so far or the first tokens of the first request;
    /// `None` while it cannot be estimated.
    pub fn time_left_s(&self) -> Option<f64> {
        let stands = self.workload_paused_at.is_some() || self.server.silent_for(self.now).is_some();
        if self.finished.is_some() || stands {
            return None;
        }
        let elapsed = self.now.since(self.first_request_at?).as_secs_f64();
        if !self.has_steady_progress() {
            return None;
        }
        if self.requests_done + self.warmup_done == 0 {
            let run = self.run.as_ref()?;
            let planned = f64::from(run.requests) + f64::from(run.warmup);
            return Some((planned * self.active.latest()?.expected_s()? - elapsed).max(0.0));
        }
        let share = self.request_share_done();
        (share < 1.0).then(|| elapsed * (1.0 - share) / share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(done: u64) -> Preparing {
        Preparing { step: "weights".into(), done, total: 100 }
    }

    #[test]
    fn loading_has_a_rate_and_an_end() {
        let mut loading = None;
        let at = |seconds: f64| Stamp((seconds * 1e9) as u64);
        Loading::update(&mut loading, at(1.0), &report(0));
        let text = |loading: &Option<Loading>| loading.as_ref().unwrap().describe(15_200_000_000);
        assert_eq!(text(&loading), "Loading weights: 0 of 15.2 GB.");
        Loading::update(&mut loading, at(3.0), &report(25));
        assert_eq!(text(&loading), "Loading weights: 3.80 of 15.2 GB, 1.90 GB/s, about 6 s left.");
        let kernels = Preparing { step: "kernels".into(), done: 0, total: 1 };
        Loading::update(&mut loading, at(9.0), &kernels);
        assert_eq!(text(&loading), "Loading kernels.");
    }
}
