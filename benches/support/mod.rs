//! A synthetic run of any length and speed, event by event, for benches and tests of consumers of events.

use llmprof::{
    base::noise,
    event::{
        Envelope, Event, GivenPeaks, GpuInfo, GpuSample, HostSample, Level, Notice, ObserverSample, Outcome,
        RequestFinished, RequestStarted, RunFinished, RunStarted, SCHEMA, Stamp, Token, WorkKind,
        readings::Reading,
    },
};

const TOKENS_PER_REQUEST: u64 = 512;
const GPU_EVERY_NS: u64 = 100_000_000;
const HOST_EVERY_NS: u64 = 500_000_000;
const OBSERVER_EVERY_NS: u64 = 1_000_000_000;
const NOTICE_EVERY_NS: u64 = 20_000_000_000;

/// `tokens_per_s` for `secs`, requests one after another, a GPU sample every 100 ms.
#[derive(Debug, Clone, Copy)]
pub struct MadeUpRun {
    pub tokens_per_s: u64,
    pub secs: u64,
}

impl MadeUpRun {
    pub fn tokens(self) -> u64 {
        self.tokens_per_s * self.secs
    }

    /// Passes every event in order, including the run's start and end.
    pub fn for_each(self, mut take: impl FnMut(Envelope)) {
        let mut send = |t: u64, event: Event| take(Envelope { t: Stamp(t), event });
        send(0, Event::RunStarted(Box::new(self.started())));
        send(0, Event::GpuFound(Box::new(gpu())));
        let spacing_ns = 1_000_000_000 / self.tokens_per_s;
        let mut before_ns = 0;
        for nth in 0..self.tokens() {
            let (request, index) = ((nth / TOKENS_PER_REQUEST) as u32, (nth % TOKENS_PER_REQUEST) as u32);
            // Tokens are up to a twentieth late, and one in a thousand is later than that.
            let late = noise::bits(1, nth) % (spacing_ns / 20 + 1);
            let late = if nth % 1000 == 999 { spacing_ns / 2 } else { late };
            let t = nth * spacing_ns + late;
            if index == 0 {
                send(before_ns, Event::RequestStarted(self.request(request)));
            }
            samples(before_ns, t, &mut send);
            let id = noise::bits(2, nth) as u32 % 50_000;
            send(t, Event::Token(Token { request, index, id, device_ns: None, speculation: None }));
            if u64::from(index) == TOKENS_PER_REQUEST - 1 {
                send(t, Event::RequestFinished(RequestFinished { request, complete: true, served: None }));
            }
            before_ns = t;
        }
        send(before_ns, Event::RunFinished(RunFinished { outcome: Outcome::Completed, cause: None }));
    }

    fn started(self) -> RunStarted {
        RunStarted {
            schema: SCHEMA,
            program: "llmprof-tui".into(),
            started_unix_ms: 1_700_000_000_000,
            experiment: "made_up".into(),
            model: "qwen2_5_7b".into(),
            dtype: "bf16".into(),
            kind: WorkKind::Sim,
            device: "cuda:0".into(),
            synthetic_weights: true,
            simulated: true,
            parameters: 7_600_000_000,
            weight_bytes: 15_200_000_000,
            step_weight_bytes: Some(15_200_000_000),
            kv_bytes_per_position: 57_344,
            requests: (self.tokens() / TOKENS_PER_REQUEST) as u32,
            warmup: 1,
            batch: 1,
            prompt_tokens: 2048,
            output_tokens: TOKENS_PER_REQUEST as u32,
            seed: 1,
            overrides: vec!["model=qwen2_5_7b".into()],
            shape: None,
            peaks: GivenPeaks::default(),
            command: None,
            slo: None,
            gpu_hour: None,
            perturbed: None,
        }
    }

    fn request(self, request: u32) -> RequestStarted {
        RequestStarted {
            request,
            warmup: request == 0,
            batch: 1,
            prompt_tokens: 2048,
            output_tokens: TOKENS_PER_REQUEST as u32,
            cooldown: false,
            joined: false,
            images: 0,
        }
    }
}

/// The samples between two tokens.
fn samples(after_ns: u64, until_ns: u64, send: &mut impl FnMut(u64, Event)) {
    for tick in after_ns / GPU_EVERY_NS + 1..=until_ns / GPU_EVERY_NS {
        let t = tick * GPU_EVERY_NS;
        send(t, Event::GpuSample(Box::new(gpu_sample(tick))));
        if t.is_multiple_of(HOST_EVERY_NS) {
            send(t, Event::HostSample(Box::new(host_sample(tick))));
        }
        if t.is_multiple_of(OBSERVER_EVERY_NS) {
            let (consumer_pct, frame_ms) = (Some(1.5), Some(0.8));
            send(t, Event::Observer(ObserverSample { consumer_pct, frame_ms, backlog: 2, lost: 0 }));
        }
        if t.is_multiple_of(NOTICE_EVERY_NS) {
            let text = format!("the clock fell at {} s and came back", t / 1_000_000_000);
            send(t, Event::Notice(Notice { level: Level::Warn, source: "gpu".into(), text }));
        }
    }
}

fn gpu() -> GpuInfo {
    GpuInfo {
        name: "NVIDIA H200".into(),
        source: "sim".into(),
        profiled: true,
        mem_total_bytes: Some(141 << 30),
        power_limit_w: Some(700.0),
        sm_clock_max_mhz: Some(1980),
        mem_clock_max_mhz: Some(3201),
        slowdown_temp_c: Some(92),
        ..GpuInfo::default()
    }
}

/// Values of a GPU under load; the power cap is reached at times.
fn gpu_sample(tick: u64) -> GpuSample {
    let unit = |stream| f64::from(noise::bits(stream, tick) as u32) / f64::from(u32::MAX);
    let capped = tick % 100 < 20;
    let bits = match capped {
        true => 0x4,
        false if tick.is_multiple_of(7) => 0x20,
        false => 0,
    };
    let mut sample = GpuSample::new(0)
        .with(Reading::GpuUtil, 95.0 + 5.0 * unit(3))
        .with(Reading::MemUtil, 70.0 + 10.0 * unit(4))
        .with(Reading::SmClock, if capped { 1440.0 } else { 1980.0 })
        .with(Reading::MemClock, 3201.0)
        .with(Reading::Power, if capped { 700.0 } else { 560.0 + 80.0 * unit(5) })
        .with(Reading::Temp, (45 + tick % 20) as f64)
        .with(Reading::MemUsed, ((16 << 30) + (tick % 64) * (1 << 20)) as f64)
        .with(Reading::MemTotal, (141u64 << 30) as f64)
        .with(Reading::PowerCapNs, (tick / 100 * 20 + (tick % 100).min(20)) as f64 * 1e8)
        .with_reasons(bits);
    sample.read_us = Some(180);
    sample
}

fn host_sample(tick: u64) -> HostSample {
    let core = |n| noise::bits(n, tick) as u32 as f32 / u32::MAX as f32 * 100.0;
    HostSample {
        core_pct: (10..26).map(core).collect(),
        freq_mhz: Some(3200.0 + core(9)),
        mem_used_bytes: Some(24 << 30),
        process_pct: Some(110.0 + core(8) / 10.0),
        process_rss_bytes: Some(2 << 30),
        package_power_w: Some(90.0 + core(7) / 10.0),
    }
}
