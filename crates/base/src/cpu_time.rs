//! CPU time of the calling thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
