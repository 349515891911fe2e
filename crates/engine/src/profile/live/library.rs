//! The CUPTI library: finds it, loads it, and calls it.

#![allow(unsafe_code)] // a C library, loaded at run time

use std::{
    ffi::{CStr, c_char, c_void},
    path::{Path, PathBuf},
    ptr,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use libloading::Library;
use thiserror::Error;

use super::{
    buffers::{BUFFER_BYTES, Buffers, Lost},
    records::{EXTERNAL_KIND, Record, kind, read},
};
use llmprof_base::tools::{System, libraries::CUPTI};
use llmprof_inject::functions::{Activities, ERROR_IN_USE, ERROR_NO_PERMISSION, External, Status};

/// Why kernels cannot be recorded, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("CUPTI was not found (searched {searched})")]
    Missing { searched: String },
    #[error("{file} is not a supported CUPTI: {problem}")]
    Unsupported { file: String, problem: String },
    #[error("another tool is attached to CUPTI")]
    InUse,
    #[error("the driver does not allow this user to profile kernels")]
    NoPermission,
    #[error("CUPTI failed to enable {call}: {reason}")]
    Failed { call: &'static str, reason: String },
}

impl Refusal {
    pub fn remedy(&self) -> String {
        match self {
            Refusal::Missing { .. } => {
                "install CUDA's CUPTI (cuda-cupti-13-0, or nvidia-cuda-cupti from pip), or add its directory to LD_LIBRARY_PATH"
            }
            Refusal::Unsupported { .. } => "CUPTI of CUDA 12 and 13 is supported; put one of them first in LD_LIBRARY_PATH",
            Refusal::InUse => "stop nsys, ncu or the other profiler; only one can attach",
            Refusal::NoPermission => {
                "allow users to profile (NVreg_RestrictProfilingToAdminUsers=0, see llmprof-tui doctor), or run as root"
            }
            Refusal::Failed { .. } => {
                "use the CUPTI of the driver's CUDA version; llmprof-tui doctor reports that version"
            }
        }
        .to_owned()
    }
}

/// The functions of CUPTI. The library stays loaded until the program ends.
pub struct Cupti {
    /// The version as in CUPTI's header: 19 to 28 for CUDA 12, 130001 for 13.0.
    version: u32,
    activities: Activities,
    external: External,
    _library: Library,
}

/// CUPTI records an external id only for a call that is recorded too. All calls are recorded: single ones can be
/// selected only before the program uses CUDA.
const KINDS: [(u32, &str); 6] = [
    (kind::KERNEL, "kernels"),
    (kind::MEMCPY, "copies"),
    (kind::MEMSET, "memsets"),
    (kind::EXTERNAL_CORRELATION, "external correlation ids"),
    (kind::DRIVER, "driver calls"),
    (kind::RUNTIME, "runtime calls"),
];

/// CUPTI's callbacks carry no context.
static BUFFERS: Mutex<Buffers> = Mutex::new(Buffers::new());

fn buffers() -> MutexGuard<'static, Buffers> {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn on_request(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let base = buffers().lend();
    // SAFETY: CUPTI passes three valid pointers. It handles a null buffer itself.
    unsafe {
        *buffer = base;
        *size = if base.is_null() { 0 } else { BUFFER_BYTES };
        *max_records = 0;
    }
}

extern "C" fn on_complete(_context: *mut c_void, _stream: u32, base: *mut u8, _size: usize, valid: usize) {
    buffers().take_back(base, valid);
}

