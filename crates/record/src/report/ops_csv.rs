//! The operators of a run as rows: `ops.csv`. A value that was not measured is an empty cell.

use crate::state::{HostOperators, LiveKernels, RunState};
use llm_cost::{
    Operator,
    cost::{Amounts, StepCost},
};
use llmprof_base::csv::csv_text;
use llmprof_event::{HeapGrowth, OperatorTime, Phase, kernels::KernelRow};

/// The columns in their order; docs/operators.md defines them.
pub const COLUMNS: [&str; 21] = [
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
    "device_steps",
    "device_launches",
    "device_total_ms",
    "device_us_per_step",
    "device_pct",
    "flops_per_step",
    "bytes_per_step",
    "allocated_bytes",
    "peak_bytes",
];

/// `None` if neither operators nor kernels nor a shape were recorded.
pub(super) fn ops_csv(state: &RunState) -> Option<String> {
    let mut all = vec![COLUMNS.map(str::to_owned)];
    for phase in Phase::WORK {
        all.extend(rows(state, phase).iter().map(|row| row.cells(phase)));
    }
    (all.len() > 1).then(|| csv_text(&all))
}

#[derive(Default)]
struct OperatorCsvRow {
    operator: String,
    shapes: Option<String>,
    steps: Option<u64>,
    calls: Option<u64>,
    calls_per_step: Option<f64>,
    host_total_ns: Option<u64>,
    host_self_ns: Option<u64>,
    host_range_ns: Option<(u64, u64)>,
    host_share: Option<f64>,
    device: Option<Device>,
    cost: Option<Amounts>,
    heap: Option<HeapGrowth>,
}

struct Device {
    launches: u64,
    total_ns: f64,
    steps: u64,
    busy_ns: f64,
}

impl OperatorCsvRow {
    fn cells(&self, phase: Phase) -> [String; COLUMNS.len()] {
        fn cell<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
            value.map_or_else(String::new, text)
        }
        let count = |value: Option<u64>| cell(value, |n| n.to_string());
        let ms = |value: Option<u64>| cell(value, |ns| format!("{:.6}", ns as f64 / 1e6));
        let us = |value: Option<f64>| cell(value, |ns| format!("{:.3}", ns / 1e3));
        let pct = |value: Option<f64>| cell(value, |share| format!("{:.3}", share * 100.0));
        let rounded = |value: Option<f64>| cell(value, |n| format!("{n:.0}"));
        let mean = self.host_total_ns.zip(self.calls).map(|(ns, calls)| ns as f64 / calls.max(1) as f64);
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
            us(mean),
            us(self.host_range_ns.map(|(min, _)| min as f64)),
            us(self.host_range_ns.map(|(_, max)| max as f64)),
            pct(self.host_share),
            count(device.map(|device| device.steps)),
            count(device.map(|device| device.launches)),
            cell(device, |device| format!("{:.6}", device.total_ns / 1e6)),
            us(device.map(|device| device.total_ns / device.steps.max(1) as f64)),
            pct(device.filter(|device| device.busy_ns > 0.0).map(|device| device.total_ns / device.busy_ns)),
            rounded(self.cost.map(|cost| cost.flops())),
            rounded(self.cost.map(|cost| cost.bytes())),
            count(self.heap.map(|heap| heap.allocated_bytes)),
            count(self.heap.map(|heap| heap.peak_bytes)),
        ]
    }

    fn timed(self, time: &OperatorTime, host: &HostOperators) -> OperatorCsvRow {
        OperatorCsvRow {
            steps: Some(host.attributed_steps()),
            calls: Some(time.calls),
            calls_per_step: Some(time.calls as f64 / host.attributed_steps().max(1) as f64),
            host_total_ns: Some(time.ns),
            // Operators are not nested: the total time is self time.
            host_self_ns: Some(time.ns),
            host_range_ns: Some((time.min_ns, time.max_ns)),
            host_share: (host.attributed_ns() > 0).then(|| time.ns as f64 / host.attributed_ns() as f64),
            heap: time.heap,
            ..self
        }
    }
}

/// The step, the steps without operators, then the operators in execution order.
fn rows(state: &RunState, phase: Phase) -> Vec<OperatorCsvRow> {
    let cost = state.step_cost(phase);
    let host = state.operators.phase(phase).filter(|host| host.steps > 0);
    let live = state.kernels.live(phase).filter(|live| live.total.steps > 0);
    if cost.is_none() && host.is_none() && live.is_none() {
        return Vec::new();
    }
    let mut rows = vec![step(cost.as_ref(), host, live)];
    rows.extend(
        host.filter(|host| host.unattributed_steps > 0 && host.attributed_steps() > 0).map(without_operators),
    );
    for &operator in Operator::ALL {
        let row = of_operator(operator, cost.as_ref(), host, live);
        rows.extend(row.map(|row| OperatorCsvRow { shapes: state.operand_shapes(phase, operator), ..row }));
    }
    rows.extend(live.and_then(|live| device(live, |row| row.operator.is_none())).map(|device| {
        OperatorCsvRow { operator: "(others)".to_owned(), device: Some(device), ..OperatorCsvRow::default() }
    }));
    rows
}

