//! Replays a recording: at any speed, from any moment, and following a run that is still being recorded.

use std::time::{Duration, Instant};

use super::reader::{EventReader, Next, ReadError};
use crate::state::RunState;
use llmprof_event::{Envelope, Event, Level, Notice, Stamp};

/// Opens the recording. The player reads it at two offsets at the same time.
type Opener = Box<dyn Fn() -> Result<EventReader, ReadError>>;

/// Two folds over one recording: `head` reads ahead to the end and leaves checkpoints, `view` is at the displayed
/// moment.
pub struct Player {
    head: Fold,
    view: Fold,
    checkpoints: Vec<Checkpoint>,
    spacing_bytes: u64,
    /// The run has ended.
    complete: bool,
    loaded: bool,
    /// When the recording last grew.
    grew: Instant,
    pub playing: bool,
    pub speed: f64,
    /// Stays at the end while it moves.
    pub following: bool,
    position: Stamp,
}

struct Fold {
    reader: EventReader,
    state: RunState,
    /// Already read, but later than the requested moment.
    waiting: Option<Envelope>,
}

struct Checkpoint {
    offset: u64,
    state: RunState,
}

/// The position of the view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    pub at: Stamp,
    pub end: Stamp,
    pub playing: bool,
    pub following: bool,
    pub speed: f64,
    /// Whether the end is not known yet.
    pub loading: bool,
    /// Whether the run has no end, and the recording no longer grows.
    pub cut_off: bool,
}

/// A run records something every second. After this time without growth it counts as cut off.
const GROWTH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CHECKPOINTS: usize = 32;
const FIRST_SPACING_BYTES: u64 = 1 << 20;
/// Playback speeds, in multiples of real time.
pub const SPEEDS: [f64; 9] = [0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0];

impl Player {
    pub fn open(open: impl Fn() -> Result<EventReader, ReadError> + 'static) -> Result<Player, ReadError> {
        let open: Opener = Box::new(open);
        let mut view = Fold::new(open()?);
        view.run_to(Stamp::default())?;
        Ok(Player {
            head: Fold::new(open()?),
            view,
            checkpoints: Vec::new(),
            spacing_bytes: FIRST_SPACING_BYTES,
            complete: false,
            loaded: false,
            grew: Instant::now(),
            playing: true,
            speed: 1.0,
            following: false,
            position: Stamp::default(),
        })
    }

    /// Reads ahead for about `budget`. True while there is more to read.
    pub fn load(&mut self, budget: Duration) -> Result<bool, ReadError> {
        let started = Instant::now();
        loop {
            for _ in 0..256 {
                match self.head.reader.read_next()? {
                    Next::Event(envelope) => {
                        self.grew = started;
                        self.complete |= matches!(envelope.event, Event::RunFinished(_));
                        self.head.state.apply(&envelope);
                        self.leave_checkpoint();
                    }
                    Next::End { .. } => {
                        self.loaded = true;
                        self.head.state.unreadable_lines = self.head.reader.skipped();
                        if self.following && self.complete {
                            self.to_end();
                        }
                        // New events may belong to the displayed moment.
                        self.view.run_to(self.position)?;
                        self.view.state.unreadable_lines = self.head.reader.skipped();
                        return Ok(false);
                    }
                }
            }
            if started.elapsed() >= budget {
                return Ok(true);
            }
        }
    }

    fn leave_checkpoint(&mut self) {
        let offset = self.head.reader.offset();
        if offset < self.checkpoints.last().map_or(0, |c| c.offset) + self.spacing_bytes {
            return;
        }
        self.checkpoints.push(Checkpoint { offset, state: self.head.state.clone() });
        if self.checkpoints.len() > MAX_CHECKPOINTS {
            let mut nth = 0;
            self.checkpoints.retain(|_| {
                nth += 1;
                nth % 2 == 0
            });
            self.spacing_bytes *= 2;
        }
    }

    /// The state to show.
    pub fn state(&self) -> &RunState {
        if self.following { &self.head.state } else { &self.view.state }
    }

    /// The state at the end of the part that was read so far.
    pub fn end_state(&self) -> &RunState {
        &self.head.state
    }

