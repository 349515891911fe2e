//! Tables as plain text and as Markdown. The first row is the heading.

use unicode_width::UnicodeWidthStr;

use super::foreign;

/// Aligned columns, two spaces apart, without frames. Columns for which `is_number` holds are aligned to the right; a
/// column without any text is left out.
pub fn aligned<R: AsRef<[String]>>(rows: &[R], is_number: impl Fn(usize) -> bool) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().filter(|(_, (_, width))| **width > 0);
        let cells = cells.map(|(column, (cell, width))| {
            let padding = " ".repeat(width - cell.width());
            if is_number(column) { padding + cell } else { cell.to_owned() + &padding }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Maximum characters of a cell. Longer texts are cut.
const MAX_CELL: usize = 1_000;

/// Names in cells are untrusted: each cell is one line.
fn cells<R: AsRef<[String]>>(row: &R) -> Vec<String> {
    row.as_ref().iter().map(|cell| foreign::line(cell, MAX_CELL)).collect()
}

/// A Markdown table, with the same alignment. Every row ends with a line break.
pub fn markdown<R: AsRef<[String]>>(rows: &[R], is_number: impl Fn(usize) -> bool) -> String {
    let line = |row: &R| {
        let cells: Vec<String> = cells(row).iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let Some((heading, rest)) = rows.split_first() else { return String::new() };
    let columns = 0..heading.as_ref().len();
    let rule: String = columns.map(|column| if is_number(column) { "---:|" } else { "---|" }).collect();
    format!("{}|{rule}\n{}", line(heading), rest.iter().map(line).collect::<String>())
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

    #[test]
    fn markdown_cells_keep_their_bars() {
        let rows = [["name", "ms"], ["a|b", "3"]].map(|row| row.map(str::to_owned));
        assert_eq!(markdown(&rows, |column| column == 1), "| name | ms |\n|---|---:|\n| a\\|b | 3 |\n");
        assert_eq!(markdown::<Vec<String>>(&[], |_| false), "");
    }
}
