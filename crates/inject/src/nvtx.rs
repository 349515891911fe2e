//! NVTX ranges of the program: the tool's side of NVTX 3's protocol.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use crate::{
    RANGES, c, is_recording, payload,
    ring::Writer,
    wire::{EdgeKind, Payload, RangeEdge, Record},
};

/// The return value of NVTX without a tool.
const NO_TRACKING: c_int = -2;
const CORE: c_int = 1;
const CORE2: c_int = 5;

#[repr(C)]
struct Callbacks {
    bytes: usize,
    module_table: unsafe extern "C" fn(c_int, *mut *mut *mut *mut c_void, *mut c_uint) -> c_int,
}

/// The fields of `nvtxEventAttributes_t` that are read.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    _category: u32,
    _color: [u32; 2],
    payload_type: i32,
    /// The number of extended payloads.
    payloads: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

const MESSAGE_TEXT: i32 = 1;
const MESSAGE_REGISTERED: i32 = 3;

/// Registered texts and domains: their addresses are the handles. They live as long as the program, and their number is
/// limited.
struct Registered {
    text: Box<[u8]>,
}

static REGISTERED: AtomicU32 = AtomicU32::new(0);
static RANGE_IDS: AtomicU64 = AtomicU64::new(1);
const MAX_REGISTERED: u32 = 1 << 16;

/// Installs the tool's functions. NVTX calls this once for every copy of its header.
///
/// # Safety
/// `export_table` is NVTX's.
pub unsafe fn install(export_table: unsafe extern "C" fn(u32) -> *const c_void) -> Option<()> {
    // SAFETY: table 1 is that of the callbacks.
    let callbacks = unsafe { export_table(1).cast::<Callbacks>().as_ref() }?;
    if callbacks.bytes < size_of::<Callbacks>() {
        return None;
    }
    let fill = |module: c_int, functions: &[(usize, *mut c_void)]| {
        let (mut table, mut size) = (std::ptr::null_mut::<*mut *mut c_void>(), 0);
        // SAFETY: it writes a table's address and its size.
        if unsafe { (callbacks.module_table)(module, &mut table, &mut size) } == 0 || table.is_null() {
            return;
        }
        for (number, function) in functions.iter().filter(|(number, _)| *number < size as usize) {
            // SAFETY: within the table; each entry is the address of a function pointer, or null.
            unsafe {
                let slot = *table.add(*number);
                if !slot.is_null() {
                    *slot = *function;
                }
            }
        }
    };
    fill(
        CORE,
        &[
            (2, mark as *mut c_void),
            (4, start_attributes as *mut c_void),
            (5, start as *mut c_void),
            (7, end as *mut c_void),
            (8, push_attributes as *mut c_void),
            (9, push as *mut c_void),
            (11, pop as *mut c_void),
        ],
    );
    fill(
        CORE2,
        &[
            (2, domain_start as *mut c_void),
            (3, domain_end as *mut c_void),
            (4, domain_push as *mut c_void),
            (5, domain_pop as *mut c_void),
            (10, register as *mut c_void),
            (12, create_domain as *mut c_void),
        ],
    );
    Some(())
}

fn edge(domain: *const Registered, make: impl FnOnce(&mut Writer<'_>) -> Option<EdgeKind>) {
    if !is_recording() {
        return;
    }
    let at_ns = c::clock_ns(1);
    let thread = c::thread_id();
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        RANGES.try_with(|writer| {
            // SAFETY: null, or a handle of this library.
            let domain = unsafe { domain.as_ref() }.map_or(0, |domain| writer.number(&domain.text));
            if let Some(kind) = make(writer) {
                writer.write(Record::Range(RangeEdge { at_ns, thread, domain, kind }));
            }
        });
    }));
}

/// The extended payload of attributes, if its layout was registered.
fn payload_of(domain: *const Registered, attributes: *const Attributes) -> Option<Payload> {
    // SAFETY: the caller of NVTX passes attributes of the stated size, or null.
    let attributes =
        unsafe { attributes.as_ref() }.filter(|given| usize::from(given.size) >= size_of::<Attributes>())?;
    if attributes.payload_type != payload::EXTENDED || attributes.payloads < 1 {
        return None;
    }
    // SAFETY: with this type it is the address of at least one description.
    unsafe { payload::read(domain as usize, attributes.payload as *const payload::Data) }
}

