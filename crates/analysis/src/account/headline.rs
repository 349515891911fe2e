//! An account as its first sentences, and what would make an owner smaller.

use super::{Account, Group, Owner};
use crate::{launches::LaunchMeter, startup::Stage, throttle::Limit};
use llm_cost::OperatorKind;
use llmprof_base::units::{grouped, millis, percent, scaled};
use llmprof_event::reasons::SW_POWER_CAP;

/// The techniques that the program already uses, and the settings that cannot be changed: no remedy recommends them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Setup {
    pub uses_graphs: bool,
    /// The numbers of its weights have fewer than 16 bits.
    pub is_quantised: bool,
    pub speculates: bool,
    /// A server that is load-tested.
    pub is_server: bool,
    /// The requests run on the CPU.
    pub is_on_cpu: bool,
    /// The operators are timed on the host.
    pub times_operators: bool,
    /// The built-in engine.
    pub is_built_in: bool,
    /// The power limit is the highest that the GPU allows.
    pub is_power_at_maximum: bool,
    /// Bytes per second at the peak, for the sentence.
    pub peak_bytes_per_s: Option<f64>,
    pub launches: Option<LaunchMeter>,
}

/// The remedy that reduces the time of `owner`; `None` if none is known.
pub fn remedy(owner: Owner, setup: &Setup) -> Option<&'static str> {
    Some(match owner {
        Owner::Bytes if setup.is_quantised && setup.speculates => return None,
        Owner::Bytes if setup.is_quantised => {
            "Fewer bytes per token: speculative decoding, or a larger batch for more tokens per read"
        }
        Owner::Bytes => {
            "Fewer bytes per token: FP8 or 4-bit weights, speculative decoding, a larger batch for more tokens per read"
        }
        Owner::Flops => "Fewer FLOPs: FP8, a prefix cache for shared prompts, a smaller model",
        Owner::Clock(Limit::Bit(SW_POWER_CAP)) if setup.is_power_at_maximum => {
            "The power limit is the maximum of this GPU: only less work per token helps"
        }
        Owner::Clock(limit) => limit.known()?.remedy,
        Owner::Operator(operator) if setup.is_on_cpu => match operator.kind() {
            OperatorKind::Matmul => "Quantised weights, or more threads",
            _ => "More threads",
        },
        Owner::Operator(operator) => match operator.kind() {
            OperatorKind::Attention if setup.is_built_in => "An FP8 KV cache (runtime.kv_cache_dtype=fp8)",
            _ if setup.is_built_in => "ncu shows what its kernels wait for (profiling.ncu.enable=true)",
            OperatorKind::Attention => "Another attention backend, or an FP8 KV cache",
            _ => "Another GEMM backend; ncu shows what its kernel waits for",
        },
        Owner::SmallKernels | Owner::Kernels(_) => {
            "Fuse small kernels (torch.compile, or the engine's fusion passes)"
        }
        Owner::Work => "Record kernels to see which are slow (K)",
        Owner::Communication => "Overlap communication with computation, or use fewer GPUs per model",
        Owner::Copies => "Keep data on the GPU; use pinned memory and copy while kernels run",
        Owner::KernelGaps if setup.uses_graphs => {
            "The program launches CUDA graphs; fewer kernels per step help further"
        }
        Owner::KernelGaps | Owner::GpuIdle => "CUDA graphs, or torch.compile(mode=\"reduce-overhead\")",
        Owner::StepGaps if setup.is_built_in => return None,
        Owner::StepGaps => {
            "Overlap the host's work with the GPU (asynchronous scheduling), or less work between steps"
        }
        Owner::OtherPrefills => "Chunked prefill with smaller chunks, or separate prefill and decode servers",
        Owner::BatchGrowth => "Expected with more requests; a smaller maximum batch keeps TPOT lower",
        Owner::Preemption | Owner::KvPressure => {
            "More KV cache (GPU memory share, FP8 cache), or fewer requests at a time"
        }
        Owner::Recording => "Record less (profiling.cupti.duty)",
        Owner::Client => "Run the client on another machine, or with fewer requests per process",
        Owner::Connect => "Keep connections open between requests",
        Owner::Send => "Smaller requests, or a faster network",
        Owner::Queue => "More capacity, or fewer requests per second",
        Owner::Vision => "Smaller images, or fewer tiles",
        Owner::Prefill if setup.launches.is_some() => return None,
        Owner::Prefill => "Record kernels of prefills to see which operators are slow",
        Owner::NoRequests => "More requests at a time would use this time",
        Owner::Stage(Stage::Compile) => "Keep the compile cache between starts",
        Owner::Stage(Stage::Capture) => "Capture fewer batch sizes",
        Owner::Stage(Stage::Weights) => "Faster storage, or weights in the page cache",
        // The rest is outside of the operators: on a busy machine, the wait for the CPU.
        Owner::Unexplained if setup.times_operators => return None,
        Owner::Unexplained if setup.is_on_cpu => {
            "Time operators to see what it is (profiling.operators.enable=true)"
        }
        Owner::Unexplained if setup.launches.is_none() => match setup.is_server {
            true => "Record its kernels to see what it is: runtime.server.command starts it, attach joins it",
            false => "Record kernels to see what it is (K)",
        },
        Owner::Stage(_) | Owner::Unexplained => return None,
    })
}

