//! The CPU under load.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use decoder_ops::gemv;
use rayon::{ThreadPool, prelude::*};

use super::{CandleResult, thread_pool};
use crate::load::{Load, LoadDone, Loadable};
use llmprof_config::Dtype;
use llmprof_workload::EngineError;

/// Rows and columns of a GEMM's matrices.
const SIDE: usize = 1024;
/// Bytes read or copied: far more than the caches hold.
const BYTES: usize = 256 << 20;
const COLUMNS: usize = 4096;
/// Bytes that one thread copies at a time.
const PIECE: usize = 64 * 1024;

/// All cores, or the requested number of threads.
pub struct LoadedCpu {
    pool: ThreadPool,
    work: Option<LoadBuffers>,
}

enum LoadBuffers {
    Product(Tensor, Tensor),
    Read { matrix: Tensor, vector: Tensor },
    Copy { from: Vec<f32>, to: Vec<f32> },
}

impl LoadedCpu {
    pub fn new(threads: Option<u32>) -> Result<LoadedCpu, EngineError> {
        Ok(LoadedCpu { pool: thread_pool(threads)?, work: None })
    }
}

fn random(shape: &[usize]) -> candle_core::Result<Tensor> {
    Tensor::rand(-1f32, 1f32, shape, &Device::Cpu)
}

impl Loadable for LoadedCpu {
    fn name(&self) -> String {
        format!("cpu, {} threads", self.pool.current_num_threads())
    }

    /// The engine multiplies in f32 here, for all storage types.
    fn loads(&self) -> Vec<Load> {
        vec![Load::Product(Dtype::F32), Load::Read, Load::Copy]
    }

    fn prepare(&mut self, load: Load) -> Result<(), EngineError> {
        self.work = None;
        self.work = Some(match load {
            Load::Product(_) => {
                LoadBuffers::Product(random(&[SIDE, SIDE]).backend()?, random(&[SIDE, SIDE]).backend()?)
            }
            Load::Read => {
                // The values do not matter for a read.
                let matrix =
                    Tensor::ones((BYTES / 4 / COLUMNS, COLUMNS), DType::F32, &Device::Cpu).backend()?;
                LoadBuffers::Read { matrix, vector: random(&[1, COLUMNS]).backend()? }
            }
            Load::Copy => LoadBuffers::Copy { from: vec![1.0; BYTES / 4], to: vec![0.0; BYTES / 4] },
        });
        Ok(())
    }

    fn once(&mut self) -> Result<LoadDone, EngineError> {
        let begun = Instant::now();
        let done = |amount: usize, took: Duration| LoadDone { amount: amount as f64, took };
        let Some(work) = &mut self.work else {
            return Err(EngineError::Backend("the load is not prepared".to_owned()));
        };
        self.pool.install(|| match work {
            LoadBuffers::Product(a, b) => {
                a.matmul(b).backend()?;
                Ok(done(2 * SIDE * SIDE * SIDE, begun.elapsed()))
            }
            LoadBuffers::Read { matrix, vector } => {
                gemv(vector, matrix).backend()?;
                Ok(done(BYTES, begun.elapsed()))
            }
            LoadBuffers::Copy { from, to } => {
                let pieces = from.par_chunks(PIECE).zip(to.par_chunks_mut(PIECE));
                pieces.for_each(|(from, to)| to.copy_from_slice(from));
                Ok(done(2 * BYTES, begun.elapsed()))
            }
        })
    }
}
