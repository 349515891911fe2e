//! Keys and values of the positions so far, in buffers that are allocated once and written in place.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use candle_core::{DType, Device, Result, Tensor, bail};
use decoder_ops::{EightBitRows, EightBits};

use crate::kv::TAKEN_BACK;
use llmprof_config::KvCacheDtype;

/// One layer's keys and values: rows for `kept` positions of each key/value head of each sequence.
pub(super) struct LayerCache {
    rows: Rows,
    kept: usize,
    window: Option<usize>,
    /// The position of the first row.
    first: AtomicUsize,
}

enum Rows {
    /// (batch, kv heads, kept, head dim) each.
    Plain {
        keys: Tensor,
        values: Tensor,
    },
    EightBits(Box<Mutex<[EightBitRows; 2]>>),
}

/// Keys and values, (batch, kv heads, rows, head dim) each.
pub(super) struct Seen {
    pub keys: Tensor,
    pub values: Tensor,
    /// The position of the first row.
    pub first: usize,
}

impl LayerCache {
    pub fn new(
        (batch, kv_heads, kept, dim): (usize, usize, usize, usize),
        window: Option<usize>,
        kind: KvCacheDtype,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let eight_bits = |kind| {
            let rows = || EightBitRows::new(kind, (batch, kv_heads), kept, dim);
            Rows::EightBits(Box::new(Mutex::new([rows(), rows()])))
        };
        let zeros = || Tensor::zeros((batch, kv_heads, kept, dim), dtype, device);
        let rows = match kind {
            KvCacheDtype::Auto => Rows::Plain { keys: zeros()?, values: zeros()? },
            KvCacheDtype::Fp8 => eight_bits(EightBits::Fp8),
            KvCacheDtype::Q8_0 => eight_bits(EightBits::Q8_0),
        };
        Ok(LayerCache { rows, kept, window, first: AtomicUsize::new(0) })
    }

    /// Writes keys and values (batch, kv heads, t, head dim) from `position` on, and gives those that their queries attend to.
    /// Rows of later positions are not cleared and never read: attention ends at the newest position.
    pub fn extended(&self, keys: &Tensor, values: &Tensor, position: usize) -> Result<Seen> {
        let t = keys.dim(2)?;
        if position == 0 {
            self.first.store(0, Ordering::Relaxed);
        }
        // A prompt attends to its own numbers, before they are rounded and where not all of them are kept.
        let is_own = t > self.kept || (t > 1 && matches!(self.rows, Rows::EightBits(_)));
        if position == 0 && is_own {
            let first = t - t.min(self.kept);
            self.write(&keys.narrow(2, first, t - first)?, &values.narrow(2, first, t - first)?, 0)?;
            self.first.store(first, Ordering::Relaxed);
            let own = |x: &Tensor| match &self.rows {
                Rows::Plain { keys, .. } => x.to_dtype(keys.dtype())?.contiguous(),
                Rows::EightBits(_) => x.contiguous(),
            };
            return Ok(Seen { keys: own(keys)?, values: own(values)?, first: 0 });
        }
        let first = self.first_for(position, t)?;
        self.write(keys, values, position - first)?;
        self.seen(position, t, first)
    }

    /// The position of the first row, after rows were moved where there is no room for `t` more.
    fn first_for(&self, position: usize, t: usize) -> Result<usize> {
        let first = self.first.load(Ordering::Relaxed);
        if position < first {
            bail!("position {position} is before the first of the cache, {first}");
        }
        if position + t - first <= self.kept {
            return Ok(first);
        }
        let Some(keep) = self.window.map(|window| (window + TAKEN_BACK).min(self.kept.saturating_sub(t)))
        else {
            bail!("the cache has {} positions", self.kept);
        };
        let moved = position.saturating_sub(keep).max(first);
        self.keep(moved - first..position - first)?;
        self.first.store(moved, Ordering::Relaxed);
        Ok(moved)
    }

    fn keep(&self, range: std::ops::Range<usize>) -> Result<()> {
        match &self.rows {
            Rows::Plain { keys, values } => {
                for rows in [keys, values] {
                    let kept = rows.narrow(2, range.start, range.len())?.force_contiguous()?;
                    rows.slice_set(&kept, 2, 0)?;
                }
            }
            Rows::EightBits(rows) => {
                let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                rows.iter_mut().for_each(|rows| rows.keep(range.clone()));
            }
        }
        Ok(())
    }

    /// Writes from row `at` on.
    fn write(&self, new_keys: &Tensor, new_values: &Tensor, at: usize) -> Result<()> {
        match &self.rows {
            Rows::Plain { keys, values } => {
                let dtype = keys.dtype();
                keys.slice_set(&new_keys.to_dtype(dtype)?.contiguous()?, 2, at)?;
                values.slice_set(&new_values.to_dtype(dtype)?.contiguous()?, 2, at)
            }
            Rows::EightBits(rows) => {
                let [keys, values] = &mut *rows.lock().unwrap_or_else(PoisonError::into_inner);
                keys.write(new_keys, at)?;
                values.write(new_values, at)
            }
        }
    }

    /// The positions to which `t` queries from `position` on attend.
    fn seen(&self, position: usize, t: usize, first: usize) -> Result<Seen> {
        match &self.rows {
            Rows::Plain { keys, values } => Ok(Seen { keys: keys.clone(), values: values.clone(), first }),
            Rows::EightBits(rows) => {
                let from = self.window.map_or(0, |window| (position + 1).saturating_sub(window)).max(first);
                let [keys, values] = &*rows.lock().unwrap_or_else(PoisonError::into_inner);
                let read = |rows: &EightBitRows| rows.read(from - first..position + t - first);
                Ok(Seen { keys: read(keys)?, values: read(values)?, first: from })
            }
        }
    }
}
