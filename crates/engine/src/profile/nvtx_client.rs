//! A client of NVTX: passes ranges to the tool named in the environment. Without a tool, a range costs a load and a
//! branch.
//!
//! The protocol is that of NVTX 3's headers. `NVTX_INJECTION64_PATH` is the tool's library. Its
//! `InitializeInjectionNvtx2` gets a function that returns tables; the tool writes the addresses of its own functions
//! to them, which are called from then on.

#![allow(unsafe_code)] // a tool's C functions, loaded at run time

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    mem,
    ptr::{self, null_mut},
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use libloading::Library;

const VARIABLE: &str = "NVTX_INJECTION64_PATH";
const VERSION: u16 = 3;
const MESSAGE_REGISTERED: i32 = 3;
/// The module with domains, and the numbers of the functions used.
const CORE2: usize = 5;
const RANGE_PUSH: usize = 4;
const RANGE_POP: usize = 5;
const REGISTER_STRING: usize = 10;
const CREATE_DOMAIN: usize = 12;
/// Functions of each module, with the invalid function 0. Tools ask for all modules.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MAX_SIZE: usize = 16;

/// A function's address, null until a tool writes it.
type Slot = AtomicPtr<c_void>;

struct Modules {
    slots: [[Slot; MAX_SIZE]; SIZES.len()],
    /// For each function the address of its slot, as tools read them; null for function 0.
    tables: [[AtomicPtr<Slot>; MAX_SIZE]; SIZES.len()],
}

static MODULES: Modules = Modules {
    slots: [const { [const { AtomicPtr::new(null_mut()) }; MAX_SIZE] }; SIZES.len()],
    tables: [const { [const { AtomicPtr::new(null_mut()) }; MAX_SIZE] }; SIZES.len()],
};

#[repr(C)]
struct Callbacks {
    bytes: usize,
    module_table: extern "C" fn(c_int, *mut *mut c_void, *mut c_uint) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), module_table };
static VERSION_INFO: VersionInfo =
    VersionInfo { bytes: size_of::<VersionInfo>(), version: VERSION as u32, reserved: 0, set_version };

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => ptr::from_ref(&CALLBACKS).cast(),
        3 => ptr::from_ref(&VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

extern "C" fn module_table(module: c_int, table: *mut *mut c_void, size: *mut c_uint) -> c_int {
    let Some(module) = usize::try_from(module).ok().filter(|module| (1..SIZES.len()).contains(module)) else {
        return 0;
    };
    for i in 1..SIZES[module] {
        let slot = ptr::from_ref(&MODULES.slots[module][i]).cast_mut();
        MODULES.tables[module][i].store(slot, Ordering::Release);
    }
    // SAFETY: the tool passes the addresses of a pointer and of a number, or null.
    unsafe {
        if !table.is_null() {
            *table = ptr::from_ref(&MODULES.tables[module]).cast_mut().cast();
        }
        if !size.is_null() {
            *size = SIZES[module] as c_uint;
        }
    }
    1
}

extern "C" fn set_version(_: u32) {}

/// `nvtxEventAttributes_t`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *mut c_void,
}

/// Loads the tool named in the environment, once. Returns whether there is one.
fn attached() -> bool {
    static ATTACHED: OnceLock<bool> = OnceLock::new();
    *ATTACHED.get_or_init(|| {
        let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return false };
        attach(&path).unwrap_or_else(|error| {
            tracing::warn!("{VARIABLE}: {error}; there are no NVTX ranges");
            false
        })
    })
}

fn attach(path: &std::ffi::OsStr) -> Result<bool, libloading::Error> {
    type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
    // SAFETY: the user asks for this library; its entry point has the type of NVTX's headers.
    unsafe {
        let library = Library::new(path)?;
        let initialize: Initialize = *library.get(b"InitializeInjectionNvtx2\0")?;
        let accepted = initialize(export_table) != 0;
        // The tool's functions are called until the program ends.
        mem::forget(library);
        Ok(accepted)
    }
}

/// A function of the tool; `None` if the tool does not have it.
fn function(number: usize) -> Option<*mut c_void> {
    let address = MODULES.slots[CORE2][number].load(Ordering::Acquire);
    (!address.is_null()).then_some(address)
}

/// A domain of ranges. Lives as long as the program.
#[derive(Clone, Copy)]
pub struct Domain(*mut c_void);

/// A name registered with the tool.
#[derive(Clone, Copy)]
pub struct Name(*mut c_void);

// SAFETY: handles of the tool, which any thread may use.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// `None` without a tool.
    pub fn new(name: &CStr) -> Option<Domain> {
        if !attached() {
            return None;
        }
        type Create = unsafe extern "C" fn(*const c_char) -> *mut c_void;
        // SAFETY: the tool's function for this number has the type of NVTX's headers; it copies the name.
        let handle =
            unsafe { mem::transmute::<*mut c_void, Create>(function(CREATE_DOMAIN)?)(name.as_ptr()) };
        Some(Domain(handle))
    }

    pub fn name(self, name: &CStr) -> Name {
        type Register = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
        let Some(function) = function(REGISTER_STRING) else { return Name(null_mut()) };
        // SAFETY: as in `new`, with a handle of this tool.
        Name(unsafe { mem::transmute::<*mut c_void, Register>(function)(self.0, name.as_ptr()) })
    }

    /// A range of this thread until it is dropped. Ranges of a thread end in the opposite order.
    pub fn range(self, name: Name) -> Range {
        type Push = unsafe extern "C" fn(*mut c_void, *const Attributes) -> c_int;
        if let Some(function) = function(RANGE_PUSH) {
            let attributes = Attributes {
                version: VERSION,
                size: size_of::<Attributes>() as u16,
                category: 0,
                color_type: 0,
                color: 0,
                payload_type: 0,
                reserved: 0,
                payload: 0,
                message_type: MESSAGE_REGISTERED,
                message: name.0,
            };
            // SAFETY: as in `new`; the tool copies the attributes.
            unsafe { mem::transmute::<*mut c_void, Push>(function)(self.0, &attributes) };
        }
        Range(self)
    }
}

/// An open range.
pub struct Range(Domain);

impl Drop for Range {
    fn drop(&mut self) {
        type Pop = unsafe extern "C" fn(*mut c_void) -> c_int;
        if let Some(function) = function(RANGE_POP) {
            // SAFETY: as in `Domain::new`; the range was opened by this thread, as a thread-local owns it.
            unsafe { mem::transmute::<*mut c_void, Pop>(function)(self.0.0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_layout_of_the_headers() {
        assert_eq!((size_of::<Attributes>(), mem::offset_of!(Attributes, message)), (48, 40));
        assert_eq!(size_of::<VersionInfo>(), 24);
        let (mut table, mut size) = (null_mut(), 0);
        assert_eq!(module_table(CORE2 as c_int, &mut table, &mut size), 1);
        assert_eq!(size, 16);
        // SAFETY: the table of a module with 16 functions.
        let slots = unsafe { std::slice::from_raw_parts(table.cast::<*mut Slot>(), 16) };
        assert!(slots[0].is_null() && slots[1..].iter().all(|slot| !slot.is_null()));
        assert_eq!(module_table(7, &mut table, &mut size), 0);
        assert_eq!(module_table(-1, null_mut(), null_mut()), 0);
        assert!(export_table(2).is_null() && !export_table(1).is_null() && !export_table(3).is_null());
    }
}
