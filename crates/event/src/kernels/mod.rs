//! The common form of kernels from every source: rows with calls, times and counters.

mod busy;
pub mod counters;
mod direction;
mod durations;
mod finding;
pub mod live;
pub mod names;
mod overlaps;
pub mod records;
mod row;
pub mod tools;
pub mod window;
pub mod work;

use std::{cmp::Ordering, collections::HashMap};

use serde::{Deserialize, Serialize};

pub use busy::Busy;
pub use durations::{Bin, Durations};
pub use finding::{Basis, Confidence, Finding, NoSteps};
pub use overlaps::{Exposed, Overlaps};
pub use row::{Advice, Extent, KernelRow, Product};

use llm_cost::Operator;

/// The name of the row that collects kernels beyond the limit of rows.
pub const OTHERS: &str = "(other kernels)";

/// The kind of the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Kernels on the GPU.
    Kernels,
    /// CUDA API calls on the host.
    ApiCalls,
    /// Copies and memsets by time.
    MemoryTime,
    /// Copies and memsets by size.
    MemorySize,
    /// NVTX ranges.
    Ranges,
    /// Matrix products by shape.
    Products,
    /// Operators of a framework on the host. Times exclude the operators that they call.
    Operators,
    /// Layers of a TensorRT engine.
    Layers,
    /// Streams of a GPU.
    Streams,
    /// Memory that a framework allocated and freed.
    Allocations,
}

/// The runtime with which a program launches its kernels. Reports use its terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Platform {
    #[default]
    Cuda,
    Hip,
    Other,
}

impl Platform {
    /// The term for launching many kernels at once.
    pub fn graphs(self) -> &'static str {
        match self {
            Platform::Cuda => "CUDA graphs",
            Platform::Hip => "HIP graphs",
            Platform::Other => "graphs",
        }
    }

    /// The term for calls of the runtime.
    pub fn calls(self) -> &'static str {
        match self {
            Platform::Cuda => "CUDA calls",
            Platform::Hip => "HIP calls",
            Platform::Other => "calls of the runtime",
        }
    }

    /// The tool that reads counters of kernels.
    pub fn counters(self) -> &'static str {
        match self {
            Platform::Cuda => "counters (ncu)",
            Platform::Hip => "counters (rocprofv3 --pmc)",
            Platform::Other => "counters",
        }
    }

    fn is_default(&self) -> bool {
        *self == Platform::default()
    }
}

impl Kind {
    /// Singular and plural of a row.
    pub fn nouns(self) -> (&'static str, &'static str) {
        match self {
            Kind::Kernels => ("kernel", "kernels"),
            Kind::ApiCalls => ("CUDA function", "CUDA functions"),
            Kind::MemoryTime | Kind::MemorySize => ("kind of copy", "kinds of copies"),
            Kind::Ranges => ("range", "ranges"),
            Kind::Products => ("matrix product", "matrix products"),
            Kind::Operators => ("operator", "operators"),
            Kind::Layers => ("layer", "layers"),
            Kind::Streams => ("stream", "streams"),
            Kind::Allocations => ("kind of event", "kinds of events"),
        }
    }

    /// Singular and plural of what a row counts.
    pub fn count_nouns(self) -> (&'static str, &'static str) {
        match self {
            Kind::Kernels => ("launch", "launches"),
            Kind::MemoryTime | Kind::MemorySize | Kind::Streams => ("operation", "operations"),
            Kind::Allocations => ("event", "events"),
            Kind::Ranges => ("instance", "instances"),
            Kind::ApiCalls | Kind::Products | Kind::Operators | Kind::Layers => ("call", "calls"),
        }
    }

    /// The time of a row.
    pub fn time_noun(self) -> &'static str {
        match self {
            Kind::Operators => "self",
            _ => "total",
        }
    }

    /// The quantity that shares refer to.
    pub fn measure(self) -> Measure {
        match self {
            Kind::MemorySize | Kind::Allocations => Measure::Bytes,
            Kind::Products => Measure::Flops,
            _ => Measure::Time,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    Time,
    Bytes,
    Flops,
}

/// Sort order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    /// The quantity that the table measures: time, bytes or operations.
    #[default]
    Time,
    Calls,
    Mean,
}

