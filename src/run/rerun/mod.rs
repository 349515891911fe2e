//! A run done again under Nsight Systems or Nsight Compute: by a child of this program, whose report becomes an event.

mod child;
mod command;
mod kept;
mod passes;
mod reading;
mod trouble;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

pub use self::trouble::Trouble;
use self::{
    child::{Ending, Place},
    command::{Target, ToolCommand},
    passes::Pass,
};
use crate::{
    config::{RunConfig, ToolPhase},
    event::{Device, Event, EventTx, KernelReport, Level, Phase, ToolRun, ToolState, kernels::KernelTable},
    kernels::top::TopList,
    tools::{
        System,
        nsight::{self, Installed},
        under::Mark,
    },
};

/// Who looks at the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    Nsys,
    Ncu,
}

impl Tool {
    pub fn name(self) -> &'static str {
        self.installation().name
    }

    fn installation(self) -> &'static nsight::Tool {
        match self {
            Tool::Nsys => &nsight::NSYS,
            Tool::Ncu => &nsight::NCU,
        }
    }

    /// The end of a report's name.
    fn extension(self) -> &'static str {
        match self {
            Tool::Nsys => "nsys-rep",
            Tool::Ncu => "ncu-rep",
        }
    }
}

impl std::fmt::Display for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A run to be done again.
#[derive(Debug, Clone)]
pub struct Rerun {
    pub tool: Tool,
    /// Of the run as it was.
    pub config: RunConfig,
    /// What its workload runs on, "auto" resolved.
    pub device: Device,
    /// Where its files are; a directory for this tool is made below.
    pub run_dir: PathBuf,
    /// For ncu: the kernels to look at; without a list, whatever comes first.
    pub kernels: Option<TopList>,
    /// The model of the run as it was is in memory meanwhile.
    pub beside: bool,
    /// The compute capability of its GPU, as 90 for 9.0.
    pub chip: Option<u32>,
    /// Whether this build names its phases to tools.
    pub gated: bool,
    /// This program.
    pub program: PathBuf,
    /// Where tools are looked for; its `stop` ends everything.
    pub system: System,
}

/// For finding a tool and asking for its version.
const SOON: Duration = Duration::from_secs(20);
/// Words about progress are not worth more events than this.
const BETWEEN_WORDS: Duration = Duration::from_millis(500);
/// A tool that fails to start may try so often.
const STARTS: u32 = 3;

/// How it went: a report, or not.
type Outcome<T> = Result<T, Stopped>;

/// Why there is no report.
#[derive(Debug)]
enum Stopped {
    Trouble(Trouble),
    Cancelled,
}

impl From<Trouble> for Stopped {
    fn from(trouble: Trouble) -> Stopped {
        Stopped::Trouble(trouble)
    }
}

impl Rerun {
    /// Does all of it, and tells how it goes: [`Event::ToolRun`]s, and a [`Event::KernelReport`] if it came to one. Gives
    /// the last state.
    pub fn run(&self, tx: &EventTx) -> ToolState {
        let done = self.report(tx);
        let state = match done {
            Ok(report) => {
                let report = Event::KernelReport(Box::new(report));
                self.tell(tx, ToolState::Done);
                tx.send(report);
                return ToolState::Done;
            }
            Err(_) if self.is_stopped() => ToolState::Cancelled,
            Err(Stopped::Cancelled) => ToolState::Cancelled,
            Err(Stopped::Trouble(Trouble { reason, remedy })) => {
                tx.notice(Level::Error, self.tool.name(), format!("{reason}; {remedy}"));
                ToolState::Failed { reason, remedy }
            }
        };
        self.tell(tx, state.clone());
        state
    }

    fn is_stopped(&self) -> bool {
        self.system.stop.load(Ordering::Acquire)
    }

    fn tell(&self, tx: &EventTx, state: ToolState) {
        let phase = self.phase().unwrap_or_default();
        tx.send(Event::ToolRun(Box::new(ToolRun { tool: self.tool.name().to_owned(), phase, state })));
    }

