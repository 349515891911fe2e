//! The list of runs, read in the background: a directory on a disk that does not answer is reported and skipped.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde::Deserialize;

use super::{
    layout::{RunDir, RunEntry, RunKind, pairs_of},
    reader::DISK_TIMEOUT,
    recorded::{is_open, is_sweep},
};
use llmprof_base::read::{self, MAX_DOCUMENT};

/// Maximum silent directories: each holds a thread until its disk answers.
const MAX_SILENT: usize = 8;
/// Directories between the root and a run.
const MAX_DEPTH: u32 = 4;

/// The runs below `root`, newest first, then the directories that did not answer in time. Unreadable ones are left out.
pub fn list_runs(root: &Path) -> Vec<RunEntry> {
    list(root, DISK_TIMEOUT)
}

/// As [`list_runs`], with `limit` for each directory to answer.
fn list(root: &Path, limit: Duration) -> Vec<RunEntry> {
    let mut listing = Listing::new(root, limit);
    // Without a thread, there is no time limit.
    if listing.start_worker().is_err() {
        work(&listing.shared, &visit);
    }
    loop {
        if let Some(runs) = listing.poll() {
            return runs;
        }
        let work = listing.shared.lock();
        if !work.is_done() {
            drop(listing.shared.changed.wait_timeout(work, DISK_TIMEOUT / 10));
        }
    }
}

/// A list that is being read.
pub struct Listing {
    shared: Arc<Shared>,
}

/// The state that the threads of a listing share with it.
struct Shared {
    root: PathBuf,
    /// A directory that takes longer is skipped.
    limit: Duration,
    work: Mutex<ListingQueue>,
    changed: Condvar,
}

struct ListingQueue {
    waiting: Vec<Waiting>,
    /// Directories that are being read, each by one thread.
    reading: Vec<(PathBuf, Instant)>,
    found: Vec<RunEntry>,
    silent: usize,
}

/// A directory to read.
#[derive(Clone)]
struct Waiting {
    dir: PathBuf,
    /// The number of levels to read below it.
    depth: u32,
    /// The sweep that it is in.
    sweep: Option<PathBuf>,
}

/// Directories that threads still wait for. No other thread reads them.
static BLOCKED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn blocked() -> MutexGuard<'static, Vec<PathBuf>> {
    BLOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kind of a directory.
enum DirKind {
    Run(Box<RunEntry>),
    Folder { below: Vec<PathBuf>, is_sweep: bool },
}

impl Listing {
    /// Starts to read the runs below `root`.
    pub fn start(root: &Path) -> io::Result<Listing> {
        let listing = Listing::new(root, DISK_TIMEOUT);
        listing.start_worker()?;
        Ok(listing)
    }

    fn new(root: &Path, limit: Duration) -> Listing {
        let waiting = vec![Waiting { dir: root.to_owned(), depth: MAX_DEPTH, sweep: None }];
        let work = ListingQueue { waiting, reading: Vec::new(), found: Vec::new(), silent: 0 };
        let (root, work) = (root.to_owned(), Mutex::new(work));
        Listing { shared: Arc::new(Shared { root, limit, work, changed: Condvar::new() }) }
    }

    fn start_worker(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let worker = thread::Builder::new().name("llmprof-runs".to_owned());
        worker.spawn(move || work(&shared, &visit)).map(drop)
    }

    /// The list, once it is complete. It never waits for a disk.
    pub fn poll(&mut self) -> Option<Vec<RunEntry>> {
        self.poll_at(Instant::now())
    }

