//! Planted faults: a server whose steps, and their faults, have known times. The owner that grew most must be the planted
//! one, with its cost.

use llmprof_analysis::account::{Account, Group, Owner};

use super::*;

const STEP_US: u64 = 5_000;
const STREAMS: u32 = 8;
const SECONDS: u64 = 12;
const PROMPT_US: u64 = 20_000;

/// What happens in addition to the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// A prompt every second that stops all streams for 60 ms.
    Prefills,
    /// One stream stops for 400 ms every second, and the server counts a preemption.
    Preemptions,
    /// The cache is full in every fourth second, in which every tenth step takes four times as long.
    FullCache,
    /// The client is 30 ms late with all chunks of every fiftieth step.
    SlowClient,
    /// A stream stops for 300 ms every second, and nothing tells why.
    Stall,
    /// All requests wait 100 ms in the server's queue.
    Queue,
}

struct Run {
    events: Vec<Envelope>,
    us: u64,
}

impl Run {
    fn push(&mut self, event: Event) {
        self.push_at(self.us, event);
    }

    fn push_at(&mut self, us: u64, event: Event) {
        self.events.push(Envelope { t: Stamp(us * 1000), event });
    }

    fn start(&mut self, request: u32) {
        self.push(Event::RequestStarted(RequestStarted {
            request,
            warmup: false,
            batch: 1,
            prompt_tokens: 100,
            output_tokens: 100_000,
            cooldown: false,
            joined: false,
            images: 0,
        }));
    }

    fn token(&mut self, us: u64, request: u32, index: u32) {
        self.push_at(us, token(0, request, index).event);
    }

    fn end(&mut self, request: u32, tokens: u32, queue_ms: Option<f64>) {
        let served = Served {
            late_ns: 0,
            connecting: None,
            send_ns: 0,
            head_ns: None,
            chunks: tokens,
            together: 0,
            prompt_tokens: Some(100),
            output_tokens: Some(tokens),
            tokenized: false,
            cached_tokens: None,
            server: ServerTimes { queue_ms, ..ServerTimes::default() },
            reconnected: false,
            failure: None,
        };
        let served = Some(Box::new(served));
        self.push(Event::RequestFinished(RequestFinished { request, complete: true, served }));
    }
}

/// The state of a server with `fault`; and what the fault costs per token, in nanoseconds.
fn served(fault: Fault) -> (RunState, f64) {
    let info = RunStarted { kind: WorkKind::Server, simulated: false, batch: 1, ..run_started() };
    let mut run = Run { events: vec![envelope(0, Event::RunStarted(Box::new(info)))], us: 1_000 };
    let mut indices = vec![0u32; STREAMS as usize];
    let mut last_us = vec![0u64; STREAMS as usize];
    let mut resumes_us = vec![0u64; STREAMS as usize];
    let (mut planted_us, mut tokens) = (0u64, 0u64);
    let queue_us = if fault == Fault::Queue { 100_000 } else { 0 };
    for request in 0..STREAMS {
        run.start(request);
    }
    run.us += queue_us + PROMPT_US;
    for request in 0..STREAMS {
        run.token(run.us, request, 0);
        (indices[request as usize], last_us[request as usize]) = (1, run.us);
    }
    let (mut second, mut extra) = (0, STREAMS);
    for step in 0u64.. {
        if run.us > SECONDS * 1_000_000 {
            break;
        }
        let is_new_second = run.us / 1_000_000 > second;
        second = run.us / 1_000_000;
        let mut step_us = STEP_US;
        let mut lag_us = 0;
        // The first seconds show what is usual.
        let acts = second >= 2;
        if is_new_second {
            let preemptions = (fault == Fault::Preemptions && acts).then_some(1.0);
            // Full in the second that ends here.
            let kv_used = Some(if fault == Fault::FullCache && acts && second % 4 == 1 { 1.0 } else { 0.5 });
            let sample = ServerSample { preemptions, kv_used, ..ServerSample::default() };
            run.push(Event::ServerSample(Box::new(sample)));
            let late = fault == Fault::SlowClient && second > 2;
            let lag = if late { 30_000 } else { 0 };
            let lags = ClientSample { streams: STREAMS, lag_p50_us: 0, lag_p99_us: lag, lag_max_us: lag };
            run.push(Event::ClientSample(lags));
        }
        match fault {
            Fault::Prefills if acts && is_new_second => {
                run.start(extra);
                step_us += 60_000;
            }
            Fault::FullCache if acts && second % 4 == 0 && step % 10 == 0 => step_us *= 4,
            Fault::SlowClient if acts && step % 50 == 25 => lag_us = 30_000,
            Fault::Preemptions | Fault::Stall if acts && is_new_second => {
                let stop_us = if fault == Fault::Stall { 300_000 } else { 400_000 };
                resumes_us[(second % u64::from(STREAMS)) as usize] = run.us + stop_us;
            }
            _ => {}
        }
        run.us += step_us;
        for request in 0..STREAMS {
            let i = request as usize;
            if resumes_us[i] > run.us {
                continue;
            }
            let at_us = (run.us + lag_us).max(last_us[i] + 1);
            run.token(at_us, request, indices[i]);
            let gap_us = at_us - last_us[i];
            // A late chunk is followed by one that is early: its time is not lost twice.
            planted_us += gap_us.saturating_sub(STEP_US);
            (indices[i], last_us[i]) = (indices[i] + 1, at_us);
            tokens += 1;
        }
        if step_us > 60_000 {
            run.token(run.us, extra, 0);
            run.end(extra, 1, None);
            extra += 1;
        }
    }
    for request in 0..STREAMS {
        run.end(request, indices[request as usize], Some(queue_us as f64 / 1e3));
    }
    run.push(Event::RunFinished(RunFinished { outcome: Outcome::Completed, cause: None }));
    run.events.sort_by_key(|event| event.t);
    (fold(&run.events), planted_us as f64 * 1e3 / tokens as f64)
}

