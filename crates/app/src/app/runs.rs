//! The list of recorded runs: reads it, and opens, compares, renames and deletes its entries.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use super::{App, comparison::Compared};
use llmprof_base::process::browser;
use llmprof_record::rundir::{DISK_TIMEOUT, Listing, Recorded, RunDir, RunName};
use llmprof_screen::{
    run_tree::{RowKey, RunTree},
    ui::{Deletion, GroupKey, Overlay, Pane, PromptKind, RunsCommand},
};

/// The interval at which the list is read again while it shows a run in progress.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit: deleting a large run takes seconds.
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// The runs below a root, and the work on their files.
pub(super) struct RunList {
    root: PathBuf,
    pub(super) tree: RunTree,
    /// The list that is being read.
    listing: Option<Listing>,
    listed: Option<Instant>,
    work: Option<FileWork>,
    /// The run or sweep to be renamed.
    naming: Option<PathBuf>,
    browser: Option<browser::Opening>,
}

/// Work on files, on a separate thread: a disk may not answer.
struct FileWork {
    done: Receiver<FileWorkDone>,
    since: Instant,
    timeout: Duration,
}

enum FileWorkDone {
    Weighed(Result<Deletion, String>),
    Deleted {
        path: PathBuf,
        result: Result<(), String>,
    },
    Renamed {
        from: PathBuf,
        result: Result<PathBuf, String>,
    },
    /// The report, or the reason why there is none.
    FoundReport(Result<PathBuf, String>),
}

impl RunList {
    pub(super) fn below(root: PathBuf) -> RunList {
        let tree = RunTree::default();
        RunList { root, tree, listing: None, listed: None, work: None, naming: None, browser: None }
    }

    pub(super) fn is_listing(&self) -> bool {
        self.listing.is_some()
    }

    /// Starts reading the list, unless it is being read. Returns an error message.
    pub(super) fn refresh(&mut self) -> Option<String> {
        if self.listing.is_some() {
            return None;
        }
        match Listing::start(&self.root) {
            Ok(listing) => self.listing = Some(listing),
            Err(e) => return Some(format!("cannot list the runs: {e}")),
        }
        None
    }

    /// Does `work` on a separate thread. Returns an error message.
    fn start(
        &mut self,
        timeout: Duration,
        work: impl FnOnce() -> FileWorkDone + Send + 'static,
    ) -> Option<String> {
        if self.work.is_some() {
            return Some("the last change of the runs is still in progress".into());
        }
        let (tx, done) = mpsc::channel();
        let spawned =
            thread::Builder::new().name("llmprof-files".to_owned()).spawn(move || tx.send(work()).is_ok());
        match spawned {
            Ok(_) => self.work = Some(FileWork { done, since: Instant::now(), timeout }),
            Err(e) => return Some(format!("cannot start a thread: {e}")),
        }
        None
    }
}

impl App {
    pub(super) fn command_runs(&mut self, command: RunsCommand) {
        match command {
            RunsCommand::Refresh => {
                if let Some(error) = self.runs.refresh() {
                    self.ui.message = Some(error);
                }
            }
            RunsCommand::Open => match self.selected_group() {
                Some((group, _)) => self.ui.runs.toggle(&group),
                None => self.open_selected_run(),
            },
            RunsCommand::Fold => self.fold(),
            RunsCommand::Unfold => match self.selected_group() {
                Some((group, true)) => self.ui.runs.toggle(&group),
                Some((_, false)) => self.ui.runs.row = Some(self.selected_row() + 1),
                None => {}
            },
            RunsCommand::Mark => self.mark_selected_run(),
            RunsCommand::Compare => match (self.ui.runs.marked.clone(), self.selected_run()) {
                (Some(marked), Some(selected)) => self.compare_runs(marked, selected.path().to_owned()),
                // Without a marked run, the snapshots are compared.
                _ => {
                    self.ui.pane = Pane::Compare;
                    self.compared = Compared::default();
                }
            },
            RunsCommand::Report => self.open_report(),
            RunsCommand::AskDelete => self.ask_delete(),
            RunsCommand::Delete(path) => self.delete(path),
            RunsCommand::AskName => self.ask_name(),
            RunsCommand::Rename(name) => self.rename(name),
        }
    }

    fn selected_row(&self) -> usize {
        self.runs.tree.selected(self.ui.runs.row)
    }

    pub(super) fn selected_run(&self) -> Option<RunDir> {
        Some(self.runs.tree.run_at(self.selected_row())?.dir.clone())
    }

