//! Turns the events of a trace into tables.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    device::{GpuEvents, gpu_of, message_bytes},
    event::{Args, Category, Event},
    host::{Begun, NameId, Names, Order, Threads},
    links::Links,
    memory::Memory,
    nccl::Asynchronous,
    tables::{simple_row, timed},
};
use crate::{
    gpu::{Ran, filled},
    nsys::ranges::{Paths, range_table},
    ranks::Gathered,
    show::KERNEL_TIME,
    tally::{Durations, MAX_ROWS},
};
use llmprof_analysis::{
    ranks::Operation,
    steps::{StepPhase, step_of_engine},
};
use llmprof_base::units::grouped;
use llmprof_event::{
    kernels::{KernelRow, KernelTable, Kind, Platform, counters::Counter},
    ranks::Collective,
};

/// Maximum kernels whose operator may follow in the file: 40 bytes each.
const MAX_WAITING: usize = 1 << 21;

/// The counts so far.
#[derive(Debug, Default)]
pub struct Fold {
    names: Names,
    operators: Vec<OperatorTimes>,
    threads: Threads,
    paths: Paths,
    /// By path: durations and number of annotations, and the kernels launched in them.
    annotations: Vec<(Durations, u64)>,
    launched: Vec<(u64, f64)>,
    gpu_annotations: BTreeMap<i64, BTreeMap<String, Durations>>,
    gpus: BTreeMap<i64, GpuEvents>,
    ranks: Gathered,
    calls: HashMap<String, Durations>,
    memory: Memory,
    asynchronous: Asynchronous,
    /// Operators and annotations by external id, calls by correlation id: the external id, and the start.
    by_external: Links,
    external_of_call: Links,
    start_of_call: Links,
    waiting: Vec<Waiting>,
    platform: Platform,
    kernels: u64,
    without_operator: u64,
    events: u64,
    used: u64,
    unread: u64,
}

/// The calls of one operator.
#[derive(Debug, Default)]
struct OperatorTimes {
    calls: u64,
    /// Own time if events are ordered by their start, or by their end.
    own_by_start: Durations,
    own_by_end: Durations,
    with_children_ns: f64,
    kernels: u64,
    kernel_ns: f64,
}

/// A kernel that was read before its operator.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    external: Option<u64>,
    correlation: Option<u64>,
    ns: f64,
}

/// The operator and the annotations in which a kernel was launched.
#[derive(Debug, Clone, Copy)]
struct Launcher {
    operator: Option<NameId>,
    path: u32,
}

impl Launcher {
    fn packed(self) -> u64 {
        u64::from(self.operator.map_or(0, |operator| operator + 1)) << 32 | u64::from(self.path)
    }

    /// The annotations around a launch, then the operator.
    fn range(self, paths: &Paths, names: &Names) -> Option<String> {
        let path = paths.text(self.path);
        let operator = self.operator.map(|operator| names.text(operator));
        match (path, operator) {
            (Some(path), Some(operator)) => Some(format!("{path}/{operator}")),
            (path, operator) => path.or(operator).map(str::to_owned),
        }
    }

    fn unpack(packed: u64) -> Launcher {
        Launcher { operator: ((packed >> 32) as u32).checked_sub(1), path: packed as u32 }
    }
}

/// Facts about the file that are not events.
#[derive(Debug, Default)]
pub struct About {
    /// Names of GPUs by index.
    pub gpus: BTreeMap<i64, String>,
    pub rank: Option<(i64, Option<i64>)>,
    /// The origin of its times, in nanoseconds since 1970.
    pub base_ns: i64,
    /// The reason why the file was not read to its end.
    pub cut: Option<String>,
}

impl Fold {
    /// The work of the GPUs over time.
    pub fn take_ranks(&mut self) -> Gathered {
        std::mem::take(&mut self.ranks)
    }

    /// The number of events that were read, and of those that count.
    pub fn counts(&self) -> (u64, u64) {
        (self.events, self.used)
    }

