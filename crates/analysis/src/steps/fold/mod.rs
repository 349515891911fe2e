//! The fold of device work into steps, windows and timelines, in bounded memory.

mod reported;
mod unmeasured;
mod untimed;
mod usual;

use std::{
    collections::{HashMap, VecDeque},
    ops::Range as Indices,
};

use super::{
    Basis, Class, Confidence, Counts, Finding, NoSteps, Overlaps, ProgramWindow, Range, RecordedTimeline,
    Step, StepPhase, Tokens,
    cut::{Cuts, cut},
    layers,
    marks::{Chosen, Mark, Marks},
    nvtx::{self, Reported},
    overlap,
    phase::{Rows, Sequences},
};
use llmprof_event::kernels::{
    window::{StepSums, StepWork, in_order, timeline, without_overlap},
    work::{DeviceActivity, MEMSET, NameId, Names, WorkKind},
};

/// Records of work arrive within this time of its start, apart from lost ones.
const SETTLE_NS: u64 = 500_000_000;
/// Work of one burst that is kept until its steps are known.
const MAX_SEQUENCE: usize = 400_000;
/// A burst without an end is analysed in parts of this many works, or this long.
const PART: usize = 40_000;
const PART_NS: u64 = 1_000_000_000;
/// Work that waits to be settled.
const MAX_PENDING: usize = 262_144;
/// In a shorter pause between bursts, a kernel may have run for half of it.
const MIN_PAUSE_NS: u64 = 50_000_000;
/// Steps and ranges that wait to be taken.
const MAX_STEPS: usize = 65_536;
const MAX_RANGES: usize = 4_096;
const MAX_BURSTS: usize = 64;
/// Steps that the confidence refers to.
const RECENT: usize = 64;
/// So many equal steps are the usual ones.
const USUAL_STEPS: usize = 8;
/// Bursts without steps after which what earlier ones taught is forgotten.
const FORGET_AFTER: u32 = 3;
/// A burst shows that there are no steps if it has room for so many of the longest of the last ones.
const ROOM_FOR: u64 = 4;
const LAST_STEPS: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Burst {
    from_ns: u64,
    to_ns: Option<u64>,
    /// The start of its last kernel. The GPU may be seconds behind the host.
    last_ns: u64,
}

impl Burst {
    /// `None` while it lasts.
    fn end(&self) -> Option<u64> {
        self.to_ns.map(|to| to.max(self.last_ns))
    }
}

#[derive(Default)]
struct PhaseSums {
    sums: StepSums,
    overlaps: Overlaps,
    prompt_tokens: Option<u64>,
    tokens: u64,
    /// Steps whose tokens are not known.
    unsized_steps: u64,
}

/// Folds the device work of one process into steps.
pub struct Fold {
    names: Names,
    /// By the number of the name.
    classes: Vec<Class>,
    pending: Vec<DeviceActivity>,
    bursts: VecDeque<Burst>,
    /// Settled work of one burst, and when that began.
    sequence: Vec<DeviceActivity>,
    sequence_from: u64,
    analyse_at: usize,
    ranges: VecDeque<(u64, u64, Reported)>,
    /// The domain and the thread whose ranges are steps.
    ranges_of: Option<(String, u64)>,
    taught: Option<u32>,
    failures: u32,
    /// Lengths of the last steps.
    lengths: VecDeque<u64>,
    /// A decode step of the present batch.
    base: Option<Rows>,
    /// The smallest step so far that chose a token: what rows and sequences are counted in.
    smallest: Option<Rows>,
    sequences: Sequences,
    usual: usual::Usual,
    marks: Marks,
    recent: VecDeque<u64>,
    recent_counts: HashMap<u64, u32>,
    /// The end of the last step.
    reached: u64,
    /// The graph launch that was last seen between bursts.
    graph_launch: Option<u32>,
    graph_since_mark: bool,
    last_mark: Option<u64>,
    /// The first work since the last step that a mark showed.
    begun: Option<u64>,
    /// Bytes that the last decode step copied to the host as its result.
    result_bytes: Option<u64>,
    /// The correlation id of the last mark, or of the last work of a recorded step.
    last_call: u32,
    untimed: untimed::Untimed,
    /// Marks since the last step.
    marks_seen: u32,
    steps: VecDeque<Step>,
    counts: Counts,
    by_phase: [PhaseSums; 4],
    timeline_wanted: bool,
    timelines: Vec<RecordedTimeline>,
    finding: Finding,
    dropped: u64,
    unmeasured: u64,
    /// The kernels since they were last taken, if they are wanted.
    kernels: Option<Vec<KernelTime>>,
}