    fn poll_at(&mut self, now: Instant) -> Option<Vec<RunEntry>> {
        let (done, left_behind) = {
            let mut work = self.shared.lock();
            let left_behind = work.leave_silent(now, &self.shared);
            (work.is_done(), left_behind)
        };
        if left_behind > 0 && !done && self.start_worker().is_err() {
            self.shared.lock().waiting.clear();
        }
        let mut work = self.shared.lock();
        work.is_done().then(|| {
            let mut runs = std::mem::take(&mut work.found);
            runs.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| b.name.cmp(&a.name)));
            runs
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ListingQueue> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListingQueue {
    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.reading.is_empty()
    }

    /// Lists directories that have been read for too long as silent. Returns their number.
    fn leave_silent(&mut self, now: Instant, shared: &Shared) -> usize {
        let late = |since: &Instant| now.saturating_duration_since(*since) > shared.limit;
        let silent: Vec<_> = self.reading.extract_if(.., |(_, since)| late(since)).collect();
        for (dir, _) in &silent {
            blocked().push(dir.clone());
            self.add_silent(&shared.root, dir);
        }
        silent.len()
    }

    fn add_silent(&mut self, root: &Path, dir: &Path) {
        self.found.push(RunEntry::silent(root, dir));
        self.silent += 1;
        if self.silent >= MAX_SILENT {
            self.waiting.clear();
        }
    }
}

/// Reads directories until none is left, or until the current one is skipped.
fn work(shared: &Shared, visit: &dyn Fn(&Path, &Path) -> DirKind) {
    loop {
        let Waiting { dir, depth, sweep } = {
            let mut work = shared.lock();
            let Some(next) = work.waiting.pop() else { break };
            if blocked().contains(&next.dir) {
                work.add_silent(&shared.root, &next.dir);
                continue;
            }
            work.reading.push((next.dir.clone(), Instant::now()));
            next
        };
        let step = visit(&shared.root, &dir);
        let mut work = shared.lock();
        let Some(place) = work.reading.iter().position(|(reading, _)| *reading == dir) else {
            blocked().retain(|other| *other != dir);
            break;
        };
        work.reading.swap_remove(place);
        match step {
            DirKind::Run(run) => work.found.push(RunEntry { sweep, ..*run }),
            DirKind::Folder { below, is_sweep } if depth > 0 => {
                let sweep = if is_sweep { Some(dir) } else { sweep };
                let wait = |dir| Waiting { dir, depth: depth - 1, sweep: sweep.clone() };
                work.waiting.extend(below.into_iter().map(wait));
            }
            DirKind::Folder { .. } => {}
        }
    }
    shared.changed.notify_all();
}

fn visit(root: &Path, dir: &Path) -> DirKind {
    let run = RunDir::open(dir);
    let Ok(events) = fs::metadata(run.events()) else {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let below = folders.map(|entry| entry.path()).collect();
        return DirKind::Folder { below, is_sweep: is_sweep(dir) };
    };
    let mut names =
        dir.strip_prefix(root).unwrap_or(dir).iter().rev().map(|n| n.to_string_lossy().into_owned());
    let name = names.next().unwrap_or_default();
    let (parent, above) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    let result = run.result();
    // The directories of a sweep's jobs are not named after their models.
    let kind = result.as_ref().and_then(|result| result.run.clone()).or_else(|| first_event(&run));
    let kind = kind.unwrap_or_default();
    DirKind::Run(Box::new(RunEntry {
        model: kind.model.clone().unwrap_or(parent),
        experiment: kind.experiment.clone().unwrap_or(above),
        name,
        kind,
        sweep: None,
        pairs: pairs_of(root, dir),
        modified: events.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        running: result.is_none() && is_open(&run.events()),
        result,
        answers: true,
        dir: run,
    }))
}

/// From the first event, for a run without a result.
fn first_event(run: &RunDir) -> Option<RunKind> {
    let mut line = Vec::new();
    read::line(&mut io::BufReader::new(read::open(&run.events()).ok()?), MAX_DOCUMENT, &mut line).ok()?;
    let event: serde_json::Value = serde_json::from_slice(&line).ok()?;
    RunKind::deserialize(event.pointer("/e/run_started")?).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// For directories that answer: no thread of a busy machine is that late.
    const LONG: Duration = Duration::from_secs(120);

    #[test]
    fn a_directory_that_does_not_answer_is_listed_as_such() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a/tiny/1", "b/stuck", "c/tiny/2"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("events.ndjson"), "").unwrap();
        }
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let visit_slowly = move |root: &Path, dir: &Path| {
            if dir.ends_with("stuck") {
                let _ = released.lock().unwrap().recv();
            }
            visit(root, dir)
        };
        let begun = Instant::now();
        let mut listing = Listing::new(root.path(), LONG);
        let start = |shared: Arc<Shared>| {
            let visit = visit_slowly.clone();
            thread::spawn(move || work(&shared, &visit))
        };
        let first = start(Arc::clone(&listing.shared));
        let reading = |listing: &Listing| listing.shared.lock().reading.first().map(|(dir, _)| dir.clone());
        while reading(&listing).is_none_or(|dir| !dir.ends_with("stuck")) {
            assert!(begun.elapsed() < LONG, "it is not read");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(listing.poll_at(begun).is_none(), "its time is not over");
        let later = Instant::now() + 2 * LONG;
        assert_eq!(listing.shared.lock().leave_silent(later, &listing.shared), 1);
        start(Arc::clone(&listing.shared)).join().unwrap();
        let runs = listing.poll_at(begun).unwrap();
        let listed: Vec<_> = runs.iter().map(|run| (run.name.as_str(), run.answers)).collect();
        assert_eq!(listed.len(), 3, "{listed:?}");
        assert!(listed[..2].iter().all(|(_, answers)| *answers), "{listed:?}");
        assert_eq!(listed[2], ("b/stuck", false), "its row is the last");
        let again = list(root.path(), LONG);
        assert_eq!(again.iter().filter(|run| !run.answers).count(), 1, "no other thread waits for it");
        drop(release);
        first.join().unwrap();
        assert!(listing.shared.lock().found.is_empty(), "an answer that comes late is not listed again");
        assert!(list(root.path(), LONG).iter().all(|run| run.answers));
    }

