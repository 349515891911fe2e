//! CUPTI in another program: the copy that the program has loaded, or the one next to its CUDA runtime; never a second
//! one.

use std::{
    alloc::{Layout, alloc, dealloc},
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::Path,
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use crate::{
    WORK, c,
    frames::{self, Frames},
    functions::{Activities, ERROR_IN_USE, Status, Subscription},
    layout::{self, kind},
    ring::Writer,
    wire::{ActivityRecord, Mode, Obstacle, Record},
};

/// Small buffers are returned soon.
const BUFFER_BYTES: usize = 256 << 10;
const SPARE_BUFFERS: usize = 8;

/// The kinds of records of each mode. The modes differ only in kernels: after memsets are switched off, CUPTI 13.0
/// records no copies either. Whole graphs (`GRAPH_TRACE`) would have as little overhead as copies, but switching that
/// kind while graphs are launched crashes in cuGraphLaunch.
const LIGHT: [u32; 2] = [kind::MEMCPY, kind::MEMSET];
const BURST: [u32; 3] = [kind::KERNEL, kind::MEMCPY, kind::MEMSET];

pub fn kinds(mode: Mode) -> &'static [u32] {
    match mode {
        Mode::Nothing => &[],
        Mode::Light => &LIGHT,
        Mode::Burst => &BURST,
    }
}

/// The library is never unloaded.
#[derive(Clone, Copy)]
pub struct Cupti {
    pub version: u32,
    activities: Activities,
    subscription: Subscription,
}

/// The library in use: CUPTI's callbacks carry no context.
static LOADED: Mutex<Option<Cupti>> = Mutex::new(None);

struct Buffers {
    lent: Vec<usize>,
    spare: Vec<usize>,
}

static BUFFERS: Mutex<Buffers> = Mutex::new(Buffers { lent: Vec::new(), spare: Vec::new() });

fn buffer_layout() -> Layout {
    Layout::from_size_align(BUFFER_BYTES, 64).unwrap_or(Layout::new::<u64>())
}

/// Set when a record needs a buffer: the program has a context and has launched work.
static HAS_WORK: AtomicBool = AtomicBool::new(false);

extern "C" fn on_request(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    HAS_WORK.store(true, Ordering::Relaxed);
    let mut buffers = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    let base = match buffers.spare.pop() {
        Some(base) => base as *mut u8,
        // SAFETY: the layout has a size.
        None => unsafe { alloc(buffer_layout()) },
    };
    if !base.is_null() {
        buffers.lent.push(base as usize);
    }
    // SAFETY: CUPTI passes three valid pointers.
    unsafe {
        *buffer = base;
        *size = if base.is_null() { 0 } else { BUFFER_BYTES };
        *max_records = 0;
    }
}

extern "C" fn on_complete(_context: *mut c_void, _stream: u32, base: *mut u8, _size: usize, valid: usize) {
    let _ = std::panic::catch_unwind(|| {
        {
            // A buffer that this library did not provide belongs to another tool.
            let mut buffers = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(at) = buffers.lent.iter().position(|lent| *lent == base as usize) else { return };
            buffers.lent.swap_remove(at);
        }
        let cupti = *LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cupti) = cupti {
            WORK.with(|writer| cupti.drain(base, valid.min(BUFFER_BYTES), writer));
        }
        let mut buffers = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.spare.len() < SPARE_BUFFERS {
            buffers.spare.push(base as usize);
        } else {
            // SAFETY: allocated in `on_request` with this layout, and returned by CUPTI.
            unsafe { dealloc(base, buffer_layout()) };
        }
    });
}

/// The number of CUPTI calls in progress, and whether more may begin: CUPTI crashes if it is called while the process
/// is torn down.
static CALLS: AtomicU32 = AtomicU32::new(0);
const CLOSED: u32 = 1 << 31;

/// A call of CUPTI; `None` after the gate was closed.
fn call<T>(function: impl FnOnce() -> T) -> Option<T> {
    let enter = |calls: u32| (calls & CLOSED == 0).then_some(calls + 1);
    CALLS.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).ok()?;
    let result = function();
    CALLS.fetch_sub(1, Ordering::AcqRel);
    Some(result)
}

/// A subscription to calls of the program.
pub struct Subscriber(*mut c_void);

// SAFETY: a handle that any thread may pass to CUPTI.
unsafe impl Send for Subscriber {}

extern "C" fn ignore(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}

