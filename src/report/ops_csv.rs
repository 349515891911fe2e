//! The operators of a run as rows: `ops.csv`. What was not measured is an empty cell.

use crate::{
    event::{HeapGrowth, OperatorTime, Phase},
    kernels::KernelRow,
    model::{Operator, cost::StepCost},
    state::{HostOperators, LiveKernels, RunState},
};

/// The columns, in their order; docs/operators.md says what each is.
pub const COLUMNS: [&str; 20] = [
    "phase",
    "operator",
    "shapes",
    "steps",
    "calls",
    "calls_per_step",
    "host_total_ms",
    "host_self_ms",
    "host_mean_us",
    "host_min_us",
    "host_max_us",
    "host_pct",
    "device_launches",
    "device_total_ms",
    "device_us_per_step",
    "device_pct",
    "flops_per_step",
    "bytes_per_step",
    "allocated_bytes",
    "peak_bytes",
];

/// `None` where neither operators nor kernels nor a shape were recorded.
pub(super) fn ops_csv(state: &RunState) -> Option<String> {
    let mut out = csv::Writer::from_writer(Vec::new());
    let mut any = false;
    out.write_record(COLUMNS).ok()?;
    for phase in [Phase::Prefill, Phase::Decode] {
        for row in rows(state, phase) {
            any = true;
            out.write_record(row.cells(phase)).ok()?;
        }
    }
    let text = String::from_utf8(out.into_inner().ok()?).ok()?;
    any.then_some(text)
}

#[derive(Default)]
struct Row {
    operator: String,
    shapes: Option<String>,
    steps: Option<u64>,
    calls: Option<u64>,
    calls_per_step: Option<f64>,
    host_total_ns: Option<u64>,
    host_self_ns: Option<u64>,
    host_mean_ns: Option<f64>,
    host_range_ns: Option<(u64, u64)>,
    host_share: Option<f64>,
    device: Option<Device>,
    flops: Option<f64>,
    bytes: Option<f64>,
    heap: Option<HeapGrowth>,
}

struct Device {
    launches: u64,
    total_ns: f64,
    steps: u64,
    busy_ns: f64,
}

impl Row {
    fn cells(&self, phase: Phase) -> [String; COLUMNS.len()] {
        fn cell<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
            value.map_or_else(String::new, text)
        }
        let count = |value: Option<u64>| cell(value, |n| n.to_string());
        let ms = |value: Option<u64>| cell(value, |ns| format!("{:.6}", ns as f64 / 1e6));
        let us = |value: Option<f64>| cell(value, |ns| format!("{:.3}", ns / 1e3));
        let pct = |value: Option<f64>| cell(value, |share| format!("{:.3}", share * 100.0));
        let whole = |value: Option<f64>| cell(value, |n| format!("{n:.0}"));
        let device = self.device.as_ref();
        [
            phase.name().to_owned(),
            self.operator.clone(),
            self.shapes.clone().unwrap_or_default(),
            count(self.steps),
            count(self.calls),
            cell(self.calls_per_step, |n| format!("{n:.3}")),
            ms(self.host_total_ns),
            ms(self.host_self_ns),
            us(self.host_mean_ns),
            us(self.host_range_ns.map(|(least, _)| least as f64)),
            us(self.host_range_ns.map(|(_, most)| most as f64)),
            pct(self.host_share),
            count(device.map(|device| device.launches)),
            cell(device, |device| format!("{:.6}", device.total_ns / 1e6)),
            us(device.map(|device| device.total_ns / device.steps.max(1) as f64)),
            pct(device.filter(|device| device.busy_ns > 0.0).map(|device| device.total_ns / device.busy_ns)),
            whole(self.flops),
            whole(self.bytes),
            count(self.heap.map(|heap| heap.allocated_bytes)),
            count(self.heap.map(|heap| heap.peak_bytes)),
        ]
    }

    fn timed(mut self, time: &OperatorTime, host: &HostOperators) -> Row {
        self.steps = Some(host.told_steps());
        self.calls = Some(time.calls);
        self.calls_per_step = Some(time.calls as f64 / host.told_steps().max(1) as f64);
        // Nothing lies within an operator: all of it is its own.
        (self.host_total_ns, self.host_self_ns) = (Some(time.ns), Some(time.ns));
        self.host_mean_ns = Some(time.ns as f64 / time.calls.max(1) as f64);
        self.host_range_ns = Some((time.min_ns, time.max_ns));
        self.host_share = share(time.ns, host);
        self.heap = time.heap;
        self
    }
}