impl Cupti {
    /// The library; found and loaded once.
    pub fn get() -> Result<&'static Cupti, Refusal> {
        static LOADED: OnceLock<Result<Cupti, Refusal>> = OnceLock::new();
        let load = || Cupti::find(&CUPTI.candidates(&System::here()));
        LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
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
            searched: format!(
                "{} on the loader's path, in CUDA's directories and in Python's packages",
                CUPTI.names().collect::<Vec<_>>().join(", ")
            ),
        }))
    }

    fn bind(library: Library, path: &Path) -> Result<Cupti, Refusal> {
        let file = path.display().to_string();
        let unsupported = |problem: String| Refusal::Unsupported { file: file.clone(), problem };
        let address = |name: &CStr| {
            // SAFETY: only the address is taken.
            let symbol = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) };
            // SAFETY: as above.
            symbol.ok().and_then(|symbol| unsafe { symbol.try_as_raw_ptr() }).unwrap_or(ptr::null_mut())
        };
        let lacks = |name: &str| unsupported(format!("it has no {name}"));
        // SAFETY: the addresses are those of a library that stays loaded.
        let activities = unsafe { Activities::find(address) }.map_err(lacks)?;
        let mut version = 0;
        // SAFETY: it writes one number.
        unsafe { (activities.version)(&mut version) };
        if cuda_version(version).is_none() {
            return Err(unsupported(format!("its version is {version}")));
        }
        // SAFETY: as above.
        let external = unsafe { External::find(address) }.map_err(lacks)?;
        let cupti = Cupti { version, activities, external, _library: library };
        buffers().reserve();
        Ok(cupti)
    }

    /// For example, "CUPTI 13.0".
    pub fn name(&self) -> String {
        format!("CUPTI {}", cuda_version(self.version).unwrap_or_default())
    }

    /// Records kernels, copies and memsets from now on, with the external ids of their launches.
    pub fn start(&self) -> Result<(), Refusal> {
        let started = self.enable_all();
        if started.is_err() {
            self.stop();
        }
        started
    }

    fn enable_all(&self) -> Result<(), Refusal> {
        // SAFETY: both functions live as long as the program, and so does the library.
        let status = unsafe { (self.activities.register)(on_request, on_complete) };
        self.check("its buffer callbacks", status)?;
        for (kind, name) in KINDS {
            // SAFETY: a number.
            self.check(name, unsafe { (self.activities.enable)(kind) })?;
        }
        Ok(())
    }

    pub fn stop(&self) {
        for (kind, _) in KINDS {
            // SAFETY: a number. An error for a kind that was not enabled does not matter.
            let _ = unsafe { (self.activities.disable)(kind) };
        }
    }

    /// Removes CUPTI from the process until the next [`start`](Self::start): even when disabled, it slows launches.
    ///
    /// Call it on the thread that calls CUDA, between two calls.
    pub fn detach(&self) {
        // SAFETY: no call of CUDA is in progress, so no code of CUPTI is running that this removes.
        let status = unsafe { (self.external.finalize)() };
        if let Err(refusal) = self.check("its removal", status) {
            tracing::warn!("{refusal}");
        }
    }

    /// Makes CUPTI return its complete buffers, or all of them.
    pub fn flush(&self, forced: bool) {
        // SAFETY: a flag. Buffers come through `on_complete`.
        let _ = unsafe { (self.activities.flush_all)(u32::from(forced)) };
    }

    /// Calls `each` with every returned record and a function that reads a kernel's name. Returns the number of dropped records.
    pub fn drain(&self, mut each: impl FnMut(Record, &dyn Fn(usize) -> String)) -> u64 {
        let name_at = |address: usize| -> String {
            if address == 0 {
                return "(unnamed)".to_owned();
            }
            // SAFETY: CUPTI's names live as long as their modules, and the engine's modules as long as the engine,
            // which is dropped after the last drain.
            unsafe { CStr::from_ptr(address as *const c_char) }.to_string_lossy().into_owned()
        };
        loop {
            let Some(buffer) = buffers().next_full() else { break };
            let mut record = ptr::null_mut();
            // SAFETY: CUPTI has written the buffer's valid bytes.
            while unsafe { (self.activities.next_record)(buffer.base(), buffer.valid(), &mut record) } == 0 {
                let Some(bytes) = buffer.bytes_from(record) else { break };
                if let Some(record) = read(bytes) {
                    each(record, &name_at);
                }
            }
        }
        let mut dropped = 0;
        // SAFETY: it writes one number; a null context and stream 0 mean all.
        unsafe { (self.activities.dropped)(ptr::null_mut(), 0, &mut dropped) };
        let Lost { records, foreign_buffers } = buffers().take_lost();
        if foreign_buffers > 0 {
            tracing::warn!(
                "CUPTI returned {foreign_buffers} buffers that this program did not provide; they are not read"
            );
        }
        dropped as u64 + records
    }

    /// Launches of this thread get the external id `id` until [`pop_id`](Self::pop_id).
    pub fn push_id(&self, id: u64) {
        // SAFETY: numbers.
        let _ = unsafe { (self.external.push)(EXTERNAL_KIND, id) };
    }

    pub fn pop_id(&self) {
        // SAFETY: nothing is written to a null pointer.
        let _ = unsafe { (self.external.pop)(EXTERNAL_KIND, ptr::null_mut()) };
    }

    /// The time now, by the clock of the records.
    pub fn now_ns(&self) -> Option<u64> {
        let mut now = 0;
        // SAFETY: it writes one number.
        let status = unsafe { (self.activities.timestamp)(&mut now) };
        (status == 0 && now > 0).then_some(now)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), Refusal> {
        match status {
            0 => Ok(()),
            ERROR_IN_USE => Err(Refusal::InUse),
            ERROR_NO_PERMISSION => Err(Refusal::NoPermission),
            other => Err(Refusal::Failed { call, reason: self.reason(other) }),
        }
    }

    fn reason(&self, status: Status) -> String {
        let mut text = ptr::null();
        // SAFETY: it writes a pointer to a string that lives as long as the library.
        let known = unsafe { (self.external.result_string)(status, &mut text) } == 0 && !text.is_null();
        match known {
            // SAFETY: as above.
            true => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            false => format!("error {status}"),
        }
    }
}

/// The CUDA version of a CUPTI version; `None` if its records are not supported.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_reported_with_the_searched_directories() {
        let Err(refusal) = Cupti::find(&[PathBuf::from("/nowhere/libcupti.so.13")]) else { panic!("found") };
        let message = refusal.to_string();
        assert!(message.contains("libcupti.so.13") && message.contains("Python"), "{message}");
        assert!(refusal.remedy().contains("LD_LIBRARY_PATH"));
    }

    #[test]
    fn another_library_is_refused() {
        let libc = PathBuf::from("libc.so.6");
        match Cupti::find(&[libc]) {
            Err(Refusal::Unsupported { problem, .. }) => {
                assert!(problem.contains("cuptiGetVersion"), "{problem}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("libc was accepted"),
        }
    }

    #[test]
    fn versions_are_those_of_cuda() {
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
