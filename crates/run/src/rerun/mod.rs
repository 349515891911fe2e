//! Re-runs a workload under Nsight Systems or Nsight Compute in a child process of this program, whose report becomes
//! an event.

mod child;
mod command;
mod files;
mod passes;
mod reading;
mod trouble;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

pub use self::trouble::{RerunError, RerunErrorKind};
use self::{
    child::Launch,
    command::{Target, ToolCommand},
    files::{CommandRecord, PassFiles},
    passes::Pass,
};
use crate::{support::no_tools, work::kind_of};
use gpu_traces::top::TopList;
use llmprof_base::{
    dir,
    tools::{
        System,
        nsight::{self, Installed},
        under::Mark,
    },
};
use llmprof_config::{RunConfig, ToolPhase};
use llmprof_event::{
    Device, Event, EventTx, KernelReport, Level, Phase, Tool, ToolRun, ToolState, WorkKind,
    kernels::KernelTable,
};
use llmprof_record::rundir::RunDir;

/// The tools that `config` requests, in order: ncu profiles kernels that nsys found.
pub fn configured_tools(config: &RunConfig) -> Vec<Tool> {
    let tools = [(config.profiling.nsys.enable, Tool::Nsys), (config.profiling.ncu.enable, Tool::Ncu)];
    let possible = no_tools(&kind_of(config.runtime.name)).is_none();
    tools.into_iter().filter_map(|(enable, tool)| (enable && possible).then_some(tool)).collect()
}

/// The command line of a re-run of `config`, as far as it is known beforehand.
pub fn command_line(tool: Tool, config: &RunConfig) -> String {
    let (program, name, later) = (Path::new("llmprof-tui"), Path::new(tool.name()), Path::new("…"));
    let plain_ranges = has_plain_ranges(config);
    let target = Target { program, conf_dir: later, working_dir: later, mark: "", plain_ranges };
    let command = match tool {
        Tool::Nsys => command::nsys(name, &config.profiling.nsys, later, target),
        Tool::Ncu => {
            let metrics = command::metrics(&config.profiling.ncu, None);
            let selection = command::Selection { regex: None, metrics: &metrics };
            command::ncu(name, &config.profiling.ncu, &selection, later, target)
        }
    };
    command.words()
}

/// The extension of the tool's reports.
fn extension(tool: Tool) -> &'static str {
    match tool {
        Tool::Nsys => "nsys-rep",
        Tool::Ncu => "ncu-rep",
    }
}

fn configured_phase(tool: Tool, config: &RunConfig) -> ToolPhase {
    match tool {
        Tool::Nsys => config.profiling.nsys.phase,
        Tool::Ncu => config.profiling.ncu.phase,
    }
}

/// The phase that `config` selects for recording; `None` for both.
fn recorded_phase(tool: Tool, config: &RunConfig) -> Option<Phase> {
    match configured_phase(tool, config) {
        ToolPhase::Decode => Some(Phase::Decode),
        ToolPhase::Prefill => Some(Phase::Prefill),
        ToolPhase::Both => None,
    }
}

/// The event for `state` of a run under this tool.
pub(super) fn tool_event(tool: Tool, config: &RunConfig, state: ToolState) -> Event {
    let phase = recorded_phase(tool, config).unwrap_or_default();
    Event::ToolRun(Box::new(ToolRun { tool: tool.name().to_owned(), phase, state }))
}

/// PyTorch's ranges have no domain.
fn has_plain_ranges(config: &RunConfig) -> bool {
    kind_of(config.runtime.name) == WorkKind::Python
}

/// A run to repeat under a tool.
#[derive(Debug, Clone)]
pub struct Rerun {
    pub tool: Tool,
    /// The configuration of the original run.
    pub config: RunConfig,
    /// The device of the original run, with "auto" resolved.
    pub device: Device,
    /// The directory of the original run, in which the tool gets its own directory.
    pub run_dir: PathBuf,
    /// The kernels for ncu to profile; without a list, the first that are launched.
    pub kernels: Option<TopList>,
    /// Whether the model of the original run stays in memory.
    pub model_in_memory: bool,
    /// The compute capability of the GPU: 90 for 9.0.
    pub compute_capability: Option<u32>,
    /// This program.
    pub program: PathBuf,
    /// The system that is searched for tools. Its `stop` cancels the re-run.
    pub system: System,
}

