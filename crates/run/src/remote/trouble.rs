//! Messages about connection errors: the last line of ssh, and the remedy.

use std::io;

use thiserror::Error;

use super::{
    host::{Host, HostError, MISSING},
    protocol::{Hello, PROTOCOL, VERSION},
};
use llmprof_base::foreign::line;
use llmprof_event::SCHEMA;

/// Maximum characters of ssh's own message.
const MAX_WORDS: usize = 300;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SshError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(
        "ssh cannot be started: {0}; install OpenSSH's client (Debian: openssh-client), or name another command in LLMPROF_SSH"
    )]
    NoSsh(String),
    #[error("no connection to {host}: {words}; {remedy}")]
    Refused { host: String, words: String, remedy: &'static str, asks: bool },
    #[error("{host} has no llmprof-tui{}; {remedy}", .searched.as_ref().map(|path| format!(" at {path}")).unwrap_or_else(|| " in PATH or in ~/.local/bin".to_owned()))]
    Missing { host: String, searched: Option<String>, system: String, remedy: String },
    #[error(
        "{host} did not answer within {seconds} s; check that the host is up, then press H or run the command again"
    )]
    Silent { host: String, seconds: u64 },
    #[error(
        "the versions are incompatible: llmprof-tui {VERSION} locally (schema {SCHEMA}, protocol {PROTOCOL}), \
         {version} on {host} (schema {schema}, protocol {protocol}); install the same version on both: {remedy}"
    )]
    Version { host: String, version: String, schema: u32, protocol: u32, remedy: String },
    #[error(
        "llmprof-tui on {host} does not have the command `remote-serve`: it is older than the local one ({VERSION}); \
         install the same version: {remedy}"
    )]
    TooOld { host: String, remedy: String },
    #[error(
        "{host} did not answer as llmprof-tui does: {words}; check that its shell starts without output and without \
         waiting for input, and that --remote-program is llmprof-tui"
    )]
    Garbage { host: String, words: String },
    #[error("the connection to {host} broke: {words}")]
    Broken { host: String, words: String },
}

impl SshError {
    pub fn from_start(e: &io::Error) -> SshError {
        SshError::NoSsh(e.to_string())
    }

    /// Whether ssh would have to ask the user.
    pub fn asks(&self) -> bool {
        matches!(self, SshError::Refused { asks: true, .. })
    }

    /// Whether further attempts are useless.
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            SshError::Host(_)
                | SshError::NoSsh(_)
                | SshError::Version { .. }
                | SshError::TooOld { .. }
                | SshError::Missing { .. }
        ) || self.asks()
    }
}

/// ssh's messages and their remedies. The first match counts; the last column: whether ssh would ask the user.
const KNOWN: [(&str, &str, bool); 13] = [
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the key of the host has changed: if that is expected, remove the old one with ssh-keygen -R HOST",
        false,
    ),
    (
        "Host key verification failed",
        "the key of the host is unknown: connect once with ssh and confirm it",
        true,
    ),
    (
        "Too many authentication failures",
        "name the key: --ssh-option IdentityFile=PATH --ssh-option IdentitiesOnly=yes",
        false,
    ),
    (
        "Permission denied",
        "check the user and the key: ssh must log in without a password, or ask for it on a terminal",
        true,
    ),
    ("Could not resolve hostname", "check the name, or add an alias to ~/.ssh/config", false),
    ("Connection refused", "check that sshd is running on the host, and the port (--host box:PORT)", false),
    ("No route to host", "check the network, a VPN, and that the host is up", false),
    ("Network is unreachable", "check the network or a VPN", false),
    ("timed out", "check the network, a VPN, and that the host is up", false),
    ("Bad configuration option", "check --ssh-option and LLMPROF_SSH", false),
    ("Bad owner or permissions", "correct the permissions of ~/.ssh/config", false),
    ("Connection reset", "sshd may have too many connections; try again", false),
    ("Connection closed by", "sshd closed the connection; see its log on the host", false),
];

