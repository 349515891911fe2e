//! Copies this program to a remote host with the same kind of processor.

use std::{
    env, fs,
    io::{self, Read, Write},
    process::Stdio,
};

use super::{
    host::{Host, INSTALLED},
    trouble::{SshError, diagnose},
};
use llmprof_base::foreign::line;

/// The system of a machine, as `uname -s -m` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine(pub String);

impl Machine {
    pub fn here() -> Machine {
        let system = if cfg!(target_os = "linux") { "Linux" } else { env::consts::OS };
        Machine(format!("{system} {}", env::consts::ARCH))
    }
}

/// Asks the host for its system; ssh may ask for a password.
pub fn remote_machine(host: &Host) -> Result<Machine, SshError> {
    let mut command = host.ssh("uname -s -m", false)?;
    let out = command.stdin(Stdio::null()).output().map_err(|e| SshError::from_start(&e))?;
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    match out.status.success() {
        // A login shell may print text before it.
        true => Ok(Machine(line(stdout.lines().last().unwrap_or("").trim(), 60))),
        false => Err(diagnose(host, &stderr, &stdout, out.status.code())),
    }
}

/// Copies the program to `~/.local/bin` of the remote host. The old one is replaced when the new one is complete and
/// starts. `progress` receives the bytes sent and the total.
pub fn install(host: &Host, mut progress: impl FnMut(u64, u64)) -> Result<String, SshError> {
    let broken = |e: io::Error| SshError::Broken { host: host.short().to_owned(), words: e.to_string() };
    let program = env::current_exe().map_err(broken)?;
    let mut file = fs::File::open(&program).map_err(broken)?;
    let total = file.metadata().map_err(broken)?.len();
    let script = format!(
        "set -e; cd; mkdir -p .local/bin; cat > {INSTALLED}.new; test `wc -c < {INSTALLED}.new` -eq {total}; \
         chmod 755 {INSTALLED}.new; {INSTALLED}.new --version >/dev/null; mv {INSTALLED}.new {INSTALLED}"
    );
    let mut command = host.ssh(&script, false)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| SshError::from_start(&e))?;
    let mut sent = 0;
    if let Some(mut pipe) = child.stdin.take() {
        let mut buffer = vec![0; 1 << 18];
        loop {
            let len = file.read(&mut buffer).map_err(broken)?;
            // The other end reports why it closed the pipe.
            if len == 0 || pipe.write_all(&buffer[..len]).is_err() {
                break;
            }
            sent += len as u64;
            progress(sent, total);
        }
    }
    let out = child.wait_with_output().map_err(broken)?;
    match out.status.success() {
        true => Ok(format!("~/{INSTALLED}")),
        false => {
            let (stdout, stderr) =
                (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            Err(diagnose(host, &stderr, &stdout, out.status.code()))
        }
    }
}
