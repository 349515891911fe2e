//! What a run's model costs, held against what was measured: MFU, MBU, operators, the roofline.

use super::{HostOperators, LiveKernels, RunState};
use crate::{
    analysis::{
        kernel_hints::{self, Seen},
        operators::{OperatorRow, Spent, operator_rows},
        peaks::{OVERRIDE, Peaks, peaks},
        roofline::{Point, PointKind, Roof, Roofline, Timed, estimated},
        throttle::Work,
    },
    event::{Phase, kernels::Kind, readings::Reading},
    model::{Operator, Step, cost::StepCost},
};

/// How much of a ceiling was used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Used {
    pub share: f64,
    /// A second.
    pub achieved: f64,
    pub peak: f64,
}

/// What operators were timed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorBasis {
    /// By the GPU's own clock.
    Kernels,
    /// By the engine's thread, on the CPU.
    WallTime,
}

impl OperatorBasis {
    pub fn words(self) -> &'static str {
        match self {
            OperatorBasis::Kernels => "time of its kernels",
            OperatorBasis::WallTime => "wall time on the CPU",
        }
    }
}

impl Used {
    fn of(achieved: f64, peak: f64) -> Option<Used> {
        (achieved > 0.0 && peak > 0.0).then(|| Used { share: achieved / peak, achieved, peak })
    }
}

impl RunState {
    /// What the device can do at most, as stated; or why that is not known, and what to do.
    pub fn peaks(&self) -> Result<Peaks, String> {
        let run = self.run.as_ref().ok_or("no run has begun")?;
        let dtype = run.shape.as_ref().map_or(run.dtype.as_str(), |shape| shape.dtype.as_str());
        let gpu = self.profiled_gpu().map(|gpu| gpu.info.name.as_str());
        match peaks(gpu, dtype, run.peaks) {
            Err(_) if gpu.is_none() && run.device.is_cuda() => Err(format!(
                "which GPU this is was not told: profiling.nvml.enable=true looks at it, or {OVERRIDE}"
            )),
            known => known,
        }
    }

    /// What one step of `phase` costs: a prefill of mean length, or a token in the middle of a request.
    pub fn step_cost(&self, phase: Phase) -> Option<StepCost> {
        let run = self.run.as_ref()?;
        let shape = run.shape.as_ref()?;
        let batch = u64::from(run.batch);
        let measured = self.total.prompt_tokens.checked_div(self.total.ttft.n() * batch);
        let prompt = measured.unwrap_or(u64::from(run.prompt_tokens));
        match phase {
            Phase::Prefill => Some(shape.cost(Step::prefill(batch, prompt))),
            Phase::Decode => Some(shape.cost(Step::decode(batch, prompt + u64::from(run.output_tokens) / 2))),
            _ => None,
        }
    }

    /// The operands of `operator` in the step that [`step_cost`](Self::step_cost) is of.
    pub fn operand_shapes(&self, phase: Phase, operator: Operator) -> Option<String> {
        let step = self.step_cost(phase)?.step;
        Some(self.run.as_ref()?.shape.as_ref()?.operand_shapes(operator, step))
    }

    /// Model FLOP/s of the prefills over the dense peak.
    pub fn mfu(&self) -> Option<Used> {
        let flops = self.step_cost(Phase::Prefill)?.total().flops();
        let secs = self.total.ttft.sum_secs() / self.total.ttft.n().max(1) as f64;
        Used::of(flops / secs, self.peaks().ok()?.flops).filter(|_| secs > 0.0)
    }

    /// Bytes of weights and cache that a decode step has to read, a second, over the peak; at `decode_tok_s`.
    pub fn mbu_at(&self, decode_tok_s: f64) -> Option<Used> {
        let cost = self.step_cost(Phase::Decode);
        // Recordings from before shapes were recorded tell the bytes alone.
        let bytes =
            cost.map(|cost| cost.total().certain_bytes()).or(self.decode_step_bytes().map(|n| n as f64))?;
        Used::of(bytes * decode_tok_s / f64::from(self.batch()), self.peaks().ok()?.bytes_per_s)
    }