fn step(cost: Option<&StepCost>, host: Option<&HostOperators>, live: Option<&LiveKernels>) -> OperatorCsvRow {
    OperatorCsvRow {
        operator: "(step)".to_owned(),
        steps: host.map(|host| host.steps),
        calls: host.map(|host| host.steps),
        calls_per_step: host.map(|_| 1.0),
        host_total_ns: host.map(|host| host.host_ns),
        host_self_ns: host.filter(|host| host.attributed_steps() > 0).map(HostOperators::self_ns),
        device: live.and_then(|live| device(live, |_| true)),
        cost: cost.map(StepCost::total),
        heap: host.and_then(|host| host.heap),
        ..OperatorCsvRow::default()
    }
}

fn without_operators(host: &HostOperators) -> OperatorCsvRow {
    OperatorCsvRow {
        operator: "(steps without operators)".to_owned(),
        steps: Some(host.unattributed_steps),
        calls: Some(host.unattributed_steps),
        host_total_ns: Some(host.unattributed_ns),
        ..OperatorCsvRow::default()
    }
}

fn of_operator(
    operator: Operator,
    cost: Option<&StepCost>,
    host: Option<&HostOperators>,
    live: Option<&LiveKernels>,
) -> Option<OperatorCsvRow> {
    let costs = cost.and_then(|cost| cost.operator(operator));
    let time = host.and_then(|host| Some((host.time_of(operator)?, host)));
    let device = live.and_then(|live| device(live, |row| row.operator == Some(operator)));
    // The operators within layers have a cost in any case, but are operators of only some steps.
    let is_known = costs.is_some() && operator != Operator::Layers;
    if !is_known && time.is_none() && device.is_none() {
        return None;
    }
    let row = OperatorCsvRow {
        operator: operator.name().to_owned(),
        calls_per_step: costs.map(|costs| costs.calls as f64),
        device,
        cost: costs.map(|costs| costs.all),
        ..OperatorCsvRow::default()
    };
    Some(match time {
        Some((time, host)) => row.timed(time, host),
        None => row,
    })
}

fn device(live: &LiveKernels, which: impl Fn(&KernelRow) -> bool) -> Option<Device> {
    let rows = || live.total.rows.iter().filter(|row| which(row));
    rows().next()?;
    Some(Device {
        launches: rows().map(|row| row.calls).sum(),
        total_ns: rows().filter_map(|row| row.total_ns).sum(),
        steps: live.total.steps,
        busy_ns: live.total.busy_ns as f64,
    })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use llmprof_event::{Envelope, Event, OperatorWindow, Stamp};

    /// A window whose operators take at most the time of its steps.
    fn any_window() -> impl Strategy<Value = OperatorWindow> {
        let time = (0..Operator::ALL.len(), 1..50u64, 0..9_000u64);
        (any::<bool>(), 0..9u64, 0..3u64, 0..5_000u64, vec(time, 0..6)).prop_map(
            |(prefill, attributed_steps, unattributed_steps, more_ns, times)| {
                let mut operators: Vec<OperatorTime> = Vec::new();
                for (at, calls, ns) in times.into_iter().filter(|_| attributed_steps > 0) {
                    let operator = Operator::ALL[at];
                    if operators.iter().all(|known| known.operator != operator) {
                        let heap = Some(HeapGrowth { allocated_bytes: ns, peak_bytes: calls });
                        operators.push(OperatorTime { operator, calls, ns, min_ns: 0, max_ns: ns, heap });
                    }
                }
                let inside: u64 = operators.iter().map(|time| time.ns).sum();
                let unattributed_ns = unattributed_steps * 7;
                OperatorWindow {
                    phase: if prefill { Phase::Prefill } else { Phase::Decode },
                    steps: attributed_steps + unattributed_steps,
                    host_ns: if attributed_steps > 0 { inside + more_ns } else { 0 } + unattributed_ns,
                    unattributed_steps,
                    unattributed_ns,
                    operators,
                    ..OperatorWindow::default()
                }
            },
        )
    }

    proptest! {
        /// Operators, the time outside them and the steps without operators add up to all steps.
        #[test]
        fn rows_add_up_to_the_step(windows in vec(any_window(), 1..12)) {
            let mut state = RunState::default();
            for window in &windows {
                state.apply(&Envelope { t: Stamp(1), event: Event::Operators(Box::new(window.clone())) });
            }
            let Some(text) = ops_csv(&state) else {
                prop_assert!(windows.iter().all(|window| window.steps == 0));
                return Ok(());
            };
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.unwrap()).collect();
            let at = |name: &str| COLUMNS.iter().position(|column| *column == name).unwrap();
            let ms = |row: &csv::StringRecord, name: &str| row[at(name)].parse::<f64>().unwrap_or(0.0);
            for phase in [Phase::Prefill, Phase::Decode] {
                let of_phase: Vec<&csv::StringRecord> =
                    rows.iter().filter(|row| row[0] == *phase.name()).collect();
                let Some((step, parts)) = of_phase.split_first() else { continue };
                let total: u64 =
                    windows.iter().filter(|window| window.phase == phase).map(|window| window.host_ns).sum();
                prop_assert!((ms(step, "host_total_ms") - total as f64 / 1e6).abs() < 1e-9);
                let attributed = state.operators.phase(phase).unwrap().attributed_steps() > 0;
                prop_assert_eq!(step[at("host_self_ms")].is_empty(), !attributed, "never 0 for a missing value");
                if attributed {
                    let parts: f64 = parts.iter().map(|row| ms(row, "host_total_ms")).sum();
                    prop_assert!((parts + ms(step, "host_self_ms") - total as f64 / 1e6).abs() < 1e-4);
                }
            }
        }
    }
}
