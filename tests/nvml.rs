//! The NVML probe against a stand-in library, through the real wrapper.
#![cfg(target_os = "linux")]

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use llmprof::{
    config::{self, NvmlConfig},
    event::{Clock, Event, GpuAbsent, GpuSource, Level, Query, Refusal, Stamp, channel, readings::Reading},
    telemetry::{GpuProbe, ProbeError, Sampler, Selection, Tier, absent::Absence, nvml::NvmlProbe},
};

const FAST: Selection = Selection::Tier(Tier::Fast);

/// Builds the stand-in with `defines`.
fn library(folder: &tempfile::TempDir, defines: &[&str]) -> PathBuf {
    let path = folder.path().join("libnvidia-ml.so.1");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&path)
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvml/fake_nvml.c"))
        .status();
    assert!(built.expect("a C compiler").success());
    path
}

#[test]
fn refused_readings_are_absent_with_their_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = library(&folder, &[]);
    let mut probe = NvmlProbe::open_library(path.as_os_str()).unwrap();
    let gpus = probe.gpus();
    assert_eq!(gpus.len(), 1);
    let info = &gpus[0];
    assert_eq!((info.name.as_str(), info.uuid.as_str()), ("NVIDIA Odd 9000", "GPU-odd0"));
    assert_eq!((info.driver.as_str(), &info.source, info.profiled), ("570.00.01", &GpuSource::Nvml, false));
    assert_eq!((info.sm_clock_max_mhz, info.mem_clock_max_mhz), (Some(2000), Some(9500)));
    assert_eq!((info.power_limit_w, info.mem_total_bytes, info.slowdown_temp_c), (None, None, None));

    let refusal = |reading: Reading| {
        let refused = info.refused.iter().find(|refused| refused.reading == Query::Reading(reading));
        refused.unwrap_or_else(|| panic!("{reading:?} in {:?}", info.refused))
    };
    assert_eq!(refusal(Reading::PowerLimit).reason, Refusal::PermissionDenied);
    assert_eq!(refusal(Reading::GpuUtil).reason, Refusal::Unsupported);
    for reading in [Reading::MemUsed, Reading::Power, Reading::Tensor] {
        assert_eq!(refusal(reading).reason, Refusal::OldDriver);
    }
    assert_eq!(refusal(Reading::MemUsed).remedy.as_deref(), Some("update the driver"));
    let refused = info.refused.len();

    for _ in 0..3 {
        let sample = probe.sample(0, FAST, Stamp(0)).unwrap();
        let readings = [Reading::SmClock, Reading::MemClock, Reading::Power, Reading::PowerAverage];
        assert_eq!(readings.map(|reading| sample.get(reading)), [1500.0, 9000.0, 123.456, 123.456].map(Some));
        assert_eq!(sample.reasons, Some(0x404), "an unknown bit is kept");
        let absent = [Reading::GpuUtil, Reading::Temp, Reading::MemUsed, Reading::PowerCapNs];
        assert_eq!(absent.map(|reading| sample.get(reading)), [None; 4]);
        assert!(sample.read_us.is_some());
    }
    assert_eq!(probe.gpus()[0].refused.len(), refused, "each is queried once");
    assert!(matches!(probe.sample(7, FAST, Stamp(0)), Err(ProbeError::Lost { gpu: 7, .. })));
}

