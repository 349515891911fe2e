//! The accounts of a run: each measured time divided among its owners.

use super::{GpuState, RunState, TtftPart};
use llm_cost::{Operator, cost::StepCost};
use llmprof_analysis::{
    account::{
        Account, Bound, ClockLoss, DecodeFacts, Figure, Interference, Load, PrefillFacts, Setup, StepFacts,
        TtftFacts, cold_start, decode, headline, program, throughput, ttft,
    },
    roofline::Roof,
    throttle::{Basis, GpuActivity},
};
use llmprof_event::{ModelEngine, Phase, WorkKind};

/// Weights with fewer bytes per parameter are quantised.
const QUANTISED_BYTES: f64 = 1.6;
/// A clock that is this close to the highest power limit cannot be raised.
const AT_MAXIMUM: f32 = 0.99;
/// With a larger unexplained share, the account of a server is no verdict.
const MOSTLY_UNEXPLAINED: f64 = 0.5;

/// The accounts that a run has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Accounts {
    pub decode: Option<Account>,
    pub ttft: Option<Account>,
    pub throughput: Option<Account>,
    pub program: Option<Account>,
    pub cold_start: Option<Account>,
}

impl Accounts {
    /// In the order of reading.
    pub fn all(&self) -> impl Iterator<Item = &Account> {
        [&self.decode, &self.ttft, &self.throughput, &self.program, &self.cold_start].into_iter().flatten()
    }

    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }
}

impl RunState {
    /// Whether there is an account.
    pub fn has_account(&self) -> bool {
        let has_tokens = self.total.itl.n() > 0 || self.total.ttft.n() > 0;
        let has_program = || self.kernels.without_steps().is_some_and(|live| live.total.span_ns > 0);
        self.kind().has_workload() && (has_tokens || has_program() || self.startup.seconds().is_some())
    }

    pub fn accounts(&self) -> Accounts {
        let load = match self.kind() {
            WorkKind::Watch => return Accounts::default(),
            // The requests of another program are inferred, and only in parts.
            WorkKind::Program => None,
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Server => self.load(),
        };
        let (decode, ttft) = (self.decode_account(), self.ttft_account());
        let throughput = load.and_then(|load| throughput(&load, ttft.as_ref(), decode.as_ref()));
        let program = self.kernels.without_steps().and_then(|live| program(&live.total));
        Accounts { decode, ttft, throughput, program, cold_start: cold_start(&self.startup) }
    }

    /// The time between tokens; `None` before the first.
    pub fn decode_account(&self) -> Option<Account> {
        let itl = &self.total.itl;
        let mean_ns = itl.mean_ms()? * 1e6;
        let gaps = self.server.late.gaps();
        let late = self.server.late.by_cause().into_iter().filter(|_| gaps > 0);
        let late = late.map(|(cause, lost)| Interference { cause, ns: lost.ns as f64 / gaps as f64 });
        // Latencies leave recorded steps out, unless there are no others.
        let only_recorded = self.total.without.itl.n() == 0;
        let recording = self.kernels.recording.cost().filter(|_| only_recorded);
        let facts = DecodeFacts {
            is_tpot: self.speculation.is_none() && self.server.gaps_are_itl() && !self.kind().infers_steps(),
            mean_ns,
            n: itl.n(),
            late: late.collect(),
            recording_ns: recording.map(|cost| (cost.step_with_ms - cost.step_without_ms) * 1e6),
            step: self.step_facts(Phase::Decode),
            bound: self.bound(Phase::Decode).filter(|bound| bound.ns() <= mean_ns),
            device_ns: self.total.device_step.mean_ms().map(|ms| ms * 1e6),
            clock: self.clock_loss(Phase::Decode),
            operators: self.timed_operators(Phase::Decode),
        };
        Some(decode(&facts))
    }

    /// The time to the first token; `None` before the first.
    pub fn ttft_account(&self) -> Option<Account> {
        let distribution = &self.total.ttft;
        let mean_ns = distribution.mean_ms()? * 1e6;
        let part = |part: TtftPart| self.server.part_mean_ms(part).map(|ms| ms * 1e6);
        let serves = self.load_tested().is_some();
        let measured_ns = match serves {
            true => part(TtftPart::Prefill),
            false => self.total.device_prefill.mean_ms().map(|ms| ms * 1e6),
        };
        let known_ns = measured_ns.unwrap_or(mean_ns);
        let facts = TtftFacts {
            mean_ns,
            n: distribution.n(),
            connect_ns: part(TtftPart::Connect).filter(|_| serves),
            send_ns: part(TtftPart::Send).filter(|_| serves),
            queue_ns: part(TtftPart::Queue).filter(|_| serves),
            vision_ns: (self.total.vision.n() > 0)
                .then(|| self.total.vision.sum_secs() * 1e9 / distribution.n().max(1) as f64),
            prefill: PrefillFacts {
                ns: measured_ns,
                bound: self.bound(Phase::Prefill).filter(|bound| bound.ns() <= known_ns),
                own_share: self.server.late.own_prompt_share().filter(|_| serves),
                clock: self.clock_loss(Phase::Prefill),
                step: self.step_facts(Phase::Prefill).filter(|_| !serves),
            },
            is_local: !serves,
            operators: self.timed_operators(Phase::Prefill),
        };
        Some(ttft(&facts))
    }

