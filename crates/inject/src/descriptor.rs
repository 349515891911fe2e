//! Descriptors of the library in the program's table. The program may close any of them and use the number again, and
//! the child of a fork has copies that nothing uses.

use std::{
    ffi::c_int,
    mem::ManuallyDrop,
    ops::Deref,
    os::fd::AsRawFd,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use crate::c::{self, FileId};

/// The file that the door's descriptor is found by.
pub static SIGN: Entry = Entry::new();
/// The end of the door's sockets that a profiler takes.
pub static OUTER: Entry = Entry::new();
/// The connection to a profiler, or the other end of the door's sockets.
pub static SOCKET: Entry = Entry::new();

/// A descriptor that is open in this process; its number is -1 if there is none.
pub struct Entry {
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Entry {
    pub const fn new() -> Entry {
        Entry { fd: AtomicI32::new(-1), device: AtomicU64::new(0), inode: AtomicU64::new(0) }
    }

    fn set(&self, fd: c_int, id: FileId) {
        self.device.store(id.device, Ordering::Relaxed);
        self.inode.store(id.inode, Ordering::Relaxed);
        self.fd.store(fd, Ordering::Release);
    }

    fn id(&self) -> FileId {
        FileId { device: self.device.load(Ordering::Relaxed), inode: self.inode.load(Ordering::Relaxed) }
    }

    /// Closes the copy of a fork's child. The number may belong to another file of the program, which stays open.
    fn forget(&self) {
        let fd = self.fd.swap(-1, Ordering::Acquire);
        if fd >= 0 && c::file_id(fd) == Some(self.id()) {
            // SAFETY: the child's copy of the descriptor, which nothing uses.
            unsafe { c::close(fd) };
        }
    }
}

/// Called in the child of a fork, where only async-signal-safe functions may be called: `fstat` and `close` are.
pub fn forget() {
    for entry in [&SIGN, &OUTER, &SOCKET] {
        entry.forget();
    }
}

/// An open descriptor with its entry, which is empty again before the descriptor is closed. If a fork happens before
/// the entry is filled or after it was emptied, the child keeps a copy until it executes another program.
pub struct Descriptor<T: AsRawFd> {
    file: ManuallyDrop<T>,
    id: FileId,
    entry: &'static Entry,
}

impl<T: AsRawFd> Descriptor<T> {
    /// The entry is the latest descriptor's.
    pub fn new(file: T, entry: &'static Entry) -> Option<Descriptor<T>> {
        let id = c::file_id(file.as_raw_fd())?;
        entry.set(file.as_raw_fd(), id);
        Some(Descriptor { file: ManuallyDrop::new(file), id, entry })
    }

    pub fn inode(&self) -> u64 {
        self.id.inode
    }

    /// Whether the number is still that of the file: the program may have closed it.
    pub fn is_open(&self) -> bool {
        c::file_id(self.file.as_raw_fd()) == Some(self.id)
    }
}

impl<T: AsRawFd> Deref for Descriptor<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.file
    }
}

impl<T: AsRawFd> Drop for Descriptor<T> {
    fn drop(&mut self) {
        if self.entry.id() == self.id {
            self.entry.fd.store(-1, Ordering::Relaxed);
        }
        if self.is_open() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        os::{fd::OwnedFd, unix::net::UnixStream},
    };

    use super::*;

    unsafe extern "C" {
        fn dup2(from: c_int, to: c_int) -> c_int;
    }

    /// The program closes the descriptor and opens another file under its number.
    fn reuse(fd: c_int) {
        let other = File::open("/dev/zero").unwrap();
        // SAFETY: the tests below give up the descriptor that is replaced.
        assert_eq!(unsafe { dup2(other.as_raw_fd(), fd) }, fd);
    }

    fn reads_zero(fd: c_int) -> bool {
        File::open(format!("/proc/self/fd/{fd}")).unwrap().read(&mut [7]).unwrap() == 1
    }

    fn close(fd: c_int) {
        // SAFETY: opened by `reuse`, and not used afterwards.
        assert_eq!(unsafe { c::close(fd) }, 0);
    }

    #[test]
    fn a_childs_copy_is_closed_and_a_number_that_is_used_again_is_not() {
        static ENTRY: Entry = Entry::new();
        let (mut peer, socket) = UnixStream::pair().unwrap();
        let socket = Descriptor::new(OwnedFd::from(socket), &ENTRY).unwrap();
        ENTRY.forget();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "closed");
        assert!(!socket.is_open());
        drop(socket);

        let (mut peer, socket) = UnixStream::pair().unwrap();
        let socket = Descriptor::new(OwnedFd::from(socket), &ENTRY).unwrap();
        let fd = socket.as_raw_fd();
        reuse(fd);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "closed by the program");
        ENTRY.forget();
        assert!(reads_zero(fd));
        drop(socket);
        assert!(reads_zero(fd));
        close(fd);
    }

    #[test]
    fn an_entry_is_empty_before_its_descriptor_is_closed() {
        static ENTRY: Entry = Entry::new();
        /// What happens at its end happens before the descriptor is closed.
        struct Closing(UnixStream);
        impl AsRawFd for Closing {
            fn as_raw_fd(&self) -> c_int {
                self.0.as_raw_fd()
            }
        }
        impl Drop for Closing {
            fn drop(&mut self) {
                assert_eq!(ENTRY.fd.load(Ordering::Relaxed), -1);
                self.0.write_all(b"x").unwrap();
            }
        }
        let (mut peer, socket) = UnixStream::pair().unwrap();
        let socket = Descriptor::new(Closing(socket), &ENTRY).unwrap();
        assert_eq!(ENTRY.fd.load(Ordering::Relaxed), socket.as_raw_fd());
        drop(socket);
        let mut text = Vec::new();
        peer.read_to_end(&mut text).unwrap();
        assert_eq!(text, b"x", "it was closed");

        let (first, second) = UnixStream::pair().unwrap();
        let first = Descriptor::new(first, &ENTRY).unwrap();
        let second = Descriptor::new(second, &ENTRY).unwrap();
        drop(first);
        assert_eq!(ENTRY.fd.load(Ordering::Relaxed), second.as_raw_fd(), "it is the second's");
    }
}