    /// The selected group, and whether it is folded.
    fn selected_group(&self) -> Option<(GroupKey, bool)> {
        let group = self.runs.tree.group_at(self.selected_row())?;
        Some((group.key.clone(), group.folded))
    }

    /// The directory of the selected run or sweep.
    fn selected_path(&self) -> Option<PathBuf> {
        match self.selected_group() {
            Some((GroupKey::Sweep(dir), _)) => Some(dir),
            Some(_) => None,
            None => self.selected_run().map(|run| run.path().to_owned()),
        }
    }

    fn fold(&mut self) {
        match self.selected_group() {
            Some((group, false)) => self.ui.runs.toggle(&group),
            _ => {
                if let Some(parent) = self.runs.tree.parent_of(self.selected_row()) {
                    self.ui.runs.row = Some(parent);
                }
            }
        }
    }

    /// Marks the selected run, to compare others with it, or removes its mark.
    fn mark_selected_run(&mut self) {
        let Some(run) = self.selected_run().map(|dir| dir.path().to_owned()) else { return };
        if self.ui.runs.marked.as_ref() == Some(&run) {
            self.ui.runs.marked = None;
            return;
        }
        self.ui.runs.marked = Some(run);
        self.ui.message = Some("marked as A; select another run and press d to compare".into());
    }

    fn open_report(&mut self) {
        let Some(run) = self.selected_run() else { return };
        let find = move || {
            let report = run.path().join("report.html");
            let missing = || format!("no report: llmprof-tui report {} makes it", run.path().display());
            FileWorkDone::FoundReport(if report.is_file() { Ok(report) } else { Err(missing()) })
        };
        self.report(|runs| runs.start(DISK_TIMEOUT, find));
    }

    fn browse(&mut self, report: &Path) {
        self.ui.message = Some(match browser::open(report) {
            Ok(opening) => {
                self.runs.browser = Some(opening);
                format!("opening {}", report.display())
            }
            Err(e) => e.to_string(),
        });
    }

    /// Whether the run or the sweep at `path` is displayed; then a message reports that.
    fn is_on_screen(&mut self, path: &Path) -> bool {
        let live = self.live.as_ref().and_then(|live| live.session.dir());
        let played = self.player.as_ref().and(self.played.as_ref()).map(RunDir::path);
        let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let shown = live.into_iter().chain(played).any(|shown| whole(shown).starts_with(whole(path)));
        if shown {
            self.ui.message = Some("this run is on the screen; it stays as it is".into());
        }
        shown
    }

    /// Asks whether to delete the selected run or sweep, once its size is known.
    fn ask_delete(&mut self) {
        let Some(path) = self.selected_path().filter(|path| !self.is_on_screen(path)) else { return };
        let root = self.runs.root.clone();
        let weigh = move || {
            let weighed = Recorded::find(&root, &path).and_then(|recorded| {
                let bytes = recorded.size()?;
                Ok(Deletion { path, kind: recorded.kind, bytes })
            });
            FileWorkDone::Weighed(weighed.map_err(|e| e.to_string()))
        };
        self.report(|runs| runs.start(DISK_TIMEOUT, weigh));
    }

    /// Unless the user has started something else.
    fn confirm_deletion(&mut self, deletion: Deletion) {
        if self.ui.pane == Pane::Runs && matches!(self.ui.overlay, Overlay::None) {
            self.ui.overlay = Overlay::ConfirmDelete(deletion);
        }
    }

    fn delete(&mut self, path: PathBuf) {
        if self.is_on_screen(&path) {
            return;
        }
        let root = self.runs.root.clone();
        let delete = move || {
            // Checked again: it may have been resumed since.
            let result = Recorded::find(&root, &path).and_then(Recorded::remove).map_err(|e| e.to_string());
            FileWorkDone::Deleted { path, result }
        };
        self.report(|runs| runs.start(WORK_TIMEOUT, delete));
    }

    fn ask_name(&mut self) {
        let Some(path) = self.selected_path().filter(|path| !self.is_on_screen(path)) else { return };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.ui.open_prompt(PromptKind::RunName, name);
        self.runs.naming = Some(path);
    }

    fn rename(&mut self, name: RunName) {
        let Some(from) = self.runs.naming.clone() else { return };
        let root = self.runs.root.clone();
        let rename = move || {
            let renamed = Recorded::find(&root, &from).and_then(|recorded| recorded.rename(&name));
            FileWorkDone::Renamed { from, result: renamed.map_err(|e| e.to_string()) }
        };
        self.report(|runs| runs.start(DISK_TIMEOUT, rename));
    }