    /// The same over the whole run.
    pub fn mbu(&self) -> Option<Used> {
        self.mbu_at(self.total.decode_tok_s()?)
    }

    /// The SM clock while `phase` was at work.
    fn clock_of(&self, phase: Phase) -> Option<f64> {
        let work = match phase {
            Phase::Prefill => Work::Prefill,
            Phase::Decode => Work::Decode,
            _ => return None,
        };
        self.profiled_gpu()?.ledger.of(work).clock_mhz.value()
    }

    /// The SM clock of this moment; of a run that is over, its mean under load.
    fn clock_now(&self) -> Option<f64> {
        let gpu = self.profiled_gpu()?;
        if self.finished.is_none() {
            return gpu.value(Reading::SmClock);
        }
        let accounts = [Work::Prefill, Work::Decode].map(|work| gpu.ledger.of(work).clock_mhz);
        let weight: f64 = accounts.iter().map(|mean| mean.weight()).sum();
        let sum: f64 = accounts.iter().filter_map(|mean| Some(mean.value()? * mean.weight())).sum();
        (weight > 0.0).then(|| sum / weight)
    }

    /// The ceilings at the clock that `phase` had, else at that of the run, else as stated.
    fn roof_of(&self, phase: Phase) -> Result<Roof, String> {
        let peaks = self.peaks()?;
        let mhz = self.clock_of(phase).or_else(|| self.clock_now());
        let at_clock = mhz.and_then(|mhz| Roof::at_clock(&peaks, mhz));
        Ok(at_clock.unwrap_or_else(|| Roof::stated(&peaks)))
    }

    /// Where the times of the operators of `phase` come from, and over how many steps; `None` while there are none. On a
    /// GPU only kernels tell: what the host spends on an operator there is not what it takes.
    pub fn operator_basis(&self, phase: Phase) -> Option<(OperatorBasis, u64)> {
        let kernels = self.kernels.live(phase).filter(|live| live.steps > 0 && !live.rows.is_empty());
        let timed = || self.operators_on_cpu(phase).map(|host| (OperatorBasis::WallTime, host.told_steps()));
        kernels.map(|live| (OperatorBasis::Kernels, live.steps)).or_else(timed)
    }

    /// What operators took where the CPU did them; `None` on a GPU, and where nobody timed them.
    pub fn operators_on_cpu(&self, phase: Phase) -> Option<&HostOperators> {
        let on_cpu = self.run.as_ref().is_some_and(|run| run.device.is_cpu());
        self.operators.of(phase).filter(|host| on_cpu && !host.times.is_empty())
    }

