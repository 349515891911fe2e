//! Processes of another program, as they start and end.

use llmprof_event::{GpuProcess, ProcessJoined, ProcessLeft, Stamp, kernels::Finding};

/// Maximum number of processes; the newest are kept.
const KEPT: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub struct FollowedProcess {
    pub process: ProcessJoined,
    pub joined: Stamp,
    pub left: Option<Stamp>,
}

#[derive(Debug, Clone, Default)]
pub struct Programs {
    processes: Vec<FollowedProcess>,
    /// What is known about the steps.
    pub finding: Option<Finding>,
}

impl Programs {
    pub fn all(&self) -> &[FollowedProcess] {
        &self.processes
    }

    /// Whether a process of the program has started CUDA.
    pub fn has_cuda(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Whether a process that has started CUDA still runs.
    pub fn uses_cuda(&self) -> bool {
        self.processes.iter().any(|known| known.left.is_none())
    }

    /// Processes on a GPU, those of the program marked as the run's own.
    pub(super) fn mark_own(&self, processes: &[GpuProcess]) -> Vec<GpuProcess> {
        let is_own = |pid: u32| self.processes.iter().any(|known| known.process.pid == pid);
        processes.iter().map(|p| GpuProcess { own: p.own || is_own(p.pid), ..p.clone() }).collect()
    }

    pub(super) fn joined(&mut self, t: Stamp, process: &ProcessJoined) {
        if self.processes.len() == KEPT {
            let oldest = self.processes.iter().position(|known| known.left.is_some()).unwrap_or(0);
            self.processes.remove(oldest);
        }
        self.processes.push(FollowedProcess { process: process.clone(), joined: t, left: None });
    }

    pub(super) fn process_left(&mut self, t: Stamp, left: &ProcessLeft) {
        let open = |known: &&mut FollowedProcess| known.process.pid == left.pid && known.left.is_none();
        if let Some(known) = self.processes.iter_mut().rev().find(open) {
            known.left = Some(t);
        }
    }

    pub(super) fn steps_found(&mut self, _: Stamp, finding: &Finding) {
        self.finding = Some(*finding);
    }
}
