//! CPython's threads and frames, read from memory that changes during the read: each pointer may be stale, so a code object
//! counts only if its type is, each length is bounded and each list ends.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::elf::{Image, Symbol};
use crate::frame::Frame;
use crate::layout::{FrameLayout, Gil, Instruction, Layout};
use crate::lines::line_at;
use crate::maps::{self, Map};
use crate::memory::{Fields, Memory};
use crate::permission;
use crate::refusal::Refusal;
use crate::text::sanitised;

pub const FRAMES_MAX: usize = 64;
const THREADS_MAX: usize = 2048;
const INTERPRETERS_MAX: usize = 64;
/// Entries of C code between frames count too.
const LINKS_MAX: usize = 256;
const READS_MAX: usize = 5;
const CODES_MAX: usize = 16_384;
const TEXT_MAX: u64 = 4096;
const NAME_MAX: usize = 256;
const TABLE_MAX: u64 = 64 << 10;
const CODE_BYTES: usize = 256;
/// `_gil_runtime_state`: its condition variables and mutexes follow its holder.
const GIL_BYTES: u64 = 224;

pub struct Python {
    pid: u32,
    memory: Memory,
    layout: Layout,
    runtime: Symbol,
    code_type: u64,
    codes: HashMap<u64, Code>,
}

/// A thread as the interpreter knows it.
#[derive(Debug, Clone, Copy)]
pub struct PythonThread {
    pub address: u64,
    pub pthread: u64,
    /// In the PID namespace of the process.
    pub native: Option<u32>,
}

#[derive(Debug, Clone, Default)]
pub struct GilState {
    /// The address of the thread's state.
    pub holder: Option<u64>,
    /// The addresses of its futexes.
    pub range: Range<u64>,
}

enum Link {
    Python(Frame),
    /// The entry of C code into the interpreter.
    Native,
    /// Its memory changed during the read.
    Torn,
}

struct Code {
    fingerprint: [u64; 4],
    file: Arc<str>,
    function: Arc<str>,
    first: i32,
    table: Vec<u8>,
}

impl Python {
    pub fn attach(pid: u32) -> Result<Python, Refusal> {
        let maps = maps::read(pid).map_err(|error| permission::refusal(pid, &error))?;
        let memory = Memory::open(pid).map_err(|error| permission::refusal(pid, &error))?;
        let found = InterpreterImage::search(pid, &memory, &maps).ok_or(Refusal::NotPython { pid })?;
        let unknown = || Refusal::UnknownVersion { pid, version: found.version_text() };
        let (runtime, layout) = found.known(&memory).ok_or_else(unknown)?;
        let python =
            Python { pid, memory, layout, runtime, code_type: found.code_type, codes: HashMap::new() };
        match python.threads()?.is_empty() {
            true => Err(Refusal::Starting { pid }),
            false => Ok(python),
        }
    }

    fn gone(&self) -> Refusal {
        Refusal::Gone { pid: self.pid }
    }

    fn interpreters(&self) -> Result<Vec<u64>, Refusal> {
        let head = self.runtime.address + self.layout.interpreters_head;
        let mut next = self.memory.u64(head).ok_or_else(|| self.gone())?;
        let mut found = Vec::new();
        while next != 0 && found.len() < INTERPRETERS_MAX && !found.contains(&next) {
            found.push(next);
            next = self.link(next, self.layout.interpreter.next).unwrap_or(0);
        }
        Ok(found)
    }

    fn link(&self, address: u64, offset: u64) -> Option<u64> {
        self.memory.u64(address.checked_add(offset)?)
    }

    /// A list that changes during the read is read again; the longest read counts.
    pub fn threads(&self) -> Result<Vec<PythonThread>, Refusal> {
        let (mut threads, mut seen) = (Vec::new(), HashSet::new());
        for interpreter in self.interpreters()? {
            let reads = (0..READS_MAX).map(|_| self.threads_of(interpreter, &seen));
            let mut longest = Vec::new();
            for (found, whole) in reads {
                if found.len() >= longest.len() {
                    longest = found;
                }
                if whole {
                    break;
                }
            }
            seen.extend(longest.iter().map(|thread| thread.address));
            threads.append(&mut longest);
        }
        Ok(threads)
    }

