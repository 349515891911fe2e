//! What of the kernels is looked at, and what keys do to that.

use crate::event::kernels::{Group, SortBy};

/// The Kernels pane as the user has set it.
#[derive(Debug, Clone, Default)]
pub struct KernelsLook {
    /// Which source, by its place; `None` leaves the choice to the program.
    pub source: Option<usize>,
    pub row: usize,
    /// `None` takes operators where they are told, families elsewhere.
    pub group: Option<Group>,
    pub sort: SortBy,
    pub filter: String,
    /// All that is known of the chosen row is on the screen.
    pub open: bool,
    /// Lines of that above the first one shown.
    pub scroll: usize,
    /// How close the timeline is looked at; 0 is the whole step.
    pub zoom: usize,
    /// Which stretch of the step, where not all of it is shown.
    pub stretch: usize,
}

/// What there is to look at.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelsExtent {
    pub sources: usize,
    /// The source that is on the screen.
    pub source: usize,
    pub rows: usize,
    /// How they are put together.
    pub group: Group,
    /// Whether operators are told.
    pub operators: bool,
    /// How close the timeline can be looked at.
    pub zooms: usize,
    /// Stretches of the step at this zoom.
    pub stretches: usize,
}

/// More lines than there ever are of one kernel: scrolling ends where the text does.
const MOST_LINES: usize = 2000;

impl KernelsLook {
    pub fn move_by(&mut self, by: isize, extent: KernelsExtent) {
        let last = extent.rows.saturating_sub(1);
        self.row = self.row.min(last).saturating_add_signed(by).min(last);
        self.scroll = 0;
    }

    /// By a page: of what is open, else of the table.
    pub fn page(&mut self, by: i32, extent: KernelsExtent) {
        match self.open {
            true => self.scroll = self.scroll.saturating_add_signed(10 * by as isize).min(MOST_LINES),
            false => self.move_by(20 * by as isize, extent),
        }
    }

    pub fn next_source(&mut self, by: i32, extent: KernelsExtent) {
        let last = extent.sources.saturating_sub(1);
        self.source = Some(extent.source.saturating_add_signed(by as isize).min(last));
        (self.row, self.scroll, self.stretch) = (0, 0, 0);
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
        self.sort = match self.sort {
            SortBy::Time => SortBy::Calls,
            SortBy::Calls => SortBy::Mean,
            SortBy::Mean => SortBy::Time,
        };
        (self.row, self.scroll) = (0, 0);
    }

    pub fn filter_by(&mut self, text: String) {
        (self.filter, self.row, self.scroll) = (text, 0, 0);
    }

    pub fn toggle_open(&mut self, extent: KernelsExtent) {
        self.open = !self.open && extent.rows > 0;
        self.scroll = 0;
    }

    /// Looks closer at the timeline, or from further away.
    pub fn zoom_by(&mut self, closer: i32, extent: KernelsExtent) {
        let last = extent.zooms.saturating_sub(1);
        self.zoom = self.zoom.min(last).saturating_add_signed(closer as isize).min(last);
        self.stretch = 0;
    }

    pub fn next_stretch(&mut self, by: i32, extent: KernelsExtent) {
        let last = extent.stretches.saturating_sub(1);
        self.stretch = self.stretch.min(last).saturating_add_signed(by as isize).min(last);
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
        stretches: 4,
    };

    #[test]
    fn nothing_moves_past_its_end_and_nothing_is_opened_of_nothing() {
        for extent in [EXTENT, KernelsExtent::default()] {
            let mut look = KernelsLook::default();
            look.move_by(100, extent);
            look.next_source(9, extent);
            look.zoom_by(9, extent);
            look.next_stretch(9, extent);
            let ends = [extent.sources, extent.zooms, extent.stretches].map(|n| n.saturating_sub(1));
            assert_eq!([look.source.unwrap(), look.zoom, look.stretch], ends);
            look.toggle_open(extent);
            assert_eq!(look.open, extent.rows > 0);
            look.move_by(-100, extent);
            assert_eq!(look.row, 0);
        }
    }

    #[test]
    fn groups_go_round_and_operators_only_where_they_are_told() {
        for (operators, turns) in [(true, 4), (false, 3)] {
            let mut look = KernelsLook::default();
            let mut extent = KernelsExtent { operators, group: Group::Family, ..EXTENT };
            let mut seen = Vec::new();
            for _ in 0..turns {
                look.next_group(extent);
                extent.group = look.group.unwrap();
                seen.push(extent.group);
            }
            assert_eq!(seen.last(), Some(&Group::Family));
            assert_eq!(seen.contains(&Group::Operator), operators);
        }
    }

    #[test]
    fn a_page_is_of_what_is_open() {
        let mut look = KernelsLook::default();
        look.page(1, EXTENT);
        assert_eq!((look.row, look.scroll), (4, 0));
        look.toggle_open(EXTENT);
        look.page(1, EXTENT);
        assert_eq!((look.row, look.scroll), (4, 10));
        look.page(-9, EXTENT);
        assert_eq!(look.scroll, 0);
    }
}