#[test]
fn a_gpu_that_reports_everything_is_sampled_in_tiers() {
    let folder = tempfile::tempdir().unwrap();
    let path = library(&folder, &["HOPPER", "COUNT=2"]);
    let mut probe = NvmlProbe::open_library(path.as_os_str()).unwrap();
    assert_eq!(
        probe.gpus().iter().map(|gpu| gpu.uuid.as_str()).collect::<Vec<_>>(),
        ["GPU-odd0", "GPU-odd1"]
    );
    let fast = probe.sample(1, FAST, Stamp(0)).unwrap();
    assert_eq!((fast.get(Reading::Power), fast.get(Reading::PowerAverage)), (Some(612.5), Some(123.456)));
    assert_eq!((fast.get(Reading::PowerCapNs), fast.get(Reading::MemTemp)), (Some(7e9), None));
    assert_eq!(fast.get(Reading::Energy), None, "that one is expensive");

    let gpm = Selection::Tier(Tier::Gpm);
    loop {
        std::thread::sleep(Duration::from_millis(110));
        let activity = probe.sample(1, gpm, Stamp(0)).unwrap();
        assert_eq!((activity.get(Reading::SmActive), activity.get(Reading::Dram)), (Some(2.0), Some(10.0)));
        assert_eq!(activity.get(Reading::Tensor), None, "refused by itself");
        let since = Instant::now();
        let again = probe.sample(1, gpm, Stamp(0)).unwrap();
        // This thread may have been interrupted for longer than the 100 ms between two samples.
        if since.elapsed() < Duration::from_millis(50) {
            assert!(again.is_empty(), "too early for another sample");
            break;
        }
    }

    let mut round: Vec<Reading> = Vec::new();
    for call in 0..probe.slow_calls(1) {
        let sample = probe.sample(1, Selection::SlowCall(call), Stamp(0)).unwrap();
        round.extend(sample.readings().map(|(reading, _)| reading));
    }
    for reading in [Reading::Energy, Reading::ThermalNs, Reading::BoardLimitNs, Reading::PowerLimit] {
        assert!(round.contains(&reading), "{reading:?} in {round:?}");
    }
    let refused = |reading: Reading| {
        probe.gpus()[1].refused.iter().any(|refused| refused.reading == Query::Reading(reading))
    };
    assert!(refused(Reading::MemTemp) && refused(Reading::Tensor) && refused(Reading::SwThermalNs));
    assert!(!refused(Reading::Dram) && !refused(Reading::Power));
    assert!(probe.costs(1).iter().any(|cost| cost.call == "energy" && cost.tier == "slow" && cost.n == 1));
}

/// Runs a sampler on the stand-in for `ms` of a clock that advances with each sample, and returns its events.
fn sampled(path: &std::path::Path, ms: u64) -> Vec<Event> {
    let probe = NvmlProbe::open_library(path.as_os_str()).unwrap();
    let intervals = NvmlConfig { enable: true, interval_ms: 50, gpm_interval_ms: 200, slow_interval_ms: 500 };
    let host = llmprof::config::SamplerConfig { enable: false, interval_ms: 1000 };
    let mut sampler = Sampler::new(Ok(Box::new(probe)), &intervals, None, &host);
    let (tx, mut rx) = channel(Clock::virtual_clock());
    let mut next = Some(Stamp(0));
    while let Some(now) = next.filter(|now| now.0 <= ms * 1_000_000) {
        next = sampler.sample_due(now, &tx);
    }
    std::iter::from_fn(|| rx.try_recv().ok()).map(|envelope| envelope.event).collect()
}

fn count(events: &[Event], reading: Reading) -> usize {
    let read = |event: &&Event| matches!(event, Event::GpuSample(sample) if sample.get(reading).is_some());
    events.iter().filter(read).count()
}

#[test]
fn expensive_calls_are_made_between_the_cheap_ones() {
    let folder = tempfile::tempdir().unwrap();
    // Within the limit of the slow tier, and most of a fast interval.
    let path = library(&folder, &["HOPPER", "SLOW_ENERGY_US=25000"]);
    let events = sampled(&path, 2100);
    let (fast, energy) = (count(&events, Reading::SmClock), count(&events, Reading::Energy));
    assert!(energy >= 3, "{energy}");
    assert!(fast >= 42, "{fast} samples: the slow calls lose none");
}

#[test]
fn a_slow_call_moves_to_a_slower_tier_with_a_notice() {
    let folder = tempfile::tempdir().unwrap();
    let path = library(&folder, &["HOPPER", "SLOW_UTIL_US=8000"]);
    let events = sampled(&path, 1500);
    let notices: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            Event::Notice(notice) if notice.level == Level::Warn => Some(notice.text.as_str()),
            _ => None,
        })
        .collect();
    assert!(notices.iter().any(|text| text.starts_with("reading utilisation takes ")), "{notices:?}");
    let (fast, moved) = (count(&events, Reading::SmClock), count(&events, Reading::GpuUtil));
    assert!(moved >= 6 && moved < fast, "{moved} of {fast}");
}

