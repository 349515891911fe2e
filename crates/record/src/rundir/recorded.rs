//! Deletes and renames recorded runs and sweeps: only below the root, never through a link, and never while they are
//! recorded.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    str::FromStr,
    thread,
    time::{Duration, SystemTime},
};

use thiserror::Error;

use super::{age::age, layout::RunDir};
use llmprof_base::{
    dir::{Dir, open_file},
    foreign::is_hidden,
};

/// A run records something every second. On a file system without locks, a run counts as running if its file was
/// written within this time.
const WRITTEN_LATELY: Duration = Duration::from_secs(10);

/// Attempts to lock a recording.
const LOCK_ATTEMPTS: usize = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Why nothing was deleted or renamed.
#[derive(Debug, Error)]
pub enum RecordedError {
    #[error("{} is not below {}; nothing was changed", .path.display(), .root.display())]
    Outside { path: PathBuf, root: PathBuf },
    #[error("{} is neither a run nor a sweep; nothing was changed", .path.display())]
    NotRecorded { path: PathBuf },
    #[error("{} is being recorded; end the run first", .path.display())]
    Running { path: PathBuf },
    #[error("{} belongs to a sweep that is running; end the sweep first", .path.display())]
    SweepRunning { path: PathBuf },
    #[error("sweep.json names its jobs: rename the sweep instead of a job")]
    NamedBySweep,
    #[error("{name} is taken; give another name")]
    Taken { name: String },
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Why a text is not the name of a run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RunNameError {
    #[error("a run needs a name")]
    Empty,
    #[error("a name has no \"/\": a run stays in its directory")]
    Slash,
    #[error("a name does not start with {0:?}")]
    Start(char),
    #[error("a name has no control characters")]
    Hidden,
    #[error("a name has at most {MAX_NAME} bytes")]
    Long,
    #[error("{0} is reserved for a run by its age; give another name")]
    Age(String),
}

/// Leaves room for suffixes such as `-interrupted-2`.
const MAX_NAME: usize = 200;

/// The name of the directory of a run or a sweep: one component of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunName(String);

impl FromStr for RunName {
    type Err = RunNameError;

    fn from_str(text: &str) -> Result<RunName, RunNameError> {
        match text.chars().next() {
            None => return Err(RunNameError::Empty),
            Some(first @ ('.' | '-' | ' ')) => return Err(RunNameError::Start(first)),
            Some(_) => {}
        }
        if text.contains('/') {
            Err(RunNameError::Slash)
        } else if text.contains(|c: char| is_hidden(c) || c.is_control()) {
            Err(RunNameError::Hidden)
        } else if text.len() > MAX_NAME {
            Err(RunNameError::Long)
        } else if age(text).is_some() {
            Err(RunNameError::Age(text.to_owned()))
        } else {
            Ok(RunName(text.to_owned()))
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedKind {
    Run,
    /// A run of a sweep.
    Job,
    Sweep,
}

/// A run or a sweep that may be deleted or renamed.
#[derive(Debug)]
pub struct Recorded {
    pub kind: RecordedKind,
    path: PathBuf,
    parent: Dir,
    name: OsString,
}

impl Recorded {
    /// The run or the sweep at `path`. Links in the path of `root` are followed: the user has chosen it.
    pub fn find(root: &Path, path: &Path) -> Result<Recorded, RecordedError> {
        let outside = || RecordedError::Outside { path: path.to_owned(), root: root.to_owned() };
        let below = path.strip_prefix(root).map_err(|_| outside())?;
        let (Some(name), Some(above)) = (below.file_name(), below.parent()) else { return Err(outside()) };
        let io_error = |source| RecordedError::Io { path: path.to_owned(), source };
        let parent = Dir::open(root).and_then(|root| root.existing(above)).map_err(io_error)?;
        let dir = parent.existing(name.as_ref()).map_err(io_error)?;
        let sweep = above.ancestors().find(|above| is_sweep(&root.join(above)));
        let kind = match (dir.has("events.ndjson"), dir.has("sweep.json"), sweep) {
            (true, _, None) => RecordedKind::Run,
            (true, _, Some(_)) => RecordedKind::Job,
            (false, true, _) => RecordedKind::Sweep,
            (false, false, _) => return Err(RecordedError::NotRecorded { path: path.to_owned() }),
        };
        if is_open(&RunDir::open(path).events()) {
            return Err(RecordedError::Running { path: path.to_owned() });
        }
        let sweep = sweep.map(|sweep| root.join(sweep)).unwrap_or_else(|| path.to_owned());
        if is_locked(&sweep.join("sweep.json")) {
            return Err(RecordedError::SweepRunning { path: path.to_owned() });
        }
        Ok(Recorded { kind, path: path.to_owned(), parent, name: name.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of all its files.
    pub fn size(&self) -> Result<u64, RecordedError> {
        self.parent.existing(self.name.as_ref()).and_then(|dir| dir.size()).map_err(|e| self.io_error(e))
    }

    pub fn remove(self) -> Result<(), RecordedError> {
        self.parent.remove_all(&self.name).map_err(|e| self.io_error(e))
    }

    /// Returns the new path.
    pub fn rename(self, name: &RunName) -> Result<PathBuf, RecordedError> {
        if self.kind == RecordedKind::Job {
            return Err(RecordedError::NamedBySweep);
        }
        self.parent.rename(&self.name, OsStr::new(&name.0)).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => RecordedError::Taken { name: name.0.clone() },
            _ => self.io_error(e),
        })?;
        Ok(self.path.with_file_name(&name.0))
    }

    fn io_error(&self, source: io::Error) -> RecordedError {
        RecordedError::Io { path: self.path.clone(), source }
    }
}

pub(super) fn is_sweep(dir: &Path) -> bool {
    dir.join("sweep.json").is_file()
}

/// Locks a recording while it is written. It is unlocked when the file is closed or the process is killed.
pub(super) fn lock(file: &File) {
    // A program that lists runs holds the lock for a moment. Not every file system has locks.
    for _ in 0..LOCK_ATTEMPTS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            _ => return,
        }
    }
}

/// Whether a program still writes the recording in `events`.
pub(super) fn is_open(events: &Path) -> bool {
    let Ok(file) = open_file(events) else { return false };
    match file.try_lock_shared() {
        Ok(()) => false,
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(_)) => {
            let written = file.metadata().and_then(|about| about.modified());
            written.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|ago| ago < WRITTEN_LATELY))
        }
    }
}

