//! Tables of typed cells, rendered as text, Markdown, CSV and JSON.

use std::borrow::Cow;

use serde_json::Value as Json;
use unicode_width::UnicodeWidthStr;

use super::{csv::csv_text, foreign, units::Unit};

/// Columns and rows; each row has a cell per column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name in CSV and JSON, which is public; empty if it is only for people.
    pub key: Cow<'static, str>,
    /// Its heading for people; `None` if it is only in CSV and JSON.
    pub title: Option<Cow<'static, str>>,
    pub align: Align,
    /// The unit and the tone of its cells, unless they have their own.
    pub unit: Unit,
    pub tone: Tone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
    /// To the left; a text that is too long for a screen loses its beginning.
    Path,
}

/// A value with its unit and tone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cell {
    pub value: Value,
    pub unit: Unit,
    pub tone: Tone,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub enum Value {
    /// Not measured, or unknown: `–` for people, empty in CSV, null in JSON; never 0.
    #[default]
    Missing,
    Text(String),
    Count(u64),
    Number(f64),
    Flag(bool),
}

/// How a screen emphasises a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Dim,
    Number,
    Good,
    Warn,
    Bad,
    Accent,
}

/// A row of cells of different types.
#[macro_export]
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$($crate::table::Cell::from($cell)),*] };
}

impl Column {
    /// A column of texts.
    pub fn text(title: impl Into<Cow<'static, str>>) -> Column {
        Column { title: Some(title.into()), ..Column::data("") }
    }

    /// A column that is aligned to the right.
    pub fn number(title: impl Into<Cow<'static, str>>) -> Column {
        Column { align: Align::Right, ..Column::text(title) }
    }

    /// A column of texts whose ends matter most.
    pub fn path(title: impl Into<Cow<'static, str>>) -> Column {
        Column { align: Align::Path, ..Column::text(title) }
    }

    /// A column that is only in CSV and JSON.
    pub fn data(key: impl Into<Cow<'static, str>>) -> Column {
        Column { key: key.into(), title: None, align: Align::Left, unit: Unit::None, tone: Tone::Plain }
    }

    pub fn key(self, key: impl Into<Cow<'static, str>>) -> Column {
        Column { key: key.into(), ..self }
    }

    pub fn unit(self, unit: Unit) -> Column {
        Column { unit, ..self }
    }

    pub fn tone(self, tone: Tone) -> Column {
        Column { tone, ..self }
    }

    /// The heading on a screen, which may also show a column of data.
    pub fn heading(&self) -> &str {
        self.title.as_ref().unwrap_or(&self.key)
    }

    fn is_right(&self) -> bool {
        self.align == Align::Right
    }
}

impl Cell {
    pub fn tone(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }

    pub fn is_missing(&self) -> bool {
        self.value == Value::Missing
    }

    /// For people, with the unit.
    pub fn text(&self) -> String {
        match &self.value {
            Value::Missing => "–".to_owned(),
            Value::Text(text) => text.clone(),
            Value::Count(n) if self.unit == Unit::None => n.to_string(),
            Value::Count(n) => self.unit.text(*n as f64),
            Value::Number(value) => self.unit.text(*value),
            Value::Flag(flag) => flag.to_string(),
        }
    }

    /// For programs: a number with all its digits.
    fn csv(&self) -> String {
        match &self.value {
            Value::Missing => String::new(),
            Value::Number(value) => value.to_string(),
            Value::Count(n) => n.to_string(),
            Value::Text(_) | Value::Flag(_) => self.text(),
        }
    }

    fn json(&self) -> Json {
        match &self.value {
            Value::Missing => Json::Null,
            Value::Text(text) => text.as_str().into(),
            Value::Count(n) => (*n).into(),
            Value::Number(value) => (*value).into(),
            Value::Flag(flag) => (*flag).into(),
        }
    }
}

impl Unit {
    pub fn cell(self, value: impl Into<Cell>) -> Cell {
        Cell { unit: self, ..value.into() }
    }
}

impl From<Value> for Cell {
    fn from(value: Value) -> Cell {
        Cell { value, ..Cell::default() }
    }
}

/// A number that is not finite is missing.
impl From<f64> for Cell {
    fn from(value: f64) -> Cell {
        if value.is_finite() { Value::Number(value).into() } else { Cell::default() }
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or_else(Cell::default, Into::into)
    }
}

macro_rules! cell_from {
    ($($type:ty: $value:expr),* $(,)?) => {
        $(impl From<$type> for Cell {
            fn from(value: $type) -> Cell {
                Cell::from($value(value))
            }
        })*
    };
}

