//! A weight matrix in memory: in the model's type, or quantised.

use std::sync::Arc;

use candle_core::{
    Device, Result, Tensor,
    quantized::{QStorage, QTensor},
};
use decoder_ops::{Panels, quantised_linear, quantised_rows};

use super::CandleResult;
use crate::weights::{Kind, QuantisedRows, Values, WeightSource};
use llm_cost::spec::TensorShape;
use llmprof_config::Dtype;
use llmprof_workload::EngineError;

/// The tensors of a source as candle's.
pub trait Tensors: WeightSource {
    /// The named tensors, stacked along the first dimension; the rest of their shapes is the same.
    fn stacked(&self, parts: &[TensorShape], dtype: Dtype) -> std::result::Result<Tensor, EngineError> {
        let mut shape = parts[0].shape.clone();
        shape[0] = parts.iter().map(|part| part.shape[0]).sum();
        let tensor = match self.values(parts, dtype)? {
            Values::F32(values) => Tensor::from_vec(values, shape, &Device::Cpu),
            Values::F16(values) => Tensor::from_vec(values, shape, &Device::Cpu),
            Values::Bf16(values) => Tensor::from_vec(values, shape, &Device::Cpu),
        };
        tensor.backend()
    }

    fn tensor(&self, tensor: &TensorShape, dtype: Dtype) -> std::result::Result<Tensor, EngineError> {
        self.stacked(std::slice::from_ref(tensor), dtype)
    }

    /// The named tensors, stacked, as a weight matrix. Quantised ones stay so, regardless of `dtype`: `blocks` makes a
    /// matrix of them.
    fn matrix(
        &self,
        parts: &[TensorShape],
        dtype: Dtype,
        blocks: fn(&[QuantisedRows], usize) -> Result<Matrix>,
    ) -> std::result::Result<Matrix, EngineError> {
        let quantised = |parts: &[TensorShape]| match self.blocks(parts)? {
            Some(runs) => Ok(Some(blocks(&runs, parts[0].shape[1]).backend()?)),
            None => Ok(None),
        };
        if let Some(matrix) = quantised(parts)? {
            return Ok(matrix);
        }
        // Some of them may be quantised.
        let each = parts.iter().map(|part| quantised(std::slice::from_ref(part)));
        let each = each.collect::<std::result::Result<Vec<_>, EngineError>>()?;
        if each.iter().all(Option::is_none) {
            return self.stacked(parts, dtype).map(Matrix::plain);
        }
        let whole = each.into_iter().zip(parts).map(|(matrix, part)| match matrix {
            Some(matrix) => Ok(matrix),
            None => self.tensor(part, dtype).map(Matrix::plain),
        });
        Ok(Matrix::stacked(whole.collect::<std::result::Result<Vec<_>, EngineError>>()?))
    }
}

impl<S: WeightSource + ?Sized> Tensors for S {}

/// A matrix (rows, columns) that activations are multiplied with. It may consist of several parts, stacked by
/// rows: quantised parts of different types cannot be joined.
#[derive(Clone)]
pub struct Matrix(Vec<WeightBlock>);

#[derive(Clone)]
enum WeightBlock {
    Plain(Tensor),
    /// Blocks of GGUF, which candle multiplies on threads of its own.
    Blocks(Arc<QTensor>),
    /// The same in the order in which we multiply them.
    Panels(Arc<Panels>),
}

impl Matrix {
    pub fn plain(tensor: Tensor) -> Matrix {
        Matrix(vec![WeightBlock::Plain(tensor)])
    }

    /// Rows of several types, each of `columns`, for candle's own GEMMs.
    pub(super) fn candle_blocks(runs: &[QuantisedRows], columns: usize) -> Result<Matrix> {
        let part = |run: &QuantisedRows| {
            let Some(dtype) = Kind::Quantised(run.format).candle() else {
                return Matrix::panels(run, columns);
            };
            let storage = QStorage::from_data((&run.bytes).into(), &Device::Cpu, dtype)?;
            Ok(WeightBlock::Blocks(Arc::new(QTensor::new(storage, (run.rows, columns))?)))
        };
        Ok(Matrix(runs.iter().map(part).collect::<Result<_>>()?))
    }

