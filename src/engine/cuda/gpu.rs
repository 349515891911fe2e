//! One GPU as the engine uses it: memory, kernels, matrix products, graphs, and a ring that the device writes and the
//! host reads. Everything that is unsafe about CUDA is in here.
//!
//! One stream does all the work in order, so that nothing needs to be waited for between two calls.

// Reason: CUDA's driver is a C library that works on raw device pointers.
#![allow(unsafe_code)]

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::{c_int, c_void},
    ptr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cudarc::{
    cublas::{CudaBlas, result as blas, sys as blas_sys},
    driver::{
        CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaModule, CudaStream, PinnedHostSlice, result, sys,
    },
    nvrtc::Ptx,
};

use super::trouble::CudaTrouble;
use crate::{
    config::Dtype,
    engine::{candle::memory::gigabytes, device},
    event::{Allocator, AllocatorSample},
    profile::listener::{Listener, Part},
};

/// The kernels, as machine code for what [`device::built_for`] says.
const IMAGES: [&[u8]; 7] = [
    include_bytes!(concat!(env!("OUT_DIR"), "/decode_attention.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/prefill_attention.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/rope.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/rows.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/sampling.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/skinny.fatbin")),
    include_bytes!(concat!(env!("OUT_DIR"), "/synthetic.fatbin")),
];

/// What cuBLAS may use beside its operands; NVIDIA's advice for Hopper.
const BLAS_WORKSPACE_BYTES: usize = 32 << 20;

pub struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    blas: CudaBlas,
    _blas_workspace: Buffer,
    modules: Vec<Arc<CudaModule>>,
    functions: RefCell<HashMap<String, CudaFunction>>,
    pub multiprocessors: u32,
    /// A kernel may start before the one before it has ended, and blocks come in clusters.
    hopper: bool,
    held: Arc<Held>,
}

/// Bytes of all buffers of a device, as they were asked for.
#[derive(Default)]
struct Held {
    live: AtomicU64,
    peak: AtomicU64,
}

impl Held {
    fn grew(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }
}

/// Device memory. What it holds is known to those who pass it to kernels.
pub struct Buffer {
    at: sys::CUdeviceptr,
    bytes: usize,
    context: Arc<CudaContext>,
    held: Arc<Held>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.held.live.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        if self.at != 0 && self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `Gpu::alloc`, freed once. Freeing waits for the device.
            let _ = unsafe { result::free_sync(self.at) };
        }
    }
}

impl Buffer {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The place `bytes` into it.
    pub fn at(&self, bytes: usize) -> Arg {
        debug_assert!(bytes < self.bytes.max(1));
        Arg(self.at + bytes as u64)
    }
}

/// A kernel's argument, in the low bytes.
#[derive(Debug, Clone, Copy)]
pub struct Arg(u64);

/// No pointer.
pub const NONE: Arg = Arg(0);

impl From<&Buffer> for Arg {
    fn from(buffer: &Buffer) -> Self {
        Arg(buffer.at)
    }
}

impl From<Option<&Buffer>> for Arg {
    fn from(buffer: Option<&Buffer>) -> Self {
        buffer.map_or(NONE, Arg::from)
    }
}

impl From<usize> for Arg {
    /// An `int`; sizes of models are far below its limit.
    fn from(value: usize) -> Self {
        debug_assert!(i32::try_from(value).is_ok());
        Arg(value as u64)
    }
}

impl From<u64> for Arg {
    fn from(value: u64) -> Self {
        Arg(value)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Arg(u64::from(value.to_bits()))
    }
}

/// Blocks, threads of each, and bytes of shared memory they ask for.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub grid: (usize, usize, usize),
    pub threads: usize,
    pub shared_bytes: usize,
    /// The kernel waits by itself for the one before it, and may be started early.
    pub waits: bool,
}

impl Shape {
    /// For kernels that wait by themselves.
    pub fn early(grid: (usize, usize, usize), threads: usize) -> Shape {
        Shape { grid, threads, shared_bytes: 0, waits: true }
    }

    /// For kernels that start when the one before has ended.
    pub fn plain(grid: (usize, usize, usize), threads: usize) -> Shape {
        Shape { waits: false, ..Shape::early(grid, threads) }
    }
}

