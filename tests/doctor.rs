//! `doctor` on fake machines, and on this one.
#![cfg(target_os = "linux")]

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, LazyLock, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::{PATIENCE, eventually, program, run, said, tiny_model};
use llmprof::{
    doctor::{
        CheckTimeouts, Finding, Machine, Report, Status, examine,
        machine::{Build, Screen},
    },
    event::Device,
    tools::System,
};
use serde_json::Value;
use tempfile::TempDir;

/// A fake NVML of a Hopper GPU, changed by `defines`.
fn nvml(folder: &Path, defines: &[&str]) -> PathBuf {
    let path = folder.join("libnvidia-ml.so.1");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-DHOPPER", "-DFULL", "-o"])
        .arg(&path)
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvml/fake_nvml.c"))
        .status();
    assert!(built.expect("a C compiler").success());
    path
}

/// The library of a GPU without problems, built once: loading it again would give the same one.
static HEALTHY: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let path = nvml(folder.path(), &[]);
    (folder, path)
});

/// A fake machine in a directory.
struct FakeMachine {
    root: TempDir,
    machine: Machine,
}

impl FakeMachine {
    /// Without GPU, tools and variables.
    fn bare() -> FakeMachine {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine {
            system: System { root: root.path().to_owned(), variables: HashMap::new(), stop: Arc::default() },
            nvml: Some(root.path().join("no-such-library.so")),
            build: Build { lowest: 80, cuda: 13, is_stale: false, auto: || Device::Cpu },
            screen: Screen { terminal: false, size: None },
            runs: Ok(root.path().join("runs")),
            free_memory: Some(8_000_000_000),
        };
        FakeMachine { root, machine }
    }

    /// With a GPU without problems, and a build for it.
    fn healthy() -> FakeMachine {
        let mut fake = FakeMachine::bare();
        fake.machine.nvml = Some(HEALTHY.1.clone());
        fake.machine.build = Build { lowest: 80, cuda: 13, is_stale: false, auto: || Device::Cuda(0) };
        fake.file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)  Tue Jan  6\n",
        );
        fake.file("/proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nRmProfilingAdminOnly: 0\n");
        fake
    }

    fn with_gpu(defines: &[&str]) -> FakeMachine {
        let mut fake = FakeMachine::healthy();
        fake.machine.nvml = Some(nvml(fake.root.path(), defines));
        fake
    }

    fn file(&self, path: &str, content: &str) {
        let path = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn script(&self, path: &str, lines: &str) {
        crate::common::script(&self.root.path().join(path.trim_start_matches('/')), lines);
    }

    fn variable(&mut self, name: &str, value: &str) {
        self.machine.system.variables.insert(name.to_owned(), value.to_owned());
    }

    /// Waits without limits: the fake machine does not hang, however busy the machine is.
    fn report(&self) -> Report {
        self.report_with_tools_within(PATIENCE)
    }

    fn report_with_tools_within(&self, tools: Duration) -> Report {
        examine(&Arc::new(self.machine.clone()), CheckTimeouts { check: PATIENCE, tools }, &mut |_| {})
    }
}

fn finding<'a>(report: &'a Report, id: &str) -> &'a Finding {
    report.finding(id).unwrap_or_else(|| panic!("no check {id}"))
}

#[track_caller]
fn assert_found(report: &Report, id: &str, status: Status, found: &[&str], remedy: &[&str]) {
    let finding = finding(report, id);
    assert_eq!(finding.status, status, "{id}: {finding:?}");
    for expected in found {
        assert!(finding.found.contains(expected), "{id}: {expected:?} in {finding:?}");
    }
    for expected in remedy {
        assert!(
            finding.remedy.as_deref().unwrap_or_default().contains(expected),
            "{id}: {expected:?} in {finding:?}"
        );
    }
    assert_eq!(finding.remedy.is_some(), !remedy.is_empty(), "{id}: {finding:?}");
}

use Status::{Fail, Pass, Skip, Warn};

const NSYS_2025: &str = "echo 'NVIDIA Nsight Systems version 2025.3.2.474-253236389321v0'";
const NSYS_2022: &str = "echo 'NVIDIA Nsight Systems version 2022.4.2.18-32044700v0'";
const NCU_2025: &str = "echo 'NVIDIA (R) Nsight Compute Command Line Profiler'; echo 'Version 2025.3.1.0 (build 36398880) (public-release)'";