/// The order of rows; unknown values are last in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sort {
    pub by: SortBy,
    pub ascending: bool,
}

impl From<SortBy> for Sort {
    /// In descending order.
    fn from(by: SortBy) -> Sort {
        Sort { by, ascending: false }
    }
}

/// How rows are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Group {
    /// Not combined: by grid and range, as in the source.
    None,
    #[default]
    Name,
    Family,
    /// By operator; by family if the operator is not known.
    Operator,
}

impl Group {
    /// The key of the group that a row belongs to.
    pub fn key(self, row: &KernelRow) -> &str {
        match (self, row.operator) {
            (Group::None | Group::Name, _) => &row.name,
            (Group::Operator, Some(operator)) => operator.name(),
            (Group::Family | Group::Operator, _) => &row.family,
        }
    }
}

/// Rows of one kind from one source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelTable {
    /// The tool and report they come from.
    pub source: String,
    pub kind: Kind,
    /// The GPU, if the source names it.
    pub device: Option<String>,
    /// How long its kernels ran, if the source has their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<Busy>,
    /// Whether the program launches CUDA graphs, if the source shows its launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graphs: Option<bool>,
    #[serde(default, skip_serializing_if = "Platform::is_default")]
    pub platform: Platform,
    /// How long its copies ran, if the source has their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copying: Option<Busy>,
    /// Rows nest, or are counted in every enclosing range: they do not add up to a total.
    pub nested: bool,
    pub rows: Vec<KernelRow>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl KernelTable {
    pub fn new(source: impl Into<String>, kind: Kind) -> KernelTable {
        KernelTable {
            source: source.into(),
            kind,
            device: None,
            busy: None,
            graphs: None,
            platform: Platform::default(),
            copying: None,
            nested: kind == Kind::Ranges,
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Singular and plural of a row.
    pub fn nouns(&self) -> (&'static str, &'static str) {
        match (self.kind, self.platform) {
            (Kind::ApiCalls, Platform::Hip) => ("HIP function", "HIP functions"),
            (Kind::ApiCalls, Platform::Other) => ("function", "functions"),
            (kind, _) => kind.nouns(),
        }
    }

    /// Whether the program launches CUDA graphs; `None` if the source does not show it.
    pub fn has_graphs(&self) -> Option<bool> {
        let in_rows = self.rows.iter().filter_map(|row| row.graph_calls).map(|calls| calls > 0).max();
        self.graphs.max(in_rows)
    }

    /// The sum of all rows; `None` if a row lacks its part, or if rows do not add up.
    pub fn total(&self) -> Option<f64> {
        if self.nested {
            return None;
        }
        self.rows.iter().map(|row| self.amount(row)).sum()
    }

    /// The amount of a row in the quantity that the table measures.
    pub fn amount(&self, row: &KernelRow) -> Option<f64> {
        row.amount(self.kind.measure())
    }

    pub fn calls(&self) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.calls))
    }

    /// Unknown values last, equal ones by name.
    pub fn sort(&mut self, Sort { by, ascending }: Sort) {
        let measure = self.kind.measure();
        let sign = if ascending { -1.0 } else { 1.0 };
        let key = |row: &KernelRow| {
            let value = match by {
                SortBy::Time => row.amount(measure),
                SortBy::Calls => Some(row.calls as f64),
                SortBy::Mean => row.mean_ns,
            };
            value.map(|value| sign * value)
        };
        self.rows.sort_by(|a, b| descending(key(a), key(b)).then_with(|| a.name.cmp(&b.name)));
    }

    /// Keeps the rows whose name, family, operator or range contains `text`, ignoring case.
    pub fn filter(&mut self, text: &str) {
        let text = text.to_lowercase();
        let has = |within: &str| within.to_lowercase().contains(&text);
        self.rows.retain(|row| {
            let operator = row.operator.map(Operator::name);
            has(&row.name)
                || has(&row.family)
                || [row.range.as_deref(), operator].into_iter().flatten().any(has)
        });
    }

    /// Keeps the first `k` rows; returns how many were dropped.
    pub fn top(&mut self, k: usize) -> usize {
        let dropped = self.rows.len().saturating_sub(k);
        self.rows.truncate(k);
        dropped
    }

    /// The table with combined rows; if rows are counted in several ranges, each range is combined separately.
    pub fn grouped(&self, by: Group) -> KernelTable {
        if by == Group::None {
            return self.clone();
        }
        let mut rows: Vec<KernelRow> = Vec::new();
        let mut indices: HashMap<(&str, Option<&str>), usize> = HashMap::new();
        for row in &self.rows {
            let name = by.key(row);
            let key = (name, row.range.as_deref().filter(|_| self.nested));
            match indices.get(&key) {
                Some(index) => rows[*index].absorb(row),
                None => {
                    indices.insert(key, rows.len());
                    rows.push(KernelRow { name: name.to_owned(), ..row.clone() });
                }
            }
        }
        KernelTable {
            source: self.source.clone(),
            device: self.device.clone(),
            notes: self.notes.clone(),
            rows,
            ..*self
        }
    }
}