    /// Also whether the list was read to its end. A cyclic list ends at the first repeated thread.
    fn threads_of(&self, interpreter: u64, others: &HashSet<u64>) -> (Vec<PythonThread>, bool) {
        let (mut threads, mut seen) = (Vec::new(), HashSet::new());
        let mut next = self.link(interpreter, self.layout.interpreter.threads_head).unwrap_or(0);
        while next != 0 {
            let bounded = threads.len() + others.len() < THREADS_MAX && !others.contains(&next);
            if !bounded || !seen.insert(next) {
                return (threads, true);
            }
            let Some((thread, following)) = self.thread(next, interpreter) else { return (threads, false) };
            threads.push(thread);
            next = following;
        }
        (threads, true)
    }

    /// The thread and the address of the following one.
    fn thread(&self, address: u64, interpreter: u64) -> Option<(PythonThread, u64)> {
        let at = self.layout.thread;
        let last = [at.next, at.interpreter, at.pthread, at.native.unwrap_or(0)].into_iter().max()?;
        let bytes = self.memory.bytes(address, last as usize + 8)?;
        if bytes.u64_at(at.interpreter)? != interpreter {
            return None;
        }
        let native = at.native.and_then(|offset| u32::try_from(bytes.u64_at(offset)?).ok());
        let pthread = bytes.u64_at(at.pthread)?;
        let thread = PythonThread { address, pthread, native };
        Some((thread, bytes.u64_at(at.next)?))
    }

    /// The thread's identifier as glibc keeps it, which is right after a fork and before CPython 3.11.
    pub fn id_of_pthread(&self, thread: &PythonThread) -> Option<u32> {
        let offset = if cfg!(target_arch = "aarch64") { 208 } else { 720 };
        self.memory.u32(thread.pthread.checked_add(offset)?)
    }

    /// The GIL of the main interpreter.
    pub fn gil(&self) -> GilState {
        match self.layout.gil {
            Gil::Runtime { current } => {
                let start = self.runtime.address;
                let holder = self.link(start, current).filter(|holder| *holder != 0);
                GilState { holder, range: start..start.saturating_add(self.runtime.size) }
            }
            Gil::Interpreter { pointer, locked, holder } => {
                self.gil_of_interpreter(pointer, locked, holder).unwrap_or_default()
            }
        }
    }

    fn gil_of_interpreter(&self, pointer: u64, locked: u64, holder: u64) -> Option<GilState> {
        let interpreter = *self.interpreters().ok()?.last()?;
        let gil = self.link(interpreter, pointer)?;
        let bytes = self.memory.bytes(gil, GIL_BYTES as usize)?;
        let holder = bytes.u64_at(holder).filter(|holder| *holder != 0);
        let is_locked = bytes.u32_at(locked)? == 1;
        Some(GilState { holder: holder.filter(|_| is_locked), range: gil..gil.checked_add(GIL_BYTES)? })
    }

    /// Innermost first. A stack that changes during the read is read again; the most complete read counts.
    pub fn frames(&mut self, thread: &PythonThread) -> Vec<Frame> {
        let mut best = Vec::new();
        for _ in 0..READS_MAX {
            let Some(head) = self.innermost(thread) else { break };
            let (frames, whole) = self.walk(head);
            if whole && self.innermost(thread) == Some(head) {
                return frames;
            }
            if frames.len() > best.len() {
                best = frames;
            }
        }
        best
    }

    fn innermost(&self, thread: &PythonThread) -> Option<u64> {
        let frame = self.link(thread.address, self.layout.thread.frame)?;
        match self.layout.thread.cframe {
            Some(offset) => self.link(frame, offset),
            None => Some(frame),
        }
    }