fn share(ns: u64, host: &HostOperators) -> Option<f64> {
    (host.told_ns() > 0).then(|| ns as f64 / host.told_ns() as f64)
}

/// The step as a whole, steps that told no operators, then operator by operator as a step does them.
fn rows(state: &RunState, phase: Phase) -> Vec<Row> {
    let cost = state.step_cost(phase);
    let host = state.operators.of(phase).filter(|host| host.steps > 0);
    let live = state.kernels.live(phase).filter(|live| live.steps > 0);
    if cost.is_none() && host.is_none() && live.is_none() {
        return Vec::new();
    }
    let mut rows = vec![step(cost.as_ref(), host, live)];
    rows.extend(host.filter(|host| host.untold_steps > 0 && host.told_steps() > 0).map(untold));
    for &operator in Operator::ALL {
        let row = of_operator(operator, cost.as_ref(), host, live);
        rows.extend(row.map(|row| Row { shapes: state.operand_shapes(phase, operator), ..row }));
    }
    rows.extend(live.and_then(|live| device(live, |row| row.operator.is_none())).map(|device| Row {
        operator: "(others)".to_owned(),
        device: Some(device),
        ..Row::default()
    }));
    rows
}

fn step(cost: Option<&StepCost>, host: Option<&HostOperators>, live: Option<&LiveKernels>) -> Row {
    let total = cost.map(StepCost::total);
    Row {
        operator: "(step)".to_owned(),
        steps: host.map(|host| host.steps),
        calls: host.map(|host| host.steps),
        calls_per_step: host.map(|_| 1.0),
        host_total_ns: host.map(|host| host.host_ns),
        host_self_ns: host.filter(|host| host.told_steps() > 0).map(HostOperators::self_ns),
        host_mean_ns: host.map(|host| host.host_ns as f64 / host.steps as f64),
        device: live.and_then(|live| device(live, |_| true)),
        flops: total.map(|total| total.flops()),
        bytes: total.map(|total| total.bytes()),
        heap: host.and_then(|host| host.heap),
        ..Row::default()
    }
}

fn untold(host: &HostOperators) -> Row {
    Row {
        operator: "(steps without operators)".to_owned(),
        steps: Some(host.untold_steps),
        calls: Some(host.untold_steps),
        host_total_ns: Some(host.untold_ns),
        host_mean_ns: Some(host.untold_ns as f64 / host.untold_steps as f64),
        ..Row::default()
    }
}

fn of_operator(
    operator: Operator,
    cost: Option<&StepCost>,
    host: Option<&HostOperators>,
    live: Option<&LiveKernels>,
) -> Option<Row> {
    let costs = cost.and_then(|cost| cost.of(operator));
    let time = host.and_then(|host| Some((host.time_of(operator)?, host)));
    let device = live.and_then(|live| device(live, |row| row.operator == Some(operator)));
    if costs.is_none() && time.is_none() && device.is_none() {
        return None;
    }
    let row = Row {
        operator: operator.name().to_owned(),
        calls_per_step: costs.map(|costs| costs.calls as f64),
        device,
        flops: costs.map(|costs| costs.all.flops()),
        bytes: costs.map(|costs| costs.all.bytes()),
        ..Row::default()
    };
    Some(match time {
        Some((time, host)) => row.timed(time, host),
        None => row,
    })
}

fn device(live: &LiveKernels, which: impl Fn(&KernelRow) -> bool) -> Option<Device> {
    let rows = || live.rows.iter().filter(|row| which(row));
    rows().next()?;
    Some(Device {
        launches: rows().map(|row| row.calls).sum(),
        total_ns: rows().filter_map(|row| row.total_ns).sum(),
        steps: live.steps,
        busy_ns: live.busy_ns as f64,
    })
}