fn descending(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        _ => b.is_some().cmp(&a.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, calls: u64, mean: f64) -> KernelRow {
        KernelRow {
            calls,
            total_ns: Some(calls as f64 * mean),
            mean_ns: Some(mean),
            median_ns: Some(mean),
            min_ns: Some(mean),
            max_ns: Some(mean),
            stddev_ns: Some(0.0),
            grid: Some([calls as u32, 1, 1]),
            block: Some([32, 1, 1]),
            ..KernelRow::named(name)
        }
    }

    fn table(rows: Vec<KernelRow>) -> KernelTable {
        KernelTable { rows, ..KernelTable::new("test", Kind::Kernels) }
    }

    #[test]
    fn rows_of_a_family_are_combined() {
        let all = table(vec![
            row("nvjet_sm90_tst_64x32_64x16_2x4_h_bz_TNT", 1, 10.0),
            row("nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT", 1, 20.0),
            row("rope", 4, 1.0),
        ]);
        let families = all.grouped(Group::Family);
        assert_eq!(families.rows.len(), 2);
        let jet = &families.rows[0];
        assert_eq!((jet.name.as_str(), jet.calls, jet.mean_ns), ("nvjet_sm90_tst", 2, Some(15.0)));
        assert_eq!((jet.min_ns, jet.max_ns, jet.median_ns), (Some(10.0), Some(20.0), None));
        assert!((jet.stddev_ns.unwrap() - 50f64.sqrt()).abs() < 1e-9, "{:?}", jet.stddev_ns);
        assert_eq!((jet.grid, jet.block), (Some([1, 1, 1]), Some([32, 1, 1])));
        assert_eq!(all.grouped(Group::Name).rows.len(), 3);
        assert_eq!(all.grouped(Group::Operator).rows.len(), 2, "families where no operator is known");
        assert_eq!(all.grouped(Group::None), all);
        assert_eq!(families.total(), all.total());
    }

    #[test]
    fn rows_of_an_operator_are_combined_and_found_by_it() {
        let of = |operator, name| KernelRow { operator, ..row(name, 2, 3.0) };
        let mut all = table(vec![
            of(Some(Operator::Qkv), "skinny_8"),
            of(Some(Operator::Down), "skinny_8"),
            of(Some(Operator::Qkv), "add_bias"),
            of(None, "skinny_8"),
        ]);
        let names: Vec<String> = all
            .grouped(Group::Operator)
            .rows
            .iter()
            .map(|row| format!("{} {}", row.name, row.calls))
            .collect();
        assert_eq!(names, ["qkv 4", "down 2", "skinny_8 2"]);
        assert_eq!(all.grouped(Group::Family).rows[0].operator, None, "several operators are none");
        all.filter("DOW");
        assert_eq!(all.rows.len(), 1);
    }

    #[test]
    fn rows_are_sorted_with_unknown_values_last() {
        let unknown = KernelRow { calls: 9, ..KernelRow::named("unknown") };
        let mut all = table(vec![unknown, row("a", 3, 1.0), row("b", 1, 30.0)]);
        let names = |table: &KernelTable| table.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
        all.sort(Sort::default());
        assert_eq!(names(&all), ["b", "a", "unknown"]);
        all.sort(Sort { by: SortBy::Time, ascending: true });
        assert_eq!(names(&all), ["a", "b", "unknown"]);
        all.sort(SortBy::Calls.into());
        assert_eq!(names(&all), ["unknown", "a", "b"]);
        assert_eq!(all.total(), None, "an unknown part makes the total unknown");
        all.filter("UNK");
        assert_eq!(names(&all), ["unknown"]);
        assert_eq!(all.top(0), 1);
    }

    mod recorded {
        use std::{borrow::Cow, sync::Arc};

        use proptest::{collection::vec, option::of, prelude::*, sample::select};

        use super::*;
        use crate::kernels::counters::{Counter, Counters};

        /// Numbers as tools write them: up to ten digits, some after the point.
        fn number() -> impl Strategy<Value = f64> {
            (any::<i32>(), 0i32..7).prop_map(|(digits, places)| f64::from(digits) / 10f64.powi(places))
        }

        /// Counters with integer values: a sum has more digits than its parts, and JSON is exact up to fifteen digits.
        fn counters() -> impl Strategy<Value = Counters> {
            let counter = ("[a-z_.:% ]{1,20}", "[a-z/%]{0,6}", vec((any::<i32>(), 0..9u8), 1..3));
            vec(counter, 0..5).prop_map(|all| {
                let mut counters = Counters::default();
                for (name, unit, values) in all {
                    let mut counter = Counter::NONE;
                    let add =
                        |(value, weight): &(i32, u8)| counter.add(f64::from(*value), f64::from(*weight));
                    values.iter().for_each(add);
                    counters.merge(&Arc::from(name), &Arc::from(unit), &counter);
                }
                counters
            })
        }

        fn advice() -> impl Strategy<Value = Advice> {
            (any::<String>(), any::<String>(), of(number()), of("[a-z]{0,6}")).prop_map(
                |(rule, text, speedup_pct, speedup_of)| {
                    let kind = "OPT".to_owned();
                    Advice { rule, kind, text, speedup_pct, speedup_of }
                },
            )
        }

        prop_compose! {
            fn product()(
                [m, n, k, batch] in any::<[u64; 4]>(), types in prop::array::uniform3(of("[a-z0-9]{1,6}"))
            ) -> Product {
                Product { m, n, k, batch, types: types.map(|name| name.map(Cow::Owned)) }
            }
        }

        prop_compose! {
            fn row()(
                name in any::<String>(), calls in any::<u64>(), times in prop::array::uniform8(of(number())),
                (grid, block) in (of(any::<Extent>()), of(any::<Extent>())),
                (registers, shared_bytes, graph_calls) in (of(any::<u32>()), of(any::<u64>()), of(any::<u64>())),
                (operator, range) in (of(select(Operator::ALL)), of(any::<String>())),
                (product, counters, advice) in (of(product()), counters(), vec(advice(), 0..3)),
            ) -> KernelRow {
                let [total_ns, mean_ns, median_ns, min_ns, max_ns, stddev_ns, bytes, flops] = times;
                KernelRow {
                    calls, total_ns, mean_ns, median_ns, min_ns, max_ns, stddev_ns, bytes, flops, grid, block,
                    registers, shared_bytes, graph_calls, operator, range, product, counters, advice,
                    ..KernelRow::named(name)
                }
            }
        }

        proptest! {
            #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

            #[test]
            fn a_recorded_table_is_read_back_unchanged(
                rows in vec(row(), 0..4), nested in any::<bool>(), device in of(any::<String>()),
                notes in vec(any::<String>(), 0..2), graphs in any::<Option<bool>>(),
            ) {
                let busy = graphs.map(|_| Busy { busy_ns: 1.0, span_ns: 2.0 });
                let table = KernelTable { device, busy, graphs, nested, rows, notes, ..KernelTable::new("a tool", Kind::Kernels) };
                let text = serde_json::to_string(&table).unwrap();
                prop_assert!(!text.contains('\n'), "a recording has an event on a line");
                prop_assert_eq!(serde_json::from_str::<KernelTable>(&text).unwrap(), table);
            }
        }
    }
}
