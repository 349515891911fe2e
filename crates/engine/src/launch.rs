//! Checks before a kernel is launched: sizes of buffers, limits of the grid, ranges of integers. Pure, so that it is
//! tested without a GPU.

use std::ffi::c_void;

use decoder_ops::Q8_0_BLOCK;
use thiserror::Error;

use llmprof_config::KvCacheDtype;

/// An argument of a kernel, in the width of the kernel's parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg {
    Pointer(u64),
    Int(i32),
    /// A `size_t` or `uint64_t`.
    U64(u64),
    Float(f32),
}

impl Arg {
    /// A null pointer.
    pub const NULL: Arg = Arg::Pointer(0);

    /// A count as `size_t`.
    pub fn size(count: usize) -> Arg {
        // Lossless: `usize` has at most 64 bits.
        Arg::U64(count as u64)
    }

    /// The address of the value itself, from which the driver copies as many bytes as the parameter has.
    pub fn value_address(&mut self) -> *mut c_void {
        match self {
            Arg::Pointer(value) | Arg::U64(value) => std::ptr::from_mut(value).cast(),
            Arg::Int(value) => std::ptr::from_mut(value).cast(),
            Arg::Float(value) => std::ptr::from_mut(value).cast(),
        }
    }
}

/// The error of a launch that would access memory outside its buffers, or that the device cannot start.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("kernel {kernel} was not launched: {problem}")]
pub struct LaunchError {
    pub kernel: String,
    pub problem: String,
}

/// The launch of one kernel, to be checked.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    kernel: &'a str,
}

impl<'a> Launch<'a> {
    pub fn new(kernel: &'a str) -> Launch<'a> {
        Launch { kernel }
    }

    pub fn kernel(self) -> &'a str {
        self.kernel
    }

    pub fn error(self, problem: String) -> LaunchError {
        LaunchError { kernel: self.kernel.to_owned(), problem }
    }

    pub fn require(self, condition: bool, problem: impl FnOnce() -> String) -> Result<(), LaunchError> {
        if condition { Ok(()) } else { Err(self.error(problem())) }
    }

    /// Checks that a buffer of `bytes` has room for the product of `counts` elements of `element_bytes`.
    pub fn require_room(
        self,
        buffer: &str,
        bytes: usize,
        element_bytes: usize,
        counts: &[usize],
    ) -> Result<(), LaunchError> {
        let needed = counts.iter().try_fold(element_bytes, |product, count| product.checked_mul(*count));
        self.require(needed.is_some_and(|needed| needed <= bytes), || {
            let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
            format!("{buffer} has {bytes} bytes and needs {} × {element_bytes}", counts.join(" × "))
        })
    }

    /// Checks that memory is aligned for loads of several elements.
    pub fn require_alignment(self, buffer: &str, address: u64, bytes: u64) -> Result<(), LaunchError> {
        self.require(address.is_multiple_of(bytes), || {
            format!("{buffer} is at {address:#x}, which is not aligned to {bytes} bytes")
        })
    }

    /// A size as the `int` that kernels and cuBLAS take.
    pub fn int(self, name: &str, value: usize) -> Result<i32, LaunchError> {
        i32::try_from(value).map_err(|_| self.error(format!("{name} is {value}, more than {}", i32::MAX)))
    }

    /// Like [`int`](Self::int), as an argument.
    pub fn arg(self, name: &str, value: usize) -> Result<Arg, LaunchError> {
        self.int(name, value).map(Arg::Int)
    }

    /// Blocks in each dimension and threads of a block, within the limits of every GPU.
    pub fn grid(
        self,
        (x, y, z): (usize, usize, usize),
        threads: usize,
    ) -> Result<([u32; 3], u32), LaunchError> {
        let within = |value: usize, limit: u32| u32::try_from(value).ok().filter(|n| (1..=limit).contains(n));
        let (x_limit, yz_limit, threads_limit) = (i32::MAX as u32, 65_535, 1_024);
        match (within(x, x_limit), within(y, yz_limit), within(z, yz_limit), within(threads, threads_limit)) {
            (Some(x), Some(y), Some(z), Some(threads)) => Ok(([x, y, z], threads)),
            _ => Err(self.error(format!(
                "its grid of {x} × {y} × {z} blocks of {threads} threads is outside of 1 to {x_limit} × {yz_limit} × \
                 {yz_limit} blocks of {threads_limit} threads"
            ))),
        }
    }
}

/// Head counts and dimensions, and the maximum positions of the sequences that they attend to.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub batch: usize,
    pub capacity: usize,
    pub scale: f32,
    /// Scores are limited to ±softcap; 0 means no limit.
    pub softcap: f32,
}

/// The largest head dimension of the attention and rotation kernels.
pub const MAX_HEAD_DIM: usize = 256;

