//! Playing a recording.

use std::time::Duration;

use super::{App, first_pane};
use llmprof_record::rundir::{DISK_TIMEOUT, EventReader, Player, ReadError, RunDir};
use llmprof_screen::ui::{ReplayCommand, set_cursor};

/// Maximum time of reading a recording before input is handled.
const LOAD_BUDGET: Duration = Duration::from_millis(30);

impl App {
    pub(super) fn command_replay(&mut self, command: ReplayCommand) {
        let result = match (&mut self.player, command) {
            (_, ReplayCommand::Leave) => return self.leave_replay(None),
            (None, _) => return,
            (Some(player), ReplayCommand::TogglePlay) => player.toggle_play(),
            (Some(player), ReplayCommand::SeekBy(secs)) => player.seek_by(secs),
            (Some(player), ReplayCommand::SeekTo(moment)) => player.seek(moment),
            (Some(player), ReplayCommand::SeekEnd) => {
                player.to_end();
                Ok(())
            }
            (Some(player), ReplayCommand::Faster) => {
                player.faster();
                Ok(())
            }
            (Some(player), ReplayCommand::Slower) => {
                player.slower();
                Ok(())
            }
        };
        self.leave_after(result);
    }

    /// Reads more of the recording. Unreadable lines are reported once, after the last line.
    pub(super) fn load(&mut self) {
        let Some(player) = &mut self.player else { return };
        let was_loading = player.position().loading;
        let result = player.load(LOAD_BUDGET);
        if was_loading && !player.position().loading {
            self.ui.message = player.warning().map(|notice| notice.text).or(self.ui.message.take());
            self.dirty = true;
        }
        self.leave_after(result);
    }

    /// Advances playback by the elapsed real time.
    pub(super) fn play(&mut self, elapsed: Duration) {
        let shown = |player: &Option<Player>| player.as_ref().map(|p| (p.position(), p.state().events));
        let before = shown(&self.player);
        self.load();
        if let Some(result) = self.player.as_mut().map(|player| player.advance(elapsed)) {
            self.leave_after(result);
        }
        self.dirty |= shown(&self.player) != before;
    }

    pub(super) fn open_selected_run(&mut self) {
        let Some(dir) = self.selected_run() else { return };
        if self.live.as_ref().and_then(|live| live.session.dir()) == Some(dir.path()) {
            self.ui.message = Some("this run is already on the screen".into());
            return;
        }
        self.open_run(dir);
    }

    /// Shows a recording at its end; a growing one is followed.
    pub(super) fn open_run(&mut self, dir: RunDir) {
        let events = dir.events();
        match Player::open(move || EventReader::open_within(&events, DISK_TIMEOUT)) {
            Ok(mut player) => {
                (self.ui.pane, self.ui.token) = (first_pane(&mut player), None);
                player.to_end();
                (self.player, self.played) = (Some(player), Some(dir));
                set_cursor(&mut self.ui, None);
            }
            Err(e) => self.ui.message = Some(e.to_string()),
        }
    }

    fn leave_after<T>(&mut self, result: Result<T, ReadError>) {
        if let Err(e) = result {
            self.leave_replay(Some(e));
        }
    }

    /// Returns to the content before the recording was opened.
    fn leave_replay(&mut self, error: Option<ReadError>) {
        self.ui.message = error.map(|e| e.to_string());
        if self.live.is_some() || self.files.is_some() || self.jobs.is_some() {
            self.player = None;
            self.show_jobs();
        } else if self.ui.message.is_none() {
            self.ui.message = Some("no live run to return to; press q to quit".into());
        }
    }
}