    /// Reports the error of `work`, if it has one.
    fn report(&mut self, work: impl FnOnce(&mut RunList) -> Option<String>) {
        if let Some(error) = work(&mut self.runs) {
            self.ui.report_error(error);
        }
    }

    /// Takes the list of runs when it is complete, and the results of work on files. Returns whether more will happen
    /// soon.
    pub(super) fn follow_runs(&mut self) -> bool {
        self.follow_browser();
        let working = self.follow_files();
        let now = Instant::now();
        let shows_running =
            self.ui.pane == Pane::Runs && self.runs.tree.entries().iter().any(|run| run.running);
        if shows_running && self.runs.listed.is_some_and(|listed| now - listed > REFRESH_INTERVAL) {
            self.runs.refresh();
        }
        if let Some(entries) = self.runs.listing.as_mut().and_then(Listing::poll) {
            let key = self.selected_key();
            self.runs.tree = RunTree::new(entries, self.ui.runs.arrangement.clone());
            (self.runs.listing, self.runs.listed, self.dirty) = (None, Some(now), true);
            self.select(key);
        }
        let key = self.selected_key();
        if self.runs.tree.arrange(&self.ui.runs.arrangement) {
            self.dirty = true;
            self.select(key);
        }
        working || self.runs.is_listing()
    }

    /// The selected row, unless that is the first run by default.
    fn selected_key(&self) -> Option<RowKey> {
        self.ui.runs.row.and_then(|_| self.runs.tree.key_at(self.selected_row()))
    }

    fn select(&mut self, key: Option<RowKey>) {
        if let Some(row) = key.and_then(|key| self.runs.tree.row_of(&key)) {
            self.ui.runs.row = Some(row);
        }
    }

    fn follow_browser(&mut self) {
        if let Some(failure) = self.runs.browser.as_ref().and_then(browser::Opening::failure) {
            (self.ui.message, self.runs.browser, self.dirty) = (Some(failure.to_string()), None, true);
        }
    }

    /// Returns whether work on files is in progress.
    fn follow_files(&mut self) -> bool {
        let Some(work) = &self.runs.work else { return false };
        let done = match work.done.try_recv() {
            Err(mpsc::TryRecvError::Empty) if work.since.elapsed() < work.timeout => return true,
            Err(_) => None,
            Ok(done) => Some(done),
        };
        (self.runs.work, self.dirty) = (None, true);
        match done {
            None => self.ui.report_error("the disk of the runs does not answer".into()),
            Some(FileWorkDone::Weighed(Ok(deletion))) => self.confirm_deletion(deletion),
            Some(FileWorkDone::Weighed(Err(e))) => self.ui.message = Some(e),
            Some(FileWorkDone::FoundReport(Ok(report))) => self.browse(&report),
            Some(FileWorkDone::FoundReport(Err(e))) => self.ui.message = Some(e),
            Some(FileWorkDone::Deleted { path, result }) => self.after_deletion(&path, result),
            Some(FileWorkDone::Renamed { result: Err(e), .. }) => self.ui.report_error(e),
            Some(FileWorkDone::Renamed { from, result: Ok(to) }) => self.after_renaming(&from, &to),
        }
        false
    }

    fn after_deletion(&mut self, path: &Path, result: Result<(), String>) {
        if self.ui.runs.marked.as_ref().is_some_and(|marked| marked.starts_with(path)) {
            self.ui.runs.marked = None;
        }
        self.ui.message = Some(match result {
            Ok(()) => format!("deleted {}", path.display()),
            Err(e) => format!("not all was deleted: {e}"),
        });
        self.runs.refresh();
    }

    fn after_renaming(&mut self, from: &Path, to: &Path) {
        let moved = |path: &PathBuf| path.strip_prefix(from).ok().map(|below| join(to, below));
        if let Some(marked) = self.ui.runs.marked.as_ref().and_then(moved) {
            self.ui.runs.marked = Some(marked);
        }
        if matches!(&self.ui.overlay, Overlay::Prompt(prompt) if prompt.kind == PromptKind::RunName) {
            self.ui.overlay = Overlay::None;
        }
        self.ui.message = Some(format!("renamed to {}", to.display()));
        self.runs.refresh();
    }
}

/// Without a trailing slash if `below` is empty.
fn join(dir: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { dir.to_owned() } else { dir.join(below) }
}
