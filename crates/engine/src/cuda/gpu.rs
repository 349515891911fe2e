//! One GPU as the engine uses it: memory, kernels, matrix products, graphs, and a ring buffer that the device writes and
//! the host reads.
//!
//! One stream does all the work in order, so no call waits for another.

// Reason: CUDA's driver is a C library that works on raw device pointers.
#![allow(unsafe_code)]

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, hash_map::Entry},
    ffi::c_void,
    fmt, ptr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use cudarc::{
    driver::{
        CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaModule, CudaStream, PinnedHostSlice, result, sys,
    },
    nvrtc::Ptx,
};

use libloading::Library;

pub use super::buffer::{Buffer, Number, Product, Slice};
use super::{
    blas::{Blas, Cublas},
    buffer::MemoryUse,
    error::CudaError,
    images::{ARE_STALE, HOPPER, Manifest, Needs, dotted, images},
};
use crate::{
    candle::memory::gigabytes,
    launch::{Arg, Launch},
};
use llmprof_base::tools::{System, libraries::CUDA};
use llmprof_config::Dtype;
use llmprof_event::{Allocator, AllocatorSample};
use llmprof_workload::listener::{Listener, OperatorInstance, Span};

/// Dynamic shared memory of a block that needs no opt-in: 48 kB, less the kernels' static shared memory.
const SHARED_WITHOUT_ASKING: i32 = 24 << 10;
/// Blocks of a cluster that every GPU with clusters can have.
const PORTABLE_CLUSTER: usize = 8;
/// The size that NVIDIA recommends for Hopper.
const BLAS_WORKSPACE_BYTES: usize = 32 << 20;

pub struct Gpu {
    /// Dropped first: it works on the stream.
    blas: Option<Blas>,
    /// Why cuBLAS is not used; `None` if it is.
    without_cublas: Cell<Option<WithoutCublas>>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    modules: Vec<Arc<CudaModule>>,
    /// Each function with the dynamic shared memory that it may use.
    functions: RefCell<HashMap<String, (CudaFunction, i32)>>,
    pub multiprocessors: usize,
    /// Maximum shared memory of a block.
    pub shared_bytes: usize,
    /// E.g. 90 for 9.0. From 9.0 on, kernels can start before the previous one has ended, and blocks can form clusters.
    pub capability: u32,
    memory_use: Arc<MemoryUse>,
}

/// Why cuBLAS is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutCublas {
    NotWanted,
    NotFound,
    /// cuBLAS failed with this status.
    Failed(i32),
}

impl fmt::Display for WithoutCublas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WithoutCublas::NotWanted => f.write_str("cuBLAS is off (runtime.cublas=false)"),
            WithoutCublas::NotFound => {
                f.write_str("cuBLAS was not found (install CUDA 12 or 13, or the PyPI package nvidia-cublas)")
            }
            WithoutCublas::Failed(status) => {
                write!(f, "cuBLAS fails on this GPU with status {status} (install a newer one)")
            }
        }
    }
}

/// Blocks, threads of a block, and the dynamic shared memory of a block.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub grid: (usize, usize, usize),
    pub threads: usize,
    pub shared_bytes: usize,
    /// Whether the kernel waits for the previous one itself and may therefore start early.
    pub early: bool,
    /// Blocks of a cluster; 0 without clusters.
    pub cluster: usize,
    /// All blocks wait for each other: the kernel starts only if all of them run concurrently.
    pub at_once: bool,
}

impl Shape {
    /// For kernels that wait for the previous one themselves.
    pub fn early(grid: (usize, usize, usize), threads: usize) -> Shape {
        Shape { grid, threads, shared_bytes: 0, early: true, cluster: 0, at_once: false }
    }

    /// For kernels that start when the previous one has ended.
    pub fn plain(grid: (usize, usize, usize), threads: usize) -> Shape {
        Shape { early: false, ..Shape::early(grid, threads) }
    }
}

impl Gpu {
    /// The number of devices; the error reports why it is unknown.
    pub fn count() -> Result<usize, CudaError> {
        load_driver()?;
        result::init()?;
        Ok(usize::try_from(CudaContext::device_count()?).unwrap_or(0))
    }