fn text_number(writer: &mut Writer<'_>, text: *const c_char) -> Option<u32> {
    // SAFETY: the caller of NVTX passes a string or null.
    (!text.is_null()).then(|| writer.number(unsafe { CStr::from_ptr(text) }.to_bytes()))
}

fn message_number(writer: &mut Writer<'_>, attributes: *const Attributes) -> Option<u32> {
    // SAFETY: the caller of NVTX passes attributes of the stated size, or null.
    let attributes =
        unsafe { attributes.as_ref() }.filter(|given| usize::from(given.size) >= size_of::<Attributes>())?;
    match attributes.message_type {
        MESSAGE_TEXT => text_number(writer, attributes.message.cast()),
        MESSAGE_REGISTERED => {
            // SAFETY: a handle of this library, or null.
            let known = unsafe { attributes.message.cast::<Registered>().as_ref() }?;
            Some(writer.number(&known.text))
        }
        _ => None,
    }
}

fn keep(text: *const c_char) -> *const Registered {
    if text.is_null() || REGISTERED.fetch_add(1, Ordering::Relaxed) >= MAX_REGISTERED {
        return std::ptr::null();
    }
    // SAFETY: the caller of NVTX passes a string.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    let text = text[..text.len().min(crate::wire::MAX_TEXT)].into();
    Box::into_raw(Box::new(Registered { text }))
}

extern "C" fn mark(text: *const c_char) {
    edge(std::ptr::null(), |writer| Some(EdgeKind::Mark { name: text_number(writer, text)? }));
}

extern "C" fn push(text: *const c_char) -> c_int {
    edge(std::ptr::null(), |writer| Some(EdgeKind::Push { name: text_number(writer, text).unwrap_or(0) }));
    NO_TRACKING
}

extern "C" fn push_attributes(attributes: *const Attributes) -> c_int {
    domain_push(std::ptr::null(), attributes)
}

extern "C" fn pop() -> c_int {
    domain_pop(std::ptr::null())
}

extern "C" fn start(text: *const c_char) -> u64 {
    let id = RANGE_IDS.fetch_add(1, Ordering::Relaxed);
    edge(std::ptr::null(), |writer| {
        Some(EdgeKind::Start { name: text_number(writer, text).unwrap_or(0), id })
    });
    id
}

extern "C" fn start_attributes(attributes: *const Attributes) -> u64 {
    domain_start(std::ptr::null(), attributes)
}

extern "C" fn end(id: u64) {
    domain_end(std::ptr::null(), id);
}

extern "C" fn domain_start(domain: *const Registered, attributes: *const Attributes) -> u64 {
    let id = RANGE_IDS.fetch_add(1, Ordering::Relaxed);
    edge(domain, |writer| {
        Some(EdgeKind::Start { name: message_number(writer, attributes).unwrap_or(0), id })
    });
    id
}

extern "C" fn domain_end(domain: *const Registered, id: u64) {
    edge(domain, |_| Some(EdgeKind::End { id }));
}

extern "C" fn domain_push(domain: *const Registered, attributes: *const Attributes) -> c_int {
    edge(domain, |writer| Some(EdgeKind::Push { name: message_number(writer, attributes).unwrap_or(0) }));
    if is_recording() {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let Some(payload) = payload_of(domain, attributes) else { return };
            let thread = c::thread_id();
            RANGES.try_with(|writer| writer.write(Record::Payload { thread, payload }));
        }));
    }
    NO_TRACKING
}

extern "C" fn domain_pop(domain: *const Registered) -> c_int {
    edge(domain, |_| Some(EdgeKind::Pop));
    NO_TRACKING
}

extern "C" fn register(_domain: *const Registered, text: *const c_char) -> *const Registered {
    keep(text)
}

extern "C" fn create_domain(text: *const c_char) -> *const Registered {
    keep(text)
}
