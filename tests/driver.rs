//! The program with drivers other than that of a healthy GPU: a stand-in library for libcuda.

use std::{fs, path::Path, process::Command};

use crate::common::{program, tiny_model};
use serde_json::Value;

/// Answers the calls before the creation of a context. `FAKE_CUDA` is the error of `cuInit`, or the compute
/// capabilities of its GPUs.
const DRIVER: &str = r#"
#include <stdlib.h>
#include <string.h>

static int count(void) {
    const char *text = getenv("FAKE_CUDA");
    int n = 1;
    for (; *text; text++) n += *text == ',';
    return n;
}
static int capability(int device) {
    const char *text = getenv("FAKE_CUDA");
    while (device--) text = strchr(text, ',') + 1;
    return atoi(text);
}
int cuInit(unsigned flags) {
    const char *text = getenv("FAKE_CUDA");
    return strncmp(text, "error ", 6) ? 0 : atoi(text + 6);
}
int cuDeviceGetCount(int *n) { *n = count(); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index < count() ? 0 : 101; }
int cuDeviceGetName(char *name, int bytes, int device) { strncpy(name, "NVIDIA GeForce RTX 2080 Ti", bytes); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int found = capability(device);
    *value = attribute == 75 ? found / 10 : attribute == 76 ? found % 10 : 0;
    return 0;
}
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, device, 16); return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "made up"; return 0; }
"#;

struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        tiny_model(dir.path(), |_| {});
        fs::create_dir(dir.path().join("lib")).unwrap();
        let source = dir.path().join("cuda.c");
        fs::write(&source, DRIVER).unwrap();
        let library = dir.path().join("lib/libcuda.so.1");
        let soname = "-Wl,-soname,libcuda.so.1";
        let mut cc = Command::new("cc");
        let built = cc.args(["-shared", "-fPIC", "-w", soname, "-o"]).arg(library).arg(source).status();
        assert!(built.unwrap().success());
        Machine(dir)
    }

    /// The exit code and output of a short run.
    fn run(&self, driver: Option<&str>, device: &str, more: &[&str]) -> (i32, String) {
        let mut run = program(self.path());
        run.args(["run", "--json", "model.config_json=tiny.json", "runtime.requests=1", "runtime.warmup=0"]);
        run.args(["infer.max_new_tokens=2", "dataset.prompt_tokens=4", "hydra.run.dir=out"]);
        run.arg(format!("runtime.device={device}")).args(more);
        if let Some(driver) = driver {
            run.env("LD_LIBRARY_PATH", self.path().join("lib")).env("FAKE_CUDA", driver);
        }
        let done = run.output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        let log = fs::read_to_string(self.path().join("out/llmprof.log")).unwrap_or_default();
        let _ = fs::remove_dir_all(self.path().join("out"));
        (done.status.code().unwrap(), said + &log)
    }

    /// The findings of `doctor` by the names of its checks.
    fn doctor(&self, driver: &str) -> Value {
        let mut doctor = program(self.path());
        doctor.args(["doctor", "--json"]);
        doctor.env("LD_LIBRARY_PATH", self.path().join("lib")).env("FAKE_CUDA", driver);
        let done = doctor.output().unwrap();
        let report: Value = serde_json::from_slice(&done.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().iter();
        checks.map(|check| (check["id"].as_str().unwrap().to_owned(), check.clone())).collect()
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn without_a_usable_gpu_auto_is_the_cpu_and_cuda_is_an_error() {
    let machine = Machine::new();
    let no_device = "no CUDA device is visible; check nvidia-smi (a GPU in MIG mode needs a slice) and CUDA_VISIBLE_DEVICES, or use runtime.device=cpu";
    let too_old = "NVIDIA GeForce RTX 2080 Ti has compute capability 7.5, and the built-in kernels need 8.0 or later; use runtime.device=cpu";
    for (driver, device, why) in [
        (None, "cuda", "libcuda.so.1 is not found"),
        // CUDA_VISIBLE_DEVICES is empty, or the container has no GPU.
        (Some("error 100"), "cuda", no_device),
        // The kernel's module and the library differ.
        (Some("error 803"), "cuda", "the NVIDIA driver does not respond (made up, CUDA_ERROR_FAKE)"),
        // Turing, and Volta.
        (Some("75"), "cuda:0", too_old),
        (Some("70"), "cuda:0", "has compute capability 7.0"),
        // A laptop with two GPUs: the second one could be used.
        (Some("75,89"), "cuda:0", too_old),
        (Some("75,89"), "cuda:2", "there is no cuda:2; this machine has 2 CUDA devices, counted from 0"),
    ] {
        let (code, said) = machine.run(driver, device, &[]);
        assert_eq!(code, 2, "{driver:?} {device}: {said}");
        assert!(said.contains(why), "{driver:?} {device}: {said}");
        if driver != Some("75,89") {
            let (code, said) = machine.run(driver, "auto", &[]);
            assert_eq!(code, 0, "{driver:?}: {said}");
            assert!(said.contains("\"device\": \"cpu\""), "{driver:?}: {said}");
        }
    }
}

#[test]
fn an_unused_gpu_is_reported() {
    let machine = Machine::new();
    let (code, said) = machine.run(Some("75"), "auto", &[]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("the model runs on the CPU: NVIDIA GeForce RTX 2080 Ti has compute capability 7.5"),
        "{said}"
    );
    // candle's own kernels are not in this build.
    let (code, said) = machine.run(Some("90"), "auto", &["runtime=candle_stock"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = machine.run(Some("90"), "cuda", &["runtime=candle_stock"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("feature candle-cuda"), "{said}");
}

#[test]
fn a_driver_outside_of_the_loaders_path_is_found() {
    let machine = Machine::new();
    let mut run = program(machine.path());
    run.args(["run", "--json", "model.config_json=tiny.json", "runtime.device=cuda:0"]);
    // Searched in addition to the directories that are the same on every machine, such as /usr/lib/wsl/lib.
    let done = run.env("CUDA_HOME", machine.path()).env("FAKE_CUDA", "75").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("has compute capability 7.5"), "{said}");
}

#[test]
fn a_mig_slice_is_used_and_its_limits_are_reported() {
    let machine = Machine::new();
    let nvml = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvml/fake_nvml.c");
    let mut cc = Command::new("cc");
    cc.args([
        "-shared",
        "-fPIC",
        "-w",
        "-DHOPPER",
        "-DFULL",
        "-DSLICE",
        "-DNAME=\"NVIDIA H100 80GB HBM3\"",
        "-o",
    ]);
    assert!(cc.arg(machine.path().join("lib/libnvidia-ml.so.1")).arg(nvml).status().unwrap().success());
    let found = machine.doctor("90");
    let gpu = found["gpu"]["found"].as_str().unwrap();
    assert!(gpu.contains("MIG enabled: some readings cover the whole GPU or are refused"), "{gpu}");
    let build = found["cuda_build"]["found"].as_str().unwrap();
    assert!(build.starts_with("models run on cuda:0 (libcuda.so.1 in "), "{build}");
    // Without a slice, CUDA has no device.
    let found = machine.doctor("error 100");
    assert_eq!(found["cuda_build"]["status"], "warn");
    let build = found["cuda_build"]["found"].as_str().unwrap();
    assert_eq!(build, "the GPU is in MIG mode and CUDA shows no slice of it: models run on the CPU");
    let (code, said) = machine.run(Some("error 100"), "auto", &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("\"device\": \"cpu\""), "{said}");
}
