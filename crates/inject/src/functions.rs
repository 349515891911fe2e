//! The functions of CUPTI that are called here, with the types of its header.

#![allow(unsafe_code)] // a C library that is loaded at run time

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem,
};

pub type Status = c_int;
pub type OnRequest = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
pub type OnComplete = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
pub type OnCall = extern "C" fn(*mut c_void, u32, u32, *const c_void);

/// Another tool uses CUPTI, which accepts one.
pub const ERROR_IN_USE: Status = 39;
pub const ERROR_NO_PERMISSION: Status = 35;

macro_rules! functions {
    ($(#[$about:meta])* $table:ident { $($field:ident: $symbol:literal, ($($argument:ty),*);)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub struct $table {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl $table {
            /// The functions at the addresses of their names, or the first name without one.
            ///
            /// # Safety
            /// An address is null, or that of CUPTI's function with this name, which stays loaded.
            pub unsafe fn find(address: impl Fn(&CStr) -> *mut c_void) -> Result<$table, &'static str> {
                $(
                    let $field = address($symbol);
                    if $field.is_null() {
                        return Err($symbol.to_str().unwrap_or_default());
                    }
                )*
                // SAFETY: the type is that of the function in CUPTI's header.
                Ok($table { $($field: unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Status>($field) },)* })
            }
        }
    };
}

functions! {
    /// For records of activity.
    Activities {
        version: c"cuptiGetVersion", (*mut u32);
        enable: c"cuptiActivityEnable", (u32);
        disable: c"cuptiActivityDisable", (u32);
        register: c"cuptiActivityRegisterCallbacks", (OnRequest, OnComplete);
        flush_all: c"cuptiActivityFlushAll", (u32);
        next_record: c"cuptiActivityGetNextRecord", (*mut u8, usize, *mut *mut u8);
        dropped: c"cuptiActivityGetNumDroppedRecords", (*mut c_void, u32, *mut usize);
        timestamp: c"cuptiGetTimestamp", (*mut u64);
    }
}

functions! {
    /// For a profiler in the process that it profiles.
    External {
        finalize: c"cuptiFinalize", ();
        push: c"cuptiActivityPushExternalCorrelationId", (u32, u64);
        pop: c"cuptiActivityPopExternalCorrelationId", (u32, *mut u64);
        result_string: c"cuptiGetResultString", (Status, *mut *const c_char);
    }
}

functions! {
    /// For the question whether another tool uses CUPTI, and for calls of the driver.
    Subscription {
        subscribe: c"cuptiSubscribe", (*mut *mut c_void, OnCall, *mut c_void);
        unsubscribe: c"cuptiUnsubscribe", (*mut c_void);
        enable_callback: c"cuptiEnableCallback", (u32, *mut c_void, u32, u32);
    }
}
