//! Streams recorded on an H200 while PyTorch ran a decoder of 24 layers: eager, `generate` of transformers, and compiled with
//! CUDA graphs.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use super::*;
use crate::program;
use llmprof_base::gz;
use llmprof_event::kernels::{
    records::{self, Entry},
    work::{KernelLaunch, NameId, WorkKind},
};

/// A recorded stream: its work and its bursts.
pub(super) struct Recording {
    fold: Fold,
    entries: Vec<Played>,
    works: Vec<DeviceActivity>,
}

/// An entry of a recording, in the order in which it came.
enum Played {
    Switch { at_ns: u64, on: bool },
    Work(DeviceActivity),
    Range(Range),
}

fn recording(name: &str) -> Recording {
    recording_at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/steps").join(name))
}

pub(super) fn recording_at(path: &Path) -> Recording {
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    gz::decompressed(BufReader::new(file)).read_to_string(&mut text).unwrap();
    let mut fold = Fold::default();
    let mut entries = Vec::new();
    let mut works = Vec::new();
    records::read(
        &text,
        |name| fold.name(name),
        |entry| match entry {
            Entry::Switch { at_ns, on } => entries.push(Played::Switch { at_ns, on }),
            Entry::Work(work) => {
                entries.push(Played::Work(work));
                works.push(work);
            }
            Entry::Range { start_ns, end_ns, thread, domain, text } => entries.push(Played::Range(Range {
                domain: domain.to_owned(),
                text: text.to_owned(),
                thread,
                start_ns,
                end_ns,
            })),
            Entry::Dropped(_) => {}
        },
    );
    Recording { fold, entries, works }
}

impl Recording {
    pub(super) fn folded(mut self) -> Fold {
        self.played(|_, _| {});
        self.into_fold()
    }

    pub(super) fn works(&self) -> &[DeviceActivity] {
        &self.works
    }

    pub(super) fn into_fold(self) -> Fold {
        self.fold
    }

    /// Folds the entries; `each` is called now and then with the time of the newest.
    pub(super) fn played(&mut self, mut each: impl FnMut(&mut Fold, u64)) {
        let mut works = 0;
        for entry in &self.entries {
            match entry {
                Played::Switch { at_ns, on: true } => self.fold.begin_burst(*at_ns),
                Played::Switch { at_ns, on: false } => self.fold.end_burst(*at_ns),
                Played::Range(range) => self.fold.add_range(range),
                Played::Work(work) => {
                    self.fold.add(*work);
                    works += 1;
                    if works % 1_000 == 0 {
                        self.fold.end_batch(work.start_ns);
                        each(&mut self.fold, work.start_ns);
                    }
                }
            }
        }
        self.fold.finish();
        each(&mut self.fold, u64::MAX);
    }

    /// Copies of the position to the device: the program makes one for each decode step.
    fn positions(&self) -> usize {
        let is_position = |work: &&DeviceActivity| {
            work.kind == WorkKind::Copy { direction: Direction::HostToDevice, bytes: 8 }
        };
        self.works.iter().filter(is_position).count()
    }

    fn of_class(&self, is: impl Fn(Class) -> bool) -> usize {
        let fits = |work: &&DeviceActivity| matches!(work.kind, WorkKind::Kernel { name, .. } if is(self.fold.class(name)));
        self.works.iter().filter(fits).count()
    }
}

/// Calls of an operator in a step.
fn calls(window: &ProgramWindow, operator: Operator) -> f64 {
    let rows = window.window.rows.iter().filter(|row| row.operator == Some(operator));
    rows.map(|row| row.calls).sum::<u64>() as f64 / window.window.steps as f64
}