#[test]
fn without_a_gpu_its_checks_are_skipped() {
    let fake = FakeMachine::bare();
    let report = fake.report();
    assert!(!report.gpu);
    assert_eq!((report.exit_code(), report.count(Fail)), (0, 0));
    assert_found(
        &report,
        "nvml",
        Skip,
        &["no NVIDIA GPU: ", "no-such-library.so"],
        &["if the machine has a GPU: "],
    );
    for id in ["driver", "gpu", "gpm", "throttle_counters", "power_limit", "clocks", "pcie", "temperature"] {
        assert_found(&report, id, Skip, &["no GPU"], &[]);
    }
    assert_found(&report, "cuda_build", Skip, &["models run on the CPU"], &[]);
    assert_found(&report, "nsys", Skip, &["no GPU, and Nsight Systems is not installed"], &[]);
    assert_found(&report, "cpu_engine", Pass, &["works: a tiny model generated 8 tokens"], &[]);
    assert_found(&report, "locale", Warn, &["UTF-8"], &["export LANG="]);
}

#[test]
fn a_gpu_without_its_driver_is_a_failure() {
    let fake = FakeMachine::bare();
    fake.file("/sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n");
    fake.file("/sys/bus/pci/devices/0000:17:00.0/class", "0x030200\n");
    let report = fake.report();
    assert_eq!(report.exit_code(), 1);
    assert_found(
        &report,
        "nvml",
        Fail,
        &["NVML is not installed", "PCI bus (0000:17:00.0)"],
        &["install the NVIDIA driver"],
    );
    assert_found(&report, "driver", Fail, &["kernel module is not loaded"], &["modprobe nvidia"]);
    assert_found(&report, "gpu", Skip, &["see nvml"], &[]);
    // An audio device of the same vendor is not a GPU.
    fake.file("/sys/bus/pci/devices/0000:17:00.0/class", "0x040300\n");
    assert_eq!(fake.report().exit_code(), 0);
}

#[test]
fn each_kind_of_absence_fails_with_its_remedy() {
    for (define, expected, remedy) in [
        ("INIT=18", "different versions", "reboot"),
        ("INIT=4", "permission denied", "/dev/nvidia"),
        ("INIT=999", "NVML does not start", "nvidia-smi"),
    ] {
        let fake = FakeMachine::with_gpu(&[define]);
        let report = fake.report();
        assert_found(&report, "nvml", Fail, &[expected, "its kernel module is loaded"], &[remedy]);
        assert_found(&report, "driver", Pass, &["580.159.04, open kernel module"], &[]);
    }
}

/// The program with the fake NVML in `folder`.
fn program_with(folder: &Path) -> Command {
    let mut command = program(folder);
    command.env("LD_LIBRARY_PATH", folder);
    command
}

#[test]
fn an_nvml_that_hangs_is_abandoned() {
    let folder = tempfile::tempdir().unwrap();
    nvml(folder.path(), &["HANG"]);
    let done = said(program_with(folder.path()).args(["doctor", "--json"]).output().unwrap());
    let parsed: Value = serde_json::from_str(&done.out).unwrap();
    let check = &parsed["checks"][0];
    assert_eq!((&check["id"], &check["status"]), (&"nvml".into(), &"fail".into()));
    assert_eq!(check["found"], "NVML did not finish within 3.0s");
    assert!(check["remedy"].as_str().unwrap().contains("nvidia-smi"));
    assert_eq!((done.code, done.err.as_str()), (1, ""), "stderr is not a terminal: no progress");
}

#[test]
fn the_python_of_pytorch_is_found() {
    let versions = "echo 3.12.1; echo 2.11.0+cu130; echo 5.17.0";
    for (script, expected) in [
        (versions, (Pass, "torch 2.11.0+cu130 and transformers 5.17.0, Python 3.12.1 (/venv/bin/python)")),
        ("echo 3.12.1; echo 2.11.0; echo", (Skip, "has no transformers")),
        ("echo 3.12.1; echo; echo", (Skip, "-m pip install torch transformers")),
        ("printf '\\033[2J\\n'", (Skip, "is not a Python interpreter")),
        ("exit 3", (Skip, "/venv/bin/python does not run")),
    ] {
        let mut fake = FakeMachine::bare();
        fake.variable("VIRTUAL_ENV", "/venv");
        fake.script("/venv/bin/python", script);
        assert_found(&fake.report(), "pytorch", expected.0, &[expected.1], &[]);
    }
    let mut fake = FakeMachine::bare();
    fake.variable("PATH", "/usr/bin");
    assert_found(&fake.report(), "pytorch", Skip, &["no Python"], &[]);
    fake.script("/usr/bin/python3", versions);
    assert_found(&fake.report(), "pytorch", Pass, &["(/usr/bin/python3)"], &[]);
}

