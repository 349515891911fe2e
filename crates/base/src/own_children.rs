//! The programs that this one has started for a run, or has joined: what they use of the machine is the run's, not that of
//! other programs.

use std::sync::{Mutex, MutexGuard, PoisonError};

static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn lock() -> MutexGuard<'static, Vec<u32>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that counts as ours until this is dropped.
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

/// The processes that count as ours now, besides this one.
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