/// y (m, n) = x (m, k) · wᵀ, w (n, k), all row after row.
#[derive(Clone, Copy)]
pub struct Product {
    pub y: Arg,
    pub x: Arg,
    pub w: Arg,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub dtype: Dtype,
    /// Of y; f32 where x and w are halves gives logits.
    pub out: Dtype,
    /// y += rather than y =.
    pub add: bool,
}

impl Gpu {
    /// The number of devices; an error says why there is none to count.
    pub fn count() -> Result<usize, CudaTrouble> {
        result::init()?;
        Ok(CudaContext::device_count()?.max(0) as usize)
    }

    /// What the driver calls the device everywhere, whatever number CUDA gives it here.
    pub fn uuid(index: usize) -> Option<String> {
        result::init().ok()?;
        let device = result::device::get(i32::try_from(index).ok()?).ok()?;
        let bytes = result::device::get_uuid(device).ok()?.bytes.map(|byte| byte as u8);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
    }

    pub fn open(index: usize) -> Result<Gpu, CudaTrouble> {
        let count = Self::count()?;
        if count == 0 {
            return Err(CudaTrouble::NoDevice);
        }
        if index >= count {
            return Err(CudaTrouble::NoSuchDevice { asked: index, count });
        }
        // One that an earlier run has broken stays so: CUDA gives a process no second one.
        let context = CudaContext::new(index)?;
        context.synchronize()?;
        check_capability(&context)?;
        // SAFETY: one thread and one stream: there is nothing to track, and events would be made for every buffer.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let handle = CudaBlas::new(Arc::clone(&stream)).map_err(|error| match CudaTrouble::from(error) {
            // What is free is known by now.
            CudaTrouble::NoRoom => out_of_memory(&context, "cuBLAS", BLAS_WORKSPACE_BYTES),
            other => other,
        })?;
        let held = Arc::default();
        let workspace = alloc(&context, &held, "cuBLAS", BLAS_WORKSPACE_BYTES)?;
        // SAFETY: the workspace lives as long as the handle, and is used on its one stream.
        unsafe {
            blas_sys::cublasSetWorkspace_v2(*handle.handle(), workspace.at as *mut c_void, workspace.bytes)
                .result()?;
        }
        let modules = IMAGES
            .into_iter()
            .map(|image| context.load_module(Ptx::from_binary(image.to_vec())))
            .collect::<Result<_, _>>()?;
        let attribute = |which| context.attribute(which);
        let multiprocessors =
            attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as u32;
        let hopper = context.compute_capability()?.0 >= 9 && built_for() >= 90;
        let functions = RefCell::default();
        Ok(Gpu {
            context,
            stream,
            blas: handle,
            _blas_workspace: workspace,
            modules,
            functions,
            multiprocessors,
            hopper,
            held,
        })
    }

    pub fn name(&self) -> String {
        self.context.name().unwrap_or_else(|_| "the GPU".to_owned())
    }

    /// Whether blocks of a kernel can read each other's shared memory.
    pub fn has_clusters(&self) -> bool {
        self.hopper
    }

    /// Bytes free and in all.
    pub fn memory(&self) -> Result<(u64, u64), CudaTrouble> {
        let (free, total) = self.context.mem_get_info()?;
        Ok((free as u64, total as u64))
    }

    /// Memory for `what`, with anything in it.
    pub fn alloc(&self, what: &'static str, bytes: usize) -> Result<Buffer, CudaTrouble> {
        alloc(&self.context, &self.held, what, bytes)
    }

    /// What all buffers take. The driver does not tell what it has reserved for them.
    pub fn allocator(&self) -> AllocatorSample {
        AllocatorSample {
            allocator: Allocator::Gpu,
            live_bytes: self.held.live.load(Ordering::Relaxed),
            peak_bytes: self.held.peak.load(Ordering::Relaxed),
            reserved_bytes: None,
        }
    }

    pub fn zeros(&self, what: &'static str, bytes: usize) -> Result<Buffer, CudaTrouble> {
        let buffer = self.alloc(what, bytes)?;
        self.fill(&buffer, 0)?;
        Ok(buffer)
    }

    /// Sets every byte.
    pub fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), CudaTrouble> {
        self.context.bind_to_thread()?;
        // SAFETY: within the buffer.
        Ok(unsafe { result::memset_d8_async(buffer.at, byte, buffer.bytes, self.stream.cu_stream()) }?)
    }

    /// Copies `values` to the place `at_bytes` into the buffer; they are there when this returns.
    pub fn upload<T: Copy>(&self, buffer: &Buffer, at_bytes: usize, values: &[T]) -> Result<(), CudaTrouble> {
        assert!(at_bytes + size_of_val(values) <= buffer.bytes, "an upload past the end of a buffer");
        self.context.bind_to_thread()?;
        // On our own stream: a plain copy may return before it has landed, and a stream of its own does not wait for it.
        // SAFETY: within the buffer, checked above; the values live until the stream has been waited for.
        unsafe { result::memcpy_htod_async(buffer.at + at_bytes as u64, values, self.stream.cu_stream()) }?;
        Ok(self.stream.synchronize()?)
    }

    /// Waits for everything before it.
    pub fn download<T: Copy + Default>(&self, buffer: &Buffer, len: usize) -> Result<Vec<T>, CudaTrouble> {
        let mut values = vec![T::default(); len];
        assert!(size_of_val(values.as_slice()) <= buffer.bytes, "a download past the end of a buffer");
        self.stream.synchronize()?;
        // SAFETY: within the buffer, checked above; T is plain data.
        unsafe { result::memcpy_dtoh_sync(&mut values, buffer.at) }?;
        Ok(values)
    }

    /// Copies all of `from` to the beginning of `to`.
    pub fn copy(&self, from: &Buffer, to: &Buffer) -> Result<(), CudaTrouble> {
        assert!(from.bytes <= to.bytes, "a copy past the end of a buffer");
        self.context.bind_to_thread()?;
        // SAFETY: within both buffers, checked above.
        Ok(unsafe { result::memcpy_dtod_async(to.at, from.at, from.bytes, self.stream.cu_stream()) }?)
    }

    pub fn synchronize(&self) -> Result<(), CudaTrouble> {
        Ok(self.stream.synchronize()?)
    }

    /// Starts a kernel.
    ///
    /// # Safety
    /// The arguments are what the kernel of that name takes, in order, and it stays within the buffers.
    pub unsafe fn launch(&self, name: &str, shape: Shape, args: &[Arg]) -> Result<(), CudaTrouble> {
        let function = self.function(name, shape.shared_bytes)?;
        let mut values = args.to_vec();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|arg| ptr::from_mut(&mut arg.0).cast()).collect();
        // SAFETY: of plain numbers and pointers, for which zero is a value.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let (x, y, z) = shape.grid;
        // SAFETY: as above.
        let mut config: sys::CUlaunchConfig = unsafe { std::mem::zeroed() };
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (x as u32, y as u32, z as u32);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (shape.threads as u32, 1, 1);
        config.sharedMemBytes = shape.shared_bytes as u32;
        config.hStream = self.stream.cu_stream();
        if shape.waits && self.hopper {
            config.attrs = &mut attribute;
            config.numAttrs = 1;
        }
        self.context.bind_to_thread()?;
        // SAFETY: the caller vouches for the arguments; the rest lives until the call returns.
        unsafe {
            sys::cuLaunchKernelEx(&config, function.cu_function(), pointers.as_mut_ptr(), ptr::null_mut())
        }
        .result()?;
        Ok(())
    }

    fn function(&self, name: &str, shared_bytes: usize) -> Result<CudaFunction, CudaTrouble> {
        if let Some(function) = self.functions.borrow().get(name) {
            return Ok(function.clone());
        }
        let function = self
            .modules
            .iter()
            .find_map(|module| module.load_function(name).ok())
            .ok_or_else(|| CudaTrouble::Driver(format!("this binary has no kernel {name}")))?;
        if shared_bytes > 48 << 10 {
            let most = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(most, shared_bytes as i32)?;
        }
        self.functions.borrow_mut().insert(name.to_owned(), function.clone());
        Ok(function)
    }

    /// A matrix product by cuBLAS, in f32 throughout.
    ///
    /// # Safety
    /// The places hold matrices of these sizes and types.
    pub unsafe fn multiply(&self, p: Product) -> Result<(), CudaTrouble> {
        use blas_sys::{cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType};
        let kind = |dtype| match dtype {
            Dtype::F32 => cudaDataType::CUDA_R_32F,
            Dtype::F16 => cudaDataType::CUDA_R_16F,
            Dtype::Bf16 => cudaDataType::CUDA_R_16BF,
        };
        let (one, beta) = (1f32, if p.add { 1f32 } else { 0f32 });
        let (m, n, k) = (p.m as c_int, p.n as c_int, p.k as c_int);
        self.context.bind_to_thread()?;
        // SAFETY: the caller vouches for the places. cuBLAS counts by columns: it computes yᵀ = w·xᵀ.
        unsafe {
            blas::gemm_ex(
                *self.blas.handle(),
                cublasOperation_t::CUBLAS_OP_T,
                cublasOperation_t::CUBLAS_OP_N,
                n,
                m,
                k,
                ptr::from_ref(&one).cast(),
                p.w.0 as *const c_void,
                kind(p.dtype),
                k,
                p.x.0 as *const c_void,
                kind(p.dtype),
                k,
                ptr::from_ref(&beta).cast(),
                p.y.0 as *mut c_void,
                kind(p.out),
                n,
                cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }?;
        Ok(())
    }

    /// Records what `work` puts on the stream instead of doing it, to be done again and again.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), CudaTrouble>) -> Result<CudaGraph, CudaTrouble> {
        // Relaxed: cuBLAS may load a kernel on the way.
        self.stream.begin_capture(sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let done = work();
        // The stream must leave capturing, whatever became of the work.
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        done?;
        let graph = graph?.ok_or_else(|| CudaTrouble::Driver("nothing was captured".to_owned()))?;
        graph.upload()?;
        Ok(graph)
    }

    /// Listens while a graph is captured, to tell whose its nodes are.
    pub fn node_counter(&self) -> NodeCounter {
        NodeCounter { stream: Arc::clone(&self.stream), nodes: Mutex::default(), part: Mutex::default() }
    }

    /// An event with a time on the device's clock.
    pub fn event(&self) -> Result<CudaEvent, CudaTrouble> {
        Ok(self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))?)
    }

    pub fn record(&self, event: &CudaEvent) -> Result<(), CudaTrouble> {
        Ok(event.record(&self.stream)?)
    }

    pub fn ring(&self, slots: usize, batch: usize) -> Result<Ring, CudaTrouble> {
        let len = slots * batch + 1;
        // SAFETY: zeroed before anyone reads it. Not write-combined: the host reads.
        let mut memory = unsafe {
            self.context.alloc_pinned_with_flags::<u32>(
                len,
                sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE,
            )
        }?;
        memory.as_mut_slice()?.fill(0);
        let base = memory.as_mut_ptr()?;
        Ok(Ring { base, _memory: memory, slots, batch })
    }

    /// Waits until the device has done `steps` steps, and gives the ids of the last of them. Sleeps rather than
    /// spins: the device has its next step already.
    pub fn wait(&self, ring: &Ring, steps: u32) -> Result<Vec<u32>, CudaTrouble> {
        let mut looked = Instant::now();
        // Counts go round; the difference does not.
        while (ring.done().wrapping_sub(steps) as i32) < 0 {
            std::thread::sleep(BETWEEN_LOOKS);
            if looked.elapsed() > BETWEEN_CHECKS {
                looked = Instant::now();
                self.check()?;
            }
        }
        Ok(ring.ids(steps.wrapping_sub(1)))
    }

    /// An error of the device, if it has one.
    fn check(&self) -> Result<(), CudaTrouble> {
        self.context.bind_to_thread()?;
        // SAFETY: the stream is ours.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            error => Err(cudarc::driver::DriverError(error).into()),
        }
    }
}

