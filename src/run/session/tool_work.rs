//! The run done again under a tool, while the workload waits.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use super::{Session, named};
use crate::{
    config::{ToolPhase, read_yaml},
    engine::device,
    event::{Event, Level, Outcome, Phase, RunFinished, ToolRun, ToolState, kernels::Kind},
    kernels::top::{TopList, top},
    profile::nvtx_ranges,
    run::rerun::{Rerun, Tool, Trouble},
    tools::System,
};

/// A tool at work, or about to be.
pub(super) struct ToolWork {
    tool: Tool,
    stop: Arc<AtomicBool>,
    at: At,
    /// The workload was paused for it, and goes on afterwards.
    resume: bool,
    /// The configuration asks for it: if it fails, the run has not done all that was asked.
    configured: bool,
}

enum At {
    /// The workload has not paused yet.
    Waiting(Box<Rerun>),
    Working(JoinHandle<()>),
}

impl ToolWork {
    pub(super) fn is_idle(&self) -> bool {
        match &self.at {
            At::Waiting(_) => true,
            At::Working(thread) => thread.is_finished(),
        }
    }

    pub(super) fn cancel(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Session {
    /// The tool at work.
    pub fn tool(&self) -> Option<Tool> {
        self.tool_work.as_ref().map(|work| work.tool)
    }

    /// The run has ended, and no tool is at work or to come.
    pub fn is_done(&self) -> bool {
        self.state.finished.is_some() && !self.has_tools()
    }

    pub(super) fn has_tools(&self) -> bool {
        self.tool_work.is_some() || !self.tools_left.is_empty()
    }

    /// Does the run again under `tool`, or ends that where it is under way. Gives what to tell the user, if anything.
    pub fn rerun(&mut self, tool: Tool) -> Option<String> {
        match self.tool() {
            Some(at_work) if at_work == tool => {
                self.tool_work.iter().for_each(ToolWork::cancel);
                return Some(format!("ending {tool}"));
            }
            Some(at_work) => return Some(format!("{at_work} is at work; its key ends it")),
            None => {}
        }
        if self.plan.simulated() {
            return Some(format!("this run is simulated: there is nothing that {tool} could look at"));
        }
        if self.plan.watches() {
            return Some(format!("there is no workload of ours to do again under {tool}"));
        }
        if self.computes() && self.state.prepare_ms.is_none() {
            return Some(format!("the model is not ready yet; {tool} can look at it then"));
        }
        self.begin_tool(tool, false);
        None
    }

    /// A workload of this process is under way.
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
            self.tell_tool(tool, working("waiting for the workload to pause"));
        }
        let stop = Arc::clone(&rerun.system.stop);
        self.tool_work = Some(ToolWork { tool, stop, at: At::Waiting(Box::new(rerun)), resume, configured });
        self.follow_tool();
    }

    fn plan_rerun(&mut self, tool: Tool) -> Result<Rerun, Trouble> {
        let kernels = if tool == Tool::Ncu { self.kernels_to_count()? } else { None };
        let failed = |what: &str, e: std::io::Error| {
            Trouble::new(format!("{what}: {e}"), "free the disk, or set output.record=true")
        };
        let run_dir = match self.dir() {
            Some(dir) => dir.to_owned(),
            // What is not recorded is kept as long as it can be looked at.
            None => {
                let scratch = tempfile::tempdir().map_err(|e| failed("no folder for the tool", e))?;
                self.scratch.insert(scratch).path().to_owned()
            }
        };
        let program = std::env::current_exe().map_err(|e| failed("this program can't be found", e))?;
        let gpu = self.state.profiled_gpu();
        let seen = gpu.and_then(|gpu| gpu.info.compute_capability.as_deref()).and_then(chip);
        // Nobody samples in a run for tools alone, but the kernels of this build are for one generation.
        let chip = seen.or_else(|| device::built_for().filter(|_| !self.plan.device.is_cpu()));
        Ok(Rerun {
            tool,
            config: self.plan.composed.config.clone(),
            device: self.plan.device.clone(),
            run_dir,
            kernels,
            beside: self.computes(),
            chip,
            gated: nvtx_ranges::AVAILABLE,
            program,
            system: System { stop: Arc::default(), ..System::here() },
        })
    }

