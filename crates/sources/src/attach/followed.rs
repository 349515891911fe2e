//! A process that is followed: its records become steps, windows of kernels, and the record of its rank.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    time::{Duration, Instant},
};

use llmprof_inject::wire::{self, Command, Mode, Obstacle};

use super::{
    connection::Connection,
    process_info::ProcessInfo,
    ranks::RankRecord,
    stacks::StackFollower,
    transcript::{Message, RunClock},
};
use llmprof_analysis::steps::{Finding, Fold, Range};
use llmprof_base::gz;
use llmprof_event::{
    Event, EventTx, KernelTrace, Level, Stamp, TraceState,
    kernels::{
        records::{Entry, Writer},
        work::{DeviceActivity, Direction, KernelLaunch, WorkKind},
    },
};

/// The interval between timelines.
pub const TIMELINE_INTERVAL: Duration = Duration::from_secs(5);
/// An hour: longer than any kernel, copy or wait, and short enough for the sum of millions of them.
const LONGEST_WORK_NS: u64 = 3_600_000_000_000;
/// Maximum switches of the mode within a window, and maximum obstacles of a process.
const MAX_SWITCHES: u32 = 200;
const MAX_OBSTACLES: usize = 8;

pub struct FollowedProcess {
    pub connection: Connection,
    pub fold: Fold,
    mode: Mode,
    pub asked: Option<Command>,
    version: Option<u32>,
    dropped: u64,
    timeline_at: Option<Instant>,
    pub last_said: Instant,
    finding: Option<Finding>,
    /// Obstacles that were reported, and switches of its mode since the last window: a program could report either
    /// endlessly.
    obstacles: Vec<Obstacle>,
    switches: u32,
    /// Whether its bursts are those of the run: workers have theirs at about the same time.
    pub leads: bool,
    pub has_worked: bool,
    /// Everything that it had written by this time was read.
    pub read_until_ns: u64,
    joined_at: Instant,
    pub ranks: RankRecord,
    records: Option<Records>,
    /// The lines of its Python threads, if they are sampled.
    stacks: Option<StackFollower>,
    /// Whether everything was read.
    is_closed: bool,
    /// When recording was last switched on or off.
    switched_ns: u64,
}

impl FollowedProcess {
    pub fn new(
        connection: Connection,
        info: Option<&ProcessInfo>,
        records: Option<Records>,
        stacks: Option<StackFollower>,
        now: Stamp,
    ) -> FollowedProcess {
        let mut fold = Fold::default();
        if stacks.is_some() {
            // Kernels are kept from now on.
            let _ = fold.take_kernels();
        }
        FollowedProcess {
            ranks: RankRecord::new(connection.pid, info),
            connection,
            fold,
            mode: Mode::Nothing,
            asked: None,
            version: None,
            dropped: 0,
            timeline_at: None,
            last_said: Instant::now(),
            finding: None,
            obstacles: Vec::new(),
            switches: 0,
            leads: false,
            has_worked: false,
            joined_at: Instant::now(),
            read_until_ns: now.0,
            switched_ns: 1,
            records,
            stacks,
            is_closed: false,
        }
    }

    pub fn may_make_contexts(&self) -> bool {
        !self.has_worked && self.joined_at.elapsed() < wire::SET_UP_AT_MOST
    }