const BETWEEN_LOOKS: Duration = Duration::from_micros(20);
const BETWEEN_CHECKS: Duration = Duration::from_millis(100);

/// Token ids of the last steps and the count of steps done, in host memory that the device writes.
pub struct Ring {
    base: *mut u32,
    _memory: PinnedHostSlice<u32>,
    slots: usize,
    batch: usize,
}

impl Ring {
    pub fn slots(&self) -> usize {
        self.slots
    }

    pub fn ids_at(&self) -> Arg {
        Arg(self.base as u64)
    }

    pub fn done_at(&self) -> Arg {
        // SAFETY: the last element of the allocation.
        Arg(unsafe { self.base.add(self.slots * self.batch) } as u64)
    }

    fn done(&self) -> u32 {
        // SAFETY: the last element of the allocation, aligned; the device writes it whole.
        unsafe { AtomicU32::from_ptr(self.base.add(self.slots * self.batch)) }.load(Ordering::Acquire)
    }

    /// Ids of a step that is done and not yet overwritten.
    fn ids(&self, step: u32) -> Vec<u32> {
        let first = step as usize % self.slots * self.batch;
        // SAFETY: within the allocation; the device wrote them before it counted the step.
        (first..first + self.batch).map(|i| unsafe { self.base.add(i).read_volatile() }).collect()
    }
}

