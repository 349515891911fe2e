//! The NVML probe against a stand-in library, through the real wrapper.
#![cfg(target_os = "linux")]

use std::{path::PathBuf, process::Command};

use llmprof::{
    event::{GpuAbsent, Stamp},
    telemetry::{GpuProbe, ProbeError, absent::Absence, nvml::NvmlProbe},
};

/// Builds the stand-in with `defines`; `None` where there is no C compiler.
fn library(folder: &tempfile::TempDir, defines: &[&str]) -> Option<PathBuf> {
    let path = folder.path().join("libnvidia-ml.so.1");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&path)
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvml/fake_nvml.c"))
        .status();
    match built {
        Ok(status) if status.success() => Some(path),
        _ => {
            eprintln!("skipped: no C compiler");
            None
        }
    }
}

#[test]
fn what_a_card_refuses_is_left_out_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = library(&folder, &[]) else { return };
    let mut probe = NvmlProbe::open_library(path.as_os_str(), Some(0)).unwrap();
    let gpus = probe.gpus();
    assert_eq!(gpus.len(), 1);
    let info = &gpus[0];
    assert_eq!((info.name.as_str(), info.uuid.as_str()), ("NVIDIA Odd 9000", "GPU-odd"));
    assert_eq!((info.driver.as_str(), info.source.as_str(), info.profiled), ("570.00.01", "nvml", true));
    assert_eq!((info.sm_clock_max_mhz, info.mem_clock_max_mhz), (Some(2000), Some(9500)));
    assert_eq!((info.power_limit_w, info.mem_total_bytes, info.slowdown_temp_c), (None, None, None));

    let reason = |reading: &str| {
        let refused = info.refused.iter().find(|refused| refused.reading == reading);
        refused.unwrap_or_else(|| panic!("{reading} in {:?}", info.refused)).reason.clone()
    };
    assert!(reason("power limit").contains("permission"));
    assert!(reason("utilisation").contains("not available"));
    assert!(reason("memory").contains("symbol"));
    assert!(reason("instant power").contains("symbol"));
    assert_eq!(info.refused.len(), 6, "{:?}", info.refused);

    for _ in 0..3 {
        let sample = probe.sample(0, Stamp(0)).unwrap();
        assert_eq!((sample.sm_clock_mhz, sample.mem_clock_mhz), (Some(1500), Some(9000)));
        assert_eq!(sample.power_w, Some(123.456), "the mean stands in for the instant power");
        assert_eq!(sample.reasons, Some(0x404), "a bit that nobody knows yet is kept");
        assert_eq!((sample.gpu_util_pct, sample.temp_c, sample.mem_used_bytes), (None, None, None));
        assert!(sample.read_us.is_some());
    }
    assert_eq!(probe.gpus()[0].refused.len(), 6, "each is asked once");
    assert!(matches!(probe.sample(7, Stamp(0)), Err(ProbeError::Lost { gpu: 7, .. })));
}

#[test]
fn a_card_that_falls_off_the_bus_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    // Opening and every sample ask for two clocks.
    let Some(path) = library(&folder, &["LOSE_AFTER=6"]) else { return };
    let mut probe = NvmlProbe::open_library(path.as_os_str(), None).unwrap();
    assert!(!probe.gpus()[0].profiled);
    assert!(probe.sample(0, Stamp(0)).is_ok());
    assert!(probe.sample(0, Stamp(1)).is_ok());
    for _ in 0..2 {
        assert!(matches!(probe.sample(0, Stamp(2)), Err(ProbeError::Lost { gpu: 0, .. })));
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
        ("COUNT=0", "shows no GPU", "lspci"),
        ("INIT=999", "NVML does not start", "nvidia-smi"),
    ];
    for (define, reason, remedy) in cases {
        let Some(path) = library(&folder, &[define]) else { return };
        let absence = NvmlProbe::open_library(path.as_os_str(), Some(0)).err().expect("there is no GPU");
        let told = GpuAbsent::from(&absence);
        assert!(told.reason.contains(reason) && told.remedy.contains(remedy), "{define}: {told:?}");
        std::fs::remove_file(path).unwrap();
    }
    let nowhere = folder.path().join("nothing.so");
    let absence = NvmlProbe::open_library(nowhere.as_os_str(), Some(0)).err().unwrap();
    assert!(matches!(absence, Absence::LibraryMissing { .. }), "{absence:?}");
    assert!(absence.to_string().contains("nothing.so"), "{absence}");
    assert!(absence.remedy().contains("driver"), "{absence:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_real_card_is_read() {
    let mut probe = NvmlProbe::open(Some(0)).unwrap();
    let info = probe.gpus().remove(0);
    println!("{info:#?}");
    assert!(info.profiled && !info.name.is_empty() && info.uuid.starts_with("GPU-"));
    let samples: Vec<_> = (0..20).map(|i| probe.sample(0, Stamp(i)).unwrap()).collect();
    println!("{:#?}", samples[19]);
    let sample = samples[19];
    assert!(sample.power_w.is_some_and(|watts| (5.0..1500.0).contains(&watts)));
    assert!(sample.temp_c.is_some_and(|celsius| (10.0..110.0).contains(&celsius)));
    assert!(sample.sm_clock_mhz <= info.sm_clock_max_mhz && sample.sm_clock_mhz.is_some());
    assert!(sample.mem_used_bytes.zip(sample.mem_total_bytes).is_some_and(|(used, total)| used < total));
    assert!(sample.reasons.is_some());
    let mut costs_us: Vec<u32> = samples.iter().filter_map(|sample| sample.read_us).collect();
    costs_us.sort_unstable();
    assert!(costs_us[10] < 1000, "the cheap readings alone: {costs_us:?}");
}
