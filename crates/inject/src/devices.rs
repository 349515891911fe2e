//! The GPUs of the program, by its own device indexes: their UUIDs, and whether the program has contexts on them.

use std::ffi::{CStr, c_int, c_uint, c_void};

use crate::c;

/// More than a machine has.
const MAX_DEVICES: c_int = 64;

type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Uuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type State = unsafe extern "C" fn(c_int, *mut c_uint, *mut c_int) -> c_int;

/// The driver's library, if the program has loaded it.
struct Driver {
    handle: *mut c_void,
}

impl Driver {
    fn loaded() -> Option<Driver> {
        // SAFETY: the driver is loaded already, or not at all.
        let handle = unsafe { c::dlopen(c"libcuda.so.1".as_ptr(), c::RTLD_NOW | c::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Driver { handle })
    }

    /// # Safety
    /// `F` is the type of the function `name`.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: a loaded library, and a C string. The caller has given the type.
        unsafe {
            let address = c::dlsym(self.handle, name.as_ptr());
            (!address.is_null()).then(|| std::mem::transmute_copy(&address))
        }
    }

    /// The devices; `None` before the driver is initialised.
    fn devices(&self) -> Option<Vec<c_int>> {
        // SAFETY: the driver's functions have these types.
        let (count, get) =
            unsafe { (self.function::<Count>(c"cuDeviceGetCount")?, self.function::<Get>(c"cuDeviceGet")?) };
        let mut devices: c_int = 0;
        // SAFETY: it writes a number. Before the driver is initialised it returns an error.
        if unsafe { count(&mut devices) } != 0 {
            return None;
        }
        let device = |number: c_int| {
            let mut device = 0;
            // SAFETY: it writes a number.
            (unsafe { get(&mut device, number) } == 0).then_some(device)
        };
        (0..devices.min(MAX_DEVICES)).map(device).collect()
    }
}

/// The UUIDs of the GPUs that the program sees, by its own device indexes; `None` while the driver is not ready.
pub fn uuids() -> Option<Vec<[u8; 16]>> {
    let driver = Driver::loaded()?;
    // Version 2 distinguishes slices of one GPU (MIG).
    // SAFETY: the driver's functions have this type.
    let uuid: Uuid =
        unsafe { driver.function(c"cuDeviceGetUuid_v2").or_else(|| driver.function(c"cuDeviceGetUuid"))? };
    let of = |device: c_int| {
        let mut bytes = [0; 16];
        // SAFETY: it writes 16 bytes.
        (unsafe { uuid(&mut bytes, device) } == 0).then_some(bytes)
    };
    driver.devices()?.into_iter().map(of).collect()
}

/// The program's CUDA contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contexts {
    /// The driver's library is not loaded.
    NoDriver,
    /// The driver is loaded and not initialised.
    NotInitialised,
    /// A bit for each device whose primary context is active.
    Active(u64),
}

pub fn contexts() -> Contexts {
    let Some(driver) = Driver::loaded() else { return Contexts::NoDriver };
    let Some(devices) = driver.devices() else { return Contexts::NotInitialised };
    // SAFETY: the driver's function has this type.
    let Some(state) = (unsafe { driver.function::<State>(c"cuDevicePrimaryCtxGetState") }) else {
        return Contexts::Active(0);
    };
    let is_active = |device: c_int| {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: it writes two numbers.
        unsafe { state(device, &mut flags, &mut active) == 0 && active != 0 }
    };
    let bits = (0..).zip(devices).filter(|(_, device)| is_active(*device));
    Contexts::Active(bits.fold(0, |bits, (number, _)| bits | 1 << number))
}
