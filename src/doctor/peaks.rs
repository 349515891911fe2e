//! What the device can really do at most: large products, reads and copies, beside what its maker states.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thiserror::Error;

use crate::{
    analysis::peaks::GpuPeaks,
    base::table::aligned,
    base::units::{percent, scaled, three_digits},
    config::{Composed, Dtype, Runtime},
    engine::{
        EngineError, device,
        driver::Control,
        load::{Load, Loadable},
    },
    event::Device,
};

/// Calls of each load before it counts: buffers are touched, libraries have chosen their kernels.
const WARM_UP: usize = 2;
/// A device that gives less than this part of its best after a while is said to.
const FALLS: f64 = 0.97;

#[derive(Debug, Error)]
pub enum PeaksError {
    #[error("a simulated device has no peaks to measure; leave runtime=sim out")]
    Simulated,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What was measured of one device.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredPeaks {
    pub device: Device,
    /// As the driver or the system calls it.
    pub name: String,
    pub rows: Vec<Row>,
}

/// Rates of one load, in operations or bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub load: Load,
    pub calls: usize,
    /// Of the fastest call.
    pub best: f64,
    /// The median of the later half of the calls: what is left once power and heat have settled.
    pub steady: f64,
    /// What the maker states, where that is known here.
    pub stated: Option<f64>,
}

/// Where to measure: the device that a run of this configuration would be on, and threads for a CPU.
pub fn device(composed: &Composed) -> Result<(Device, Option<u32>), PeaksError> {
    let config = &composed.config;
    if config.runtime.name == Runtime::Sim {
        return Err(PeaksError::Simulated);
    }
    let device = device::resolve(&config.runtime.device, config.hardware.device_index)?;
    Ok((device, config.runtime.threads))
}

/// Puts the device under each load for `each`. `tell` hears how far it is.
pub fn measure(
    device: Device,
    threads: Option<u32>,
    each: Duration,
    control: &Control,
    tell: &mut (dyn FnMut(&str) + Send),
) -> Result<MeasuredPeaks, PeaksError> {
    let mut loadable = device::loadable(&device, threads)?;
    let name = loadable.name();
    let stated = GpuPeaks::named(&name);
    let mut rows = Vec::new();
    for load in loadable.loads() {
        tell(&format!("{load} for {} s", three_digits(each.as_secs_f64())));
        loadable.prepare(load)?;
        let rates = rates(loadable.as_mut(), each, control)?;
        rows.extend(Row::of(load, &rates, stated));
    }
    Ok(MeasuredPeaks { device, name, rows })
}

fn rates(device: &mut dyn Loadable, each: Duration, control: &Control) -> Result<Vec<f64>, EngineError> {
    for _ in 0..WARM_UP {
        device.once()?;
    }
    let begun = Instant::now();
    let mut rates = Vec::new();
    while begun.elapsed() < each || rates.is_empty() {
        if control.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        rates.extend(device.once()?.per_s());
    }
    Ok(rates)
}

