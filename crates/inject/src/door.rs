//! How a profiler reaches a process into which it has loaded this library: through a pair of connected sockets, one end
//! of which it takes out of the process (`pidfd_getfd`). No path is needed, so the user and the mount namespace may
//! differ, and only who may trace the process can take it.

use std::{
    fs::File,
    io::Read,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::{fs::FileExt, net::UnixStream},
    },
};

use crate::{
    c,
    descriptor::{self, Descriptor},
    wire::{self, DoorSocket},
};

pub struct Door {
    /// A file in memory, found by its name, that says which socket to take.
    sign: Descriptor<File>,
}

impl Door {
    pub fn new() -> Option<Door> {
        // SAFETY: a C string; the kernel creates a descriptor for this process.
        let sign = unsafe {
            let fd = c::memfd_create(wire::DOOR.as_ptr(), c::MFD_CLOEXEC);
            (fd >= 0).then(|| File::from_raw_fd(fd))
        }?;
        Some(Door { sign: Descriptor::new(sign, &descriptor::SIGN)? })
    }

    /// Waits for a profiler, and returns the end of the connection that stays here.
    pub fn wait(&mut self) -> Option<Descriptor<UnixStream>> {
        if !self.sign.is_open() {
            // The program has closed it, e.g. together with all descriptors that it does not know.
            *self = Door::new()?;
        }
        let (inner, outer) = UnixStream::pair().ok()?;
        let inner = Descriptor::new(inner, &descriptor::SOCKET)?;
        let outer = Descriptor::new(outer, &descriptor::OUTER)?;
        self.write(Some(DoorSocket { descriptor: outer.as_raw_fd(), inode: outer.inode() }))?;
        let has_knocked = (&*inner).read_exact(&mut [0]).is_ok();
        let _ = self.write(None);
        // From now on the profiler's end alone keeps the connection open.
        drop(outer);
        has_knocked.then_some(inner)
    }

    /// Nothing is written into another file of the program.
    fn write(&self, socket: Option<DoorSocket>) -> Option<()> {
        self.sign.is_open().then(|| self.sign.write_all_at(&wire::door(socket), 0).ok()).flatten()
    }
}
