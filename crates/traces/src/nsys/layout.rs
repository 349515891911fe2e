//! The human-readable output of `nsys stats`: aligned columns (`-f column`), or a grid of lines (`-f table`).
//!
//! Both have a line of dashes below the titles, with a run of dashes per column. The cells of a row are below the
//! runs.

use std::io::{self, BufRead, Read};

use super::{
    header::Cell,
    report::{Report, Reports},
};
use crate::{cells::MAX_ROW_BYTES, error::KernelsError, quantity::Decimal};
use llmprof_event::kernels::KernelTable;

/// The positions of the columns, in characters.
#[derive(Debug, Clone, PartialEq)]
struct Layout {
    columns: Vec<(usize, usize)>,
    /// Whether lines enclose the cells.
    grid: bool,
}

impl Layout {
    /// `None` for a line that is not made of dashes.
    fn from_line(line: &str) -> Option<Layout> {
        let grid = line.contains('+');
        if !line.chars().all(|c| matches!(c, '-' | '=' | '+' | ' ')) {
            return None;
        }
        let mut columns = Vec::new();
        for (at, byte) in line.bytes().enumerate() {
            let is_dash = matches!(byte, b'-' | b'=');
            match columns.last_mut() {
                Some((_, end)) if is_dash && *end == at => *end = at + 1,
                _ if is_dash => columns.push((at, at + 1)),
                _ => {}
            }
        }
        (columns.len() > 1).then_some(Layout { columns, grid })
    }

    fn cells<'l>(&self, line: &'l str) -> Vec<&'l str> {
        // Characters are bytes except in some names.
        let starts: Vec<usize> =
            if line.is_ascii() { Vec::new() } else { line.char_indices().map(|(at, _)| at).collect() };
        let byte = |at: usize| match line.is_ascii() {
            true => at.min(line.len()),
            false => starts.get(at).copied().unwrap_or(line.len()),
        };
        let last = self.columns.len() - 1;
        let cell = |(index, (begin, end)): (usize, &(usize, usize))| {
            let end = if index == last && !self.grid { line.len() } else { byte(*end) };
            line[byte(*begin)..end].trim()
        };
        self.columns.iter().enumerate().map(cell).collect()
    }

    fn report(&self, line: &str) -> Option<Report> {
        let titles: Vec<String> = self.cells(line).into_iter().map(str::to_owned).collect();
        Report::from_titles(&titles)
    }
}

/// Whether the text has the header of a report.
pub fn is_layout(text: &[u8]) -> bool {
    let mut before = String::new();
    for line in text.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line).trim_end().to_owned();
        if Layout::from_line(&line).is_some_and(|layout| layout.report(&before).is_some()) {
            return true;
        }
        before = line;
    }
    false
}

/// Reads the reports, with messages between them.
pub fn read_layout(file: &str, mut input: impl BufRead) -> Result<Vec<KernelTable>, KernelsError> {
    let mut reports = Reports::new(file);
    let mut layout: Option<Layout> = None;
    // A line that is a row of titles if dashes follow it, and otherwise a message.
    let mut before: Option<String> = None;
    let mut line = String::new();
    while read_line(&mut input, &mut line).map_err(KernelsError::read(file))? {
        if let Some(rule) = Layout::from_line(&line) {
            // The dashes at the end of a grid follow a row.
            let before = before.take().unwrap_or_default();
            match rule.report(&before) {
                Some(report) => reports.begin(report),
                None => reports.end(),
            }
            layout = Some(rule);
        } else if line.is_empty() {
            reports.end();
        } else if let Some(layout) = layout.as_ref().filter(|_| reports.is_within()) {
            let cells = layout.cells(&line);
            reports.add(|at| cells.get(at).map(|cell| Cell::Bytes(cell.as_bytes(), Decimal::Point)));
        } else if let Some(message) = before.replace(line.clone()) {
            reports.line(&message);
        }
    }
    if let Some(message) = before {
        reports.line(&message);
    }
    reports.finish(file)
}

/// A line without its end; false at the end of the input.
fn read_line(input: &mut impl BufRead, line: &mut String) -> io::Result<bool> {
    let mut bytes = Vec::new();
    input.by_ref().take(MAX_ROW_BYTES as u64).read_until(b'\n', &mut bytes)?;
    line.clear();
    line.push_str(String::from_utf8_lossy(&bytes).trim_end());
    Ok(!bytes.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nsys::read_csv;
    use llmprof_event::kernels::Kind;

    const COLUMNS: &str = "\
Processing [out.sqlite] with [/opt/reports/osrt_sum.py]...

 ** OS Runtime Summary (osrt_sum):

 Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Name
 --------  ---------------  ---------  --------  ----
    100.0                7          1       7.0  poll

SKIPPED: out.sqlite does not contain NV Tools Extension (NVTX) data.

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances   Avg (ns)    Name
 --------  ---------------  ---------  -----------  ---------------------------
     75.0        3,481,709          3  1,160,569.7  void gemv<4, µ>(int, float)
     25.0            1,000          1      1,000.0  rope
";
    const GRID: &str = "\
 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

+----------+-----------------+-----------+-----------+--------------------+
| Time (%) | Total Time (ns) | Instances |  Avg (ns) |        Name        |
+----------+-----------------+-----------+-----------+--------------------+
|     75.0 |       3,481,709 |         3 | 1,160,570 | void gemv|4>(a, b) |
|     25.0 |           1,000 |         1 |   1,000.0 | rope               |
+----------+-----------------+-----------+-----------+--------------------+
";

    #[test]
    fn aligned_columns() {
        assert!(is_layout(COLUMNS.as_bytes()) && is_layout(GRID.as_bytes()));
        assert!(!is_layout(b"a,b\n--- ---\n1 2\n"));
        let tables = read_layout("x", COLUMNS.as_bytes()).unwrap();
        assert_eq!((tables.len(), tables[0].kind, tables[0].rows.len()), (1, Kind::Kernels, 2));
        assert_eq!((tables[0].rows[0].calls, tables[0].rows[0].total_ns), (3, Some(3_481_709.0)));
        assert_eq!(tables[0].rows[1].name, "rope");
        assert_eq!(tables[0].notes.len(), 2, "skipped, and not shown: {:?}", tables[0].notes);
    }

    #[test]
    fn a_grid_of_lines() {
        let tables = read_layout("x", GRID.as_bytes()).unwrap();
        let csv = "Time (%),Total Time (ns),Instances,Avg (ns),Name\n75.0,3481709,3,1160570,\"void gemv|4>(a, b)\"\n25.0,1000,1,1000.0,rope\n";
        assert_eq!(tables, read_csv("x", csv.as_bytes()).unwrap());
    }

    proptest! {
        #[test]
        fn any_lines_are_read_or_rejected(
            lines in "[-+=| a-z0-9é\n.,%()]{0,200}", rows in "[-+| a-z0-9é\n.,]{0,200}"
        ) {
            is_layout(lines.as_bytes());
            let _ = read_layout("any", lines.as_bytes());
            let header = "Total Time (ns)  Instances  Name\n---------------  ---------  ----\n";
            if let Ok(tables) = read_layout("any", format!("{header}{rows}").as_bytes()) {
                prop_assert!(tables.iter().all(|table| !table.rows.is_empty()));
            }
        }
    }
}