#[test]
fn a_healthy_gpu_passes() {
    let mut fake = FakeMachine::healthy();
    fake.variable("PATH", "/usr/bin");
    fake.script("/usr/bin/ncu", NCU_2025);
    fake.script("/opt/nvidia/nsight-systems/2025.3.2/target-linux-x64/nsys", NSYS_2025);
    fake.script("/opt/nvidia/nsight-systems/2025.3.2/host-linux-x64/QdstrmImporter", "exit 1");
    fake.script(
        "/sbin/ldconfig",
        "for n in cublas.so.13 cupti.so.13; do\
         \nprintf '\\tlib%s (libc6,x86-64) => /usr/local/cuda/lib64/lib%s\\n' $n $n; done",
    );
    let report = fake.report();
    assert!(report.gpu);
    let wrong: Vec<_> = report.checks.iter().filter(|check| check.finding.status >= Warn).collect();
    assert_eq!(wrong.iter().map(|check| check.id).collect::<Vec<_>>(), ["locale"], "{wrong:#?}");
    assert_found(&report, "driver", Pass, &["570.00.01, open kernel module"], &[]);
    assert_found(&report, "gpu", Pass, &["NVIDIA Odd 9000, compute capability 9.0, 151 GB"], &[]);
    assert_found(
        &report,
        "gpm",
        Pass,
        &["SM active, occupancy, DRAM bandwidth (unavailable: tensor pipe)"],
        &[],
    );
    assert_found(&report, "throttle_counters", Pass, &["clock event reasons, 5 of 8 time counters"], &[]);
    assert_found(&report, "power_limit", Pass, &["700 W (default 700 W, maximum 700 W)"], &[]);
    assert_found(&report, "clocks", Pass, &["SM clock up to 2000 MHz, now 1500 MHz"], &[]);
    assert_found(
        &report,
        "pcie",
        Pass,
        &["PCIe gen1 x16; up to gen5 under load (an idle link slows down)"],
        &[],
    );
    assert_found(&report, "temperature", Pass, &["66 °C, slowdown at 92 °C"], &[]);
    assert_found(&report, "cuda_driver", Pass, &["CUDA up to 13.0"], &[]);
    assert_found(&report, "cuda_build", Pass, &["models run on cuda:0"], &[]);
    assert_found(&report, "cublas", Pass, &["libcublas.so.13 in /usr/local/cuda/lib64"], &[]);
    assert_found(&report, "cupti", Pass, &["libcupti.so.13 in /usr/local/cuda/lib64"], &[]);
    assert_found(&report, "ncu", Pass, &["2025.3.1 at /usr/bin/ncu"], &[]);
    assert_found(
        &report,
        "nsys",
        Pass,
        &["2025.3.2 at /opt/nvidia/nsight-systems/2025.3.2/", "not on PATH"],
        &[],
    );
    assert_found(&report, "counter_permission", Pass, &["every user"], &[]);
}

#[test]
fn causes_of_a_slow_gpu_are_reported_with_their_remedy() {
    let defines = [
        "POWER_LIMIT_W=450",
        "LANES=4",
        "PERSISTENCE=0",
        "SLOWDOWN_C=70",
        "LOST_BITS=3",
        "STRANGER",
        "MIG=1",
    ];
    let fake = FakeMachine::with_gpu(&defines);
    let report = fake.report();
    assert_eq!(report.exit_code(), 0, "it still works");
    assert_found(
        &report,
        "power_limit",
        Warn,
        &["450 W, below the default of 700 W"],
        &["nvidia-smi -i 0 -pl 700"],
    );
    assert_found(&report, "pcie", Warn, &["x4, but the GPU supports x16"], &["slot"]);
    assert_found(&report, "persistence", Warn, &["off"], &["-pm 1"]);
    assert_found(&report, "temperature", Warn, &["66 °C, slowdown at 70 °C"], &["cool"]);
    assert_found(&report, "ecc", Warn, &["3 uncorrected"], &["--gpu-reset"]);
    assert_found(&report, "other_processes", Warn, &["pid 1, 9216 MiB"], &["hardware.device_index"]);
    assert_found(&report, "gpu", Warn, &["MIG enabled"], &["-mig 0"]);
}