    /// The device's identifier in all of the driver's tools; independent of its CUDA index.
    pub fn uuid(index: usize) -> Option<String> {
        Self::count().ok()?;
        let device = result::device::get(i32::try_from(index).ok()?).ok()?;
        let bytes = result::device::get_uuid(device).ok()?.bytes.map(|byte| byte as u8);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
    }

    /// The compute capability, e.g. 90 for 9.0, without a context on the device.
    pub fn capability(index: usize) -> Option<u32> {
        use sys::CUdevice_attribute_enum::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        Self::count().ok()?;
        let device = result::device::get(i32::try_from(index).ok()?).ok()?;
        // SAFETY: the device is one that the driver has just returned.
        let part = |attribute| unsafe { result::device::get_attribute(device, attribute) }.ok();
        u32::try_from(part(MAJOR)? * 10 + part(MINOR)?).ok()
    }

    /// Checks that the built-in kernels run on a device, without a context on it.
    pub fn check_usable(index: usize) -> Result<(), CudaError> {
        let count = Self::count()?;
        if count == 0 {
            return Err(CudaError::NoDevice);
        }
        if index >= count {
            return Err(CudaError::NoSuchDevice { asked: index, count });
        }
        match Self::capability(index) {
            Some(found) if found < Manifest::get().lowest() => {
                let device = result::device::get(i32::try_from(index).unwrap_or(0))?;
                let name = result::device::get_name(device)?;
                Err(CudaError::TooOld {
                    name,
                    found: dotted(found),
                    lowest: dotted(Manifest::get().lowest()),
                })
            }
            _ if ARE_STALE => Err(CudaError::StaleKernels),
            _ => Ok(()),
        }
    }

    /// Opens a GPU; uses cuBLAS if `cublas` is set and the library is found.
    pub fn open(index: usize, cublas: bool) -> Result<Gpu, CudaError> {
        Self::check_usable(index)?;
        // A context that an earlier run has lost stays lost: a process gets only one.
        let context = CudaContext::new(index)?;
        context.synchronize()?;
        // SAFETY: there is one thread and one stream, so there is nothing to track. Tracking would create events for
        // every buffer.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let memory_use = Arc::default();
        let blas = match cublas.then(Cublas::get) {
            None => Err(WithoutCublas::NotWanted),
            Some(None) => Err(WithoutCublas::NotFound),
            Some(Some(library)) => {
                let workspace = alloc(&context, &memory_use, "cuBLAS", BLAS_WORKSPACE_BYTES)?;
                context.bind_to_thread()?;
                // SAFETY: the workspace belongs to this context and stream, which the `Gpu` drops later.
                match unsafe { Blas::new(library, stream.cu_stream().cast(), workspace) } {
                    Ok(blas) => Ok(blas),
                    // E.g. a library older than the GPU.
                    Err(CudaError::Blas(status)) => Err(WithoutCublas::Failed(status)),
                    // The context exists, so free memory can be read.
                    Err(CudaError::NoRoom) => {
                        return Err(out_of_memory(&context, "cuBLAS", BLAS_WORKSPACE_BYTES));
                    }
                    Err(other) => return Err(other),
                }
            }
        };
        let multiprocessors =
            context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let capability = Self::capability(index).unwrap_or(0);
        let shared_bytes = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        Ok(Gpu {
            shared_bytes: usize::try_from(shared_bytes).unwrap_or(0),
            without_cublas: Cell::new(blas.as_ref().err().copied()),
            blas: blas.ok(),
            context,
            stream,
            modules: Vec::new(),
            functions: RefCell::default(),
            multiprocessors: usize::try_from(multiprocessors).unwrap_or(1).max(1),
            capability,
            memory_use,
        })
    }

    /// Loads the kernels for one number type and the optional kernels that a model `needs`. `progress` gets the number
    /// of loaded files and their total, and may stop the loading. The driver compiles kernels that have no machine code
    /// for this GPU, which takes seconds, once.
    pub fn load_kernels(
        &mut self,
        dtype: Dtype,
        needs: Needs,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<bool, CudaError> {
        let images = images(dtype, needs, self.capability);
        for (done, image) in images.iter().enumerate() {
            if !progress(done as u64, images.len() as u64) {
                return Ok(false);
            }
            self.modules.push(self.context.load_module(Ptx::from_binary(image.to_vec()))?);
        }
        Ok(true)
    }

    pub fn without_cublas(&self) -> Option<WithoutCublas> {
        self.without_cublas.get()
    }

    pub fn name(&self) -> String {
        self.context.name().unwrap_or_else(|_| "the GPU".to_owned())
    }

    /// Whether the kernels for compute capability 9.0 only are loaded.
    pub fn runs_hopper_kernels(&self) -> bool {
        self.capability == HOPPER
    }

    /// Whether blocks of a kernel can read each other's shared memory.
    pub fn has_clusters(&self) -> bool {
        self.capability >= HOPPER
    }

    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        Ok(self.context.mem_get_info()?.0 as u64)
    }

