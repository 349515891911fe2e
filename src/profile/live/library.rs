//! CUPTI itself: found, loaded, asked for records. All of its `unsafe` is here.

#![allow(unsafe_code)] // a C library, loaded at run time

use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::VecDeque,
    ffi::{CStr, c_char, c_int, c_void},
    path::{Path, PathBuf},
    ptr, slice,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use libloading::Library;
use thiserror::Error;

use super::records::{MARKS, Record, kind, read};

/// Why kernels can't be recorded, and what would change that.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("CUPTI was not found ({looked})")]
    Missing { looked: String },
    #[error("{file} is no CUPTI that is known here: {what}")]
    Unknown { file: String, what: String },
    #[error("another tool is attached to CUPTI")]
    Taken,
    #[error("the driver does not let this user look at kernels")]
    NoPermission,
    #[error("CUPTI refuses {call}: {reason}")]
    Failed { call: &'static str, reason: String },
}

impl Refusal {
    pub fn remedy(&self) -> String {
        match self {
            Refusal::Missing { .. } => {
                "install CUDA's CUPTI (cuda-cupti-13-0, or the package nvidia-cuda-cupti of pip), or name its directory in LD_LIBRARY_PATH"
            }
            Refusal::Unknown { .. } => "CUPTI of CUDA 12 or 13 is read; put one of them first in LD_LIBRARY_PATH",
            Refusal::Taken => "end the run under nsys, ncu or another profiler; only one can attach",
            Refusal::NoPermission => {
                "let users profile (NVreg_RestrictProfilingToAdminUsers=0, see llmprof-tui doctor), or run as root"
            }
            Refusal::Failed { .. } => {
                "a CUPTI of the driver's own CUDA version usually works; llmprof-tui doctor says which that is"
            }
        }
        .to_owned()
    }
}

type Status = c_int;
type OnRequest = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type OnComplete = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// What is called of CUPTI. The library stays loaded as long as the program runs.
pub struct Cupti {
    /// As its header has it: 19 to 28 of CUDA 12, 130001 of 13.0.
    version: u32,
    enable: unsafe extern "C" fn(u32) -> Status,
    disable: unsafe extern "C" fn(u32) -> Status,
    flush_all: unsafe extern "C" fn(u32) -> Status,
    next_record: unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> Status,
    dropped: unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> Status,
    push: unsafe extern "C" fn(u32, u64) -> Status,
    pop: unsafe extern "C" fn(u32, *mut u64) -> Status,
    words: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
    timestamp: unsafe extern "C" fn(*mut u64) -> Status,
    _library: Library,
}

const NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];
/// Where toolkits put it when the loader does not know.
const PLACES: [&str; 4] = [
    "/usr/local/cuda/extras/CUPTI/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/lib64",
    "/opt/cuda/extras/CUPTI/lib64",
];
/// A mark is told beside the record of the call that it lies around, so calls are recorded too. All of them: single ones can be
/// chosen only before the program has used CUDA at all.
const KINDS: [(u32, &str); 6] = [
    (kind::KERNEL, "kernels"),
    (kind::COPY, "copies"),
    (kind::SET, "memsets"),
    (kind::MARK, "marks"),
    (kind::DRIVER, "calls of the driver"),
    (kind::RUNTIME, "calls of the runtime"),
];
const TAKEN: Status = 39;
const NO_PERMISSION: Status = 35;

/// Bytes of a buffer: some seconds of an eager decode, a sixth of a second of the fastest graphs.
const BUFFER_BYTES: usize = 2 << 20;
/// Records are aligned so.
const ALIGNMENT: usize = 8;
/// Full buffers that wait to be read; beyond that records are dropped and counted.
const MOST_WAITING: usize = 64;

/// CUPTI calls back without a word of whose it is.
static FULL: Mutex<VecDeque<Buffer>> = Mutex::new(VecDeque::new());
static OVERFLOWN: AtomicU64 = AtomicU64::new(0);

fn full() -> MutexGuard<'static, VecDeque<Buffer>> {
    FULL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that CUPTI has written records into.
struct Buffer {
    base: *mut u8,
    valid: usize,
}

// SAFETY: the memory is the buffer's own; CUPTI has given it back.
unsafe impl Send for Buffer {}

fn layout() -> Layout {
    // Constants that fit each other.
    Layout::from_size_align(BUFFER_BYTES, ALIGNMENT).unwrap_or(Layout::new::<u64>())
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: made by `on_request` with this layout, and dropped once.
        unsafe { System.dealloc(self.base, layout()) };
    }
}

