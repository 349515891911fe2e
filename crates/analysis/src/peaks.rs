//! Peak FLOP/s and bandwidth of GPUs: stated by the vendor, estimated from the driver's properties, or measured.

use std::fmt;

use serde::Serialize;

use llmprof_base::units::grouped;
use llmprof_event::{GivenPeaks, GpuInfo};

mod names;
mod table;
#[cfg(test)]
mod tests;
mod units;

pub use names::is_part;
use table::Figures;
pub use table::{GPUS, GpuPeaks, markdown};
use units::{TYPES, Units};

/// The rates of a large matrix product and a large read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// The bf16 rate before the power limit is reached, in FLOP/s.
    pub bf16_flops: f64,
    pub bytes_per_s: f64,
    pub how: &'static str,
}

/// The basis of peaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Figures of the vendor.
    Stated,
    /// Arithmetic: SMs × operations per clock × clock, and bus width × data rate.
    Estimated,
    /// Settings of the user.
    Given,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Basis::Stated => "stated",
            Basis::Estimated => "estimated",
            Basis::Given => "given",
        })
    }
}

/// The basis of a memory size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryBasis {
    /// The driver of this machine.
    Driver,
    /// What nvidia-smi shows for such a GPU.
    NvidiaSmi,
    /// The nominal capacity.
    Nominal,
    /// The nominal capacity, shared with the CPU.
    Shared,
}

impl fmt::Display for MemoryBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryBasis::Driver => "as the driver reports",
            MemoryBasis::NvidiaSmi => "as nvidia-smi shows it for such a GPU",
            MemoryBasis::Nominal => "nominal; the driver reserves a part",
            MemoryBasis::Shared => "nominal; shared with the CPU",
        })
    }
}

/// Peaks of one GPU and one type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Peaks {
    pub flops: f64,
    pub bytes_per_s: f64,
    /// The SM clock of `flops`.
    pub clock_mhz: Option<f64>,
    pub basis: Basis,
    /// The source of the numbers.
    pub source: String,
    pub measured: Option<Measured>,
}

/// The settings that configure peaks.
pub const OVERRIDE: &str = "hardware.peaks.flops=… hardware.peaks.bytes_per_s=…";

/// The command that measures peaks.
pub const MEASURE: &str = "llmprof-tui doctor --peaks measures them";

impl GpuPeaks {
    /// FLOP/s of `dtype`; `None` if it is not supported.
    pub fn flops_of(&self, dtype: &str) -> Option<f64> {
        self.rate(dtype).map(|rate| rate.flops)
    }

    /// The SM clock of [`GpuPeaks::flops_of`]; `None` if the vendor does not state it.
    pub fn clock_of(&self, dtype: &str) -> Option<f64> {
        self.rate(dtype)?.clock_mhz
    }

    fn rate(&self, dtype: &str) -> Option<Rate> {
        let index = TYPES.iter().position(|known| *known == dtype)?;
        let (flops, clock_mhz) = match self.figures {
            Figures::Tera(figures) => (figures[index] * 1e12, None),
            Figures::Clocks { units, sms, core_mhz, tensor_mhz } => {
                let mhz = if dtype == "f32" { core_mhz } else { tensor_mhz };
                (units.flops(index, sms, mhz)?, Some(mhz))
            }
        };
        (flops > 0.0).then_some(Rate { flops, clock_mhz })
    }

    fn device(&self) -> DevicePeaks {
        DevicePeaks {
            rates: TYPES.map(|dtype| self.rate(dtype)),
            bytes_per_s: self.bytes_per_s,
            basis: self.basis,
            source: match self.basis {
                Basis::Estimated => format!("estimated: {}", self.source),
                Basis::Stated | Basis::Given => self.source.to_owned(),
            },
            measured: self.measured,
        }
    }
}

/// FLOP/s, and the SM clock that they belong to.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rate {
    flops: f64,
    clock_mhz: Option<f64>,
}

/// The peaks of a GPU in every type.
struct DevicePeaks {
    /// In the order of [`TYPES`].
    rates: [Option<Rate>; 6],
    bytes_per_s: f64,
    basis: Basis,
    source: String,
    measured: Option<Measured>,
}

