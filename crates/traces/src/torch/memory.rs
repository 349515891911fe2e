//! Memory that PyTorch allocated and freed.

use std::{collections::BTreeMap, sync::Arc};

use super::event::Args;
use crate::gpu::filled;
use llmprof_base::units::scaled;
use llmprof_event::kernels::{KernelRow, KernelTable, Kind, counters::Counter};

/// More than a machine has.
const MAX_DEVICES: usize = 256;

/// Memory by device: its type, and its number.
#[derive(Debug, Default)]
pub struct Memory(BTreeMap<(i64, i64), Device>);

#[derive(Debug, Default)]
struct Device {
    allocated: (u64, f64),
    freed: (u64, f64),
    /// Memory in use after each event.
    in_use: Option<Counter>,
    reserved: Option<Counter>,
}

impl Memory {
    /// Counts an event; false if it has no size.
    pub fn add(&mut self, args: &Args) -> bool {
        let Some(bytes) = args.change_bytes else { return false };
        let device = (args.device_type.unwrap_or(0.0) as i64, args.device_id.unwrap_or(-1.0) as i64);
        if self.0.len() >= MAX_DEVICES && !self.0.contains_key(&device) {
            return false;
        }
        let device = self.0.entry(device).or_default();
        let (events, sum) = if bytes >= 0.0 { &mut device.allocated } else { &mut device.freed };
        *events += 1;
        *sum += bytes.abs();
        for (value, counter) in
            [(args.allocated_bytes, &mut device.in_use), (args.reserved_bytes, &mut device.reserved)]
        {
            if let Some(value) = value {
                counter.get_or_insert(Counter::NONE).add(value, 1.0);
            }
        }
        true
    }

    pub fn table(self) -> Option<KernelTable> {
        let (mut rows, mut notes) = (Vec::new(), Vec::new());
        for ((kind, number), device) in self.0 {
            let label = match kind {
                0 => "CPU".to_owned(),
                1 => format!("GPU {number}"),
                other => format!("device {number} of type {other}"),
            };
            let peak = |counter: Option<Counter>| counter.map(|counter| counter.max).filter(|max| *max > 0.0);
            if let Some(peak) = peak(device.in_use) {
                let reserved = peak_text(device.reserved);
                notes.push(format!("{label}: at most {} in use{reserved}", scaled(peak, "B")));
            }
            for (what, (events, bytes)) in [("allocated", device.allocated), ("freed", device.freed)] {
                if events == 0 {
                    continue;
                }
                let name = format!("{label}, {what}");
                let mut row = KernelRow {
                    family: name.clone(),
                    name,
                    calls: events,
                    bytes: Some(bytes),
                    ..KernelRow::default()
                };
                for (name, counter) in [("in use", device.in_use), ("reserved", device.reserved)] {
                    if let Some(counter) = counter {
                        row.counters.merge(&Arc::from(name), &Arc::from("byte"), &counter);
                    }
                }
                rows.push(row);
            }
        }
        let mut table = filled("PyTorch trace, memory", Kind::Allocations, rows, None)?;
        // Allocations that were freed again do not add up to a size.
        table.nested = true;
        table.notes = notes;
        Some(table)
    }
}

fn peak_text(reserved: Option<Counter>) -> String {
    let peak = reserved.map(|counter| counter.max).filter(|max| *max > 0.0);
    peak.map(|peak| format!(", {} reserved", scaled(peak, "B"))).unwrap_or_default()
}
