//! Streams recorded on a GPU.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    path::Path,
};

use super::*;
use crate::{
    base::gz,
    event::kernels::work::{KernelLaunch, NameId, WorkKind},
};

/// Folds a recorded stream: `kernel`, `copy`, `memset`, `graph` and `wait` records, and `mode` where recording was switched.
/// Names are written once, as numbers from 0 on in their order.
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
        fold.add(Work { start_ns, end_ns, stream, device: 0, correlation, graph, kind });
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
    let path = std::env::var("LLMPROF_TRACE").expect("LLMPROF_TRACE");
    let begin = std::time::Instant::now();
    let mut fold = fold_of(Path::new(&path));
    let seconds = begin.elapsed().as_secs_f64();
    let steps = fold.steps();
    println!("{}\n{:?} in {seconds:.2} s", fold.finding(), fold.counts());
    let mut text = String::new();
    for step in &steps {
        text += &format!(
            "{}\t{}\t{}\t{:?}\t{:?}\t{:?}\t{:?}\n",
            step.start_ns, step.end_ns, step.phase, step.basis, step.layers, step.launches, step.tokens
        );
    }
    std::fs::write("/tmp/steps_found.tsv", text).unwrap();
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
