//! The GPUs of the program: UUIDs for its own device indexes.

use std::ffi::{CStr, c_int, c_void};

use crate::c;

/// More than a machine has.
const MAX_DEVICES: c_int = 64;

/// The UUIDs of the GPUs that the program sees, by its own device indexes; `None` while the driver is not ready.
pub fn uuids() -> Option<Vec<[u8; 16]>> {
    // SAFETY: the driver is loaded already, or not at all.
    let driver = unsafe { c::dlopen(c"libcuda.so.1".as_ptr(), c::RTLD_NOW | c::RTLD_NOLOAD) };
    if driver.is_null() {
        return None;
    }
    let symbol = |name: &CStr| {
        // SAFETY: a loaded library, and a C string.
        let address = unsafe { c::dlsym(driver, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type Uuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
    let [count, get] = [c"cuDeviceGetCount", c"cuDeviceGet"].map(symbol);
    // Version 2 distinguishes slices of one GPU (MIG).
    let uuid = [c"cuDeviceGetUuid_v2", c"cuDeviceGetUuid"].into_iter().find_map(symbol);
    let (count, get, uuid) = (count?, get?, uuid?);
    // SAFETY: the driver's functions have these types.
    let (count, get, uuid) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Count>(count),
            std::mem::transmute::<*mut c_void, Get>(get),
            std::mem::transmute::<*mut c_void, Uuid>(uuid),
        )
    };
    let mut devices: c_int = 0;
    // SAFETY: it writes a number. Before the driver is initialised it returns an error.
    if unsafe { count(&mut devices) } != 0 {
        return None;
    }
    let of = |number: c_int| {
        let (mut device, mut bytes) = (0, [0; 16]);
        // SAFETY: they write a number and 16 bytes.
        let known = unsafe { get(&mut device, number) == 0 && uuid(&mut bytes, device) == 0 };
        known.then_some(bytes)
    };
    (0..devices.min(MAX_DEVICES)).map(of).collect()
}
