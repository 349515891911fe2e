//! Measures the overhead of profiling: the CPU time of the consumer and the time of its frames.

use std::time::{Duration, Instant};

use llmprof_base::cpu_time::thread_cpu_time;
use llmprof_event::ObserverSample;

/// Measures the calling thread, and reports once per second.
pub struct Observer {
    since: Instant,
    cpu_at_start: Duration,
    frames: u32,
    frame_time: Duration,
}

const INTERVAL: Duration = Duration::from_secs(1);

impl Default for Observer {
    fn default() -> Self {
        Observer {
            since: Instant::now(),
            cpu_at_start: thread_cpu_time(),
            frames: 0,
            frame_time: Duration::ZERO,
        }
    }
}

impl Observer {
    pub fn frame(&mut self, elapsed: Duration) {
        self.frames += 1;
        self.frame_time += elapsed;
    }

    /// The sample of the last second, when it is over.
    pub fn due(&mut self, backlog: u64, lost: u64) -> Option<ObserverSample> {
        let elapsed = self.since.elapsed();
        if elapsed < INTERVAL {
            return None;
        }
        let cpu = thread_cpu_time().saturating_sub(self.cpu_at_start);
        let frame_ms = (self.frames > 0).then(|| (self.frame_time / self.frames).as_secs_f32() * 1e3);
        *self = Observer::default();
        let consumer_pct = Some(100.0 * cpu.as_secs_f32() / elapsed.as_secs_f32());
        Some(ObserverSample { consumer_pct, frame_ms, backlog, lost })
    }
}
