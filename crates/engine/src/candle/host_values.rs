//! Weights as numbers in host memory, for devices that candle does not drive.

use candle_core::DType;
use half::{bf16, f16};

use super::WeightSource;
use crate::EngineError;
use llm_cost::spec::TensorShape;
use llmprof_config::Dtype;

/// Values in the requested type.
pub enum HostValues {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

/// The named tensors, one after the other.
pub fn host_values(
    source: &dyn WeightSource,
    parts: &[TensorShape],
    dtype: Dtype,
) -> Result<HostValues, EngineError> {
    let tensor = source.stacked(parts, dtype)?.flatten_all()?;
    Ok(match dtype {
        Dtype::F32 => HostValues::F32(tensor.to_vec1()?),
        Dtype::F16 => HostValues::F16(tensor.to_vec1()?),
        Dtype::Bf16 => HostValues::Bf16(tensor.to_vec1()?),
    })
}

/// As [`host_values`], widened: f32 with the values they have in `dtype`.
pub fn widened(
    source: &dyn WeightSource,
    parts: &[TensorShape],
    dtype: Dtype,
) -> Result<Vec<f32>, EngineError> {
    Ok(source.stacked(parts, dtype)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}