#[test]
fn other_processes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = library(&folder, &["HOPPER", "STRANGER=1"]);
    let mut probe = NvmlProbe::open_library(path.as_os_str()).unwrap();
    let others = probe.other_processes(0).unwrap();
    assert_eq!((others.len(), others[0].pid, others[0].mem_bytes), (1, 1, Some(9 << 30)));
    assert!(others[0].name.is_some(), "process 1 has a name here");
    assert_eq!((others[0].user.as_deref(), others[0].sm_pct, others[0].own), (Some("root"), Some(42), false));
    let sent =
        sampled(&path, 700).into_iter().filter(|event| matches!(event, Event::GpuProcesses(_))).count();
    assert_eq!(sent, 1, "sent when they change");
}

#[test]
fn a_use_that_is_not_reported_has_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = library(&folder, &["HOPPER", "STRANGER=2"]);
    let mut probe = NvmlProbe::open_library(path.as_os_str()).unwrap();
    assert_eq!(probe.processes(0).unwrap()[0].sm_pct, None);
    let refused = probe.gpus()[0].refusal(Query::ProcessUtilisation).cloned();
    assert_eq!(refused.map(|refused| refused.reason), Some(Refusal::Unsupported));
}

/// A container with one slice of a GPU: NVML answers for the whole GPU and refuses some queries.
#[test]
fn a_run_on_a_mig_slice_reports_what_its_readings_cover() {
    let folder = tempfile::tempdir().unwrap();
    let defines = ["HOPPER", "FULL", "SLICE", "NAME=\"NVIDIA H100 80GB HBM3\""];
    let path = library(&folder, &defines);
    let probe = NvmlProbe::open_library(path.as_os_str()).unwrap();
    let info = probe.gpus().remove(0);
    assert_eq!((info.mig, info.mem_total_bytes), (Some(true), None));
    let refused = |query: Query| info.refusal(query).map(|refused| refused.reason.clone());
    assert_eq!(refused(Query::Reading(Reading::GpuUtil)), Some(Refusal::Mig));
    assert_eq!(refused(Query::Reading(Reading::MemUsed)), Some(Refusal::MigPermission));
    let memory = info.refusal(Query::Reading(Reading::MemUsed)).unwrap();
    assert_eq!(
        memory.reason.to_string(),
        "permission denied: only a part of this GPU (MIG) can be used here"
    );
    assert_eq!(memory.remedy.as_deref(), Some("read it on the host, or turn MIG mode off"));

    let tree = config::find_tree(None, folder.path()).unwrap();
    let config = config::compose(&tree, &["runtime.device=cuda:0".to_owned()]).unwrap().config;
    // CUDA's id is that of the slice, which NVML does not list.
    let sampler = Sampler::for_run(&config, Ok(Box::new(probe)), None, Some("GPU-5115-e0f1"));
    let (tx, mut rx) = channel(Clock::wall());
    sampler.announce(&tx);
    let events: Vec<Event> =
        std::iter::from_fn(|| rx.try_recv().ok()).map(|envelope| envelope.event).collect();
    let profiled = |event: &Event| matches!(event, Event::GpuFound(gpu) if gpu.profiled);
    assert!(events.iter().any(profiled), "{events:?}");
    let said = |text: &str| {
        events.iter().any(|event| matches!(event, Event::Notice(notice) if notice.text.contains(text)))
    };
    assert!(
        said("GPU 0 (NVIDIA H100 80GB HBM3) is in MIG mode, and the model runs on a slice of it"),
        "{events:?}"
    );
    assert!(
        said("MFU and MBU need the peaks of the slice (llmprof-tui doctor --peaks measures them)"),
        "{events:?}"
    );
}

