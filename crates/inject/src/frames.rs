//! The Python frames of a thread that launches work, read by the thread itself in a callback of CUPTI.
//!
//! The thread may have given the GIL up: its own frames stay as they are while it is in native code, and nothing but
//! numbers is read of them.

use std::{
    ffi::{CStr, c_int, c_void},
    panic, ptr,
    sync::{Mutex, PoisonError},
};

use crate::{
    RANGES, c,
    wire::{FrameAt, FrameLayout, MAX_FRAMES, Record},
};

/// Frames of C code between those of Python count too.
const MAX_LINKS: usize = 256;
/// An owner of frames that have no code object: the entry of C code.
const NATIVE: u8 = 3;

/// CUPTI's domain of the driver's interface, which the runtime calls, too.
pub const DRIVER: u32 = 1;
/// The driver's calls that launch kernels and graphs: `cuLaunchKernel`, `cuLaunchCooperativeKernel`, `cuGraphLaunch` and
/// `cuLaunchKernelEx`, each also for streams of one thread.
pub const LAUNCHES: [u32; 8] = [307, 442, 477, 478, 514, 515, 652, 653];

/// The beginning of `CUpti_CallbackData`.
#[repr(C)]
struct Call {
    site: c_int,
    function_name: *const c_void,
    parameters: *const c_void,
    result: *const c_void,
    symbol: *const c_void,
    context: *const c_void,
    context_number: u32,
    data: *const c_void,
    correlation: u32,
}
const ENTER: c_int = 0;

type State = unsafe extern "C" fn() -> *const u8;
type IsFinalizing = unsafe extern "C" fn() -> c_int;

/// Reads the frames of the calling thread.
pub struct Frames {
    layout: FrameLayout,
    state: State,
    is_finalizing: IsFinalizing,
}

/// Callbacks may still run after their subscription has ended: what they read is never freed, and there is one for each
/// layout.
static ALL: Mutex<Vec<&'static Frames>> = Mutex::new(Vec::new());

impl Frames {
    /// `None` in a program that is not Python.
    pub fn for_layout(layout: FrameLayout) -> Option<&'static Frames> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|known| known.layout == layout) {
            return Some(known);
        }
        let find = |name: &CStr| {
            // SAFETY: a C string; a null handle means all libraries that were loaded with the program.
            let address = unsafe { c::dlsym(ptr::null_mut(), name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        let state = find(c"PyGILState_GetThisThreadState")?;
        // Private before CPython 3.13.
        let is_finalizing = find(c"Py_IsFinalizing").or_else(|| find(c"_Py_IsFinalizing"))?;
        // SAFETY: the interpreter's functions have these types, and may be called without the GIL.
        let (state, is_finalizing) = unsafe {
            (
                std::mem::transmute::<*mut c_void, State>(state),
                std::mem::transmute::<*mut c_void, IsFinalizing>(is_finalizing),
            )
        };
        let new: &'static Frames = Box::leak(Box::new(Frames { layout, state, is_finalizing }));
        all.push(new);
        Some(new)
    }

    /// The frames of this thread, innermost first: how many there are.
    ///
    /// # Safety
    /// The layout is that of the interpreter in this process.
    unsafe fn read(&self, into: &mut [u64; MAX_FRAMES]) -> usize {
        let at = &self.layout;
        // SAFETY: fields of the structures that the interpreter keeps for this thread, which does not run Python now. While it
        // ends, it frees those of other threads.
        unsafe {
            if (self.is_finalizing)() != 0 {
                return 0;
            }
            let state = (self.state)();
            if state.is_null() {
                return 0;
            }
            let mut frame = pointer(state, at.frame);
            if let Some(offset) = at.cframe.filter(|_| !frame.is_null()) {
                frame = pointer(frame, offset);
            }
            let mut count = 0;
            for _ in 0..MAX_LINKS {
                if frame.is_null() || count == MAX_FRAMES {
                    break;
                }
                let owner = at.owner.map_or(0, |offset| frame.add(offset.into()).read());
                // The low bits of the pointer may be a tag.
                let code = pointer(frame, at.code).map_addr(|address| address & !3);
                if owner < NATIVE && !code.is_null() && pointer(code, 8) as u64 == at.code_type {
                    into[count] = FrameAt { code: code as u64, unit: self.unit(frame, code) }.word();
                    count += 1;
                }
                frame = pointer(frame, at.back);
            }
            count
        }
    }

    /// # Safety
    /// A frame, and its code object.
    unsafe fn unit(&self, frame: *const u8, code: *const u8) -> i16 {
        // SAFETY: a field of the frame.
        unsafe {
            match self.layout.scale {
                0 => {
                    ((pointer(frame, self.layout.instruction) as isize).wrapping_sub(code as isize) >> 1)
                        as i16
                }
                scale => {
                    let index = frame.add(self.layout.instruction.into()).cast::<i32>().read_unaligned();
                    (index.wrapping_mul(scale.into()) >> 1) as i16
                }
            }
        }
    }
}

/// # Safety
/// There is a pointer at `offset`.
unsafe fn pointer(base: *const u8, offset: u16) -> *const u8 {
    // SAFETY: the caller's.
    unsafe { base.add(offset.into()).cast::<*const u8>().read_unaligned() }
}

/// CUPTI calls it in the thread that launches; `frames` is a [`Frames`].
pub extern "C" fn on_launch(frames: *mut c_void, _domain: u32, _call: u32, data: *const c_void) {
    let _ = panic::catch_unwind(|| {
        // SAFETY: CUPTI passes the data of a call, and what was given with the subscription.
        let (call, frames) = unsafe { (&*data.cast::<Call>(), &*frames.cast::<Frames>()) };
        if call.site != ENTER {
            return;
        }
        let mut stack = [0; MAX_FRAMES];
        // SAFETY: the profiler has read frames of this process with this layout.
        let count = unsafe { frames.read(&mut stack) };
        if count == 0 {
            return;
        }
        RANGES.try_with(|writer| {
            let stack = writer.stack(&stack[..count]);
            if stack > 0 {
                writer.write(Record::Launch { correlation: call.correlation, stack });
            }
        });
    });
}
