//! Rows below titles, for CSV.

use llmprof_base::csv::csv_text;

/// Every row has a cell per title. A missing value is an empty cell, never 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub titles: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// `titles` are separated by commas.
    pub fn titled(titles: &str) -> Table {
        Table { titles: titles.split(',').map(str::to_owned).collect(), rows: Vec::new() }
    }

    pub fn add(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut row: Vec<String> = cells.into_iter().collect();
        debug_assert!(row.len() <= self.titles.len(), "{row:?} under {:?}", self.titles);
        row.resize(self.titles.len(), String::new());
        self.rows.push(row);
    }

    pub fn csv(&self) -> String {
        csv_text(std::iter::once(&self.titles).chain(&self.rows))
    }
}

/// A value as text; empty without one.
pub fn cell(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A number with all its digits; empty if it is not finite.
pub fn number(value: impl Into<Option<f64>>) -> String {
    cell(value.into().filter(|value| value.is_finite()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use llmprof_base::csv::guarded;

    #[test]
    fn a_missing_value_is_empty() {
        for none in [None, Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!(number(none), "");
        }
        assert_eq!((number(0.0), cell(Some(3u64)), cell(None::<u64>)), ("0".into(), "3".into(), "".into()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn numbers_and_text_read_back(value: f64, text: String, other: String) {
            let mut table = Table::titled("value,text,more");
            table.add([number(value), text.clone(), other.clone()]);
            let csv = table.csv();
            let mut reader = csv::Reader::from_reader(csv.as_bytes());
            let row = reader.records().next().unwrap().unwrap();
            prop_assert_eq!(row[0].parse::<f64>().ok(), Some(value).filter(|value| value.is_finite()));
            prop_assert_eq!((&row[1], &row[2]), (&*guarded(&text), &*guarded(&other)));
        }
    }
}
