//! A sampler that can be switched on and off, and measures its time while on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::OverheadError;
use llmprof_base::cpu_time::thread_cpu_time;
use llmprof_event::EventTx;
use llmprof_sources::telemetry::Sampler;

/// Runs a sampler on one thread, as a live run does, but only while switched on.
pub(super) struct SamplerSwitch {
    start: Option<Sender<Arc<AtomicBool>>>,
    stopped: Receiver<Usage>,
    stop: Option<Arc<AtomicBool>>,
    thread: Option<JoinHandle<()>>,
    total: Usage,
}

/// Time on, and the CPU time of the sampler thread during it.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    on: Duration,
    cpu: Duration,
}

impl SamplerSwitch {
    /// Off at first.
    pub(super) fn new(mut sampler: Sampler, tx: EventTx) -> SamplerSwitch {
        let (start, starts) = mpsc::channel::<Arc<AtomicBool>>();
        let (done, stopped) = mpsc::channel();
        let work = move || {
            for stop in starts {
                let (begun, cpu) = (Instant::now(), thread_cpu_time());
                sampler.run(&tx, &stop);
                let usage = Usage { on: begun.elapsed(), cpu: thread_cpu_time().saturating_sub(cpu) };
                if done.send(usage).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("llmprof-sampler".to_owned()).spawn(work);
        SamplerSwitch {
            start: Some(start),
            stopped,
            stop: None,
            thread: thread.ok(),
            total: Usage::default(),
        }
    }

    pub(super) fn on(&mut self) -> Result<(), OverheadError> {
        let stop = Arc::new(AtomicBool::new(false));
        self.stop = Some(Arc::clone(&stop));
        let start = self.start.as_ref().ok_or(OverheadError::SamplerEnded)?;
        start.send(stop).map_err(|_| OverheadError::SamplerEnded)
    }

    /// Returns after the last read has finished.
    pub(super) fn off(&mut self) -> Result<(), OverheadError> {
        self.request_stop();
        let usage = self.stopped.recv().map_err(|_| OverheadError::SamplerEnded)?;
        self.total.on += usage.on;
        self.total.cpu += usage.cpu;
        Ok(())
    }

    fn request_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.store(true, Ordering::Release);
        }
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Starts counting from zero.
    pub(super) fn reset(&mut self) {
        self.total = Usage::default();
    }

    /// Time on, and CPU time.
    pub(super) fn usage(&self) -> (Duration, Duration) {
        (self.total.on, self.total.cpu)
    }
}

impl Drop for SamplerSwitch {
    fn drop(&mut self) {
        self.request_stop();
        drop(self.start.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_config::{NvmlConfig, SamplerConfig};
    use llmprof_event::{Clock, channel};
    use llmprof_sources::telemetry::{absent::Absence, host::HostReader};

    /// A sampler that takes longer is assumed to hang.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn samples_only_while_switched_on() {
        let intervals =
            NvmlConfig { enable: false, interval_ms: 50, gpm_interval_ms: 200, slow_interval_ms: 500 };
        let every = SamplerConfig { enable: true, interval_ms: 10 };
        let sampler =
            Sampler::new(Err(Absence::NoDevices), &intervals, Some(Box::new(HostReader::open())), &every);
        let (tx, mut rx) = channel(Clock::wall());
        let mut switch = SamplerSwitch::new(sampler, tx);
        let mut received = || std::iter::from_fn(|| rx.try_recv().ok()).count();
        let rest = Duration::from_millis(150);
        for _ in 0..2 {
            thread::sleep(rest);
            assert_eq!(received(), 0);
            switch.on().unwrap();
            let (asked, mut samples) = (Instant::now(), 0);
            // Its thread may wake up late, so its time counts from before the first sample.
            let mut first: Option<Instant> = None;
            while samples < 2 || first.is_none_or(|first| first.elapsed() < rest) {
                assert!(asked.elapsed() < PATIENCE, "{samples} samples");
                thread::sleep(rest / 10);
                samples += received();
                if samples > 0 {
                    first.get_or_insert_with(Instant::now);
                }
            }
            switch.off().unwrap();
            received();
        }
        let (on, cpu) = switch.usage();
        assert!(on >= 2 * rest && cpu < on, "{on:?} {cpu:?}");
        switch.reset();
        assert!(switch.usage().0.is_zero());
        switch.on().unwrap();
        drop(switch);
    }
}