/// Interprets the output of ssh and the remote shell before they ended. `greeting` is their stdout.
pub fn diagnose(host: &Host, stderr: &str, greeting: &str, code: Option<i32>) -> SshError {
    let name = host.short().to_owned();
    if let Some(at) = stderr.find(MISSING) {
        let system = line(stderr[at + MISSING.len()..].lines().next().unwrap_or("").trim(), 60);
        let remedy = format!(
            "copy this program to the host with {} --install, or name it with --remote-program PATH",
            host.command_line()
        );
        return SshError::Missing { host: name, searched: host.program.clone(), system, remedy };
    }
    if stderr.contains("remote-serve")
        && (stderr.contains("neither a command") || stderr.contains("unrecognized subcommand"))
    {
        return SshError::TooOld { host: name, remedy: format!("{} --install", host.command_line()) };
    }
    let is_noise = |text: &&str| {
        text.trim().is_empty() || text.starts_with("Warning: Permanently added") || text.starts_with("@@@")
    };
    let last = stderr.lines().rev().find(|text| !is_noise(text));
    if let Some((_, remedy, asks)) = KNOWN.iter().find(|(text, ..)| stderr.contains(text)) {
        let words = stderr.lines().rev().find(|text| KNOWN.iter().any(|(known, ..)| text.contains(known)));
        let words = line(words.or(last).unwrap_or("").trim(), MAX_WORDS);
        return SshError::Refused { host: name, words, remedy, asks: *asks };
    }
    match (last, greeting.trim()) {
        (Some(words), _) => SshError::Broken { host: name, words: line(words.trim(), MAX_WORDS) },
        (None, "") => {
            let code = code.map_or_else(|| "by a signal".to_owned(), |code| format!("with exit code {code}"));
            SshError::Broken { host: name, words: format!("ssh ended {code} without a message") }
        }
        (None, greeting) => SshError::Garbage { host: name, words: line(greeting, MAX_WORDS) },
    }
}

/// Whether the versions of both ends are compatible; a warning if they differ.
pub fn check(host: &Host, hello: &Hello) -> Result<Option<String>, SshError> {
    let version = line(&hello.version, 40);
    if hello.schema != SCHEMA || hello.protocol != PROTOCOL {
        return Err(SshError::Version {
            host: host.short().to_owned(),
            version,
            schema: hello.schema,
            protocol: hello.protocol,
            remedy: format!("{} --install", host.command_line()),
        });
    }
    let differs = hello.version != VERSION;
    Ok(differs.then(|| {
        format!(
            "llmprof-tui is {version} on {} and {VERSION} locally; both write the same schema",
            host.short()
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_ssh_become_remedies() {
        let host: Host = "me@box:22".parse().unwrap();
        for (stderr, words, remedy) in [
            (
                "ssh: connect to host box port 22: Connection refused\n",
                "box: ssh: connect to host box port 22: Connection refused",
                "sshd is running on the host",
            ),
            (
                "ssh: Could not resolve hostname box: Name or service not known\r\n",
                "Could not resolve",
                "~/.ssh/config",
            ),
            (
                "No ED25519 host key is known for box and you have requested strict checking.\nHost key verification failed.\n",
                "Host key verification failed.",
                "connect once with ssh",
            ),
            (
                "me@box: Permission denied (publickey,password).\n",
                "Permission denied (publickey",
                "check the user and the key",
            ),
            ("ssh: connect to host box port 22: No route to host\n", "No route", "VPN"),
            ("ssh: connect to host box port 22: Connection timed out\n", "timed out", "VPN"),
            (
                "command-line: line 0: Bad configuration option: nonsense\n",
                "Bad configuration",
                "--ssh-option",
            ),
            (
                "llmprof-tui is missing: Linux x86_64\n",
                "box has no llmprof-tui in PATH or in ~/.local/bin",
                "--host me@box:22 --install",
            ),
            (
                "error: \"remote-serve\" is neither a command (run, …) nor an override (key=value).\n",
                "older than the local one",
                "--install",
            ),
            ("\x1b]0;evil\x07sh: 1: exec: nothing\n", "\\u001b]0;evil\\u0007sh", "nothing"),
        ] {
            let trouble = diagnose(&host, stderr, "", Some(255)).to_string();
            assert!(trouble.contains(words) && trouble.contains(remedy), "{stderr:?}: {trouble}");
            assert!(!trouble.contains('\x1b'), "{trouble}");
        }
        let said = diagnose(&host, "", "This account is not available.\n", Some(1)).to_string();
        assert!(
            said.contains("did not answer as llmprof-tui does: This account is not available."),
            "{said}"
        );
        assert!(diagnose(&host, "", "", None).to_string().contains("without a message"));
    }

    #[test]
    fn another_schema_is_refused_and_another_version_is_not() {
        let host: Host = "box".parse().unwrap();
        let hello = Hello::here();
        assert_eq!(check(&host, &hello), Ok(None));
        let older = Hello { version: "0.0.1".into(), ..hello.clone() };
        assert!(check(&host, &older).unwrap().unwrap().contains("0.0.1 on box"));
        for other in
            [Hello { schema: SCHEMA + 1, ..hello.clone() }, Hello { protocol: PROTOCOL + 1, ..hello }]
        {
            let refused = check(&host, &other).unwrap_err().to_string();
            assert!(refused.contains(VERSION) && refused.contains("--install"), "{refused}");
        }
    }
}
