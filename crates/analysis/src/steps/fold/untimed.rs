//! Copies without times: they had not ended when CUPTI's buffers were collected by force, a moment after each burst. When they were
//! launched is known by their correlation ids, so that the steps they mark are not lost.

use std::collections::VecDeque;

use crate::steps::marks::Mark;
use llmprof_event::kernels::work::{DeviceActivity, WorkKind};

/// A program that copies without end while nothing is timed takes no more memory than this.
const MAX_COPIES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Untimed(VecDeque<DeviceActivity>);

impl Untimed {
    /// Keeps a copy without times.
    pub fn add(&mut self, work: &DeviceActivity) {
        if work.is_timed() || !matches!(work.kind, WorkKind::Copy { .. }) {
            return;
        }
        if self.0.len() == MAX_COPIES {
            self.0.pop_front();
        }
        self.0.push_back(*work);
    }

    /// How many copies that fit the mark were launched between two calls. Those before the second call are forgotten.
    pub fn take(&mut self, mark: Mark, after: u32, before: u32) -> u32 {
        let between =
            |work: &&DeviceActivity| (after + 1..before).contains(&work.correlation) && mark.fits(work);
        let count = self.0.iter().filter(between).count() as u32;
        self.0.retain(|work| work.correlation >= before);
        count
    }
}
