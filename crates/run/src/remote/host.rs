//! The remote host, and the ssh command that reaches it.

use std::{env, process::Command, str::FromStr, time::Duration};

use thiserror::Error;

use llmprof_base::shell::quoted;

/// The variable with the ssh command, if it is not `ssh`.
pub const SSH_VARIABLE: &str = "LLMPROF_SSH";
/// ssh drops a connection after three of these intervals without an answer.
const ALIVE_S: u32 = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The path of the program that `--install` copies, below the home directory.
pub const INSTALLED: &str = ".local/bin/llmprof-tui";
/// The output if the program is missing, before the name of the system.
pub const MISSING: &str = "llmprof-tui is missing:";

/// A machine that ssh can reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// `user@name`, or an alias of ssh's configuration.
    pub name: String,
    pub port: Option<u16>,
    /// As with ssh's `-o`.
    pub options: Vec<String>,
    /// The program on the remote host, if it is not in PATH.
    pub program: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostError {
    #[error("--host {0:?}: expected [user@]host[:port]")]
    Form(String),
    #[error("{SSH_VARIABLE} has a quote that is not closed")]
    Quote,
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Host, HostError> {
        let wrong = || HostError::Form(text.to_owned());
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, rest)) => (format!("{user}@"), rest),
            None => (String::new(), text),
        };
        let (host, port) = match rest.strip_prefix('[') {
            // An IPv6 address.
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
                (host, (!port.is_empty()).then(|| port.strip_prefix(':').unwrap_or("")))
            }
            None if rest.matches(':').count() > 1 => (rest, None),
            None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong));
        let name = format!("{user}{host}");
        // A name that begins with a dash would be an option.
        let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"'\"`$;&|<>()\\".contains(c);
        if host.is_empty()
            || user == "@"
            || name.starts_with('-')
            || host.starts_with('-')
            || !name.chars().all(plain)
        {
            return Err(wrong());
        }
        Ok(Host { name, port: port.transpose()?, options: Vec::new(), program: None })
    }
}

impl Host {
    /// Without the user, for display.
    pub fn short(&self) -> &str {
        self.name.rsplit_once('@').map_or(&self.name, |(_, host)| host)
    }

    /// As an argument of `--host`.
    pub fn argument(&self) -> String {
        match (self.port, self.short().contains(':')) {
            (None, _) => self.name.clone(),
            (Some(port), false) => format!("{}:{port}", self.name),
            (Some(port), true) => {
                let user = self.name.strip_suffix(self.short()).unwrap_or("");
                format!("{user}[{}]:{port}", self.short())
            }
        }
    }

    /// The beginning of a command line that reaches the same machine again.
    pub fn command_line(&self) -> String {
        let mut words = vec!["llmprof-tui".to_owned(), "--host".to_owned(), self.argument()];
        for option in &self.options {
            words.extend(["--ssh-option".to_owned(), option.clone()]);
        }
        if let Some(program) = &self.program {
            words.extend(["--remote-program".to_owned(), program.clone()]);
        }
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// ssh with `script` for a remote shell. `batch`: without questions.
    pub fn ssh(&self, script: &str, batch: bool) -> Result<Command, HostError> {
        let words = match env::var(SSH_VARIABLE) {
            Ok(words) if !words.trim().is_empty() => shlex::split(&words).ok_or(HostError::Quote)?,
            _ => vec!["ssh".to_owned()],
        };
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("-T");
        for option in &self.options {
            command.args(["-o", option]);
        }
        // The first value of an option counts: the user's own precede the program's.
        let ours = [
            format!("ServerAliveInterval={ALIVE_S}"),
            "ServerAliveCountMax=3".to_owned(),
            format!("ConnectTimeout={}", CONNECT_TIMEOUT.as_secs()),
            "ClearAllForwardings=yes".to_owned(),
            // The end of another session must not end this one.
            "ControlPath=none".to_owned(),
            format!("BatchMode={}", if batch { "yes" } else { "no" }),
        ];
        for option in &ours {
            command.args(["-o", option]);
        }
        if let Some(port) = self.port {
            command.args(["-p", &port.to_string()]);
        }
        // The login shell may be any; it receives one quoted word.
        command.arg("--").arg(&self.name).arg(format!("exec /bin/sh -c {}", in_quotes(script)));
        Ok(command)
    }

    /// The script that starts the remote program with `argument`.
    pub fn start_script(&self, argument: &str) -> String {
        match &self.program {
            Some(program) => {
                // A path relative to the home directory, as it was typed locally.
                let (home, rest) = match program.strip_prefix("~/") {
                    Some(rest) => ("\"$HOME\"/", rest),
                    None => ("", program.as_str()),
                };
                let program = format!("{home}{}", in_quotes(rest));
                format!(
                    "command -v {program} >/dev/null 2>&1 && exec {program} {argument}; \
                     echo {MISSING} `uname -s -m` >&2; exit 127"
                )
            }
            None => format!(
                "command -v llmprof-tui >/dev/null 2>&1 && exec llmprof-tui {argument}; \
                 test -x \"$HOME/{INSTALLED}\" && exec \"$HOME/{INSTALLED}\" {argument}; \
                 echo {MISSING} `uname -s -m` >&2; exit 127"
            ),
        }
    }
}

/// One word for any shell: in single quotes.
fn in_quotes(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(text: &str) -> Host {
        text.parse().unwrap()
    }

    #[test]
    fn hosts_are_read_as_ssh_writes_them() {
        for (text, name, port) in [
            ("box", "box", None),
            ("me@box:2222", "me@box", Some(2222)),
            ("me@[::1]:22", "me@::1", Some(22)),
            ("[fe80::1]", "fe80::1", None),
            ("fe80::1", "fe80::1", None),
            ("me@corp@box", "me@corp@box", None),
        ] {
            assert_eq!((host(text).name.as_str(), host(text).port), (name, port), "{text}");
            assert_eq!(host(&host(text).argument()), host(text), "{text}");
        }
        for text in [
            "",
            "-oProxyCommand=x",
            "me@-oProxyCommand=x",
            "box:",
            "box:0",
            "box:x",
            "a b",
            "@box",
            "box;x",
            "[::1",
            "$(x)",
        ] {
            assert_eq!(text.parse::<Host>(), Err(HostError::Form(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn the_users_options_come_first() {
        let host = Host { options: vec!["ServerAliveInterval=1".into()], ..host("me@box:7") };
        let command = host.ssh("true", true).unwrap();
        let args: Vec<String> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let first = args.iter().find(|a| a.starts_with("ServerAliveInterval")).unwrap();
        assert_eq!(first, "ServerAliveInterval=1");
        assert!(
            args.contains(&"BatchMode=yes".to_owned())
                && args.ends_with(&["me@box".into(), "exec /bin/sh -c 'true'".into()])
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

        /// A real shell reads the word unchanged.
        #[test]
        fn a_quoted_word_stays_one_word(word in "[^\0]{0,40}") {
            let script = format!("printf %s {}", in_quotes(&word));
            let out = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            prop_assert_eq!(out.stdout, word.as_bytes());
        }
    }
}