    /// Uninitialised memory for `what`.
    pub fn alloc(&self, what: &'static str, bytes: usize) -> Result<Buffer, CudaError> {
        alloc(&self.context, &self.memory_use, what, bytes)
    }

    /// The bytes of all buffers. The driver does not report what it has reserved for them.
    pub fn allocator(&self) -> AllocatorSample {
        AllocatorSample {
            allocator: Allocator::Gpu,
            live_bytes: self.memory_use.live.load(Ordering::Relaxed),
            peak_bytes: self.memory_use.peak.load(Ordering::Relaxed),
            reserved_bytes: None,
        }
    }

    pub fn zeros(&self, what: &'static str, bytes: usize) -> Result<Buffer, CudaError> {
        let buffer = self.alloc(what, bytes)?;
        self.fill(&buffer, 0)?;
        Ok(buffer)
    }

    /// Sets every byte.
    pub fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), CudaError> {
        self.context.bind_to_thread()?;
        // SAFETY: within the buffer.
        Ok(unsafe { result::memset_d8_async(buffer.address, byte, buffer.bytes, self.stream.cu_stream()) }?)
    }

    /// Copies `values` to the beginning of the buffer; the copy is complete when this returns.
    pub fn upload<T: Number>(&self, buffer: &Buffer, values: &[T]) -> Result<(), CudaError> {
        assert!(size_of_val(values) <= buffer.bytes, "upload past the end of a buffer");
        self.context.bind_to_thread()?;
        // Copied on the engine's own stream: a synchronous copy may return before it is complete, and this stream does
        // not wait for it.
        // SAFETY: within the buffer, checked above; the values live until the stream is synchronised.
        unsafe { result::memcpy_htod_async(buffer.address, values, self.stream.cu_stream()) }?;
        Ok(self.stream.synchronize()?)
    }

    /// The first `len` values of the buffer, after all work before it.
    pub fn download<T: Number>(&self, buffer: &Buffer, len: usize) -> Result<Vec<T>, CudaError> {
        let mut values = vec![T::default(); len];
        assert!(size_of_val(values.as_slice()) <= buffer.bytes, "download past the end of a buffer");
        self.stream.synchronize()?;
        // SAFETY: within the buffer, checked above; any bits are values of T.
        unsafe { result::memcpy_dtoh_sync(&mut values, buffer.address) }?;
        Ok(values)
    }

    /// Copies all of `from` to the beginning of `to`.
    pub fn copy(&self, from: &Buffer, to: &Buffer) -> Result<(), CudaError> {
        assert!(from.bytes <= to.bytes, "copy past the end of a buffer");
        self.context.bind_to_thread()?;
        // SAFETY: within both buffers, checked above.
        Ok(unsafe {
            result::memcpy_dtod_async(to.address, from.address, from.bytes, self.stream.cu_stream())
        }?)
    }

    pub fn synchronize(&self) -> Result<(), CudaError> {
        Ok(self.stream.synchronize()?)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The arguments have the types and the order of the kernel's parameters, and the kernel stays within its buffers.
    pub unsafe fn launch(&self, launch: Launch<'_>, shape: Shape, args: &[Arg]) -> Result<(), CudaError> {
        let mut values = args.to_vec();
        let mut addresses: Vec<*mut c_void> = values.iter_mut().map(Arg::value_address).collect();
        self.configured(launch, shape, shape.at_once, |function, config| {
            // SAFETY: the caller guarantees the arguments; everything else lives until the call returns.
            unsafe { sys::cuLaunchKernelEx(config, function, addresses.as_mut_ptr(), ptr::null_mut()) }
        })
    }

    /// How many clusters of `shape` the GPU runs concurrently; 0 if it cannot have such clusters.
    pub fn clusters_at_once(&self, launch: Launch<'_>, shape: Shape) -> usize {
        let mut count = 0;
        let asked = self.configured(launch, shape, false, |function, config| {
            // SAFETY: the kernel and its configuration live until the call returns.
            unsafe { sys::cuOccupancyMaxActiveClusters(&mut count, function, config) }
        });
        let all = shape.grid.0.checked_div(shape.cluster).unwrap_or(0);
        asked.map_or(0, |()| usize::try_from(count).unwrap_or(0).min(all))
    }

    /// How many blocks of a kernel run concurrently.
    pub fn blocks_at_once(&self, launch: Launch<'_>, threads: usize, shared_bytes: usize) -> usize {
        let mut each = 0;
        let shape = Shape { shared_bytes, ..Shape::early((1, 1, 1), threads) };
        let asked = self.configured(launch, shape, false, |function, config| {
            let (threads, shared_bytes) = (config.blockDimX as i32, config.sharedMemBytes as usize);
            // SAFETY: the kernel lives until the call returns.
            unsafe {
                sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut each, function, threads, shared_bytes)
            }
        });
        asked.map_or(0, |()| usize::try_from(each).unwrap_or(0) * self.multiprocessors)
    }

    /// Calls the driver with a kernel and its launch configuration. If `at_once`, a grid that cannot run concurrently
    /// is refused.
    fn configured(
        &self,
        launch: Launch<'_>,
        shape: Shape,
        at_once: bool,
        call: impl FnOnce(sys::CUfunction, &sys::CUlaunchConfig) -> sys::CUresult,
    ) -> Result<(), CudaError> {
        use sys::CUlaunchAttributeID_enum as Id;
        let ([x, y, z], threads) = launch.grid(shape.grid, shape.threads)?;
        let shared_bytes = launch.int("shared memory", shape.shared_bytes)?;
        let function = self.function(launch, shared_bytes)?;
        // SAFETY: the attributes consist of numbers and pointers, for which zero is a value.
        let mut attributes: [sys::CUlaunchAttribute; 3] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        let mut add = |id, set: &dyn Fn(&mut sys::CUlaunchAttributeValue)| {
            attributes[count].id = id;
            set(&mut attributes[count].value);
            count += 1;
        };
        if shape.early && self.capability >= HOPPER {
            add(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, &|value| {
                value.programmaticStreamSerializationAllowed = 1;
            });
        }
        if shape.cluster > 0 {
            let cluster = launch.int("the cluster", shape.cluster)?.unsigned_abs();
            if shape.cluster > PORTABLE_CLUSTER {
                let larger =
                    sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
                function.set_attribute(larger, 1)?;
            }
            add(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &|value| {
                value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
            });
        }
        if at_once {
            add(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &|value| value.cooperative = 1);
        }
        // SAFETY: as above.
        let mut config: sys::CUlaunchConfig = unsafe { std::mem::zeroed() };
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (x, y, z);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (threads, 1, 1);
        config.sharedMemBytes = shared_bytes.unsigned_abs();
        config.hStream = self.stream.cu_stream();
        config.attrs = attributes.as_mut_ptr();
        config.numAttrs = count as u32;
        self.context.bind_to_thread()?;
        call(function.cu_function(), &config).result()?;
        Ok(())
    }

    fn function(&self, launch: Launch<'_>, shared_bytes: i32) -> Result<CudaFunction, CudaError> {
        let name = launch.kernel();
        let mut functions = self.functions.borrow_mut();
        let (function, allowed) = match functions.entry(name.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let function = self
                    .modules
                    .iter()
                    .find_map(|module| module.load_function(name).ok())
                    .ok_or_else(|| launch.error("this binary does not contain it".to_owned()))?;
                place.insert((function, SHARED_WITHOUT_ASKING))
            }
        };
        if shared_bytes > *allowed {
            let limit = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(limit, shared_bytes)?;
            *allowed = shared_bytes;
        }
        Ok(function.clone())
    }

    /// Stops the device with an illegal memory access, as a faulty kernel does.
    pub fn inject_fault(&self) -> Result<(), CudaError> {
        let args = [Arg::NULL, Arg::size(1), Arg::Float(1.0)];
        // SAFETY: the types are those of the kernel. The null pointer is read only on the device, which ends the
        // context: that is the purpose.
        unsafe { self.launch(Launch::new("softcap"), Shape::early((1, 1, 1), 32), &args) }
    }

    /// A matrix product, summed in f32: by cuBLAS, or without it by the built-in kernels.
    pub fn multiply(&self, p: &Product<'_>) -> Result<(), CudaError> {
        p.check(Launch::new("the GEMM"), p.n)?;
        let Some(blas) = self.blas.as_ref().filter(|_| self.without_cublas.get().is_none()) else {
            return self.own_product(p);
        };
        self.context.bind_to_thread()?;
        // SAFETY: the operands have these sizes, checked above.
        match unsafe { blas.multiply(p) } {
            // E.g. a library older than the GPU.
            Err(CudaError::Blas(status)) => {
                self.without_cublas.set(Some(WithoutCublas::Failed(status)));
                self.own_product(p)
            }
            done => done,
        }
    }

    fn own_product(&self, p: &Product<'_>) -> Result<(), CudaError> {
        let aligned = [p.x, p.w].iter().all(|slice| slice.address().is_multiple_of(16));
        let tensor_cores = p.dtype != Dtype::F32 && aligned && p.k.is_multiple_of(8);
        // Rows and columns of a block, and its shared memory, as in `product*.cu`.
        let (kernel, rows, columns, shared_bytes) = match self.capability {
            _ if !tensor_cores => ("plain_product", 64, 64, 0),
            HOPPER => ("hopper_product", 128, 256, 4 * (128 + 256) * 128 + 1024),
            _ => ("product", 128, 128, 3 * (128 + 128) * 128),
        };
        let logits = if p.out == p.dtype { "" } else { "_logits" };
        let name = format!("{kernel}{logits}_{}", p.dtype.name());
        let launch = Launch::new(&name);
        let args = [
            p.y.into(),
            p.x.into(),
            p.w.into(),
            launch.arg("m", p.m)?,
            launch.arg("n", p.n)?,
            launch.arg("k", p.k)?,
            Arg::Int(p.add.into()),
        ];
        let blocks = p.m.div_ceil(rows) * p.n.div_ceil(columns);
        let shape = Shape { shared_bytes, ..Shape::plain((blocks, 1, 1), 256) };
        // SAFETY: the kernel's parameters, on operands of these sizes, checked by `multiply`.
        unsafe { self.launch(launch, shape, &args) }
    }

    /// Captures what `work` puts on the stream as a graph, without running it.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), CudaError>) -> Result<CudaGraph, CudaError> {
        // Relaxed: cuBLAS may load a kernel during the capture.
        self.stream.begin_capture(sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let done = work();
        // The stream must leave capture mode, also after an error.
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        done?;
        let graph = graph?.ok_or_else(|| CudaError::Driver("the captured graph is empty".to_owned()))?;
        graph.upload()?;
        Ok(graph)
    }

    /// Finds the operators of a graph's nodes while it is captured.
    pub fn node_counter(&self) -> NodeCounter {
        NodeCounter { stream: Arc::clone(&self.stream), nodes: Mutex::default() }
    }

    /// An event with a timestamp of the device.
    pub fn event(&self) -> Result<CudaEvent, CudaError> {
        Ok(self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))?)
    }

    pub fn record(&self, event: &CudaEvent) -> Result<(), CudaError> {
        Ok(event.record(&self.stream)?)
    }

    pub fn ring(&self, slots: usize, batch: usize) -> Result<Ring, CudaError> {
        let len = slots * batch + 1;
        // SAFETY: zeroed before it is read. Not write-combined: the host reads it.
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

    /// Waits until the device has completed `steps` steps, and returns the ids of the last of them. Sleeps instead of
    /// spinning: the next step is already queued.
    pub fn wait(&self, ring: &Ring, steps: u32) -> Result<Vec<u32>, CudaError> {
        let mut checked = Instant::now();
        // Counts wrap around; their difference does not.
        while (ring.done().wrapping_sub(steps) as i32) < 0 {
            std::thread::sleep(POLL_INTERVAL);
            if checked.elapsed() > CHECK_INTERVAL {
                checked = Instant::now();
                self.check()?;
            }
        }
        Ok(ring.ids(steps.wrapping_sub(1)))
    }

    /// The device's error, if it has one.
    fn check(&self) -> Result<(), CudaError> {
        self.context.bind_to_thread()?;
        // SAFETY: the stream belongs to this `Gpu`.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            error => Err(cudarc::driver::DriverError(error).into()),
        }
    }
}

