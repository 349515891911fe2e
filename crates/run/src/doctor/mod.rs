//! Checks of this machine: what works, what does not, and how to fix it.
//!
//! A check reads a [`Machine`], never the system itself, and has its own time limit.

pub mod client;
mod cuda;
mod gpu;
mod host;
mod inventory;
pub mod machine;
pub mod overhead;
pub mod parse;
pub mod peaks;
mod pytorch;
pub mod show;
mod tools;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use inventory::{Gpu, Inventory};
pub use machine::Machine;

/// The time limits of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckTimeouts {
    /// After this the check is abandoned.
    pub check: Duration,
    /// After this the tools that the check has started are killed; earlier than the check is abandoned, so that it can
    /// report them.
    pub tools: Duration,
}

/// The time limits of the checks of this machine.
pub const TIMEOUTS: CheckTimeouts =
    CheckTimeouts { check: Duration::from_secs(3), tools: Duration::from_millis(2500) };
/// Progress is reported from this time on.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// The result of a check, ordered by severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Does not apply to this machine, or cannot be changed.
    Skip,
    Pass,
    /// Works, but not as well as it could.
    Warn,
    /// Should work on this machine, and does not.
    Fail,
}

impl Status {
    pub const ALL: [Status; 4] = [Status::Pass, Status::Warn, Status::Fail, Status::Skip];
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Pass => "pass",
            Status::Warn => "warn",
            Status::Fail => "fail",
            Status::Skip => "skip",
        })
    }
}

/// The finding of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub status: Status,
    pub found: String,
    /// The remedy, if there is one.
    pub remedy: Option<String>,
}

impl Finding {
    fn new(status: Status, found: impl Into<String>) -> Finding {
        Finding { status, found: found.into(), remedy: None }
    }

    fn pass(found: impl Into<String>) -> Finding {
        Finding::new(Status::Pass, found)
    }

    fn warn(found: impl Into<String>) -> Finding {
        Finding::new(Status::Warn, found)
    }

    fn fail(found: impl Into<String>) -> Finding {
        Finding::new(Status::Fail, found)
    }

    fn skip(found: impl Into<String>) -> Finding {
        Finding::new(Status::Skip, found)
    }

    fn remedy(self, remedy: impl Into<String>) -> Finding {
        Finding { remedy: Some(remedy.into()), ..self }
    }
}

/// A completed check.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    pub id: &'static str,
    pub finding: Finding,
    pub duration: Duration,
}

/// All checks of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub checks: Vec<Check>,
    /// Whether a GPU was found, so that the checks of GPUs apply.
    pub gpu: bool,
}

impl Report {
    pub fn count(&self, status: Status) -> usize {
        self.checks.iter().filter(|check| check.finding.status == status).count()
    }

    pub fn exit_code(&self) -> u8 {
        u8::from(self.count(Status::Fail) > 0)
    }

    pub fn finding(&self, id: &str) -> Option<&Finding> {
        self.checks.iter().find(|check| check.id == id).map(|check| &check.finding)
    }
}

/// The input of a check.
#[derive(Clone)]
struct Context {
    machine: Arc<Machine>,
    inventory: Arc<Inventory>,
    /// The time at which a tool started by the check must have ended.
    deadline: Instant,
}

/// A check, by its requirements. Checks that need a GPU are skipped without one.
#[derive(Clone, Copy)]
enum CheckFn {
    Machine(fn(&Context) -> Finding),
    Gpus(fn(&Context, &[Gpu]) -> Finding),
    /// Runs on each GPU; the findings are merged.
    EachGpu(fn(&Gpu) -> Finding),
}

impl CheckFn {
    fn run(self, context: &Context) -> Finding {
        match (self, context.inventory.gpus()) {
            (CheckFn::Machine(check), _) => check(context),
            (_, Err(skipped)) => skipped,
            (CheckFn::Gpus(check), Ok(gpus)) => check(context, gpus),
            (CheckFn::EachGpu(check), Ok(gpus)) => inventory::merged(gpus, check),
        }
    }
}