    /// Also whether the walk reached the outermost frame, or the bound, without a frame that cannot be one.
    fn walk(&mut self, head: u64) -> (Vec<Frame>, bool) {
        let (mut frames, mut whole, mut next) = (Vec::new(), true, head);
        for _ in 0..LINKS_MAX {
            if next == 0 || frames.len() == FRAMES_MAX {
                return (frames, whole);
            }
            let Some((link, back)) = self.frame(next) else { break };
            match link {
                Link::Python(frame) => frames.push(frame),
                Link::Native => {}
                Link::Torn => whole = false,
            }
            next = back;
        }
        (frames, false)
    }

    /// The frame and the address of its caller's.
    fn frame(&mut self, address: u64) -> Option<(Link, u64)> {
        let at = self.layout.frame;
        let mut bytes = [0; 112];
        self.memory.read(address, &mut bytes)?;
        let back = bytes.u64_at(at.back)?;
        let owner = at.owner.and_then(|offset| bytes.field::<1>(offset)).map_or(0, |[owner]| owner);
        if owner >= 3 {
            return Some((Link::Native, back));
        }
        // Since CPython 3.14 the low bits of the pointer are a tag.
        let code = bytes.u64_at(at.code)? & !3;
        let at = match at.at {
            Instruction::Index { offset, scale } => i64::from(bytes.u32_at(offset)? as i32) * scale,
            Instruction::Pointer(offset) => bytes.u64_at(offset)?.wrapping_sub(code) as i64,
        };
        Some((self.line(code, at).map_or(Link::Torn, Link::Python), back))
    }

    pub fn frame_layout(&self) -> FrameLayout {
        self.layout.of_frames(self.code_type)
    }

    /// The line of an instruction, by its distance in bytes from its code object.
    pub fn line(&mut self, address: u64, at: i64) -> Option<Frame> {
        let code = self.code(address)?;
        let (file, function, first) = (code.file.clone(), code.function.clone(), code.first);
        let line = line_at(
            self.layout.code.kind,
            &self.codes.get(&address)?.table,
            first,
            at.wrapping_sub(self.layout.code.body as i64),
        );
        Some(Frame { file, line, function })
    }

    /// Kept while the object at the address has the same fields.
    fn code(&mut self, address: u64) -> Option<&Code> {
        let mut bytes = [0; CODE_BYTES];
        let at = self.layout.code;
        let length = [at.file, at.name, at.first, at.table].into_iter().max()? as usize + 8;
        let bytes = bytes.get_mut(..length)?;
        self.memory.read(address, bytes)?;
        if bytes.u64_at(8) != Some(self.code_type) {
            return None;
        }
        let first = bytes.u32_at(at.first)?;
        let fingerprint =
            [bytes.u64_at(at.file)?, bytes.u64_at(at.name)?, bytes.u64_at(at.table)?, u64::from(first)];
        if self.codes.get(&address).is_none_or(|code| code.fingerprint != fingerprint) {
            let code = self.read_code(fingerprint, first as i32)?;
            if self.codes.len() >= CODES_MAX {
                self.codes.clear();
            }
            self.codes.insert(address, code);
        }
        self.codes.get(&address)
    }

    fn read_code(&self, fingerprint: [u64; 4], first: i32) -> Option<Code> {
        let [file, name, table, _] = fingerprint;
        let file = sanitised(&self.text(file)?, TEXT_MAX as usize).into();
        let function = sanitised(&self.text(name)?, NAME_MAX).into();
        Some(Code { fingerprint, file, function, first, table: self.table(table)? })
    }

    fn table(&self, address: u64) -> Option<Vec<u8>> {
        let size = self.link(address, self.layout.bytes.size)?.min(TABLE_MAX);
        self.memory.bytes(address.checked_add(self.layout.bytes.data)?, size as usize)
    }

    /// A compact `str`, the kind that names of files and functions are.
    fn text(&self, address: u64) -> Option<String> {
        let at = self.layout.text;
        let head = self.memory.bytes(address, 64)?;
        let (length, state) = (head.u64_at(at.length)?, head.u32_at(at.state)?);
        let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
        if length > TEXT_MAX || !is_compact {
            return None;
        }
        let start = address.checked_add(if is_ascii { at.ascii } else { at.compact })?;
        decode(kind, &self.memory.bytes(start, length as usize * kind as usize)?)
    }