/// The time limit for finding a tool and reading its version.
const SEARCH_LIMIT: Duration = Duration::from_secs(20);
/// Minimum interval between two events that differ only in the share done.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Attempts to start a tool.
const MAX_STARTS: u32 = 3;

impl Rerun {
    /// Runs the workload under the tool. Sends [`Event::ToolRun`]s with its progress and, if there is one, the
    /// [`Event::KernelReport`]. Returns the last state.
    pub fn run(&self, tx: &EventTx) -> ToolState {
        let state = match self.report(tx) {
            Ok(report) => {
                self.send_state(tx, ToolState::Done);
                tx.send(Event::KernelReport(Box::new(report)));
                return ToolState::Done;
            }
            Err(_) if self.system.stop.load(Ordering::Acquire) => ToolState::Cancelled,
            Err(trouble) => {
                tx.notice(Level::Error, self.tool.name(), trouble.to_string());
                trouble.into()
            }
        };
        self.send_state(tx, state.clone());
        state
    }

    fn send_state(&self, tx: &EventTx, state: ToolState) {
        tx.send(tool_event(self.tool, &self.config, state));
    }

    fn send_progress(&self, tx: &EventTx, doing: &str, share: Option<f64>) {
        self.send_state(tx, ToolState::Working { doing: doing.to_owned(), share });
    }

    fn limit_s(&self) -> f64 {
        match self.tool {
            Tool::Nsys => self.config.profiling.nsys.timeout_s,
            Tool::Ncu => self.config.profiling.ncu.timeout_s,
        }
    }

    fn report(&self, tx: &EventTx) -> Result<KernelReport, RerunError> {
        self.send_progress(tx, &format!("searching for {}", self.tool), None);
        let installed = self.find_tool()?;
        let dir = new_dir(&self.run_dir, self.tool.name())?;
        let until = Instant::now() + Duration::from_secs_f64(self.limit_s());
        let passes = passes::passes(self);
        let mut reports: Vec<PathBuf> = Vec::new();
        let mut tables: Vec<KernelTable> = Vec::new();
        let mut notes: Vec<String> = Vec::new();
        let mut last: Option<RerunError> = None;
        for (number, pass) in passes.iter().enumerate() {
            let label = match passes.len() {
                1 => String::new(),
                several => format!("kernel {} of {several}: ", number + 1),
            };
            match self.pass(tx, &installed, &dir, pass, &label, until) {
                Ok((files, read)) => {
                    reports.extend(files);
                    passes::join(&mut tables, read);
                }
                // The other kernels of the list may still be launched.
                Err(trouble)
                    if pass.is_one_of_several
                        && matches!(trouble.kind, RerunErrorKind::KernelNotLaunched { .. }) =>
                {
                    notes.push(trouble.kind.to_string());
                    last = Some(trouble);
                }
                Err(trouble) => return Err(trouble),
            }
        }
        if tables.is_empty() {
            let no_tables = || RerunErrorKind::NoTables.with_remedy("give a list of kernels");
            return Err(last.unwrap_or_else(no_tables));
        }
        notes.extend(passes.iter().find_map(|pass| pass.remark.clone()));
        self.complete(&mut tables, notes);
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let file = match &reports[..] {
            [one] => [name(&dir), name(one)].into_iter().flatten().collect::<Vec<_>>().join("/"),
            _ => name(&dir).unwrap_or_default(),
        };
        let version = installed.version().map(|version| format!(" {version}")).unwrap_or_default();
        let phase = recorded_phase(self.tool, &self.config);
        Ok(KernelReport { tool: format!("{}{version}", self.tool), phase, file, tables })
    }

    /// The best installation of the tool.
    fn find_tool(&self) -> Result<Installed, RerunError> {
        let tool = self.tool.installation();
        let title = tool.title;
        let mut installed = nsight::installed(&self.system, tool, Instant::now() + SEARCH_LIMIT);
        nsight::sort_best_first(&mut installed, None);
        let Some(best) = installed.into_iter().next() else {
            let url = tool.url();
            return Err(RerunErrorKind::NotInstalled { title, searched: tool.searched() }.with_remedy(
                format!(
                    "install {title} ({url}), or add the directory of {tool} to the PATH",
                    tool = tool.name
                ),
            ));
        };
        match best.problem(None) {
            // A missing importer may be found elsewhere, and the capture is useful without it.
            Some(problem) if best.version().is_none() => {
                let path = best.path.display().to_string();
                Err(RerunErrorKind::Broken { title, path, problem: problem.what }.with_remedy(problem.remedy))
            }
            _ => Ok(best),
        }
    }

