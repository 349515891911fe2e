//! The comparison of two runs, or of the last two snapshots.

use std::{
    path::PathBuf,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::App;
use llmprof_analysis::compare::{Comparison, Options, Subject, compare};
use llmprof_run::compare::{baselines, read_run, run_spread};
use llmprof_screen::ui::Pane;

/// Time limit: two recordings of an hour are read in seconds.
const READING_TIMEOUT: Duration = Duration::from_secs(60);

/// The content of the Compare pane.
#[derive(Default)]
pub(super) struct Compared {
    pub(super) comparison: Option<Comparison>,
    /// The snapshots it was made from: whether they are a recording's, and their number. `None` for a comparison of two
    /// runs.
    snapshots: Option<(bool, usize)>,
    /// Two runs that are being read, and the start of reading.
    reading: Option<(mpsc::Receiver<Result<Comparison, String>>, Instant)>,
}

impl App {
    /// Reads both runs on a separate thread, because that may take a second.
    pub(super) fn compare_runs(&mut self, a: PathBuf, b: PathBuf) {
        if a == b {
            self.ui.message = Some("this is the marked run; select another one".into());
            return;
        }
        let (tx, rx) = mpsc::channel();
        let work = move || {
            let read = |dir: PathBuf| read_run(&dir).map_err(|e| e.to_string());
            let compared = read(a).and_then(|a| {
                let options = Options { spread: run_spread(&baselines(), &a.facts), ..Options::default() };
                Ok(compare(&a, &read(b)?, &options))
            });
            tx.send(compared).is_ok()
        };
        match thread::Builder::new().name("llmprof-compare".to_owned()).spawn(work) {
            Ok(_) => {
                self.compared = Compared { reading: Some((rx, Instant::now())), ..Compared::default() };
                (self.ui.pane, self.ui.message) = (Pane::Compare, Some("reading both runs".into()));
            }
            Err(e) => self.ui.message = Some(format!("cannot compare the runs: {e}")),
        }
    }

    /// Takes a finished comparison, or compares new snapshots. Returns whether a comparison is still in progress.
    pub(super) fn follow_comparison(&mut self) -> bool {
        if let Some((reading, since)) = &self.compared.reading {
            match reading.try_recv() {
                Err(mpsc::TryRecvError::Empty) if since.elapsed() < READING_TIMEOUT => return true,
                Err(mpsc::TryRecvError::Empty) => {
                    let waited = READING_TIMEOUT.as_secs();
                    self.ui.message = Some(format!(
                        "the runs were not read within {waited} s: check whether their disk responds"
                    ));
                }
                Ok(Ok(comparison)) => {
                    self.compared.comparison = Some(comparison);
                    self.ui.message = None;
                }
                Ok(Err(e)) => self.ui.message = Some(e),
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.ui.message = Some("comparing the runs failed; see the log".into());
                }
            }
            (self.compared.reading, self.dirty) = (None, true);
            return false;
        }
        // A comparison of runs stays until snapshots are requested; that of snapshots follows them.
        let of_runs = self.compared.snapshots.is_none() && self.compared.comparison.is_some();
        let count = self.snapshot_count();
        if of_runs || self.compared.snapshots == Some(count) {
            return false;
        }
        self.compared.comparison = match &self.snapshots()[..] {
            [.., a, b] => {
                let options = Options { subject: Subject::Snapshots, ..Options::default() };
                a.sample.as_ref().zip(b.sample.as_ref()).map(|(a, b)| compare(a, b, &options))
            }
            _ => None,
        };
        (self.compared.snapshots, self.dirty) = (Some(count), true);
        false
    }

    fn snapshot_count(&self) -> (bool, usize) {
        match (&self.player, &self.live) {
            (Some(player), _) => (true, player.state().snapshots.len()),
            (None, Some(live)) => (
                false,
                self.earlier_snapshots.len()
                    + live.session.earlier_snapshots().len()
                    + live.session.state().snapshots.len(),
            ),
            (None, None) => (false, 0),
        }
    }
}
