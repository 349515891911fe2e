//! The door of a process into which the library was loaded: a pair of sockets, one end of which is taken out of the
//! process. Nothing in the process is waited for, and everything that it says is checked.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    thread,
    time::{Duration, Instant},
};

use llmprof_inject::wire;
use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags},
    io::Errno,
    net::{AddressFamily, sockopt},
    process::{Pid, PidfdFlags, PidfdGetfdFlags},
};

/// The library opens its door again at once after a profiler has left; its process may be delayed.
const OPENS_WITHIN: Duration = Duration::from_secs(5);

/// A door that no other profiler uses while this value lives.
pub struct Door {
    sign: File,
    pid: u32,
}

impl Door {
    /// The door of process `pid`, if it has one.
    pub fn find(pid: u32) -> Option<Door> {
        let name = format!("/memfd:{} (deleted)", wire::DOOR.to_string_lossy());
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let is_door = |path: &fs::DirEntry| {
            fs::read_link(path.path()).is_ok_and(|target| target.as_os_str() == name.as_str())
        };
        let path = descriptors.flatten().find(is_door)?.path();
        // Another file can have this name, and opening a pipe could wait.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let sign = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
        sign.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(Door { sign, pid })
    }

    /// Takes the socket at which the library waits.
    pub fn take(self) -> io::Result<(UnixStream, DoorLock)> {
        match rustix::fs::flock(&self.sign, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let text =
                    format!("process {} is being profiled already; end the other profiler first", self.pid);
                return Err(io::Error::new(ErrorKind::AddrInUse, text));
            }
            locked => locked?,
        }
        let since = Instant::now();
        loop {
            match self.socket() {
                Ok(Some(stream)) => return Ok((stream, DoorLock(self.sign))),
                Err(e) => return Err(e),
                Ok(None) if since.elapsed() > OPENS_WITHIN => {
                    let text = format!(
                        "the library in process {} does not answer: is the process stopped? kill -CONT {0} continues it",
                        self.pid
                    );
                    return Err(io::Error::new(ErrorKind::TimedOut, text));
                }
                Ok(None) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn socket(&self) -> io::Result<Option<UnixStream>> {
        let mut content = [0; wire::DOOR_BYTES];
        let read = self.sign.read_at(&mut content, 0)?;
        let Some(descriptor) = wire::door_descriptor(&content[..read]) else { return Ok(None) };
        let process = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(ErrorKind::NotFound)?;
        let process = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
        match rustix::process::pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty()) {
            // The library has closed it meanwhile.
            Err(Errno::BADF) => Ok(None),
            taken => Ok(is_socket_of(&taken?, self.pid)),
        }
    }
}

/// A local socket of this process, and no other descriptor that the process has under the number.
fn is_socket_of(descriptor: &OwnedFd, pid: u32) -> Option<UnixStream> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(descriptor).ok()?.st_mode);
    let is_local = kind == FileType::Socket && sockopt::socket_domain(descriptor) == Ok(AddressFamily::UNIX);
    let peer = is_local.then(|| sockopt::socket_peercred(descriptor).ok()).flatten()?;
    let is_its_own = u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(pid);
    is_its_own.then(|| descriptor.try_clone().ok().map(UnixStream::from)).flatten()
}

/// Keeps other profilers out.
pub struct DoorLock(#[expect(dead_code, reason = "its end is the end of the lock")] File);

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::fd::AsRawFd,
    };

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// This process is the other one, too.
    #[test]
    fn a_door_gives_its_own_socket_to_one_profiler_and_nothing_else() {
        let me = std::process::id();
        assert!(Door::find(me).is_none());
        let sign = File::from(memfd_create(wire::DOOR, MemfdFlags::CLOEXEC).unwrap());
        let write = |descriptor| sign.write_all_at(&wire::door(descriptor), 0).unwrap();
        let (mut inner, outer) = UnixStream::pair().unwrap();
        write(Some(outer.as_raw_fd()));
        let (mut taken, lock) = Door::find(me).unwrap().take().unwrap();
        taken.write_all(b"k").unwrap();
        let mut knock = [0];
        inner.read_exact(&mut knock).unwrap();
        assert_eq!(&knock, b"k");
        let second = Door::find(me).unwrap().take().map(|_| ()).unwrap_err();
        assert!(second.to_string().contains("is being profiled already"), "{second}");
        drop(lock);
        // A file, a socket of the network, a number that is no descriptor, and no number.
        let network = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for descriptor in [sign.as_raw_fd(), network.as_raw_fd(), 99_999] {
            write(Some(descriptor));
            assert!(Door::find(me).unwrap().socket().unwrap().is_none(), "{descriptor}");
        }
        sign.set_len(0).unwrap();
        assert!(Door::find(me).unwrap().socket().unwrap().is_none(), "empty");
        sign.write_all_at(&[0xff; wire::DOOR_BYTES], 0).unwrap();
        assert!(Door::find(me).unwrap().socket().unwrap().is_none(), "no text");
    }
}