/// What every recording of this model has: three projections, two of the MLP, and the down projection, 24 times.
fn check_operators(window: &ProgramWindow, products_of_down: f64) {
    let wanted = [
        (Operator::Qkv, 72.0),
        (Operator::AttentionOutput, 24.0),
        (Operator::GateUp, 48.0),
        // With the reduction of a split-K GEMM.
        (Operator::Down, 24.0 * products_of_down),
        (Operator::LmHead, 1.0),
        (Operator::Embedding, 1.0),
    ];
    for (operator, wanted) in wanted {
        assert_eq!(calls(window, operator), wanted, "{operator} in {}", window.phase);
    }
}

#[test]
fn an_eager_loop() {
    let given = recording("eager.tsv.gz");
    let script = given.of_class(Class::is_sampling);
    assert_eq!(script, 9, "four decode steps, a prefill, four decode steps");
    let mut fold = given.folded();
    let steps = steps_of(&mut fold);
    // It begins within the first step.
    assert_eq!(phases(&steps), (1, script - 1, 0, 0), "{}", fold.finding());
    assert_eq!(steps[4].phase, StepPhase::Prefill);
    let Some(Tokens::Estimated(tokens)) = steps[4].tokens else { panic!("{:?}", steps[4]) };
    assert!((384..=640).contains(&tokens), "{tokens} of 512 tokens");
    assert!(steps.iter().all(|step| step.layers == Some(24) && step.basis == Basis::Sampler));
    let windows = fold.windows();
    check_operators(windows.iter().find(|window| window.phase == StepPhase::Prefill).unwrap(), 1.0);
    let decode = windows.iter().find(|window| window.phase == StepPhase::Decode).unwrap();
    check_operators(decode, 2.0);
    let attention: Vec<f64> = steps.iter().filter_map(|step| step.attention_ns).map(|ns| ns as f64).collect();
    let remarks: Vec<String> =
        program::remarks(&decode.window, &attention).iter().map(ToString::to_string).collect();
    assert!(remarks[0].contains("CUDA graphs or torch.compile would help"), "{remarks:?}");
    assert!(remarks.iter().any(|remark| remark.contains("shorter than 5 µs")), "{remarks:?}");
}

#[test]
fn a_loop_of_transformers() {
    let given = recording("generate.tsv.gz");
    let sampled = given.of_class(Class::is_sampling);
    let to_host = given.works.iter().filter(|work| is_token_copy(work)).count();
    let mut fold = given.folded();
    let steps = steps_of(&mut fold);
    let recorded = steps.iter().filter(|step| step.is_recorded()).count();
    // The first is under way when the burst begins, the last when it ends.
    assert!((sampled - 1..=sampled).contains(&recorded), "{recorded} of {sampled}");
    // The stopping criteria copy two flags to the host; the recording begins and ends within a step.
    assert!((to_host / 2 - 1..=to_host / 2).contains(&steps.len()), "{} of {to_host} copies", steps.len());
    assert_eq!(phases(&steps), (0, steps.len(), 0, 0));
    let windows = fold.windows();
    check_operators(windows.iter().find(|window| window.phase == StepPhase::Decode).unwrap(), 2.0);
}

#[test]
fn a_compiled_loop_with_graphs() {
    let given = recording("compiled.tsv.gz");
    let (script, sampled) = (given.positions(), given.of_class(Class::is_sampling));
    let launched = given.works.iter().filter(|work| matches!(work.kind, WorkKind::Graph { .. })).count();
    assert!(launched >= 140 && script > launched, "{launched} of {script}");
    let mut fold = given.folded();
    let steps = steps_of(&mut fold);
    assert_eq!(steps.iter().filter(|step| !step.is_recorded()).count(), launched, "{}", fold.finding());
    let recorded = steps.len() - launched;
    assert!((sampled - 1..=sampled).contains(&recorded), "{recorded} of {sampled}");
    assert!(steps.iter().filter(|step| step.is_recorded()).all(|step| step.layers == Some(24)));
    let windows = fold.windows();
    let decode = windows.iter().find(|window| window.phase == StepPhase::Decode).unwrap();
    for (operator, wanted) in
        [(Operator::AttentionOutput, 24.0), (Operator::GateUp, 48.0), (Operator::LmHead, 1.0)]
    {
        assert_eq!(calls(decode, operator), wanted, "{operator}");
    }
    assert!(decode.window.graph_launches * 10 > decode.window.launches * 9);
}