    pub fn add(&mut self, event: &Event) {
        self.events += 1;
        if self.asynchronous.add(event) {
            self.used += 1;
            return;
        }
        let Some(category) = event.about() else { return };
        if category == Category::Memory {
            self.used += u64::from(self.memory.add(&event.args));
            return;
        }
        if event.phase != Some(b'X') {
            return;
        }
        let (Some(start), Some(duration)) = (event.start_us, event.duration_us.filter(|us| *us >= 0.0))
        else {
            self.unread += 1;
            return;
        };
        self.used += 1;
        let ran = Ran { start_ns: ns_of(start), ns: ns_of(duration) as f64 };
        match category {
            Category::Operator | Category::Annotation => self.host(event, category, ran),
            Category::GpuAnnotation => {
                if event.name.starts_with("ProfilerStep") {
                    self.ranks.step(gpu_of(event), ran.start_ns, ran.ns);
                }
                let by_name = self.gpu_annotations.entry(gpu_of(event)).or_default();
                count(by_name, step_name(&event.name), ran.ns);
            }
            Category::Call => self.call(event, ran),
            Category::Kernel => self.kernel(event, ran),
            Category::Copy => self.copy(event, ran),
            Category::Memory => {}
        }
    }

    fn host(&mut self, event: &Event, category: Category, ran: Ran) {
        let name = step_name(&event.name);
        let operator = (category == Category::Operator).then(|| self.names.number(name));
        let Fold { operators, paths, threads, .. } = self;
        let own = &mut |operator: NameId, ns: f64| of_number(operators, operator).own_by_start.add(ns);
        let enter = |around| if operator.is_some() { around } else { paths.within(around, name) };
        let thread = [&event.process, &event.thread];
        let Begun { path, own_by_end_ns } =
            threads.begin(thread, (ran.start_ns, ran.ns), operator, enter, own);
        match operator {
            Some(operator) => {
                let times = of_number(operators, operator);
                times.calls += 1;
                times.with_children_ns += ran.ns;
                if let Some(ns) = own_by_end_ns {
                    times.own_by_end.add(ns);
                }
            }
            None => {
                let (durations, count) = of_number(&mut self.annotations, path);
                durations.add(ran.ns);
                *count += 1;
            }
        }
        if let Some(external) = event.args.external {
            self.by_external.add(external, Launcher { operator, path }.packed());
        }
    }

    fn call(&mut self, event: &Event, ran: Ran) {
        // On ROCm, Kineto names the category after CUDA too.
        if event.name.starts_with("hip") {
            self.platform = Platform::Hip;
        } else if event.category == "mtia_runtime" {
            self.platform = Platform::Other;
        }
        if let Some(correlation) = event.args.correlation {
            self.start_of_call.add(correlation, ran.start_ns as u64);
            if let Some(external) = event.args.external {
                self.external_of_call.add(correlation, external);
            }
        }
        let known = self.calls.len() < MAX_ROWS || self.calls.contains_key(&event.name);
        let name = if known { event.name.as_str() } else { "(other calls)" };
        match self.calls.get_mut(name) {
            Some(durations) => durations.add(ran.ns),
            None => self.calls.entry(name.to_owned()).or_default().add(ran.ns),
        }
    }

    fn launcher(&self, external: Option<u64>, correlation: Option<u64>) -> Option<Launcher> {
        let external = external.or_else(|| self.external_of_call.get(correlation?))?;
        self.by_external.get(external).map(Launcher::unpack)
    }

    fn copy(&mut self, event: &Event, ran: Ran) {
        self.ranks.copy((None, gpu_of(event)), ran.start_ns, ran.ns);
        GpuEvents::entry(&mut self.gpus, event, ran).operations.copy(&event.name, event.args.bytes, ran);
    }

    fn kernel(&mut self, event: &Event, ran: Ran) {
        let args = &event.args;
        self.kernels += 1;
        let place = (None, gpu_of(event));
        match self.ranks.collective(&event.name) {
            Some(kind) => self.ranks.operation(place, ran.start_ns, ran.ns, operation(kind, args)),
            None => self.ranks.compute(place, ran.start_ns, ran.ns),
        }
        let launcher = self.launcher(args.external, args.correlation);
        match launcher {
            Some(launcher) => self.launch(launcher, ran.ns),
            None if self.waiting.len() < MAX_WAITING => {
                let (external, correlation) = (args.external, args.correlation);
                self.waiting.push(Waiting { external, correlation, ns: ran.ns });
            }
            None => self.without_operator += 1,
        }
        let called = args.correlation.and_then(|correlation| self.start_of_call.get(correlation));
        let Fold { gpus, paths, names, .. } = self;
        let number = launcher.map_or(u64::MAX, Launcher::packed);
        let range = || launcher.and_then(|launcher| launcher.range(paths, names));
        GpuEvents::entry(gpus, event, ran).kernel(event, ran, number, called.map(|ns| ns as i64), range);
    }

