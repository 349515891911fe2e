//! The diagnosis of a run's GPU, from the state.

use super::{GpuState, RunState, Series, ServerState, TtftPart};
use llmprof_analysis::{
    gpu_idle::GpuIdle,
    program::{Activity, Remark},
    server::{Goodput, ServerFacts, ServerRemark},
    throttle::{Diagnosis, Evidence, Ledger, Workload, diagnose},
    trust::{Conditions, Served, Trust, TrustInput, evenness, trust},
    verdict,
};
use llmprof_base::units::{clock, three_digits};
use llmprof_event::{GpuProcess, Outcome, Stamp, readings::Reading};

/// Maximum remarks of the verdict; more are on the Kernels pane.
const VERDICT_REMARKS: usize = 2;

impl RunState {
    /// The diagnosis of the main GPU; `None` without a GPU, and before its first sample.
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        let gpu = self.main_gpu()?;
        self.diagnosis_of(gpu)
    }

    /// The diagnosis of the GPU that the workload runs on, as the screen shows it; `None` on the CPU.
    pub fn workload_diagnosis(&self) -> Option<Diagnosis> {
        self.diagnosis_of(self.profiled_gpu()?)
    }

    /// The trust in the run; `None` until something was measured.
    pub fn trust(&self) -> Option<Trust> {
        let run = self.run.as_ref().filter(|_| self.total.itl.n() > 0)?;
        Some(trust(&TrustInput {
            conditions: self.conditions(
                self.total.from,
                self.tpots_ns.is_recorded().then(|| self.total.recorded_share()),
            ),
            tool: run.perturbed.as_deref(),
            outcome: self.finished.as_ref().map(|finished| finished.outcome),
            tpots_ns: self.tpots_ns.values(),
            interleaved: false,
        }))
    }

    /// The conditions of the run since `from`, if kernels were recorded in `recorded_share` of the compared time.
    pub(super) fn conditions(&self, from: Stamp, recorded_share: Option<f64>) -> Conditions {
        let gpu = self.profiled_gpu();
        let on_cpu = self.run.as_ref().is_some_and(|run| run.device.is_cpu());
        Conditions {
            other_gpu_processes: gpu.map_or(0, |gpu| gpu.processes_seen.len() as u32),
            external_cpu_share: self.host.taken_by_others(from, self.now).filter(|_| on_cpu),
            events_lost: self.observer.map_or(0, |observer| observer.lost) + self.unreadable_lines,
            throttled: gpu
                .and_then(|gpu| self.diagnosis_of(gpu))
                .is_some_and(|diagnosis| diagnosis.throttled),
            recorded_share,
            served: self.served_conditions(),
        }
    }

    fn served_conditions(&self) -> Option<Served> {
        let server = self.load_tested()?;
        let facts = self.server_facts(server);
        let (ended, failed) = (server.ended, server.failed);
        let chunks_for_tokens = facts.chunks_for_tokens;
        Some(Served { ended, failed, late_ms: facts.late_client_ms(), chunks_for_tokens })
    }

    /// GPU idle time during decode; `None` if neither kernels nor steps were timed on it.
    pub fn gpu_idle(&self) -> Option<GpuIdle> {
        GpuIdle::find(self.kernels.decode.launch_meter().as_ref(), self.total.device_share())
    }

    /// The verdict on a program without known steps: what it did, or why nothing is known.
    fn program_verdict(&self) -> Option<String> {
        if let Some(activity) =
            self.kernels.without_steps().and_then(|live| Activity::from_window(&live.total))
        {
            let finding = self.programs.finding.map_or_else(String::new, |finding| format!(" {finding}"));
            return Some(format!("{activity}{finding}"));
        }
        self.program_without_kernels()
    }

    /// Why nothing is known about a program that has ended: none of its kernels was recorded.
    pub fn program_without_kernels(&self) -> Option<String> {
        let has_kernels = self.kernels.without_steps().is_some();
        if has_kernels || !self.found_no_steps() {
            return None;
        }
        // A program that could not be started has only the cause of that.
        self.finished.as_ref().filter(|_| self.startup.has_begun())?;
        let text = match self.programs.has_cuda() {
            true => "The program started CUDA, but no kernel of it was recorded.",
            false => "The program did not use CUDA: none of its processes started the driver.",
        };
        Some(text.to_owned())
    }

    /// The summary of the run so far; `None` until something was measured.
    pub fn verdict(&self) -> Option<String> {
        let run = self.run.as_ref()?;
        if self.load_tested().is_some() {
            return self.server_verdict();
        }
        if self.found_no_steps() {
            return self.program_verdict();
        }
        // For another program, the remarks say more about its kernels. Its gaps are in the account.
        let mut remarks = self.kernels.decode.remarks();
        let accounted = self.limit().is_some();
        remarks.retain(|remark| {
            !accounted || !matches!(remark, Remark::LaunchBound { .. } | Remark::IdleBetweenGraphs { .. })
        });
        let why = remarks.iter().take(VERDICT_REMARKS).map(|remark| format!(" {remark}")).collect::<String>();
        let summary = verdict::summary(&verdict::Measurements {
            metrics: &self.total,
            tpot: evenness(self.tpots_ns.values()),
            idle: self.gpu_idle().filter(|_| why.is_empty() && !accounted),
            recorded: self.total.left_out(),
            recording_cost: self.kernels.recording.cost(),
            batch: run.batch,
            tokens_per_step: self.speculation.and_then(|tally| tally.tokens_per_step()),
            step_bytes: self.decode_step_bytes(),
            cpu_taken_by_others: self
                .host
                .taken_by_others(self.total.from, self.now)
                .filter(|_| run.device.is_cpu()),
            simulated: run.simulated,
            inferred: run.kind.infers_steps(),
        });
        summary.map(|summary| summary + &why)
    }

    /// The verdict on a server: what it did, and what limited it.
    fn server_verdict(&self) -> Option<String> {
        let seconds = self.total.wall_ns as f64 / 1e9;
        let done = self.server.ended.saturating_sub(self.server.failed);
        let failed = self.finished.as_ref().is_some_and(|finished| finished.outcome == Outcome::Failed);
        let stopped = failed || self.server.silent_for(self.now).is_some();
        let until = self.counted_to.filter(|_| stopped).map(|to| clock(to.since(Stamp(0))));
        let answers = self.total.output_tok_s().map(|tok_s| {
            let verb = if stopped { "answered" } else { "answers" };
            let until = until.map_or_else(String::new, |until| format!(" until {until}"));
            format!(
                "The server {verb} {} requests/s with {} output tok/s{until}.",
                three_digits(done as f64 / seconds.max(1e-9)),
                three_digits(tok_s)
            )
        });
        let remarks = self.server_remarks().into_iter().filter(|_| self.server.ended > 0);
        let said: Vec<String> = answers.into_iter().chain(remarks.map(|remark| remark.to_string())).collect();
        (!said.is_empty()).then(|| said.join(" "))
    }

    /// Why a server is slow, the most important first.
    pub fn server_remarks(&self) -> Vec<ServerRemark> {
        self.remarks_on(&self.server)
    }

    /// The same on one of several servers.
    pub fn remarks_on(&self, server: &ServerState) -> Vec<ServerRemark> {
        self.server_facts(server).remarks()
    }

    fn server_facts(&self, server: &ServerState) -> ServerFacts {
        let mean = |series: &Series| {
            let column = series.columns(self.total.from, self.now, 1).into_iter().next().flatten();
            column.map(|bucket| f64::from(bucket.mean()))
        };
        let part = |part: TtftPart| server.part_mean_ms(part);
        let done = server.ended.saturating_sub(server.failed);
        let seconds = self.total.wall_ns as f64 / 1e9;
        let observed_s = self.now.since(self.total.from).as_secs_f64();
        ServerFacts {
            kind: server.found.as_ref().map(|found| found.kind.clone()),
            requests: done,
            failed: server.failed,
            worst_failure: server.failures.iter().map(|(failure, n)| (*failure, *n)).max_by_key(|(_, n)| *n),
            ttft_ms: server.ttft_mean_ms(),
            connect_ms: part(TtftPart::Connect),
            queue_ms: part(TtftPart::Queue),
            prefill_ms: part(TtftPart::Prefill),
            prompt_tokens: (done > 0 && server.prompt_tokens > 0)
                .then(|| server.prompt_tokens as f64 / done as f64),
            itl_ms: self.total.itl.percentile_ms(50.0),
            client_lag_ms: mean(&server.lag_ms),
            running: mean(&server.running),
            queued: mean(&server.queued),
            kv_used: server.kv_used.range().map(|(_, max)| f64::from(max) / 100.0),
            preemptions_per_min: server
                .latest
                .as_ref()
                .and_then(|latest| latest.preemptions)
                .filter(|_| observed_s > 1.0)
                .map(|_| server.measured_preemptions * 60.0 / observed_s),
            prefix_hits: match server.cached_tokens {
                Some(cached) if server.prompt_tokens > 0 => Some(cached as f64 / server.prompt_tokens as f64),
                _ => server.latest.as_ref().and_then(|latest| latest.prefix_hits),
            },
            tokens_per_chunk: server.tokens_per_chunk(),
            together: server.together_share(),
            tokenized: done > 0 && server.tokenized >= done,
            chunks_for_tokens: done > 0 && server.uncounted >= done,
            late: server.late.share().map(|share| {
                let causes = server.late.by_cause();
                let all: u64 = causes.iter().map(|(_, lost)| lost.ns).sum();
                let of = |ns: u64| ns as f64 / all.max(1) as f64;
                (share, causes.into_iter().map(|(cause, lost)| (cause, of(lost.ns))).collect())
            }),
            good: server
                .good_share()
                .filter(|_| seconds > 0.0)
                .map(|share| Goodput { per_s: server.good as f64 / seconds, share }),
        }
    }

    /// The current diagnosis of a GPU: over the whole run for a workload, over the last minute or two for external
    /// load.
    pub fn diagnosis_now(&self, gpu: &GpuState) -> Option<Diagnosis> {
        self.diagnosis_by(gpu, if self.kind().has_workload() { &gpu.ledger } else { gpu.recent_ledger() })
    }

    pub fn diagnosis_of(&self, gpu: &GpuState) -> Option<Diagnosis> {
        self.diagnosis_by(gpu, &gpu.ledger)
    }

    fn diagnosis_by(&self, gpu: &GpuState, ledger: &Ledger) -> Option<Diagnosis> {
        let profiled = gpu.info.profiled;
        let workload = self.run.as_ref().filter(|_| profiled);
        let others: Vec<GpuProcess> = gpu.processes_seen.iter().map(|(_, process)| process.clone()).collect();
        // Without a workload, other processes are the subject.
        let others = if profiled { others } else { Vec::new() };
        diagnose(&Evidence {
            info: &gpu.info,
            ledger,
            workload: workload.map(|run| Workload { batch: run.batch, prompt_tokens: run.prompt_tokens }),
            tpot_ms: self.total.itl.mean_ms().filter(|_| profiled),
            device_share: self.total.device_share().filter(|_| profiled),
            fan_pct: gpu.value(Reading::Fan),
            pcie_width: gpu.value(Reading::PcieWidth),
            others: &others,
            lost: gpu.lost.as_ref().map(|(_, lost)| lost),
            began: None,
        })
    }
}