impl Cupti {
    /// `at_exit` runs before CUPTI's destructors.
    pub fn load(at_exit: extern "C" fn()) -> Option<Cupti> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.is_none() {
            *loaded = open().and_then(bind);
            if loaded.is_some() {
                // The function that is registered last runs first: CUPTI's destructors were registered just now, and
                // CUPTI crashes if it is called after them. SAFETY: the function lives as long as this library, which
                // is never unloaded.
                unsafe { c::atexit(at_exit) };
            }
        }
        *loaded
    }

    /// Called after a fork: the parent's CUPTI cannot be used in the child.
    pub fn forget() {
        HAS_WORK.store(false, Ordering::Relaxed);
        CALLS.store(0, Ordering::Relaxed);
        if let Ok(mut loaded) = LOADED.try_lock() {
            *loaded = None;
        }
    }

    /// Lets no further call begin. Returns false while one is in progress.
    pub fn close() -> bool {
        let closed = CALLS.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        closed.is_ok() || closed == Err(CLOSED)
    }

    /// Whether any work was recorded yet.
    pub fn has_work() -> bool {
        HAS_WORK.load(Ordering::Relaxed)
    }

    /// Whether another tool uses CUPTI, which accepts one subscriber.
    pub fn is_taken(&self) -> bool {
        let ask = || {
            let mut subscriber = ptr::null_mut();
            // SAFETY: it writes a handle; the function lives as long as the program, and is never called because
            // nothing is enabled.
            let status = unsafe { (self.subscription.subscribe)(&mut subscriber, ignore, ptr::null_mut()) };
            if status == 0 {
                // SAFETY: the handle from above.
                unsafe { (self.subscription.unsubscribe)(subscriber) };
            }
            status == ERROR_IN_USE
        };
        call(ask).unwrap_or(false)
    }

    /// Calls back at each launch from now on; `None` if CUPTI does not allow it.
    pub fn call_at_launches(&self, frames: &'static Frames) -> Option<Subscriber> {
        let subscribe = || {
            let mut subscriber = ptr::null_mut();
            let data = ptr::from_ref(frames).cast_mut().cast();
            // SAFETY: it writes a handle; the function and its data live as long as the program.
            if unsafe { (self.subscription.subscribe)(&mut subscriber, frames::on_launch, data) } != 0 {
                return None;
            }
            for launch in frames::LAUNCHES {
                // SAFETY: the handle from above, and numbers. Calls that this CUPTI does not know are an error.
                unsafe { (self.subscription.enable_callback)(1, subscriber, frames::DRIVER, launch) };
            }
            Some(Subscriber(subscriber))
        };
        call(subscribe).flatten()
    }

    pub fn end_calls(&self, subscriber: Subscriber) {
        // SAFETY: the handle of a subscription that has not ended.
        call(|| unsafe { (self.subscription.unsubscribe)(subscriber.0) });
    }

    /// Switches to the records of mode `to`.
    pub fn switch(&self, from: Mode, to: Mode) -> Result<(), Obstacle> {
        call(|| self.switch_kinds(from, to)).unwrap_or(Ok(()))
    }

    fn switch_kinds(&self, from: Mode, to: Mode) -> Result<(), Obstacle> {
        if from == Mode::Nothing {
            // SAFETY: both functions live as long as the program.
            check(unsafe { (self.activities.register)(on_request, on_complete) })?;
        }
        for unwanted in kinds(from).iter().filter(|kind| !kinds(to).contains(kind)) {
            // SAFETY: a number.
            let _ = unsafe { (self.activities.disable)(*unwanted) };
        }
        for wanted in kinds(to).iter().filter(|kind| !kinds(from).contains(kind)) {
            // SAFETY: a number.
            check(unsafe { (self.activities.enable)(*wanted) })?;
        }
        Ok(())
    }

    /// Switches records of host waits. Their overhead remains after they are switched off.
    pub fn record_waits(&self, wanted: bool) {
        let function = if wanted { self.activities.enable } else { self.activities.disable };
        // SAFETY: a number.
        call(|| unsafe { function(kind::SYNCHRONIZATION) });
    }

    /// Returns complete buffers, or all.
    pub fn flush(&self, all: bool) {
        // SAFETY: a flag. Buffers come through `on_complete`.
        call(|| unsafe { (self.activities.flush_all)(u32::from(all)) });
    }

    pub fn take_dropped(&self) -> u64 {
        let mut dropped = 0;
        // SAFETY: it writes one number; a null context and stream 0 mean all.
        let status = call(|| unsafe { (self.activities.dropped)(ptr::null_mut(), 0, &mut dropped) });
        if status == Some(0) { dropped as u64 } else { 0 }
    }

    pub fn now_ns(&self) -> u64 {
        let mut now = 0;
        // SAFETY: it writes one number.
        call(|| unsafe { (self.activities.timestamp)(&mut now) });
        now
    }

    fn drain(&self, base: *mut u8, valid: usize, writer: &mut Writer<'_>) {
        let mut record = ptr::null_mut();
        // SAFETY: CUPTI has written `valid` bytes of the buffer.
        while unsafe { (self.activities.next_record)(base, valid, &mut record) } == 0 {
            let Some(offset) = (record as usize).checked_sub(base as usize).filter(|at| *at < valid) else {
                return;
            };
            // SAFETY: within the valid bytes.
            let bytes = unsafe { std::slice::from_raw_parts(record, valid - offset) };
            if let Some(work) = layout::read(bytes) {
                writer.write_work(work);
            }
        }
    }
}

