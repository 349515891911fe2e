//! A weight matrix in memory: in the model's type, or quantised.

use std::sync::Arc;

use candle_core::{Result, Tensor, quantized::QTensor};
use decoder_ops::{Panels, quantised_linear, quantised_rows};

use super::{gguf_header::Kind, weights::QuantisedRows};

/// A matrix (rows, columns) that activations are multiplied with. It may consist of several parts, stacked by
/// rows: quantised parts of different types cannot be joined.
#[derive(Clone)]
pub struct Matrix(Vec<Part>);

#[derive(Clone)]
enum Part {
    Plain(Tensor),
    /// Blocks of GGUF, which candle multiplies on threads of its own.
    Blocks(Arc<QTensor>),
    /// The same in the order in which we multiply them.
    Panels(Arc<Panels>),
}

impl Matrix {
    pub fn plain(tensor: Tensor) -> Matrix {
        Matrix(vec![Part::Plain(tensor)])
    }

    pub fn quantised(blocks: QTensor) -> Matrix {
        Matrix(vec![Part::Blocks(Arc::new(blocks))])
    }

    pub fn panels(panels: Panels) -> Matrix {
        Matrix(vec![Part::Panels(Arc::new(panels))])
    }

    /// Rows of several types, each of `columns`.
    pub fn from_blocks(runs: &[QuantisedRows], columns: usize) -> Result<Matrix> {
        let panels = |run: &QuantisedRows| Panels::new(run.format, &run.bytes, columns).map(Matrix::panels);
        Ok(Matrix::stacked(runs.iter().map(panels).collect::<Result<Vec<_>>>()?))
    }

    /// All of `matrices`, stacked by rows.
    pub fn stacked(matrices: impl IntoIterator<Item = Matrix>) -> Matrix {
        Matrix(matrices.into_iter().flat_map(|matrix| matrix.0).collect())
    }

    /// With quantised parts in our own order, where we multiply their type ourselves.
    pub(super) fn in_panels(self) -> Result<Matrix> {
        let parts = self.0.into_iter().map(|part| match &part {
            Part::Blocks(w) => match Kind::format_of(w.dtype()) {
                Some(format) => {
                    let columns = w.shape().dims2()?.1;
                    Ok(Part::Panels(Arc::new(Panels::new(format, &w.data()?, columns)?)))
                }
                None => Ok(part),
            },
            Part::Plain(_) | Part::Panels(_) => Ok(part),
        });
        Ok(Matrix(parts.collect::<Result<_>>()?))
    }

    /// `x · wᵀ + bias`, for `x` (b, t, columns).
    pub(super) fn linear(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if let [Part::Plain(w)] = self.0.as_slice() {
            return decoder_ops::linear(x, w, bias);
        }
        let x = x.contiguous()?;
        let product = |part: &Part| match part {
            Part::Plain(w) => decoder_ops::linear(&x, w, None),
            Part::Blocks(w) => x.apply_op1_no_bwd(w.as_ref()),
            Part::Panels(w) => quantised_linear(&x, w),
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
            [Part::Plain(w)] => decoder_ops::widen(&w.index_select(ids, 0)?),
            [Part::Blocks(w)] => w.embedding(ids),
            [Part::Panels(w)] => quantised_rows(&ids.to_vec1()?, w),
            _ => candle_core::bail!("rows can only be read from a matrix of one part"),
        }
    }

    pub(super) fn to_device(&self, device: &candle_core::Device) -> Result<Matrix> {
        let moved = self.0.iter().map(|part| match part {
            Part::Plain(w) => Ok(Part::Plain(w.to_device(device)?)),
            // Blocks are read directly into their final buffer.
            Part::Blocks(_) | Part::Panels(_) => Ok(part.clone()),
        });
        Ok(Matrix(moved.collect::<Result<_>>()?))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, quantized::GgmlDType};

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
        let blocks = |w: &Tensor, dtype| Matrix::quantised(QTensor::quantize(w, dtype).unwrap());
        let matrix = Matrix::stacked([blocks(&above, GgmlDType::Q8_0), blocks(&below, GgmlDType::Q5_1)]);
        let whole = Matrix::plain(Tensor::cat(&[above, below], 0).unwrap());
        let plain = whole.linear(&x, Some(&bias)).unwrap();
        for matrix in [matrix.clone(), matrix.in_panels().unwrap()] {
            let diff = (matrix.linear(&x, Some(&bias)).unwrap() - &plain).unwrap().abs().unwrap();
            assert!(diff.max_all().unwrap().to_scalar::<f32>().unwrap() < 0.1);
        }
    }
}
