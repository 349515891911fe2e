//! Extended payloads of NVTX: structures whose layout a program registers. NCCL attaches them to the ranges of its calls.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::wire::Payload;

/// The type of a payload in attributes: the address of [`Data`].
pub const EXTENDED: i32 = 0xDFBD_0009_u32 as i32;
/// The module of NVTX with payloads, and the number of the function that registers layouts.
const MODULE: u16 = 2;
const REGISTER: usize = 0;
const HAS_ID: u64 = 1 << 8;
/// Limits on the layouts of a program and the fields of a layout.
const MAX_LAYOUTS: usize = 256;
const MAX_FIELDS: usize = 64;
const MAX_BYTES: usize = 4096;

/// `nvtxPayloadData_t`.
#[repr(C)]
pub struct Data {
    layout: u64,
    bytes: usize,
    content: *const u8,
}

/// The fields of `nvtxExtModuleInfo_t` that are read.
#[repr(C)]
pub struct ModuleInfo {
    _version: u16,
    _bytes: u16,
    module: u16,
    _compatible: u16,
    segment_count: usize,
    segments: *const Segment,
}

#[repr(C)]
struct Segment {
    _id: usize,
    slot_count: usize,
    slots: *mut isize,
}

/// `nvtxPayloadSchemaAttr_t`.
#[repr(C)]
struct LayoutAttributes {
    mask: u64,
    _name: *const c_char,
    _type: u64,
    _flags: u64,
    entries: *const Entry,
    entry_count: usize,
    _static_bytes: usize,
    _alignment: usize,
    id: u64,
}

/// `nvtxPayloadSchemaEntry_t`.
#[repr(C)]
struct Entry {
    flags: u64,
    kind: u64,
    name: *const c_char,
    _description: *const c_char,
    _detail: u64,
    offset: u64,
    _semantics: *const c_void,
    _reserved: *const c_void,
}

/// A field of a layout that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Communicator,
    Message,
    Ranks,
    Rank,
}

impl Field {
    /// Recognises a field by NCCL's name; the surrounding words differ between versions.
    fn named(name: &[u8]) -> Option<Field> {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        match name.as_str() {
            name if name.starts_with("parent") => None,
            name if name.contains("communicator id") => Some(Field::Communicator),
            name if name.contains("message size") => Some(Field::Message),
            "no. of ranks" | "number of ranks" | "nranks" => Some(Field::Ranks),
            "rank" => Some(Field::Rank),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Layout {
    domain: usize,
    id: u64,
    /// Each with offset and size.
    fields: Vec<(Field, usize, usize)>,
}

static LAYOUTS: Mutex<Vec<Layout>> = Mutex::new(Vec::new());
/// NVTX reserves ids from here on for tools.
static NEXT_ID: AtomicU64 = AtomicU64::new(1 << 32);

/// The size of a field's type; `None` for those that are not numbers.
fn bytes_of(kind: u64) -> Option<usize> {
    Some(match kind {
        5 | 6 | 15 | 16 => 4,
        7..=10 | 17 | 18 | 22 | 23 => 8,
        _ => return None,
    })
}

/// Installs the tool's function. NVTX calls this once for each copy of the extension.
///
/// # Safety
/// `info` is NVTX's.
pub unsafe fn install(info: *const ModuleInfo) {
    // SAFETY: as above; slots are indexed by function.
    unsafe {
        let Some(info) = info.as_ref().filter(|info| info.module == MODULE && info.segment_count > 0) else {
            return;
        };
        let Some(segment) = info.segments.as_ref().filter(|segment| segment.slot_count > REGISTER) else {
            return;
        };
        if !segment.slots.is_null() {
            *segment.slots.add(REGISTER) = register as *const () as isize;
        }
    }
}

extern "C" fn register(domain: *const c_void, attributes: *const c_void) -> u64 {
    // SAFETY: the caller of NVTX passes a layout, which stays valid during the call.
    let found = std::panic::catch_unwind(|| unsafe { keep(domain as usize, attributes.cast()) });
    found.unwrap_or_default()
}

unsafe fn keep(domain: usize, attributes: *const LayoutAttributes) -> u64 {
    // SAFETY: as in `register`.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else { return 0 };
    let id = match attributes.mask & HAS_ID {
        0 => NEXT_ID.fetch_add(1, Ordering::Relaxed),
        _ => attributes.id,
    };
    let mut fields = Vec::new();
    for i in 0..attributes.entry_count.min(MAX_FIELDS) {
        if attributes.entries.is_null() {
            break;
        }
        // SAFETY: within the list of entries, whose names are strings or null.
        let (entry, name) = unsafe {
            let entry = &*attributes.entries.add(i);
            (entry, (!entry.name.is_null()).then(|| CStr::from_ptr(entry.name).to_bytes()))
        };
        // Only the first field may leave its offset to the tool.
        let has_place = i == 0 || entry.offset > 0;
        let is_plain = entry.flags & 0xff == 0 && has_place && entry.offset < MAX_BYTES as u64;
        if let (Some(field), Some(bytes), true) =
            (name.and_then(Field::named), bytes_of(entry.kind), is_plain)
        {
            fields.push((field, entry.offset as usize, bytes));
        }
    }
    let mut layouts = LAYOUTS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = layouts.iter().any(|layout| layout.domain == domain && layout.id == id);
    if !known && !fields.is_empty() && layouts.len() < MAX_LAYOUTS {
        layouts.push(Layout { domain, id, fields });
    }
    id
}

/// The fields of a payload; `None` if no field is known.
///
/// # Safety
/// `data` describes a content of the stated size.
pub unsafe fn read(domain: usize, data: *const Data) -> Option<Payload> {
    // SAFETY: as above.
    let data = unsafe { data.as_ref() }.filter(|data| !data.content.is_null())?;
    // Threads of the program must not wait.
    let layouts = LAYOUTS.try_lock().ok()?;
    let layout = layouts.iter().find(|layout| layout.domain == domain && layout.id == data.layout)?;
    let mut payload = Payload::default();
    for (field, offset, bytes) in &layout.fields {
        // A size with all bits set leaves the size to the tool.
        if data.bytes < offset + bytes || data.bytes > MAX_BYTES {
            continue;
        }
        // SAFETY: within the content.
        let value = unsafe {
            let at = data.content.add(*offset);
            match bytes {
                4 => u64::from(ptr::read_unaligned(at.cast::<u32>())),
                _ => ptr::read_unaligned(at.cast::<u64>()),
            }
        };
        match field {
            Field::Communicator => payload.communicator = Some(value),
            Field::Message => payload.message_bytes = Some(value),
            Field::Ranks => payload.ranks = u32::try_from(value).ok(),
            Field::Rank => payload.rank = u32::try_from(value).ok(),
        }
    }
    (payload != Payload::default()).then_some(payload)
}
