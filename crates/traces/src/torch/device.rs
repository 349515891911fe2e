//! The events of one GPU.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use super::event::{Args, Event};
use crate::gpu::{Gpu, Ran};
use llmprof_base::units::{grouped, percent};
use llmprof_event::kernels::{KernelRow, counters::Counter, names};

/// More than a machine has.
const MAX_GPUS: usize = 256;
const MAX_STREAMS: usize = 1 << 12;

/// Names of counters, with their units.
static OCCUPANCY: LazyLock<[Arc<str>; 2]> = LazyLock::new(|| ["est. achieved occupancy", "%"].map(Arc::from));
static DELAY: LazyLock<[Arc<str>; 2]> = LazyLock::new(|| ["from the call to the start", "ns"].map(Arc::from));

#[derive(Debug, Default)]
pub struct GpuEvents {
    pub operations: Gpu,
    /// Operations and their time.
    pub streams: BTreeMap<i64, (u64, f64)>,
    kernel_ns: f64,
    collectives: (u64, f64),
}

/// The index of an event's GPU.
pub fn gpu_of(event: &Event) -> i64 {
    event.args.device.or_else(|| event.process.whole()).unwrap_or(0)
}

impl GpuEvents {
    /// The GPU of an event; counts it as an operation of its stream.
    pub fn entry<'g>(gpus: &'g mut BTreeMap<i64, GpuEvents>, event: &Event, ran: Ran) -> &'g mut GpuEvents {
        let number = gpu_of(event);
        let known = gpus.len() < MAX_GPUS || gpus.contains_key(&number);
        let gpu = gpus.entry(if known { number } else { i64::MAX }).or_default();
        let stream = event.args.stream.or_else(|| event.thread.whole()).unwrap_or(-1);
        if gpu.streams.len() < MAX_STREAMS || gpu.streams.contains_key(&stream) {
            let (operations, ns) = gpu.streams.entry(stream).or_default();
            *operations += 1;
            *ns += ran.ns;
        }
        gpu
    }

    /// Counts a kernel. `launcher` is the index of its launcher, `called_ns` the start of the call.
    pub fn kernel(
        &mut self,
        event: &Event,
        ran: Ran,
        launcher: u64,
        called_ns: Option<i64>,
        range: impl FnOnce() -> Option<String>,
    ) {
        let Event { name, args, .. } = event;
        self.kernel_ns += ran.ns;
        if name.starts_with("nccl") {
            self.collectives.0 += 1;
            self.collectives.1 += ran.ns;
        }
        let mut key = name.as_bytes().to_vec();
        key.extend(launcher.to_le_bytes());
        for size in [args.grid, args.block].into_iter().flatten().flatten() {
            key.extend(size.to_le_bytes());
        }
        let row = self.operations.launch(&key, name, ran, || KernelRow {
            grid: args.grid,
            block: args.block,
            registers: args.registers.filter(|n| *n >= 0.0).map(|n| n as u32),
            shared_bytes: args.shared_bytes.filter(|n| *n >= 0.0).map(|n| n as u64),
            range: range(),
            ..KernelRow::named(names::demangled(name))
        });
        if let Some(node) = args.graph_node {
            row.graph_calls = Some(row.graph_calls.unwrap_or(0) + u64::from(node > 0.0));
        }
        if let Some(bytes) = message_bytes(args) {
            row.bytes = Some(row.bytes.unwrap_or(0.0) + bytes);
        }
        let delay = called_ns.map(|called| ran.start_ns.saturating_sub(called) as f64);
        for ([name, unit], value, weight) in
            [(&*OCCUPANCY, args.occupancy_pct, ran.ns.max(1.0)), (&*DELAY, delay, 1.0)]
        {
            let Some(value) = value.filter(|value| *value >= 0.0) else { continue };
            let mut one = Counter::NONE;
            one.add(value, weight);
            row.counters.merge(name, unit, &one);
        }
    }

    /// The share of NCCL's kernels, if there are any.
    pub fn collectives(&self) -> Option<String> {
        let (kernels @ 1.., ns) = self.collectives else { return None };
        let share = percent(ns / self.kernel_ns.max(1.0) * 100.0);
        let (noun, verb) = if kernels == 1 { ("kernel", "takes") } else { ("kernels", "take") };
        let kernels = grouped(i64::try_from(kernels).unwrap_or(i64::MAX));
        Some(format!(
            "{kernels} {noun} of NCCL {verb} {share} of the kernel time, waiting for other ranks included"
        ))
    }
}

/// The size of the message of a collective operation.
pub fn message_bytes(args: &Args) -> Option<f64> {
    let elements = args.elements_in?.max(args.elements_out?);
    let bytes = match args.element_type.as_deref()? {
        "Double" | "Long" | "ComplexFloat" | "UInt64" => 8.0,
        "Float" | "Int" | "UInt32" => 4.0,
        "Half" | "BFloat16" | "Short" | "UInt16" => 2.0,
        "Byte" | "Char" | "Bool" => 1.0,
        name if name.starts_with("Float8") => 1.0,
        _ => return None,
    };
    Some(elements * bytes)
}
