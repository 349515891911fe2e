//! The cost of a run's model compared with measurements: MFU, MBU, operators, the roofline.

use super::{HostOperators, RunState, TtftPart};
use llm_cost::{Operator, Step, cost::StepCost};
use llmprof_analysis::{
    classify,
    kernel_hints::{self, PhaseKernels},
    operators::{OperatorRow, Spent, operator_rows},
    peaks::{OVERRIDE, Peaks, peaks_of},
    program::changes,
    roofline::{OperatorBasis, Point, PointBasis, PointKind, Roof, Roofline, Timed, estimated},
    throttle::GpuActivity,
};
use llmprof_event::{Phase, kernels::Kind, readings::Reading};

/// The utilisation of a ceiling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Utilisation {
    pub share: f64,
    /// Per second.
    pub achieved: f64,
    pub peak: f64,
}

impl Utilisation {
    fn new(achieved: f64, peak: f64) -> Option<Utilisation> {
        // More than the peak cannot be measured: the model's shape or the peak is wrong.
        (achieved > 0.0 && achieved <= peak).then(|| Utilisation { share: achieved / peak, achieved, peak })
    }
}

impl RunState {
    /// The stated peaks of the device; or why they are not known, and what to do.
    pub fn peaks(&self) -> Result<Peaks, String> {
        let run = self.run.as_ref().ok_or("no run has begun")?;
        let dtype = run.shape.as_ref().map_or(run.dtype.as_str(), |shape| shape.dtype.as_str());
        let gpu = match self.load_tested() {
            Some(server) if run.peaks.is_empty() && !server.is_local() => {
                return Err(format!("the server is on another machine; set {OVERRIDE}"));
            }
            Some(_) => self.main_gpu(),
            None => self.profiled_gpu(),
        };
        let gpu = gpu.map(|gpu| &gpu.info);
        match peaks_of(gpu, dtype, run.peaks) {
            Err(_) if gpu.is_none() && run.device.is_cuda() => {
                Err(format!("the GPU is not known: set profiling.nvml.enable=true, or {OVERRIDE}"))
            }
            known => known,
        }
    }

    /// The cost of one step of `phase`: a prefill of mean length, or a token in the middle of a request.
    pub fn step_cost(&self, phase: Phase) -> Option<StepCost> {
        let run = self.run.as_ref()?;
        let shape = run.shape.as_ref()?;
        if self.load_tested().is_some() {
            return self.served_step(phase).map(|step| shape.cost(step));
        }
        let batch = u64::from(run.batch);
        let measured = self.total.prompt_tokens.checked_div(self.total.ttft.n() * batch);
        let prompt = measured.unwrap_or(u64::from(run.prompt_tokens));
        match phase {
            Phase::Prefill if run.kind.infers_steps() => {
                Some(shape.cost(Step::prefill(batch, self.tokens_per_prefill()?)))
            }
            Phase::Prefill => Some(shape.cost(Step::prefill(batch, prompt))),
            Phase::Decode => Some(shape.cost(Step::decode(batch, prompt + u64::from(run.output_tokens) / 2))),
            Phase::Vision => self.vision.as_ref()?.step_cost(batch),
            _ => None,
        }
    }

    /// A step of the server: for prefill a prompt of mean length minus its cached part, for decode a token of all
    /// concurrent streams in the middle of their requests.
    fn served_step(&self, phase: Phase) -> Option<Step> {
        let server = &self.server;
        let done = server.ended.checked_sub(server.failed).filter(|done| *done > 0)?;
        let prompt = server.prompt_tokens / done;
        let cached = server.cached_tokens.unwrap_or(0) / done;
        match phase {
            Phase::Prefill if prompt > 0 => {
                let prompt = prompt.saturating_sub(cached).max(1);
                // A step may have several prompts, or a part of one.
                let tokens = self.tokens_per_prefill().unwrap_or(prompt);
                let prompts = (tokens as f64 / prompt as f64).round().max(1.0) as u64;
                Some(Step::prefill(prompts, tokens / prompts))
            }
            Phase::Decode => {
                let context = prompt + server.output_tokens / done / 2;
                Some(Step::decode(self.server_batch()?.round().max(1.0) as u64, context))
            }
            _ => None,
        }
    }

