//! The layout of CPython's threads, frames and code: offsets per version.
//!
//! CPython 3.13 and later describe themselves (`_Py_DebugOffsets` at `_PyRuntime`). The offsets of 3.8 to 3.12 are those of the
//! headers, the same on x86-64 and aarch64 except for the GIL.

use crate::memory::{Fields, Memory};

/// No structure that is read is longer.
const OFFSET_MAX: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// In `_PyRuntime`.
    pub interpreters_head: u64,
    pub interpreter: Interpreter,
    pub gil: Gil,
    pub thread: Thread,
    pub frame: Frame,
    pub code: Code,
    pub text: Text,
    pub bytes: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interpreter {
    pub next: u64,
    pub threads_head: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gil {
    /// In `_PyRuntime`: the thread that holds it.
    Runtime { current: u64 },
    /// In the interpreter: a pointer to the lock, which has these fields.
    Interpreter { pointer: u64, locked: u64, holder: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    pub next: u64,
    pub interpreter: u64,
    pub pthread: u64,
    pub native: Option<u64>,
    pub frame: u64,
    /// CPython 3.11 and 3.12: `frame` points to a structure that has the frame at this offset.
    pub cframe: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    pub back: u64,
    pub code: u64,
    pub at: Instruction,
    pub owner: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// An index, of bytes (3.8, 3.9) or of words of two bytes (3.10).
    Index { offset: u64, scale: i64 },
    /// A pointer into the code.
    Pointer(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// `co_lnotab` of 3.8 and 3.9.
    Lnotab,
    /// `co_linetable` of 3.10 (PEP 626).
    Deltas,
    /// `co_linetable` of 3.11 and later (PEP 657).
    Locations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    pub file: u64,
    pub name: u64,
    pub first: u64,
    pub table: u64,
    /// The bytecode, if it is a part of the object.
    pub body: u64,
    pub kind: Table,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text {
    pub length: u64,
    pub state: u64,
    pub ascii: u64,
    pub compact: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    pub size: u64,
    pub data: u64,
}

/// The place of a thread's own frames, for a reader in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLayout {
    /// In the state of a thread: the innermost frame.
    pub frame: u64,
    /// If the state has a structure at `frame` instead: the innermost frame in it.
    pub cframe: Option<u64>,
    /// In a frame: its caller.
    pub back: u64,
    pub code: u64,
    pub instruction: u64,
    /// Bytes per unit of the instruction's index; `None` if it is a pointer into the code object.
    pub scale: Option<u8>,
    /// In a frame: 3 and above for frames of C code.
    pub owner: Option<u64>,
    /// The address of the type of code objects.
    pub code_type: u64,
}

const BYTES: Bytes = Bytes { size: 16, data: 32 };
const WIDE: Text = Text { length: 16, state: 32, ascii: 48, compact: 72 };

impl Layout {
    pub fn of_frames(&self, code_type: u64) -> FrameLayout {
        let Layout { thread, frame, .. } = self;
        let (instruction, scale) = match frame.at {
            Instruction::Index { offset, scale } => (offset, Some(scale as u8)),
            Instruction::Pointer(offset) => (offset, None),
        };
        FrameLayout {
            frame: thread.frame,
            cframe: thread.cframe,
            back: frame.back,
            code: frame.code,
            instruction,
            scale,
            owner: frame.owner,
            code_type,
        }
    }

    /// `None`: the version is not known.
    pub fn known(memory: &Memory, runtime: u64, minor: u8) -> Option<Layout> {
        match minor {
            8..=10 => Some(before_3_11(minor)),
            11 => Some(of_3_11()),
            12 => Some(of_3_12()),
            13..=15 => described(memory, runtime, minor),
            _ => None,
        }
    }
}

fn current_in_runtime(minor: u8) -> u64 {
    let x86_64 = match minor {
        8 => 1368,
        9 | 10 => 568,
        _ => 576,
    };
    if cfg!(target_arch = "aarch64") { x86_64 + 16 } else { x86_64 }
}

fn before_3_11(minor: u8) -> Layout {
    let (last, scale, kind) = if minor == 10 { (96, 2, Table::Deltas) } else { (104, 1, Table::Lnotab) };
    Layout {
        interpreters_head: 32,
        interpreter: Interpreter { next: 0, threads_head: 8 },
        gil: Gil::Runtime { current: current_in_runtime(minor) },
        thread: Thread { next: 8, interpreter: 16, pthread: 176, native: None, frame: 24, cframe: None },
        frame: Frame { back: 24, code: 32, at: Instruction::Index { offset: last, scale }, owner: None },
        code: Code { file: 104, name: 112, first: 40, table: 120, body: 0, kind },
        text: WIDE,
        bytes: BYTES,
    }
}

fn of_3_11() -> Layout {
    Layout {
        interpreters_head: 40,
        interpreter: Interpreter { next: 0, threads_head: 16 },
        gil: Gil::Runtime { current: current_in_runtime(11) },
        thread: Thread {
            next: 8,
            interpreter: 16,
            pthread: 152,
            native: Some(160),
            frame: 56,
            cframe: Some(8),
        },
        frame: Frame { back: 48, code: 32, at: Instruction::Pointer(56), owner: Some(69) },
        code: Code { file: 112, name: 128, first: 72, table: 136, body: 184, kind: Table::Locations },
        text: WIDE,
        bytes: BYTES,
    }
}

fn of_3_12() -> Layout {
    Layout {
        interpreters_head: 40,
        interpreter: Interpreter { next: 0, threads_head: 72 },
        gil: Gil::Interpreter { pointer: 384, locked: 16, holder: 8 },
        thread: Thread {
            next: 8,
            interpreter: 16,
            pthread: 136,
            native: Some(144),
            frame: 56,
            cframe: Some(0),
        },
        frame: Frame { back: 8, code: 0, at: Instruction::Pointer(56), owner: Some(70) },
        code: Code { file: 112, name: 128, first: 68, table: 136, body: 192, kind: Table::Locations },
        text: Text { ascii: 40, compact: 56, ..WIDE },
        bytes: BYTES,
    }
}

/// The offsets of the groups of `_Py_DebugOffsets`; the order within a group is the same in all versions, except for what is
/// listed.
struct Groups {
    gil: u64,
    thread: u64,
    pthread: u64,
    frame: u64,
    code: u64,
    bytes: u64,
    text: u64,
}

fn groups(minor: u8) -> Groups {
    match minor {
        13 => Groups { gil: 112, thread: 152, pthread: 192, frame: 224, code: 272, bytes: 512, text: 536 },
        14 => Groups { gil: 120, thread: 176, pthread: 216, frame: 248, code: 312, bytes: 592, text: 616 },
        _ => Groups { gil: 120, thread: 176, pthread: 240, frame: 312, code: 376, bytes: 688, text: 712 },
    }
}

/// A free-threaded build has no GIL and another layout of its objects: it counts as an unknown version.
fn described(memory: &Memory, runtime: u64, minor: u8) -> Option<Layout> {
    let table = memory.bytes(runtime, 768)?;
    let free_threaded = table.u64_at(16)?;
    if table.get(..8)? != b"xdebugpy" || free_threaded != 0 {
        return None;
    }
    let groups = groups(minor);
    let at = |offset: u64| table.u64_at(offset).filter(|value| *value < OFFSET_MAX);
    // Offsets in `_PyRuntime` and in the interpreter, which are large.
    let far = |offset: u64| table.u64_at(offset).filter(|value| *value < 1 << 24);
    let ascii = at(groups.text + 24)?;
    let gil = far(groups.gil + 8)?;
    Some(Layout {
        interpreters_head: far(40)?,
        interpreter: Interpreter { next: far(64)?, threads_head: far(72)? },
        gil: Gil::Interpreter {
            pointer: far(groups.gil)?,
            locked: far(groups.gil + 24)?.checked_sub(gil)?,
            holder: far(groups.gil + 32)?.checked_sub(gil)?,
        },
        thread: Thread {
            next: at(groups.thread + 16)?,
            interpreter: at(groups.thread + 24)?,
            pthread: at(groups.pthread)?,
            native: Some(at(groups.pthread + 8)?),
            frame: at(groups.thread + 32)?,
            cframe: None,
        },
        frame: Frame {
            back: at(groups.frame + 8)?,
            code: at(groups.frame + 16)?,
            at: Instruction::Pointer(at(groups.frame + 24)?),
            owner: Some(at(groups.frame + 40)?),
        },
        code: Code {
            file: at(groups.code + 8)?,
            name: at(groups.code + 24)?,
            table: at(groups.code + 32)?,
            first: at(groups.code + 40)?,
            body: at(groups.code + 72)?,
            kind: Table::Locations,
        },
        text: Text { state: at(groups.text + 8)?, length: at(groups.text + 16)?, ascii, compact: ascii + 16 },
        bytes: Bytes { size: at(groups.bytes + 8)?, data: at(groups.bytes + 16)? },
    })
}