impl Row {
    fn of(load: Load, rates: &[f64], gpu: Option<&GpuPeaks>) -> Option<Row> {
        let best = rates.iter().copied().max_by(f64::total_cmp)?;
        let mut later = rates[rates.len() / 2..].to_vec();
        later.sort_by(f64::total_cmp);
        let stated = gpu.and_then(|gpu| match load {
            Load::Product(dtype) => gpu.flops_of(dtype.name()),
            Load::Read | Load::Copy => Some(gpu.bytes_per_s),
        });
        Some(Row { load, calls: rates.len(), best, steady: later[later.len() / 2], stated })
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

    /// What makes a run of `dtype` reckon with what was measured here.
    fn overrides(&self, dtype: Dtype) -> Option<String> {
        let flops = self.steady(Load::Product(dtype))?;
        // Whichever is nearer to what the memory gives.
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
        let mut rows = vec![["", "best", "steady", "stated", "of it", "calls"].map(str::to_owned)];
        for row in &self.rows {
            let none = || "–".to_owned();
            let of_it = row.stated.map(|stated| percent(row.steady / stated * 100.0));
            rows.push([
                row.load.to_string(),
                scaled(row.best, row.unit()),
                scaled(row.steady, row.unit()),
                row.stated.map_or_else(none, |stated| scaled(stated, row.unit())),
                of_it.unwrap_or_else(none),
                row.calls.to_string(),
            ]);
        }
        let table = aligned(&rows, |column| column > 0);
        let mut out = format!("{} ({})\n\n{table}\n", self.name, self.device);
        out += "\nbest: the fastest call; steady: the median of the later half, once power and heat have settled.\n\
                read: a large matrix times a vector, as decode does; copy: bytes read and bytes written.\n";
        for row in self.rows.iter().filter(|row| row.steady < FALLS * row.best) {
            out += &format!(
                "{}: falls by {} under load.\n",
                row.load,
                percent((1.0 - row.steady / row.best) * 100.0)
            );
        }
        out += "\nSo that a run, or `cost`, reckons with what was measured:\n";
        for dtype in self.dtypes() {
            if let Some(overrides) = self.overrides(dtype) {
                out += &format!("  {:<5} {overrides}\n", dtype.name());
            }
        }
        out
    }

    pub fn json(&self) -> Value {
        let row = |row: &Row| {
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
    fn best_steady_and_stated() {
        let h200 = GpuPeaks::named("NVIDIA H200");
        let rates = [700e12, 800e12, 790e12, 690e12, 680e12, 685e12];
        let product = Row::of(Load::Product(Dtype::Bf16), &rates, h200).unwrap();
        assert_eq!((product.best, product.steady, product.calls), (800e12, 685e12, 6));
        assert_eq!(product.stated, Some(989.4e12));
        let read = Row::of(Load::Read, &[4.5e12], h200).unwrap();
        assert_eq!((read.steady, read.stated), (4.5e12, Some(4.8e12)));
        assert_eq!(Row::of(Load::Copy, &[], h200), None);

        let measured = MeasuredPeaks {
            device: Device::Cuda(0),
            name: "NVIDIA H200".into(),
            rows: vec![product, read, Row::of(Load::Copy, &[4.2e12], None).unwrap()],
        };
        let text = measured.text();
        assert!(text.contains("product, bf16") && text.contains("685 TFLOP/s"), "{text}");
        assert!(text.contains("product, bf16: falls by 14.4 % under load"), "{text}");
        assert!(!text.contains("read: falls"), "{text}");
        let overrides = "hardware.peaks.flops=6.850e14 hardware.peaks.bytes_per_s=4.500e12";
        assert!(text.contains(overrides), "{text}");
        assert_eq!(measured.json()["overrides"]["bf16"], overrides);
        assert_eq!(measured.json()["loads"][2]["stated"], Value::Null);
    }

    #[test]
    fn the_overrides_are_ones_that_a_run_takes() {
        let row = |load, steady| Row { load, calls: 1, best: steady, steady, stated: None };
        let rows = vec![row(Load::Product(Dtype::F32), 96.12e9), row(Load::Read, 21.4e9)];
        let measured = MeasuredPeaks { device: Device::Cpu, name: "cpu".into(), rows };
        let overrides: Vec<String> =
            measured.overrides(Dtype::F32).unwrap().split(' ').map(str::to_owned).collect();
        let tree = crate::config::ConfTree::built_in();
        let peaks = crate::config::compose(&tree, &overrides).unwrap().config.hardware.peaks;
        assert_eq!((peaks.flops, peaks.bytes_per_s), (Some(96.12e9), Some(21.4e9)));
    }

    #[test]
    fn a_simulation_has_none() {
        let tree = crate::config::ConfTree::built_in();
        let simulated = crate::config::compose(&tree, &["runtime=sim".to_owned()]).unwrap();
        assert!(matches!(super::device(&simulated), Err(PeaksError::Simulated)));
    }
}
