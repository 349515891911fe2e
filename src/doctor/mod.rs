//! What works on this machine, what does not, and what to do about it.
//!
//! Every check looks at a [`Machine`], never at the system itself, and runs under a time limit of its own.

mod cards;
mod cuda;
mod gpu;
mod host;
pub mod machine;
pub mod overhead;
pub mod parse;
pub mod peaks;
mod permission;
pub mod show;
mod tools;

use std::{
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use cards::Cards;
pub use machine::Machine;

/// The longest that a check may take.
pub const LIMIT: Duration = Duration::from_secs(3);
/// Before this it is not worth saying what is being looked at.
const SOON: Duration = Duration::from_secs(1);

/// How a check came out, the worse the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// There is nothing to check here, or nothing that could be done about it.
    Skip,
    Pass,
    /// Something works less well than it could.
    Warn,
    /// Something that this machine should do does not work.
    Fail,
}

impl Status {
    pub const ALL: [Status; 4] = [Status::Pass, Status::Warn, Status::Fail, Status::Skip];

    pub fn word(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Warn => "warn",
            Status::Fail => "fail",
            Status::Skip => "skip",
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub status: Status,
    pub found: String,
    /// What to do, where there is something to do.
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

/// A check that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    pub id: &'static str,
    pub finding: Finding,
    pub took: Duration,
}

/// All checks of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub checks: Vec<Check>,
    /// A GPU was found, so the checks of GPUs say something.
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

/// What a check looks at.
#[derive(Clone)]
struct Look {
    machine: Arc<Machine>,
    cards: Arc<Cards>,
    /// When a tool that was started has to be done.
    until: Instant,
}

type CheckFn = fn(&Look) -> Finding;

/// Every check, in the order of telling. NVML stands first: the others rest on what it says.
const CHECKS: [(&str, CheckFn); 25] = [
    ("nvml", gpu::nvml),
    ("driver", gpu::driver),
    ("gpu", gpu::gpu),
    ("gpm", gpu::gpm),
    ("throttle_counters", gpu::throttle_counters),
    ("power_limit", gpu::power_limit),
    ("clocks", gpu::clocks),
    ("pcie", gpu::pcie),
    ("persistence", gpu::persistence),
    ("temperature", gpu::temperature),
    ("ecc", gpu::ecc),
    ("other_processes", gpu::other_processes),
    ("cuda_driver", cuda::driver),
    ("cuda_runtime", cuda::runtime),
    ("cupti", cuda::cupti),
    ("cuda_build", cuda::build),
    ("nsys", tools::nsys),
    ("ncu", tools::ncu),
    ("counter_permission", permission::counters),
    ("cpu_engine", host::cpu_engine),
    ("config", host::config),
    ("disk", host::disk),
    ("memory", host::memory),
    ("terminal", host::terminal),
    ("locale", host::locale),
];

/// Makes every check, each within `limit`. `tell` hears what is being looked at once that takes more than a moment.
/// Ends early when [`System::stop`](crate::tools::System::stop) is set.
pub fn examine(machine: &Arc<Machine>, limit: Duration, tell: &mut dyn FnMut(&str)) -> Report {
    let begun = Instant::now();
    let mut told = String::new();
    let mut waiting = |id: &str| {
        if begun.elapsed() >= SOON && told != id {
            tell(&format!("looking at {id} …"));
            id.clone_into(&mut told);
        }
    };
    let look_at_cards = {
        let machine = Arc::clone(machine);
        move || Cards::look(&machine)
    };
    let started = Instant::now();
    let cards = match within(limit, "nvml", look_at_cards, &mut waiting) {
        Ok(cards) => cards,
        Err(trouble) => Cards::Unanswered(trouble.words(limit)),
    };
    let cards_took = started.elapsed();
    let cards = Arc::new(cards);
    let mut checks = Vec::new();
    for (id, check) in CHECKS {
        if machine.stop.load(Ordering::Acquire) {
            break;
        }
        let started = Instant::now();
        // A tool is ended a little before its check would be given up.
        let look =
            Look { machine: Arc::clone(machine), cards: Arc::clone(&cards), until: started + limit * 5 / 6 };
        let finding = within(limit, id, move || check(&look), &mut waiting)
            .unwrap_or_else(|trouble| Finding::warn(format!("the check {}", trouble.words(limit))));
        let mut took = started.elapsed();
        if id == "nvml" {
            took += cards_took;
        }
        checks.push(Check { id, finding, took });
    }
    Report { checks, gpu: matches!(*cards, Cards::Found { .. }) }
}

/// Why work under a limit has no result.
enum Unfinished {
    TooLong,
    Fell,
}

impl Unfinished {
    fn words(&self, limit: Duration) -> String {
        match self {
            Unfinished::TooLong => format!("did not end within {limit:.1?}"),
            Unfinished::Fell => "fell over: a fault of this program".to_owned(),
        }
    }
}

/// What `work` gives, on a thread of its own; where it takes longer than `limit` that thread is left behind. `waiting`
/// hears `id` again and again meanwhile.
fn within<T: Send + 'static>(
    limit: Duration,
    id: &str,
    work: impl FnOnce() -> T + Send + 'static,
    waiting: &mut dyn FnMut(&str),
) -> Result<T, Unfinished> {
    const MOMENT: Duration = Duration::from_millis(200);
    let (tx, rx) = mpsc::sync_channel(1);
    let begun = Instant::now();
    let spawned = thread::Builder::new().name(format!("llmprof-{id}")).spawn(move || {
        let _ = tx.send(work());
    });
    if spawned.is_err() {
        return Err(Unfinished::Fell);
    }
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        match rx.recv_timeout(left.min(MOMENT)) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Disconnected) => return Err(Unfinished::Fell),
            Err(RecvTimeoutError::Timeout) if begun.elapsed() >= limit => return Err(Unfinished::TooLong),
            Err(RecvTimeoutError::Timeout) => waiting(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_takes_too_long_is_left_behind() {
        let begun = Instant::now();
        let mut heard = Vec::new();
        let limit = Duration::from_millis(300);
        let slow = within(limit, "slow", || thread::sleep(Duration::from_secs(30)), &mut |id| {
            heard.push(id.to_owned());
        });
        assert!(matches!(slow, Err(Unfinished::TooLong)));
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(!heard.is_empty() && heard.iter().all(|id| id == "slow"), "{heard:?}");
    }

    #[test]
    fn every_check_has_a_name_of_its_own() {
        let mut ids: Vec<_> = CHECKS.iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), CHECKS.len());
        assert!(ids.iter().all(|id| id.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
    }
}
