//! `compare` and `baseline`: did it help? Two runs, snapshots, sweeps or baselines held against each other.

mod baseline;
mod error;
mod html;
mod read;
mod repeat;
mod words;

pub use baseline::{Baseline, baselines, baselines_text, save as save_baseline};
pub use error::CompareError;
pub use html::html;
pub use read::{Subject, compared, read_run, subject};
pub use repeat::{Repeat, Repeated, kept_in, sides};
pub use words::{cells, difference_words, exit_code, json, markdown, reasons, text, told, trust_words};

use crate::analysis::compare::{Comparison, Gate, Held};

/// A comparison and how its gates held.
pub struct Judged {
    /// What is particular about it, where there are several.
    pub label: Option<String>,
    pub comparison: Comparison,
    pub gates: Vec<(Gate, Held)>,
}

impl Judged {
    pub fn new(label: Option<String>, comparison: Comparison, gates: &[Gate]) -> Judged {
        let missing = || Held::Undecided("it was not compared".to_owned());
        let gates = gates.iter().map(|gate| {
            let held = comparison.row(gate.metric).map_or_else(missing, |row| gate.check(row));
            (*gate, held)
        });
        Judged { gates: gates.collect(), label, comparison }
    }
}