    /// The prefill of a server's mean prompt, without its cached part, alone in a step.
    pub(super) fn served_prompt_cost(&self) -> Option<StepCost> {
        let server = &self.server;
        let done = server.ended.checked_sub(server.failed).filter(|done| *done > 0)?;
        let prompt = server.prompt_tokens.saturating_sub(server.cached_tokens.unwrap_or(0)) / done;
        let shape = self.run.as_ref()?.shape.as_ref()?;
        (prompt > 0).then(|| shape.cost(Step::prefill(1, prompt)))
    }

    /// Tokens of a mean prefill whose kernels were recorded.
    fn tokens_per_prefill(&self) -> Option<u64> {
        let prefill = &self.kernels.prefill.total;
        prefill.tokens?.checked_div(prefill.steps).filter(|tokens| *tokens > 0)
    }

    /// Sequences in a decode step: as reported by the server, else the concurrent streams.
    pub fn server_batch(&self) -> Option<f64> {
        let reported = self.server.batch.columns(self.total.from, self.now, 1).into_iter().next().flatten();
        let streams = self.server.late.total_ns() as f64 / self.total.wall_ns as f64;
        let streams = Some(streams).filter(|streams| streams.is_finite() && *streams > 0.0);
        reported.map(|bucket| f64::from(bucket.mean())).filter(|batch| *batch > 0.0).or(streams)
    }

    /// The operands of `operator` in the step of [`step_cost`](Self::step_cost).
    pub fn operand_shapes(&self, phase: Phase, operator: Operator) -> Option<String> {
        // The shapes of encoders differ from one to the next.
        let step = self.step_cost(phase).filter(|_| phase != Phase::Vision)?.step;
        Some(self.run.as_ref()?.shape.as_ref()?.operand_shapes(operator, step))
    }

    /// Model FLOPs utilisation: FLOP/s of the prefills over the dense peak.
    pub fn mfu(&self) -> Option<Utilisation> {
        let flops = self.step_cost(Phase::Prefill)?.total().flops();
        if let Some(server) = self.load_tested() {
            // TTFT includes the queue.
            let secs = server.part(TtftPart::Prefill).mean_ms()? / 1e3;
            return Utilisation::new(flops / secs, self.peaks().ok()?.flops).filter(|_| secs > 0.0);
        }
        let secs = self.total.prefill_secs() / self.total.ttft.n().max(1) as f64;
        Utilisation::new(flops / secs, self.peaks().ok()?.flops).filter(|_| secs > 0.0)
    }

    /// Model bandwidth utilisation at `decode_tok_s`: bytes of weights and cache that decode steps read per second, over the
    /// peak.
    pub fn mbu_at(&self, decode_tok_s: f64) -> Option<Utilisation> {
        let cost = self.step_cost(Phase::Decode);
        if let Some(server) = self.load_tested() {
            let steps_s = 1e3 / server.late.usual_ms().filter(|_| server.gaps_are_itl())?;
            return Utilisation::new(cost?.total().certain_bytes() * steps_s, self.peaks().ok()?.bytes_per_s);
        }
        // Recordings without a shape have the bytes only.
        let bytes =
            cost.map(|cost| cost.total().certain_bytes()).or(self.decode_step_bytes().map(|n| n as f64))?;
        let tokens = f64::from(self.batch()) * self.tokens_per_step();
        Utilisation::new(bytes * decode_tok_s / tokens, self.peaks().ok()?.bytes_per_s)
    }

    /// The same over the run.
    pub fn mbu(&self) -> Option<Utilisation> {
        self.mbu_at(self.decode_tok_s()?)
    }

