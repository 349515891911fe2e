//! The socket to which the library connects, in a directory that only this user can access.

use std::{
    ffi::OsString,
    fs, io,
    io::{ErrorKind, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use llmprof_inject::wire;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use tempfile::TempDir;

use super::{
    connection::Connection,
    door::{Door, DoorLock},
    private_dir::{Dormant, make_private, random_token, require_private, runtime_directory, variables},
    ring::Memory,
};

/// A library identifies itself at once, but its program may be delayed.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum connections that may be silent at a time.
const MAX_ARRIVALS: usize = 64;

/// The address to which libraries connect.
pub enum Entrance {
    Socket(Socket),
    Door(ThroughDoor),
}

impl Entrance {
    /// The next program that has connected, if there is one.
    pub fn accept(&mut self) -> Option<Connection> {
        match self {
            Entrance::Socket(socket) => socket.accept(),
            Entrance::Door(door) => door.accept(Instant::now()),
        }
    }

    /// Whether nothing will come through it any more.
    pub fn is_closed(&self) -> bool {
        matches!(self, Entrance::Door(ThroughDoor { arrival: None, .. }))
    }
}

/// The connection with a process into which the library was loaded.
pub struct ThroughDoor {
    arrival: Option<Arrival>,
    _lock: DoorLock,
}

impl ThroughDoor {
    pub fn take(door: Door) -> io::Result<ThroughDoor> {
        let (mut stream, lock) = door.take()?;
        stream.set_nonblocking(true)?;
        stream.write_all(b"k")?;
        let arrival = Arrival { stream, said: Vec::new(), since: Instant::now() };
        Ok(ThroughDoor { arrival: Some(arrival), _lock: lock })
    }

    fn accept(&mut self, now: Instant) -> Option<Connection> {
        match greet(self.arrival.take()?, "", now) {
            Greeting::Connection(connection) => Some(*connection),
            Greeting::Silent(arrival) => {
                self.arrival = Some(arrival);
                None
            }
            Greeting::Stranger => None,
        }
    }
}

pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    directory: PathBuf,
    token: String,
    arrivals: Vec<Arrival>,
    /// Removed with the socket, if it is private.
    _private: Option<TempDir>,
}

/// A connection that has not identified itself yet. It is not waited for, because others have records.
struct Arrival {
    stream: UnixStream,
    said: Vec<u8>,
    since: Instant,
}

/// The state of an arrival.
enum Greeting {
    Silent(Arrival),
    Connection(Box<Connection>),
    Stranger,
}

impl Socket {
    /// For programs that are started with [`variables`](Self::variables).
    pub fn for_children() -> io::Result<Socket> {
        let private = tempfile::Builder::new().prefix("llmprof-").tempdir_in(runtime_directory())?;
        make_private(private.path())?;
        let directory = private.path().to_owned();
        Self::listen(directory.join(wire::SOCKET), directory, random_token()?, Some(private))
    }

    /// For program `pid`, which was started with the variables of `inject`.
    pub fn for_process(pid: u32, library: &Dormant) -> io::Result<Socket> {
        let Dormant { directory, token } = library.clone();
        require_private(&directory)?;
        let path = directory.join(format!("{pid}.socket"));
        // Left behind by a killed profiler. A running one answers.
        if UnixStream::connect(&path).is_ok() {
            return Err(io::Error::new(
                ErrorKind::AddrInUse,
                format!("process {pid} is being profiled already"),
            ));
        }
        let _ = fs::remove_file(&path);
        Self::listen(path, directory, token, None)
    }

    fn listen(
        path: PathBuf,
        directory: PathBuf,
        token: String,
        private: Option<TempDir>,
    ) -> io::Result<Socket> {
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        make_private(&path)?;
        Ok(Socket { listener, path, directory, token, arrivals: Vec::new(), _private: private })
    }

    /// The variables that make a program load `library` and connect to this socket.
    pub fn variables(&self, library: &Path) -> Vec<(&'static str, OsString)> {
        variables(library, &self.directory, &self.token)
    }

    /// The next program that has connected, if there is one. Connections that do not send what the library sends are
    /// closed.
    pub fn accept(&mut self) -> Option<Connection> {
        self.accept_at(Instant::now())
    }

    fn accept_at(&mut self, now: Instant) -> Option<Connection> {
        while self.arrivals.len() < MAX_ARRIVALS
            && let Ok((stream, _)) = self.listener.accept()
        {
            let is_own =
                sockopt::socket_peercred(&stream).is_ok_and(|peer| peer.uid == rustix::process::getuid());
            if is_own && stream.set_nonblocking(true).is_ok() {
                self.arrivals.push(Arrival { stream, said: Vec::new(), since: now });
            }
        }
        let mut arrivals = std::mem::take(&mut self.arrivals).into_iter();
        let connection = arrivals.by_ref().find_map(|arrival| match greet(arrival, &self.token, now) {
            Greeting::Connection(connection) => Some(*connection),
            Greeting::Silent(arrival) => {
                self.arrivals.push(arrival);
                None
            }
            Greeting::Stranger => None,
        });
        self.arrivals.extend(arrivals);
        connection
    }
}

fn greet(mut arrival: Arrival, token: &str, now: Instant) -> Greeting {
    let wanted = wire::hello(token);
    let mut bytes = vec![0; wanted.len() - arrival.said.len()];
    match arrival.stream.read(&mut bytes) {
        Ok(0) => return Greeting::Stranger,
        Ok(n) => arrival.said.extend(&bytes[..n]),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        Err(_) => return Greeting::Stranger,
    }
    if !wanted.as_bytes().starts_with(&arrival.said) {
        return Greeting::Stranger;
    }
    // A connection that has sent everything is accepted, however late this thread reads it.
    if arrival.said.len() < wanted.len() {
        let is_late = now.saturating_duration_since(arrival.since) > HELLO_TIMEOUT;
        return if is_late { Greeting::Stranger } else { Greeting::Silent(arrival) };
    }
    connection(arrival.stream)
        .map_or(Greeting::Stranger, |connection| Greeting::Connection(Box::new(connection)))
}

/// Sends the library the memory to write into.
fn connection(stream: UnixStream) -> Option<Connection> {
    let peer = sockopt::socket_peercred(&stream).ok()?;
    let memory = Memory::new().ok()?;
    let fds = [memory.file().as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(&stream, &[IoSlice::new(b"+")], &mut control, SendFlags::NOSIGNAL).ok()?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
    Some(Connection::new(pid, stream, memory))
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Connections that send nothing, or something else, delay no program.
    #[test]
    fn silent_connections_are_not_waited_for() {
        let mut socket = Socket::for_children().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&socket.directory), mode(&socket.path)), (0o700, 0o700));
        let mut silent: Vec<UnixStream> =
            (0..10).map(|_| UnixStream::connect(&socket.path).unwrap()).collect();
        let mut stranger = UnixStream::connect(&socket.path).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let mut program = UnixStream::connect(&socket.path).unwrap();
        let hello = wire::hello(&socket.token);
        let (first, rest) = hello.split_at(5);
        program.write_all(first.as_bytes()).unwrap();
        let now = Instant::now();
        assert!(socket.accept_at(now).is_none(), "it has not said all yet");
        assert_eq!(socket.arrivals.len(), silent.len() + 1, "the stranger was turned away");
        silent.truncate(5);
        assert!(socket.accept_at(now + HELLO_TIMEOUT).is_none());
        assert_eq!(socket.arrivals.len(), silent.len() + 1, "those that have gone are forgotten");
        program.write_all(rest.as_bytes()).unwrap();
        let late = now + 2 * HELLO_TIMEOUT;
        assert_eq!(
            socket.accept_at(late).map(|connection| connection.pid),
            Some(std::process::id()),
            "all is said"
        );
        assert!(socket.arrivals.is_empty(), "silent for too long");
    }
}
