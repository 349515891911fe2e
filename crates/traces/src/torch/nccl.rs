//! The trace of NCCL's own profiler: operations as pairs of a start and an end.

use std::collections::{BTreeMap, HashMap};

use super::{event::Event, tables::timed};
use crate::tally::{Durations, MAX_ROWS};
use llmprof_event::kernels::{KernelTable, Kind};

/// The categories of its events.
const CATEGORIES: [&str; 12] = [
    "GROUP_API",
    "COLL_API",
    "P2P_API",
    "KERNEL_LAUNCH",
    "GROUP",
    "COLL",
    "P2P",
    "PROXY",
    "NET",
    "GPU",
    "NET_IB",
    "NET_SOCK",
];
/// Maximum operations in progress; further ones are not counted.
const MAX_OPEN: usize = 1 << 16;

/// Operations by category and name.
#[derive(Debug, Default)]
pub struct Asynchronous {
    /// By category, id and process.
    open: HashMap<(&'static str, u64, u64), (String, f64)>,
    done: BTreeMap<String, Durations>,
}

impl Asynchronous {
    /// Counts an event; false if it is not one of NCCL.
    pub fn add(&mut self, event: &Event) -> bool {
        let Some(b'b' | b'e') = event.phase else { return false };
        let Some(category) = CATEGORIES.into_iter().find(|name| *name == event.category) else {
            return false;
        };
        // A time of zero was not recorded.
        let Some(us) = event.start_us.filter(|us| *us > 0.0) else { return false };
        let key = (category, event.id.key(), event.process.key());
        if event.phase == Some(b'b') {
            if self.open.len() < MAX_OPEN {
                self.open.insert(key, (event.name.clone(), us));
            }
            return true;
        }
        let Some((name, start)) = self.open.remove(&key).filter(|(_, start)| us >= *start) else {
            return false;
        };
        let name = format!("{category} {name}");
        let name = if self.done.len() < MAX_ROWS { name } else { "(others)".to_owned() };
        self.done.entry(name).or_default().add(((us - start) * 1e3).round());
        true
    }

    pub fn table(self) -> Option<KernelTable> {
        timed("NCCL profiler, operations", Kind::Ranges, self.done, None)
    }
}
