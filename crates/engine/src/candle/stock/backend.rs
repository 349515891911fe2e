//! The source of tensors for candle-transformers' constructors.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};

use super::super::Tensors;
use crate::weights::{SafetensorsFiles, SyntheticWeights};
use llm_cost::spec::TensorShape;
use llmprof_config::Dtype;
use llmprof_workload::{PrepareStep, Progress};

/// A tensor with at least so many values, which are not compared, is drawn on its device.
const DRAWN_ON_DEVICE: usize = 1 << 20;

/// Records each tensor that a model requests, and returns zeros that take no memory.
pub(super) struct Counting<'a> {
    pub wanted: &'a Mutex<Vec<TensorShape>>,
    pub has: &'a (dyn Fn(&str) -> bool + Sync),
}

impl<'a> Counting<'a> {
    pub fn builder(self, dtype: DType) -> VarBuilder<'a> {
        VarBuilder::new_with_args(Box::new(self), dtype, &Device::Cpu)
    }
}

impl SimpleBackend for Counting<'_> {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.push(TensorShape { name: name.to_owned(), shape: shape.dims().to_vec() });
        nothing(&shape, dtype, device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} was requested without its shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        (self.has)(name)
    }
}

/// A single zero, broadcast to the shape.
fn nothing(shape: &Shape, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::zeros((), dtype, device)?.broadcast_as(shape)
}

/// The source of the values.
pub(super) enum Values<'a> {
    Synthetic {
        weights: SyntheticWeights,
        /// The same values on every device, for comparison with another engine.
        comparable: bool,
    },
    Files(&'a SafetensorsFiles),
}

/// Loads the tensors of a model and reports progress.
pub(super) struct Feeding<'a> {
    pub values: Values<'a>,
    pub has: &'a (dyn Fn(&str) -> bool + Sync),
    pub progress: Mutex<(Progress<'a>, u64)>,
    pub total: u64,
    /// Set when the work should stop. The remaining tensors are then empty rather than missing: constructors may
    /// panic if a tensor is missing.
    pub cancelled: &'a AtomicBool,
}

impl<'a> Feeding<'a> {
    pub fn builder(self, dtype: DType, device: &Device) -> VarBuilder<'a> {
        VarBuilder::new_with_args(Box::new(self), dtype, device)
    }

    /// Whether to continue.
    fn report(&self, name: &str, elements: usize) -> bool {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let (progress_fn, done) = &mut *progress;
        if !self.cancelled.load(Ordering::Relaxed)
            && !progress_fn(PrepareStep::Weights(name), *done, self.total)
        {
            self.cancelled.store(true, Ordering::Relaxed);
        }
        *done += elements as u64;
        !self.cancelled.load(Ordering::Relaxed)
    }
}

impl SimpleBackend for Feeding<'_> {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        if !self.report(name, shape.elem_count()) {
            return nothing(&shape, dtype, device);
        }
        let wanted = TensorShape { name: name.to_owned(), shape: shape.dims().to_vec() };
        let tensor = match &self.values {
            Values::Synthetic { comparable: false, .. }
                if device.is_cuda() && shape.elem_count() >= DRAWN_ON_DEVICE =>
            {
                return drawn_on_device(&shape, dtype, device);
            }
            Values::Synthetic { weights, .. } => {
                // A stack of small matrices, e.g. the kernels of a convolution, is drawn as rows.
                let columns = wanted.shape.last().copied().unwrap_or(1);
                let flat = match wanted.shape.len() {
                    0..=2 => wanted.shape.clone(),
                    _ => vec![shape.elem_count() / columns, columns],
                };
                let flat = TensorShape { name: wanted.name, shape: flat };
                weights.tensor(&flat, stored(dtype)?).map_err(candle_core::Error::wrap)?.reshape(&shape)?
            }
            Values::Files(files) => {
                files.tensor(&wanted, stored(dtype)?).map_err(candle_core::Error::wrap)?
            }
        };
        tensor.to_device(device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} was requested without its shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        (self.has)(name)
    }
}

/// Uniform with variance 1 / columns, like synthetic matrices. The device's generator supports only f32.
fn drawn_on_device(shape: &Shape, dtype: DType, device: &Device) -> Result<Tensor> {
    let columns = shape.dims().last().copied().unwrap_or(1);
    let spread = (3.0 / columns as f32).sqrt();
    Tensor::rand(-spread, spread, shape, device)?.to_dtype(dtype)
}

fn stored(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::F16 => Ok(Dtype::F16),
        DType::BF16 => Ok(Dtype::Bf16),
        other => candle_core::bail!("weights are kept as f32, f16 or bf16, not {other:?}"),
    }
}
