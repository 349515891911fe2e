//! Where steps begin and end in a sequence of device work.
//!
//! Attention kernels are the ruler: a kernel that runs once per step has the same number of attention layers between two of
//! its launches. Sampling kernels, embedding lookups and copies to the host weigh more than others in the vote on that
//! number. Steps are cut before the embedding lookup, else after the sampler and the copy that follows it.

use std::{collections::HashMap, ops::Range};

use super::{Basis, Class, NoSteps};
use llmprof_event::kernels::work::{DeviceActivity, Direction, WorkKind};

/// Larger copies to the host are results of another kind, or swapped memory.
const MAX_COPY_BYTES: u64 = 16 << 20;
/// The share of equal distances from which a symbol is regular.
const REGULAR: f64 = 0.6;
/// The share of occurrences that two symbols have between the same layers.
const ALIGNED: f64 = 0.75;
/// The minimum share of a sequence's segments that must be steps.
const MIN_STEPS_SHARE: f64 = 0.5;
/// Votes on the number of layers.
const VOTE_EMBEDDING: u32 = 10;
const VOTE_SAMPLING: u32 = 6;
const VOTE_COPY: u32 = 4;
const VOTE_TAUGHT: u32 = 8;
const VOTE_ANY: u32 = 1;

/// A sequence cut into steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Attention layers of a step.
    pub layers: u32,
    pub basis: Basis,
    /// Complete steps, in order.
    pub steps: Vec<Range<usize>>,
    /// From here on, works may belong to a step that has not ended.
    pub open_from: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SymbolKind {
    Embedding,
    Sampling,
    Copy,
    Graph,
    Kernel,
}

/// Something that recurs: a kernel by name, a copy by size, a graph.
struct Symbol {
    kind: SymbolKind,
    /// The layers before its occurrences, each number once.
    intervals: Vec<u32>,
    /// Sum of the idle time before its occurrences.
    idle_ns: u64,
    /// The most frequent number of layers between two occurrences, and its share.
    modal: Option<(u32, f64)>,
}

impl Symbol {
    fn distances(&self) -> usize {
        self.intervals.len().saturating_sub(1)
    }

    fn find_modal(&mut self) {
        let mut distances: Vec<u32> = self.intervals.windows(2).map(|pair| pair[1] - pair[0]).collect();
        distances.sort_unstable();
        let most = distances.chunk_by(|a, b| a == b).max_by_key(|group| group.len());
        self.modal = most.map(|group| (group[0], group.len() as f64 / distances.len() as f64));
    }

    /// Runs between the same layers as what `intervals` are of, from the first of those on.
    fn is_aligned(&self, intervals: &[u32]) -> bool {
        let Some(first) = intervals.first() else { return true };
        let later = self.intervals.iter().filter(|interval| *interval >= first);
        let shared = later.clone().filter(|interval| intervals.binary_search(interval).is_ok()).count();
        shared as f64 >= ALIGNED * later.count() as f64
    }
}

/// The works of the sequence by the layers before them.
struct Ruler {
    /// For each work, the number of attention layers that have begun.
    layers_before: Vec<u32>,
    layers: u32,
    device: u16,
}