    /// The kernels that ncu is to look at: those of a file, else the longest of nsys's last report, else the longest of
    /// those seen as they ran.
    fn kernels_to_count(&self) -> Result<Option<TopList>, Trouble> {
        let config = &self.plan.composed.config.profiling.ncu;
        if let Some(path) = &config.kernels {
            let list: TopList = read_yaml(Path::new(path)).map_err(|e| {
                Trouble::new(
                    e.to_string(),
                    "write one with llmprof-tui kernels top --from REPORT -o top-kernels.yaml",
                )
            })?;
            return match list.kernels.is_empty() {
                true => Err(Trouble::new(format!("{path} lists no kernels"), "give a list that has some")),
                false => Ok(Some(list)),
            };
        }
        let k = config.top_k as usize;
        let kernels = &self.state.kernels;
        let of_nsys = kernels.reports.iter().rev().find(|report| {
            report.tool.starts_with(Tool::Nsys.name())
                && report.tables.iter().any(|table| table.kind == Kind::Kernels)
        });
        if let Some(report) = of_nsys {
            return Ok(top(&report.file, &report.tables, k));
        }
        let phase = if config.phase == ToolPhase::Prefill { Phase::Prefill } else { Phase::Decode };
        let live = kernels.live(phase).filter(|live| !live.total.rows.is_empty());
        Ok(live.and_then(|live| top("live", &[live.table("live")], k)))
    }

    fn refuse_tool(&mut self, tool: Tool, Trouble { reason, remedy }: Trouble, configured: bool) {
        self.tx.notice(Level::Error, tool.name(), format!("{reason}; {remedy}"));
        self.tell_tool(tool, ToolState::Failed { reason: reason.clone(), remedy: remedy.clone() });
        if configured {
            self.tool_troubles.push(format!("{tool}: {reason}; {remedy}"));
        }
    }

    fn tell_tool(&self, tool: Tool, state: ToolState) {
        let profiling = &self.plan.composed.config.profiling;
        let phase = match if tool == Tool::Nsys { profiling.nsys.phase } else { profiling.ncu.phase } {
            ToolPhase::Decode => Phase::Decode,
            ToolPhase::Prefill => Phase::Prefill,
            ToolPhase::Both => Phase::Idle,
        };
        self.tx.send(Event::ToolRun(Box::new(ToolRun { tool: tool.name().to_owned(), phase, state })));
    }

    /// Starts what was asked for once the workload waits, lets the workload go on afterwards, and ends a run that is for
    /// tools alone when the last one is done.
    pub(super) fn follow_tool(&mut self) {
        match self.tool_work.take() {
            Some(work) if work.stop.load(Ordering::Acquire) && matches!(work.at, At::Waiting(_)) => {
                self.tell_tool(work.tool, ToolState::Cancelled);
                self.resume_after(&work);
            }
            Some(ToolWork { tool, stop, at: At::Waiting(rerun), resume, configured }) => {
                let waits = self.computes() && self.state.workload_paused_at.is_none();
                let at = match waits {
                    true => At::Waiting(rerun),
                    false => {
                        let tx = self.tx.clone();
                        At::Working(named("llmprof-tool", move || drop(rerun.run(&tx))))
                    }
                };
                self.tool_work = Some(ToolWork { tool, stop, at, resume, configured });
            }
            Some(work) if work.is_idle() => {
                self.drain();
                let last = self.state.kernels.tool_run.as_ref().map(|run| run.state.clone());
                if let (Some(ToolState::Failed { reason, remedy }), true) = (last, work.configured) {
                    self.tool_troubles.push(format!("{}: {reason}; {remedy}", work.tool));
                }
                self.resume_after(&work);
                if self.closed {
                    self.write_reports();
                    self.flush();
                }
            }
            work @ Some(_) => self.tool_work = work,
            None if !self.computes() => self.next_tool(),
            None => {}
        }
    }

    fn next_tool(&mut self) {
        let failed = self.state.finished.as_ref().is_some_and(|f| f.outcome != Outcome::Completed);
        if failed {
            self.tools_left.clear();
        }
        if let Some(tool) = self.tools_left.pop_front() {
            return self.begin_tool(tool, true);
        }
        if self.plan.is_for_tools_alone() && self.state.finished.is_none() {
            self.drain();
            let cause = Some(self.tool_troubles.join("; ")).filter(|cause| !cause.is_empty());
            let last = self.state.kernels.tool_run.as_ref().map(|run| &run.state);
            let outcome = match (&cause, last) {
                (Some(_), _) => Outcome::Failed,
                (None, Some(ToolState::Done)) => Outcome::Completed,
                (None, _) => Outcome::Interrupted,
            };
            self.add_now(Event::RunFinished(RunFinished { outcome, cause }));
            self.close();
        }
    }

    fn resume_after(&mut self, work: &ToolWork) {
        if work.resume {
            self.control.set_paused(false);
        }
    }
}

fn working(doing: &str) -> ToolState {
    ToolState::Working { doing: doing.to_owned(), share: None }
}

/// `9.0` as 90.
fn chip(capability: &str) -> Option<u32> {
    let (major, minor) = capability.split_once('.')?;
    Some(major.parse::<u32>().ok()? * 10 + minor.parse::<u32>().ok()?)
}