    pub fn read(&mut self, tx: &EventTx, clock: RunClock) -> bool {
        let FollowedProcess {
            connection,
            fold,
            mode,
            version,
            last_said,
            leads,
            has_worked,
            obstacles,
            switches,
            ranks,
            records,
            stacks,
            switched_ns,
            ..
        } = self;
        let pid = connection.pid;
        let mut count = 0u64;
        let more = connection.read(clock, &mut |what| {
            count += 1;
            match what {
                Message::Work { work, name } => {
                    *has_worked = true;
                    let work = device_work(fold, &work, name);
                    records.iter_mut().for_each(|records| records.write(&Entry::Work(work), name));
                    ranks.work(&work, |name| fold.class(name));
                    if let Some(stacks) = stacks.as_mut().filter(|_| !matches!(work.kind, WorkKind::Sync)) {
                        stacks.work(work.start_ns, work.end_ns);
                    }
                    fold.add(work);
                }
                Message::Range { text, start_ns, end_ns, payload: Some(payload), .. } => {
                    ranks.call(text, (start_ns, end_ns), &payload);
                }
                Message::Range { domain, text, thread, start_ns, end_ns, payload: None } => {
                    let thread_id = u64::from(thread);
                    let range = Entry::Range { start_ns, end_ns, thread: thread_id, domain, text };
                    records.iter_mut().for_each(|records| records.write(&range, None));
                    fold.add_range(&Range {
                        domain: domain.to_owned(),
                        text: text.to_owned(),
                        thread: u64::from(thread),
                        start_ns,
                        end_ns,
                    });
                }
                Message::Stack { number, frames } => {
                    stacks.iter_mut().for_each(|stacks| stacks.stack(number, frames));
                }
                Message::Launch { correlation, stack } => {
                    stacks.iter_mut().for_each(|stacks| stacks.launch(correlation, stack));
                }
                Message::Device { number, uuid } => ranks.device(number, uuid),
                Message::Mode { at_ns, mode: now } => {
                    let was = std::mem::replace(mode, now);
                    // A library that is ending no longer has a clock.
                    let at = if at_ns >= *switched_ns { Stamp(at_ns) } else { tx.clock().now() };
                    *switched_ns = at.0;
                    if (was == Mode::Burst) != (now == Mode::Burst) {
                        let switch = Entry::Switch { at_ns: at.0, on: now == Mode::Burst };
                        records.iter_mut().for_each(|records| records.write(&switch, None));
                    }
                    let state = match (was == Mode::Burst, now == Mode::Burst) {
                        (false, true) => {
                            fold.begin_burst(at.0);
                            ranks.begin(at.0);
                            stacks.iter_mut().for_each(|stacks| stacks.begin_burst(at.0));
                            TraceState::On
                        }
                        (true, false) => {
                            fold.end_burst(at.0);
                            ranks.end(at.0);
                            stacks.iter_mut().for_each(|stacks| stacks.end_burst(at.0));
                            TraceState::Off
                        }
                        _ => return,
                    };
                    *switches += 1;
                    if *leads && *switches <= MAX_SWITCHES {
                        tx.send_at(at, Event::KernelTrace(KernelTrace { tool: tool(*version), state }));
                    }
                }
                Message::Obstacle(obstacle) => {
                    if obstacles.len() < MAX_OBSTACLES && !obstacles.contains(&obstacle) {
                        obstacles.push(obstacle);
                        tx.notice(Level::Warn, "program", obstacle_text(pid, obstacle));
                    }
                }
                Message::Version(number) => *version = Some(number),
                Message::Dropped(lost) => {
                    records.iter_mut().for_each(|records| records.write(&Entry::Dropped(lost), None));
                    stacks.iter_mut().for_each(StackFollower::lose);
                    fold.add_dropped(lost);
                }
            }
        });
        if count > 0 {
            *last_said = Instant::now();
        }
        if let Some(layout) = stacks.as_ref().and_then(StackFollower::take_layout) {
            connection.ask(Command::Frames(layout));
        }
        if *switches > MAX_SWITCHES {
            // The library never does that.
            connection.is_gone = true;
        }
        let dropped = self.connection.dropped();
        self.fold.add_dropped(dropped.saturating_sub(self.dropped));
        self.dropped = self.dropped.max(dropped);
        if self.timeline_at.is_none_or(|at| at.elapsed() >= TIMELINE_INTERVAL) {
            self.fold.request_timelines();
        }
        more
    }

    /// Reads the remaining records of a program that has ended.
    pub fn close(&mut self, tx: &EventTx, clock: RunClock) {
        while self.read(tx, clock) {}
        if self.mode == Mode::Burst && self.leads {
            let state = TraceState::Off;
            tx.send(Event::KernelTrace(KernelTrace { tool: tool(self.version), state }));
        }
        self.fold.finish();
        self.is_closed = true;
        if let Some(records) = &mut self.records {
            records.finish();
        }
    }

    /// Sends windows and timelines. Returns whether there were kernels.
    pub fn report(&mut self, tx: &EventTx) -> bool {
        let mut has_kernels = false;
        for window in self.fold.windows() {
            has_kernels = true;
            tx.send(Event::Kernels(Box::new(window.window)));
        }
        for recorded in self.fold.timelines() {
            self.timeline_at = Some(Instant::now());
            let mut timeline = recorded.timeline;
            timeline.at = Some(Stamp(recorded.first_ns));
            tx.send(Event::StepTimeline(Box::new(timeline)));
        }
        // The records of the samples' time may still be on their way.
        let until = (!self.is_closed).then_some(self.read_until_ns);
        if let Some(stacks) = self.stacks.as_mut().and_then(|stacks| stacks.take(until)) {
            tx.send(Event::HostStacks(Box::new(stacks)));
        }
        let is_closed = self.is_closed;
        if let Some(stacks) = &mut self.stacks {
            let kernels = self.fold.take_kernels();
            let names = self.fold.names();
            let kernels = kernels.into_iter().map(|kernel| (names.text(kernel.name), kernel));
            if let Some(lines) = stacks.take_launches(kernels, is_closed) {
                tx.send(Event::LaunchLines(Box::new(lines)));
            }
            if let Some(warning) = stacks.take_warning() {
                tx.notice(Level::Warn, "program", warning);
            }
        }
        self.switches = 0;
        let finding = self.fold.finding();
        let is_new = self.finding.is_none_or(|known| !known.is_like(&finding));
        if is_new && !self.fold.names().is_empty() {
            tx.notice(Level::Info, "steps", finding.to_string());
            tx.send(Event::StepsFound(finding));
            self.finding = Some(finding);
        }
        has_kernels
    }