impl Ruler {
    fn from_works(works: &[DeviceActivity], classes: &[Class]) -> Result<Ruler, NoSteps> {
        let mut kernels = 0usize;
        let (mut training, mut convolutions) = (0usize, 0usize);
        // Devices are few.
        let mut attention: Vec<(u16, usize)> = Vec::new();
        let mut softmax: Vec<(u16, usize)> = Vec::new();
        let count = |all: &mut Vec<(u16, usize)>, device| match all.iter_mut().find(|(d, _)| *d == device) {
            Some((_, n)) => *n += 1,
            None => all.push((device, 1)),
        };
        for (work, class) in works.iter().zip(classes) {
            if !matches!(work.kind, WorkKind::Kernel { .. }) {
                continue;
            }
            kernels += 1;
            match class {
                Class::Training => training += 1,
                Class::Convolution => convolutions += 1,
                Class::StateSpace => count(&mut attention, work.device),
                class if class.is_attention() => count(&mut attention, work.device),
                class if class.is_softmax() => count(&mut softmax, work.device),
                _ => {}
            }
        }
        if kernels == 0 {
            return Err(NoSteps::NoKernels);
        }
        if training >= 3 && training * 200 >= kernels {
            return Err(NoSteps::Training);
        }
        let fused = !attention.is_empty();
        let ruler = if fused { attention } else { softmax };
        let (device, n) = ruler
            .into_iter()
            .max_by_key(|(device, n)| (*n, u16::MAX - device))
            .ok_or(NoSteps::NoAttention)?;
        if convolutions >= 8 && convolutions * 2 >= n {
            return Err(NoSteps::Convolution);
        }
        let mut layers_before = vec![0u32; works.len()];
        let mut layers = 0u32;
        let mut product_since = true;
        let mut last_anchor = 0;
        for (i, (work, class)) in works.iter().zip(classes).enumerate() {
            if work.device == device && matches!(work.kind, WorkKind::Kernel { .. }) {
                let is_anchor = match fused {
                    true => class.is_attention() || *class == Class::StateSpace,
                    false => class.is_softmax(),
                };
                if is_anchor && product_since {
                    layers += 1;
                    product_since = false;
                    last_anchor = i;
                } else if class.is_product() {
                    product_since = true;
                } else if !fused && class.is_sampling() && !product_since && layers > 0 {
                    // The softmax before it is of the probabilities of tokens.
                    layers -= 1;
                    product_since = true;
                    layers_before[last_anchor..i].fill(layers);
                }
            }
            layers_before[i] = layers;
        }
        Ok(Ruler { layers_before, layers, device })
    }
}

/// Cuts works, in the order of their starts, into steps of `taught` layers where earlier sequences have shown that.
/// `ended` where no more works of the sequence will come.
pub(super) fn cut(
    works: &[DeviceActivity],
    classes: &[Class],
    taught: Option<u32>,
    ended: bool,
) -> Result<Cuts, NoSteps> {
    let ruler = Ruler::from_works(works, classes)?;
    let (symbols, occurrences) = symbols(works, classes, &ruler);
    let layers = vote(&symbols, taught).ok_or_else(|| {
        let recurs = |symbol: &Symbol| symbol.distances() >= 3 && symbol.modal.is_some_and(|(n, _)| n > 1);
        if symbols.iter().any(recurs) { NoSteps::Irregular } else { NoSteps::TooFew }
    })?;
    let marks = Marks::choose(&symbols, layers).ok_or(NoSteps::Irregular)?;
    let boundaries = boundaries(works, classes, &ruler, &occurrences, &marks, layers);
    let ends_with_mark = marks.basis != Basis::Embedding;
    let mut steps = Vec::new();
    let (mut regular, mut segments) = (0usize, 0usize);
    let starts_open = matches!(marks.basis, Basis::Embedding | Basis::Repeats | Basis::Graph);
    if let Some(first) = boundaries.first()
        && !starts_open
        && !marks.embedding
        && first.interval == layers
    {
        // All layers before the first boundary are those of one step.
        steps.push(after_pause(works, &ruler, 0..first.at));
    }
    for pair in boundaries.windows(2) {
        let n = pair[1].interval - pair[0].interval;
        segments += 1;
        regular += usize::from(n == layers);
        let several = n >= 2 * layers && matches!(marks.basis, Basis::Repeats | Basis::Graph);
        if n * 2 >= layers && !several && pair[1].at > pair[0].at {
            steps.push(pair[0].at..pair[1].at);
        }
    }
    let known = taught == Some(layers);
    let mut open_from = boundaries.last().map_or(0, |last| last.at);
    if let Some(last) = boundaries.last()
        && ended
        && ruler.layers - last.interval == layers
        && (!ends_with_mark || starts_open)
    {
        let mut lengths: Vec<usize> = steps.iter().map(|step| step.len()).collect();
        lengths.sort_unstable();
        let usual = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
        if usual > 0 && (works.len() - last.at) * 10 >= usual * 9 {
            steps.push(last.at..works.len());
            open_from = works.len();
        }
    }
    if steps.is_empty() || (!known && steps.len() < 2) {
        return Err(NoSteps::TooFew);
    }
    if segments > 1 && (regular as f64) < MIN_STEPS_SHARE * segments as f64 {
        return Err(NoSteps::Irregular);
    }
    Ok(Cuts { layers, basis: marks.basis, steps, open_from })
}