/// Every check in the order of the report. NVML comes first: others depend on it.
const CHECKS: [(&str, CheckFn); 27] = [
    ("nvml", CheckFn::Machine(gpu::nvml)),
    ("driver", CheckFn::Machine(gpu::driver)),
    ("gpu", CheckFn::EachGpu(gpu::gpu)),
    ("gpm", CheckFn::EachGpu(gpu::gpm)),
    ("throttle_counters", CheckFn::EachGpu(gpu::throttle_counters)),
    ("power_limit", CheckFn::EachGpu(gpu::power_limit)),
    ("clocks", CheckFn::EachGpu(gpu::clocks)),
    ("pcie", CheckFn::EachGpu(gpu::pcie)),
    ("persistence", CheckFn::EachGpu(gpu::persistence)),
    ("temperature", CheckFn::EachGpu(gpu::temperature)),
    ("ecc", CheckFn::EachGpu(gpu::ecc)),
    ("other_processes", CheckFn::EachGpu(gpu::other_processes)),
    ("cuda_driver", CheckFn::Gpus(cuda::driver)),
    ("cublas", CheckFn::Gpus(cuda::cublas)),
    ("cupti", CheckFn::Gpus(cuda::cupti)),
    ("cuda_build", CheckFn::Machine(cuda::build)),
    ("nsys", CheckFn::Machine(tools::nsys)),
    ("ncu", CheckFn::Machine(tools::ncu)),
    ("counter_permission", CheckFn::Gpus(tools::counter_permission)),
    ("attach", CheckFn::Machine(tools::attach)),
    ("pytorch", CheckFn::Machine(pytorch::pytorch)),
    ("cpu_engine", CheckFn::Machine(host::cpu_engine)),
    ("config", CheckFn::Machine(host::config)),
    ("disk", CheckFn::Machine(host::disk)),
    ("memory", CheckFn::Machine(host::memory)),
    ("terminal", CheckFn::Machine(host::terminal)),
    ("locale", CheckFn::Machine(host::locale)),
];

/// Runs every check, each within `limit`. After a while, `progress` is called with the id of each check that is still
/// running. Ends early when [`System::stop`](llmprof_base::tools::System::stop) is set.
pub fn examine(machine: &Arc<Machine>, limit: CheckTimeouts, progress: &mut dyn FnMut(&str)) -> Report {
    let begun = Instant::now();
    let mut reported = String::new();
    let mut waiting = |id: &str| {
        if begun.elapsed() >= PROGRESS_AFTER && reported != id {
            progress(id);
            id.clone_into(&mut reported);
        }
    };
    let read_inventory = {
        let machine = Arc::clone(machine);
        move || Inventory::read(&machine)
    };
    let started = Instant::now();
    let inventory = match within(limit.check, "nvml", read_inventory, &mut waiting) {
        Ok(inventory) => inventory,
        Err(unfinished) => Inventory::NoAnswer(unfinished.describe(limit.check)),
    };
    let inventory_duration = started.elapsed();
    let inventory = Arc::new(inventory);
    let mut checks = Vec::new();
    for (id, check) in CHECKS {
        if machine.stop.load(Ordering::Acquire) {
            break;
        }
        let started = Instant::now();
        let context = Context {
            machine: Arc::clone(machine),
            inventory: Arc::clone(&inventory),
            deadline: started + limit.tools,
        };
        let finding =
            within(limit.check, id, move || check.run(&context), &mut waiting).unwrap_or_else(|unfinished| {
                Finding::warn(format!("the check {}", unfinished.describe(limit.check)))
            });
        let mut duration = started.elapsed();
        if id == "nvml" {
            duration += inventory_duration;
        }
        checks.push(Check { id, finding, duration });
    }
    Report { checks, gpu: matches!(*inventory, Inventory::Found { .. }) }
}

/// Why work under a time limit has no result.
enum Unfinished {
    TimedOut,
    Panicked,
}

impl Unfinished {
    fn describe(&self, limit: Duration) -> String {
        match self {
            Unfinished::TimedOut => format!("did not finish within {limit:.1?}"),
            Unfinished::Panicked => "panicked: a bug in this program".to_owned(),
        }
    }
}

/// Runs `work` on its own thread, which is abandoned after `limit`. Meanwhile `waiting` is called with `id` at
/// intervals.
fn within<T: Send + 'static>(
    limit: Duration,
    id: &str,
    work: impl FnOnce() -> T + Send + 'static,
    waiting: &mut dyn FnMut(&str),
) -> Result<T, Unfinished> {
    const POLL_INTERVAL: Duration = Duration::from_millis(200);
    let (tx, rx) = mpsc::sync_channel(1);
    let begun = Instant::now();
    let spawned = thread::Builder::new().name(format!("llmprof-{id}")).spawn(move || {
        let _ = tx.send(work());
    });
    if spawned.is_err() {
        return Err(Unfinished::Panicked);
    }
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        match rx.recv_timeout(left.min(POLL_INTERVAL)) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Disconnected) => return Err(Unfinished::Panicked),
            Err(RecvTimeoutError::Timeout) => {
                waiting(id);
                if begun.elapsed() >= limit {
                    return Err(Unfinished::TimedOut);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_takes_too_long_is_abandoned() {
        let mut reported = Vec::new();
        let limit = Duration::from_millis(300);
        // A check that never ends.
        let (_open, never) = mpsc::channel::<()>();
        let slow = within(limit, "slow", move || never.recv().is_ok(), &mut |id| {
            reported.push(id.to_owned());
        });
        assert!(matches!(slow, Err(Unfinished::TimedOut)));
        assert!(!reported.is_empty() && reported.iter().all(|id| id == "slow"), "{reported:?}");
    }

    #[test]
    fn check_ids_are_unique() {
        let mut ids: Vec<_> = CHECKS.iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), CHECKS.len());
        assert!(ids.iter().all(|id| id.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
    }
}
