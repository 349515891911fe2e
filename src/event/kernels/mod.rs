//! The one form that kernels of every source take: rows with calls, times and counters.

pub mod counters;
pub mod names;

use std::{borrow::Cow, cmp::Ordering, collections::HashMap};

use serde::{Deserialize, Serialize};

use counters::{Counters, Known};

use crate::model::Operator;

/// The name of the row that counts further kernels together.
pub const OTHERS: &str = "(other kernels)";

/// What the rows of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Kernels on the GPU.
    Kernels,
    /// Calls of CUDA on the host.
    ApiCalls,
    /// Copies and memsets by time.
    MemoryTime,
    /// Copies and memsets by size.
    MemorySize,
    /// NVTX ranges.
    Ranges,
    /// Matrix products by shape.
    Products,
}

impl Kind {
    /// One of them and several, in words.
    pub fn nouns(self) -> (&'static str, &'static str) {
        match self {
            Kind::Kernels => ("kernel", "kernels"),
            Kind::ApiCalls => ("CUDA function", "CUDA functions"),
            Kind::MemoryTime | Kind::MemorySize => ("kind of copy", "kinds of copies"),
            Kind::Ranges => ("range", "ranges"),
            Kind::Products => ("matrix product", "matrix products"),
        }
    }

    /// What a row counts, one and several.
    pub fn count_nouns(self) -> (&'static str, &'static str) {
        match self {
            Kind::Kernels => ("launch", "launches"),
            Kind::MemoryTime | Kind::MemorySize => ("operation", "operations"),
            Kind::Ranges => ("instance", "instances"),
            Kind::ApiCalls | Kind::Products => ("call", "calls"),
        }
    }

    /// What shares are shares of.
    pub fn measure(self) -> Measure {
        match self {
            Kind::MemorySize => Measure::Bytes,
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

/// Three extents of a launch.
pub type Extent = [u32; 3];

/// A kernel, or whatever else the table's [`Kind`] says. What the source does not tell is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelRow {
    pub name: String,
    pub family: String,
    pub calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stddev_ns: Option<f64>,
    /// `None` too where the launches differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grid: Option<Extent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<Extent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    /// Shared memory of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_bytes: Option<u64>,
    /// What of the model it works on, where that was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<Operator>,
    /// The NVTX ranges around the launch, the outermost first, with slashes between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// How many of the calls were nodes of CUDA graphs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_calls: Option<u64>,
    /// Bytes that were moved, all calls together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// Operations of all calls together, where the source tells the shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    /// The shape, of a matrix product.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<Product>,
    #[serde(skip_serializing_if = "Counters::is_empty")]
    pub counters: Counters,
    /// What the tool itself remarks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
}

/// The shape of a matrix product: an M×K matrix by a K×N one, `batch` times.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Product {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub batch: u64,
    /// The types of both operands and of the result, as far as they are told.
    pub types: [Option<Cow<'static, str>>; 3],
}

impl Product {
    /// Operations of one call: a multiplication and an addition for each element of M×N×K, four times that of complex
    /// numbers.
    pub fn flops(&self) -> f64 {
        let complex = self.types.iter().flatten().any(|name| name.starts_with("complex"));
        let each = if complex { 8.0 } else { 2.0 };
        each * self.m as f64 * self.n as f64 * self.k as f64 * self.batch as f64
    }

    /// `512×1×896 bf16`, and how many where it is more than one.
    pub fn text(&self) -> String {
        let Product { m, n, k, batch, types } = self;
        let mut text = format!("{m}×{n}×{k}");
        if *batch != 1 {
            text += &format!(" ×{batch}");
        }
        let [a, b, c] = types;
        match (a, b, c) {
            (Some(a), Some(b), Some(c)) if a == b && b == c => text += &format!(" {a}"),
            (Some(a), Some(b), c) if a == b => text += &format!(" {a} to {}", c.as_deref().unwrap_or("?")),
            (None, None, None) => {}
            _ => {
                text += &format!(
                    " {}·{} to {}",
                    a.as_deref().unwrap_or("?"),
                    b.as_deref().unwrap_or("?"),
                    c.as_deref().unwrap_or("?")
                )
            }
        }
        text
    }
}

/// A rule of Nsight Compute that had something to say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub rule: String,
    /// `OPT`, `WRN` or `INF`.
    pub kind: String,
    pub text: String,
    /// What following it may save, in percent, and of what (`global`, `local`).
    pub speedup_pct: Option<f64>,
    pub speedup_of: Option<String>,
}

impl KernelRow {
    pub fn named(name: impl Into<String>) -> KernelRow {
        let name = name.into();
        KernelRow { family: names::family(&name), name, ..KernelRow::default() }
    }