/// A smaller share is not called a loss.
const MIN_LOSS: f64 = 0.01;
/// From this share of gaps on, the host limits the speed.
const IDLE: f64 = 0.2;
/// A larger unexplained share is named, if it is larger than every loss.
const UNEXPLAINED: f64 = 0.1;

/// What limits decode, by the account of the time between tokens, how much, and what to do; `None` without any owner.
pub fn headline(account: &Account, setup: &Setup) -> Option<String> {
    let is_explained = account.entries.iter().any(|entry| entry.owner != Owner::Unexplained);
    if account.total_ns <= 0.0 || !is_explained {
        return None;
    }
    let ms = |ns: f64| millis(ns / 1e6);
    let pct = |ns: f64| percent(100.0 * account.share(ns));
    let gaps_ns = account.group_ns(Group::Gaps);
    let bound_ns = account.group_ns(Group::Bound);
    let is_memory_bound = account.ns(Owner::Bytes) >= account.ns(Owner::Flops);
    let unexplained_ns = account.group_ns(Group::Unexplained);
    let loss = account.largest_loss().filter(|loss| account.share(loss.ns) >= MIN_LOSS);
    if account.share(gaps_ns) >= IDLE {
        let mut text = format!(
            "The host limits decode: the GPU is idle {} of the time, {} of {} per step",
            pct(gaps_ns),
            ms(gaps_ns),
            ms(account.total_ns)
        );
        if let Some(launches) = setup.launches.filter(|launches| !launches.in_graphs()) {
            text += &format!(", in which it launches {} kernels", grouped(launches.launches.round() as i64));
        }
        text += ".";
        let most = account.entries.iter().filter(|entry| entry.owner.group() == Group::Gaps);
        let most = most.max_by(|a, b| a.ns.total_cmp(&b.ns)).and_then(|entry| remedy(entry.owner, setup));
        return Some(with_remedy(text, most));
    }
    let mut text = match bound_ns > 0.0 {
        true => {
            let (limit, what) = match is_memory_bound {
                true => (
                    "memory limit",
                    setup.peak_bytes_per_s.map(|peak| format!("bytes at {}", scaled(peak, "B/s"))),
                ),
                false => ("compute limit", Some("FLOPs at the peak rate".to_owned())),
            };
            let what = what.unwrap_or_else(|| "the bound".to_owned());
            let whole = account.without_bound().filter(|entry| account.share(entry.ns) >= MIN_LOSS);
            let more = if whole.is_some() { " or more" } else { "" };
            let text = format!(
                "Decode is at {}{more} of the {limit}: {} of {} are {what}.",
                pct(bound_ns),
                ms(bound_ns),
                ms(account.total_ns)
            );
            whole.map_or(text.clone(), |entry| {
                let share = format!("{}, {} ({})", entry.owner, ms(entry.ns), pct(entry.ns));
                format!("{text} The bound of {share}, is not known: it depends on the size of the KV cache.")
            })
        }
        false => String::new(),
    };
    // The unknown part may be larger than the known one.
    if account.share(unexplained_ns) >= UNEXPLAINED && loss.is_none_or(|loss| loss.ns < unexplained_ns) {
        text += if text.is_empty() { "" } else { " " };
        text += &format!(
            "{} ({}) of the time between tokens are unexplained.",
            ms(unexplained_ns),
            pct(unexplained_ns)
        );
        return Some(with_remedy(text, remedy(Owner::Unexplained, setup)));
    }
    if let Some(loss) = loss {
        let share = format!("{}, {} ({})", loss.owner, ms(loss.ns), pct(loss.ns));
        text += if text.is_empty() { "" } else { " " };
        text += &match bound_ns > 0.0 {
            true => format!("Largest loss: {share}."),
            false => format!("The largest owner of {} per step is {share}.", ms(account.total_ns)),
        };
        text = with_remedy(text, remedy(loss.owner, setup));
    }
    (!text.is_empty()).then_some(text)
}

fn with_remedy(text: String, remedy: Option<&str>) -> String {
    match remedy {
        Some(remedy) => format!("{text} {remedy}."),
        None => text,
    }
}
