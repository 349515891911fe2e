//! Peak FLOP/s and bandwidth of GPUs, as stated by the vendor and as measured.

use serde::Serialize;

use crate::event::GivenPeaks;

/// The peak rates of one GPU: dense operations of the named type with f32 accumulation where the vendor distinguishes it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GpuPeaks {
    /// Its short name.
    pub name: &'static str,
    /// Words that the driver's name contains, and words that it does not contain.
    #[serde(skip)]
    words: (&'static [&'static str], &'static [&'static str]),
    /// FLOP/s by type; 0 for an unsupported type.
    pub flops: [(&'static str, f64); 6],
    pub bytes_per_s: f64,
    /// The SM clock of the stated FLOP/s; `None` where the vendor does not state it.
    pub clock_mhz: Option<f64>,
    pub mem_bytes: u64,
    pub source: &'static str,
    /// The achievable rates, where they were measured.
    pub measured: Option<Measured>,
}

/// The rates of a large matrix product and a large read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// Of bf16, before the power limit is reached.
    pub bf16_flops: f64,
    pub bytes_per_s: f64,
    pub how: &'static str,
}

/// Peaks of one GPU and one type, stated or configured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Peaks {
    pub flops: f64,
    pub bytes_per_s: f64,
    /// The SM clock of `flops`.
    pub clock_mhz: Option<f64>,
    /// The source of the numbers.
    pub source: String,
    pub measured: Option<Measured>,
}

/// The settings that configure peaks.
pub const OVERRIDE: &str = "hardware.peaks.flops=… hardware.peaks.bytes_per_s=…";

const T: f64 = 1e12;
const G: f64 = 1e9;
const GB: u64 = 1_000_000_000;
const NONE: f64 = 0.0;