    /// The mean SM clock in `phase`.
    fn clock_of(&self, phase: Phase) -> Option<f64> {
        let work = match phase {
            Phase::Vision => GpuActivity::Vision,
            Phase::Prefill => GpuActivity::Prefill,
            Phase::Decode => GpuActivity::Decode,
            _ => return None,
        };
        self.profiled_gpu()?.ledger.account(work).clock_mhz.value()
    }

    /// The current SM clock; for a finished run, its mean under load.
    fn clock_now(&self) -> Option<f64> {
        let gpu = self.profiled_gpu()?;
        if self.finished.is_none() {
            return gpu.value(Reading::SmClock);
        }
        let accounts = [GpuActivity::Vision, GpuActivity::Prefill, GpuActivity::Decode]
            .map(|work| gpu.ledger.account(work).clock_mhz);
        let weight: f64 = accounts.iter().map(|mean| mean.weight()).sum();
        let sum: f64 = accounts.iter().filter_map(|mean| Some(mean.value()? * mean.weight())).sum();
        (weight > 0.0).then(|| sum / weight)
    }

    /// The ceilings at the clock of `phase`, else at that of the run, else as stated.
    fn roof_of(&self, phase: Phase) -> Result<Roof, String> {
        let peaks = self.peaks()?;
        let mhz = self.clock_of(phase).or_else(|| self.clock_now());
        let at_clock = mhz.and_then(|mhz| Roof::at_clock(&peaks, mhz));
        Ok(at_clock.unwrap_or_else(|| Roof::stated(&peaks)))
    }

    /// The basis of the operator times of `phase`, and the number of steps; `None` before the first. On a GPU only
    /// kernels count, because the host's time is launch time.
    pub fn operator_basis(&self, phase: Phase) -> Option<(OperatorBasis, u64)> {
        let kernels = self.kernels.live(phase).map(|live| &live.total);
        let kernels = kernels.filter(|total| total.steps > 0 && !total.rows.is_empty());
        let timed =
            || self.operators_on_cpu(phase).map(|host| (OperatorBasis::WallTime, host.attributed_steps()));
        kernels.map(|total| (OperatorBasis::Kernels, total.steps)).or_else(timed)
    }

    /// Operator times if the workload runs on the CPU; `None` on a GPU, and if they were not timed.
    pub fn operators_on_cpu(&self, phase: Phase) -> Option<&HostOperators> {
        let on_cpu = self.run.as_ref().is_some_and(|run| run.device.is_cpu());
        self.operators.phase(phase).filter(|host| on_cpu && !host.times.is_empty())
    }