    pub fn known(&self) -> Known {
        let mut known = Known::of(&self.counters);
        known.duration_ns = known.duration_ns.or(self.mean_ns);
        known
    }

    fn amount(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Time => self.total_ns,
            Measure::Bytes => self.bytes,
            Measure::Flops => self.flops,
        }
    }

    /// Adds the calls of another row to this one. What both agree on stays, medians cannot be told any more.
    pub fn absorb(&mut self, other: &KernelRow) {
        let spread = joint_spread(self, other);
        fn agreed<T: PartialEq>(a: Option<T>, b: &Option<T>) -> Option<T> {
            a.filter(|a| b.as_ref() == Some(a))
        }
        fn both(a: Option<f64>, b: Option<f64>) -> Option<f64> {
            Some(a? + b?)
        }
        self.calls = self.calls.saturating_add(other.calls);
        self.total_ns = both(self.total_ns, other.total_ns);
        self.mean_ns = self.total_ns.filter(|_| self.calls > 0).map(|total| total / self.calls as f64);
        self.median_ns = None;
        self.min_ns = self.min_ns.zip(other.min_ns).map(|(a, b)| a.min(b));
        self.max_ns = self.max_ns.zip(other.max_ns).map(|(a, b)| a.max(b));
        self.stddev_ns = spread;
        self.grid = agreed(self.grid, &other.grid);
        self.block = agreed(self.block, &other.block);
        self.registers = agreed(self.registers, &other.registers);
        self.shared_bytes = agreed(self.shared_bytes, &other.shared_bytes);
        self.operator = agreed(self.operator, &other.operator);
        self.range = agreed(self.range.take(), &other.range);
        self.graph_calls = self.graph_calls.zip(other.graph_calls).map(|(a, b)| a.saturating_add(b));
        self.bytes = both(self.bytes, other.bytes);
        self.flops = both(self.flops, other.flops);
        self.product = agreed(self.product.take(), &other.product);
        self.counters.merge_all(&other.counters);
        for advice in &other.advice {
            if !self.advice.iter().any(|known| known.rule == advice.rule) {
                self.advice.push(advice.clone());
            }
        }
    }
}

/// The standard deviation of two rows' calls together.
fn joint_spread(a: &KernelRow, b: &KernelRow) -> Option<f64> {
    // A single call has no spread of its own.
    let squares = |row: &KernelRow| {
        let spread = row.stddev_ns.or((row.calls == 1).then_some(0.0))?;
        let (n, mean) = (row.calls as f64, row.mean_ns?);
        Some((n - 1.0).max(0.0) * spread * spread + n * mean * mean)
    };
    let n = a.calls as f64 + b.calls as f64;
    let mean = (a.calls as f64 * a.mean_ns? + b.calls as f64 * b.mean_ns?) / n;
    let joint = (squares(a)? + squares(b)? - n * mean * mean) / (n - 1.0);
    joint.is_finite().then(|| joint.max(0.0).sqrt())
}

/// How to sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    /// What the table measures: time, or bytes, or operations.
    #[default]
    Time,
    Calls,
    Mean,
}

/// What to put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Group {
    /// Nothing: as the source has them, by grid and range.
    None,
    #[default]
    Name,
    Family,
    /// By the operator they work on; families where that is not told.
    Operator,
}

impl Group {
    /// What a row is put together under.
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
    /// Which tool and report they come from, in words.
    pub source: String,
    pub kind: Kind,
    /// The GPU, where the source names it.
    pub device: Option<String>,
    /// Rows lie within each other, or are counted in every range around them: they do not add up to a whole.
    pub nested: bool,
    pub rows: Vec<KernelRow>,
    /// What one should know when reading it.
    pub notes: Vec<String>,
}