/// The parts that the nodes of a graph belong to, found by how many nodes the graph has after each part.
pub struct NodeCounter {
    stream: Arc<CudaStream>,
    nodes: Mutex<Vec<Part>>,
    part: Mutex<Option<Part>>,
}

impl NodeCounter {
    /// The parts of all nodes in their order; empty where the graph could not be looked into.
    pub fn nodes(&self) -> Vec<Part> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Nodes of the graph that is being captured.
    fn count(&self) -> usize {
        let (mut status, mut id, mut graph) =
            (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0, ptr::null_mut());
        let mut count = 0;
        // SAFETY: the stream lives; what is not asked for may be null; a graph under capture may be looked at by the thread
        // that captures.
        unsafe {
            let (none, edges, many) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
            let told = sys::cuStreamGetCaptureInfo_v3(
                self.stream.cu_stream(),
                &mut status,
                &mut id,
                &mut graph,
                none,
                edges,
                many,
            );
            if told == sys::CUresult::CUDA_SUCCESS && !graph.is_null() {
                let _ = sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut count);
            }
        }
        count
    }
}

impl Listener for NodeCounter {
    fn begins(&self, part: Part) {
        *self.part.lock().unwrap_or_else(PoisonError::into_inner) = Some(part);
    }

    fn ends(&self) {
        if let Some(part) = self.part.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.nodes.lock().unwrap_or_else(PoisonError::into_inner).resize(self.count(), part);
        }
    }
}