impl DevicePeaks {
    /// The peaks of a GPU as its driver describes it: those of its name in the table, else estimated; or the reason why
    /// there are none.
    fn from_gpu(gpu: &GpuInfo) -> Result<DevicePeaks, &'static str> {
        if gpu.mig == Some(true) || gpu.virtualization.is_some() || names::is_part(&gpu.name) {
            return Err("only a part of it may be used (MIG or vGPU)");
        }
        GpuPeaks::matching(&gpu.name, gpu.mem_total_bytes)
            .map(GpuPeaks::device)
            .or_else(|| Self::estimated(gpu))
            .ok_or("it is not in the table, and the driver does not report its cores, clocks and memory bus")
    }

    /// Estimated from the cores, the clocks and the memory bus that the driver reports.
    fn estimated(gpu: &GpuInfo) -> Option<DevicePeaks> {
        let units = Units::for_capability(gpu.compute_capability.as_deref()?, gpu.name.contains("GeForce"))?;
        let (sms, sm_mhz) = (gpu.cores? / units.cores, gpu.sm_clock_max_mhz?);
        let (bits, mem_mhz) = (gpu.mem_bus_bits?, gpu.mem_clock_max_mhz?);
        // Two transfers per clock.
        let bytes_per_s = 2.0 * f64::from(mem_mhz) * 1e6 * f64::from(bits) / 8.0;
        let rate = |index| {
            let flops = units.flops(index, sms, f64::from(sm_mhz))?;
            Some(Rate { flops, clock_mhz: Some(f64::from(sm_mhz)) })
        };
        (sms > 0 && bytes_per_s > 0.0).then(|| DevicePeaks {
            rates: std::array::from_fn(rate),
            bytes_per_s,
            basis: Basis::Estimated,
            source: format!(
                "estimated: {sms} SMs at {} MHz, a memory bus of {bits} bits at {} MHz, as the driver reports",
                grouped(i64::from(sm_mhz)),
                grouped(i64::from(mem_mhz))
            ),
            measured: None,
        })
    }
}

/// The peaks of the GPU called `gpu` (`None` without a GPU) in `dtype`, with those the user has `given`; or the reason
/// why they are not known, with the remedy.
pub fn peaks(gpu: Option<&str>, dtype: &str, given: GivenPeaks) -> Result<Peaks, String> {
    let known = |name: &str| match GpuPeaks::named(name) {
        Some(gpu) => Ok(gpu.device()),
        None if names::is_part(name) => Err("it is a part of a GPU (MIG or vGPU)"),
        None => Err("it is not in the table"),
    };
    with_given(gpu.map(|name| (name, known(name))), dtype, given)
}

/// Like [`peaks`], for a GPU as its driver describes it. A GPU that is not in the table gets an estimate.
pub fn peaks_of(gpu: Option<&GpuInfo>, dtype: &str, given: GivenPeaks) -> Result<Peaks, String> {
    with_given(gpu.map(|gpu| (gpu.name.as_str(), DevicePeaks::from_gpu(gpu))), dtype, given)
}

fn with_given(
    gpu: Option<(&str, Result<DevicePeaks, &'static str>)>,
    dtype: &str,
    given: GivenPeaks,
) -> Result<Peaks, String> {
    if let (Some(flops), Some(bytes_per_s)) = (given.flops, given.bytes_per_s) {
        let source = "given: hardware.peaks".to_owned();
        return Ok(Peaks {
            flops,
            bytes_per_s,
            clock_mhz: None,
            basis: Basis::Given,
            source,
            measured: None,
        });
    }
    let Some((name, known)) = gpu else {
        return Err(format!(
            "no GPU is profiled, and the CPU's peaks are not known; {MEASURE}: set {OVERRIDE}"
        ));
    };
    let known = known
        .map_err(|why| format!("the peaks of {name} are not known: {why}; {MEASURE}: set {OVERRIDE}"))?;
    let rate = TYPES.iter().position(|known| *known == dtype).and_then(|index| known.rates[index]);
    let given_rate = given.flops.map(|flops| Rate { flops, clock_mhz: None });
    let Rate { flops, clock_mhz } = given_rate.or(rate).ok_or_else(|| {
        format!("the {dtype} peak of {name} is not known; {MEASURE}: set hardware.peaks.flops=…")
    })?;
    let partly = match given {
        GivenPeaks { flops: Some(_), .. } => " (hardware.peaks.flops given)",
        GivenPeaks { bytes_per_s: Some(_), .. } => " (hardware.peaks.bytes_per_s given)",
        _ => "",
    };
    Ok(Peaks {
        flops,
        bytes_per_s: given.bytes_per_s.unwrap_or(known.bytes_per_s),
        clock_mhz,
        basis: known.basis,
        source: format!("{}{partly}", known.source),
        measured: known.measured,
    })
}
