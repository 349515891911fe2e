//! The re-run under a tool, while the workload is paused.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use super::{Session, spawn_thread};
use crate::{
    plan::Plan,
    rerun::{Rerun, RerunError, RerunErrorKind, tool_event},
    work::Work,
};
use gpu_traces::top::{TopList, top};
use llmprof_base::tools::System;
use llmprof_config::{DtypeChoice, ToolPhase, read_yaml};
use llmprof_engine::device;
use llmprof_event::{Event, Level, Outcome, Phase, RunFinished, Tool, ToolState, kernels::Kind};

/// The re-runs of a run under tools.
pub(super) struct Tools {
    /// The re-run in progress.
    pub(super) work: Option<ToolWork>,
    /// The tools whose re-runs follow the workload.
    pub(super) left: VecDeque<Tool>,
    /// Failures of tools that the configuration requests.
    pub(super) failures: Vec<String>,
}

impl Tools {
    pub(super) fn new(plan: &Plan) -> Tools {
        Tools { work: None, left: plan.tools().into(), failures: Vec::new() }
    }
}

/// A re-run in progress, or about to start.
pub(super) struct ToolWork {
    tool: Tool,
    stop: Arc<AtomicBool>,
    stage: Stage,
    /// Whether the workload was paused for it, and resumes afterwards.
    resume: bool,
    /// Whether the configuration requests it, so that its failure is a failure of the run.
    configured: bool,
}

enum Stage {
    /// The workload has not paused yet.
    Waiting(Box<Rerun>),
    Running(JoinHandle<()>),
}

impl ToolWork {
    pub(super) fn is_idle(&self) -> bool {
        match &self.stage {
            Stage::Waiting(_) => true,
            Stage::Running(thread) => thread.is_finished(),
        }
    }