/// Without what came before the last pause ahead of the first layer: a step does not include the loading of weights.
fn after_pause(works: &[DeviceActivity], ruler: &Ruler, within: Range<usize>) -> Range<usize> {
    const PAUSE_NS: u64 = 5_000_000;
    let first_layer = within.clone().find(|i| ruler.layers_before[*i] > 0).unwrap_or(within.start);
    let start = (within.start + 1..=first_layer)
        .rev()
        .find(|i| works[*i].start_ns.saturating_sub(works[*i - 1].end_ns) > PAUSE_NS)
        .unwrap_or(within.start);
    start..within.end
}

/// Symbols of works, by index.
struct Occurrences {
    /// `u32::MAX` for works without a symbol.
    of_works: Vec<u32>,
    /// Symbols of graphs, by their first nodes.
    of_graphs: HashMap<usize, u32>,
}

/// All symbols on the ruler's device, and where they occur.
fn symbols(works: &[DeviceActivity], classes: &[Class], ruler: &Ruler) -> (Vec<Symbol>, Occurrences) {
    let mut symbols: Vec<Symbol> = Vec::new();
    let mut of_name: Vec<u32> = Vec::new();
    let mut of_others: HashMap<(bool, u64), u32> = HashMap::new();
    let mut of_works = vec![u32::MAX; works.len()];
    let mut of_graphs = HashMap::new();
    let mut reached = 0u64;
    let mut graph_launch = None;
    for (i, (work, class)) in works.iter().zip(classes).enumerate() {
        let idle = work.start_ns.saturating_sub(reached);
        let wait = matches!(work.kind, WorkKind::Sync);
        reached = if wait { reached } else { reached.max(work.end_ns) };
        if work.device != ruler.device {
            continue;
        }
        let mut number = |kind: SymbolKind, slot: &mut u32| {
            if *slot == u32::MAX {
                *slot = symbols.len() as u32;
                symbols.push(Symbol { kind, intervals: Vec::new(), idle_ns: 0, modal: None });
            }
            let symbol = &mut symbols[*slot as usize];
            let interval = ruler.layers_before[i];
            symbol.idle_ns += idle;
            if symbol.intervals.last() != Some(&interval) {
                symbol.intervals.push(interval);
            }
            *slot
        };
        if let Some(graph) = work.graph
            && graph_launch != Some(work.correlation)
        {
            graph_launch = Some(work.correlation);
            let slot = of_others.entry((true, u64::from(graph))).or_insert(u32::MAX);
            of_graphs.insert(i, number(SymbolKind::Graph, slot));
        }
        of_works[i] = match work.kind {
            WorkKind::Kernel { name, .. } => {
                let kind = match class {
                    class if class.is_sampling() => SymbolKind::Sampling,
                    class if class.is_embedding() => SymbolKind::Embedding,
                    _ => SymbolKind::Kernel,
                };
                let at = name.0 as usize;
                if of_name.len() <= at {
                    of_name.resize(at + 1, u32::MAX);
                }
                number(kind, &mut of_name[at])
            }
            WorkKind::Copy { direction: Direction::DeviceToHost, bytes } if bytes <= MAX_COPY_BYTES => {
                number(SymbolKind::Copy, of_others.entry((false, bytes)).or_insert(u32::MAX))
            }
            WorkKind::Graph { graph } => {
                number(SymbolKind::Graph, of_others.entry((true, u64::from(graph))).or_insert(u32::MAX))
            }
            _ => u32::MAX,
        };
    }
    symbols.iter_mut().for_each(Symbol::find_modal);
    (symbols, Occurrences { of_works, of_graphs })
}

