//! Measured peaks of a device: large matrix products, reads and copies, next to the specified ones.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thiserror::Error;

use crate::work::kind_of;
use llmprof_analysis::peaks::GpuPeaks;
use llmprof_base::{
    cells,
    table::Table,
    units::{Unit, percent},
};
use llmprof_config::{Composed, Dtype};
use llmprof_engine::{
    device,
    load::{Load, Loadable},
};
use llmprof_event::{Device, WorkKind};
use llmprof_workload::{Control, EngineError};

/// Uncounted calls of each load, which touch the buffers and let libraries select their kernels.
const WARM_UP: usize = 2;
/// A steady rate below this share of the best is reported.
const STEADY_SHARE: f64 = 0.97;

#[derive(Debug, Error)]
pub enum PeaksError {
    #[error("a simulated device has no peaks to measure; remove runtime=sim")]
    Simulated,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The measured peaks of one device.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredPeaks {
    pub device: Device,
    /// The name by the driver or the system.
    pub name: String,
    pub rows: Vec<MeasuredRate>,
}

/// Rates of one load, in FLOP/s or B/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredRate {
    pub load: Load,
    pub calls: usize,
    /// The fastest call.
    pub best: f64,
    /// The median of the second half of the calls, when power and temperature have settled.
    pub steady: f64,
    /// The specified peak, if known.
    pub stated: Option<f64>,
}

/// The device that a run with this configuration would use, and the threads of a CPU.
pub fn device(composed: &Composed) -> Result<(Device, Option<u32>), PeaksError> {
    let config = &composed.config;
    if kind_of(config.runtime.name) == WorkKind::Sim {
        return Err(PeaksError::Simulated);
    }
    let device = device::resolve(&config.runtime.device, config.hardware.device_index)?;
    Ok((device, config.runtime.threads))
}

/// Runs each load on the device for `duration`. `progress` is called before each.
pub fn measure(
    device: Device,
    threads: Option<u32>,
    duration: Duration,
    control: &Control,
    progress: &mut (dyn FnMut(Load) + Send),
) -> Result<MeasuredPeaks, PeaksError> {
    let mut loadable = device::loadable(&device, threads)?;
    let name = loadable.name();
    let stated = GpuPeaks::named(&name);
    let mut rows = Vec::new();
    for load in loadable.loads() {
        progress(load);
        loadable.prepare(load)?;
        let rates = rates(loadable.as_mut(), duration, control)?;
        rows.extend(MeasuredRate::new(load, &rates, stated));
    }
    Ok(MeasuredPeaks { device, name, rows })
}

fn rates(device: &mut dyn Loadable, duration: Duration, control: &Control) -> Result<Vec<f64>, EngineError> {
    for _ in 0..WARM_UP {
        device.once()?;
    }
    let begun = Instant::now();
    let mut rates = Vec::new();
    while begun.elapsed() < duration || rates.is_empty() {
        if control.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        rates.extend(device.once()?.per_s());
    }
    Ok(rates)
}

impl MeasuredRate {
    fn new(load: Load, rates: &[f64], gpu: Option<&GpuPeaks>) -> Option<MeasuredRate> {
        let best = rates.iter().copied().max_by(f64::total_cmp)?;
        let mut second_half = rates[rates.len() / 2..].to_vec();
        second_half.sort_by(f64::total_cmp);
        let stated = gpu.and_then(|gpu| match load {
            Load::Product(dtype) => gpu.flops_of(dtype.name()),
            Load::Read | Load::Copy => Some(gpu.bytes_per_s),
        });
        Some(MeasuredRate {
            load,
            calls: rates.len(),
            best,
            steady: second_half[second_half.len() / 2],
            stated,
        })
    }

    fn unit(&self) -> &'static str {
        match self.load {
            Load::Product(_) => "FLOP/s",
            Load::Read | Load::Copy => "B/s",
        }
    }
}

impl MeasuredPeaks {
    fn steady(&self, load: Load) -> Option<f64> {
        self.rows.iter().find(|row| row.load == load).map(|row| row.steady)
    }

    /// The overrides that make a run with `dtype` use the measured peaks.
    fn overrides(&self, dtype: Dtype) -> Option<String> {
        let flops = self.steady(Load::Product(dtype))?;
        let bytes =
            [Load::Read, Load::Copy].iter().filter_map(|load| self.steady(*load)).max_by(f64::total_cmp)?;
        Some(format!("hardware.peaks.flops={flops:.3e} hardware.peaks.bytes_per_s={bytes:.3e}"))
    }

