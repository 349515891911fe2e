//! Rows as CSV that is safe to open in a spreadsheet.

use std::borrow::Cow;

use super::foreign::visible;

/// One line per row.
pub fn csv_text<R>(rows: impl IntoIterator<Item = R>) -> String
where
    R: IntoIterator<Item: AsRef<str>>,
{
    let mut out = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for row in rows {
        let cells: Vec<String> = row.into_iter().map(|cell| guarded(cell.as_ref()).into_owned()).collect();
        // Writing to memory does not fail.
        let _ = out.write_record(cells);
    }
    out.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// A spreadsheet evaluates texts that begin with these characters, including functions that start programs.
const FORMULA: [char; 6] = ['=', '+', '-', '@', '\t', '\n'];

/// A text that a spreadsheet would evaluate gets an apostrophe in front; numbers stay numbers.
pub fn guarded(cell: &str) -> Cow<'_, str> {
    let cell = visible(cell);
    match cell.starts_with(FORMULA) && cell.parse::<f64>().is_err() {
        true => Cow::Owned(format!("'{cell}")),
        false => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula() {
        for (cell, written) in [
            ("=1+1", "'=1+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("+x", "'+x"),
            ("-x", "'-x"),
            ("\t=1", "'\t=1"),
            ("-1.5", "-1.5"),
            ("+2e-3", "+2e-3"),
            ("", ""),
            ("a=b", "a=b"),
            ("\u{1b}[0m", "\\u001b[0m"),
        ] {
            assert_eq!(guarded(cell), written, "{cell:?}");
        }
        assert_eq!(csv_text([["a", "=b,c"], ["1", "-2"]]), "a,\"'=b,c\"\n1,-2\n");
    }
}
