//! What is selected, marked and folded on the Runs pane.

use std::{collections::BTreeSet, path::PathBuf};

/// The order of the Runs pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunOrder {
    #[default]
    Newest,
    Fastest,
    Model,
}

/// A group of runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKey {
    Experiment(String),
    /// Of an experiment.
    Model(String, String),
    /// By its directory.
    Sweep(PathBuf),
}

/// Which runs are listed, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arrangement {
    pub filter: String,
    pub order: RunOrder,
    /// The groups that are folded though they are shown unfolded at first, or the reverse.
    pub toggled: BTreeSet<GroupKey>,
}

#[derive(Debug, Clone, Default)]
pub struct RunsSettings {
    /// The selected row; `None` selects the first run.
    pub row: Option<usize>,
    /// The first row on the screen, as last drawn.
    pub top: usize,
    /// The run that others are compared with.
    pub marked: Option<PathBuf>,
    pub arrangement: Arrangement,
}

impl RunsSettings {
    pub fn next_order(&mut self) {
        self.arrangement.order = match self.arrangement.order {
            RunOrder::Newest => RunOrder::Fastest,
            RunOrder::Fastest => RunOrder::Model,
            RunOrder::Model => RunOrder::Newest,
        };
    }

    pub fn filter_by(&mut self, text: String) {
        (self.arrangement.filter, self.row) = (text, None);
    }

    pub fn toggle(&mut self, group: &GroupKey) {
        if !self.arrangement.toggled.remove(group) {
            self.arrangement.toggled.insert(group.clone());
        }
    }
}