    /// The measured operators of `phase`, the longest first.
    pub fn operator_rows(&self, phase: Phase) -> Vec<OperatorRow> {
        let Some((basis, steps)) = self.operator_basis(phase) else { return Vec::new() };
        let spent: Vec<Spent<'_>> = match basis {
            OperatorBasis::Kernels => {
                self.kernels.live(phase).map(|live| live.total.rows.iter().map(Spent::from).collect())
            }
            OperatorBasis::WallTime => {
                self.operators.phase(phase).map(|host| host.times.iter().map(Spent::from).collect())
            }
        }
        .unwrap_or_default();
        let roof = self.roof_of(phase);
        let roof = roof.as_ref().map(|roof| *roof).map_err(String::as_str);
        operator_rows(&spent, steps, self.step_cost(phase).as_ref(), roof)
    }

    /// Findings about the kernels of `phase`, the most important first.
    pub fn kernel_hints(&self, phase: Phase) -> Vec<String> {
        let kernels = self.kernels.live(phase).and_then(|live| Some((&live.total, live.launch_meter()?)));
        let experts =
            self.experts.filter(|_| phase == Phase::Decode).map(|experts| format!("decode: {experts}"));
        let mut hints = match kernels {
            None => Vec::new(),
            Some(_) if self.followed().is_some() => self.program_hints(phase),
            Some((window, meter)) => kernel_hints::hints(&PhaseKernels {
                window,
                meter,
                operators: &self.operator_rows(phase),
                several_tokens: self.speculation.is_some() || self.kind().has_concurrent_requests(),
            }),
        };
        hints.extend(experts);
        hints
    }

    /// What limits another program, the changes since the last snapshot, and the basis of its steps.
    fn program_hints(&self, phase: Phase) -> Vec<String> {
        let Some(live) = self.kernels.live(phase) else { return Vec::new() };
        let mut hints: Vec<String> = live.remarks().iter().map(ToString::to_string).collect();
        if let Some(snapshot) = self.snapshots.back()
            && let Some(before) = snapshot.kernels.live(phase)
        {
            let changes = changes(&before.as_window(), &live.window);
            hints.extend(
                changes.iter().map(|change| format!("Since the snapshot {}: {change}.", snapshot.name)),
            );
        }
        let finding = self.programs.finding.filter(|_| phase == Phase::Decode);
        hints.extend(finding.map(|found| found.to_string()));
        hints
    }

    /// Phases, operators and kernels with their ceilings.
    pub fn roofline(&self) -> Roofline {
        let mut points = Vec::new();
        let phases = [Phase::Decode, Phase::Prefill, Phase::Vision];
        for phase in phases {
            points.extend(self.phase_point(phase));
        }
        for phase in phases {
            points.extend(self.operator_points(phase));
        }
        points.extend(self.kernel_points());
        Roofline { peaks: self.peaks(), clock_mhz: self.clock_now(), points }
    }

    /// The mean step of a phase.
    fn phase_point(&self, phase: Phase) -> Option<Point> {
        let cost = self.step_cost(phase)?.total();
        let total = &self.total;
        let (name, by_host, by_device) = match phase {
            Phase::Vision => ("vision", total.vision.mean_ms(), &total.device_vision),
            Phase::Prefill => ("prefill", total.prefill_ms(), &total.device_prefill),
            _ => ("decode step", total.itl.mean_ms(), &total.device_step),
        };
        let (ms, basis) = match (by_device.mean_ms(), by_host) {
            (Some(ms), _) => (ms, PointBasis::DeviceClock),
            // TTFT of a server includes the prompts of other clients.
            (None, _) if phase == Phase::Prefill && self.kind().has_concurrent_requests() => return None,
            (None, Some(ms)) if phase != Phase::Decode => (ms, PointBasis::Ttft),
            (None, Some(ms)) => (ms, PointBasis::Itl),
            (None, None) => return None,
        };
        let timed = Timed { flops: cost.flops(), bytes: cost.bytes(), seconds: ms / 1e3 };
        let roof = self.roof_of(phase).ok();
        Some(Point {
            kind: PointKind::Phase,
            phase: phase.name(),
            name: name.to_owned(),
            timed,
            // A point above the roof is not drawn.
            share: roof.map(|roof| timed.share_of(&roof)).transpose().ok()?,
            time_pct: None,
            basis,
            verdict: roof.and_then(|roof| estimated("step", &timed, &roof).ok()),
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
                    basis: PointBasis::Operator(basis),
                    verdict: row.verdict.ok(),
                })
            })
            .collect()
    }

    /// Kernels with counted operations and bytes.
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
                let Ok(share) = roof.map(|roof| timed.share_of(&roof)).transpose() else { continue };
                points.push(Point {
                    kind: PointKind::Kernel,
                    phase: report.phase.map_or("", Phase::name),
                    name: row.family.clone(),
                    timed,
                    share,
                    time_pct: table.total().zip(row.total_ns).map(|(all, ns)| ns / all * 100.0),
                    basis: PointBasis::Counters { tool: report.tool.clone(), counted: flops.counted.clone() },
                    verdict: classify::verdict(row).ok(),
                });
            }
        }
        points
    }
}