    #[test]
    fn jobs_of_a_sweep_and_running_runs_are_known() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for name in ["a/tiny/1", "a/s/0", "a/s/deep/1"] {
            fs::create_dir_all(path(name)).unwrap();
            fs::write(path(name).join("events.ndjson"), "").unwrap();
        }
        fs::write(path("a/s/sweep.json"), "{}").unwrap();
        let recording = fs::File::open(path("a/tiny/1/events.ndjson")).unwrap();
        recording.try_lock().unwrap();
        let runs = list(root.path(), LONG);
        assert_eq!(runs.len(), 3);
        for run in runs {
            let recorded = run.dir.path() == path("a/tiny/1");
            assert_eq!((run.running, run.sweep.is_none()), (recorded, recorded), "{}", run.name);
            assert!(run.sweep.is_none_or(|sweep| sweep == path("a/s")));
        }
        drop(recording);
        assert!(list(root.path(), LONG).iter().all(|run| !run.running));
    }

    #[test]
    fn runs_of_a_repeated_comparison_are_known() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for name in ["compare/now/a-01", "compare/now/b-01", "compare/mine", "base/compare/1"] {
            fs::create_dir_all(path(name)).unwrap();
            fs::write(path(name).join("events.ndjson"), "").unwrap();
        }
        for run in list(root.path(), LONG) {
            let of_pairs = run.dir.path().starts_with(path("compare/now"));
            assert_eq!(run.pairs, of_pairs.then(|| path("compare/now")), "{}", run.name);
        }
    }

    #[test]
    fn pipes_and_devices_do_not_stop_the_list() {
        let root = tempfile::tempdir().unwrap();
        let dirs = ["pipe", "device", "run"].map(|name| root.path().join(name));
        dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        for name in ["events.ndjson", "metrics.json"] {
            mknodat(CWD, dirs[0].join(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            std::os::unix::fs::symlink("/dev/zero", dirs[1].join(name)).unwrap();
        }
        fs::write(dirs[2].join("events.ndjson"), "").unwrap();
        let runs = list(root.path(), LONG);
        assert_eq!(runs.len(), 3);
        assert!(runs.iter().all(|run| run.answers && run.result.is_none()));
    }
}