    fn working(&self, tx: &EventTx, doing: &str, share: Option<f64>) {
        self.tell(tx, ToolState::Working { doing: doing.to_owned(), share });
    }

    fn asked_phase(&self) -> ToolPhase {
        match self.tool {
            Tool::Nsys => self.config.profiling.nsys.phase,
            Tool::Ncu => self.config.profiling.ncu.phase,
        }
    }

    fn limit_s(&self) -> f64 {
        match self.tool {
            Tool::Nsys => self.config.profiling.nsys.timeout_s,
            Tool::Ncu => self.config.profiling.ncu.timeout_s,
        }
    }

    /// The phase that is looked at; `None` for both.
    fn phase(&self) -> Option<Phase> {
        match self.asked_phase() {
            ToolPhase::Decode => Some(Phase::Decode),
            ToolPhase::Prefill => Some(Phase::Prefill),
            ToolPhase::Both => None,
        }
    }

    fn report(&self, tx: &EventTx) -> Outcome<KernelReport> {
        self.working(tx, &format!("looking for {}", self.tool), None);
        let installed = self.found()?;
        let dir = fresh_dir(&self.run_dir, self.tool.name())?;
        let until = Instant::now() + Duration::from_secs_f64(self.limit_s());
        let passes = passes::of(self);
        let mut reports: Vec<PathBuf> = Vec::new();
        let mut tables: Vec<KernelTable> = Vec::new();
        let mut notes: Vec<String> = Vec::new();
        let mut last: Option<Trouble> = None;
        for (at, pass) in passes.iter().enumerate() {
            let label = match passes.len() {
                1 => String::new(),
                several => format!("kernel {} of {several}: ", at + 1),
            };
            match self.pass(tx, &installed, &dir, pass, &label, until) {
                Ok((made, read)) => {
                    reports.extend(made);
                    passes::join(&mut tables, read);
                }
                // A kernel that did not come says nothing of the others.
                Err(Stopped::Trouble(trouble)) if pass.is_one_of_several && trouble.is_of_kernel() => {
                    notes.push(trouble.reason.clone());
                    last = Some(trouble);
                }
                Err(stopped) => return Err(stopped),
            }
        }
        if tables.is_empty() {
            let nothing = || Trouble::new("there was nothing to look at", "give a list of kernels");
            return Err(last.unwrap_or_else(nothing).into());
        }
        notes.extend(passes.iter().find_map(|pass| pass.remark.clone()));
        if !self.gated {
            notes.push(
                "this build names no phases to tools (feature nvtx): this is of the whole run, warm-up too"
                    .to_owned(),
            );
        }
        self.finish(&mut tables, notes)?;
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let file = match &reports[..] {
            [one] => [name(&dir), name(one)].into_iter().flatten().collect::<Vec<_>>().join("/"),
            _ => name(&dir).unwrap_or_default(),
        };
        let version = installed.version().map(|version| format!(" {version}")).unwrap_or_default();
        let phase = self.phase().filter(|_| self.gated);
        Ok(KernelReport { tool: format!("{}{version}", self.tool), phase, file, tables })
    }

    /// The best installation, or where there is none, where it was looked for.
    fn found(&self) -> Outcome<Installed> {
        let tool = self.tool.installation();
        let mut installed = nsight::installed(&self.system, tool, Instant::now() + SOON);
        nsight::best_first(&mut installed, None);
        let Some(best) = installed.into_iter().next() else {
            let remedy = format!(
                "install {} ({}), or put the folder of {} on the PATH",
                tool.title,
                tool.url(),
                tool.name
            );
            let reason = format!("{} is not installed (looked on {})", tool.title, tool.looked_at());
            return Err(Trouble::new(reason, remedy).into());
        };
        match best.trouble(None) {
            // An importer that is missing may lie elsewhere; what is captured is worth keeping anyway.
            Some(trouble) if best.version().is_none() => {
                let reason = format!("{} at {}: {}", tool.title, best.path.display(), trouble.what);
                Err(Trouble::new(reason, trouble.remedy).into())
            }
            _ => Ok(best),
        }
    }

