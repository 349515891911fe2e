//! Keys and values of all positions so far, in buffers that are allocated once and written in place.

use candle_core::{DType, Device, Result, Tensor};

/// One layer's keys and values, each (batch, kv heads, capacity, head dim).
pub(super) struct LayerCache {
    pub keys: Tensor,
    pub values: Tensor,
}

impl LayerCache {
    pub fn new(shape: (usize, usize, usize, usize), dtype: DType, device: &Device) -> Result<Self> {
        Ok(LayerCache {
            keys: Tensor::zeros(shape, dtype, device)?,
            values: Tensor::zeros(shape, dtype, device)?,
        })
    }

    /// Writes keys and values (batch, kv heads, t, head dim) from `position` on. Later positions are not
    /// cleared and never read: attention ends at the newest position.
    pub fn write(&self, keys: &Tensor, values: &Tensor, position: usize) -> Result<()> {
        let dtype = self.keys.dtype();
        self.keys.slice_set(&keys.to_dtype(dtype)?.contiguous()?, 2, position)?;
        self.values.slice_set(&values.to_dtype(dtype)?.contiguous()?, 2, position)
    }
}