fn is_locked(path: &Path) -> bool {
    open_file(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn made(root: &Path, below: &str, file: &str) -> PathBuf {
        let dir = root.join(below);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(file), "12345").unwrap();
        dir
    }

    #[test]
    fn only_a_run_or_a_sweep_below_the_root_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("runs");
        let run = made(&root, "base/tiny/1", "events.ndjson");
        let job = made(&root, "base/multirun/s/0", "events.ndjson");
        let sweep = made(&root, "base/multirun/s", "sweep.json");
        let outside = made(dir.path(), "elsewhere/1", "events.ndjson");
        symlink(dir.path().join("elsewhere"), root.join("linked")).unwrap();
        for refused in [
            root.clone(),
            root.join("base"),
            root.join("base/tiny"),
            root.join("absent"),
            outside.clone(),
            root.join("../elsewhere/1"),
            root.join("linked/1"),
            root.join("linked"),
        ] {
            Recorded::find(&root, &refused).unwrap_err();
        }
        let kind = |path: &Path| Recorded::find(&root, path).unwrap().kind;
        assert_eq!(kind(&run), RecordedKind::Run);
        assert_eq!(kind(&job), RecordedKind::Job);
        assert_eq!(kind(&sweep), RecordedKind::Sweep);
        let found = Recorded::find(&root, &sweep).unwrap();
        assert_eq!(found.size().unwrap(), 10);
        found.remove().unwrap();
        assert!(!sweep.exists() && run.exists() && outside.join("events.ndjson").exists());
    }

    #[test]
    fn a_run_in_progress_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (root, run) = (dir.path(), made(dir.path(), "a/1", "events.ndjson"));
        let job = made(root, "s/0", "events.ndjson");
        let sweep = made(root, "s", "sweep.json");
        let recording = File::open(run.join("events.ndjson")).unwrap();
        lock(&recording);
        let error = Recorded::find(root, &run).unwrap_err();
        assert!(matches!(error, RecordedError::Running { .. }), "{error}");
        drop(recording);
        Recorded::find(root, &run).unwrap();
        let running = File::open(sweep.join("sweep.json")).unwrap();
        running.try_lock().unwrap();
        for path in [&sweep, &job] {
            let error = Recorded::find(root, path).unwrap_err();
            assert!(matches!(error, RecordedError::SweepRunning { .. }), "{error}");
        }
        drop(running);
        Recorded::find(root, &job).unwrap();
    }

    #[test]
    fn a_run_is_renamed_within_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (root, run) = (dir.path(), made(dir.path(), "a/1", "events.ndjson"));
        made(root, "a/taken", "file");
        let rename = |path: &Path, name: &str| {
            Recorded::find(root, path).unwrap().rename(&name.parse().unwrap()).map_err(|e| e.to_string())
        };
        assert_eq!(rename(&run, "taken").unwrap_err(), "taken is taken; give another name");
        assert_eq!(rename(&run, "before the fix").unwrap(), root.join("a/before the fix"));
        assert!(root.join("a/before the fix/events.ndjson").exists() && !run.exists());
        let job = made(root, "s/0", "events.ndjson");
        let sweep = made(root, "s", "sweep.json");
        assert!(rename(&job, "first").unwrap_err().contains("rename the sweep"));
        assert_eq!(rename(&sweep, "batches").unwrap(), root.join("batches"));
    }

    #[test]
    fn a_name_is_one_component_of_a_path() {
        for bad in
            ["", ".", "..", ".hidden", "-x", " x", "a/b", "/", "a\nb", "a\u{202e}b", "latest", "latest~3"]
        {
            assert!(bad.parse::<RunName>().is_err(), "{bad:?}");
        }
        assert_eq!("n".repeat(201).parse::<RunName>(), Err(RunNameError::Long));
        for good in ["a", "after fix", "模型", "latest one", "2026-01-01_00-00-00"] {
            assert!(good.parse::<RunName>().is_ok(), "{good:?}");
        }
    }
}
