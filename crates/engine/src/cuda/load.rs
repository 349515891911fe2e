//! Saturating loads for a GPU.

use std::time::Duration;

use cudarc::driver::CudaEvent;

use super::{
    CudaError,
    gpu::{Buffer, Gpu},
    images::Needs,
    kernels::{Kernels, Matrix, Values},
};
use crate::load::{Load, LoadDone, Loadable};
use llm_cost::spec::Activation;
use llmprof_config::Dtype;
use llmprof_workload::EngineError;

/// Rows and columns of a GEMM's matrices.
const SIDE: usize = 8192;
/// Rows and columns of the matrix of the read load, in bf16: 2 GiB, much more than the caches.
const READ: (usize, usize) = (131_072, 8192);
const COPY_BYTES: usize = 2 << 30;

pub struct LoadedGpu {
    kernels: Kernels,
    events: (CudaEvent, CudaEvent),
    work: Option<LoadBuffers>,
}

enum LoadBuffers {
    Product { y: Buffer, x: Buffer, w: Matrix },
    Read { y: Buffer, x: Buffer, w: Matrix },
    Copy { from: Buffer, to: Buffer },
}

impl LoadedGpu {
    pub fn new(index: usize) -> Result<LoadedGpu, CudaError> {
        let mut gpu = Gpu::open(index, true)?;
        gpu.load_kernels(Dtype::Bf16, Needs::default(), &mut |_, _| true)?;
        let events = (gpu.event()?, gpu.event()?);
        let kernels = Kernels { gpu, dtype: Dtype::Bf16, activation: Activation::Silu, scratch: None };
        Ok(LoadedGpu { kernels, events, work: None })
    }

    /// Random values: with zeros a GPU draws less power and clocks higher.
    fn random(&self, rows: usize, columns: usize) -> Result<Buffer, CudaError> {
        let bytes = rows * columns * self.kernels.dtype.bytes() as usize;
        let buffer = self.kernels.gpu.alloc("the load", bytes)?;
        self.kernels.synthetic((&buffer).into(), rows as u64, (rows, columns), (0.0, 1.0))?;
        Ok(buffer)
    }

    fn make(&self, load: Load) -> Result<LoadBuffers, CudaError> {
        let gpu = &self.kernels.gpu;
        let element = self.kernels.dtype.bytes() as usize;
        let work = match load {
            Load::Product(_) => LoadBuffers::Product {
                y: gpu.alloc("the load", SIDE * SIDE * element)?,
                x: self.random(SIDE, SIDE)?,
                w: Matrix { values: Values::Plain(self.random(SIDE, SIDE)?), rows: SIDE, columns: SIDE },
            },
            Load::Read => {
                let (rows, columns) = READ;
                LoadBuffers::Read {
                    y: gpu.alloc("the load", rows * element)?,
                    x: self.random(1, columns)?,
                    w: Matrix { values: Values::Plain(self.random(rows, columns)?), rows, columns },
                }
            }
            Load::Copy => LoadBuffers::Copy {
                from: gpu.zeros("the load", COPY_BYTES)?,
                to: gpu.alloc("the load", COPY_BYTES)?,
            },
        };
        gpu.synchronize()?;
        Ok(work)
    }

    fn run(&self, work: &LoadBuffers) -> Result<LoadDone, CudaError> {
        let gpu = &self.kernels.gpu;
        gpu.record(&self.events.0)?;
        let amount = match work {
            LoadBuffers::Product { y, x, w } => {
                self.kernels.linear(y, x, w, SIDE, None, false)?;
                2.0 * (SIDE as f64).powi(3)
            }
            LoadBuffers::Read { y, x, w } => {
                self.kernels.linear(y, x, w, 1, None, false)?;
                (w.rows * w.columns) as f64 * self.kernels.dtype.bytes() as f64
            }
            LoadBuffers::Copy { from, to } => {
                gpu.copy(from, to)?;
                2.0 * COPY_BYTES as f64
            }
        };
        gpu.record(&self.events.1)?;
        self.events.1.synchronize()?;
        let ms = self.events.0.elapsed_ms(&self.events.1)?;
        Ok(LoadDone { amount, took: Duration::from_secs_f64(f64::from(ms) / 1e3) })
    }
}

impl Loadable for LoadedGpu {
    fn name(&self) -> String {
        self.kernels.gpu.name()
    }

    fn loads(&self) -> Vec<Load> {
        let products = [Dtype::Bf16, Dtype::F16, Dtype::F32].map(Load::Product);
        products.into_iter().chain([Load::Read, Load::Copy]).collect()
    }

    fn prepare(&mut self, load: Load) -> Result<(), EngineError> {
        self.work = None;
        self.kernels.dtype = match load {
            Load::Product(dtype) => dtype,
            Load::Read | Load::Copy => Dtype::Bf16,
        };
        self.work = Some(self.make(load)?);
        Ok(())
    }

    fn once(&mut self) -> Result<LoadDone, EngineError> {
        match &self.work {
            Some(work) => Ok(self.run(work)?),
            None => Err(EngineError::Backend("no load is prepared".to_owned())),
        }
    }
}
