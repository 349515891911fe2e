use std::{sync::Arc, time::Instant};

use super::*;
use crate::telemetry::{ProbeError, Selection, Tier};
use llmprof_event::{Clock, EventRx, GpuSample, HostInfo, HostSample, channel, readings::Reading};

/// Two GPUs with scripted answers, sample by sample; the last answer is repeated.
struct Scripted {
    answers: [Vec<Result<(), ProbeError>>; 2],
}

impl GpuProbe for Scripted {
    fn gpus(&self) -> Vec<GpuInfo> {
        [0, 1].map(|index| GpuInfo { index, profiled: index == 0, ..GpuInfo::default() }).into()
    }

    fn sample(&mut self, gpu: u32, selection: Selection, _now: Stamp) -> Result<GpuSample, ProbeError> {
        if selection != Selection::Tier(Tier::Fast) {
            return Ok(GpuSample::new(gpu));
        }
        let answers = &mut self.answers[gpu as usize];
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        answer.map(|()| GpuSample::new(gpu).with(Reading::Temp, 40.0))
    }
}

struct FixedHost;

impl HostProbe for FixedHost {
    fn info(&self) -> HostInfo {
        HostInfo::default()
    }

    fn sample(&mut self, _now: Stamp) -> HostSample {
        HostSample::default()
    }
}

fn every_ms(interval_ms: u32) -> SamplerConfig {
    SamplerConfig { enable: true, interval_ms }
}

/// Samples GPUs every `interval_ms`, in all tiers.
fn gpus_every_ms(interval_ms: u32) -> NvmlConfig {
    NvmlConfig {
        enable: true,
        interval_ms,
        gpm_interval_ms: interval_ms.max(100),
        slow_interval_ms: interval_ms,
    }
}

fn scripted(answers: [Vec<Result<(), ProbeError>>; 2]) -> Sampler {
    Sampler::new(
        Ok(Box::new(Scripted { answers })),
        &gpus_every_ms(100),
        Some(Box::new(FixedHost)),
        &every_ms(250),
    )
}

fn lost(gpu: u32) -> Result<(), ProbeError> {
    Err(ProbeError::Lost { gpu, reason: "fell off the bus".to_owned() })
}

fn unreadable(gpu: u32) -> Result<(), ProbeError> {
    Err(ProbeError::Unreadable { gpu, reason: "timeout".to_owned() })
}

/// One letter per event: g, h samples; G, H found; A absent; L lost; N notice.
fn letters(rx: &mut EventRx) -> String {
    let mut letters = String::new();
    while let Ok(envelope) = rx.try_recv() {
        letters.push(match envelope.event {
            Event::GpuSample(_) => 'g',
            Event::HostSample(_) => 'h',
            Event::GpuFound(_) => 'G',
            Event::HostFound(_) => 'H',
            Event::GpuAbsent(_) => 'A',
            Event::GpuLost(_) => 'L',
            Event::Notice(_) => 'N',
            _ => '?',
        });
    }
    letters
}

/// Advances the sampler to its next due time, `rounds` times.
fn drive(mut sampler: Sampler, rounds: usize) -> (String, Option<Stamp>) {
    let clock = Clock::virtual_clock();
    let (tx, mut rx) = channel(clock.clone());
    let mut next = Some(Stamp::default());
    for _ in 0..rounds {
        let Some(due) = next else { break };
        clock.advance(due.since(clock.now()));
        next = sampler.sample_due(due, &tx);
    }
    (letters(&mut rx), next)
}

#[test]
fn failures_are_reported_once_and_sampling_continues() {
    let ok = || Ok(());
    let cases = [
        ("no failure", [vec![ok()], vec![ok()]], "gggggghgggg"),
        ("one failing", [vec![ok(), unreadable(0)], vec![ok()]], "ggNgghgg"),
        (
            "failing and recovering",
            [vec![unreadable(0), ok(), unreadable(0), ok()], vec![ok()]],
            "Ngggghgggg",
        ),
        ("the other one lost", [vec![ok()], vec![lost(1)]], "gNLgghgg"),
        ("the profiled one lost", [vec![ok(), lost(0)], vec![ok()]], "ggNLgghgg"),
        ("both lost", [vec![lost(0)], vec![lost(1)]], "NLNLhhhhh"),
    ];
    for (what, answers, expected) in cases {
        let (seen, next) = drive(scripted(answers), 6);
        assert_eq!(seen, expected, "{what}");
        assert!(next.is_some(), "{what}: the host is still sampled");
    }
}

#[test]
fn due_times_are_regular_and_missed_ones_are_skipped() {
    let mut due = Due::every_ms(100);
    let ms = |ms: u64| Stamp(ms * 1_000_000);
    for (now, taken, next) in
        [(0, true, 100), (99, false, 100), (100, true, 200), (555, true, 600), (600, true, 700)]
    {
        assert_eq!((due.take(ms(now)), due.next), (taken, ms(next)), "at {now}");
    }
}

#[test]
fn without_anything_to_sample_there_is_no_due_time() {
    let off = Err(Absence::TurnedOff { setting: "telemetry.probe=none" });
    let mut sampler = Sampler::new(off, &gpus_every_ms(100), None, &every_ms(100));
    let (tx, mut rx) = channel(Clock::virtual_clock());
    sampler.announce(&tx);
    assert_eq!(letters(&mut rx), "A");
    assert_eq!(sampler.sample_due(Stamp(0), &tx), None);
}

#[test]
fn a_thread_samples_by_the_wall_clock_and_stops_immediately() {
    /// Runs a sampler until it has sent two samples of both GPUs, and returns the number of samples when it had
    /// stopped.
    fn samples(interval_ms: u32, wanted: usize) -> usize {
        let (tx, mut rx) = channel(Clock::wall());
        let stop = Arc::new(AtomicBool::new(false));
        let worker = std::thread::spawn({
            let (tx, stop) = (tx.clone(), stop.clone());
            let mut sampler = Sampler::new(
                Ok(Box::new(Scripted { answers: [vec![Ok(())], vec![Ok(())]] })),
                &gpus_every_ms(interval_ms),
                None,
                &every_ms(1),
            );
            move || sampler.run(&tx, &stop)
        });
        let received = std::iter::from_fn(|| rx.blocking_recv()).take(2 * wanted).count();
        stop.store(true, Ordering::Release);
        worker.thread().unpark();
        worker.join().unwrap();
        (received + letters(&mut rx).len()) / 2
    }
    let started = Instant::now();
    let sampled = samples(20, 4);
    let at_most = started.elapsed().as_millis() as usize / 20 + 1;
    assert!((4..=at_most).contains(&sampled), "{sampled} of {at_most}");
    // The next sample would be in an hour; stopping does not wait for it.
    assert_eq!(samples(3_600_000, 1), 1);
}
