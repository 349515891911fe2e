//! The settings of the Kernels pane, and the effects of keys on them.

use super::action::moved;
use llmprof_event::kernels::{Group, Sort, SortBy};

/// The user's settings of the Kernels pane.
#[derive(Debug, Clone, Default)]
pub struct KernelsSettings {
    /// Index of the source; `None` for the default.
    pub source: Option<usize>,
    pub row: usize,
    /// `None` groups by operator if operators are known, otherwise by family.
    pub group: Option<Group>,
    pub sort: Sort,
    pub filter: String,
    /// Whether the details of the selected row are shown.
    pub open: bool,
    /// First visible line of the details.
    pub scroll: usize,
    /// Zoom of the timeline; 0 is the whole step.
    pub zoom: usize,
    /// The part of the step, if zoomed in.
    pub part: usize,
}

/// The limits of moving by keys in the Kernels pane.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelsExtent {
    pub sources: usize,
    /// The displayed source.
    pub source: usize,
    pub rows: usize,
    pub group: Group,
    /// Whether the source has operators.
    pub operators: bool,
    /// Zoom levels of the timeline.
    pub zooms: usize,
    /// Parts of the step at this zoom.
    pub parts: usize,
}

/// More lines than the details of a kernel have: drawing stops at the end of the text.
const MAX_SCROLL: usize = 2000;

impl KernelsSettings {
    pub fn move_by(&mut self, by: isize, extent: KernelsExtent) {
        self.row = moved(self.row, by, extent.rows);
        self.scroll = 0;
    }

    /// Scrolls the details if they are open, otherwise the table.
    pub fn page(&mut self, by: isize, extent: KernelsExtent) {
        match self.open {
            true => self.scroll = self.scroll.saturating_add_signed(10 * by).min(MAX_SCROLL),
            false => self.move_by(20 * by, extent),
        }
    }

    pub fn step_source(&mut self, by: isize, extent: KernelsExtent) {
        self.source = Some(moved(extent.source, by, extent.sources));
        (self.row, self.scroll, self.part) = (0, 0, 0);
    }

    pub fn next_group(&mut self, extent: KernelsExtent) {
        self.group = Some(match extent.group {
            Group::Operator => Group::Family,
            Group::Family => Group::Name,
            Group::Name => Group::None,
            Group::None if extent.operators => Group::Operator,
            Group::None => Group::Family,
        });
        (self.row, self.scroll) = (0, 0);
    }

    pub fn next_sort(&mut self) {
        let next = match self.sort.by {
            SortBy::Time => SortBy::Calls,
            SortBy::Calls => SortBy::Mean,
            SortBy::Mean => SortBy::Time,
        };
        self.sort_in(Sort::from(next));
    }

    /// Sorts in descending order; the second time in ascending order.
    pub fn sort_by(&mut self, by: SortBy) {
        self.sort_in(Sort { by, ascending: self.sort == Sort::from(by) });
    }

    fn sort_in(&mut self, sort: Sort) {
        (self.sort, self.row, self.scroll) = (sort, 0, 0);
    }

    pub fn filter_by(&mut self, text: String) {
        (self.filter, self.row, self.scroll) = (text, 0, 0);
    }

    pub fn toggle_open(&mut self, extent: KernelsExtent) {
        self.open = !self.open && extent.rows > 0;
        self.scroll = 0;
    }

    /// Zooms the timeline in, or out if negative.
    pub fn zoom_by(&mut self, by: isize, extent: KernelsExtent) {
        self.zoom = moved(self.zoom, by, extent.zooms);
        self.part = 0;
    }

    pub fn step_part(&mut self, by: isize, extent: KernelsExtent) {
        self.part = moved(self.part, by, extent.parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: KernelsExtent = KernelsExtent {
        sources: 3,
        source: 1,
        rows: 5,
        group: Group::Operator,
        operators: true,
        zooms: 3,
        parts: 4,
    };

    #[test]
    fn no_setting_moves_past_its_end_and_an_empty_table_has_no_details() {
        for extent in [EXTENT, KernelsExtent::default()] {
            let mut settings = KernelsSettings::default();
            settings.move_by(100, extent);
            settings.step_source(9, extent);
            settings.zoom_by(9, extent);
            settings.step_part(9, extent);
            let ends = [extent.sources, extent.zooms, extent.parts].map(|n| n.saturating_sub(1));
            assert_eq!([settings.source.unwrap(), settings.zoom, settings.part], ends);
            settings.toggle_open(extent);
            assert_eq!(settings.open, extent.rows > 0);
            settings.move_by(-100, extent);
            assert_eq!(settings.row, 0);
        }
    }

    #[test]
    fn the_same_column_again_reverses_and_another_begins_with_the_largest() {
        let mut settings = KernelsSettings { row: 3, ..KernelsSettings::default() };
        let mut sorted = |by| {
            settings.sort_by(by);
            (settings.sort.by, settings.sort.ascending, settings.row)
        };
        assert_eq!(sorted(SortBy::Time), (SortBy::Time, true, 0), "it was sorted by time");
        assert_eq!(sorted(SortBy::Time), (SortBy::Time, false, 0));
        assert_eq!(sorted(SortBy::Mean), (SortBy::Mean, false, 0));
        assert_eq!(sorted(SortBy::Mean), (SortBy::Mean, true, 0));
        settings.next_sort();
        assert_eq!(settings.sort, Sort::from(SortBy::Time));
    }

    #[test]
    fn groups_cycle_and_operators_only_if_known() {
        for (operators, turns) in [(true, 4), (false, 3)] {
            let mut settings = KernelsSettings::default();
            let mut extent = KernelsExtent { operators, group: Group::Family, ..EXTENT };
            let mut seen = Vec::new();
            for _ in 0..turns {
                settings.next_group(extent);
                extent.group = settings.group.unwrap();
                seen.push(extent.group);
            }
            assert_eq!(seen.last(), Some(&Group::Family));
            assert_eq!(seen.contains(&Group::Operator), operators);
        }
    }

    #[test]
    fn paging_scrolls_the_details_if_open() {
        let mut settings = KernelsSettings::default();
        settings.page(1, EXTENT);
        assert_eq!((settings.row, settings.scroll), (4, 0));
        settings.toggle_open(EXTENT);
        settings.page(1, EXTENT);
        assert_eq!((settings.row, settings.scroll), (4, 10));
        settings.page(-9, EXTENT);
        assert_eq!(settings.scroll, 0);
    }
}