impl Default for Fold {
    fn default() -> Fold {
        Fold {
            names: Names::default(),
            classes: vec![Class::Other],
            pending: Vec::new(),
            bursts: VecDeque::new(),
            sequence: Vec::new(),
            sequence_from: 0,
            analyse_at: PART,
            ranges: VecDeque::new(),
            ranges_of: None,
            taught: None,
            failures: 0,
            lengths: VecDeque::new(),
            base: None,
            smallest: None,
            sequences: Sequences::default(),
            usual: usual::Usual::default(),
            marks: Marks::default(),
            recent: VecDeque::new(),
            recent_counts: HashMap::new(),
            reached: 0,
            graph_launch: None,
            graph_since_mark: false,
            last_mark: None,
            begun: None,
            result_bytes: None,
            last_call: 0,
            untimed: untimed::Untimed::default(),
            marks_seen: 0,
            steps: VecDeque::new(),
            counts: Counts::default(),
            by_phase: Default::default(),
            timeline_wanted: false,
            timelines: Vec::new(),
            finding: Finding::NotFound(NoSteps::NoKernels),
            dropped: 0,
            unmeasured: 0,
            kernels: None,
        }
    }
}

/// A kernel whose times are a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelTime {
    pub correlation: u32,
    pub name: NameId,
    pub ns: u64,
    pub in_graph: bool,
}