extern "C" fn on_request(buffer: *mut *mut u8, size: *mut usize, most_records: *mut usize) {
    // SAFETY: CUPTI passes three places to write to. The layout has a size; a null is CUPTI's to refuse.
    unsafe {
        // The system's own: what CUPTI takes in the middle of an operator is not the operator's.
        *buffer = System.alloc(layout());
        *size = if (*buffer).is_null() { 0 } else { BUFFER_BYTES };
        *most_records = 0;
    }
}

extern "C" fn on_complete(_context: *mut c_void, _stream: u32, base: *mut u8, _size: usize, valid: usize) {
    if base.is_null() {
        return;
    }
    let buffer = Buffer { base, valid: valid.min(BUFFER_BYTES) };
    let mut waiting = full();
    if waiting.len() >= MOST_WAITING {
        // A kernel's record takes about so many bytes.
        OVERFLOWN.fetch_add(valid as u64 / 208, Ordering::Relaxed);
        return;
    }
    if valid > 0 {
        waiting.push_back(buffer);
    }
}

impl Cupti {
    /// The library, found and loaded once.
    pub fn get() -> Result<&'static Cupti, Refusal> {
        static LOADED: OnceLock<Result<Cupti, Refusal>> = OnceLock::new();
        LOADED.get_or_init(|| Cupti::find(&candidates())).as_ref().map_err(Clone::clone)
    }

    fn find(candidates: &[PathBuf]) -> Result<Cupti, Refusal> {
        let mut refused = None;
        for path in candidates {
            // SAFETY: loading CUPTI runs its initialisers, which do nothing but register it.
            let Ok(library) = (unsafe { Library::new(path) }) else { continue };
            match Cupti::bind(library, path) {
                Ok(cupti) => return Ok(cupti),
                Err(refusal) => refused = refused.or(Some(refusal)),
            }
        }
        Err(refused.unwrap_or_else(|| Refusal::Missing {
            looked: format!("{} on the loader's path and in {}", NAMES.join(", "), PLACES.join(", ")),
        }))
    }

    fn bind(library: Library, path: &Path) -> Result<Cupti, Refusal> {
        let file = path.display().to_string();
        let unknown = |what: String| Refusal::Unknown { file: file.clone(), what };
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the type is that of the function in CUPTI's header.
                let found = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                *found.map_err(|_| unknown(format!("it has no {}", $name)))?
            }};
        }
        let get_version: unsafe extern "C" fn(*mut u32) -> Status = function!("cuptiGetVersion");
        let register: unsafe extern "C" fn(OnRequest, OnComplete) -> Status =
            function!("cuptiActivityRegisterCallbacks");
        let mut version = 0;
        // SAFETY: it writes one number.
        unsafe { get_version(&mut version) };
        if cuda_version(version).is_none() {
            return Err(unknown(format!("its version is {version}")));
        }
        let cupti = Cupti {
            version,
            enable: function!("cuptiActivityEnable"),
            disable: function!("cuptiActivityDisable"),
            flush_all: function!("cuptiActivityFlushAll"),
            next_record: function!("cuptiActivityGetNextRecord"),
            dropped: function!("cuptiActivityGetNumDroppedRecords"),
            push: function!("cuptiActivityPushExternalCorrelationId"),
            pop: function!("cuptiActivityPopExternalCorrelationId"),
            words: function!("cuptiGetResultString"),
            timestamp: function!("cuptiGetTimestamp"),
            _library: library,
        };
        // SAFETY: both functions live as long as the program, and so does the library.
        let status = unsafe { register(on_request, on_complete) };
        cupti.check("its callbacks", status)?;
        Ok(cupti)
    }

    /// As people call it: "CUPTI 13.0".
    pub fn name(&self) -> String {
        format!("CUPTI {}", cuda_version(self.version).unwrap_or_default())
    }

    /// From now on kernels, copies and memsets are recorded, and the marks of what launches them.
    pub fn start(&self) -> Result<(), Refusal> {
        let started = self.enable_all();
        if started.is_err() {
            self.stop();
        }
        started
    }

    fn enable_all(&self) -> Result<(), Refusal> {
        for (kind, name) in KINDS {
            // SAFETY: a number.
            self.check(name, unsafe { (self.enable)(kind) })?;
        }
        Ok(())
    }

    pub fn stop(&self) {
        for (kind, _) in KINDS {
            // SAFETY: a number; what was not enabled is refused, and that is well.
            let _ = unsafe { (self.disable)(kind) };
        }
    }

    /// Lets CUPTI hand over what is complete, or all that it has.
    pub fn flush(&self, forced: bool) {
        // SAFETY: a flag. Buffers come through `on_complete`.
        let _ = unsafe { (self.flush_all)(u32::from(forced)) };
    }

    /// Gives every record that was handed over, and how many were dropped. The name of a kernel is passed along.
    pub fn drain(&self, mut each: impl FnMut(Record, &dyn Fn(usize) -> String)) -> u64 {
        let name_at = |at: usize| -> String {
            if at == 0 {
                return "(unnamed)".to_owned();
            }
            // SAFETY: CUPTI's names live as long as their module, and modules of ours as long as the engine, which
            // waits for this before it goes.
            unsafe { CStr::from_ptr(at as *const c_char) }.to_string_lossy().into_owned()
        };
        loop {
            let Some(buffer) = full().pop_front() else { break };
            let mut record = ptr::null_mut();
            // SAFETY: the buffer is CUPTI's own, with as many valid bytes as it said.
            while unsafe { (self.next_record)(buffer.base, buffer.valid, &mut record) } == 0 {
                let at = (record as usize).saturating_sub(buffer.base as usize);
                let Some(len) = buffer.valid.checked_sub(at) else { break };
                // SAFETY: from the record to the end of what is valid in the buffer.
                let bytes = unsafe { slice::from_raw_parts(record, len) };
                if let Some(record) = read(bytes) {
                    each(record, &name_at);
                }
            }
        }
        let mut dropped = 0;
        // SAFETY: it writes one number; no context and no stream means all.
        unsafe { (self.dropped)(ptr::null_mut(), 0, &mut dropped) };
        dropped as u64 + OVERFLOWN.swap(0, Ordering::Relaxed)
    }

    /// Launches of this thread are marked with `id` until [`unmark`](Self::unmark).
    pub fn mark(&self, id: u64) {
        // SAFETY: numbers.
        let _ = unsafe { (self.push)(MARKS, id) };
    }

    pub fn unmark(&self) {
        // SAFETY: nothing is written where the place is null.
        let _ = unsafe { (self.pop)(MARKS, ptr::null_mut()) };
    }

    /// This moment by the clock that records are stamped with.
    pub fn now_ns(&self) -> Option<u64> {
        let mut now = 0;
        // SAFETY: it writes one number.
        let told = unsafe { (self.timestamp)(&mut now) } == 0;
        (told && now > 0).then_some(now)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), Refusal> {
        match status {
            0 => Ok(()),
            TAKEN => Err(Refusal::Taken),
            NO_PERMISSION => Err(Refusal::NoPermission),
            other => Err(Refusal::Failed { call, reason: self.reason(other) }),
        }
    }

    fn reason(&self, status: Status) -> String {
        let mut words = ptr::null();
        // SAFETY: it writes a pointer to a string that lives as long as the library.
        let told = unsafe { (self.words)(status, &mut words) } == 0 && !words.is_null();
        match told {
            // SAFETY: as above.
            true => unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned(),
            false => format!("error {status}"),
        }
    }
}

