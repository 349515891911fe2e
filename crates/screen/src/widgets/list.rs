//! A scrolling list.

use ratatui::layout::{Position, Rect};

/// The rows of a list that fit into its area, always including the selected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLayout {
    area: Rect,
    first: usize,
    len: usize,
    pub selected: usize,
}

impl ListLayout {
    pub fn new(area: Rect, len: usize, selected: usize) -> ListLayout {
        ListLayout::scrolled(area, len, selected, 0)
    }

    /// With `first` as the first row, unless that hides the selected one.
    pub fn scrolled(area: Rect, len: usize, selected: usize, first: usize) -> ListLayout {
        let height = (area.height as usize).max(1);
        let selected = selected.min(len.saturating_sub(1));
        let first =
            first.min(len.saturating_sub(height)).min(selected).max((selected + 1).saturating_sub(height));
        ListLayout { area, first, len, selected }
    }

    /// The first row on the screen.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Each row on the screen with its area.
    pub fn rows(&self) -> impl Iterator<Item = (usize, Rect)> + use<> {
        let area = self.area;
        let places = (area.top()..area.bottom()).map(move |y| Rect { y, height: 1, ..area });
        (self.first..self.len).zip(places)
    }

    pub fn row_at(&self, position: Position) -> Option<usize> {
        self.rows().find(|(_, area)| area.contains(position)).map(|(row, _)| row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_row_is_on_the_screen_and_rows_are_hit_where_they_are_drawn() {
        for height in 1..6 {
            for len in 0..9 {
                for (selected, first) in (0..9).flat_map(|selected| [0, 3, 8].map(|first| (selected, first)))
                {
                    let list = ListLayout::scrolled(Rect::new(2, 3, 10, height), len, selected, first);
                    let rows: Vec<(usize, Rect)> = list.rows().collect();
                    assert_eq!(rows.iter().any(|(row, _)| *row == list.selected), len > 0);
                    assert_eq!(rows.len(), len.min(height as usize));
                    for (row, area) in rows {
                        assert_eq!(list.row_at(area.as_position()), Some(row));
                    }
                    assert_eq!(list.row_at(Position::new(2, 3 + height)), None);
                    assert_eq!(list.row_at(Position::new(12, 3)), None);
                }
            }
        }
    }
}
