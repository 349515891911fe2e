//! The simulated engine and the simulated GPU together, connected as in a session.

use llmprof::{
    config::{NvmlConfig, SamplerConfig, SimConfig},
    event::{Activity, Clock, Envelope, Event, GpuSample, Phase, Stamp, Token, channel, readings::Reading},
    sim::{
        SimEngine,
        scenario::Scenario,
        telemetry::{SimHost, SimProbe},
    },
    telemetry::Sampler,
    workload::{Engine, Prompts},
};

/// Runs requests of 4,096 prompt and 100 output tokens for `secs`; returns all events, each with its phase.
fn record(scenario: &str, seed: u64, secs: f64) -> Vec<(Phase, Envelope)> {
    let clock = Clock::virtual_clock();
    let (tx, mut rx) = channel(clock.clone());
    let activity = Activity::default();
    let script = Scenario::named(scenario).unwrap().with_seed(seed);
    let mut sampler = Sampler::new(
        Ok(Box::new(SimProbe::new(script, activity.clone(), seed, 15_200_000_000))),
        &NvmlConfig { enable: true, interval_ms: 20, gpm_interval_ms: 200, slow_interval_ms: 1000 },
        Some(Box::new(SimHost::new(activity.clone(), seed, 15_200_000_000))),
        &SamplerConfig { enable: true, interval_ms: 500 },
    );
    sampler.announce(&tx);
    let config = SimConfig {
        prefill_tok_s: Some(40_000.0),
        itl_ms: Some(4.0),
        jitter: 0.02,
        speed: 0.0,
        scenario: scenario.to_owned(),
    };
    let ticking = tx.clone();
    let mut engine = SimEngine::new(&config, seed, 50_000, clock.clone(), Default::default())
        .unwrap()
        .with_tick(Box::new(move |now| sampler.sample_due(now, &ticking)));
    let prompts = Prompts { ids: vec![7; 4096], batch: 1 };
    let mut recorded = Vec::new();
    let mut request = 0;
    while clock.now().secs() < secs {
        activity.set(Phase::Prefill);
        let mut ids = engine.prefill(&prompts).unwrap();
        for index in 0..100 {
            tx.send(Event::Token(Token { request, index, id: ids[0], device_ns: None, speculation: None }));
            while let Ok(envelope) = rx.try_recv() {
                recorded.push((activity.get(), envelope));
            }
            activity.set(Phase::Decode);
            ids = engine.decode().unwrap();
        }
        while let Ok(envelope) = rx.try_recv() {
            recorded.push((activity.get(), envelope));
        }
        engine.reset().unwrap();
        request += 1;
    }
    recorded
}

fn gpu_samples(recorded: &[(Phase, Envelope)], phase: Phase) -> Vec<GpuSample> {
    let in_phase = recorded.iter().filter(|(of, _)| *of == phase);
    in_phase
        .filter_map(|(_, envelope)| match &envelope.event {
            Event::GpuSample(sample) => Some(**sample),
            _ => None,
        })
        .collect()
}

#[test]
fn equal_seeds_give_equal_recordings() {
    assert_eq!(record("mixed", 1, 20.0), record("mixed", 1, 20.0));
    assert_ne!(record("mixed", 1, 20.0), record("mixed", 2, 20.0));
}

#[test]
fn samples_are_on_their_grid_and_stamps_are_monotonic() {
    let recorded = record("mixed", 1, 10.0);
    assert!(recorded.windows(2).all(|pair| pair[0].1.t <= pair[1].1.t));
    let samples = recorded.iter().filter(|(_, envelope)| matches!(envelope.event, Event::GpuSample(_)));
    for (i, (_, envelope)) in samples.enumerate() {
        assert_eq!(envelope.t, Stamp(i as u64 * 20_000_000));
    }
}

#[test]
fn the_gpu_reports_what_slows_the_engine() {
    let recorded = record("power_cap", 1, 10.0);
    let prefill = gpu_samples(&recorded, Phase::Prefill);
    assert!(prefill.len() > 100);
    assert!(
        prefill
            .iter()
            .all(|sample| sample.reasons == Some(0x4) && sample.get(Reading::SmClock) < Some(1500.0))
    );
    let decode = gpu_samples(&recorded, Phase::Decode);
    assert!(
        decode.iter().all(|sample| sample.reasons == Some(0) && sample.get(Reading::SmClock) == Some(1980.0))
    );
}
