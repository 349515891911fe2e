//! Where the library finds us: a socket in a directory of this user's alone.

use std::{
    env,
    ffi::OsString,
    fs, io,
    io::{ErrorKind, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::AsFd,
        unix::{
            fs::{DirBuilderExt, MetadataExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use llmprof_inject::wire;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use tempfile::TempDir;

use super::{guest::Guest, process_info::Dormant, ring::Memory};

/// A library says who it is at once.
const HELLO_TIMEOUT: Duration = Duration::from_millis(200);

pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    directory: PathBuf,
    token: String,
    /// Removed with the socket, where it is our own.
    _private: Option<TempDir>,
}

impl Socket {
    /// For programs that are started with [`variables`](Self::variables).
    pub fn for_children() -> io::Result<Socket> {
        let private = tempfile::Builder::new().prefix("llmprof-").tempdir_in(runtime_directory())?;
        let directory = private.path().to_owned();
        Self::listen(directory.join(wire::SOCKET), directory, random_token()?, Some(private))
    }

    /// For the program `pid`, which was started with the variables of `inject`.
    pub fn for_process(pid: u32, library: &Dormant) -> io::Result<Socket> {
        let Dormant { directory, token } = library.clone();
        require_private(&directory)?;
        let path = directory.join(format!("{pid}.socket"));
        // Left behind by a profiler that was killed. One that is alive answers.
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
        Ok(Socket { listener, path, directory, token, _private: private })
    }

    /// The variables that make a program load `library` and let it find this socket.
    pub fn variables(&self, library: &Path) -> Vec<(&'static str, OsString)> {
        variables(library, &self.directory, &self.token)
    }

    /// The next program that has connected, if there is one. Those that do not say what the library says are turned away.
    pub fn accept(&self) -> Option<Guest> {
        loop {
            let (stream, _) = self.listener.accept().ok()?;
            if let Some(guest) = self.greet(stream) {
                return Some(guest);
            }
        }
    }

    fn greet(&self, mut stream: UnixStream) -> Option<Guest> {
        let peer = sockopt::socket_peercred(&stream).ok()?;
        if peer.uid != rustix::process::getuid() {
            return None;
        }
        stream.set_read_timeout(Some(HELLO_TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(HELLO_TIMEOUT)).ok()?;
        let wanted = wire::hello(&self.token);
        let mut said = vec![0; wanted.len()];
        stream.read_exact(&mut said).ok()?;
        if said != wanted.as_bytes() {
            return None;
        }
        let memory = Memory::new().ok()?;
        let fds = [memory.file().as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&stream, &[IoSlice::new(b"+")], &mut control, SendFlags::NOSIGNAL).ok()?;
        stream.set_nonblocking(true).ok()?;
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
        Some(Guest::new(pid, stream, memory))
    }
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

/// How to join a program that has the library, where its variables cannot be read: titles of processes are written over them. `None`
/// where `inject` was never used.
pub fn shared_dormant() -> Option<Dormant> {
    let directory = shared_directory().ok()?;
    let token = read_token(&directory.join(TOKEN))?;
    Some(Dormant { directory, token })
}

/// The token of all programs of this user that are joined later.
const TOKEN: &str = "token";

fn shared_token(directory: &Path) -> io::Result<String> {
    let path = directory.join(TOKEN);
    if let Some(token) = read_token(&path) {
        return Ok(token);
    }
    let token = random_token()?;
    let mut new = tempfile::Builder::new().prefix("token-").tempfile_in(directory)?;
    new.write_all(token.as_bytes())?;
    // Somebody else may have been first: then theirs is it.
    match new.persist_noclobber(&path) {
        Ok(_) => Ok(token),
        Err(refused) => read_token(&path).ok_or(refused.error),
    }
}

/// A token in a file of this user's alone.
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

/// The directory in which a program that was started before us looks for our socket: always the same for a user.
pub fn shared_directory() -> io::Result<PathBuf> {
    let me = rustix::process::getuid().as_raw();
    let path = runtime_directory().join(format!("llmprof-{me}"));
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    require_private(&path)?;
    Ok(path)
}

/// In a directory that everybody may write, somebody else may have been first.
fn require_private(path: &Path) -> io::Result<()> {
    let there = fs::symlink_metadata(path)?;
    let me = rustix::process::getuid().as_raw();
    if there.is_dir() && there.uid() == me && there.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!("{} is not a directory of this user's alone; remove it", path.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}