/// A row of figures in TFLOP/s: f32, tf32, f16, bf16, fp8, int8.
const fn tera(figures: [f64; 6]) -> [(&'static str, f64); 6] {
    let [f32, tf32, f16, bf16, fp8, int8] = figures;
    [
        ("f32", f32 * T),
        ("tf32", tf32 * T),
        ("f16", f16 * T),
        ("bf16", bf16 * T),
        ("fp8", fp8 * T),
        ("int8", int8 * T),
    ]
}

macro_rules! gpus {
    ($($name:literal [$($word:literal)+] not [$($other:literal)*] $figures:expr, $bytes:expr, $clock:expr, $mem:expr, $source:literal $(, $measured:expr)?;)*) => {
        &[$(GpuPeaks {
            name: $name,
            words: (&[$($word),+], &[$($other),*]),
            flops: tera($figures),
            bytes_per_s: $bytes,
            clock_mhz: $clock,
            mem_bytes: $mem * GB,
            source: $source,
            measured: gpus!(@measured $($measured)?),
        }),*]
    };
    (@measured) => { None };
    (@measured $measured:expr) => { Some($measured) };
}

const H200_MEASURED: Measured = Measured {
    bf16_flops: 790.0 * T,
    bytes_per_s: 4.50 * T,
    how: "one H200, driver 580.159.04, CUDA 13.0: a large bf16 product and a read of 14 GB",
};

/// GPUs by name. Sparse figures are halved; FLOP/s of GeForce GPUs are those with f32 accumulation.
pub const GPUS: &[GpuPeaks] = gpus! {
    "b200" ["B200"] not [] [75.0, 1125.0, 2250.0, 2250.0, 4500.0, 4500.0], 7.7 * T, None, 180,
        "NVIDIA HGX B200 datasheet, sparse figures halved";
    "gh200" ["GH200"] not [] [67.0, 494.7, 989.4, 989.4, 1978.9, 1978.9], 4.0 * T, Some(1830.0), 96,
        "NVIDIA GH200 datasheet (96 GB HBM3), sparse figures halved";
    "h200_nvl" ["H200" "NVL"] not [] [60.0, 417.5, 835.5, 835.5, 1670.5, 1670.5], 4.8 * T, Some(1545.0), 141,
        "NVIDIA H200 datasheet, sparse figures halved";
    "h200" ["H200"] not ["NVL" "GH200"] [66.9, 494.7, 989.4, 989.4, 1978.9, 1978.9], 4.8 * T, Some(1830.0), 141,
        "NVIDIA H200 datasheet, sparse figures halved; 132 SMs at 1,830 MHz", H200_MEASURED;
    "h100_nvl" ["H100" "NVL"] not [] [60.0, 417.5, 835.5, 835.5, 1670.5, 1670.5], 3.9 * T, Some(1545.0), 94,
        "NVIDIA H100 datasheet, sparse figures halved";
    "h100_pcie" ["H100" "PCIe"] not ["NVL"] [51.2, 378.0, 756.0, 756.0, 1513.0, 1513.0], 2.039 * T, Some(1620.0), 80,
        "NVIDIA H100 architecture white paper; 114 SMs at 1,620 MHz";
    "h100" ["H100"] not ["PCIe" "NVL"] [66.9, 494.7, 989.4, 989.4, 1978.9, 1978.9], 3.35 * T, Some(1830.0), 80,
        "NVIDIA H100 architecture white paper; 132 SMs at 1,830 MHz";
    "a100_80gb_pcie" ["A100" "80GB" "PCIe"] not [] [19.5, 156.0, 312.0, 312.0, NONE, 624.0], 1.935 * T, Some(1410.0), 80,
        "NVIDIA A100 datasheet";
    "a100_80gb" ["A100" "80GB"] not ["PCIe"] [19.5, 156.0, 312.0, 312.0, NONE, 624.0], 2.039 * T, Some(1410.0), 80,
        "NVIDIA A100 datasheet";
    "a100_40gb" ["A100" "40GB"] not [] [19.5, 156.0, 312.0, 312.0, NONE, 624.0], 1.555 * T, Some(1410.0), 40,
        "NVIDIA A100 datasheet";
    "a30" ["A30"] not [] [10.3, 82.0, 165.0, 165.0, NONE, 330.0], 933.0 * G, Some(1440.0), 24,
        "NVIDIA A30 datasheet";
    "a40" ["A40"] not [] [37.4, 74.8, 149.7, 149.7, NONE, 299.3], 696.0 * G, Some(1740.0), 48,
        "NVIDIA A40 datasheet";
    "a10" ["A10"] not [] [31.2, 62.5, 125.0, 125.0, NONE, 250.0], 600.0 * G, Some(1695.0), 24,
        "NVIDIA A10 datasheet";
    "rtx_a6000" ["RTX" "A6000"] not [] [38.7, 77.4, 154.8, 154.8, NONE, 309.7], 768.0 * G, Some(1800.0), 48,
        "NVIDIA Ampere GA102 white paper";
    "l40s" ["L40S"] not [] [91.6, 183.0, 362.05, 362.05, 733.0, 733.0], 864.0 * G, Some(2490.0), 48,
        "NVIDIA L40S datasheet";
    "l40" ["L40"] not [] [90.5, 90.5, 181.05, 181.05, 362.0, 362.0], 864.0 * G, Some(2490.0), 48,
        "NVIDIA L40 datasheet";
    "l4" ["L4"] not [] [30.3, 60.0, 121.0, 121.0, 242.5, 242.5], 300.0 * G, Some(2040.0), 24,
        "NVIDIA L4 datasheet, sparse figures halved";
    "rtx_pro_6000" ["RTX" "PRO" "6000" "Blackwell"] not ["Server" "Max-Q"]
        [126.0, 251.9, 503.8, 503.8, 1007.6, 1007.6], 1.792 * T, Some(2617.0), 96,
        "NVIDIA RTX Blackwell PRO architecture white paper (Workstation Edition)";
    "rtx_6000_ada" ["RTX" "6000" "Ada"] not [] [91.1, 182.1, 364.2, 364.2, 728.5, 728.5], 960.0 * G, Some(2505.0), 48,
        "NVIDIA Ada GPU architecture white paper";
    "rtx_5090" ["RTX" "5090"] not ["Laptop" "D"] [104.8, 104.8, 209.5, 209.5, 419.0, 838.0], 1.792 * T, Some(2407.0), 32,
        "NVIDIA RTX Blackwell architecture white paper, f32 sums";
    "rtx_4090" ["RTX" "4090"] not ["Laptop" "D"] [82.6, 82.6, 165.2, 165.2, 330.3, 660.6], 1.008 * T, Some(2520.0), 24,
        "NVIDIA Ada GPU architecture white paper, f32 sums";
    "rtx_3090" ["RTX" "3090"] not ["Laptop" "Ti"] [35.6, 35.6, 71.0, 71.0, NONE, 284.0], 936.0 * G, Some(1695.0), 24,
        "NVIDIA Ampere GA102 white paper, f32 sums";
    "v100_pcie" ["V100" "PCIE"] not [] [14.0, NONE, 112.0, NONE, NONE, NONE], 900.0 * G, Some(1380.0), 16,
        "NVIDIA V100 datasheet";
    "v100" ["V100"] not ["PCIE"] [15.7, NONE, 125.0, NONE, NONE, NONE], 900.0 * G, Some(1530.0), 16,
        "NVIDIA V100 datasheet";
    "t4" ["T4"] not [] [8.1, NONE, 65.0, NONE, NONE, 130.0], 320.0 * G, Some(1590.0), 16,
        "NVIDIA T4 datasheet";
};

impl GpuPeaks {
    /// By the driver's name ("NVIDIA H100 80GB HBM3") or the short name.
    pub fn named(name: &str) -> Option<&'static GpuPeaks> {
        let words: Vec<String> = name
            .split(|c: char| !c.is_alphanumeric() && c != '.')
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect();
        let has = |wanted: &&str| {
            wanted.to_lowercase().split('-').all(|part| words.iter().any(|word| word == part))
        };
        let short = words.join("_");
        GPUS.iter()
            .find(|gpu| gpu.name == short)
            .or_else(|| GPUS.iter().find(|gpu| gpu.words.0.iter().all(has) && !gpu.words.1.iter().any(has)))
    }

    /// FLOP/s of `dtype`; `None` where it is not supported.
    pub fn flops_of(&self, dtype: &str) -> Option<f64> {
        self.flops.iter().find(|(name, _)| *name == dtype).map(|(_, flops)| *flops).filter(|f| *f > 0.0)
    }
}

