//! The memory of another process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Memory that is read at its own addresses.
pub trait Memory {
    /// Fills the buffer, or reports that not all of it can be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()>;

    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut buffer = [0; N];
        self.read(address, &mut buffer)?;
        Some(buffer)
    }

    fn u64(&self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_ne_bytes)
    }
}

/// `/proc/PID/mem`. It belongs to the memory, not to the PID: after an exec or the end of the process, it reads nothing.
pub struct ProcessMemory(File);

impl ProcessMemory {
    pub fn open(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/mem");
        // The parameter proc_mem.force_override of the kernel or a security module can forbid only writing.
        OpenOptions::new().read(true).write(true).open(&path).or_else(|_| File::open(&path)).map(Self)
    }

    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        // Offsets of files are signed; the kernel's half of the address space is never read.
        (address <= i64::MAX as u64).then_some(())?;
        self.0.read_exact_at(buffer, address).ok()
    }
}