fn check(status: Status) -> Result<(), Obstacle> {
    match status {
        0 => Ok(()),
        ERROR_IN_USE => Err(Obstacle::InUse),
        other => Err(Obstacle::Failed(other as u32)),
    }
}

impl Writer<'_> {
    fn write_work(&mut self, work: ActivityRecord<usize>) {
        let work = work.named(|address| match address {
            0 => 0,
            // SAFETY: a name lives as long as its module, which is loaded while its records are completed.
            _ => self.number(unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes()),
        });
        self.write(Record::Work(work));
    }
}

/// The paths of the libraries in this process.
fn mapped() -> Vec<String> {
    extern "C" fn each(object: *const c::Object, _: usize, all: *mut c_void) -> c_int {
        // SAFETY: glibc passes an object whose name is a string or null; `all` is the list below.
        unsafe {
            let name = (*object).name;
            if !name.is_null() {
                let name = CStr::from_ptr(name).to_string_lossy().into_owned();
                (*all.cast::<Vec<String>>()).push(name);
            }
        }
        0
    }
    let mut all: Vec<String> = Vec::new();
    // SAFETY: the function gets the list and is called until this returns.
    unsafe { c::dl_iterate_phdr(each, ptr::from_mut(&mut all).cast()) };
    all
}

fn open() -> Option<*mut c_void> {
    let open = |path: &str, flags| {
        let path = CString::new(path).ok()?;
        // SAFETY: CUPTI's initialisers only register it.
        let library = unsafe { c::dlopen(path.as_ptr(), flags) };
        (!library.is_null()).then_some(library)
    };
    let file = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let mapped = mapped();
    if let Some(own) = mapped.iter().find(|path| file(path).starts_with("libcupti.so")) {
        return open(own, c::RTLD_NOW | c::RTLD_NOLOAD);
    }
    let names = ["libcupti.so.13", "libcupti.so.12"];
    for runtime in mapped.iter().filter(|path| file(path).starts_with("libcudart.so")) {
        let major = if file(runtime).starts_with("libcudart.so.12") { "12" } else { "13" };
        let Some(dir) = Path::new(runtime).parent() else { continue };
        for place in ["", "../extras/CUPTI/lib64", "../../cuda_cupti/lib", "../../../extras/CUPTI/lib64"] {
            let path = dir.join(place).join(format!("libcupti.so.{major}"));
            if path.exists() {
                return open(&path.to_string_lossy(), c::RTLD_NOW);
            }
        }
    }
    let given = std::env::var("LLMPROF_CUPTI").ok().filter(|path| !path.is_empty());
    given.iter().map(String::as_str).chain(names).find_map(|path| open(path, c::RTLD_NOW))
}

fn bind(library: *mut c_void) -> Option<Cupti> {
    // SAFETY: a library that is loaded, and a name that ends with 0.
    let address = |name: &CStr| unsafe { c::dlsym(library, name.as_ptr()) };
    // SAFETY: the library is CUPTI and is never unloaded.
    let (activities, subscription) =
        unsafe { (Activities::find(address).ok()?, Subscription::find(address).ok()?) };
    let mut version = 0;
    // SAFETY: it writes one number.
    unsafe { (activities.version)(&mut version) };
    Some(Cupti { version, activities, subscription })
}