    fn launch(&mut self, launcher: Launcher, ns: f64) {
        if let Some(operator) = launcher.operator {
            let times = of_number(&mut self.operators, operator);
            times.kernels += 1;
            times.kernel_ns += ns;
        }
        let (launches, total) = of_number(&mut self.launched, launcher.path);
        *launches += 1;
        *total += ns;
    }

    /// The tables: kernels of each GPU, operators, annotations, calls, copies, streams, memory.
    pub fn tables(mut self, about: &About) -> Vec<KernelTable> {
        for waiting in std::mem::take(&mut self.waiting) {
            match self.launcher(waiting.external, waiting.correlation) {
                Some(launcher) => self.launch(launcher, waiting.ns),
                None => self.without_operator += 1,
            }
        }
        let Fold { threads, operators, .. } = &mut self;
        threads.end(&mut |operator, ns| of_number(operators, operator).own_by_start.add(ns));
        let notes = self.notes(about);
        let several = self.gpus.len() > 1;
        let device = |number: i64| match (about.gpus.get(&number), several) {
            (Some(name), true) => format!("{name} (GPU {number})"),
            (Some(name), false) => name.clone(),
            (None, _) => format!("GPU {number}"),
        };
        let (mut kernels, mut copies, mut streams) = (Vec::new(), Vec::new(), Vec::new());
        for (number, gpu) in std::mem::take(&mut self.gpus) {
            let named = device(number);
            let note = gpu.collectives();
            streams.extend(gpu.streams.iter().map(|(stream, (operations, ns))| {
                let name = if several {
                    format!("GPU {number}, stream {stream}")
                } else {
                    format!("stream {stream}")
                };
                let mean_ns = Some(ns / *operations as f64);
                KernelRow { calls: *operations, total_ns: Some(*ns), mean_ns, ..simple_row(name) }
            }));
            let [mut table, copied] = gpu.operations.into_tables("PyTorch trace", Some(&named));
            table.iter_mut().for_each(|table| table.notes.extend(note.clone()));
            kernels.extend(table);
            copies.extend(copied);
        }
        let mut tables = kernels;
        let without_kernels = tables.is_empty();
        tables.extend(self.operator_table());
        self.launched.resize(self.paths.len(), (0, 0.0));
        let annotations = std::mem::take(&mut self.annotations);
        tables.extend(range_table(
            "PyTorch trace, annotations on the host",
            &self.paths,
            annotations,
            &self.launched,
        ));
        for (number, by_name) in self.gpu_annotations {
            let source = "PyTorch trace, annotations on the GPU";
            tables.extend(timed(source, Kind::Ranges, by_name, Some(&device(number))));
        }
        let calls = format!("PyTorch trace, {}", self.platform.calls());
        tables.extend(timed(&calls, Kind::ApiCalls, self.calls, None));
        tables.extend(copies);
        tables.extend(filled("PyTorch trace, streams", Kind::Streams, streams, None));
        tables.extend(self.memory.table());
        tables.extend(self.asynchronous.table());
        tables.iter_mut().for_each(|table| table.platform = self.platform);
        if let Some(first) = tables.first_mut() {
            first.notes.extend(notes);
            if without_kernels && first.kind == Kind::Operators {
                first.notes.push(
                    "no kernels were recorded: the program launched none, or ran without ProfilerActivity.CUDA"
                        .to_owned(),
                );
            }
        }
        tables
    }

