//! A list that scrolls.

use ratatui::layout::{Position, Rect};

/// The rows of a list that fit into its area: the selected one is always among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLayout {
    area: Rect,
    first: usize,
    len: usize,
    pub selected: usize,
}

impl ListLayout {
    pub fn new(area: Rect, len: usize, selected: usize) -> ListLayout {
        let selected = selected.min(len.saturating_sub(1));
        let first = (selected + 1).saturating_sub((area.height as usize).max(1));
        ListLayout { area, first, len, selected }
    }

    /// Each row on the screen with its place.
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
                for selected in 0..9 {
                    let list = ListLayout::new(Rect::new(2, 3, 10, height), len, selected);
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
