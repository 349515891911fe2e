//! A program with the library: its connection, and its records.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
};

use llmprof_inject::wire::{Command, Slot};

use super::{
    ring::{Memory, Which},
    transcript::{Message, RunClock, Transcript},
};

/// Maximum slots per read: others get their turn, and memory stays bounded.
const MAX_SLOTS: usize = 1 << 15;

pub struct Connection {
    pub pid: u32,
    stream: UnixStream,
    memory: Memory,
    tails: [u64; 2],
    slots: Vec<Slot>,
    transcript: Transcript,
    pub is_gone: bool,
}

impl Connection {
    pub(super) fn new(pid: u32, stream: UnixStream, memory: Memory) -> Connection {
        Connection {
            pid,
            stream,
            memory,
            tails: [0; 2],
            slots: Vec::new(),
            transcript: Transcript::default(),
            is_gone: false,
        }
    }

    /// Sends a command to the library. A library that does not read counts as gone.
    pub fn ask(&mut self, command: Command) {
        if self.stream.write_all(command.line().as_bytes()).is_err() {
            self.is_gone = true;
        }
    }

    pub fn dropped(&self) -> u64 {
        self.memory.dropped(Which::Work) + self.memory.dropped(Which::Ranges)
    }

    /// Reads the library's records since the last call. Returns whether there may be more.
    pub fn read(&mut self, run: RunClock, each: &mut dyn FnMut(Message<'_>)) -> bool {
        self.memory.beat();
        let mut byte = [0; 64];
        match self.stream.read(&mut byte) {
            Ok(0) => self.is_gone = true,
            Err(e) if e.kind() != ErrorKind::WouldBlock && e.kind() != ErrorKind::Interrupted => {
                self.is_gone = true
            }
            _ => {}
        }
        let mut more = false;
        for (i, which) in [Which::Work, Which::Ranges].into_iter().enumerate() {
            let mut slots = std::mem::take(&mut self.slots);
            slots.clear();
            if self.memory.copy(which, self.tails[i], MAX_SLOTS, &mut slots).is_err() {
                // Its records can no longer be trusted.
                self.is_gone = true;
            }
            more |= slots.len() == MAX_SLOTS;
            // An incomplete text is read next time.
            let read = self.transcript.read(i, &slots, run, each);
            self.tails[i] = self.tails[i].wrapping_add(read as u64);
            self.memory.free(which, self.tails[i]);
            self.slots = slots;
        }
        more
    }
}