#[test]
fn a_fan_is_read_if_there_is_one() {
    let health = |defines: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut probe = NvmlProbe::open_library(library(&folder, defines).as_os_str()).unwrap();
        let sample = probe.sample(0, Selection::Tier(Tier::Slow), Stamp(0)).unwrap();
        [Reading::Fan, Reading::FanRpm].map(|reading| sample.get(reading))
    };
    assert_eq!(health(&["HOPPER"]), [None; 2]);
    assert_eq!(health(&["HOPPER", "FAN=40"]), [Some(40.0), Some(1200.0)]);
}

#[test]
fn a_gpu_that_falls_off_the_bus_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    // Opening and every sample query two clocks.
    let path = library(&folder, &["LOSE_AFTER=6"]);
    let mut probe = NvmlProbe::open_library(path.as_os_str()).unwrap();
    assert!(!probe.gpus()[0].profiled);
    assert!(probe.sample(0, FAST, Stamp(0)).is_ok());
    assert!(probe.sample(0, FAST, Stamp(1)).is_ok());
    for _ in 0..2 {
        assert!(matches!(probe.sample(0, FAST, Stamp(2)), Err(ProbeError::Lost { gpu: 0, .. })));
    }
}

#[test]
fn each_kind_of_absence_has_its_reason_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    // NVML's return codes: driver not loaded, version mismatch, no permission, unknown.
    let cases = [
        ("INIT=9", "driver is not loaded", "modprobe"),
        ("INIT=18", "different versions", "reboot"),
        ("INIT=4", "permission denied", "/dev/nvidia"),
        ("COUNT=0", "lists no GPU", "lspci"),
        ("INIT=999", "NVML does not start", "nvidia-smi"),
    ];
    for (define, reason, remedy) in cases {
        // A loaded library stays loaded: each has its own path.
        let folder = tempfile::tempdir().unwrap();
        let path = library(&folder, &[define]);
        let absence = NvmlProbe::open_library(path.as_os_str()).err().expect("there is no GPU");
        let absent = GpuAbsent::from(&absence);
        assert!(absent.reason.contains(reason) && absent.remedy.contains(remedy), "{define}: {absent:?}");
    }
    let nowhere = folder.path().join("nothing.so");
    let absence = NvmlProbe::open_library(nowhere.as_os_str()).err().unwrap();
    assert!(matches!(absence, Absence::LibraryMissing { .. }), "{absence:?}");
    assert!(absence.to_string().contains("nothing.so"), "{absence}");
    assert!(absence.remedy().contains("driver"), "{absence:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_real_gpu_is_sampled() {
    let mut probe = NvmlProbe::open().unwrap();
    let info = probe.gpus().remove(0);
    println!("{info:#?}");
    assert!(!info.name.is_empty() && info.uuid.starts_with("GPU-"));
    let mut sample = llmprof::event::GpuSample::new(0);
    for i in 0..20 {
        sample.merge(&probe.sample(0, FAST, Stamp(i)).unwrap());
        for call in 0..probe.slow_calls(0) {
            sample.merge(&probe.sample(0, Selection::SlowCall(call), Stamp(i)).unwrap());
        }
        std::thread::sleep(std::time::Duration::from_millis(110));
        sample.merge(&probe.sample(0, Selection::Tier(Tier::Gpm), Stamp(i)).unwrap());
    }
    for (reading, value) in sample.readings() {
        println!("{:<36} {value} {}", reading.label(), reading.about().unit);
    }
    for cost in probe.costs(0) {
        println!(
            "{:<24} {:<5} n={:<4} p50 {:?} p99 {:?} µs",
            cost.call, cost.tier, cost.n, cost.p50_us, cost.p99_us
        );
    }
    let within = |reading, range: std::ops::Range<f64>| {
        sample.get(reading).is_some_and(|value| range.contains(&value))
    };
    assert!(within(Reading::Power, 5.0..1500.0) && within(Reading::Temp, 10.0..110.0));
    assert!(sample.get(Reading::SmClock) <= info.sm_clock_max_mhz.map(f64::from));
    assert!(sample.get(Reading::MemUsed) < sample.get(Reading::MemTotal));
    assert!(sample.reasons.is_some());
}