fn built_for() -> u32 {
    device::built_for().unwrap_or(0)
}

fn check_capability(context: &CudaContext) -> Result<(), CudaTrouble> {
    let (major, minor) = context.compute_capability()?;
    let found = (major * 10 + minor) as u32;
    let built = built_for();
    if device::runs_on(built, found) {
        return Ok(());
    }
    let dotted = |cap: u32| format!("{}.{}", cap / 10, cap % 10);
    Err(CudaTrouble::WrongCapability {
        built: dotted(built),
        name: context.name()?,
        found: dotted(found),
        remedy: found.to_string(),
    })
}

fn alloc(
    context: &Arc<CudaContext>,
    held: &Arc<Held>,
    what: &'static str,
    bytes: usize,
) -> Result<Buffer, CudaTrouble> {
    context.bind_to_thread()?;
    // SAFETY: the memory is freed with the buffer, and kernels write it before they read it.
    match unsafe { result::malloc_sync(bytes.max(1)) } {
        Ok(at) => {
            held.grew(bytes);
            Ok(Buffer { at, bytes, context: Arc::clone(context), held: Arc::clone(held) })
        }
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Err(out_of_memory(context, what, bytes))
        }
        Err(error) => Err(error.into()),
    }
}

fn out_of_memory(context: &CudaContext, what: &'static str, bytes: usize) -> CudaTrouble {
    let free = context.mem_get_info().map_or(0, |(free, _)| free);
    CudaTrouble::OutOfMemory { what, asked: gigabytes(bytes as u64), free: gigabytes(free as u64) }
}
