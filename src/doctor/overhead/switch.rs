//! A sampler that can be turned on and off, and knows what it took while it was on.

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
use crate::{base::cpu_time::thread_cpu_time, event::EventTx, telemetry::Sampler};

/// Runs a sampler on one thread, as a live run does, but only while it is on.
pub(super) struct SamplerSwitch {
    turn: Option<Sender<Arc<AtomicBool>>>,
    turned: Receiver<Spent>,
    stop: Option<Arc<AtomicBool>>,
    thread: Option<JoinHandle<()>>,
    total: Spent,
}

/// Time while it was on, and CPU time of its thread in it.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    on: Duration,
    cpu: Duration,
}

impl SamplerSwitch {
    /// Off to begin with.
    pub(super) fn new(mut sampler: Sampler, tx: EventTx) -> SamplerSwitch {
        let (turn, turns) = mpsc::channel::<Arc<AtomicBool>>();
        let (done, turned) = mpsc::channel();
        let work = move || {
            for stop in turns {
                let (begun, cpu) = (Instant::now(), thread_cpu_time());
                sampler.run(&tx, &stop);
                let spent = Spent { on: begun.elapsed(), cpu: thread_cpu_time().saturating_sub(cpu) };
                if done.send(spent).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("llmprof-sampler".to_owned()).spawn(work);
        SamplerSwitch { turn: Some(turn), turned, stop: None, thread: thread.ok(), total: Spent::default() }
    }

    pub(super) fn on(&mut self) -> Result<(), OverheadError> {
        let stop = Arc::new(AtomicBool::new(false));
        self.stop = Some(Arc::clone(&stop));
        let turn = self.turn.as_ref().ok_or(OverheadError::SamplerGone)?;
        turn.send(stop).map_err(|_| OverheadError::SamplerGone)
    }

    /// Returns once nothing is being read any more.
    pub(super) fn off(&mut self) -> Result<(), OverheadError> {
        self.ask_to_stop();
        let spent = self.turned.recv().map_err(|_| OverheadError::SamplerGone)?;
        self.total.on += spent.on;
        self.total.cpu += spent.cpu;
        Ok(())
    }

    fn ask_to_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.store(true, Ordering::Release);
        }
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// What it took so far does not count.
    pub(super) fn forget(&mut self) {
        self.total = Spent::default();
    }

    /// Time on, and CPU time.
    pub(super) fn spent(&self) -> (Duration, Duration) {
        (self.total.on, self.total.cpu)
    }
}

impl Drop for SamplerSwitch {
    fn drop(&mut self) {
        self.ask_to_stop();
        drop(self.turn.take());
        if let Some(thread) = self.thread.take() {
            // A panic of its was kept already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{NvmlConfig, SamplerConfig},
        event::{Clock, channel},
        telemetry::{absent::Absence, host::HostReader},
    };

    #[test]
    fn it_samples_while_it_is_on_and_at_no_other_time() {
        let intervals =
            NvmlConfig { enable: false, interval_ms: 50, gpm_interval_ms: 200, slow_interval_ms: 500 };
        let every = SamplerConfig { enable: true, interval_ms: 10 };
        let sampler =
            Sampler::new(Err(Absence::NoDevices), &intervals, Some(Box::new(HostReader::open())), &every);
        let (tx, mut rx) = channel(Clock::wall());
        let mut switch = SamplerSwitch::new(sampler, tx);
        let mut heard = || std::iter::from_fn(|| rx.try_recv().ok()).count();
        let rest = Duration::from_millis(150);
        // A busy machine may come to it late.
        let patience = Duration::from_secs(10);
        for _ in 0..2 {
            thread::sleep(rest);
            assert_eq!(heard(), 0);
            switch.on().unwrap();
            let (begun, mut samples) = (Instant::now(), 0);
            while begun.elapsed() < rest || (samples < 2 && begun.elapsed() < patience) {
                thread::sleep(rest / 10);
                samples += heard();
            }
            switch.off().unwrap();
            samples += heard();
            assert!(samples >= 2);
        }
        let (on, cpu) = switch.spent();
        assert!(on >= 2 * rest && cpu < on, "{on:?} {cpu:?}");
        switch.forget();
        assert!(switch.spent().0.is_zero());
        switch.on().unwrap();
        drop(switch);
    }
}