    /// What limits decode, how much, and what to do; `None` before the first token. For a server only if more than
    /// half of the time has an owner.
    pub fn limit(&self) -> Option<String> {
        if !self.kind().has_workload() {
            return None;
        }
        let account = self.decode_account()?;
        let is_known = self.load_tested().is_none() || account.unexplained_share() < MOSTLY_UNEXPLAINED;
        headline(&account, &self.setup(account.figure)).filter(|_| is_known)
    }

    /// What the program uses already, for the remedies of the account of `figure`.
    pub fn setup(&self, figure: Figure) -> Setup {
        let phase = if figure == Figure::Ttft { Phase::Prefill } else { Phase::Decode };
        let run = self.run.as_ref();
        let launches = self.kernels.live(phase).and_then(|live| live.launch_meter());
        let gpu = self.gpu_of_work().map(|gpu| &gpu.info);
        let limits = gpu.and_then(|gpu| gpu.power_limit_w.zip(gpu.power_limit_max_w));
        let peaks = self.peaks().ok();
        Setup {
            uses_graphs: launches.is_some_and(|launches| launches.uses_graphs()),
            is_quantised: run.is_some_and(|run| {
                run.parameters > 0 && (run.weight_bytes as f64) < QUANTISED_BYTES * run.parameters as f64
            }),
            speculates: self.speculation.is_some(),
            is_server: self.load_tested().is_some(),
            is_on_cpu: run.is_some_and(|run| run.device.is_cpu()),
            times_operators: self.operators_on_cpu(phase).is_some(),
            is_built_in: matches!(self.kind(), WorkKind::Model(ModelEngine::Cuda | ModelEngine::Candle)),
            is_power_at_maximum: limits.is_some_and(|(limit, max)| limit >= AT_MAXIMUM * max),
            peak_bytes_per_s: peaks.map(|peaks| peaks.bytes_per_s),
            launches,
        }
    }

    /// The recorded steps of `phase`, each operator with its bound at the free clock.
    fn step_facts(&self, phase: Phase) -> Option<StepFacts> {
        let live =
            self.kernels.live(phase).filter(|live| live.total.steps > 0 && !live.total.rows.is_empty())?;
        let roof = self.peaks().ok().map(|peaks| Roof::stated(&peaks));
        StepFacts::from_window(&live.total, self.bounded_cost(phase).as_ref(), roof.as_ref())
    }

    /// The cost of a step's operators, as far as it is known. The KV cache of another program is not: its number of
    /// sequences and their lengths cannot be seen.
    fn bounded_cost(&self, phase: Phase) -> Option<StepCost> {
        let mut cost = self.step_cost(phase)?;
        if phase == Phase::Decode && self.kind().infers_steps() {
            cost.operators.retain(|operator| operator.operator != Operator::Attention);
        }
        Some(cost)
    }

    /// The minimum time of a step of `phase`; for a server, of the prefill of a mean prompt.
    fn bound(&self, phase: Phase) -> Option<Bound> {
        let roof = Roof::stated(&self.peaks().ok()?);
        let cost = match phase {
            Phase::Prefill if self.load_tested().is_some() => self.served_prompt_cost(),
            _ => self.bounded_cost(phase),
        };
        match cost {
            Some(cost) => Some(cost.operators.iter().map(|operator| Bound::new(&operator.all, &roof)).sum()),
            None if phase == Phase::Decode => {
                let bytes_ns = self.decode_step_bytes()? as f64 / roof.bytes_per_s * 1e9;
                Some(Bound { bytes_ns, flops_ns: 0.0 })
            }
            None => None,
        }
    }

    /// The GPU that does this run's work: for a server only if it is on the same machine.
    fn gpu_of_work(&self) -> Option<&GpuState> {
        match self.load_tested() {
            Some(_) => self.main_gpu().filter(|gpu| self.is_of_workload(gpu)),
            None => self.profiled_gpu(),
        }
    }

    /// The most expensive limit of the clock in `phase`, on a GPU that does this run's work.
    fn clock_loss(&self, phase: Phase) -> Option<ClockLoss> {
        let gpu = self.gpu_of_work()?;
        let work = match phase {
            Phase::Prefill => GpuActivity::Prefill,
            _ => GpuActivity::Decode,
        };
        let diagnosis = self.diagnosis_of(gpu)?;
        // A server's phases are not known.
        let serves = self.load_tested().is_some();
        let in_phase = diagnosis.causes.iter().filter(|cause| {
            cause.fault == Some(true) && (cause.phase == work || serves && cause.phase == GpuActivity::Busy)
        });
        let costs = in_phase.filter_map(|cause| Some((cause, cause.cost_pct?)));
        let (cause, pct) = costs.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, pct)| *pct > 0.0)?;
        let is_measured = matches!(cause.basis, Basis::Measured { .. });
        Some(ClockLoss { limit: cause.limit, share: pct / 100.0, is_measured })
    }

    /// Wall time of the operators of a step on the CPU.
    fn timed_operators(&self, phase: Phase) -> Vec<(Operator, f64)> {
        let Some(host) = self.operators_on_cpu(phase) else { return Vec::new() };
        let steps = host.attributed_steps().max(1) as f64;
        host.times.iter().map(|time| (time.operator, time.ns as f64 / steps)).collect()
    }

    fn load(&self) -> Option<Load> {
        let total = &self.total;
        (total.wall_ns > 0).then(|| Load {
            wall_ns: total.wall_ns as f64,
            output_tokens: total.output_tokens,
            ttft_ns: total.ttft.sum_secs() * 1e9,
            decode_ns: total.itl.sum_secs() * 1e9,
            idle_ns: self.idle.ns as f64,
        })
    }
}
