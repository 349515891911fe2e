//! The output of `NCCL_DEBUG=INFO`, line by line, in bounded memory: wording differs between versions, and lines are
//! untrusted.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
};

use serde::Serialize;

use llmprof_base::{foreign, units};
use llmprof_event::ranks::Collective;

const MAX_WARNINGS: usize = 32;
const MAX_CHANNELS: usize = 256;
const MAX_RANKS: usize = 4096;
const MAX_KINDS: usize = 64;
const MAX_SETTINGS: usize = 32;

/// The transport between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    PeerToPeer,
    SharedMemory,
    InfiniBand,
    /// InfiniBand, from GPU memory directly.
    GpuDirect,
    Socket,
    /// Another network plugin.
    Network,
    CollNet,
    Nvls,
}

impl Transport {
    /// From the text after `via`.
    fn parse(text: &str) -> Option<Transport> {
        let text = text.trim();
        Some(match text.split(['/', ' ']).next()? {
            "P2P" => Transport::PeerToPeer,
            "SHM" => Transport::SharedMemory,
            "NET" if text.starts_with("NET/IB") && text.contains("GDRDMA") => Transport::GpuDirect,
            "NET" if text.starts_with("NET/IB") => Transport::InfiniBand,
            "NET" if text.starts_with("NET/Socket") => Transport::Socket,
            "NET" => Transport::Network,
            "COLLNET" | "CollNet" => Transport::CollNet,
            "NVLS" => Transport::Nvls,
            _ => return None,
        })
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::PeerToPeer => "P2P (NVLink or PCIe)",
            Transport::SharedMemory => "shared memory of the host",
            Transport::InfiniBand => "InfiniBand through the host",
            Transport::GpuDirect => "InfiniBand from GPU memory (GPUDirect)",
            Transport::Socket => "sockets",
            Transport::Network => "a network plugin",
            Transport::CollNet => "CollNet",
            Transport::Nvls => "NVLink SHARP",
        })
    }
}

/// Numbers of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Channels {
    pub collective: u32,
    pub nvls: u32,
    pub peer: u32,
}

/// The algorithm of collectives of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Chosen {
    pub calls: u64,
    pub min_bytes: u64,
    pub max_bytes: u64,
}

/// Everything that was read so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NcclLog {
    pub lines: u64,
    pub version: Option<String>,
    pub ranks: Option<u32>,
    pub nodes: Option<u32>,
    /// Ranks whose start was logged, each with its CUDA device and bus id.
    pub devices: BTreeMap<u32, (u32, String)>,
    pub channels: Option<Channels>,
    /// The ranks around each channel's ring.
    pub rings: BTreeMap<u32, Vec<u32>>,
    /// Channels with a tree.
    pub trees: BTreeSet<u32>,
    /// Connections by transport.
    pub transports: BTreeMap<Transport, u64>,
    pub network: Option<String>,
    pub nvls: Option<bool>,
    /// By collective, algorithm and protocol.
    #[serde(serialize_with = "as_list")]
    pub chosen: BTreeMap<(Collective, String, String), Chosen>,
    /// Variables that were set.
    pub settings: BTreeMap<String, String>,
    pub warnings: VecDeque<String>,
    pub more_warnings: u64,
}

fn as_list<S: serde::Serializer>(
    chosen: &BTreeMap<(Collective, String, String), Chosen>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct ChosenAlgorithm<'a> {
        collective: Collective,
        algorithm: &'a str,
        protocol: &'a str,
        #[serde(flatten)]
        chosen: &'a Chosen,
    }
    serializer.collect_seq(chosen.iter().map(|((collective, algorithm, protocol), chosen)| ChosenAlgorithm {
        collective: *collective,
        algorithm,
        protocol,
        chosen,
    }))
}

/// Whether NCCL printed the line.
pub fn is_nccl_line(line: &str) -> bool {
    body(line).is_some()
}

/// The text after the level, and whether it is a warning.
fn body(line: &str) -> Option<(&str, bool)> {
    for (level, warns) in [("NCCL INFO ", false), ("NCCL WARN ", true), ("NCCL TRACE ", false)] {
        if let Some((_, text)) = line.split_once(level) {
            return Some((text.trim(), warns));
        }
    }
    // The version is printed without a level if NCCL_DEBUG=VERSION.
    line.trim().starts_with("NCCL version ").then(|| (line.trim(), false))
}

/// The number after a word.
fn after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let mut words = text.split_whitespace();
    words.by_ref().find(|w| *w == word)?;
    words.next()
}