    /// One run under the tool: its reports, and what is in them.
    fn pass(
        &self,
        tx: &EventTx,
        installed: &Installed,
        dir: &Path,
        pass: &Pass,
        label: &str,
        until: Instant,
    ) -> Outcome<(Vec<PathBuf>, Vec<KernelTable>)> {
        let mark = Mark::new(self.tool.name());
        let files = kept::Files::of(dir, &pass.name);
        let config = command::config_yaml(&pass.config, &files.run_dir);
        written(&files.conf_dir.join("config.yaml"), &config)?;
        let target = Target {
            program: &self.program,
            conf_dir: &files.conf_dir,
            gated: self.gated,
            mark: mark.value(),
        };
        let tool_path = self.system.at(&installed.path);
        let command = self.command(&tool_path, pass, &files.report, target);
        let mut record = kept::Record::new(self.tool, installed, &command, &files);
        record.write(dir)?;
        let place = Place {
            stdout: &files.stdout,
            stderr: &files.stderr,
            run_dir: &files.run_dir,
            mark: &mark,
            until,
            limit_s: self.limit_s(),
        };
        let mut said = (String::new(), Instant::now());
        let mut tell = |doing: &str, share: Option<f64>| {
            if said.0 != doing || (share.is_some() && said.1.elapsed() >= BETWEEN_WORDS) {
                said = (doing.to_owned(), Instant::now());
                self.working(tx, &format!("{label}{doing}"), share);
            }
        };
        let mut ended = child::attend(&command, &place, &self.system.stop, &mut tell);
        for _ in 1..STARTS {
            if ended.is_false_start() {
                ended = child::attend(&command, &place, &self.system.stop, &mut tell);
            }
        }
        record.ended(&ended);
        record.write(dir)?;
        if ended.ending == Ending::Cancelled {
            return Err(Stopped::Cancelled);
        }
        self.working(tx, &format!("{label}reading the report"), None);
        self.read(installed, &files, pass, &ended)
    }

    fn command(&self, tool: &Path, pass: &Pass, output: &Path, target: Target<'_>) -> ToolCommand {
        match self.tool {
            Tool::Nsys => command::nsys(tool, &self.config.profiling.nsys, output, target),
            Tool::Ncu => {
                let metrics = command::metrics(&self.config.profiling.ncu, self.chip);
                let looked_for = command::Pass { regex: pass.regex.as_deref(), metrics: &metrics };
                command::ncu(tool, &self.config.profiling.ncu, &looked_for, output, target)
            }
        }
    }
}

impl Trouble {
    /// It is about one kernel alone.
    fn is_of_kernel(&self) -> bool {
        self.reason.starts_with("ncu saw no launch of ")
    }
}

/// A directory that is new: `nsys`, or `nsys-2` where that is there.
fn fresh_dir(run_dir: &Path, name: &str) -> Outcome<PathBuf> {
    let made = crate::rundir::RunDir::create(&run_dir.join(name));
    let dir = made.map_err(|e| unwritten(&run_dir.join(name), &e))?;
    // Tools and children may not share a working directory with whoever reads their command.
    fs::canonicalize(dir.path()).map_err(|e| unwritten(dir.path(), &e).into())
}

fn written(path: &Path, text: &str) -> Outcome<()> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(path, text)).map_err(|e| unwritten(path, &e).into())
}

fn unwritten(path: &Path, e: &std::io::Error) -> Trouble {
    let reason = format!("{} can't be written: {e}", path.display());
    Trouble::new(reason, "free the disk, or keep runs elsewhere (hydra.run.dir)")
}
