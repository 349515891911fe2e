//! Device memory, and the operands of a matrix product in it.

// Reason: the driver frees memory by its address.
#![allow(unsafe_code)]

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cudarc::driver::{CudaContext, result, sys};
use half::{bf16, f16};

use super::error::CudaError;
use crate::launch::{Arg, Launch};
use llmprof_config::Dtype;

/// Requested bytes of all buffers of a device.
#[derive(Default)]
pub struct MemoryUse {
    pub live: AtomicU64,
    pub peak: AtomicU64,
}

impl MemoryUse {
    pub fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }
}

/// Device memory.
pub struct Buffer {
    pub(super) address: sys::CUdeviceptr,
    pub(super) bytes: usize,
    pub(super) context: Arc<CudaContext>,
    pub(super) memory_use: Arc<MemoryUse>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.memory_use.live.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        if self.address != 0 && self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `alloc`, freed once. Freeing waits for the device.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

impl Buffer {
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory from `offset` bytes on; empty if the buffer ends before that.
    pub fn slice_from(&self, offset: usize) -> Slice<'_> {
        let offset = offset.min(self.bytes);
        Slice { address: self.address + offset as u64, bytes: self.bytes - offset, buffer: PhantomData }
    }
}

/// Device memory from an offset in a buffer to the buffer's end.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    pub(super) address: sys::CUdeviceptr,
    pub(super) bytes: usize,
    buffer: PhantomData<&'a Buffer>,
}

impl Slice<'_> {
    /// The memory from `offset` bytes on.
    pub fn after(self, offset: usize) -> Self {
        let offset = offset.min(self.bytes);
        Slice { address: self.address + offset as u64, bytes: self.bytes - offset, ..self }
    }

    pub fn address(self) -> u64 {
        self.address
    }

    pub fn bytes(self) -> usize {
        self.bytes
    }
}

impl<'a> From<&'a Buffer> for Slice<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        buffer.slice_from(0)
    }
}

impl From<Slice<'_>> for Arg {
    fn from(slice: Slice<'_>) -> Self {
        Arg::Pointer(slice.address)
    }
}

impl From<&Buffer> for Arg {
    fn from(buffer: &Buffer) -> Self {
        Arg::Pointer(buffer.address)
    }
}

impl From<Option<&Buffer>> for Arg {
    fn from(buffer: Option<&Buffer>) -> Self {
        buffer.map_or(Arg::NULL, Arg::from)
    }
}

/// Numbers that are copied to and from the device.
///
/// # Safety
/// Every pattern of bits is a value of the type.
pub unsafe trait Number: Copy + Default {}

macro_rules! numbers {
    ($($number:ty),*) => {
        // SAFETY: floats and integers have a value for every pattern of bits.
        $(unsafe impl Number for $number {})*
    };
}
numbers!(f32, f16, bf16, i32, u32, u64, u8);

/// y (m, n) = x (m, k) · wᵀ with w (n, k), all row-major.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub y: Slice<'a>,
    pub x: Slice<'a>,
    pub w: Slice<'a>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub dtype: Dtype,
    /// The type of y.
    pub out: Dtype,
    /// Whether the product is added to y (y +=) instead of stored.
    pub add: bool,
}

impl Product<'_> {
    /// Checks the sizes of the operands; `w` has `w_rows` rows.
    pub fn check(&self, launch: Launch<'_>, w_rows: usize) -> Result<(), CudaError> {
        let (element, out) = (self.dtype.bytes() as usize, self.out.bytes() as usize);
        launch.require_room("y", self.y.bytes, out, &[self.m, self.n])?;
        launch.require_room("x", self.x.bytes, element, &[self.m, self.k])?;
        Ok(launch.require_room("w", self.w.bytes, element, &[w_rows, self.k])?)
    }
}
