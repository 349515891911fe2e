//! The directory and the token by which a library and the profiler recognise each other. Only this user can access them.

use std::{
    env,
    ffi::OsString,
    fs, io,
    io::{ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use llmprof_inject::wire;

/// A dormant library in a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dormant {
    pub directory: PathBuf,
    pub token: String,
}

/// Accessible only to this user, whatever the umask is.
pub fn make_private(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

pub fn variables(library: &Path, directory: &Path, token: &str) -> Vec<(&'static str, OsString)> {
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

pub fn random_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub fn runtime_directory() -> PathBuf {
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
pub fn require_private(path: &Path) -> io::Result<()> {
    let there = fs::symlink_metadata(path)?;
    let me = rustix::process::getuid().as_raw();
    if there.is_dir() && there.uid() == me && there.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!("{} is not a directory that only this user can access; remove it", path.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}