fn sum(account: &Account) -> f64 {
    account.entries.iter().map(|entry| entry.ns).sum()
}

/// The owner that grew most from `before` to `after`, with its growth.
fn grown(before: &Account, after: &Account) -> (Owner, f64) {
    let growth = after.entries.iter().map(|entry| (entry.owner, entry.ns - before.ns(entry.owner)));
    growth.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap()
}

#[test]
fn a_planted_fault_of_decode_has_its_owner_and_its_cost() {
    let (healthy, _) = served(Fault::None);
    let before = healthy.accounts().decode.unwrap();
    assert!((sum(&before) - before.total_ns).abs() < 1e-3 * before.total_ns);
    for (fault, owner) in [
        (Fault::Prefills, Owner::OtherPrefills),
        (Fault::Preemptions, Owner::Preemption),
        (Fault::FullCache, Owner::KvPressure),
        (Fault::SlowClient, Owner::Client),
        (Fault::Stall, Owner::Unexplained),
    ] {
        let (state, planted_ns) = served(fault);
        let after = state.accounts().decode.unwrap();
        assert!((sum(&after) - after.total_ns).abs() < 1e-3 * after.total_ns, "{fault:?}");
        let (found, ns) = grown(&before, &after);
        assert_eq!(found, owner, "{fault:?}: {:#?}", after.entries);
        let error = (ns / planted_ns - 1.0).abs();
        assert!(error < 0.15, "{fault:?}: {ns:.0} of {planted_ns:.0} ns");
    }
}

#[test]
fn a_healthy_server_is_not_accused() {
    let (state, _) = served(Fault::None);
    let account = state.accounts().decode.unwrap();
    assert_eq!(account.ns(Owner::Unexplained), account.total_ns, "{:#?}", account.entries);
    assert_eq!(state.limit(), None, "nothing is known that limits it");
}

#[test]
fn a_queue_is_the_owner_of_ttft() {
    let [before, after] = [Fault::None, Fault::Queue].map(|fault| served(fault).0.accounts().ttft.unwrap());
    let (owner, ns) = grown(&before, &after);
    assert_eq!(owner, Owner::Queue);
    assert!((ns / 100e6 - 1.0).abs() < 0.01, "{ns}");
}

#[test]
fn throughput_counts_the_time_without_requests() {
    let mut run = Run { events: Vec::new(), us: 0 };
    let info = RunStarted { kind: WorkKind::Server, simulated: false, batch: 1, ..run_started() };
    run.push(Event::RunStarted(Box::new(info)));
    for request in 0..10 {
        run.us = u64::from(request) * 1_000_000;
        run.start(request);
        for index in 0..60 {
            run.us += 10_000;
            run.token(run.us, request, index);
        }
        run.end(request, 60, None);
    }
    let state = fold(&run.events);
    let account = state.accounts().throughput.unwrap();
    assert!((sum(&account) - account.total_ns).abs() < 1e-3 * account.total_ns);
    // 400 ms of each second but the last.
    let expected = 9.0 * 0.4 / 9.6;
    let share = account.share(account.ns(Owner::NoRequests));
    assert!((share - expected).abs() < 0.01, "{share}, not {expected}");
    assert!((account.total_ns - 9.6e9 / 600.0).abs() < 1e3, "{}", account.total_ns);
}

#[test]
fn a_batch_is_billed_with_all_of_its_sequences() {
    let info = GpuInfo { profiled: true, ..GpuInfo::default() };
    let sample = |ms| {
        let sample = GpuSample::new(0).with(llmprof_event::readings::Reading::Power, 500.0);
        envelope(ms, Event::GpuSample(Box::new(sample)))
    };
    let state = fold(&[
        envelope(0, Event::RunStarted(Box::new(run_started()))),
        envelope(0, Event::GpuFound(Box::new(info))),
        sample(0),
        request(0, 0, false),
        token(20, 0, 0),
        token(60, 0, 1),
        token(100, 0, 2),
        finished(100, 0),
        sample(100),
        sample(200),
    ]);
    let billed = *state.bill.requests().next().unwrap();
    assert_eq!((billed.prompt_tokens, billed.output_tokens), (20, 6), "two sequences");
    assert!((billed.total().gpu_ms - 100.0).abs() < 1e-6 && (billed.total().joules - 50.0).abs() < 1e-6);
    assert!((state.bill.summary().unwrap().idle.gpu_ms - 100.0).abs() < 1e-6);
}

#[test]
fn a_cold_start_is_divided_by_stages() {
    let line = |ms, text: &str| {
        let notice = Notice { level: Level::Info, source: "stdout".to_owned(), text: text.to_owned() };
        envelope(ms, Event::Notice(notice))
    };
    let info = RunStarted { kind: WorkKind::Server, simulated: false, ..run_started() };
    let preparing = Preparing { step: "server".to_owned(), done: 0, total: 0 };
    let state = fold(&[
        envelope(0, Event::RunStarted(Box::new(info))),
        envelope(0, Event::Preparing(preparing)),
        line(17_000, "INFO Initializing a V1 LLM engine (v0.24.0) with config"),
        line(20_000, "INFO Starting to load model m7..."),
        line(50_000, "INFO Application startup complete."),
    ]);
    let account = state.accounts().cold_start.unwrap();
    assert!((account.total_ns - 50e9).abs() < 1e6);
    assert_eq!(account.group_ns(Group::Unexplained), 0.0);
}