fn number(text: Option<&str>) -> Option<u32> {
    text?.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

impl NcclLog {
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// Adds what another log reports.
    pub fn add(&mut self, other: NcclLog) {
        self.lines += other.lines;
        self.version = other.version.or(self.version.take());
        self.network = other.network.or(self.network.take());
        self.ranks = self.ranks.max(other.ranks);
        self.nodes = self.nodes.max(other.nodes);
        self.channels = other.channels.or(self.channels);
        self.nvls = other.nvls.or(self.nvls);
        self.devices.extend(other.devices.into_iter().take(MAX_RANKS));
        self.rings.extend(other.rings);
        self.trees.extend(other.trees);
        self.settings.extend(other.settings);
        for (transport, n) in other.transports {
            *self.transports.entry(transport).or_default() += n;
        }
        for (key, row) in other.chosen {
            let known = self.chosen.entry(key).or_insert(Chosen { calls: 0, ..row });
            known.calls += row.calls;
            known.min_bytes = known.min_bytes.min(row.min_bytes);
            known.max_bytes = known.max_bytes.max(row.max_bytes);
        }
        self.more_warnings += other.more_warnings;
        for warning in other.warnings {
            match self.warnings.len() < MAX_WARNINGS {
                true => self.warnings.push_back(warning),
                false => self.more_warnings += 1,
            }
        }
    }

    /// Reads a line; returns whether NCCL printed it.
    pub fn line(&mut self, line: &str) -> bool {
        let Some((text, warns)) = body(line) else { return false };
        self.lines += 1;
        if warns {
            match self.warnings.len() < MAX_WARNINGS {
                true => self.warnings.push_back(foreign::line(text, 200)),
                false => self.more_warnings += 1,
            }
            return true;
        }
        if let Some(version) = text.strip_prefix("NCCL version ") {
            self.version = version.split_whitespace().next().map(|v| foreign::line(v, 40));
        } else if let Some(network) = text.strip_prefix("Using network ") {
            self.network = Some(foreign::line(network, 40));
        } else if let Some((name, value)) = setting(text) {
            if self.settings.len() < MAX_SETTINGS {
                self.settings.insert(foreign::line(name, 60), foreign::line(value, 80));
            }
        } else if text.contains("NVLS multicast support is ") {
            self.nvls = Some(!text.contains("not available"));
        } else if let Some(channels) = channels(text) {
            self.channels = Some(channels);
        } else if let Some((_, via)) = text.split_once(" via ").filter(|_| text.starts_with("Channel ")) {
            if let Some(transport) = Transport::parse(via) {
                *self.transports.entry(transport).or_default() += 1;
            }
        } else if let Some((channel, ring)) = ring(text) {
            if self.rings.len() < MAX_CHANNELS {
                self.rings.insert(channel, ring);
            }
        } else if let Some(trees) = text.strip_prefix("Trees ") {
            let numbers = trees
                .split_whitespace()
                .filter_map(|word| word.strip_prefix('[')?.split(']').next()?.parse::<u32>().ok());
            self.trees.extend(numbers.take(MAX_CHANNELS));
            while self.trees.len() > MAX_CHANNELS {
                self.trees.pop_last();
            }
        } else if let Some((key, bytes)) = chosen(text) {
            if self.chosen.len() < MAX_KINDS || self.chosen.contains_key(&key) {
                let row =
                    self.chosen.entry(key).or_insert(Chosen { calls: 0, min_bytes: bytes, max_bytes: bytes });
                row.calls += 1;
                row.min_bytes = row.min_bytes.min(bytes);
                row.max_bytes = row.max_bytes.max(bytes);
            }
        } else if text.contains("nranks ") || text.contains("nRanks ") {
            self.communicator(text);
        }
        true
    }

    /// `… comm 0x… rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 … - Init COMPLETE`; `… nRanks 2 nNodes 1 localRanks 2 …`.
    fn communicator(&mut self, text: &str) {
        let ranks = number(after(text, "nranks").or(after(text, "nRanks")));
        self.ranks = self.ranks.max(ranks);
        self.nodes = self.nodes.max(number(after(text, "nNodes")));
        let device = number(after(text, "cudaDev"));
        if let (Some(rank), Some(device)) = (number(after(text, "rank")), device)
            && self.devices.len() < MAX_RANKS
        {
            let bus = after(text, "busId").map(|bus| foreign::line(bus, 20)).unwrap_or_default();
            self.devices.insert(rank, (device, bus));
        }
    }

    /// The log in sentences.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.is_empty() {
            return words;
        }
        let version = self.version.as_deref().unwrap_or("of unknown version");
        let mut first = format!("NCCL {version}");
        if let Some(ranks) = self.ranks {
            first += &format!(", {}", counted(ranks.into(), "rank"));
        }
        if let Some(nodes) = self.nodes {
            first += &format!(" on {}", counted(nodes.into(), "node"));
        }
        if let Some(network) = &self.network {
            first += &format!(", network {network}");
        }
        words.push(first + ".");
        let gpus: BTreeSet<&String> =
            self.devices.values().map(|(_, bus)| bus).filter(|bus| !bus.is_empty()).collect();
        if !gpus.is_empty() && gpus.len() < self.devices.len() {
            let (ranks, gpus) = (self.devices.len(), gpus.len());
            words.push(format!("{ranks} ranks share {}.", counted(gpus as u64, "GPU")));
        }
        let mut channels = Vec::new();
        if let Some(Channels { collective, nvls, peer }) = self.channels {
            channels
                .push(format!("{collective} channels for collectives, {nvls} for NVLS, {peer} for peers"));
        }
        if !self.rings.is_empty() {
            let mut orders: BTreeMap<&Vec<u32>, u32> = BTreeMap::new();
            self.rings.values().for_each(|ring| *orders.entry(ring).or_default() += 1);
            let (order, _) =
                orders.iter().max_by_key(|(_, n)| **n).map(|(order, n)| (*order, *n)).unwrap_or((&EMPTY, 0));
            let order: Vec<String> = order.iter().take(16).map(u32::to_string).collect();
            let kinds = if orders.len() > 1 { format!(" in {} orders", orders.len()) } else { String::new() };
            channels.push(format!(
                "{}{kinds} ({})",
                counted(self.rings.len() as u64, "ring"),
                order.join(" ")
            ));
        }
        if !self.trees.is_empty() {
            channels.push(counted(self.trees.len() as u64, "tree"));
        }
        if !channels.is_empty() {
            words.push(format!("{}.", channels.join("; ")));
        }
        if !self.transports.is_empty() {
            let list: Vec<String> = self
                .transports
                .iter()
                .map(|(transport, n)| format!("{} over {transport}", counted(*n, "connection")))
                .collect();
            words.push(format!("{}.", list.join(", ")));
        }
        match self.nvls {
            Some(true) => words.push("NVLink SHARP (NVLS) is available.".to_owned()),
            Some(false) => words.push("NVLink SHARP (NVLS) is not available.".to_owned()),
            None => {}
        }
        for ((collective, algorithm, protocol), row) in &self.chosen {
            let sizes = match row.min_bytes == row.max_bytes {
                true => units::bytes(row.min_bytes),
                false => format!("{} to {}", units::bytes(row.min_bytes), units::bytes(row.max_bytes)),
            };
            let calls = units::grouped(row.calls as i64);
            words.push(format!(
                "{collective} of {sizes}: algorithm {algorithm}, protocol {protocol} ({calls} lines)."
            ));
        }
        for (name, value) in &self.settings {
            words.push(format!("{name} is set to {value}."));
        }
        words.extend(self.warnings.iter().map(|text| format!("NCCL warning: {text}")));
        if self.more_warnings > 0 {
            words.push(format!("{} more NCCL warnings.", units::grouped(self.more_warnings as i64)));
        }
        words
    }
}