    /// For return addresses on the stack of a blocked thread.
    pub fn stack_words(&self, stack: u64, bytes: usize) -> Vec<u64> {
        let start = stack & !7;
        let copy = (0..4).find_map(|half| self.memory.bytes(start, bytes >> half)).unwrap_or_default();
        copy.chunks_exact(8).filter_map(|word| word.u64_at(0)).collect()
    }
}

fn decode(kind: u32, bytes: &[u8]) -> Option<String> {
    let wide = |width: usize| {
        bytes.chunks_exact(width).map(move |unit| {
            let mut value = [0; 4];
            value[..width].copy_from_slice(unit);
            char::from_u32(u32::from_le_bytes(value)).unwrap_or(char::REPLACEMENT_CHARACTER)
        })
    };
    match kind {
        1 | 2 | 4 => Some(wide(kind as usize).collect()),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy)]
struct Version(u32);

impl Version {
    fn of_minor(minor: u8) -> Version {
        Version(3 << 24 | u32::from(minor) << 16)
    }

    fn minor(self) -> Option<u8> {
        (self.0 >> 24 == 3).then_some((self.0 >> 16) as u8)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 >> 24, self.0 >> 16 & 255)
    }
}

/// The image that has the interpreter: the executable, or a libpython.
struct InterpreterImage {
    /// Absent before CPython 3.7.
    runtime: Option<Symbol>,
    code_type: u64,
    version: Option<Version>,
}

impl InterpreterImage {
    fn known(&self, memory: &Memory) -> Option<(Symbol, Layout)> {
        let (runtime, minor) = (self.runtime?, self.version?.minor()?);
        Some((runtime, Layout::known(memory, runtime.address, minor)?))
    }

    fn version_text(&self) -> String {
        self.version.map_or("of an unknown version".to_owned(), |version| version.to_string())
    }

    fn search(pid: u32, memory: &Memory, maps: &[Map]) -> Option<InterpreterImage> {
        let executable = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let executable = executable.as_deref().and_then(|path| path.to_str()).unwrap_or_default();
        let library = |map: &Map| maps::file_name(&map.path).starts_with("libpython");
        let candidate = |map: &&Map| map.offset == 0 && (map.path == executable || library(map));
        maps.iter().filter(candidate).take(16).find_map(|map| InterpreterImage::read(memory, map, maps))
    }

    fn read(memory: &Memory, map: &Map, maps: &[Map]) -> Option<InterpreterImage> {
        let image = Image::open(memory, map.range.start)?;
        let code_type = image.symbol("PyCode_Type")?.address;
        let exported = image.symbol("Py_Version").and_then(|symbol| memory.u32(symbol.address)).map(Version);
        let version =
            exported.or_else(|| named(&map.path)).or_else(|| maps.iter().find_map(|map| named(&map.path)));
        Some(InterpreterImage { runtime: image.symbol("_PyRuntime"), code_type, version })
    }
}

/// The version before CPython 3.11, which is only in names: `python3.10`, `cpython-310-x86_64`.
fn named(path: &str) -> Option<Version> {
    let after = |prefix: &str| path.rsplit_once(prefix).map(|(_, rest)| rest);
    let rest = after("python3.").or_else(|| after("cpython-3"))?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().map(Version::of_minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names() {
        let minor = |path: &str| named(path).and_then(Version::minor);
        assert_eq!(minor("/usr/lib/libpython3.10.so.1.0"), Some(10));
        assert_eq!(minor("/usr/lib/python3.9/lib-dynload/_json.so"), Some(9));
        assert_eq!(minor("/x/_json.cpython-38-x86_64-linux-gnu.so"), Some(8));
        assert_eq!(minor("/usr/bin/bash"), None);
    }

    #[test]
    fn text_of_each_width_is_decoded() {
        assert_eq!(decode(1, b"\xe9a").unwrap(), "éa");
        assert_eq!(decode(2, &[0x42, 0x30, 0, 0xd8]).unwrap(), "あ\u{fffd}");
        assert_eq!(decode(4, &[0, 0xf6, 1, 0]).unwrap(), "😀");
        assert_eq!(decode(3, b"abc"), None);
    }
}