const POLL_INTERVAL: Duration = Duration::from_micros(20);
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The token ids of the last steps and the number of completed steps, in host memory that the device writes.
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

    pub fn batch(&self) -> usize {
        self.batch
    }

    pub fn ids_pointer(&self) -> Arg {
        Arg::Pointer(self.base as u64)
    }

    pub fn done_pointer(&self) -> Arg {
        // SAFETY: the last element of the allocation.
        Arg::Pointer(unsafe { self.base.add(self.slots * self.batch) } as u64)
    }

    fn done(&self) -> u32 {
        // SAFETY: the last element of the allocation, aligned; the device writes it atomically.
        unsafe { AtomicU32::from_ptr(self.base.add(self.slots * self.batch)) }.load(Ordering::Acquire)
    }

    /// The ids of a completed step that is not yet overwritten.
    fn ids(&self, step: u32) -> Vec<u32> {
        let first = step as usize % self.slots * self.batch;
        // SAFETY: within the allocation; the device wrote them before it counted the step.
        (first..first + self.batch).map(|i| unsafe { self.base.add(i).read_volatile() }).collect()
    }
}

/// The operators of a graph's nodes, found from the number of nodes after each operator.
pub struct NodeCounter {
    stream: Arc<CudaStream>,
    nodes: Mutex<Vec<OperatorInstance>>,
}