    /// One run under the tool: its reports, and their tables.
    fn pass(
        &self,
        tx: &EventTx,
        installed: &Installed,
        dir: &Path,
        pass: &Pass,
        label: &str,
        until: Instant,
    ) -> Result<(Vec<PathBuf>, Vec<KernelTable>), RerunError> {
        let mark = Mark::new(self.tool.name());
        let files = PassFiles::new(dir, self.tool, &pass.name);
        let config = command::config_yaml(&pass.config, &files.run_dir);
        write_file(&files.conf_dir.join("config.yaml"), &config)?;
        let working_dir = std::env::current_dir().map_err(|e| {
            let action = "cannot read the working directory".to_owned();
            RerunErrorKind::Io { action, error: e.to_string() }
                .with_remedy("start in a directory that exists")
        })?;
        let target = Target {
            program: &self.program,
            conf_dir: &files.conf_dir,
            working_dir: &working_dir,
            mark: mark.value(),
            plain_ranges: has_plain_ranges(&self.config),
        };
        let tool_path = self.system.at(&installed.path);
        let command = self.command(&tool_path, pass, &files.report, target);
        let mut record = CommandRecord::new(self.tool, installed, &command, &files);
        record.write()?;
        let launch = Launch {
            stdout: &files.stdout,
            stderr: &files.stderr,
            run_dir: &files.run_dir,
            mark: &mark,
            until,
            limit_s: self.limit_s(),
        };
        let mut last = (String::new(), Instant::now());
        let mut progress = |doing: &str, share: Option<f64>| {
            if last.0 != doing || (share.is_some() && last.1.elapsed() >= PROGRESS_INTERVAL) {
                last = (doing.to_owned(), Instant::now());
                self.send_progress(tx, &format!("{label}{doing}"), share);
            }
        };
        let mut result = child::supervise(&command, &launch, &self.system.stop, &mut progress);
        for _ in 1..MAX_STARTS {
            if result.is_false_start() {
                result = child::supervise(&command, &launch, &self.system.stop, &mut progress);
            }
        }
        record.set_result(&result);
        record.write()?;
        self.send_progress(tx, &format!("{label}reading the report"), None);
        self.read(installed, &files, pass, &result)
    }

    fn command(&self, tool: &Path, pass: &Pass, output: &Path, target: Target<'_>) -> ToolCommand {
        match self.tool {
            Tool::Nsys => command::nsys(tool, &self.config.profiling.nsys, output, target),
            Tool::Ncu => {
                let metrics = command::metrics(&self.config.profiling.ncu, self.compute_capability);
                let selection = command::Selection { regex: pass.regex.as_deref(), metrics: &metrics };
                command::ncu(tool, &self.config.profiling.ncu, &selection, output, target)
            }
        }
    }
}

impl From<RerunError> for ToolState {
    fn from(RerunError { kind, remedy }: RerunError) -> ToolState {
        ToolState::Failed { reason: kind.to_string(), remedy }
    }
}

/// A new directory: `nsys`, or `nsys-2` if that exists.
fn new_dir(run_dir: &Path, name: &str) -> Result<PathBuf, RerunError> {
    let path = run_dir.join(name);
    // Tools and children may have a different working directory than the reader of the command.
    let made = RunDir::create(&path).and_then(|dir| fs::canonicalize(dir.path()));
    made.map_err(|e| not_written(&path, &e))
}

fn write_file(path: &Path, text: &str) -> Result<(), RerunError> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| dir::write(path, text)).map_err(|e| not_written(path, &e))
}

fn not_written(path: &Path, error: &std::io::Error) -> RerunError {
    let (action, error) = (format!("cannot write {}", path.display()), error.to_string());
    RerunErrorKind::Io { action, error }
        .with_remedy("free disk space, or store runs elsewhere (hydra.run.dir)")
}