    pub fn pid(&self) -> u32 {
        self.connection.pid
    }

    pub fn fold(&mut self) -> &mut Fold {
        &mut self.fold
    }

    pub fn ranks(&mut self) -> &mut RankRecord {
        &mut self.ranks
    }
}

/// The file with every record of a process.
pub(super) struct Records {
    writer: Option<Writer<BufWriter<Box<dyn Write + Send>>>>,
}

impl Records {
    pub fn create(dir: &Path, pid: u32, tx: &EventTx) -> Option<Records> {
        let path = dir.join(format!("records-{pid}.tsv.gz"));
        match File::create_new(&path) {
            Ok(file) => {
                let compressed: Box<dyn Write + Send> = Box::new(gz::writer(file));
                Some(Records { writer: Some(Writer::new(BufWriter::new(compressed))) })
            }
            Err(e) => {
                tx.notice(Level::Warn, "program", format!("cannot write {}: {e}", path.display()));
                None
            }
        }
    }

    /// A write error ends the file.
    fn write(&mut self, entry: &Entry<'_>, name: Option<&str>) {
        let Some(writer) = &mut self.writer else { return };
        if writer.write(entry, name.unwrap_or("(unnamed)")).is_err() {
            self.writer = None;
        }
    }

    fn finish(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            let _ = writer.flush();
        }
    }
}

fn tool(version: Option<u32>) -> String {
    match version {
        Some(version @ 130_000..) => format!("CUPTI {}.{}", version / 10_000, version / 100 % 100),
        _ => "CUPTI".to_owned(),
    }
}

fn obstacle_text(pid: u32, obstacle: Obstacle) -> String {
    match obstacle {
        Obstacle::NoCupti => format!(
            "process {pid}: CUPTI was not found in the program nor beside its CUDA; install nvidia-cuda-cupti beside it, or set \
             LLMPROF_CUPTI to a libcupti.so of its CUDA version"
        ),
        Obstacle::Failed(error) => {
            format!("process {pid}: CUPTI fails with error {error}: kernels are not recorded")
        }
        Obstacle::InUse => {
            format!("process {pid} profiles itself, or another tool does: kernels are not recorded meanwhile")
        }
        Obstacle::NoContext => {
            format!(
                "process {pid} has no visible CUDA context: its kernels are recorded once it has one, or {} s after \
                 CUDA's initialisation",
                wire::SET_UP_AT_MOST.as_secs()
            )
        }
    }
}

/// Passes a record of the library to the fold.
pub fn device_work(fold: &mut Fold, work: &wire::ActivityRecord, name: Option<&str>) -> DeviceActivity {
    let kind = match work.kind {
        wire::WorkKind::Kernel { launch, .. } => WorkKind::Kernel {
            name: fold.name(name.unwrap_or("(unnamed)")),
            launch: KernelLaunch {
                grid: launch.grid,
                block: launch.block.map(u32::from),
                registers: launch.registers,
                shared_bytes: launch.shared_bytes,
            },
        },
        wire::WorkKind::Copy { direction, bytes } => {
            WorkKind::Copy { direction: Direction::of_cupti(direction), bytes }
        }
        wire::WorkKind::Memset { bytes } => WorkKind::Memset { bytes },
        wire::WorkKind::Graph => WorkKind::Graph { graph: work.graph },
        wire::WorkKind::Wait { .. } => WorkKind::Sync,
    };
    // The program may write any numbers: implausible times count as unknown.
    let is_believable =
        work.end_ns.saturating_sub(work.start_ns) <= LONGEST_WORK_NS && work.end_ns < u64::MAX / 4;
    let [start_ns, end_ns] = if is_believable { [work.start_ns, work.end_ns] } else { [0; 2] };
    DeviceActivity {
        start_ns,
        end_ns,
        stream: work.stream,
        device: work.device,
        correlation: work.correlation,
        graph: (work.graph > 0 && !matches!(kind, WorkKind::Graph { .. })).then_some(work.graph),
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_no_gpu_has_are_none() {
        let timed = |start_ns, end_ns| {
            let kind = wire::WorkKind::Memset { bytes: 8 };
            let work = wire::ActivityRecord {
                start_ns,
                end_ns,
                correlation: 1,
                stream: 7,
                device: 0,
                graph: 0,
                kind,
            };
            device_work(&mut Fold::default(), &work, None).is_timed()
        };
        assert!(timed(5, 9) && timed(1 << 60, (1 << 60) + LONGEST_WORK_NS));
        assert!(!timed(5, u64::MAX) && !timed(1, 2 + LONGEST_WORK_NS) && !timed(1 << 63, (1 << 63) + 9));
    }
}