impl KernelTable {
    pub fn new(source: impl Into<String>, kind: Kind) -> KernelTable {
        KernelTable {
            source: source.into(),
            kind,
            device: None,
            nested: kind == Kind::Ranges,
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// All that was measured; `None` if a row does not tell its part, or the parts are of no whole.
    pub fn total(&self) -> Option<f64> {
        if self.nested {
            return None;
        }
        let measure = self.kind.measure();
        self.rows.iter().map(|row| row.amount(measure)).sum()
    }

    /// What a row measured.
    pub fn amount(&self, row: &KernelRow) -> Option<f64> {
        row.amount(self.kind.measure())
    }

    pub fn calls(&self) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.calls))
    }

    /// The greatest first; rows that do not tell come last, equals by name.
    pub fn sort(&mut self, by: SortBy) {
        let measure = self.kind.measure();
        let key = |row: &KernelRow| match by {
            SortBy::Time => row.amount(measure),
            SortBy::Calls => Some(row.calls as f64),
            SortBy::Mean => row.mean_ns,
        };
        self.rows.sort_by(|a, b| greatest_first(key(a), key(b)).then_with(|| a.name.cmp(&b.name)));
    }

    /// The rows whose name, family, operator or range has `text` in it, whatever the case.
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

    /// The first `k` rows; gives how many were left out.
    pub fn top(&mut self, k: usize) -> usize {
        let left_out = self.rows.len().saturating_sub(k);
        self.rows.truncate(k);
        left_out
    }

    /// The same with rows put together; where they are counted in several ranges, each range by itself.
    pub fn grouped(&self, by: Group) -> KernelTable {
        let mut table = KernelTable { rows: Vec::new(), ..self.clone_head() };
        if by == Group::None {
            table.rows = self.rows.clone();
            return table;
        }
        let mut at: HashMap<(&str, Option<&str>), usize> = HashMap::new();
        for row in &self.rows {
            let name = by.key(row);
            let key = (name, row.range.as_deref().filter(|_| self.nested));
            match at.get(&key) {
                Some(at) => table.rows[*at].absorb(row),
                None => {
                    at.insert(key, table.rows.len());
                    let name = name.to_owned();
                    table.rows.push(KernelRow { name, ..row.clone() });
                }
            }
        }
        table
    }

    fn clone_head(&self) -> KernelTable {
        KernelTable {
            source: self.source.clone(),
            kind: self.kind,
            device: self.device.clone(),
            nested: self.nested,
            rows: Vec::new(),
            notes: self.notes.clone(),
        }
    }
}

fn greatest_first(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
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
    fn rows_of_a_family_are_put_together() {
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
        assert_eq!(all.grouped(Group::Operator).rows.len(), 2, "families where no operator is told");
        assert_eq!(all.grouped(Group::None), all);
        assert_eq!(families.total(), all.total());
    }

    #[test]
    fn rows_of_an_operator_are_put_together_and_found_by_it() {
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
    fn sorted_by_what_is_asked_and_unknown_last() {
        let unknown = KernelRow { calls: 9, ..KernelRow::named("unknown") };
        let mut all = table(vec![unknown, row("a", 3, 1.0), row("b", 1, 30.0)]);
        let names = |table: &KernelTable| table.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
        all.sort(SortBy::Time);
        assert_eq!(names(&all), ["b", "a", "unknown"]);
        all.sort(SortBy::Calls);
        assert_eq!(names(&all), ["unknown", "a", "b"]);
        assert_eq!(all.total(), None, "a part that is not known makes the whole unknown");
        all.filter("UNK");
        assert_eq!(names(&all), ["unknown"]);
        assert_eq!(all.top(0), 1);
    }

    mod recorded {
        use std::sync::Arc;

        use proptest::{collection::vec, option::of, prelude::*, sample::select};

        use super::*;
        use crate::event::kernels::counters::Counter;

        /// Numbers as tools write them: up to ten digits, some behind the point.
        fn number() -> impl Strategy<Value = f64> {
            (any::<i32>(), 0i32..7).prop_map(|(digits, places)| f64::from(digits) / 10f64.powi(places))
        }

        /// Of whole numbers: a sum has more digits than its parts, and JSON is read exactly up to fifteen.
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
            fn a_table_comes_back_as_it_was(
                rows in vec(row(), 0..4), nested in any::<bool>(), device in of(any::<String>()),
                notes in vec(any::<String>(), 0..2),
            ) {
                let table = KernelTable { device, nested, rows, notes, ..KernelTable::new("a tool", Kind::Kernels) };
                let text = serde_json::to_string(&table).unwrap();
                prop_assert!(!text.contains('\n'), "a recording has an event on a line");
                prop_assert_eq!(serde_json::from_str::<KernelTable>(&text).unwrap(), table);
            }
        }
    }
}
