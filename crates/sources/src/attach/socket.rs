//! The socket to which the library connects, in a directory that only this user can access.

use std::{
    env,
    ffi::OsString,
    fs, io,
    io::{ErrorKind, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::AsFd,
        unix::{
            fs::{DirBuilderExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use llmprof_inject::wire;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use tempfile::TempDir;

use super::{guest::Guest, process_info::Dormant, ring::Memory};

/// A library identifies itself at once, but its program may be delayed.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum connections that may be silent at a time.
const MAX_ARRIVALS: usize = 64;

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
    Guest(Box<Guest>),
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
    pub fn accept(&mut self) -> Option<Guest> {
        self.accept_at(Instant::now())
    }

    fn accept_at(&mut self, now: Instant) -> Option<Guest> {
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
        let guest = arrivals.by_ref().find_map(|arrival| match greet(arrival, &self.token, now) {
            Greeting::Guest(guest) => Some(*guest),
            Greeting::Silent(arrival) => {
                self.arrivals.push(arrival);
                None
            }
            Greeting::Stranger => None,
        });
        self.arrivals.extend(arrivals);
        guest
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
    guest(arrival.stream).map_or(Greeting::Stranger, |guest| Greeting::Guest(Box::new(guest)))
}

/// Sends the library the memory to write into.
fn guest(stream: UnixStream) -> Option<Guest> {
    let peer = sockopt::socket_peercred(&stream).ok()?;
    let memory = Memory::new().ok()?;
    let fds = [memory.file().as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(&stream, &[IoSlice::new(b"+")], &mut control, SendFlags::NOSIGNAL).ok()?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
    Some(Guest::new(pid, stream, memory))
}

/// Accessible only to this user, whatever the umask is.
fn make_private(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn variables(library: &Path, directory: &Path, token: &str) -> Vec<(&'static str, OsString)> {
    vec![
        ("CUDA_INJECTION64_PATH", library.into()),
        ("NVTX_INJECTION64_PATH", library.into()),
        (wire::DIRECTORY, directory.into()),
        (wire::TOKEN, token.into()),
    ]
}

/// The variables for a program that [`Socket::for_process`] joins later.
pub fn print_environment(library: &Path) -> io::Result<Vec<(&'static str, OsString)>> {
    let directory = shared_directory()?;
    let token = shared_token(&directory)?;
    Ok(variables(library, &directory, &token))
}

/// How to join a program with the library if its variables cannot be read, because process titles overwrite them.
/// `None` if `inject` was never used.
pub fn shared_dormant() -> Option<Dormant> {
    let directory = shared_directory().ok()?;
    let token = read_token(&directory.join(TOKEN))?;
    Some(Dormant { directory, token })
}

/// The token of all programs of this user that can be joined later.
const TOKEN: &str = "token";

fn shared_token(directory: &Path) -> io::Result<String> {
    let path = directory.join(TOKEN);
    if let Some(token) = read_token(&path) {
        return Ok(token);
    }
    let token = random_token()?;
    let mut new = tempfile::Builder::new().prefix("token-").tempfile_in(directory)?;
    new.write_all(token.as_bytes())?;
    // Another process may have created it first; then its token counts.
    match new.persist_noclobber(&path) {
        Ok(_) => Ok(token),
        Err(refused) => read_token(&path).ok_or(refused.error),
    }
}

/// A token in a file that only this user can access.
fn read_token(path: &Path) -> Option<String> {
    let there = fs::symlink_metadata(path).ok()?;
    let is_ours =
        there.is_file() && there.uid() == rustix::process::getuid().as_raw() && there.mode() & 0o077 == 0;
    let text = is_ours.then(|| fs::read_to_string(path).ok()).flatten()?;
    (text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
}

fn random_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn runtime_directory() -> PathBuf {
    let given = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    given.filter(|dir| dir.is_absolute() && dir.is_dir()).unwrap_or_else(env::temp_dir)
}

/// The directory in which a program that was started earlier looks for the socket: the same for all processes of a
/// user.
pub fn shared_directory() -> io::Result<PathBuf> {
    let me = rustix::process::getuid().as_raw();
    let path = runtime_directory().join(format!("llmprof-{me}"));
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => make_private(&path)?,
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        Err(_) => {}
    }
    require_private(&path)?;
    Ok(path)
}

/// In a world-writable directory, another user may have created it first.
fn require_private(path: &Path) -> io::Result<()> {
    let there = fs::symlink_metadata(path)?;
    let me = rustix::process::getuid().as_raw();
    if there.is_dir() && there.uid() == me && there.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!("{} is not a directory of this user's alone; remove it", path.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(socket.accept_at(late).map(|guest| guest.pid), Some(std::process::id()), "all is said");
        assert!(socket.arrivals.is_empty(), "silent for too long");
    }
}