    /// The operators of `phase` as they were measured, the longest first; empty while they were not.
    pub fn operator_rows(&self, phase: Phase) -> Vec<OperatorRow> {
        let Some((basis, steps)) = self.operator_basis(phase) else { return Vec::new() };
        let spent: Vec<Spent<'_>> = match basis {
            OperatorBasis::Kernels => {
                self.kernels.live(phase).map(|live| live.rows.iter().map(Spent::from).collect())
            }
            OperatorBasis::WallTime => {
                self.operators.of(phase).map(|host| host.times.iter().map(Spent::from).collect())
            }
        }
        .unwrap_or_default();
        let roof = self.roof_of(phase);
        let roof = roof.as_ref().map(|roof| *roof).map_err(String::as_str);
        operator_rows(&spent, steps, self.step_cost(phase).as_ref(), roof)
    }

    /// What the kernels of `phase` say, the most telling first.
    pub fn kernel_hints(&self, phase: Phase) -> Vec<String> {
        let seen = self.kernels.live(phase).and_then(|live| Some((live, live.launch_meter()?)));
        let Some((live, meter)) = seen else { return Vec::new() };
        let LiveKernels { steps, dropped, rows, .. } = live;
        let operators = &self.operator_rows(phase);
        kernel_hints::hints(&Seen { phase, steps: *steps, meter, dropped: *dropped, rows, operators })
    }

    /// Phases, operators and kernels under their ceilings.
    pub fn roofline(&self) -> Roofline {
        let mut points = Vec::new();
        for phase in [Phase::Decode, Phase::Prefill] {
            points.extend(self.phase_point(phase));
        }
        for phase in [Phase::Decode, Phase::Prefill] {
            points.extend(self.operator_points(phase));
        }
        points.extend(self.kernel_points());
        Roofline { peaks: self.peaks(), clock_mhz: self.clock_now(), points }
    }

    /// A whole step as it was timed.
    fn phase_point(&self, phase: Phase) -> Option<Point> {
        let cost = self.step_cost(phase)?.total();
        let (name, by_host, by_device) = match phase {
            Phase::Prefill => ("prefill", &self.total.ttft, &self.total.device_prefill),
            _ => ("decode step", &self.total.itl, &self.total.device_step),
        };
        let (ms, basis) = match (by_device.mean_ms(), by_host.mean_ms()) {
            (Some(ms), _) => (ms, "mean time by the GPU's own clock"),
            (None, Some(ms)) if phase == Phase::Prefill => (ms, "mean TTFT"),
            (None, Some(ms)) => (ms, "mean ITL"),
            (None, None) => return None,
        };
        let timed = Timed { flops: cost.flops(), bytes: cost.bytes(), seconds: ms / 1e3 };
        let roof = self.roof_of(phase).ok();
        Some(Point {
            kind: PointKind::Phase,
            phase: phase.name(),
            name: name.to_owned(),
            timed,
            share: roof.map(|roof| timed.share_of(&roof)),
            time_pct: None,
            basis: format!("FLOPs and bytes from the model's shape, {basis}"),
            verdict: roof.map(|roof| estimated("step", &timed, &roof)),
        })
    }

    fn operator_points(&self, phase: Phase) -> Vec<Point> {
        let Some((basis, _)) = self.operator_basis(phase) else { return Vec::new() };
        self.operator_rows(phase)
            .into_iter()
            .filter_map(|row| {
                Some(Point {
                    kind: PointKind::Operator,
                    phase: phase.name(),
                    name: row.name().to_owned(),
                    timed: row.achieved?,
                    share: row.pct_of_peaks,
                    time_pct: Some(row.share * 100.0),
                    basis: format!("FLOPs and bytes from the model's shape, {}", basis.words()),
                    verdict: row.verdict.ok(),
                })
            })
            .collect()
    }

    /// Kernels whose operations and bytes were counted.
    fn kernel_points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for report in &self.kernels.reports {
            let roof = self.roof_of(report.phase.unwrap_or_default()).ok();
            let tables = report.tables.iter().filter(|table| table.kind == Kind::Kernels);
            for (table, row) in tables.flat_map(|table| table.rows.iter().map(move |row| (table, row))) {
                let known = row.known();
                let (Some(flops), Some(ns)) = (known.flops.as_ref(), known.duration_ns) else { continue };
                let seconds = ns * 1e-9;
                let bytes = known.dram_bytes.or_else(|| Some(known.dram_bytes_per_s? * seconds));
                let Some(bytes) = bytes.filter(|_| seconds > 0.0) else { continue };
                let timed = Timed { flops: flops.total, bytes, seconds };
                points.push(Point {
                    kind: PointKind::Kernel,
                    phase: report.phase.map_or("", Phase::name),
                    name: row.family.clone(),
                    timed,
                    share: roof.map(|roof| timed.share_of(&roof)),
                    time_pct: table.total().zip(row.total_ns).map(|(all, ns)| ns / all * 100.0),
                    basis: format!("counters of {} ({})", report.tool, flops.counted),
                    verdict: row.verdict().ok(),
                });
            }
        }
        points
    }
}
