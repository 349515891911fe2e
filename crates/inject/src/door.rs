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
    sync::atomic::{AtomicI32, Ordering},
};

use crate::{
    c,
    session::{self, Session},
    wire,
};

/// The descriptors of the door, for a fork's child to close; -1 for none.
static OPEN: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];

pub struct Door {
    /// A file in memory, found by its name, with the number of the descriptor to take.
    sign: File,
}

impl Door {
    pub fn new() -> Option<Door> {
        // SAFETY: a C string; the kernel creates a descriptor for this process.
        let sign = unsafe {
            let fd = c::memfd_create(wire::DOOR.as_ptr(), c::MFD_CLOEXEC);
            (fd >= 0).then(|| File::from_raw_fd(fd))
        }?;
        OPEN[0].store(sign.as_raw_fd(), Ordering::Relaxed);
        Some(Door { sign })
    }

    /// Waits for a profiler.
    pub fn wait(&self) -> Option<Session> {
        let (mut inner, outer) = UnixStream::pair().ok()?;
        OPEN[1].store(inner.as_raw_fd(), Ordering::Relaxed);
        OPEN[2].store(outer.as_raw_fd(), Ordering::Relaxed);
        self.sign.write_all_at(&wire::door(Some(outer.as_raw_fd())), 0).ok()?;
        let mut knock = [0];
        let has_knocked = inner.read_exact(&mut knock).is_ok();
        let _ = self.sign.write_all_at(&wire::door(None), 0);
        OPEN[2].store(-1, Ordering::Relaxed);
        // From now on the profiler's end alone keeps the connection open.
        drop(outer);
        let session = has_knocked.then(|| session::greet(inner, "")).flatten();
        OPEN[1].store(-1, Ordering::Relaxed);
        session
    }
}

/// Closes the copies of a fork's child: the door is the parent's.
pub fn forget() {
    for fd in &OPEN {
        let fd = fd.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the child's copy of the descriptor, which nothing uses.
            unsafe { c::close(fd) };
        }
    }
}