impl NodeCounter {
    /// The operators of all nodes in execution order; empty if the graph could not be read.
    pub fn nodes(&self) -> Vec<OperatorInstance> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of nodes captured so far.
    fn count(&self) -> usize {
        let (mut status, mut id, mut graph) =
            (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0, ptr::null_mut());
        let mut count = 0;
        // SAFETY: the stream lives; optional results may be null; the capturing thread may read the graph.
        unsafe {
            let (none, many) = (ptr::null_mut(), ptr::null_mut());
            let status = sys::cuStreamGetCaptureInfo_v2(
                self.stream.cu_stream(),
                &mut status,
                &mut id,
                &mut graph,
                none,
                many,
            );
            if status == sys::CUresult::CUDA_SUCCESS && !graph.is_null() {
                let _ = sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut count);
            }
        }
        count
    }
}

impl Listener for NodeCounter {
    fn begins(&self, _: Span) {}

    fn ends(&self, span: Span) {
        if let Span::Operator(instance) = span {
            self.nodes.lock().unwrap_or_else(PoisonError::into_inner).resize(self.count(), instance);
        }
    }
}

/// Opens the driver's library, which may be outside the loader's path. cudarc then finds it by its name; without it
/// cudarc would panic.
fn load_driver() -> Result<(), CudaError> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        CUDA.candidates(&System::here()).iter().any(|path| {
            // SAFETY: the driver's library, whose initialisers do nothing before `cuInit`.
            match unsafe { Library::new(path) } {
                Ok(library) => {
                    // The library stays loaded.
                    std::mem::forget(library);
                    true
                }
                Err(_) => false,
            }
        })
    });
    match found {
        true => Ok(()),
        false if System::here().is_wsl() => Err(CudaError::NoWindowsDriver),
        false => Err(CudaError::NoDriver("libcuda.so.1 is not found".to_owned())),
    }
}

fn alloc(
    context: &Arc<CudaContext>,
    memory_use: &Arc<MemoryUse>,
    what: &'static str,
    bytes: usize,
) -> Result<Buffer, CudaError> {
    context.bind_to_thread()?;
    // SAFETY: the memory is freed with its buffer, and kernels write it before they read it.
    match unsafe { result::malloc_sync(bytes.max(1)) } {
        Ok(address) => {
            memory_use.add(bytes);
            Ok(Buffer { address, bytes, context: Arc::clone(context), memory_use: Arc::clone(memory_use) })
        }
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Err(out_of_memory(context, what, bytes))
        }
        Err(error) => Err(error.into()),
    }
}

fn out_of_memory(context: &CudaContext, what: &'static str, bytes: usize) -> CudaError {
    let free = context.mem_get_info().map_or(0, |(free, _)| free);
    CudaError::OutOfMemory { what, asked: gigabytes(bytes as u64), free: gigabytes(free as u64) }
}