/// The CUDA that a CUPTI belongs to; `None` where its records are not known here.
fn cuda_version(cupti: u32) -> Option<String> {
    match cupti {
        19 => Some("12.0".to_owned()),
        20..=24 => Some(format!("12.{}", cupti - 18)),
        25 | 26 => Some("12.8".to_owned()),
        27..=29 => Some("12.9".to_owned()),
        130_000..140_000 => Some(format!("{}.{}", cupti / 10_000, cupti / 100 % 100)),
        _ => None,
    }
}

fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
    let of_variable = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let toolkits = of_variable
        .map(PathBuf::from)
        .flat_map(|root| ["extras/CUPTI/lib64", "lib64", "lib"].map(|below| root.join(below)));
    for place in toolkits.chain(PLACES.iter().map(PathBuf::from)) {
        found.extend(NAMES.iter().map(|name| place.join(name)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_it_says_where_it_looked() {
        let Err(refusal) = Cupti::find(&[PathBuf::from("/nowhere/libcupti.so.13")]) else { panic!("found") };
        let words = refusal.to_string();
        assert!(words.contains("libcupti.so.13") && words.contains("/usr/local/cuda"), "{words}");
        assert!(refusal.remedy().contains("LD_LIBRARY_PATH"));
    }

    #[test]
    fn another_library_is_no_cupti() {
        let libc = PathBuf::from("libc.so.6");
        match Cupti::find(&[libc]) {
            Err(Refusal::Unknown { what, .. }) => assert!(what.contains("cuptiGetVersion"), "{what}"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("libc is no CUPTI"),
        }
    }

    #[test]
    fn versions_in_words() {
        for (version, wanted) in [
            (130_001, Some("13.0")),
            (130_100, Some("13.1")),
            (22, Some("12.4")),
            (18, None),
            (140_000, None),
        ] {
            assert_eq!(cuda_version(version).as_deref(), wanted);
        }
    }
}