/// The number of layers between two occurrences of what runs once per step.
fn vote(symbols: &[Symbol], taught: Option<u32>) -> Option<u32> {
    let mut votes: HashMap<u32, u32> = HashMap::new();
    let (mut single_embedding, mut single_sampling) = (false, false);
    for symbol in symbols {
        let Some((distance, share)) = symbol.modal else { continue };
        if share < REGULAR {
            continue;
        }
        let (weight, least) = match symbol.kind {
            SymbolKind::Embedding => (VOTE_EMBEDDING, 1),
            SymbolKind::Sampling => (VOTE_SAMPLING, 1),
            SymbolKind::Copy => (VOTE_COPY, 2),
            SymbolKind::Graph | SymbolKind::Kernel => (VOTE_ANY, 3),
        };
        if symbol.distances() < least {
            continue;
        }
        // Kernels that run in every layer do not show where steps end.
        if distance >= 2 {
            *votes.entry(distance).or_default() += weight;
        } else if symbol.distances() >= 4 {
            single_embedding |= symbol.kind == SymbolKind::Embedding && share > 0.8;
            single_sampling |= symbol.kind == SymbolKind::Sampling && share > 0.8;
        }
    }
    if let Some(layers) = taught {
        *votes.entry(layers).or_default() += VOTE_TAUGHT;
    }
    let most = votes.into_iter().max_by_key(|(layers, votes)| (*votes, u32::MAX - layers));
    most.map(|(layers, _)| layers).or((single_embedding && single_sampling).then_some(1))
}

/// The symbols that mark steps.
struct Marks {
    basis: Basis,
    /// Whether an embedding lookup is among them.
    embedding: bool,
    /// By symbol: `Some(true)` always marks a step, `Some(false)` only after all layers.
    accepted: Vec<Option<bool>>,
}

