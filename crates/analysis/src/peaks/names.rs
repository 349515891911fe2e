//! GPUs by the names of drivers: "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090".

use super::table::{Figures, GPUS, GpuPeaks};

/// Words that make a name that of a different GPU, unless the row has them too.
const QUALIFIERS: [&str; 18] = [
    "3e",
    "active",
    "ada",
    "blackwell",
    "d",
    "embedded",
    "laptop",
    "max",
    "mobile",
    "nvl",
    "pcie",
    "pro",
    "q",
    "server",
    "sff",
    "super",
    "ti",
    "v2",
];
/// A size in the name may differ from a row's memory by this factor: drivers reserve memory, vendors round.
const SAME_SIZE: std::ops::Range<f64> = 0.85..1.18;

fn words(name: &str) -> Vec<String> {
    name.split(|c: char| !c.is_alphanumeric() && c != '.')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// The name of a part of a GPU: a MIG slice ("… MIG 1g.10gb") or a vGPU profile ("GRID A100-10C").
pub fn is_part(name: &str) -> bool {
    let is_profile = |word: &String| {
        let digits = word.trim_start_matches(|c: char| c.is_ascii_digit());
        digits.len() < word.len() && (matches!(digits, "a" | "b" | "c" | "q") || digits.starts_with("g."))
    };
    words(name).iter().any(|word| matches!(word.as_str(), "mig" | "grid" | "vgpu") || is_profile(word))
}

impl GpuPeaks {
    /// The boost clock of the vendor's figures outside of the tensor cores, if the vendor states it.
    pub fn core_mhz(&self) -> Option<f64> {
        match self.figures {
            Figures::Clocks { core_mhz, .. } => Some(core_mhz),
            Figures::Tera(_) => None,
        }
    }

    /// By the driver's name ("NVIDIA H100 80GB HBM3") or the short name. Parts of a GPU have none.
    pub fn named(name: &str) -> Option<&'static GpuPeaks> {
        Self::matching(name, None)
    }

    /// Like [`GpuPeaks::named`]; the memory that the driver reports decides between GPUs with one name.
    pub fn matching(name: &str, mem_bytes: Option<u64>) -> Option<&'static GpuPeaks> {
        let words = words(name);
        let short = words.join("_");
        if let Some(gpu) = GPUS.iter().find(|gpu| gpu.name == short) {
            return Some(gpu);
        }
        if is_part(name) {
            return None;
        }
        let of_this_size = |gpu: &&GpuPeaks| mem_bytes.is_none_or(|bytes| gpu.has_size(bytes as f64));
        let mut best: Option<(usize, &GpuPeaks)> = None;
        for gpu in GPUS.iter().filter(of_this_size) {
            if let Some(specific) = gpu.shared_words(&words)
                && best.is_none_or(|(most, _)| specific > most)
            {
                best = Some((specific, gpu));
            }
        }
        best.map(|(_, gpu)| gpu)
    }

    fn has_size(&self, bytes: f64) -> bool {
        SAME_SIZE.contains(&(bytes / self.mem_bytes as f64))
    }

    /// How many of the row's words a name has; `None` if it is the name of another GPU.
    fn shared_words(&self, name: &[String]) -> Option<usize> {
        let (mut shared, mut known) = (0, Vec::new());
        for word in self.words.split(' ') {
            let optional = word.starts_with('?');
            let found = word.trim_start_matches('?').split('|').find(|one| name.iter().any(|w| w == one));
            match found {
                Some(found) => known.push(found),
                None if optional => continue,
                None => return None,
            }
            shared += 1;
        }
        let contradicts = |word: &&String| {
            let size =
                word.strip_suffix("gb").or(word.strip_suffix('g')).and_then(|gb| gb.parse::<f64>().ok());
            let other_size = size.is_some_and(|gb| !self.has_size(gb * 1e9 * 1.05));
            !known.contains(&word.as_str()) && (other_size || QUALIFIERS.contains(&word.as_str()))
        };
        (!name.iter().any(|word| contradicts(&word))).then_some(shared)
    }
}