    /// Rows of several types, each of `columns`.
    pub fn from_blocks(runs: &[QuantisedRows], columns: usize) -> Result<Matrix> {
        Ok(Matrix(runs.iter().map(|run| Matrix::panels(run, columns)).collect::<Result<_>>()?))
    }

    fn panels(run: &QuantisedRows, columns: usize) -> Result<WeightBlock> {
        Ok(WeightBlock::Panels(Arc::new(Panels::new(run.format, &run.bytes, columns)?)))
    }

    /// All of `matrices`, stacked by rows.
    pub fn stacked(matrices: impl IntoIterator<Item = Matrix>) -> Matrix {
        Matrix(matrices.into_iter().flat_map(|matrix| matrix.0).collect())
    }

    /// `x · wᵀ + bias`, for `x` (b, t, columns).
    pub(super) fn linear(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if let [WeightBlock::Plain(w)] = self.0.as_slice() {
            return decoder_ops::linear(x, w, bias);
        }
        let x = x.contiguous()?;
        let product = |part: &WeightBlock| match part {
            WeightBlock::Plain(w) => decoder_ops::linear(&x, w, None),
            WeightBlock::Blocks(w) => x.apply_op1_no_bwd(w.as_ref()),
            WeightBlock::Panels(w) => quantised_linear(&x, w),
        };
        let y = match self.0.as_slice() {
            [one] => product(one)?,
            many => Tensor::cat(&many.iter().map(product).collect::<Result<Vec<_>>>()?, 2)?,
        };
        match bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    /// The rows that `ids` name, in f32.
    pub(super) fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        match self.0.as_slice() {
            [WeightBlock::Plain(w)] => decoder_ops::widen(&w.index_select(ids, 0)?),
            [WeightBlock::Blocks(w)] => w.embedding(ids),
            [WeightBlock::Panels(w)] => quantised_rows(&ids.to_vec1()?, w),
            _ => candle_core::bail!("rows can only be read from a matrix of one part"),
        }
    }

    pub(super) fn to_device(&self, device: &Device) -> Result<Matrix> {
        let moved = self.0.iter().map(|part| match part {
            WeightBlock::Plain(w) => Ok(WeightBlock::Plain(w.to_device(device)?)),
            // These are on the CPU.
            WeightBlock::Blocks(_) | WeightBlock::Panels(_) => Ok(part.clone()),
        });
        Ok(Matrix(moved.collect::<Result<_>>()?))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::GgmlDType;
    use decoder_ops::Format;

    use super::*;
    use llmprof_base::noise;

    #[test]
    fn parts_of_different_types_multiply_as_one_matrix() {
        // Fixed values: the quantisation error depends on them.
        let random = |seed: u64, count: usize, spread: f64| -> Vec<f32> {
            (0..count as u64).map(|i| (spread * (2.0 * noise::unit(seed, i) - 1.0)) as f32).collect()
        };
        let rows = |seed, rows: usize| {
            Tensor::from_vec(random(seed, rows * 64, 0.2), (rows, 64), &Device::Cpu).unwrap()
        };
        let (above, below) = (rows(1, 40), rows(2, 8));
        let x = Tensor::from_vec(random(3, 2 * 3 * 64, 1.5), (2, 3, 64), &Device::Cpu).unwrap();
        let bias = Tensor::from_vec(random(4, 48, 1.0), 48, &Device::Cpu).unwrap();
        let blocks = |w: &Tensor, dtype, format| {
            let bytes = QTensor::quantize(w, dtype).unwrap().data().unwrap().to_vec();
            QuantisedRows { format, bytes, rows: w.dim(0).unwrap() }
        };
        let runs =
            [blocks(&above, GgmlDType::Q8_0, Format::Q8_0), blocks(&below, GgmlDType::Q5_1, Format::Q5_1)];
        let whole = Matrix::plain(Tensor::cat(&[above, below], 0).unwrap());
        let plain = whole.linear(&x, Some(&bias)).unwrap();
        for matrix in [Matrix::from_blocks(&runs, 64).unwrap(), Matrix::candle_blocks(&runs, 64).unwrap()] {
            let diff = (matrix.linear(&x, Some(&bias)).unwrap() - &plain).unwrap().abs().unwrap();
            assert!(diff.max_all().unwrap().to_scalar::<f32>().unwrap() < 0.1);
        }
    }
}
