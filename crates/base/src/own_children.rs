//! The processes that this program has started for a run, or has joined. Their use of the machine counts as the run's,
//! not as external load.

use std::sync::{Mutex, MutexGuard, PoisonError};

static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn lock() -> MutexGuard<'static, Vec<u32>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that counts as part of the run until this is dropped.
#[derive(Debug)]
pub struct OwnChild(u32);

impl OwnChild {
    pub fn new(pid: u32) -> OwnChild {
        lock().push(pid);
        OwnChild(pid)
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        let mut children = lock();
        if let Some(at) = children.iter().position(|pid| *pid == self.0) {
            children.swap_remove(at);
        }
    }
}

/// The processes that count as part of the run now, in addition to this one.
pub fn own_children() -> Vec<u32> {
    lock().clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_counts_while_it_is_kept() {
        let child = OwnChild::new(u32::MAX - 7);
        assert!(own_children().contains(&(u32::MAX - 7)));
        drop(child);
        assert!(!own_children().contains(&(u32::MAX - 7)));
    }
}