static EMPTY: Vec<u32> = Vec::new();

fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", units::grouped(n as i64), if n == 1 { "" } else { "s" })
}

/// `NCCL_ALGO set by environment to Ring`.
fn setting(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once(" set by environment to ")?;
    let name = name.split_whitespace().last()?;
    name.starts_with("NCCL_").then_some((name, value.trim_end_matches('.')))
}

/// `24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, …`; older versions leave out the middle ones.
fn channels(text: &str) -> Option<Channels> {
    let mut found = Channels::default();
    let mut any = false;
    for part in text.split(',') {
        let mut words = part.split_whitespace();
        let (Some(count), Some(kind)) = (words.next(), words.next()) else { continue };
        let Ok(count) = count.parse() else { continue };
        match (kind, words.next(), words.next()) {
            ("coll", Some("channels"), None) => (found.collective, any) = (count, true),
            ("nvls", Some("channels"), None) => found.nvls = count,
            ("p2p", Some("channels"), None) => found.peer = count,
            _ => {}
        }
    }
    any.then_some(found)
}

/// `Channel 00/24 :    0   1   2   3`: the ring of a channel.
fn ring(text: &str) -> Option<(u32, Vec<u32>)> {
    let (head, ranks) = text.strip_prefix("Channel ")?.split_once(':')?;
    let channel = head.split('/').next()?.trim().parse().ok()?;
    let ranks: Option<Vec<u32>> =
        ranks.split_whitespace().take(MAX_RANKS).map(|rank| rank.parse().ok()).collect();
    ranks.filter(|ranks| !ranks.is_empty()).map(|ranks| (channel, ranks))
}

/// `AllReduce: 32768 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}`; older ones have numbers for both.
fn chosen(text: &str) -> Option<((Collective, String, String), u64)> {
    let (head, rest) = text.split_once(" -> ")?;
    let (name, bytes) = head.split_once(':')?;
    let bytes = bytes.trim().strip_suffix("Bytes")?.trim().parse().ok()?;
    let algorithm = after(rest, "Algo").or(after(rest, "algo"))?;
    let protocol = after(rest, "proto")?;
    const ALGORITHMS: [&str; 7] =
        ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
    const PROTOCOLS: [&str; 3] = ["LL", "LL128", "SIMPLE"];
    let named = |text: &str, names: &[&str]| {
        let name = text.parse().ok().and_then(|n: usize| names.get(n).copied());
        foreign::line(name.unwrap_or(text), 20).to_uppercase()
    };
    let kind = Collective::in_name(&name.to_ascii_lowercase());
    Some(((kind, named(algorithm, &ALGORITHMS), named(protocol, &PROTOCOLS)), bytes))
}
