//! One piece of work of a GPU, as a recorder reports it.

use std::{collections::HashMap, fmt};

pub use super::direction::Direction;
use super::{Extent, OTHERS, names};

/// The number of a name in [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

/// Device work of a program, or a wait of its host. Times are nanoseconds by one clock; 0 is unknown. A recorder may know
/// only the address of a kernel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceActivity<Name = NameId> {
    pub start_ns: u64,
    pub end_ns: u64,
    pub stream: u32,
    pub device: u16,
    /// The correlation id of the call that launched it. The nodes of one graph launch share it.
    pub correlation: u32,
    /// The graph that it is a node of.
    pub graph: Option<u32>,
    pub kind: WorkKind<Name>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind<Name = NameId> {
    Kernel {
        name: Name,
        launch: KernelLaunch,
    },
    Copy {
        direction: Direction,
        bytes: u64,
    },
    Memset {
        bytes: u64,
    },
    /// One launch of a whole graph, if its nodes are not recorded.
    Graph {
        graph: u32,
    },
    /// The host waited for the device. The times are the host's.
    Sync,
}

impl DeviceActivity {
    /// Both times are known.
    pub fn is_timed(&self) -> bool {
        is_timed(self.start_ns, self.end_ns)
    }
}

/// Recorders write 0 for a missing time, and an end before the start for work that was not completed.
pub(super) fn is_timed(start_ns: u64, end_ns: u64) -> bool {
    start_ns > 0 && end_ns >= start_ns
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLaunch {
    pub grid: Extent,
    pub block: Extent,
    pub registers: u16,
    pub shared_bytes: u32,
}

impl KernelLaunch {
    /// The number of its blocks.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().fold(1, |product, extent| product.saturating_mul(u64::from(*extent)))
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of memsets in tables of kernels.
pub const MEMSET: &str = "memset";

/// Maximum names that are kept: a program that generates kernels at run time may have any number.
const MAX_NAMES: usize = 1 << 15;
const MAX_NAME_BYTES: usize = 4096;
/// The limit for all names together, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// Names of kernels, numbered, in bounded memory. Names beyond the limits share the number of [`OTHERS`].
#[derive(Debug, Clone)]
pub struct Names {
    by_text: HashMap<String, NameId>,
    texts: Vec<String>,
    bytes: usize,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            by_text: HashMap::from([(OTHERS.to_owned(), Names::OTHERS)]),
            texts: vec![OTHERS.to_owned()],
            bytes: 0,
        }
    }
}

impl Names {
    pub const OTHERS: NameId = NameId(0);

    /// The number of a name, as it was recorded or demangled.
    pub fn number(&mut self, text: &str) -> NameId {
        let end = text.floor_char_boundary(MAX_NAME_BYTES);
        let text = &text[..end];
        if let Some(number) = self.by_text.get(text) {
            return *number;
        }
        if self.texts.len() >= MAX_NAMES || self.bytes >= MAX_BYTES {
            return Names::OTHERS;
        }
        let demangled = names::demangled(text);
        let demangled = &demangled[..demangled.floor_char_boundary(MAX_NAME_BYTES)];
        let number = NameId(self.texts.len() as u32);
        self.bytes += text.len() + demangled.len();
        self.texts.push(demangled.to_owned());
        self.by_text.insert(text.to_owned(), number);
        number
    }

    /// The demangled name; that of [`OTHERS`] for an unknown number.
    pub fn text(&self, number: NameId) -> &str {
        self.texts.get(number.0 as usize).map_or(OTHERS, String::as_str)
    }

    pub fn len(&self) -> usize {
        self.texts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled_and_bounded() {
        let mut names = Names::default();
        let mangled = names.number("_Z11gemv_kernelIfLi4EEvPKT_i");
        assert_eq!(names.number("_Z11gemv_kernelIfLi4EEvPKT_i"), mangled);
        assert!(names.text(mangled).starts_with("void gemv_kernel<float, 4>"));
        let long = "é".repeat(4000);
        let number = names.number(&long);
        assert!(names.text(number).len() <= MAX_NAME_BYTES);
        for i in 0..100_000 {
            names.number(&format!("kernel_{i}"));
        }
        assert_eq!(names.len(), MAX_NAMES);
        assert_eq!(names.number("kernel_99999"), Names::OTHERS);
        assert_eq!(names.text(NameId(u32::MAX)), OTHERS);
        let mut large = Names::default();
        for i in 0..10_000 {
            large.number(&format!("{i:05}{}", "x".repeat(5000)));
        }
        assert!(large.bytes < MAX_BYTES + 3 * MAX_NAME_BYTES);
    }

    #[test]
    fn unknown_times_are_not_times() {
        assert!(is_timed(1, 1));
        assert!(!is_timed(0, 5) && !is_timed(7, 0) && !is_timed(7, 6));
    }

    #[test]
    fn blocks_do_not_overflow() {
        let launch = KernelLaunch { grid: [u32::MAX; 3], block: [1; 3], registers: 0, shared_bytes: 0 };
        assert_eq!(launch.blocks(), u64::MAX);
    }
}