    pub fn position(&self) -> Position {
        Position {
            at: if self.following { self.head.state.now } else { self.position },
            end: self.head.state.now,
            playing: self.playing,
            following: self.following,
            speed: self.speed,
            loading: !self.loaded,
            cut_off: self.loaded && !self.complete && self.grew.elapsed() > GROWTH_TIMEOUT,
        }
    }

    /// The run has ended: there will be no more events.
    pub fn complete(&self) -> bool {
        self.complete
    }

    /// Whether the view changes by itself: it is playing, or there is more to read.
    pub fn moves(&self) -> bool {
        !self.loaded || (self.playing && !(self.following && self.complete))
    }

    /// Advances the view by real time. Returns whether it moved.
    pub fn advance(&mut self, elapsed: Duration) -> Result<bool, ReadError> {
        if self.following || !self.playing {
            return Ok(false);
        }
        let to = self.position + elapsed.mul_f64(self.speed);
        if self.loaded && to >= self.head.state.now {
            self.to_end();
            return Ok(true);
        }
        self.position = to;
        self.view.run_to(to)?;
        Ok(true)
    }

    /// Jumps to the end. A finished recording stops there; a growing one is followed.
    pub fn to_end(&mut self) {
        self.following = true;
        self.position = self.head.state.now;
        self.playing = !self.complete;
    }

    pub fn seek(&mut self, to: Stamp) -> Result<(), ReadError> {
        if self.loaded && to >= self.head.state.now {
            self.to_end();
            return Ok(());
        }
        self.following = false;
        let nearest = self.checkpoints.iter().rev().find(|c| c.state.now <= to);
        let offset = nearest.map_or(0, |c| c.offset);
        // A checkpoint also shortens seeking forwards.
        if to < self.view.state.now || offset > self.view.reader.offset() {
            self.view.state = nearest.map_or_else(RunState::default, |c| c.state.clone());
            self.view.reader.seek(offset)?;
            self.view.waiting = None;
        }
        self.position = to;
        self.view.state.unreadable_lines = self.head.reader.skipped();
        self.view.run_to(to)
    }

    pub fn seek_by(&mut self, secs: f64) -> Result<(), ReadError> {
        let at = self.position().at.secs() + secs;
        self.seek(Stamp::from_secs_f64(at.max(0.0)))
    }

    pub fn toggle_play(&mut self) -> Result<(), ReadError> {
        if self.following && self.complete {
            // Replays from the start.
            self.seek(Stamp::default())?;
            self.playing = true;
        } else if self.following {
            let here = self.head.state.now;
            self.seek(Stamp(here.0.saturating_sub(1)))?;
            self.playing = false;
        } else {
            self.playing = !self.playing;
        }
        Ok(())
    }

    pub fn faster(&mut self) {
        self.speed = SPEEDS.into_iter().find(|s| *s > self.speed).unwrap_or(self.speed);
    }

    pub fn slower(&mut self) {
        self.speed = SPEEDS.into_iter().rev().find(|s| *s < self.speed).unwrap_or(self.speed);
    }

    /// A notice about lines that were skipped.
    pub fn warning(&self) -> Option<Notice> {
        let torn = self.loaded && !self.complete && self.head.reader.is_torn();
        let text = match (self.head.reader.skipped(), torn) {
            (0, false) => return None,
            (0, true) => "the recording ends within a line; that line is left out".to_owned(),
            (n, false) => format!("{n} lines of the recording cannot be read and were skipped"),
            (n, true) => format!(
                "{n} lines of the recording cannot be read, and the last one is torn; they were skipped"
            ),
        };
        Some(Notice { level: Level::Warn, source: "replay".into(), text })
    }

    pub fn name(&self) -> &str {
        self.head.reader.name()
    }
}

impl Fold {
    fn new(reader: EventReader) -> Self {
        Fold { reader, state: RunState::default(), waiting: None }
    }

    /// Applies every event up to and including `to`.
    fn run_to(&mut self, to: Stamp) -> Result<(), ReadError> {
        loop {
            let envelope = match self.waiting.take() {
                Some(envelope) => envelope,
                None => match self.reader.read_next()? {
                    Next::Event(envelope) => envelope,
                    Next::End { .. } => return Ok(()),
                },
            };
            if envelope.t > to {
                self.waiting = Some(envelope);
                return Ok(());
            }
            self.state.apply(&envelope);
        }
    }
}