    fn dtypes(&self) -> impl Iterator<Item = Dtype> + '_ {
        self.rows.iter().filter_map(|row| match row.load {
            Load::Product(dtype) => Some(dtype),
            Load::Read | Load::Copy => None,
        })
    }

    pub fn text(&self) -> String {
        let mut table = Table::labelled("", ["best", "steady", "specified", "share", "calls"]);
        for row in &self.rows {
            let speed = Unit::Scaled(row.unit());
            table.push(cells![
                row.load.to_string(),
                speed.cell(row.best),
                speed.cell(row.steady),
                speed.cell(row.stated),
                Unit::Share.cell(row.stated.map(|stated| row.steady / stated)),
                row.calls,
            ]);
        }
        let mut out = format!("{} ({})\n\n{}\n", self.name, self.device, table.text());
        out += "\nbest: the fastest call; steady: the median of the second half, when power and temperature have \
                settled; share: steady of specified.\n\
                read: a large matrix times a vector, as in decode; copy: bytes read and written.\n";
        for row in self.rows.iter().filter(|row| row.steady < STEADY_SHARE * row.best) {
            let drop_pct = (1.0 - row.steady / row.best) * 100.0;
            out += &format!("{}: drops by {} under load.\n", row.load, percent(drop_pct));
        }
        out += "\nOverrides to use the measured peaks in a run or in `cost`:\n";
        for dtype in self.dtypes() {
            if let Some(overrides) = self.overrides(dtype) {
                out += &format!("  {:<5} {overrides}\n", dtype.name());
            }
        }
        out
    }

    pub fn json(&self) -> Value {
        let row = |row: &MeasuredRate| {
            json!({
                "load": row.load.to_string(),
                "unit": row.unit(),
                "calls": row.calls,
                "best": row.best,
                "steady": row.steady,
                "stated": row.stated,
            })
        };
        json!({
            "schema": 1,
            "place": self.device,
            "device": self.name,
            "loads": self.rows.iter().map(row).collect::<Vec<_>>(),
            "overrides": self.dtypes().map(|dtype| (dtype.name().to_owned(), json!(self.overrides(dtype)))).collect::<serde_json::Map<_, _>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_steady_and_specified() {
        let h200 = GpuPeaks::named("NVIDIA H200");
        let rates = [700e12, 800e12, 790e12, 690e12, 680e12, 685e12];
        let product = MeasuredRate::new(Load::Product(Dtype::Bf16), &rates, h200).unwrap();
        assert_eq!((product.best, product.steady, product.calls), (800e12, 685e12, 6));
        assert_eq!(product.stated, Some(989.4e12));
        let read = MeasuredRate::new(Load::Read, &[4.5e12], h200).unwrap();
        assert_eq!((read.steady, read.stated), (4.5e12, Some(4.8e12)));
        assert_eq!(MeasuredRate::new(Load::Copy, &[], h200), None);

        let measured = MeasuredPeaks {
            device: Device::Cuda(0),
            name: "NVIDIA H200".into(),
            rows: vec![product, read, MeasuredRate::new(Load::Copy, &[4.2e12], None).unwrap()],
        };
        let text = measured.text();
        assert!(text.contains("GEMM, bf16") && text.contains("685 TFLOP/s"), "{text}");
        assert!(text.contains("GEMM, bf16: drops by 14 % under load"), "{text}");
        assert!(!text.contains("read: drops"), "{text}");
        let overrides = "hardware.peaks.flops=6.850e14 hardware.peaks.bytes_per_s=4.500e12";
        assert!(text.contains(overrides), "{text}");
        assert_eq!(measured.json()["overrides"]["bf16"], overrides);
        assert_eq!(measured.json()["loads"][2]["stated"], Value::Null);
    }

    #[test]
    fn the_overrides_are_valid() {
        let row = |load, steady| MeasuredRate { load, calls: 1, best: steady, steady, stated: None };
        let rows = vec![row(Load::Product(Dtype::F32), 96.12e9), row(Load::Read, 21.4e9)];
        let measured = MeasuredPeaks { device: Device::Cpu, name: "cpu".into(), rows };
        let overrides: Vec<String> =
            measured.overrides(Dtype::F32).unwrap().split(' ').map(str::to_owned).collect();
        let tree = llmprof_config::built_in();
        let peaks = llmprof_config::compose(&tree, &overrides).unwrap().config.hardware.peaks;
        assert_eq!((peaks.flops, peaks.bytes_per_s), (Some(96.12e9), Some(21.4e9)));
    }

    #[test]
    fn a_simulated_device_is_refused() {
        let tree = llmprof_config::built_in();
        let simulated = llmprof_config::compose(&tree, &["runtime=sim".to_owned()]).unwrap();
        assert!(matches!(device(&simulated), Err(PeaksError::Simulated)));
    }
}
