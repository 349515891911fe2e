//! The parameters of a comparison of two samples.

use super::{
    comparison::{Options, Side},
    difference::{Difference, differences},
    sample::Sample,
};

pub(super) struct Comparer<'a> {
    pub(super) a: &'a Sample,
    pub(super) b: &'a Sample,
    pub(super) options: &'a Options,
    pub(super) pairs: Option<usize>,
    pub(super) differences: Vec<Difference>,
    /// Whether all pairs, or all requests of each side, are identical.
    pub(super) copies: bool,
    pub(super) sides: [Side; 2],
}

impl<'a> Comparer<'a> {
    pub(super) fn new(
        a: &'a Sample,
        b: &'a Sample,
        options: &'a Options,
        pairs: Option<usize>,
        copies: bool,
    ) -> Comparer<'a> {
        let differences = differences(&a.facts, &b.facts, &options.meant);
        let sides = [a, b].map(|sample| Side::new(sample, pairs.is_some()));
        Comparer { a, b, options, pairs, differences, copies, sides }
    }
}
