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

use llmprof_inject::wire::{self, DoorSocket};
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
        let Some(named) = self.named()? else { return Ok(None) };
        let process = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(ErrorKind::NotFound)?;
        let process = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
        let taken = match rustix::process::pidfd_getfd(process, named.descriptor, PidfdGetfdFlags::empty()) {
            // The library has closed it meanwhile.
            Err(Errno::BADF) => return Ok(None),
            taken => taken?,
        };
        match is_socket_of(&taken, named.inode, self.pid) {
            true => Ok(Some(UnixStream::from(taken))),
            // The library names no socket before it closes one.
            false if self.named()? != Some(named) => Ok(None),
            false => {
                let text = format!(
                    "process {} has closed the library's socket: its descriptor {} is another file now; try again, \
                     or restart the program",
                    self.pid, named.descriptor
                );
                Err(io::Error::new(ErrorKind::InvalidData, text))
            }
        }
    }

    fn named(&self) -> io::Result<Option<DoorSocket>> {
        let mut content = [0; wire::DOOR_BYTES];
        let read = self.sign.read_at(&mut content, 0)?;
        Ok(wire::door_socket(&content[..read]))
    }
}

/// Whether it is the local socket of this process with this inode, and no other file that the process has under the
/// number.
fn is_socket_of(descriptor: &OwnedFd, inode: u64, pid: u32) -> bool {
    let is_named = rustix::fs::fstat(descriptor)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket && stat.st_ino == inode);
    is_named
        && sockopt::socket_domain(descriptor) == Ok(AddressFamily::UNIX)
        && sockopt::socket_peercred(descriptor)
            .is_ok_and(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(pid))
}

/// Keeps other profilers out.
pub struct DoorLock(#[expect(dead_code, reason = "its end is the end of the lock")] File);

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::fd::{AsFd, AsRawFd},
    };

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// This process is the other one, too.
    #[test]
    fn a_door_gives_its_own_socket_to_one_profiler_and_nothing_else() {
        let me = std::process::id();
        assert!(Door::find(me).is_none());
        let sign = File::from(memfd_create(wire::DOOR, MemfdFlags::CLOEXEC).unwrap());
        let write = |socket| sign.write_all_at(&wire::door(Some(socket)), 0).unwrap();
        let named = |file: &dyn AsFd| DoorSocket {
            descriptor: file.as_fd().as_raw_fd(),
            inode: rustix::fs::fstat(file.as_fd()).unwrap().st_ino,
        };
        let (mut inner, outer) = UnixStream::pair().unwrap();
        write(named(&outer));
        let (mut taken, lock) = Door::find(me).unwrap().take().unwrap();
        taken.write_all(b"k").unwrap();
        let mut knock = [0];
        inner.read_exact(&mut knock).unwrap();
        assert_eq!(&knock, b"k");
        let second = Door::find(me).unwrap().take().map(|_| ()).unwrap_err();
        assert!(second.to_string().contains("is being profiled already"), "{second}");
        drop(lock);
        // A file, a socket of the network, and the number of another local socket.
        let network = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = DoorSocket { descriptor: inner.as_raw_fd(), ..named(&outer) };
        for wrong in [named(&sign), named(&network), other] {
            write(wrong);
            let refused = Door::find(me).unwrap().take().map(|_| ()).unwrap_err().to_string();
            let text = format!("its descriptor {} is another file now", wrong.descriptor);
            assert!(refused.contains(&text), "{refused}");
        }
        // A number that is no descriptor, and no number.
        write(DoorSocket { descriptor: 99_999, ..named(&outer) });
        assert!(Door::find(me).unwrap().socket().unwrap().is_none(), "not open");
        sign.set_len(0).unwrap();
        assert!(Door::find(me).unwrap().socket().unwrap().is_none(), "empty");
        sign.write_all_at(&[0xff; wire::DOOR_BYTES], 0).unwrap();
        assert!(Door::find(me).unwrap().socket().unwrap().is_none(), "no text");
    }
}