#[test]
fn refused_readings_are_reported() {
    let fake = FakeMachine::bare();
    let path = fake.root.path().join("libnvidia-ml.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvml/fake_nvml.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&path).arg(source).status();
    assert!(built.expect("a C compiler").success());
    let report =
        FakeMachine { machine: Machine { nvml: Some(path), ..fake.machine.clone() }, ..fake }.report();
    assert_found(&report, "power_limit", Warn, &["permission denied"], &["run as a user"]);
    assert_found(&report, "temperature", Skip, &["temperature: not reported by this GPU"], &[]);
    assert_found(
        &report,
        "throttle_counters",
        Warn,
        &["no time counters: not supported by this driver"],
        &["update the driver"],
    );
    assert_found(
        &report,
        "cuda_build",
        Warn,
        &["libcuda.so.1 not found: models run on the CPU"],
        &["compute"],
    );
}

#[test]
fn a_gpu_without_gpm_is_no_reason_for_a_warning() {
    let fake = FakeMachine::with_gpu(&["GPM=0"]);
    assert_found(&fake.report(), "gpm", Skip, &["activity counters: GPM needs"], &[]);
}

#[test]
fn an_old_gpu_an_old_driver_and_a_hidden_gpu_are_reported() {
    let mut fake = FakeMachine::healthy();
    fake.machine.build = Build { lowest: 95, cuda: 14, is_stale: false, auto: || Device::Cpu };
    let report = fake.report();
    assert_found(
        &report,
        "cuda_build",
        Warn,
        &[
            "NVIDIA Odd 9000) has compute capability 9.0, the built-in kernels need 9.5 or later: models run on the CPU",
        ],
        &["runtime.device=cpu"],
    );
    assert_found(
        &report,
        "cuda_driver",
        Fail,
        &["CUDA up to 13.0, the kernels of this program were compiled with CUDA 14"],
        &["update the driver", "just release-kernels"],
    );
    fake.machine.build.lowest = 80;
    fake.file("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "");
    fake.variable("CUDA_VISIBLE_DEVICES", "");
    let report = fake.report();
    assert_found(&report, "cuda_build", Warn, &["CUDA shows no GPU (CUDA_VISIBLE_DEVICES=)"], &["unset"]);
}

#[test]
fn a_mig_slice_and_a_gpu_without_one() {
    let mut fake = FakeMachine::with_gpu(&["SLICE", "NAME=\"NVIDIA H100 80GB HBM3\""]);
    fake.file("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "");
    let report = fake.report();
    assert_eq!(report.exit_code(), 0);
    assert_found(
        &report,
        "gpu",
        Warn,
        &[
            "NVIDIA H100 80GB HBM3, compute capability 9.0, MIG enabled: some readings cover the whole GPU or are refused",
        ],
        &["-mig 0"],
    );
    assert_found(
        &report,
        "cuda_build",
        Pass,
        &["models run on cuda:0 (libcuda.so.1 in /usr/lib/x86_64"],
        &[],
    );
    // MIG mode is on, and no slice has been created or given to the container.
    fake.machine.build.auto = || Device::Cpu;
    assert_found(
        &fake.report(),
        "cuda_build",
        Warn,
        &["the GPU is in MIG mode and CUDA shows no slice of it: models run on the CPU"],
        &["CUDA_VISIBLE_DEVICES=MIG-", "nvidia-smi mig -cgi"],
    );
}

#[test]
fn under_wsl_the_driver_is_that_of_windows() {
    const RELEASE: (&str, &str) = ("/proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n");
    let fake = FakeMachine::bare();
    fake.file(RELEASE.0, RELEASE.1);
    let report = fake.report();
    assert_eq!(report.exit_code(), 0);
    assert_found(
        &report,
        "nvml",
        Skip,
        &["no NVIDIA GPU: ", "no-such-library.so"],
        &["install the NVIDIA driver on Windows, not in WSL", "/usr/lib/wsl/lib"],
    );
    let mut fake = FakeMachine::healthy();
    fake.file(RELEASE.0, RELEASE.1);
    fs::remove_dir_all(fake.root.path().join("proc/driver")).unwrap();
    fake.machine.build.auto = || Device::Cpu;
    assert_found(&fake.report(), "cuda_build", Warn, &["libcuda.so.1 not found"], &["wsl --update"]);
    fake.machine.build.auto = || Device::Cuda(0);
    fake.file("/usr/lib/wsl/lib/libcuda.so.1", "");
    let report = fake.report();
    assert_found(&report, "driver", Pass, &["570.00.01"], &[]);
    assert_found(
        &report,
        "cuda_build",
        Pass,
        &["models run on cuda:0 (libcuda.so.1 in /usr/lib/wsl/lib)"],
        &[],
    );
}

/// A container with only the driver, as created by `--gpus all` from an image without CUDA.
#[test]
fn with_only_the_driver_models_run_and_missing_tools_have_a_remedy() {
    let fake = FakeMachine::healthy();
    fake.file("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "");
    let report = fake.report();
    assert_eq!(report.exit_code(), 0);
    assert_found(&report, "cuda_build", Pass, &["models run on cuda:0"], &[]);
    let slower = "libcublas 12 or 13 not found: prefill uses the built-in GEMM kernels, which are slower";
    assert_found(&report, "cublas", Warn, &[slower], &["the PyPI package nvidia-cublas"]);
    let unrecorded = "libcupti 12 or 13 not found: kernels cannot be recorded live";
    assert_found(&report, "cupti", Warn, &[unrecorded], &["the PyPI package nvidia-cuda-cupti"]);
    assert_found(&report, "nsys", Warn, &["not found on PATH"], &["install Nsight Systems"]);
}

#[test]
fn libraries_outside_the_loaders_path_are_found() {
    let fake = FakeMachine::healthy();
    let report = fake.report();
    assert_found(&report, "cublas", Warn, &["libcublas 12 or 13 not found", "slower"], &["nvidia-cublas"]);
    assert_found(&report, "cupti", Warn, &["libcupti 12 or 13 not found"], &["nvidia-cuda-cupti"]);
    let folder = "/usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib";
    fake.file(&format!("{folder}/libcublasLt.so.13"), "");
    fake.file("/usr/lib64/libcublas.so.11", "");
    assert_found(&fake.report(), "cublas", Warn, &["not found"], &["nvidia-cublas"]);
    fake.file(&format!("{folder}/libcublas.so.13"), "");
    assert_found(&fake.report(), "cublas", Pass, &["libcublas.so.13 in /usr/local/lib/python3.12"], &[]);
}

#[test]
fn a_missing_tool() {
    let fake = FakeMachine::healthy();
    let report = fake.report();
    assert_found(&report, "nsys", Warn, &["not found on PATH"], &["developer.nvidia.com/nsight-systems"]);
    assert_found(&report, "ncu", Warn, &["not found on PATH"], &["developer.nvidia.com/nsight-compute"]);
}

#[test]
fn an_nsys_without_its_importer() {
    let mut fake = FakeMachine::healthy();
    let inside = "/opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64";
    fake.script(&format!("{inside}/nsys"), NSYS_2025);
    let missing =
        "its importer is missing (/opt/nvidia/nsight-compute/2025.3.1/host/host-linux-x64/QdstrmImporter)";
    assert_found(&fake.report(), "nsys", Warn, &[missing, ".qdstrm"], &["install Nsight Systems itself"]);

    // As in an image of CUDA 13: the importer is installed, but a library that it needs is missing.
    let importer = "/opt/nvidia/nsight-compute/2025.3.1/host/linux-desktop-glibc_2_11_3-x64/QdstrmImporter";
    let lacks = "error while loading shared libraries: libdw.so.1: cannot open shared object file: No such file or directory";
    fake.script(importer, &format!("echo \"$0: {lacks}\" >&2; exit 127"));
    let expected = [importer, "does not start (error while loading shared libraries: libdw.so.1:", ".qdstrm"];
    assert_found(&fake.report(), "nsys", Warn, &expected, &["apt install libdw1"]);
    fake.script(importer, "echo 2025.3.1");
    assert_found(&fake.report(), "nsys", Pass, &["2025.3.2 at", "not on PATH"], &[]);
    fs::remove_dir_all(fake.root.path().join("opt")).unwrap();

    // As in Debian: the importer is in a directory where nsys does not look.
    fake.variable("PATH", "/usr/bin");
    let debian = "/usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64";
    fake.script(&format!("{debian}/nsys"), NSYS_2025);
    fs::create_dir_all(fake.root.path().join("usr/bin")).unwrap();
    let link = fake.root.path().join("usr/bin/nsys");
    std::os::unix::fs::symlink("../lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys", link).unwrap();
    fake.file("/usr/lib/nsight-systems/host-linux-x64/QdstrmImporter", "");
    let remedy = "sudo ln -s /usr/lib/nsight-systems/host-linux-x64 /usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64";
    assert_found(&fake.report(), "nsys", Warn, &["at /usr/bin/nsys", "its importer is missing"], &[remedy]);

    // A complete one elsewhere is preferred to a broken one on PATH.
    fake.script("/opt/nvidia/nsight-systems/2025.3.2/target-linux-x64/nsys", NSYS_2025);
    fake.script("/opt/nvidia/nsight-systems/2025.3.2/host-linux-x64/QdstrmImporter", "exit 1");
    let expected = ["2025.3.2 at /opt/nvidia/nsight-systems", "PATH has 2025.3.2 at /usr/bin/nsys"];
    assert_found(&fake.report(), "nsys", Pass, &expected, &[]);
}

#[test]
fn tools_too_old_for_the_driver() {
    let mut fake = FakeMachine::healthy();
    fake.variable("PATH", "/nowhere:relative:/usr/bin");
    fake.script("/usr/bin/nsys", NSYS_2022);
    fake.script("/usr/bin/ncu", "echo Version 2022.3.0.0");
    let report = fake.report();
    assert_found(
        &report,
        "nsys",
        Warn,
        &["2022.4.2 at /usr/bin/nsys", "older than CUDA 13"],
        &["2025.3 or newer"],
    );
    assert_found(&report, "ncu", Warn, &["older than CUDA 13"], &["2025.3 or newer"]);
    let mut twelve = FakeMachine::with_gpu(&["CUDA=12040"]);
    twelve.variable("PATH", "/usr/bin");
    twelve.script("/usr/bin/nsys", NSYS_2022);
    assert_found(&twelve.report(), "nsys", Pass, &["2022.4.2"], &[]);
}

#[test]
fn a_tool_that_hangs_is_killed_with_its_children() {
    let mut fake = FakeMachine::healthy();
    fake.variable("PATH", "/usr/bin");
    let pids = fake.root.path().join("pids");
    let hang = format!("sleep 600 & echo $! $$ >> {}; wait", pids.display());
    fake.script("/usr/bin/nsys", &hang);
    // It never answers, so no limit is too short.
    let report = fake.report_with_tools_within(Duration::from_millis(500));
    assert_found(&report, "nsys", Warn, &["/usr/bin/nsys: it does not answer: stopped after "], &["by hand"]);
    // When the limit is reached, its shell may not have run its first lines; therefore another one is stopped after
    // that.
    let written = || fs::read_to_string(&pids).unwrap_or_default();
    let before = written();
    thread::scope(|scope| {
        let examined = scope.spawn(|| fake.report());
        eventually("the tool to start", || {
            (written().len() > before.len() || examined.is_finished()).then_some(())
        });
        fake.machine.system.stop.store(true, Ordering::Release);
    });
    assert!(written().len() > before.len(), "{before}");
    for pid in written().split_whitespace() {
        eventually("the tool to be gone", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit_once(')').map_or("X", |(_, rest)| rest.trim_start());
            state.starts_with(['Z', 'X']).then_some(())
        });
    }
}

#[test]
fn a_tool_that_fails_is_reported_with_what_it_printed() {
    let mut fake = FakeMachine::healthy();
    fake.variable("PATH", "/usr/bin");
    fake.script("/usr/bin/ncu", "echo dead >&2; exit 7");
    assert_found(&fake.report(), "ncu", Warn, &["(exit status: 7): dead"], &["by hand"]);
}

#[test]
fn permission_to_read_counters() {
    let fake = FakeMachine::healthy();
    fake.file("/proc/driver/nvidia/params", "RmProfilingAdminOnly: 1\n");
    fake.file("/proc/self/status", "Name:\tx\nCapEff:\t00000000a80425fb\n");
    let expected = ["RmProfilingAdminOnly: 1", "ERR_NVGPUCTRPERM"];
    let option = "options nvidia NVreg_RestrictProfilingToAdminUsers=0";
    assert_found(&fake.report(), "counter_permission", Warn, &expected, &[option, "--cap-add=SYS_ADMIN"]);
    fake.file("/proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");
    assert_found(&fake.report(), "counter_permission", Pass, &["this process may"], &[]);
    fs::remove_file(fake.root.path().join("proc/driver/nvidia/params")).unwrap();
    assert_found(
        &fake.report(),
        "counter_permission",
        Skip,
        &["unknown: not in /proc/driver/nvidia/params"],
        &[],
    );
}

#[test]
fn permission_to_join_running_programs() {
    let fake = FakeMachine::healthy();
    assert_found(&fake.report(), "attach", Pass, &["of this user can be joined"], &[]);
    fake.file("/proc/sys/kernel/yama/ptrace_scope", "1\n");
    fake.file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
    let setting = "sudo sysctl kernel.yama.ptrace_scope=0";
    assert_found(&fake.report(), "attach", Warn, &["cannot be joined", "ptrace_scope=1"], &[setting]);
    fake.file("/proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");
    assert_found(&fake.report(), "attach", Pass, &["CAP_SYS_PTRACE"], &[]);
    fake.file("/proc/sys/kernel/yama/ptrace_scope", "3\n");
    assert_found(&fake.report(), "attach", Warn, &["until the system restarts"], &["use exec"]);
}

#[test]
fn terminals_disks_and_memory() {
    let mut fake = FakeMachine::bare();
    fake.machine.screen = Screen { terminal: true, size: Some((100, 30)) };
    for (name, value) in
        [("TERM", "xterm-256color"), ("TMUX", "/tmp/tmux-0/default,1,0"), ("LANG", "de_DE.UTF-8")]
    {
        fake.variable(name, value);
    }
    let report = fake.report();
    assert_found(&report, "terminal", Pass, &["100×30, 256 colours, in tmux (xterm-256color)"], &[]);
    assert_found(&report, "locale", Pass, &["LANG=de_DE.UTF-8"], &[]);
    assert_found(&report, "memory", Pass, &["8.00 GB free"], &[]);
    assert_found(&report, "disk", Pass, &["free for", "/runs"], &[]);

    fake.machine.screen.size = Some((60, 20));
    fake.variable("NO_COLOR", "1");
    fake.variable("LC_ALL", "C");
    fake.machine.free_memory = Some(300_000_000);
    fake.machine.runs = Err("conf/config.yaml: line 3: what is this".to_owned());
    let report = fake.report();
    assert_found(
        &report,
        "terminal",
        Warn,
        &["60×20, no colours (NO_COLOR)", "smaller than 80×24"],
        &["enlarge"],
    );
    assert_found(&report, "locale", Warn, &["LC_ALL=C is not UTF-8"], &["export LANG=C.UTF-8"]);
    assert_found(&report, "memory", Warn, &["300 MB free"], &["container"]);
    assert_found(&report, "config", Fail, &["line 3"], &["llmprof-tui config"]);
    assert_found(&report, "disk", Skip, &["see config"], &[]);

    fake.machine.runs = Ok(PathBuf::from("/proc/sys/runs"));
    assert_found(&fake.report(), "disk", Fail, &["/proc/sys/runs cannot be written"], &["hydra.run.dir"]);
}

#[test]
fn the_command_prints_a_table_or_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let plain = run(dir.path(), &["doctor"]);
    assert!([0, 1].contains(&plain.code), "{}", plain.err);
    assert_eq!(plain.err, "");
    assert!(plain.out.contains("cpu_engine") && !plain.out.contains('\x1b'), "{}", plain.out);
    assert!(plain.out.lines().last().unwrap().contains(" skip: "), "{}", plain.out);

    let object = run(dir.path(), &["doctor", "--json"]);
    let parsed: Value = serde_json::from_str(&object.out).unwrap();
    assert_eq!(parsed["schema"], 1);
    assert!(parsed["program"].as_str().unwrap().starts_with("llmprof-tui "));
    let checks = parsed["checks"].as_array().unwrap();
    let count = |status: &str| checks.iter().filter(|check| check["status"] == status).count();
    for status in ["pass", "warn", "fail", "skip"] {
        assert_eq!(parsed["summary"][status], count(status));
    }
    assert_eq!(object.code, i32::from(count("fail") > 0));
    for check in checks {
        assert!(check["ms"].as_f64().unwrap() >= 0.0, "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
    }
    assert!(!dir.path().join("runs").exists(), "nothing is written");
}

#[test]
fn an_invalid_configuration_is_a_finding_and_an_unknown_word_a_mistake() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("conf")).unwrap();
    fs::write(dir.path().join("conf/config.yaml"), "a: [").unwrap();
    let broken = run(dir.path(), &["doctor"]);
    assert_eq!(broken.code, 1);
    assert!(broken.out.contains("fail  config") && broken.out.contains("config.yaml"), "{}", broken.out);
    let odd = run(dir.path(), &["doctor", "overhaed"]);
    assert_eq!((odd.code, odd.out.as_str()), (2, ""));
    assert_eq!(run(dir.path(), &["doctor", "--seconds", "3"]).code, 2, "--seconds needs a measurement");
}

#[test]
fn peaks_of_the_cpu_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let done = run(dir.path(), &["doctor", "--peaks", "--seconds", "0.2", "--json", "runtime.device=cpu"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let object: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&object["schema"], &object["place"]), (&1.into(), &"cpu".into()));
    let loads = object["loads"].as_array().unwrap();
    let names: Vec<&str> = loads.iter().map(|load| load["load"].as_str().unwrap()).collect();
    assert_eq!(names, ["GEMM, f32", "read", "copy"]);
    for load in loads {
        let (best, steady) = (load["best"].as_f64().unwrap(), load["steady"].as_f64().unwrap());
        // From a small board in a build without optimisation to a server.
        assert!(steady > 1e6 && steady <= best && best < 1e15, "{load}");
        assert_eq!(load["stated"], Value::Null);
    }
    assert!(object["overrides"]["f32"].as_str().unwrap().starts_with("hardware.peaks.flops="), "{object}");
    assert!(done.err.contains("GEMM, f32 for 0.200 s"), "{}", done.err);
    for (args, word) in [
        (&["--peaks", "runtime=sim"][..], "no peaks to measure"),
        (&["--peaks", "--seconds", "0"], "a number above 0"),
        (&["--peaks", "--overhead"], "cannot be used with"),
        (&["--peaks", "runtime.device=cuda:77"], "cuda:77"),
    ] {
        let args: Vec<&str> = ["doctor"].iter().chain(args).copied().collect();
        let refused = run(dir.path(), &args);
        assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{args:?} {}", refused.err);
        assert!(refused.err.contains(word), "{}", refused.err);
    }
}

