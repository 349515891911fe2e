//! The memory of another process, read through `/proc/PID/mem` while the process continues to run.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Belongs to the address space that the process had when it was opened: after `exec` or exit every read fails.
pub struct Memory(File);

impl Memory {
    pub fn open(pid: u32) -> io::Result<Memory> {
        File::open(format!("/proc/{pid}/mem")).map(Memory)
    }

    /// Fills the buffer, or returns `None` if a part of the range cannot be read.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        if i64::try_from(address).is_err() {
            return None;
        }
        self.0.read_exact_at(buffer, address).ok()
    }

    /// `length` is bounded by the caller.
    pub fn bytes(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut buffer = vec![0; length];
        self.read(address, &mut buffer).map(|()| buffer)
    }

    pub fn u64(&self, address: u64) -> Option<u64> {
        let mut buffer = [0; 8];
        self.read(address, &mut buffer).map(|()| u64::from_ne_bytes(buffer))
    }

    pub fn u32(&self, address: u64) -> Option<u32> {
        let mut buffer = [0; 4];
        self.read(address, &mut buffer).map(|()| u32::from_ne_bytes(buffer))
    }
}

/// Fields of a structure that was copied as bytes. A field outside of the copy is `None`.
pub trait Fields {
    fn field<const N: usize>(&self, offset: u64) -> Option<[u8; N]>;

    fn u64_at(&self, offset: u64) -> Option<u64> {
        self.field(offset).map(u64::from_ne_bytes)
    }

    fn u32_at(&self, offset: u64) -> Option<u32> {
        self.field(offset).map(u32::from_ne_bytes)
    }

    fn u16_at(&self, offset: u64) -> Option<u16> {
        self.field(offset).map(u16::from_ne_bytes)
    }
}

impl Fields for [u8] {
    fn field<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let start = usize::try_from(offset).ok()?;
        self.get(start..start.checked_add(N)?)?.try_into().ok()
    }
}