cell_from! {
    String: Value::Text,
    &str: |text: &str| Value::Text(text.to_owned()),
    bool: Value::Flag,
    u64: Value::Count,
    u32: |n| Value::Count(u64::from(n)),
    usize: |n| Value::Count(n as u64),
}

impl Table {
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Table {
        Table { columns: Vec::from_iter(columns), rows: Vec::new() }
    }

    /// A column of names, then numbers; only for people.
    pub fn labelled<const N: usize>(names: &'static str, numbers: [&'static str; N]) -> Table {
        Table::new([Column::text(names)].into_iter().chain(numbers.map(Column::number)))
    }

    /// Only for programs; `keys` are separated by commas.
    pub fn keyed(keys: &'static str) -> Table {
        Table::new(keys.split(',').map(Column::data))
    }

    /// Appends a row; missing cells follow those that are given.
    pub fn push<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        debug_assert!(row.len() <= self.columns.len(), "{row:?} in {:?}", self.columns);
        row.resize(self.columns.len(), Cell::default());
        for (cell, column) in row.iter_mut().zip(&self.columns) {
            cell.unit = if cell.unit == Unit::None { column.unit } else { cell.unit };
            cell.tone = if cell.tone == Tone::Plain { column.tone } else { cell.tone };
        }
        self.rows.push(row);
    }

    /// The first column with this key.
    pub fn index(&self, key: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.key == key)
    }

    /// Appends the rows of another table by the keys of their columns; what only one of them has is missing.
    pub fn append(&mut self, other: &Table) {
        let columns: Vec<Option<usize>> =
            self.columns.iter().map(|column| other.index(&column.key)).collect();
        let cell = |row: &[Cell], column: &Option<usize>| column.map(|column| row[column].clone());
        let rows = other.rows.iter().map(|row| columns.iter().map(|i| cell(row, i).into()).collect());
        self.rows.extend(rows);
    }

    /// The columns with these keys, separated by commas, in this order.
    pub fn select(&self, keys: &str) -> Table {
        let columns: Vec<usize> = keys.split(',').filter_map(|key| self.index(key)).collect();
        let rows = self.rows.iter().map(|row| columns.iter().map(|i| row[*i].clone()).collect());
        Table { rows: rows.collect(), columns: columns.iter().map(|i| self.columns[*i].clone()).collect() }
    }

    /// Without as many of these columns as the text needs to fit into `width`.
    pub fn within(mut self, width: usize, dispensable: &[&str]) -> Table {
        for key in dispensable {
            let wide: usize = (0..self.columns.len()).map(|column| self.full_width(column) + 2).sum();
            if let Some(index) = self.index(key).filter(|_| wide > width + 2) {
                self.columns.remove(index);
                self.rows.iter_mut().for_each(|row| drop(row.remove(index)));
            }
        }
        self
    }

    /// The same table with other headings for people.
    pub fn titled<T: Into<Cow<'static, str>>>(mut self, titles: impl IntoIterator<Item = T>) -> Table {
        let shown = self.columns.iter_mut().filter(|column| column.title.is_some());
        shown.zip(titles).for_each(|(column, title)| column.title = Some(title.into()));
        self
    }

    /// Gives the column with this key another heading.
    pub fn rename(&mut self, key: &str, title: impl Into<Cow<'static, str>>) {
        if let Some(index) = self.index(key) {
            self.columns[index].title = Some(title.into());
        }
    }

    /// The width of a column with its heading.
    pub fn full_width(&self, column: usize) -> usize {
        self.width(column).max(self.columns[column].heading().width())
    }

    /// The width of the widest cell of a column.
    pub fn width(&self, column: usize) -> usize {
        self.rows.iter().map(|row| row[column].text().width()).max().unwrap_or(0)
    }

    /// Aligned columns for a terminal, two spaces apart, without frames, below their headings if there are any. A column
    /// without any text is left out.
    pub fn text(&self) -> String {
        let shown: Vec<&Column> = self.columns.iter().filter(|column| column.title.is_some()).collect();
        let mut lines = self.for_people();
        if lines[0].iter().all(String::is_empty) {
            lines.remove(0);
        }
        let width = |column: usize| lines.iter().map(|cells| cells[column].width()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..shown.len()).map(width).collect();
        let line = |cells: &Vec<String>| {
            let cells = cells.iter().zip(&shown).zip(&widths).filter(|(_, width)| **width > 0);
            let cells = cells.map(|((cell, column), width)| {
                let padding = " ".repeat(width - cell.width());
                if column.is_right() { padding + cell } else { cell.to_owned() + &padding }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        lines.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// With the same alignment. Every row ends with a line break.
    pub fn markdown(&self) -> String {
        let line = |cells: &Vec<String>| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let shown = self.columns.iter().filter(|column| column.title.is_some());
        let rule: String = shown.map(|column| if column.is_right() { "---:|" } else { "---|" }).collect();
        let lines = self.for_people();
        format!("{}|{rule}\n{}", line(&lines[0]), lines[1..].iter().map(line).collect::<String>())
    }

    pub fn csv(&self) -> String {
        let keyed = |i: &usize| !self.columns[*i].key.is_empty();
        let shown: Vec<usize> = (0..self.columns.len()).filter(keyed).collect();
        let heading = shown.iter().map(|i| self.columns[*i].key.clone().into_owned()).collect();
        let rows = self.rows.iter().map(|row| shown.iter().map(|i| row[*i].csv()).collect());
        csv_text([heading].into_iter().chain::<Vec<Vec<String>>>(rows.collect()))
    }

    /// An object for each row.
    pub fn json(&self) -> Json {
        let object = |row: &Vec<Cell>| {
            let cells = self.columns.iter().zip(row).filter(|(column, _)| !column.key.is_empty());
            cells.map(|(column, cell)| (column.key.clone().into_owned(), cell.json())).collect::<Json>()
        };
        self.rows.iter().map(object).collect()
    }

    /// The headings, then the rows. Names in cells are untrusted: each cell is one line.
    fn for_people(&self) -> Vec<Vec<String>> {
        let titles =
            self.columns.iter().filter_map(|column| Some(foreign::line(column.title.as_ref()?, MAX_CELL)));
        let shown = |row: &Vec<Cell>| {
            let cells = self.columns.iter().zip(row).filter(|(column, _)| column.title.is_some());
            cells.map(|(_, cell)| foreign::line(&cell.text(), MAX_CELL)).collect()
        };
        [titles.collect()].into_iter().chain(self.rows.iter().map(shown)).collect()
    }
}

/// Maximum characters of a cell for people. Longer texts are cut.
const MAX_CELL: usize = 1_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::csv::guarded;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn numbers_and_text_read_back(value: f64, text: String, other: String) {
            let mut table = Table::keyed("value,text,more");
            table.push(cells![value, text.as_str(), other.as_str()]);
            let csv = table.csv();
            let mut reader = csv::Reader::from_reader(csv.as_bytes());
            let row = reader.records().next().unwrap().unwrap();
            prop_assert_eq!(row[0].parse::<f64>().ok(), Some(value).filter(|value| value.is_finite()));
            prop_assert_eq!((&row[1], &row[2]), (&*guarded(&text), &*guarded(&other)));
        }
    }

    #[test]
    fn one_table_has_four_forms() {
        let columns = [
            Column::text("owner").key("name"),
            Column::number("time").key("ms").unit(Unit::Millis),
            Column::data("n"),
        ];
        let mut table = Table::new(columns);
        table.push(cells!["=weights", 5.4321, 3u64]);
        table.push(cells!["a|b", f64::NAN]);
        assert_eq!(table.text(), "owner        time\n=weights  5.43 ms\na|b             –");
        assert_eq!(table.markdown(), "| owner | time |\n|---|---:|\n| =weights | 5.43 ms |\n| a\\|b | – |\n");
        assert_eq!(table.csv(), "name,ms,n\n'=weights,5.4321,3\na|b,,\n");
        assert_eq!(
            table.json(),
            serde_json::json!([{"name": "=weights", "ms": 5.4321, "n": 3}, {"name": "a|b", "ms": null, "n": null}])
        );
    }

    #[test]
    fn numbers_are_aligned_to_the_right_and_empty_columns_are_left_out() {
        let mut table = Table::labelled("name", ["ms", ""]);
        table.columns.push(Column::text("remark"));
        table.push(["é", "40.0", "", ""]);
        table.push(["模型", "3", "", "slow"]);
        assert_eq!(
            table.text(),
            "name    ms  remark\n\
             é     40.0\n\
             模型     3  slow"
        );
        assert_eq!(Table::default().text(), "");
        let mut pairs = Table::new([Column::text(""), Column::text("")]);
        pairs.push(["a", "b"]);
        assert_eq!(pairs.text(), "a  b", "no headings");
    }
}