    pub(super) fn cancel(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Session {
    /// The tool of the re-run in progress.
    pub fn tool(&self) -> Option<Tool> {
        self.tools.work.as_ref().map(|work| work.tool)
    }

    /// Whether the run has ended, and no re-run is in progress or left.
    pub fn is_done(&self) -> bool {
        self.state.finished.is_some() && !self.has_tools()
    }

    pub(super) fn has_tools(&self) -> bool {
        self.tools.work.is_some() || !self.tools.left.is_empty()
    }

    /// Starts a re-run under `tool`, or cancels the one in progress. Returns a message for the user, if there is one.
    pub fn rerun(&mut self, tool: Tool) -> Option<String> {
        match &self.tools.work {
            Some(work) if work.tool == tool => {
                work.cancel();
                return Some(format!("cancelling {tool}"));
            }
            Some(work) => return Some(format!("{} is running; press its key to cancel it", work.tool)),
            None => {}
        }
        if self.plan.simulated() {
            return Some(format!("this run is simulated: there is nothing for {tool} to profile"));
        }
        if matches!(self.plan.work, Work::Watch) {
            return Some(format!("there is no workload to re-run under {tool}"));
        }
        if self.computes() && self.state.prepare_ms.is_none() {
            return Some(format!("the model is not ready yet; press again for {tool} when it is"));
        }
        self.begin_tool(tool, false);
        None
    }

    /// Whether a workload of this process is in progress.
    fn computes(&self) -> bool {
        !self.plan.is_for_tools_alone() && self.state.finished.is_none()
    }

    fn begin_tool(&mut self, tool: Tool, configured: bool) {
        let rerun = match self.plan_rerun(tool) {
            Ok(rerun) => rerun,
            Err(trouble) => return self.refuse_tool(tool, trouble, configured),
        };
        let resume = self.computes() && !self.control.is_paused();
        if resume {
            self.control.set_paused(true);
            let doing = "waiting for the workload to pause".to_owned();
            self.emit_tool_state(tool, ToolState::Working { doing, share: None });
        }
        let stop = Arc::clone(&rerun.system.stop);
        let stage = Stage::Waiting(Box::new(rerun));
        self.tools.work = Some(ToolWork { tool, stop, stage, resume, configured });
        self.follow_tool();
    }

    fn plan_rerun(&mut self, tool: Tool) -> Result<Rerun, RerunError> {
        let kernels = if tool == Tool::Ncu { self.kernels_for_ncu()? } else { None };
        let failed = |action: &str, e: io::Error| {
            RerunErrorKind::Io { action: action.to_owned(), error: e.to_string() }
                .with_remedy("free disk space, or set output.record=true")
        };
        let run_dir = match self.dir() {
            Some(dir) => dir.to_owned(),
            None => {
                let dir =
                    tempfile::tempdir().map_err(|e| failed("cannot create a directory for the tool", e))?;
                self.scratch.insert(dir).path().to_owned()
            }
        };
        let program = std::env::current_exe().map_err(|e| failed("cannot find this program", e))?;
        let reported = self.state.profiled_gpu().and_then(|gpu| gpu.info.compute_capability.as_deref());
        // A run that is only for tools has no samples.
        let asked = || device::compute_capability(&self.plan.device);
        let mut config = self.plan.composed.config.clone();
        // While this run uses the memory, the child might choose a different type.
        config.model.dtype = DtypeChoice::Unquantised(self.plan.dtype);
        Ok(Rerun {
            tool,
            config,
            device: self.plan.device.clone(),
            run_dir,
            kernels,
            model_in_memory: self.computes(),
            compute_capability: reported.and_then(compute_capability).or_else(asked),
            program,
            system: System { stop: Arc::default(), ..System::here() },
        })
    }

    /// The kernels for ncu: those of a file, else the longest of the last report of nsys, else the longest that were
    /// recorded live.
    fn kernels_for_ncu(&self) -> Result<Option<TopList>, RerunError> {
        let config = &self.plan.composed.config.profiling.ncu;
        if let Some(path) = &config.kernels {
            let list: TopList = read_yaml(Path::new(path)).map_err(|e| {
                RerunErrorKind::KernelList(e.to_string())
                    .with_remedy("create one with llmprof-tui kernels top --from REPORT -o top-kernels.yaml")
            })?;
            return match list.kernels.is_empty() {
                true => Err(RerunErrorKind::KernelList(format!("{path} lists no kernels"))
                    .with_remedy("give a list with at least one")),
                false => Ok(Some(list)),
            };
        }
        let k = config.top_k as usize;
        let kernels = &self.state.kernels;
        let of_nsys = kernels.reports.iter().rev().find(|report| {
            report.tool.split(' ').next() == Some(Tool::Nsys.name())
                && report.tables.iter().any(|table| table.kind == Kind::Kernels)
        });
        if let Some(report) = of_nsys {
            return Ok(top(&report.file, &report.tables, k));
        }
        let phase = if config.phase == ToolPhase::Prefill { Phase::Prefill } else { Phase::Decode };
        let live = kernels.live(phase).filter(|live| !live.total.rows.is_empty());
        Ok(live.and_then(|live| top("live", &[live.table("live")], k)))
    }

    fn refuse_tool(&mut self, tool: Tool, trouble: RerunError, configured: bool) {
        self.notice(Level::Error, tool.name(), trouble.to_string());
        if configured {
            self.tools.failures.push(format!("{tool}: {trouble}"));
        }
        self.emit_tool_state(tool, trouble.into());
    }

    fn emit_tool_state(&mut self, tool: Tool, state: ToolState) {
        self.emit(tool_event(tool, &self.plan.composed.config, state));
    }

    /// Starts a re-run once the workload is paused, resumes the workload afterwards, and ends a run that is only for
    /// tools after the last one.
    pub(super) fn follow_tool(&mut self) {
        match self.tools.work.take() {
            Some(work) if work.stop.load(Ordering::Acquire) && matches!(work.stage, Stage::Waiting(_)) => {
                self.emit_tool_state(work.tool, ToolState::Cancelled);
                self.resume_after(&work);
            }
            Some(ToolWork { tool, stop, stage: Stage::Waiting(rerun), resume, configured }) => {
                let waits = self.computes() && self.state.workload_paused_at.is_none();
                let tx = self.inbox.tx.clone();
                let stage = match waits {
                    true => Ok(Stage::Waiting(rerun)),
                    false => spawn_thread("llmprof-tool", move || drop(rerun.run(&tx))).map(Stage::Running),
                };
                match stage {
                    Ok(stage) => {
                        self.tools.work = Some(ToolWork { tool, stop, stage, resume, configured });
                    }
                    Err(refused) => {
                        let remedy = "then run it again";
                        let trouble =
                            RerunErrorKind::Io { action: format!("cannot start {tool}"), error: refused };
                        self.refuse_tool(tool, trouble.with_remedy(remedy), configured);
                        if resume {
                            self.control.set_paused(false);
                        }
                    }
                }
            }
            Some(work) if work.is_idle() => {
                self.drain();
                let last = self.state.kernels.tool_run.as_ref().map(|run| run.state.clone());
                if let (Some(ToolState::Failed { reason, remedy }), true) = (last, work.configured) {
                    self.tools.failures.push(format!("{}: {reason}; {remedy}", work.tool));
                }
                self.resume_after(&work);
                if self.closed {
                    self.recording.write_reports(&self.state);
                }
            }
            work @ Some(_) => self.tools.work = work,
            None if !self.computes() => self.next_tool(),
            None => {}
        }
    }

    fn next_tool(&mut self) {
        let failed = self.state.finished.as_ref().is_some_and(|f| f.outcome != Outcome::Completed);
        if failed {
            self.tools.left.clear();
        }
        if let Some(tool) = self.tools.left.pop_front() {
            return self.begin_tool(tool, true);
        }
        if self.plan.is_for_tools_alone() && self.state.finished.is_none() {
            self.drain();
            let cause = Some(self.tools.failures.join("; ")).filter(|cause| !cause.is_empty());
            let last = self.state.kernels.tool_run.as_ref().map(|run| &run.state);
            let outcome = match (&cause, last) {
                (Some(_), _) => Outcome::Failed,
                (None, Some(ToolState::Done)) => Outcome::Completed,
                (None, _) => Outcome::Interrupted,
            };
            self.emit(Event::RunFinished(RunFinished { outcome, cause }));
        }
    }

    fn resume_after(&mut self, work: &ToolWork) {
        if work.resume {
            self.control.set_paused(false);
        }
    }
}

/// `9.0` as 90.
fn compute_capability(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    Some(major.parse::<u32>().ok()? * 10 + minor.parse::<u32>().ok()?)
}
