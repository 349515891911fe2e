//! Plain-text tables: aligned columns, two spaces apart, without frames.

use unicode_width::UnicodeWidthStr;

/// `rows`, the first of which is the heading, one per line. Columns for which `is_number` holds are aligned to the
/// right; a column without any text is left out.
pub fn aligned<R: AsRef<[String]>>(rows: &[R], is_number: impl Fn(usize) -> bool) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.as_ref().get(column)).map(|cell| cell.width()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths).enumerate().filter(|(_, (_, width))| **width > 0);
        let cells = cells.map(|(column, (cell, width))| {
            let padding = " ".repeat(width - cell.width());
            if is_number(column) { padding + cell } else { cell.to_owned() + &padding }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let rows = [["name", "ms", "", "remark"], ["é", "40.0", "", ""], ["模型", "3", "", "slow"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(
            aligned(&rows, |column| column == 1),
            "name    ms  remark\n\
             é     40.0\n\
             模型     3  slow"
        );
        assert_eq!(aligned::<Vec<String>>(&[], |_| false), "");
    }
}
