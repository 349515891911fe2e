//! Git checkouts of reference sources.
//!
//! A checkout and its pin may be untrusted. Settings, hooks and addresses can make git start programs, so it runs
//! without them: hooks are off, protocols are limited, `GIT_*` is unset, and a checkout with settings that this program
//! did not write is not used.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use super::error::AssetError;

/// Settings that take precedence over those of a checkout and of the user.
const SETTINGS: [&str; 6] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
];

/// Without `ext::`, which runs a program, and without unencrypted protocols.
const PROTOCOLS: &str = "https:ssh:file";

/// The keys that git itself writes into the configuration of a checkout by this program. None of them names a program.
const OWN_KEYS: [&str; 18] = [
    "core.bare",
    "core.filemode",
    "core.ignorecase",
    "core.logallrefupdates",
    "core.precomposeunicode",
    "core.repositoryformatversion",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "core.symlinks",
    "extensions.objectformat",
    "extensions.partialclone",
    "extensions.refstorage",
    "extensions.worktreeconfig",
    "index.sparse",
    "remote.origin.fetch",
    "remote.origin.partialclonefilter",
    "remote.origin.promisor",
    "remote.origin.url",
];

/// The commands that check out `revision` of `url` (only `paths`, if not empty) to `dir`.
pub(super) fn checkout(dir: &Path, url: &str, revision: &str, paths: &[String]) -> Vec<Vec<String>> {
    let dir = dir.display().to_string();
    let owned = |args: &[&str]| args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>();
    let mut commands = vec![
        owned(&["init", "-q", "--", &dir]),
        owned(&["-C", &dir, "config", "remote.origin.url", url]),
        owned(&["-C", &dir, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"]),
    ];
    if !paths.is_empty() {
        let mut sparse = owned(&["-C", &dir, "sparse-checkout", "set", "--"]);
        sparse.extend(paths.iter().cloned());
        commands.push(sparse);
    }
    let fetch = ["-C", &dir, "fetch", "-q", "--depth", "1", "--filter=blob:none", "--", "origin", revision];
    commands.push(owned(&fetch));
    commands.push(owned(&["-C", &dir, "checkout", "-q", "--detach", "FETCH_HEAD"]));
    commands
}

/// Git without the environment of other git commands, and with [`SETTINGS`].
fn git() -> Command {
    let mut command = Command::new("git");
    let inherited = std::env::vars_os().map(|(name, _)| name);
    inherited.filter(|name| name.as_encoded_bytes().starts_with(b"GIT_")).for_each(|name| {
        command.env_remove(name);
    });
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ALLOW_PROTOCOL", PROTOCOLS).stdin(Stdio::null());
    command.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
    command
}

/// Runs git without password prompts; its output, trimmed.
pub(super) fn run<S: AsRef<OsStr>>(args: &[S]) -> Result<String, AssetError> {
    output(&mut git(), args)
}

fn output<S: AsRef<OsStr>>(git: &mut Command, args: &[S]) -> Result<String, AssetError> {
    let command = || args.iter().map(|a| a.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = git.args(args).output().map_err(|e| {
        let why = match e.kind() {
            io::ErrorKind::NotFound => {
                "git is not installed; install it and run this command again".to_owned()
            }
            _ => e.to_string(),
        };
        AssetError::Git { command: command(), why }
    })?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(AssetError::Git { command: command(), why });
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Refuses a checkout whose layout or configuration differs from that of [`checkout`].
pub(super) fn require_own(dir: &Path) -> Result<(), AssetError> {
    let foreign = |why: String| AssetError::ForeignCheckout { dir: dir.to_owned(), why };
    let git_dir = dir.join(".git");
    // Without a `.git` here, git would use the repository of a parent directory.
    if !fs::symlink_metadata(&git_dir).is_ok_and(|found| found.is_dir()) {
        return Err(foreign("it has no .git directory".to_owned()));
    }
    if fs::symlink_metadata(git_dir.join("commondir")).is_ok() {
        return Err(foreign("its .git refers to another repository".to_owned()));
    }
    for name in ["config", "config.worktree"] {
        let path = std::path::absolute(git_dir.join(name)).map_err(AssetError::io("read", &git_dir))?;
        match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Ok(found) if found.is_file() => {}
            _ => return Err(foreign(format!(".git/{name} is not a file"))),
        }
        // In `/`, so that no repository around the working directory is read.
        let list =
            ["-C", "/", "config", "--no-includes", "--list", "--name-only", "-z", "--file"].map(OsStr::new);
        let keys = run(&[&list[..], &[path.as_os_str()]].concat())?;
        let key = keys.split('\0').find(|key| !key.is_empty() && !OWN_KEYS.contains(key));
        if let Some(key) = key {
            return Err(foreign(format!(".git/{name} sets {key}, which this program does not")));
        }
    }
    Ok(())
}

/// The commit checked out at `dir`.
pub(super) fn head(dir: &Path) -> Result<String, AssetError> {
    require_own(dir)?;
    run(&["-C".as_ref(), dir.as_os_str(), "rev-parse".as_ref(), "HEAD".as_ref()])
}

/// Whether files of the checkout are edited.
pub(super) fn is_changed(dir: &Path) -> Result<bool, AssetError> {
    require_own(dir)?;
    // A submodule has its own settings, and nothing must be fetched to compare files.
    let status = ["--no-optional-locks", "status", "--porcelain", "--ignore-submodules=all"].map(OsStr::new);
    let args = [&[OsStr::new("-C"), dir.as_os_str()][..], &status].concat();
    Ok(!output(git().env("GIT_NO_LAZY_FETCH", "1"), &args)?.is_empty())
}

/// The current commit of `reference` at the remote.
pub(super) fn remote_commit(url: &str, reference: &str) -> Result<String, AssetError> {
    let answer = run(&["ls-remote", "--", url, reference])?;
    let commit = answer.split_whitespace().next().unwrap_or_default().to_owned();
    if !is_commit(&commit) {
        let why = format!("{url} has no {reference:?}");
        return Err(AssetError::Git { command: "ls-remote".into(), why });
    }
    Ok(commit)
}

/// Whether `text` is a full commit id, SHA-1 or SHA-256.
pub(super) fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Refuses an address that git could read as an option, or that names no host or file.
pub(super) fn require_url(url: &str) -> Result<(), AssetError> {
    let bad = |why: &str| AssetError::BadName { what: "url", name: url.to_owned(), why: why.to_owned() };
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(bad("it contains a space or a control character"));
    }
    let host_and_path = match () {
        () if url.starts_with("file:///") => return Ok(()),
        () if url.starts_with("git@") => url.split_once(':'),
        () => url
            .strip_prefix("https://")
            .or_else(|| url.strip_prefix("ssh://"))
            .and_then(|rest| rest.split_once('/')),
    };
    let Some((host, path)) = host_and_path else {
        return Err(bad("a git address starts with https://, ssh://, git@ or file:///, and has a path"));
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._~%@:[]".contains(c);
    let named = |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[');
    match host.split('@').all(named) && host.chars().all(fits) && !path.is_empty() && !path.starts_with('-') {
        true => Ok(()),
        false => Err(bad("its host or path is not valid")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_known_protocol_and_a_host() {
        for good in [
            "https://github.com/huggingface/transformers",
            "https://token:x@hub.example:8443/a.git",
            "ssh://git@github.com:22/a/b.git",
            "git@github.com:a/b.git",
            "file:///srv/a.git",
        ] {
            require_url(good).unwrap();
        }
        for bad in [
            "ext::sh -c touch% /tmp/x",
            "--upload-pack=x",
            "http://hub.example/a",
            "git://hub.example/a",
            "/srv/a.git",
            "https:///a",
            "https://hub.example",
            "ssh://-oProxyCommand=x/a",
            "ssh://git@-oProxyCommand=x/a",
            "git@-oProxyCommand=x:a",
            "git@hub.example:-a",
            "https://hub.example/a b",
            "https://hub.example/a\n",
            "",
        ] {
            assert!(require_url(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn commits_are_whole() {
        assert!(is_commit(&"a1".repeat(20)) && is_commit(&"A1".repeat(32)));
        for bad in ["", "a1", "--upload-pack=x", &"g".repeat(40), &"a".repeat(41)] {
            assert!(!is_commit(bad), "{bad}");
        }
    }
}