    fn operator_table(&mut self) -> Option<KernelTable> {
        let mut rows = Vec::new();
        for (number, times) in std::mem::take(&mut self.operators).into_iter().enumerate() {
            if times.calls == 0 && times.kernels == 0 {
                continue;
            }
            let row = simple_row(self.names.text(number as NameId).to_owned());
            let mut row = match self.threads.order() {
                Order::ByStart => times.own_by_start.into_row(row),
                Order::ByEnd => times.own_by_end.into_row(row),
                Order::Unknown => row,
            };
            row.calls = times.calls;
            let kernel_ns = (times.kernels > 0).then_some(times.kernel_ns);
            for (name, value) in [("with children", Some(times.with_children_ns)), (KERNEL_TIME, kernel_ns)] {
                let Some(value) = value else { continue };
                let mut counter = Counter::NONE;
                counter.add(value, 1.0);
                row.counters.merge(&Arc::from(name), &Arc::from("ns"), &counter);
            }
            rows.push(row);
        }
        filled("PyTorch trace, operators on the host", Kind::Operators, rows, None)
    }

    fn notes(&self, about: &About) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some((rank, ranks)) = about.rank {
            let of = ranks.map(|ranks| format!(" of {ranks}")).unwrap_or_default();
            notes.push(format!("rank {rank}{of} of a distributed run"));
        }
        let n = |count: u64| grouped(i64::try_from(count).unwrap_or(i64::MAX));
        if let Some(cut) = &about.cut {
            notes.push(format!("only the first {} events could be read: {cut}", n(self.events)));
        }
        if self.unread > 0 {
            notes.push(format!("{} events without a duration could not be read", n(self.unread)));
        }
        if self.without_operator > 0 {
            notes.push(format!(
                "{} of {} kernels have no operator",
                n(self.without_operator),
                n(self.kernels)
            ));
        }
        match self.threads.order() {
            Order::ByStart => {}
            Order::ByEnd => notes.push(
                "annotations of kernels are unknown: operators are in the order of their end".to_owned(),
            ),
            Order::Unknown => notes.push("operators are in no order: their own time is unknown".to_owned()),
        }
        let dropped = self.by_external.dropped + self.external_of_call.dropped;
        if dropped > 0 {
            notes.push(format!("{} operators and calls were too many to be assigned to kernels", n(dropped)));
        }
        notes
    }
}

/// The information of PyTorch about a collective.
fn operation(kind: Collective, args: &Args) -> Operation {
    let named = args
        .collective
        .as_deref()
        .map(|name| Collective::in_name(&name.to_ascii_lowercase().replace('_', "")));
    Operation {
        kind: named.filter(|kind| *kind != Collective::Unknown).unwrap_or(kind),
        bytes: message_bytes(args).map(|bytes| bytes as u64),
        communicator: args.group,
        ranks: args.group_size.and_then(|size| u32::try_from(size).ok()).filter(|size| *size > 0),
    }
}

/// The element with this index; creates it and all before it.
fn of_number<T: Default>(all: &mut Vec<T>, number: u32) -> &mut T {
    let at = number as usize;
    if at >= all.len() {
        all.resize_with(at + 1, T::default);
    }
    &mut all[at]
}

fn count(by_name: &mut BTreeMap<String, Durations>, name: &str, ns: f64) {
    let name = if by_name.len() < MAX_ROWS || by_name.contains_key(name) { name } else { "(others)" };
    match by_name.get_mut(name) {
        Some(durations) => durations.add(ns),
        None => by_name.entry(name.to_owned()).or_default().add(ns),
    }
}

/// Exact to the nanosecond, also for times since 1970, whose nanoseconds exceed the precision of a float.
fn ns_of(us: f64) -> i64 {
    (us.trunc() as i64).saturating_mul(1000).saturating_add((us.fract() * 1e3).round() as i64)
}

/// `ProfilerStep` of `ProfilerStep#12`: the steps are one annotation. So are the steps of a phase that an engine names
/// with their numbers of requests and tokens.
fn step_name(name: &str) -> &str {
    if let Some((step @ "ProfilerStep", _)) = name.split_once('#') {
        return step;
    }
    match step_of_engine(name) {
        Some(StepPhase::Decode) => "decode steps",
        Some(StepPhase::Prefill) => "prefill steps",
        Some(StepPhase::Mixed) => "mixed steps",
        Some(StepPhase::Other) => "steps without requests",
        None => name,
    }
}