#[test]
fn overhead_is_measured_on_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| {});
    let mut measure = program(dir.path());
    measure.args([
        "doctor",
        "--overhead",
        "--seconds",
        "3",
        "--json",
        "model.config_json=tiny.json",
        "infer=short",
    ]);
    let done = said(measure.args(["profiling.host.interval_ms=20", "telemetry=none"]).output().unwrap());
    let object: Value =
        serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {} {}", done.out, done.err));
    assert_eq!(object["schema"], 1);
    assert_eq!((&object["model"], &object["device"]), (&"tiny".into(), &"cpu".into()));
    assert_eq!(object["output_tokens"], 64, "16 would be too few");
    assert_eq!(object["sampled"]["host"], true);
    assert!(object["sampled"]["gpu_absent"].as_str().unwrap().contains("telemetry.probe=none"), "{object}");
    assert!(object["pairs"].as_u64().unwrap() >= 1);
    assert!(object["tpot_on_ms"].as_f64().unwrap() > 0.0 && object["tpot_off_ms"].as_f64().unwrap() > 0.0);
    assert!(object["sampler"]["cpu_pct"].as_f64().unwrap() > 0.0);
    assert_eq!(object["sampler"]["duty_pct"], Value::Null, "no GPU was read");
    // A loaded machine may not complete the pairs that an interval needs.
    let estimated = !object["difference_pct"].is_null();
    assert_eq!(done.code, i32::from(!estimated));
    if estimated {
        let change = &object["difference_pct"];
        assert!(change["low"].as_f64() <= change["estimate"].as_f64(), "{change}");
        assert!(change["estimate"].as_f64() <= change["high"].as_f64(), "{change}");
    }
    assert!(done.err.contains("preparing: ") && done.err.contains("pair 1, "), "{}", done.err);
    assert!(!dir.path().join("runs").exists(), "nothing is recorded");
}