impl Heads {
    /// Columns of queries, keys and values together.
    pub fn columns(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    /// Query heads that share a key/value head.
    pub fn group(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    /// Checks what the rotation and all attention kernels require of the heads.
    pub fn check(&self, launch: Launch<'_>) -> Result<(), LaunchError> {
        let Heads { heads, kv_heads, dim, batch, capacity, .. } = *self;
        launch.require(heads > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads), || {
            format!("{heads} query heads cannot be shared by {kv_heads} key/value heads")
        })?;
        launch.require((1..=MAX_HEAD_DIM).contains(&dim), || {
            format!("head dimension {dim} is not in 1 to {MAX_HEAD_DIM}")
        })?;
        launch.require(batch > 0 && capacity > 0, || format!("batch {batch} or capacity {capacity} is 0"))
    }

    /// Bytes of the keys or values of one layer that keeps `slots` positions, with unquantised numbers of
    /// `element` bytes.
    pub fn cache_bytes(&self, slots: usize, kind: KvCacheDtype, element: usize) -> usize {
        let numbers = self.batch * self.kv_heads * slots * self.dim;
        match kind {
            KvCacheDtype::Auto => numbers * element,
            KvCacheDtype::Fp8 => numbers,
            KvCacheDtype::Q8_0 => numbers + numbers / Q8_0_BLOCK * 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAUNCH: Launch<'static> = Launch { kernel: "rope_bf16" };

    fn problem<T: std::fmt::Debug>(result: Result<T, LaunchError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn buffers_have_room_for_the_elements() {
        for (bytes, counts, fits) in [
            (24, &[3, 4][..], true),
            (25, &[3, 4], true),
            (23, &[3, 4], false),
            (0, &[0, 4], true),
            (2, &[], true),
            (1, &[], false),
            (usize::MAX, &[usize::MAX, 2], false),
            (usize::MAX, &[usize::MAX, 0], false),
        ] {
            assert_eq!(LAUNCH.require_room("out", bytes, 2, counts).is_ok(), fits, "{bytes} {counts:?}");
        }
        assert_eq!(
            problem(LAUNCH.require_room("the key cache", 100, 2, &[8, 16])),
            "kernel rope_bf16 was not launched: the key cache has 100 bytes and needs 8 × 16 × 2"
        );
    }

    #[test]
    #[allow(unsafe_code, reason = "reads values through their addresses, as the driver does")]
    fn arguments_have_the_width_of_their_parameter() {
        // SAFETY: each address is that of a live value of the type that is read.
        unsafe {
            assert_eq!(Arg::Int(-7).value_address().cast::<i32>().read(), -7);
            assert_eq!(Arg::Float(0.5).value_address().cast::<f32>().read(), 0.5);
            assert_eq!(Arg::size(1 << 40).value_address().cast::<u64>().read(), 1 << 40);
            assert_eq!(Arg::Pointer(u64::MAX - 7).value_address().cast::<u64>().read(), u64::MAX - 7);
            let mut null = Arg::NULL;
            assert_eq!(null.value_address().cast::<u64>().read(), 0);
        }
    }

    #[test]
    fn integers_and_addresses_are_checked() {
        assert_eq!(LAUNCH.int("rows", i32::MAX as usize), Ok(i32::MAX));
        let message = problem(LAUNCH.int("rows", i32::MAX as usize + 1));
        assert!(message.ends_with("rows is 2147483648, more than 2147483647"), "{message}");
        assert!(LAUNCH.require_alignment("x", 0x7f00_0000_0010, 16).is_ok());
        let message = problem(LAUNCH.require_alignment("x", 0x7f00_0000_0008, 16));
        assert!(message.ends_with("x is at 0x7f0000000008, which is not aligned to 16 bytes"), "{message}");
    }

    #[test]
    fn grids_are_within_the_limits_of_the_device() {
        for (blocks, threads, expected) in [
            ((1, 1, 1), 1, true),
            ((i32::MAX as usize, 65_535, 65_535), 1_024, true),
            ((i32::MAX as usize + 1, 1, 1), 256, false),
            ((u32::MAX as usize + 2, 1, 1), 256, false),
            ((1, 65_536, 1), 256, false),
            ((1, 1, 65_536), 256, false),
            ((0, 1, 1), 256, false),
            ((1, 1, 1), 1_025, false),
            ((1, 1, 1), 0, false),
        ] {
            assert_eq!(LAUNCH.grid(blocks, threads).is_ok(), expected, "{blocks:?} {threads}");
        }
        assert_eq!(LAUNCH.grid((7, 6, 5), 128), Ok(([7, 6, 5], 128)));
        assert!(problem(LAUNCH.grid((0, 2, 3), 128)).contains("grid of 0 × 2 × 3 blocks of 128 threads"));
    }

    #[test]
    fn heads_share_a_cache_of_their_size() {
        let heads =
            Heads { heads: 14, kv_heads: 2, dim: 64, batch: 3, capacity: 100, scale: 0.125, softcap: 0.0 };
        assert_eq!((heads.columns(), heads.group()), (18 * 64, 7));
        assert!(heads.check(LAUNCH).is_ok());
        let cache_bytes = 3 * 2 * 100 * 64 * 2;
        assert_eq!(heads.cache_bytes(100, KvCacheDtype::Auto, 2), cache_bytes);
        assert_eq!(heads.cache_bytes(100, KvCacheDtype::Fp8, 2), cache_bytes / 2);
        assert_eq!(heads.cache_bytes(100, KvCacheDtype::Q8_0, 4), 3 * 2 * 100 * 68);
        for (heads, message) in [
            (Heads { kv_heads: 4, ..heads }, "14 query heads cannot be shared by 4 key/value heads"),
            (Heads { kv_heads: 0, ..heads }, "14 query heads cannot be shared by 0 key/value heads"),
            (Heads { heads: 0, ..heads }, "0 query heads cannot be shared"),
            (Heads { dim: 257, ..heads }, "head dimension 257 is not in 1 to 256"),
            (Heads { dim: 0, ..heads }, "head dimension 0"),
            (Heads { capacity: 0, ..heads }, "batch 3 or capacity 0 is 0"),
        ] {
            let found = problem(heads.check(LAUNCH));
            assert!(found.contains(message), "{found}");
        }
    }
}
