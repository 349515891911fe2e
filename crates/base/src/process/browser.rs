//! Opens a document in the user's browser, which shares neither the terminal nor the end of this program.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
};

use thiserror::Error;

/// Why no browser shows the document; the message has its path.
#[derive(Debug, Error)]
pub enum BrowserError {
    #[error("there is no display and $BROWSER is not set; open {} on another machine", .path.display())]
    NoDisplay { path: PathBuf },
    #[error("{} cannot be started: {source}; open {} yourself", .program.display(), .path.display())]
    NotStarted { program: PathBuf, path: PathBuf, source: io::Error },
    #[error("{} failed ({status}); open {} yourself", .program.display(), .path.display())]
    Failed { program: PathBuf, path: PathBuf, status: String },
}

/// A browser that was started.
pub struct Opening {
    failed: Receiver<BrowserError>,
}

impl Opening {
    /// Why it failed, once it has.
    pub fn failure(&self) -> Option<BrowserError> {
        self.failed.try_recv().ok()
    }
}

/// Starts the browser of `$BROWSER`, or else the desktop's, with the document at `path`.
pub fn open(path: &Path) -> Result<Opening, BrowserError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].into_iter().any(|name| is_set(env::var_os(name)));
    let words = command_line(env::var_os("BROWSER").as_deref(), has_display, &path);
    let Some((program, args)) = words.as_ref().and_then(|words| words.split_first()) else {
        return Err(BrowserError::NoDisplay { path });
    };
    let program = PathBuf::from(program);
    let mut command = Command::new(&program);
    command.args(args).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let not_started =
        |source| BrowserError::NotStarted { program: program.clone(), path: path.clone(), source };
    let mut child = command.spawn().map_err(not_started)?;
    let (tx, failed) = mpsc::channel();
    let (program_started, document) = (program.clone(), path.clone());
    let wait = move || {
        if let Ok(status) = child.wait()
            && !status.success()
        {
            let (program, path) = (program_started, document);
            let _ = tx.send(BrowserError::Failed { program, path, status: status.to_string() });
        }
    };
    thread::Builder::new().name("llmprof-browser".to_owned()).spawn(wait).map_err(not_started)?;
    Ok(Opening { failed })
}

fn is_set(value: Option<OsString>) -> bool {
    value.is_some_and(|value| !value.is_empty())
}

/// The program and its arguments. `$BROWSER` is a colon-separated list; the document replaces `%s`, or is the last
/// argument. No shell reads it.
fn command_line(browser: Option<&OsStr>, has_display: bool, path: &Path) -> Option<Vec<OsString>> {
    let listed = browser.and_then(OsStr::to_str).unwrap_or_default();
    let first = listed.split(':').map(str::trim).find(|command| !command.is_empty());
    let words = match first {
        Some(command) => shlex::split(command).filter(|words| !words.is_empty())?,
        None if has_display => vec!["xdg-open".to_owned()],
        None => return None,
    };
    let mut given = false;
    let mut line: Vec<OsString> = words
        .into_iter()
        .map(|word| {
            let is_place = word == "%s";
            given |= is_place;
            if is_place { path.as_os_str().to_owned() } else { word.into() }
        })
        .collect();
    line.extend((!given).then(|| path.as_os_str().to_owned()));
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_browser_is_the_users_or_the_desktops() {
        let line = |browser: Option<&str>, display| {
            let path = Path::new("/runs/a; rm -rf x/report.html");
            let words = command_line(browser.map(OsStr::new), display, path)?;
            Some(words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>())
        };
        let path = "/runs/a; rm -rf x/report.html";
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(line(None, true), words(&["xdg-open", path]));
        assert_eq!(line(Some(""), true), words(&["xdg-open", path]));
        assert_eq!(line(None, false), None);
        assert_eq!(line(Some("firefox"), false), words(&["firefox", path]));
        assert_eq!(line(Some("chromium --app=x %s:lynx"), true), words(&["chromium", "--app=x", path]));
        assert_eq!(line(Some("sh -c 'unclosed"), true), None);
    }
}