impl Marks {
    fn choose(symbols: &[Symbol], layers: u32) -> Option<Marks> {
        let regular = |symbol: &Symbol| {
            symbol.modal.is_some_and(|(distance, share)| distance == layers && share >= REGULAR)
        };
        let within_steps = |symbol: &Symbol| {
            symbol.distances() >= 3 && symbol.modal.is_some_and(|(distance, _)| distance < layers)
        };
        let of_kind = |kind: SymbolKind| {
            let fits = move |(_, symbol): &(usize, &Symbol)| symbol.kind == kind && !within_steps(symbol);
            symbols.iter().enumerate().filter(fits)
        };
        let best = |kind: SymbolKind| {
            let worth = |symbol: &Symbol| (symbol.distances(), symbol.idle_ns);
            of_kind(kind).filter(|(_, symbol)| regular(symbol)).max_by_key(|(_, symbol)| worth(symbol))
        };
        let mut accepted = vec![None; symbols.len()];
        // What is regular leads; others of its kind mark steps where they run between the same layers. A compiler may name
        // several kernels of a step after the embedding.
        let mut accept = |kind: SymbolKind, leading: &[u32]| {
            for (i, symbol) in of_kind(kind).filter(|(_, symbol)| symbol.is_aligned(leading)) {
                accepted[i] = Some(regular(symbol));
            }
        };
        let sampler = best(SymbolKind::Sampling);
        let lookup = best(SymbolKind::Embedding);
        let mut embedding = false;
        let basis = match (sampler, lookup) {
            (Some((_, sampler)), _) => {
                accept(SymbolKind::Sampling, &sampler.intervals);
                accept(SymbolKind::Embedding, &sampler.intervals);
                embedding =
                    of_kind(SymbolKind::Embedding).any(|(_, symbol)| symbol.is_aligned(&sampler.intervals));
                Basis::Sampler
            }
            (None, Some((_, lookup))) => {
                accept(SymbolKind::Embedding, &lookup.intervals);
                embedding = true;
                Basis::Embedding
            }
            (None, None) => {
                let (at, basis) = best(SymbolKind::Copy)
                    .map(|(i, _)| (i, Basis::Copy))
                    .or_else(|| best(SymbolKind::Graph).map(|(i, _)| (i, Basis::Graph)))
                    .or_else(|| best(SymbolKind::Kernel).map(|(i, _)| (i, Basis::Repeats)))?;
                accepted[at] = Some(true);
                basis
            }
        };
        Some(Marks { basis, embedding, accepted })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Boundary {
    /// The first work of the next step.
    at: usize,
    /// Layers before it.
    interval: u32,
    /// Lookups with GEMMs between them.
    lookups: u32,
}

/// What was found between two layers.
#[derive(Default, Clone, Copy)]
struct Between {
    /// The first lookup since the last GEMM.
    embedding: Option<usize>,
    lookups: u32,
    /// After the last sampling kernel, and the copy that follows it.
    sampled: Option<usize>,
    copied: bool,
    other: Option<usize>,
    always: bool,
}

fn boundaries(
    works: &[DeviceActivity],
    classes: &[Class],
    ruler: &Ruler,
    occurrences: &Occurrences,
    marks: &Marks,
    layers: u32,
) -> Vec<Boundary> {
    let mut found: Vec<Boundary> = Vec::new();
    let mut between = Between::default();
    // Since the last lookup, and since the last sampling kernel.
    let (mut product_since, mut product_since_sampling) = (true, true);
    let mut interval = 0;
    let close = |between: &Between, interval: u32, found: &mut Vec<Boundary>| {
        let by_embedding =
            between.embedding.filter(|at| between.sampled.is_none_or(|sampled| *at >= sampled));
        let Some(at) = by_embedding.or(between.sampled).or(between.other).or(between.embedding) else {
            return;
        };
        let far = found.last().is_none_or(|last| interval - last.interval >= layers);
        if between.always || far {
            found.push(Boundary { at, interval, lookups: between.lookups });
        }
    };
    for (i, (work, class)) in works.iter().zip(classes).enumerate() {
        if ruler.layers_before[i] != interval {
            close(&between, interval, &mut found);
            between = Between::default();
            (product_since, product_since_sampling) = (true, true);
            interval = ruler.layers_before[i];
        }
        if work.device != ruler.device {
            continue;
        }
        if matches!(work.kind, WorkKind::Kernel { .. }) && class.is_product() {
            (product_since, product_since_sampling) = (true, true);
        }
        let is_marked = |symbol: u32| marks.accepted.get(symbol as usize).copied().flatten();
        if let Some(always) = occurrences.of_graphs.get(&i).and_then(|symbol| is_marked(*symbol)) {
            between.other = between.other.or(Some(i));
            between.always |= always;
        }
        let is_copy = matches!(work.kind, WorkKind::Copy { direction: Direction::DeviceToHost, .. });
        if is_copy && between.sampled.is_some() && !between.copied && !product_since_sampling {
            between.sampled = Some(i + 1);
            between.copied = true;
        }
        let Some(always) = is_marked(occurrences.of_works[i]) else { continue };
        between.always |= always;
        if class.is_sampling() {
            between.sampled = Some(i + 1);
            between.copied = false;
            product_since_sampling = false;
        } else if class.is_embedding() {
            if product_since || between.embedding.is_none() {
                between.embedding = Some(i);
                between.lookups += 1;
            }
            product_since = false;
        } else if marks.basis == Basis::Copy {
            between.other = Some(i + 1);
        } else {
            between.other = between.other.or(Some(i));
        }
    }
    close(&between, interval, &mut found);
    // The last interval is not complete. A program that looks up rows in its last layer too has not come to the next step.
    let usual = found.iter().rev().skip(1).map(|boundary| boundary.lookups).max().unwrap_or(0);
    if found.last().is_some_and(|last| {
        last.interval == ruler.layers && between.sampled.is_none() && last.lookups < usual
    }) {
        found.pop();
    }
    found
}