#[test]
fn overhead_of_a_simulation_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, word) in [
        (&["runtime=sim"][..], "a simulated clock"),
        (&["profiling=none"], "nothing is sampled"),
        (&["--seconds", "0"], "a number above 0"),
        (&["--seconds=-1"], "a number above 0"),
    ] {
        let args: Vec<&str> = ["doctor", "--overhead"].iter().chain(args).copied().collect();
        let refused = run(dir.path(), &args);
        assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{args:?}");
        assert!(refused.err.contains(word), "{}", refused.err);
    }
}

#[test]
fn a_signal_ends_a_measurement() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| {});
    let mut measure = program(dir.path());
    measure.args(["doctor", "--overhead", "--seconds", "600", "model.config_json=tiny.json"]);
    let mut child =
        measure.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    crate::common::until_it_handles_interrupts(child.id());
    crate::common::signal(child.id(), "INT");
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the measurement does not end");
        }
        thread::sleep(Duration::from_millis(10));
    }
    let ended = said(child.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (130, ""), "{}", ended.err);
    assert!(ended.err.contains("interrupted: SIGINT"), "{}", ended.err);
}

#[test]
fn kernels_older_than_their_sources_are_a_warning() {
    let mut fake = FakeMachine::healthy();
    fake.machine.build.is_stale = true;
    let report = fake.report();
    assert_found(
        &report,
        "cuda_build",
        Warn,
        &["older than their sources: models run on the CPU"],
        &["just kernels"],
    );
}