/// The peaks of `gpu` (`None` without a GPU) in `dtype`, with those the user has `given`; or why they are not known, and
/// what to do.
pub fn peaks(gpu: Option<&str>, dtype: &str, given: GivenPeaks) -> Result<Peaks, String> {
    if let (Some(flops), Some(bytes_per_s)) = (given.flops, given.bytes_per_s) {
        let source = "given: hardware.peaks".to_owned();
        return Ok(Peaks { flops, bytes_per_s, clock_mhz: None, source, measured: None });
    }
    let Some(gpu) = gpu else {
        return Err(format!("no GPU is profiled, and the CPU's peaks are not known; set {OVERRIDE}"));
    };
    let known =
        GpuPeaks::named(gpu).ok_or_else(|| format!("the peaks of {gpu} are not known; set {OVERRIDE}"))?;
    let stated = known.flops_of(dtype);
    let flops = given
        .flops
        .or(stated)
        .ok_or_else(|| format!("the {dtype} peak of {gpu} is not known; set hardware.peaks.flops=…"))?;
    let partly = match given {
        GivenPeaks { flops: Some(_), .. } => " (hardware.peaks.flops given)",
        GivenPeaks { bytes_per_s: Some(_), .. } => " (hardware.peaks.bytes_per_s given)",
        _ => "",
    };
    Ok(Peaks {
        flops,
        bytes_per_s: given.bytes_per_s.unwrap_or(known.bytes_per_s),
        clock_mhz: known.clock_mhz.filter(|_| given.flops.is_none()),
        source: format!("{}{partly}", known.source),
        measured: known.measured,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_by_the_names_of_drivers() {
        for (name, wanted) in [
            ("NVIDIA H200", Some("h200")),
            ("NVIDIA H200 NVL", Some("h200_nvl")),
            ("NVIDIA GH200 480GB", Some("gh200")),
            ("NVIDIA H100 80GB HBM3", Some("h100")),
            ("NVIDIA H100 PCIe", Some("h100_pcie")),
            ("NVIDIA H100 NVL", Some("h100_nvl")),
            ("NVIDIA A100-SXM4-40GB", Some("a100_40gb")),
            ("NVIDIA A100-PCIE-40GB", Some("a100_40gb")),
            ("NVIDIA A100-SXM4-80GB", Some("a100_80gb")),
            ("NVIDIA A100 80GB PCIe", Some("a100_80gb_pcie")),
            ("NVIDIA L40S", Some("l40s")),
            ("NVIDIA L4", Some("l4")),
            ("NVIDIA A10", Some("a10")),
            ("NVIDIA A10G", None),
            ("NVIDIA GeForce RTX 4090", Some("rtx_4090")),
            ("NVIDIA GeForce RTX 4090 D", None),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
            ("NVIDIA GeForce RTX 5090", Some("rtx_5090")),
            ("NVIDIA GeForce RTX 3090", Some("rtx_3090")),
            ("NVIDIA RTX 6000 Ada Generation", Some("rtx_6000_ada")),
            ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", Some("rtx_pro_6000")),
            ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
            ("NVIDIA B200", Some("b200")),
            ("Tesla V100-SXM2-32GB", Some("v100")),
            ("Tesla V100-PCIE-16GB", Some("v100_pcie")),
            ("Tesla T4", Some("t4")),
            ("h100", Some("h100")),
            ("H100-PCIe", Some("h100_pcie")),
            ("rtx_4090", Some("rtx_4090")),
            ("NVIDIA GeForce GT 1030", None),
            ("", None),
        ] {
            assert_eq!(GpuPeaks::named(name).map(|gpu| gpu.name), wanted, "{name}");
        }
        for gpu in GPUS {
            assert_eq!(GpuPeaks::named(gpu.name).map(|found| found.name), Some(gpu.name));
        }
    }

    #[test]
    fn figures_are_dense_and_plausible() {
        for gpu in GPUS {
            let f16 = gpu.flops_of("f16").unwrap();
            assert!(f16 < 2500.0 * T && f16 >= gpu.flops_of("f32").unwrap(), "{}", gpu.name);
            // Plausible ridge points, in FLOP per byte.
            let ridge = f16 / gpu.bytes_per_s;
            assert!((70.0..450.0).contains(&ridge), "{}: {ridge}", gpu.name);
            assert!(gpu.bytes_per_s >= 300.0 * G && gpu.mem_bytes >= 16 * GB, "{}", gpu.name);
        }
        // 1979 is the sparse figure and would halve MFU.
        assert_eq!(GpuPeaks::named("NVIDIA H200").unwrap().flops_of("bf16"), Some(989.4e12));
        assert_eq!(GpuPeaks::named("Tesla T4").unwrap().flops_of("bf16"), None);
    }

    #[test]
    fn unknown_peaks_can_be_configured() {
        let none = GivenPeaks::default();
        for (gpu, dtype, words) in [
            (None, "f32", "no GPU is profiled"),
            (Some("NVIDIA X"), "bf16", "the peaks of NVIDIA X are not known"),
            (Some("Tesla T4"), "bf16", "the bf16 peak of Tesla T4 is not known"),
        ] {
            let why = peaks(gpu, dtype, none).unwrap_err();
            assert!(why.contains(words) && why.contains("hardware.peaks.flops="), "{why}");
        }
        let both = GivenPeaks { flops: Some(1e12), bytes_per_s: Some(5e10) };
        assert_eq!(peaks(None, "f32", both).unwrap().source, "given: hardware.peaks");
        let one = GivenPeaks { flops: Some(60e12), bytes_per_s: None };
        let t4 = peaks(Some("Tesla T4"), "bf16", one).unwrap();
        assert_eq!((t4.flops, t4.bytes_per_s, t4.clock_mhz), (60e12, 320e9, None));
        assert!(t4.source.contains("given"));
    }
}
