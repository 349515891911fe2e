//! Git checkouts of reference sources.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;

use super::error::AssetError;

/// The commands that check out `revision` of `url` (only `paths`, if not empty) to `dir`.
pub(super) fn checkout(dir: &Path, url: &str, revision: &str, paths: &[String]) -> Vec<Vec<String>> {
    let dir = dir.display().to_string();
    let owned = |args: &[&str]| args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>();
    let mut commands = vec![
        owned(&["init", "-q", &dir]),
        owned(&["-C", &dir, "config", "remote.origin.url", url]),
        owned(&["-C", &dir, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"]),
    ];
    if !paths.is_empty() {
        let mut sparse = owned(&["-C", &dir, "sparse-checkout", "set", "--"]);
        sparse.extend(paths.iter().cloned());
        commands.push(sparse);
    }
    commands.push(owned(&[
        "-C",
        &dir,
        "fetch",
        "-q",
        "--depth",
        "1",
        "--filter=blob:none",
        "origin",
        revision,
    ]));
    commands.push(owned(&["-C", &dir, "checkout", "-q", "--detach", "FETCH_HEAD"]));
    commands
}

/// Runs git without password prompts; its output, trimmed.
pub(super) fn run<S: AsRef<OsStr>>(args: &[S]) -> Result<String, AssetError> {
    let command = || args.iter().map(|a| a.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = Command::new("git").args(args).env("GIT_TERMINAL_PROMPT", "0").output().map_err(|e| {
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

/// The commit checked out at `dir`.
pub(super) fn head(dir: &Path) -> Result<String, AssetError> {
    // Without a `.git` here, git would use the repository of a parent directory.
    if !dir.join(".git").exists() {
        let command = format!("-C {} rev-parse HEAD", dir.display());
        return Err(AssetError::Git { command, why: "not a git checkout".into() });
    }
    run(&["-C".as_ref(), dir.as_os_str(), "rev-parse".as_ref(), "HEAD".as_ref()])
}

/// Whether files of the checkout are edited.
pub(super) fn is_changed(dir: &Path) -> Result<bool, AssetError> {
    let status = run(&["-C".as_ref(), dir.as_os_str(), "status".as_ref(), "--porcelain".as_ref()])?;
    Ok(!status.is_empty())
}

/// The current commit of `reference` at the remote.
pub(super) fn remote_commit(url: &str, reference: &str) -> Result<String, AssetError> {
    let answer = run(&["ls-remote", "--", url, reference])?;
    let commit = answer.split_whitespace().next().unwrap_or_default().to_owned();
    if commit.is_empty() {
        let why = format!("{url} has no {reference:?}");
        return Err(AssetError::Git { command: "ls-remote".into(), why });
    }
    Ok(commit)
}
