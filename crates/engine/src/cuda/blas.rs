//! cuBLAS, loaded at run time if it is found.

// Reason: cuBLAS is a C library that works on raw device pointers.
#![allow(unsafe_code)]

use std::{ffi::c_void, path::Path, ptr, sync::OnceLock};

use libloading::Library;

use super::{
    buffer::{Buffer, Product},
    error::CudaError,
};
use crate::launch::Launch;
use llmprof_base::tools::{System, libraries::CUBLAS};
use llmprof_config::Dtype;

type Status = i32;
type Handle = *mut c_void;
type GemmEx = unsafe extern "C" fn(
    Handle,
    i32,
    i32,
    i32,
    i32,
    i32,
    *const c_void,
    *const c_void,
    i32,
    i32,
    *const c_void,
    i32,
    i32,
    *const c_void,
    *mut c_void,
    i32,
    i32,
    i32,
    i32,
) -> Status;

// Values of cuBLAS's and CUDA's headers, the same in versions 12 and 13.
const OP_N: i32 = 0;
const OP_T: i32 = 1;
const COMPUTE_32F: i32 = 68;
const GEMM_DEFAULT: i32 = -1;
const ALLOC_FAILED: Status = 3;

/// The library's functions.
pub struct Cublas {
    create: unsafe extern "C" fn(*mut Handle) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    set_stream: unsafe extern "C" fn(Handle, *mut c_void) -> Status,
    set_workspace: unsafe extern "C" fn(Handle, *mut c_void, usize) -> Status,
    gemm_ex: GemmEx,
    _library: Library,
}

impl Cublas {
    /// The library; found and loaded once. `None` if there is none.
    pub fn get() -> Option<&'static Cublas> {
        static LOADED: OnceLock<Option<Cublas>> = OnceLock::new();
        LOADED
            .get_or_init(|| CUBLAS.candidates(&System::here()).iter().find_map(|path| Cublas::load(path)))
            .as_ref()
    }

    fn load(path: &Path) -> Option<Cublas> {
        // The file found by a search outside the loader's path. It stays loaded.
        if let Some(directory) = path.parent().filter(|directory| directory.is_absolute()) {
            let lt = path.file_name()?.to_str()?.replacen("libcublas", "libcublasLt", 1);
            // SAFETY: cuBLAS's own library, whose initialisers only register it.
            if let Ok(library) = unsafe { Library::new(directory.join(lt)) } {
                std::mem::forget(library);
            }
        }
        // SAFETY: as above.
        let library = unsafe { Library::new(path) }.ok()?;
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the type is that of the function in cuBLAS's header.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.ok()?
            }};
        }
        Some(Cublas {
            create: function!("cublasCreate_v2"),
            destroy: function!("cublasDestroy_v2"),
            set_stream: function!("cublasSetStream_v2"),
            set_workspace: function!("cublasSetWorkspace_v2"),
            gemm_ex: function!("cublasGemmEx"),
            _library: library,
        })
    }
}

/// cuBLAS on one stream.
pub struct Blas {
    library: &'static Cublas,
    handle: Handle,
    _workspace: Buffer,
}

impl Blas {
    /// # Safety
    /// `stream` is a stream of the current context, and so is the memory of `workspace`. Both live as long as the result, which
    /// is used on no other stream.
    pub unsafe fn new(
        library: &'static Cublas,
        stream: *mut c_void,
        workspace: Buffer,
    ) -> Result<Blas, CudaError> {
        let mut handle = ptr::null_mut();
        // SAFETY: it writes a handle. A context is current, as the caller guarantees.
        check(unsafe { (library.create)(&mut handle) })?;
        let (address, bytes) = (workspace.address() as *mut c_void, workspace.bytes());
        let blas = Blas { library, handle, _workspace: workspace };
        // SAFETY: the handle was created above; the caller guarantees the stream and the workspace.
        unsafe {
            check((library.set_stream)(handle, stream))?;
            check((library.set_workspace)(handle, address, bytes))?;
        }
        Ok(blas)
    }

    /// A GEMM, summed in f32.
    ///
    /// # Safety
    /// The context is current, and the operands have the sizes of the GEMM.
    pub unsafe fn multiply(&self, p: &Product<'_>) -> Result<(), CudaError> {
        let launch = Launch::new("cublasGemmEx");
        let kind = |dtype| match dtype {
            Dtype::F32 => 0,
            Dtype::F16 => 2,
            Dtype::Bf16 => 14,
        };
        let (one, beta) = (1f32, if p.add { 1f32 } else { 0f32 });
        let (m, n, k) = (launch.int("m", p.m)?, launch.int("n", p.n)?, launch.int("k", p.k)?);
        // SAFETY: as the caller guarantees. cuBLAS is column-major: it computes yᵀ = w·xᵀ.
        check(unsafe {
            (self.library.gemm_ex)(
                self.handle,
                OP_T,
                OP_N,
                n,
                m,
                k,
                ptr::from_ref(&one).cast(),
                p.w.address() as *const c_void,
                kind(p.dtype),
                k,
                p.x.address() as *const c_void,
                kind(p.dtype),
                k,
                ptr::from_ref(&beta).cast(),
                p.y.address() as *mut c_void,
                kind(p.out),
                n,
                COMPUTE_32F,
                GEMM_DEFAULT,
            )
        })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle was returned by `create` and is not used again.
        unsafe { (self.library.destroy)(self.handle) };
    }
}

fn check(status: Status) -> Result<(), CudaError> {
    match status {
        0 => Ok(()),
        ALLOC_FAILED => Err(CudaError::NoRoom),
        status => Err(CudaError::Blas(status)),
    }
}