impl Fold {
    /// The number of a kernel's name, for [`WorkKind::Kernel`].
    pub fn name(&mut self, text: &str) -> NameId {
        let number = self.names.number(text);
        if self.classes.len() < self.names.len() {
            self.classes.push(Class::from_name(self.names.text(number)));
        }
        number
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    pub fn class(&self, name: NameId) -> Class {
        self.classes.get(name.0 as usize).copied().unwrap_or(Class::Other)
    }

    /// Kernels are recorded from `t_ns` on.
    pub fn begin_burst(&mut self, t_ns: u64) {
        self.end_burst(t_ns);
        if self.bursts.len() == MAX_BURSTS {
            self.bursts.pop_front();
        }
        self.bursts.push_back(Burst { from_ns: t_ns, to_ns: None, last_ns: t_ns });
    }

    pub fn end_burst(&mut self, t_ns: u64) {
        if let Some(burst) = self.bursts.back_mut() {
            burst.to_ns.get_or_insert(t_ns.max(burst.from_ns));
        }
    }

    pub fn add(&mut self, work: DeviceActivity) {
        if matches!(work.kind, WorkKind::Graph { .. }) {
            self.marks.see_whole_graph();
        }
        if self.pending.len() >= MAX_PENDING {
            let newest = self.pending.iter().map(|work| work.start_ns).max().unwrap_or(0);
            self.settle(newest);
        }
        if matches!(work.kind, WorkKind::Kernel { .. })
            && let Some(burst) = self.bursts.iter_mut().rev().find(|burst| burst.from_ns <= work.start_ns)
        {
            burst.last_ns = burst.last_ns.max(work.start_ns);
        }
        self.pending.push(work);
    }

    /// Whether the times of a record are a measurement. CUPTI does not know when work began that ran as recording was switched
    /// on, and gives the end of the burst before; nor does any kernel or copy take no time at all.
    fn is_measured(&self, work: &DeviceActivity) -> bool {
        if matches!(work.kind, WorkKind::Sync) {
            return work.is_timed();
        }
        let covers = |burst: &Burst| work.start_ns < burst.from_ns && burst.from_ns < work.end_ns;
        // The switch is noticed a little later than it happens: such work then ends before the burst.
        let fills = |(before, next): (&Burst, &Burst)| {
            let pause_from = before.to_ns.unwrap_or(next.from_ns);
            let pause = next.from_ns.saturating_sub(pause_from);
            let within = work.end_ns.min(next.from_ns).saturating_sub(work.start_ns.max(pause_from));
            pause >= MIN_PAUSE_NS && within >= pause / 2
        };
        let is_recorded_in_bursts = matches!(work.kind, WorkKind::Kernel { .. });
        let pauses = || self.bursts.iter().zip(self.bursts.iter().skip(1));
        work.is_timed()
            && work.start_ns < work.end_ns
            && !(is_recorded_in_bursts && (self.bursts.iter().any(covers) || pauses().any(fills)))
    }

    /// Adds an NVTX range; only those that report steps are kept.
    pub fn add_range(&mut self, range: &Range) {
        let Some(reported) = nvtx::reported(&range.text) else { return };
        if range.start_ns == 0 || range.end_ns < range.start_ns {
            return;
        }
        let (domain, thread) = self.ranges_of.get_or_insert_with(|| (range.domain.clone(), range.thread));
        if (domain.as_str(), *thread) != (range.domain.as_str(), range.thread) {
            return;
        }
        if self.ranges.len() == MAX_RANGES {
            self.ranges.pop_front();
        }
        let at = self.ranges.partition_point(|(start, ..)| *start <= range.start_ns);
        self.ranges.insert(at, (range.start_ns, range.end_ns, reported));
    }

    /// Records that the recorder has lost.
    pub fn add_dropped(&mut self, records: u64) {
        self.dropped += records;
    }

    /// Ends a batch of records. Work that started well before `now_ns` is complete.
    pub fn end_batch(&mut self, now_ns: u64) {
        self.settle(now_ns.saturating_sub(SETTLE_NS));
    }

    /// No more records will come.
    pub fn finish(&mut self) {
        self.settle(u64::MAX);
    }

    /// The measured kernels since the last call, in steps and outside of them. They are kept from the first call on.
    pub fn take_kernels(&mut self) -> Vec<KernelTime> {
        self.kernels.replace(Vec::new()).unwrap_or_default()
    }

    fn keep_kernels(&mut self, works: &[DeviceActivity]) {
        let Some(kernels) = &mut self.kernels else { return };
        kernels.extend(works.iter().filter_map(|work| match work.kind {
            WorkKind::Kernel { name, .. } => {
                let ns = work.end_ns.saturating_sub(work.start_ns);
                let in_graph = work.graph.is_some();
                Some(KernelTime { correlation: work.correlation, name, ns, in_graph })
            }
            _ => None,
        }));
    }

    /// The steps found since the last call, in order; they do not overlap.
    pub fn steps(&mut self) -> Vec<Step> {
        self.steps.drain(..).collect()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn finding(&self) -> Finding {
        self.finding
    }

    /// Windows of the steps found since the last call, by phase, and of the work outside of steps.
    pub fn windows(&mut self) -> Vec<ProgramWindow> {
        let mut windows = Vec::new();
        for (phase, sums) in StepPhase::ALL.into_iter().zip(&mut self.by_phase) {
            let PhaseSums { sums, overlaps, prompt_tokens, tokens, unsized_steps } = std::mem::take(sums);
            if !sums.is_empty() {
                let mut window = sums.into_window(phase.shown_as(), &self.names);
                window.overlaps = Some(overlaps);
                window.prompt_tokens = prompt_tokens;
                window.tokens = (window.steps > 0 && unsized_steps == 0).then_some(tokens);
                windows.push(ProgramWindow { phase, window });
            }
        }
        if let Some(last) = windows.last_mut() {
            last.window.dropped = std::mem::take(&mut self.dropped);
            last.window.unmeasured = std::mem::take(&mut self.unmeasured);
        }
        windows
    }

    /// Makes timelines of the next steps, one of each phase.
    pub fn request_timelines(&mut self) {
        self.timeline_wanted = true;
    }

    pub fn timelines(&mut self) -> Vec<RecordedTimeline> {
        let timelines = std::mem::take(&mut self.timelines);
        self.timeline_wanted &= timelines.is_empty();
        timelines
    }

    fn class_of(&self, work: &DeviceActivity) -> Class {
        match work.kind {
            WorkKind::Kernel { name, .. } => self.class(name),
            WorkKind::Copy { .. } => Class::Copy,
            _ => Class::Other,
        }
    }

    /// When the burst began that a work belongs to; `None` between bursts. Kernels are recorded in bursts only: one that runs
    /// after the end was launched before it.
    fn burst_of(&self, work: &DeviceActivity) -> Option<u64> {
        let burst = self.bursts.iter().rev().find(|burst| burst.from_ns <= work.start_ns);
        match work.kind {
            WorkKind::Kernel { .. } => Some(burst.map_or(0, |burst| burst.from_ns)),
            _ => burst
                .filter(|burst| burst.end().is_none_or(|end| work.start_ns <= end))
                .map(|burst| burst.from_ns),
        }
    }

    /// Takes all work that started before `horizon`.
    fn settle(&mut self, horizon: u64) {
        let (mut settled, waiting): (Vec<DeviceActivity>, Vec<DeviceActivity>) =
            std::mem::take(&mut self.pending).into_iter().partition(|work| work.start_ns < horizon);
        self.pending = waiting;
        let unmeasured: Vec<DeviceActivity> =
            settled.extract_if(.., |work| !self.is_measured(work)).collect();
        self.unmeasured += unmeasured.len() as u64;
        unmeasured.iter().for_each(|work| self.untimed.add(work));
        settled.sort_by_key(sort_key);
        for work in settled {
            let burst = self.burst_of(&work);
            let ended = burst != Some(self.sequence_from);
            if ended && !self.sequence.is_empty() {
                self.analyse(true);
            }
            match burst {
                Some(from) => {
                    self.sequence_from = from;
                    self.sequence.push(work);
                }
                None => self.between_bursts(&work),
            }
        }
        let burst = self.bursts.iter().find(|burst| burst.from_ns == self.sequence_from);
        let ended =
            horizon == u64::MAX || burst.is_some_and(|burst| burst.end().is_some_and(|end| end < horizon));
        if let Some(first) = self.sequence.first() {
            let long = horizon.saturating_sub(first.start_ns) >= PART_NS
                && self.sequence.len() * 2 >= self.analyse_at;
            if ended || long || self.sequence.len() >= self.analyse_at {
                self.analyse(ended);
            }
        }
        let until = self.sequence.first().map_or(horizon, |first| first.start_ns.min(horizon));
        self.reported_until(until);
    }

    /// Cuts the works of the burst into steps.
    fn analyse(&mut self, ended: bool) {
        let mut works = std::mem::take(&mut self.sequence);
        self.unmeasured += unmeasured::leave_out(&mut works);
        let classes: Vec<Class> = works.iter().map(|work| self.class_of(work)).collect();
        let found = cut(&works, &classes, self.taught, ended);
        let reported = match self.ranges_of {
            Some(_) => self.reported_steps(&works, found.as_ref().ok(), ended),
            None => None,
        };
        let (cuts, reports) = match (reported, found) {
            (Some((cuts, reports)), _) => (cuts, reports),
            (None, Ok(cuts)) => (cuts, Vec::new()),
            (None, Err(why)) => {
                self.give_up(works, &classes, why, ended);
                return;
            }
        };
        let prepared = self.prepare(&works, &classes, &cuts, &reports);
        let repeated = prepared.iter().filter(|step| step.repeats).count();
        let needs_repeats = matches!(cuts.basis, Basis::Repeats | Basis::Graph | Basis::Copy);
        if needs_repeats && prepared.len() >= 2 && repeated * 2 < prepared.len() {
            self.give_up(works, &classes, NoSteps::Irregular, ended);
            return;
        }
        self.failures = 0;
        if cuts.basis != Basis::Nvtx || cuts.layers > 0 {
            self.taught = Some(cuts.layers);
        }
        let teaches = self.marks.are_found_by(cuts.basis, prepared.len());
        for (i, step) in prepared.iter().enumerate().filter(|_| teaches) {
            let next = prepared.get(i + 1).map(|next| works[next.indices.start].start_ns);
            let first = works[step.indices.start].start_ns;
            let end = next.unwrap_or_else(|| end_of(&works[step.indices.clone()]));
            self.marks.learn(&works[step.indices.clone()], step.phase, end.saturating_sub(first));
        }
        self.marks.choose();
        let mut at = 0;
        let stop = if ended { works.len() } else { cuts.open_from };
        for i in 0..prepared.len() {
            let step = &prepared[i];
            self.outside(&works[at..step.indices.start], &classes[at..step.indices.start]);
            let adjacent =
                (i > 0 && at == step.indices.start).then(|| end_of(&works[prepared[i - 1].indices.clone()]));
            let next = works.get(step.indices.end).map(|next| next.start_ns);
            self.close(step, &works, &classes, adjacent, next, &cuts);
            at = step.indices.end;
        }
        if at < stop {
            self.outside(&works[at..stop], &classes[at..stop]);
        }
        self.sequence = works[at.max(stop)..].to_vec();
        self.analyse_at = self.sequence.len() + PART;
        let between_bursts = self.marks.chosen().map(|chosen| chosen.mark.basis());
        let confidence = if cuts.basis == Basis::Nvtx { Confidence::EXACT } else { self.confidence() };
        let layers = cuts.layers.min(u32::from(u16::MAX)) as u16;
        self.finding = Finding::Steps { basis: cuts.basis, layers, confidence, between_bursts };
    }

    /// No steps in these works. They are kept while more may come.
    fn give_up(&mut self, works: Vec<DeviceActivity>, classes: &[Class], why: NoSteps, ended: bool) {
        if !ended && works.len() < MAX_SEQUENCE {
            self.analyse_at = (works.len() * 2).min(MAX_SEQUENCE);
            self.sequence = works;
            return;
        }
        let span = works.first().map_or(0, |first| end_of(&works).saturating_sub(first.start_ns));
        let longest = self.lengths.iter().max().copied().unwrap_or(0);
        if span >= longest.saturating_mul(ROOM_FOR) {
            self.failures += 1;
        }
        let known = matches!(self.finding, Finding::Steps { .. });
        if !known || self.failures >= FORGET_AFTER {
            self.finding = Finding::NotFound(why);
            self.taught = None;
            self.marks = Marks::default();
        }
        self.analyse_at = PART;
        self.outside(&works, classes);
    }

    /// Phases, hashes and features of the steps.
    fn prepare(
        &mut self,
        works: &[DeviceActivity],
        classes: &[Class],
        cuts: &Cuts,
        reports: &[Reported],
    ) -> Vec<Prepared> {
        let mut prepared: Vec<Prepared> = cuts
            .steps
            .iter()
            .map(|indices| {
                let (works, classes) = (&works[indices.clone()], &classes[indices.clone()]);
                let rows = Rows::from_works(works, classes);
                Prepared {
                    indices: indices.clone(),
                    hash: hash_of(works),
                    repeats: false,
                    rows,
                    phase: StepPhase::Other,
                    tokens: None,
                    prompt_tokens: None,
                }
            })
            .collect();
        let mut counts: HashMap<u64, u32> = HashMap::new();
        prepared.iter().for_each(|step| *counts.entry(step.hash).or_default() += 1);
        prepared.iter_mut().for_each(|step| step.repeats = counts[&step.hash] > 1);
        self.choose_base(&prepared, &counts);
        for (i, step) in prepared.iter_mut().enumerate() {
            let (phase, _) = step.rows.phase(self.base.as_ref());
            let unit = self.smallest.as_ref().or(self.base.as_ref());
            let (_, estimate) = step.rows.phase(unit);
            let chosen = unit.and_then(|unit| step.rows.sequences(unit));
            let phase = self.sequences.phase(phase, estimate, chosen);
            let report = reports.get(i);
            step.phase =
                report.map(|report| report.phase).filter(|phase| *phase != StepPhase::Other).unwrap_or(phase);
            let reported = report.and_then(|report| report.tokens).map(Tokens::Reported);
            step.tokens = reported.or(step.rows.tokens(unit).map(Tokens::Estimated));
            step.prompt_tokens = report.and_then(|report| report.prompt_tokens);
        }
        prepared
    }

    /// A decode step is the most usual one, where one is; else the one with the fewest rows among those that repeat. A server makes steps
    /// of all sizes when it starts, so that the fewest rows of all time show nothing.
    fn choose_base(&mut self, prepared: &[Prepared], counts: &HashMap<u64, u32>) {
        let repeats = |step: &&Prepared| step.repeats || self.recent_counts.contains_key(&step.hash);
        let lower = |lowest: Rows, rows: Rows| if rows.is_below(&lowest) { rows } else { lowest };
        let samples = prepared.iter().filter(repeats).map(|step| step.rows).filter(Rows::samples);
        let smallest = self.smallest.into_iter().chain(samples).reduce(lower);
        let usual = prepared.iter().max_by_key(|step| counts[&step.hash]);
        let is_usual = |step: &&Prepared| {
            let n = counts[&step.hash] as usize;
            n >= USUAL_STEPS && n * 5 >= prepared.len() * 2
        };
        if let Some(step) = usual.filter(is_usual).filter(|step| step.rows.may_decode(self.base.as_ref())) {
            (self.base, self.smallest) = (Some(step.rows), smallest);
            return;
        }
        let lowest = prepared.iter().filter(repeats).map(|step| step.rows).reduce(lower);
        let lowest =
            lowest.or_else(|| prepared.first().filter(|_| self.base.is_none()).map(|step| step.rows));
        if let Some(rows) = lowest
            && self.base.as_ref().is_none_or(|base| rows.is_below(base))
        {
            self.base = Some(rows);
        }
        self.smallest = smallest;
    }

    /// Adds a step to the steps, the windows and the timelines.
    fn close(
        &mut self,
        step: &Prepared,
        works: &[DeviceActivity],
        classes: &[Class],
        before: Option<u64>,
        next: Option<u64>,
        cuts: &Cuts,
    ) {
        let (works, classes) = (&works[step.indices.clone()], &classes[step.indices.clone()]);
        self.keep_kernels(works);
        let mut assigned = layers::assign(works, classes);
        self.usual.correct(works, classes, &mut assigned.instances);
        let overlaps = overlap::overlaps(works, classes);
        let attention_ns = works
            .iter()
            .zip(classes)
            .filter(|(_, class)| class.is_attention() || **class == Class::AttentionCombine)
            .map(|(work, _)| work.end_ns - work.start_ns)
            .sum();
        let mut step_works: Vec<StepWork> = works
            .iter()
            .zip(assigned.instances)
            .filter_map(|(work, instance)| Some(StepWork { instance, ..self.step_work(work)? }))
            .collect();
        let Ok(Some(span)) = in_order(&mut step_works) else { return };
        without_overlap(&mut step_works);
        let gap =
            before.filter(|_| step.phase == StepPhase::Decode).map(|end| span.first_ns.saturating_sub(end));
        let sums = &mut self.by_phase[step.phase as usize];
        sums.sums.add_step(&step_works, span, gap);
        sums.overlaps.plus(&overlaps);
        match step.tokens {
            Some(Tokens::Reported(tokens) | Tokens::Estimated(tokens)) => sums.tokens += u64::from(tokens),
            None => sums.unsized_steps += 1,
        }
        if let Some(tokens) = step.prompt_tokens {
            *sums.prompt_tokens.get_or_insert_default() += u64::from(tokens);
        }
        if self.timeline_wanted && !self.timelines.iter().any(|known| known.phase == step.phase) {
            let timeline = timeline(&self.names, step.phase.shown_as(), &step_works);
            self.timelines.push(RecordedTimeline { phase: step.phase, first_ns: span.first_ns, timeline });
        }
        self.remember(step.hash);
        let confidence = if cuts.basis == Basis::Nvtx { Confidence::EXACT } else { self.confidence() };
        self.graph_since_mark = false;
        self.last_mark = None;
        self.begun = None;
        if let (StepPhase::Decode, Some(Chosen { mark, .. })) = (step.phase, self.marks.chosen()) {
            self.result_bytes =
                works.iter().rev().find(|work| mark.fits(work)).and_then(copied).or(self.result_bytes);
        }
        self.last_call = works.iter().map(|work| work.correlation).max().unwrap_or(self.last_call);
        self.marks_seen = 0;
        self.emit(Step {
            start_ns: span.first_ns,
            // The copies of a step may end in the next one.
            end_ns: next.map_or(span.end_ns, |next| span.end_ns.min(next)),
            phase: step.phase,
            basis: cuts.basis,
            confidence,
            layers: Some(assigned.layers),
            tokens: step.tokens,
            attention_ns: Some(attention_ns),
            launches: Some(step_works.len() as u32),
            is_cut: false,
        });
    }

    fn emit(&mut self, mut step: Step) {
        step.start_ns = step.start_ns.max(self.reached);
        step.end_ns = step.end_ns.max(step.start_ns);
        self.reached = step.end_ns;
        if self.lengths.len() == LAST_STEPS {
            self.lengths.pop_front();
        }
        self.lengths.push_back(step.end_ns - step.start_ns);
        let overlaps =
            |burst: &Burst| burst.from_ns < step.end_ns && burst.to_ns.is_none_or(|end| end > step.start_ns);
        step.is_cut |= !step.is_recorded() && self.bursts.iter().any(overlaps);
        *match step.phase {
            StepPhase::Prefill => &mut self.counts.prefill,
            StepPhase::Decode => &mut self.counts.decode,
            StepPhase::Mixed => &mut self.counts.mixed,
            StepPhase::Other => &mut self.counts.other,
        } += 1;
        if self.steps.len() == MAX_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// `None` for waits and whole graphs.
    fn step_work(&mut self, work: &DeviceActivity) -> Option<StepWork> {
        let (name, launch, bytes) = match work.kind {
            WorkKind::Kernel { name, launch } => (name, Some(launch), None),
            WorkKind::Copy { direction, bytes } => (self.name(direction.name()), None, Some(bytes)),
            WorkKind::Memset { bytes } => (self.name(MEMSET), None, Some(bytes)),
            WorkKind::Graph { .. } | WorkKind::Sync => return None,
        };
        let DeviceActivity { start_ns, end_ns, device, stream, .. } = *work;
        Some(StepWork {
            start_ns,
            end_ns,
            in_graph: work.graph.is_some(),
            name,
            launch,
            bytes,
            instance: None,
            queue: (device, stream),
            own_ns: 0,
            waited: false,
        })
    }

    /// Work of a burst that belongs to no complete step: what marks steps between bursts marks them here too.
    fn outside(&mut self, works: &[DeviceActivity], classes: &[Class]) {
        if works.is_empty() {
            return;
        }
        self.keep_kernels(works);
        let overlaps = overlap::overlaps(works, classes);
        let mut step_works: Vec<StepWork> = works.iter().filter_map(|work| self.step_work(work)).collect();
        if let Ok(Some(span)) = in_order(&mut step_works) {
            without_overlap(&mut step_works);
            let sums = &mut self.by_phase[StepPhase::Other as usize];
            sums.sums.add_outside(&step_works, span);
            sums.overlaps.plus(&overlaps);
        }
        works.iter().for_each(|work| self.between_bursts(work));
    }

    /// Counts steps by their mark.
    fn between_bursts(&mut self, work: &DeviceActivity) {
        if self.ranges_of.is_some() {
            return;
        }
        let is_node = work.graph.is_some();
        let launches_graph = match work.kind {
            WorkKind::Graph { .. } => true,
            _ => is_node && self.graph_launch.replace(work.correlation) != Some(work.correlation),
        };
        let Some(Chosen { mark, each, confidence }) = self.marks.chosen() else { return };
        if work.start_ns >= self.reached {
            self.begun.get_or_insert(work.start_ns);
        }
        if !mark.fits(work) || work.start_ns < self.reached || (is_node && !launches_graph) {
            self.graph_since_mark |= launches_graph;
            return;
        }
        self.marks_seen += 1;
        if self.marks_seen < each {
            return;
        }
        self.marks_seen = 0;
        let lost = self.untimed.take(mark, self.last_call, work.correlation) / each;
        self.last_call = work.correlation;
        let typical = self.marks.typical_ns();
        let (start_ns, has_graph) = match mark {
            Mark::AnyGraph | Mark::Graph(_) => (work.start_ns, true),
            _ => {
                let since = work.end_ns.saturating_sub(self.reached);
                let is_next = since <= typical.saturating_mul(4) || lost > 0;
                // After a pause, a step begins with its first copy at the latest.
                let begun = || self.begun.unwrap_or(u64::MAX).min(work.end_ns.saturating_sub(typical));
                let start = if is_next { self.reached } else { begun() };
                (start, std::mem::take(&mut self.graph_since_mark))
            }
        };
        self.begun = None;
        let since_mark = self.last_mark.replace(work.start_ns).map(|last| work.start_ns.saturating_sub(last));
        if since_mark.is_some_and(|since| self.marks.is_too_short(since)) {
            return;
        }
        // If several steps end with this mark, only the end of the last one is known.
        let n = u64::from(lost) + 1;
        let length_ns = work.end_ns.saturating_sub(start_ns) / n;
        let result_bytes = copied(work);
        let other_result = self.result_bytes.is_some() && result_bytes != self.result_bytes;
        let phase = self.marks.phase(has_graph, length_ns, other_result);
        if phase == StepPhase::Decode {
            self.result_bytes = result_bytes;
        }
        for i in (0..n).rev() {
            self.emit(Step {
                start_ns: work.end_ns.saturating_sub((i + 1) * length_ns),
                end_ns: work.end_ns.saturating_sub(i * length_ns),
                phase,
                basis: mark.basis(),
                confidence,
                layers: None,
                tokens: None,
                attention_ns: None,
                launches: None,
                is_cut: lost > 0,
            });
        }
    }

    fn remember(&mut self, hash: u64) {
        if self.recent.len() == RECENT
            && let Some(oldest) = self.recent.pop_front()
            && let Some(count) = self.recent_counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.recent_counts.remove(&oldest);
            }
        }
        self.recent.push_back(hash);
        *self.recent_counts.entry(hash).or_default() += 1;
    }

    /// How many of the recent steps have a sequence of kernels that another one has too.
    fn confidence(&self) -> Confidence {
        let confirmed = self.recent_counts.values().filter(|count| **count > 1).sum();
        Confidence { confirmed, of: self.recent.len() as u32 }
    }
}

/// A step of a burst before it is added.
struct Prepared {
    indices: Indices<usize>,
    hash: u64,
    /// Another step of the burst has the same kernels.
    repeats: bool,
    rows: Rows,
    phase: StepPhase,
    tokens: Option<Tokens>,
    prompt_tokens: Option<u32>,
}

/// The same order for any order of arrival.
fn sort_key(work: &DeviceActivity) -> (u64, u64, u16, u32, u32, u64) {
    let kind = match work.kind {
        WorkKind::Kernel { name, launch } => u64::from(name.0) << 32 | launch.blocks() & 0xffff_ffff,
        WorkKind::Copy { direction, bytes } => (direction as u64) << 60 | bytes & 0xfff_ffff_ffff_ffff,
        WorkKind::Memset { bytes } => bytes,
        WorkKind::Graph { graph } => u64::from(graph),
        WorkKind::Sync => 0,
    };
    (work.start_ns, work.end_ns, work.device, work.stream, work.correlation, kind)
}

/// Bytes of a copy.
fn copied(work: &DeviceActivity) -> Option<u64> {
    match work.kind {
        WorkKind::Copy { bytes, .. } => Some(bytes),
        _ => None,
    }
}

fn end_of(works: &[DeviceActivity]) -> u64 {
    let device = works.iter().filter(|work| !matches!(work.kind, WorkKind::Sync));
    device.map(|work| work.end_ns).max().unwrap_or(0)
}

/// A hash of the kernels of a step that does not depend on the order in which parallel streams run them.
fn hash_of(works: &[DeviceActivity]) -> u64 {
    let mix = |value: u64| {
        let value = (value ^ value >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        value ^ value >> 29
    };
    works.iter().fold(0, |hash: u64, work| match work.kind {
        WorkKind::Kernel { name, .. } => hash.wrapping_add(mix(u64::from(name.0) + 1)),
        _ => hash,
    })
}
