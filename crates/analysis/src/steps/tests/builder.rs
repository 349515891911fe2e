//! Makes the device work of programs.

use std::sync::Mutex;

use super::super::Fold;
use llmprof_event::kernels::work::{DeviceActivity, Direction, KernelLaunch, NameId, WorkKind};

/// One kernel, copy or wait of a step before it has a time.
#[derive(Debug, Clone)]
pub enum Op {
    /// Name, blocks, duration.
    Kernel(&'static str, u32, u64),
    Copy(Direction, u64),
    Wait,
}

/// How a step is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launch {
    /// Kernel by kernel, with this gap.
    Eager(u64),
    /// The layers and the head as one graph.
    Graph(u32),
}

/// A program under construction: its work and its clock.
pub struct Program {
    pub works: Vec<DeviceActivity>,
    pub now: u64,
    pub layers: usize,
    pub launch: Launch,
    pub stream: u32,
    correlation: u32,
}

pub const ARGMAX: &str = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4>>";
pub const LOOKUP: &str = "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>";
pub const FLASH: &str =
    "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4>>";

impl Program {
    pub fn new(layers: usize, launch: Launch) -> Program {
        Program { works: Vec::new(), now: 1_000_000_000, layers, launch, stream: 7, correlation: 0 }
    }

    /// The model of a step with `rows` tokens: lookup, layers, head.
    pub fn model(&self, rows: u32) -> Vec<Op> {
        let mut ops = vec![Op::Kernel(LOOKUP, rows, 2_000)];
        for _ in 0..self.layers {
            ops.extend([
                Op::Kernel("vllm::rms_norm_kernel", rows, 2_000),
                Op::Kernel("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", 64, 9_000),
                Op::Kernel("vllm::rotary_embedding_kernel", rows, 2_000),
                Op::Kernel("vllm::reshape_and_cache_flash_kernel", rows, 1_500),
                Op::Kernel(FLASH, rows.div_ceil(64) * 14, 6_000),
                Op::Kernel("nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN", 64, 5_000),
                Op::Kernel("vllm::fused_add_rms_norm_kernel", rows, 2_000),
                Op::Kernel("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", 64, 12_000),
                Op::Kernel("vllm::act_and_mul_kernel<silu>", rows, 2_000),
                Op::Kernel("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", 64, 8_000),
            ]);
        }
        ops.push(Op::Kernel("vllm::fused_add_rms_norm_kernel", rows, 2_000));
        ops.push(Op::Kernel("nvjet_sm90_tst_384x8_64x4_2x1_v_bz_TNT", 400, 40_000));
        ops
    }

    /// A step that samples by argmax and copies the token to the host.
    pub fn step(&mut self, rows: u32) {
        let model = self.model(rows);
        self.run(&model);
        self.eager(&[Op::Kernel(ARGMAX, 1, 4_000), Op::Copy(Direction::DeviceToHost, 8), Op::Wait]);
        self.now += 20_000;
    }

    pub fn steps(&mut self, n: usize) {
        (0..n).for_each(|_| self.step(1));
    }

    /// As the program launches it.
    pub fn run(&mut self, ops: &[Op]) {
        match self.launch {
            Launch::Eager(_) => self.eager(ops),
            Launch::Graph(graph) => {
                self.correlation += 1;
                let correlation = self.correlation;
                ops.iter().for_each(|op| self.push(op, correlation, Some(graph), 400));
            }
        }
    }

    pub fn eager(&mut self, ops: &[Op]) {
        let gap = if let Launch::Eager(gap) = self.launch { gap } else { 3_000 };
        for op in ops {
            self.correlation += 1;
            self.push(op, self.correlation, None, gap);
        }
    }

    fn push(&mut self, op: &Op, correlation: u32, graph: Option<u32>, gap: u64) {
        let (kind, ns) = match op {
            Op::Kernel(name, blocks, ns) => {
                let launch = KernelLaunch {
                    grid: [*blocks, 1, 1],
                    block: [128, 1, 1],
                    registers: 32,
                    shared_bytes: 0,
                };
                (WorkKind::Kernel { name: number(name), launch }, *ns)
            }
            Op::Copy(direction, bytes) => (WorkKind::Copy { direction: *direction, bytes: *bytes }, 1_500),
            Op::Wait => (WorkKind::Sync, 5_000),
        };
        let (start_ns, end_ns) = (self.now, self.now + ns);
        self.works.push(DeviceActivity {
            start_ns,
            end_ns,
            stream: self.stream,
            device: 0,
            correlation,
            graph,
            kind,
        });
        self.now = end_ns + gap;
    }
}

/// The names of all tests' kernels, numbered by their place.
static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

fn number(name: &'static str) -> NameId {
    let mut names = NAMES.lock().unwrap();
    let at = names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    NameId(at as u32 + 1)
}

/// A fold that knows the names of the tests' kernels by the same numbers.
pub fn fold() -> Fold {
    let mut fold = Fold::default();
    for name in NAMES.lock().unwrap().iter() {
        fold.name(name);
    }
    fold
}

/// The records that arrive where kernels are recorded in `bursts` only: between them, graphs are one record.
pub fn recorded(works: &[DeviceActivity], bursts: &[(u64, u64)]) -> Vec<DeviceActivity> {
    let inside = |t: u64| bursts.iter().any(|(from, to)| (*from..*to).contains(&t));
    let mut found = Vec::new();
    let mut graph: Option<DeviceActivity> = None;
    for work in works {
        if graph.is_some_and(|graph| graph.correlation != work.correlation) {
            found.extend(graph.take());
        }
        match (inside(work.start_ns), work.graph, work.kind) {
            (true, _, _) => found.push(*work),
            (false, Some(id), _) => {
                let whole = graph.get_or_insert(DeviceActivity {
                    graph: None,
                    kind: WorkKind::Graph { graph: id },
                    ..*work
                });
                whole.end_ns = work.end_ns;
            }
            (false, None, WorkKind::Kernel { .. }) => {}
            (false, None, _) => found.push(*work),
        }
    }
    found.extend(graph);
    found
}

/// Folds all works, recorded in `bursts`, in batches of 100 ms.
pub fn folded(works: &[DeviceActivity], bursts: &[(u64, u64)]) -> Fold {
    let mut fold = fold();
    let arriving = recorded(works, bursts);
    let mut switches: Vec<(u64, bool)> =
        bursts.iter().flat_map(|(from, to)| [(*from, true), (*to, false)]).collect();
    switches.sort_unstable();
    let mut switches = switches.into_iter().peekable();
    let mut batch_end = arriving.first().map_or(0, |work| work.start_ns) + 100_000_000;
    for work in arriving {
        while switches.peek().is_some_and(|(t, _)| *t <= work.start_ns) {
            if let Some((t, begin)) = switches.next() {
                if begin { fold.begin_burst(t) } else { fold.end_burst(t) }
            }
        }
        while work.start_ns > batch_end {
            fold.end_batch(batch_end);
            batch_end += 100_000_000;
        }
        fold.add(work);
    }
    for (t, begin) in switches {
        if begin { fold.begin_burst(t) } else { fold.end_burst(t) }
    }
    fold.finish();
    fold
}

/// All of it recorded.
pub fn folded_whole(works: &[DeviceActivity]) -> Fold {
    folded(works, &[(1, u64::MAX)])
}
