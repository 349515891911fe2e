//! Several GPUs in one run: the activity of each in the same time, and how long they waited for each other.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Stamp;

/// A collective operation, by the name of its kernel or its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
    SendRecv,
    #[serde(other)]
    Unknown,
}

impl Collective {
    /// The collective in the name of a kernel or a function, in lower case.
    pub fn in_name(name: &str) -> Collective {
        const NAMES: [(&str, Collective); 8] = [
            ("allreduce", Collective::AllReduce),
            ("allgather", Collective::AllGather),
            ("reducescatter", Collective::ReduceScatter),
            ("alltoall", Collective::AllToAll),
            ("broadcast", Collective::Broadcast),
            ("sendrecv", Collective::SendRecv),
            ("reduce_scatter", Collective::ReduceScatter),
            ("reduce", Collective::Reduce),
        ];
        NAMES
            .into_iter()
            .find(|(part, _)| name.contains(part))
            .map_or(Collective::Unknown, |(_, collective)| collective)
    }

    /// No rank can end it before the last has begun: each needs data of all others.
    pub fn is_mutual(self) -> bool {
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        matches!(self, AllReduce | AllGather | ReduceScatter | AllToAll)
    }

    /// The factor from algorithm to bus bandwidth for `ranks` ranks, as defined by nccl-tests.
    pub fn bus_factor(self, ranks: u32) -> Option<f64> {
        let n = f64::from(ranks);
        match self {
            _ if ranks == 0 => None,
            Collective::AllReduce => Some(2.0 * (n - 1.0) / n),
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => Some((n - 1.0) / n),
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv => Some(1.0),
            Collective::Unknown => None,
        }
    }

    /// The bytes of the whole operation, as nccl-tests count them, from the message of one rank as NCCL's ranges report
    /// it.
    pub fn whole_bytes(self, message: u64, ranks: u32) -> u64 {
        match self {
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => {
                message.saturating_mul(u64::from(ranks.max(1)))
            }
            _ => message,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Collective::AllReduce => "all-reduce",
            Collective::AllGather => "all-gather",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllToAll => "all-to-all",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::SendRecv => "send/receive",
            Collective::Unknown => "collective",
        })
    }
}

/// A GPU of a process: one lane.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankLane {
    /// The rank of the process, if it reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The process's index of the GPU.
    pub device: u32,
    /// The GPU's index on its machine, as NVML counts, if it can be derived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The process drives several GPUs, so its rank does not identify the lane.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_process: bool,
}

impl RankLane {
    /// Whether both are the same GPU of the same process or rank.
    pub fn is(&self, other: &RankLane) -> bool {
        let key = |lane: &RankLane| (lane.rank, lane.pid.filter(|_| lane.rank.is_none()), lane.device);
        key(self) == key(other)
    }
}

impl fmt::Display for RankLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu = self.gpu.unwrap_or(self.device);
        match (self.rank, self.pid) {
            (Some(rank), _) if self.shares_process => write!(f, "rank {rank}, GPU {gpu}"),
            (Some(rank), _) => write!(f, "rank {rank}"),
            (None, Some(pid)) if !self.shares_process => write!(f, "process {pid}"),
            (None, _) => write!(f, "GPU {gpu}"),
        }
    }
}

/// The activity of one lane in a window. If several things ran at once, computation counts first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LaneSums {
    pub lane: RankLane,
    /// Kernels that compute.
    pub compute_ns: u64,
    /// Collectives that no computation overlaps, including the waiting in them.
    pub nccl_ns: u64,
    /// Time in a collective that another rank had not begun.
    pub wait_ns: u64,
    /// Copies and memsets that nothing else overlaps.
    pub copy_ns: u64,
    /// Time in which nothing ran.
    pub idle_ns: u64,
    pub kernels: u64,
    pub collectives: u64,
    /// Collectives that this lane began last, of those that were found on all ranks.
    pub last: u64,
    pub matched: u64,
    /// The time that the other lanes waited for this one, summed.
    pub caused_ns: u64,
    /// Steps that began, and the time between them.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub steps: u64,
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub step_ns: u64,
    /// Times between the starts of steps, sorted and thinned out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_times_ns: Vec<u64>,
    /// One step with equal time per character: the kind of work that ran longest in it. `c` computation, `n` NCCL, `w`
    /// waiting in NCCL, `m` copies; upper case if nothing ran for more than half of it; `.` if nothing ran at all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub picture: String,
}

/// The collectives of one kind, size and number of ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectiveWindow {
    pub kind: Collective,
    /// The size of the whole operation, as nccl-tests count it; `None` if no source has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    pub ranks: u32,
    /// Operations, not kernels: one counts once for all of its ranks.
    pub calls: u64,
    /// Operations that were found on all ranks; the times are theirs.
    pub matched: u64,
    /// From the start on the last rank to the end on all, sorted and thinned out.
    pub times_ns: Vec<u64>,
    /// The waiting time of all ranks, summed.
    pub wait_ns: u64,
}

/// The activity of the ranks of a program in a time in which all of them were recorded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RanksWindow {
    pub from: Stamp,
    pub span_ns: u64,
    pub lanes: Vec<LaneSums>,
    pub collectives: Vec<CollectiveWindow>,
    /// The time that the timelines show.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub picture_ns: u64,
    /// The maximum difference between the clocks of the lanes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
}
