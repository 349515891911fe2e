//! The selected, marked and folded rows of the Runs pane.

use std::{collections::BTreeSet, path::PathBuf};

/// The order of the Runs pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunOrder {
    #[default]
    Newest,
    Fastest,
    Ttft,
    Tpot,
    Model,
}

/// A group of runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKey {
    Experiment(String),
    /// The name of an experiment, and a model in it.
    Model(String, String),
    /// By its directory.
    Sweep(PathBuf),
    /// The runs of a repeated comparison, by their directory.
    Pairs(PathBuf),
}

/// The filter and the order of the listed runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arrangement {
    pub filter: String,
    pub order: RunOrder,
    /// Whether the order is reversed; unmeasured values stay last.
    pub reversed: bool,
    /// The groups whose folding differs from the default.
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
        let next = match self.arrangement.order {
            RunOrder::Newest => RunOrder::Fastest,
            RunOrder::Fastest => RunOrder::Ttft,
            RunOrder::Ttft => RunOrder::Tpot,
            RunOrder::Tpot => RunOrder::Model,
            RunOrder::Model => RunOrder::Newest,
        };
        (self.arrangement.order, self.arrangement.reversed) = (next, false);
    }

    /// Orders by `order`; the second time in reverse.
    pub fn order_by(&mut self, order: RunOrder) {
        let arrangement = &mut self.arrangement;
        arrangement.reversed = arrangement.order == order && !arrangement.reversed;
        (arrangement.order, self.row) = (order, None);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_order_again_is_reversed_and_another_is_not() {
        let mut settings = RunsSettings { row: Some(4), ..RunsSettings::default() };
        let mut ordered = |order| {
            settings.order_by(order);
            (settings.arrangement.order, settings.arrangement.reversed, settings.row)
        };
        assert_eq!(ordered(RunOrder::Tpot), (RunOrder::Tpot, false, None));
        assert_eq!(ordered(RunOrder::Tpot), (RunOrder::Tpot, true, None));
        assert_eq!(ordered(RunOrder::Tpot), (RunOrder::Tpot, false, None));
        assert_eq!(ordered(RunOrder::Model), (RunOrder::Model, false, None));
        settings.order_by(RunOrder::Model);
        settings.next_order();
        assert_eq!((settings.arrangement.order, settings.arrangement.reversed), (RunOrder::Newest, false));
    }
}