/// Folds a whole recording: `kernel`, `copy`, `memset`, `graph` and `wait` records, and `mode` where recording was switched.
pub fn fold_of(path: &Path) -> Fold {
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = BufReader::new(gz::decompressed(BufReader::new(file))).lines();
    let mut fold = Fold::default();
    let mut names: HashMap<String, NameId> = HashMap::new();
    let (mut bursting, mut last, mut records) = (false, 0u64, 0u64);
    for line in lines {
        let line = line.unwrap();
        let cells: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| cells[at].parse::<u64>().unwrap_or(0);
        let extent = |at: usize| {
            let mut parts = cells[at].split('x').map(|part| part.parse().unwrap_or(1));
            [parts.next().unwrap_or(1), parts.next().unwrap_or(1), parts.next().unwrap_or(1)]
        };
        let kind = match cells[0] {
            "mode" => {
                match (cells[2] == "2", bursting) {
                    (true, false) => fold.begin_burst(number(1)),
                    (false, true) => fold.end_burst(number(1)),
                    _ => {}
                }
                bursting = cells[2] == "2";
                continue;
            }
            "kernel" => {
                let name = *names.entry(cells[8].to_owned()).or_insert_with(|| fold.name(cells[8]));
                let launch =
                    KernelLaunch { grid: extent(6), block: extent(7), registers: 0, shared_bytes: 0 };
                WorkKind::Kernel { name, launch }
            }
            "copy" => WorkKind::Copy { direction: Direction::of_cupti(number(6) as u8), bytes: number(7) },
            "memset" => WorkKind::Memset { bytes: number(7) },
            "graph" => WorkKind::Graph { graph: number(5) as u32 },
            "wait" => WorkKind::Sync,
            _ => continue,
        };
        let graph = Some(number(5) as u32).filter(|graph| *graph != 0 && cells[0] != "graph");
        let (start_ns, end_ns) = (number(1), number(2));
        last = last.max(end_ns);
        let (correlation, stream) = (number(3) as u32, number(4) as u32);
        fold.add(DeviceActivity { start_ns, end_ns, stream, device: 0, correlation, graph, kind });
        records += 1;
        if records % 2_000 == 0 {
            fold.end_batch(last);
        }
    }
    fold.finish();
    fold
}

/// A recording given by LLMPROF_TRACE: prints what is found in it.
#[test]
#[ignore = "needs a recording"]
fn a_given_recording() {
    let path = std::env::var("LLMPROF_TRACE").expect("LLMPROF_TRACE is not set");
    let begin = std::time::Instant::now();
    let mut fold = fold_of(Path::new(&path));
    let seconds = begin.elapsed().as_secs_f64();
    let steps = fold.steps();
    println!("{}\n{:?} in {seconds:.2} s", fold.finding(), fold.counts());
    if std::env::var_os("LLMPROF_TRACE_STEPS").is_some() {
        for step in &steps {
            println!("step\t{}\t{}\t{}\t{}", step.start_ns, step.end_ns, step.phase, step.is_recorded());
        }
    }
    for window in fold.windows() {
        println!(
            "{} steps {} launches {} {:?}",
            window.phase, window.window.steps, window.window.launches, window.window.overlaps
        );
        let mut by: std::collections::BTreeMap<&str, (u64, f64)> = Default::default();
        for row in &window.window.rows {
            let sum = by.entry(row.operator.map_or("-", Operator::name)).or_default();
            sum.0 += row.calls;
            sum.1 += row.total_ns.unwrap_or(0.0);
        }
        let steps = window.window.steps.max(1) as f64;
        for (operator, (calls, ns)) in by {
            println!("   {operator}: {:.2} calls, {:.1} us", calls as f64 / steps, ns / steps / 1e3);
        }
    }
}
