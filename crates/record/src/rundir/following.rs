//! Reads a recording while another process writes it.

use std::path::PathBuf;

use super::{EventReader, Next, RunDir};
use crate::state::RunState;

pub struct Following {
    events: PathBuf,
    reader: Option<EventReader>,
    pub state: RunState,
}

impl Following {
    pub fn new(run: &RunDir) -> Following {
        Following { events: run.events(), reader: None, state: RunState::default() }
    }

    /// Applies new events. Returns whether there were any.
    pub fn read(&mut self) -> bool {
        if self.reader.is_none() {
            // Fails until the first line is complete.
            self.reader = EventReader::open(&self.events).ok();
        }
        let mut any = false;
        if let Some(reader) = &mut self.reader {
            while let Ok(Next::Event(envelope)) = reader.read_next() {
                self.state.apply(&envelope);
                any = true;
            }
        }
        any
    }
}
