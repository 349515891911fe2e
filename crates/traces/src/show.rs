//! Kernel tables as text and as JSON.

use serde_json::{Map, Value, json};

use llmprof_analysis::classify::{self, Class, SHORT_NS};
use llmprof_base::{
    cells,
    foreign::{MAX_LINE, line},
    table::{Cell, Column, Table},
    units::{Unit, grouped, millis, percent, scaled},
};
use llmprof_event::kernels::{
    Busy, Group, KernelRow, KernelTable, Kind, Measure, Platform, Sort,
    work::{Direction, MEMSET},
};

/// Short kernels with a smaller share of the time are not reported.
const MIN_SHORT_TIME: f64 = 0.05;
/// Copies with a smaller share of the time leave enough time for kernels.
const MANY_COPIES: f64 = 0.5;

/// Which rows of a table to show.
#[derive(Debug, Clone, Default)]
pub struct RowQuery {
    pub group: Group,
    pub sort: Sort,
    pub filter: Option<String>,
    /// Number of rows; `None` for all.
    pub rows: Option<usize>,
}

/// A table with the requested rows, and findings about it.
#[derive(Debug, Clone)]
pub struct TableView {
    pub table: KernelTable,
    /// The number of omitted rows, and their amount.
    pub left_out: (usize, Option<f64>),
    /// The amount of all rows, including those omitted.
    pub total: Option<f64>,
    pub hints: Vec<String>,
}

impl TableView {
    pub fn new(table: &KernelTable, query: &RowQuery) -> TableView {
        let mut table = table.grouped(query.group);
        table.sort(query.sort);
        let total = table.total();
        let hints = hints(&table);
        if let Some(text) = &query.filter {
            table.filter(text);
        }
        let mut left_out = (0, None);
        if let Some(k) = query.rows.filter(|k| *k < table.rows.len()) {
            let rest: Option<f64> = table.rows[k..].iter().map(|row| table.amount(row)).sum();
            left_out = (table.top(k), rest);
        }
        TableView { table, left_out, total, hints }
    }

    /// A row's share of the total, in percent, if the total is known.
    pub fn share(&self, row: &KernelRow) -> Option<f64> {
        self.share_of(self.table.amount(row)?)
    }

    fn share_of(&self, amount: f64) -> Option<f64> {
        let total = self.total.filter(|total| *total > 0.0)?;
        Some(amount / total * 100.0)
    }

    /// As text: hints, then a table.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.headline());
        for hint in &self.hints {
            out += &format!("  {}\n", line(hint, MAX_LINE));
        }
        for note in &self.table.notes {
            out += &format!("  note: {}\n", line(note, MAX_LINE));
        }
        if self.table.rows.is_empty() {
            return out + "\n  no row matches the filter";
        }
        out.push('\n');
        out += &self.rows().text();
        out.push('\n');
        if let (n @ 1.., rest) = self.left_out {
            let share = rest.and_then(|rest| self.share_of(rest));
            let share = share.map(|pct| format!(", {}", percent(pct))).unwrap_or_default();
            out += &format!("… and {n} more{share} (-k {})", self.table.rows.len() + n);
        }
        out.trim_end().to_owned()
    }

    fn headline(&self) -> String {
        let device = self.table.device.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
        line(&format!("{}{device}", self.table.source), MAX_LINE)
    }

    fn rows(&self) -> Table {
        let has_classes = self.table.kind == Kind::Kernels;
        let measure = self.table.kind.measure();
        let (title, unit) = match measure {
            Measure::Time => (self.table.kind.time_noun(), Unit::Millis),
            Measure::Bytes => ("bytes", Unit::Scaled("B")),
            Measure::Flops => ("FLOPs", Unit::Scaled("FLOP")),
        };
        // Kernel time of ranges, if the source has it.
        let has_launched = self.table.rows.iter().any(|row| row.counters.get(KERNEL_TIME).is_some());
        let mut table = Table::new([
            Column::number("share").unit(Unit::TinyShare),
            Column::number(title).unit(unit),
            Column::number("calls").unit(Unit::Count),
            Column::number("mean").unit(Unit::Millis),
        ]);
        table.columns.extend(has_classes.then(|| Column::text("class")));
        table.columns.extend(has_launched.then(|| Column::number(KERNEL_TIME).unit(Unit::Millis)));
        table.columns.push(Column::text(self.table.nouns().0));
        for row in &self.table.rows {
            let amount = self.table.amount(row);
            let amount = if measure == Measure::Time { amount.map(|ns| ns / 1e6) } else { amount };
            let mean = row.mean_ns.map(|ns| ns / 1e6);
            let mut cells = cells![self.share(row).map(|pct| pct / 100.0), amount, row.calls, mean];
            let class = || classify::verdict(row).ok().map(|verdict| verdict.class.word());
            cells.extend(has_classes.then(|| Cell::from(class())));
            let launched = || row.counters.mean(KERNEL_TIME).map(|ns| ns / 1e6);
            cells.extend(has_launched.then(|| Cell::from(launched())));
            cells.push(named(row).into());
            table.push(cells);
        }
        table
    }

    /// As JSON.
    pub fn json(&self, file: &str) -> Value {
        let rows: Vec<Value> = self.table.rows.iter().map(|row| self.row_json(row)).collect();
        json!({
            "file": file,
            "source": self.table.source,
            "kind": self.table.kind,
            "device": self.table.device,
            "busy": self.table.busy.map(|busy| json!({
                "busy_ns": busy.busy_ns, "span_ns": busy.span_ns, "share": busy.share(),
            })),
            "copying": self.table.copying.map(|copying| json!({
                "busy_ns": copying.busy_ns, "span_ns": copying.span_ns, "share": copying.share(),
            })),
            "graphs": self.table.has_graphs(),
            "measure": match self.table.kind.measure() {
                Measure::Time => "ns",
                Measure::Bytes => "byte",
                Measure::Flops => "flop",
            },
            "total": self.total,
            "hints": self.hints,
            "notes": self.table.notes,
            "rows": rows,
            "left_out": self.left_out.0,
        })
    }

    fn row_json(&self, row: &KernelRow) -> Value {
        let mut object = match serde_json::to_value(row) {
            Ok(Value::Object(object)) => object,
            _ => Map::new(),
        };
        // Recordings omit unknown values; here every key is present.
        for key in OPTIONAL_KEYS {
            object.entry(key).or_insert(Value::Null);
        }
        let verdict = classify::verdict(row);
        object.insert("share_pct".to_owned(), json!(self.share(row)));
        object.insert("class".to_owned(), json!(verdict.as_ref().ok().map(|verdict| verdict.class)));
        let rule = match &verdict {
            Ok(verdict) => &verdict.rule,
            Err(why) => why,
        };
        if self.table.kind == Kind::Kernels {
            object.insert("rule".to_owned(), json!(rule));
            object.insert("known".to_owned(), json!(row.known()));
            object.insert("achieved".to_owned(), json!(classify::achieved(row)));
        }
        let counters: Map<String, Value> = row
            .counters
            .iter()
            .map(|(name, unit, counter)| {
                let value = json!({
                    "unit": unit, "n": counter.n, "mean": counter.mean(), "min": counter.min, "max": counter.max,
                });
                (name.to_owned(), value)
            })
            .collect();
        object.insert("counters".to_owned(), Value::Object(counters));
        Value::Object(object)
    }
}

/// Keys of a row that not every source has a value for.
const OPTIONAL_KEYS: [&str; 15] = [
    "total_ns",
    "mean_ns",
    "median_ns",
    "min_ns",
    "max_ns",
    "stddev_ns",
    "grid",
    "block",
    "registers",
    "shared_bytes",
    "operator",
    "range",
    "graph_calls",
    "bytes",
    "flops",
];

/// The counter with the time of the kernels that were launched in a range.
pub const KERNEL_TIME: &str = "kernel time";

pub fn amount_text(measure: Measure, amount: f64) -> String {
    match measure {
        Measure::Time => millis(amount / 1e6),
        Measure::Bytes => scaled(amount, "B"),
        Measure::Flops => scaled(amount, "FLOP"),
    }
}

/// Longer names are truncated.
const MAX_NAME: usize = 100;

fn named(row: &KernelRow) -> String {
    let name = line(&row.name, MAX_NAME);
    match &row.range {
        Some(range) => format!("{name} in {}", line(range, MAX_NAME)),
        None => name,
    }
}

/// Findings about a table, the most important first.
fn hints(table: &KernelTable) -> Vec<String> {
    let mut hints = vec![summary(table)];
    if table.kind == Kind::Kernels {
        hints.extend(table.busy.and_then(busy));
        hints.extend(bounds(table));
        hints.extend(copies(table).or_else(|| short_kernels(table)));
        hints.extend(first_verdict(table));
        hints.extend(first_advice(table));
    }
    if table.nested && table.kind != Kind::Allocations {
        hints.push(
            "Ranges are nested: the time of a range is also part of all ranges that enclose it.".to_owned(),
        );
    }
    hints
}

fn summary(table: &KernelTable) -> String {
    let n = table.rows.len();
    let (one, several) = table.nouns();
    let calls = table.calls();
    let noun = if n == 1 { one } else { several };
    let mut text = format!(
        "{} {noun} in {} {}",
        grouped(n as i64),
        grouped(i64::try_from(calls).unwrap_or(i64::MAX)),
        if calls == 1 { table.kind.count_nouns().0 } else { table.kind.count_nouns().1 }
    );
    if let Some(total) = table.total() {
        text += &format!(", {}", amount_text(table.kind.measure(), total));
        let first: Option<f64> = table.rows.iter().take(3).map(|row| table.amount(row)).sum();
        if let Some(first) = first.filter(|_| n > 4 && total > 0.0) {
            text += &format!("; the first three take {} of it", percent(first / total * 100.0));
        }
    }
    text + "."
}

fn busy(busy: Busy) -> Option<String> {
    Some(format!(
        "GPU busy {} of {}: kernels run for {} from the start of the first to the end of the last.",
        percent(busy.share()? * 100.0),
        millis(busy.span_ns / 1e6),
        millis(busy.busy_ns / 1e6)
    ))
}

/// Copies may limit the speed if they take most of the time.
fn copies(table: &KernelTable) -> Option<String> {
    let copying = table.copying?;
    let share = copying.share().filter(|share| *share >= MANY_COPIES)?;
    let kernels_ns = table.busy.map_or(0.0, |busy| busy.busy_ns);
    (copying.busy_ns > kernels_ns).then(|| {
        format!(
            "Copies can be the bottleneck: they run for {} of {}, kernels for {}.",
            percent(share * 100.0),
            millis(copying.span_ns / 1e6),
            millis(kernels_ns / 1e6)
        )
    })
}

/// The share of the time of each class.
fn bounds(table: &KernelTable) -> Option<String> {
    let total = table.total().filter(|total| *total > 0.0)?;
    const CLASSES: [Class; 5] =
        [Class::Memory, Class::Compute, Class::Balanced, Class::Latency, Class::Launch];
    let mut by_class: Vec<(Class, f64)> = CLASSES.into_iter().map(|class| (class, 0.0)).collect();
    for row in &table.rows {
        if let (Ok(verdict), Some(ns)) = (classify::verdict(row), row.total_ns) {
            by_class.iter_mut().filter(|(class, _)| *class == verdict.class).for_each(|(_, sum)| *sum += ns);
        }
    }
    by_class.retain(|(_, ns)| *ns > 0.0);
    by_class.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (first, first_ns) = *by_class.first()?;
    let parts: Vec<String> = by_class
        .iter()
        .map(|(class, ns)| format!("{} {}", class_name(*class), percent(ns / total * 100.0)))
        .collect();
    let advice = if first_ns >= total / 2.0 {
        format!(" {}", remedy(first, table.has_graphs(), table.platform))
    } else {
        String::new()
    };
    Some(format!("Of the time: {}.{advice}", parts.join(", ")))
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Memory => "memory-bound",
        Class::Compute => "compute-bound",
        Class::Balanced => "balanced",
        Class::Latency => "latency-bound",
        Class::Launch => "launch-bound",
    }
}

fn remedy(class: Class, has_graphs: Option<bool>, platform: Platform) -> String {
    let graphs = platform.graphs();
    let text = match class {
        Class::Memory => {
            "Moving fewer bytes helps: smaller data types, fused kernels, a larger batch per read of the weights."
        }
        Class::Compute => "Lower precision or fewer operations help; faster memory does not.",
        Class::Balanced => "Memory and SMs are both busy: only less work helps.",
        Class::Latency => "The GPU waits: more work per launch helps, or more warps per SM.",
        Class::Launch => match has_graphs {
            Some(true) => "The kernels are too short: fusing them helps.",
            Some(false) => return format!("The kernels are too short: fusing them or {graphs} help."),
            None => {
                return format!(
                    "The kernels are too short: fusing them helps, or {graphs} if the program has none."
                );
            }
        },
    };
    text.to_owned()
}

/// Kernels that take no longer than a launch, for tables without counters.
fn short_kernels(table: &KernelTable) -> Option<String> {
    if table.rows.iter().any(|row| classify::verdict(row).is_ok()) {
        return None;
    }
    let total = table.total().filter(|total| *total > 0.0)?;
    let is_kernel = |row: &&KernelRow| !Direction::is_name(&row.name) && row.name != MEMSET;
    let is_short = |row: &&KernelRow| row.mean_ns.is_some_and(|ns| ns < SHORT_NS);
    let short = || table.rows.iter().filter(is_kernel).filter(is_short);
    let calls = short().fold(0u64, |sum, row| sum.saturating_add(row.calls));
    let ns: f64 = short().filter_map(|row| row.total_ns).sum();
    let share = calls as f64 / table.calls().max(1) as f64;
    let of_time = ns / total;
    let graphs = table.platform.graphs();
    let remedy = match table.has_graphs() {
        Some(true) => format!("fusing them may help. The program already launches {graphs}."),
        Some(false) => format!("fusing them or {graphs} may help."),
        None => {
            format!("fusing them may help. This file does not show whether the program launches {graphs}.")
        }
    };
    (of_time >= MIN_SHORT_TIME).then(|| {
        format!(
            "{} of the time is in kernels shorter than {} µs ({} of the launches): {remedy}",
            percent(of_time * 100.0),
            SHORT_NS / 1e3,
            percent(share * 100.0),
        )
    })
}

/// What bounds the first row, or why that is unknown.
fn first_verdict(table: &KernelTable) -> Option<String> {
    let first = table.rows.first()?;
    match classify::verdict(first) {
        Ok(verdict) => Some(format!("{} is {}: {}.", first.family, class_name(verdict.class), verdict.rule)),
        // Names of ncu metrics contain two underscores.
        Err(_) if !first.counters.iter().any(|(name, ..)| name.contains("__")) => {
            let counters = table.platform.counters();
            Some(format!("This report does not show what bounds a kernel: that requires {counters}."))
        }
        Err(reason) => Some(format!("Unknown bound of {}: {reason}.", first.family)),
    }
}

/// The advice of ncu on the first row with the largest estimated speedup.
fn first_advice(table: &KernelTable) -> Option<String> {
    let first = table.rows.first()?;
    let promising = first.advice.iter().filter(|advice| advice.kind == "OPT" && advice.speedup_pct.is_some());
    let best =
        promising.max_by(|a, b| a.speedup_pct.unwrap_or(0.0).total_cmp(&b.speedup_pct.unwrap_or(0.0)))?;
    let sentence = best.text.split(". ").next().unwrap_or(&best.text).trim_end_matches('.');
    Some(format!(
        "ncu on {}: {sentence} (up to {} {}).",
        first.family,
        percent(best.speedup_pct?),
        best.speedup_of.as_deref().unwrap_or("faster")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ncu::{read_details, read_raw};

    const RAW: &[u8] = include_bytes!("../../../tests/fixtures/h200_ncu_raw.csv");
    const DETAILS: &[u8] = include_bytes!("../../../tests/fixtures/h200_ncu_details.csv");

    #[test]
    fn a_table_with_its_hints() {
        let table = read_raw("raw", RAW).unwrap();
        let shown = TableView::new(&table, &RowQuery { rows: Some(3), ..RowQuery::default() });
        let text = shown.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ncu, counters of launches on NVIDIA H200");
        assert!(lines[1].contains("16 kernels in 60 launches"), "{text}");
        assert!(text.contains("Of the time:") && text.contains("launch-bound"), "{text}");
        assert!(text.contains("… and 13 more"), "{text}");
        assert!(text.contains("rmsnorm_bf16") && text.contains("latency"), "{text}");
        let title = lines.iter().position(|line| line.contains("share")).unwrap();
        let at = |line: &str, word: &str| line.find(word).map(|at| line[..at].chars().count());
        assert_eq!(at(lines[title], "kernel"), at(lines[title + 1], "rmsnorm_bf16"), "{text}");
        let nothing =
            TableView::new(&table, &RowQuery { filter: Some("zzz".to_owned()), ..RowQuery::default() });
        assert!(nothing.text().contains("no row matches the filter"));
    }

    #[test]
    fn the_advice_of_ncu_is_shown() {
        let table = read_details("details", DETAILS).unwrap();
        let text = TableView::new(&table, &RowQuery::default()).text();
        assert!(text.contains("ncu on "), "{text}");
    }

    #[test]
    fn graphs_are_not_recommended_to_a_program_that_has_them() {
        let row =
            KernelRow { calls: 9, total_ns: Some(900.0), mean_ns: Some(100.0), ..KernelRow::named("k") };
        let mut table = KernelTable { rows: vec![row], ..KernelTable::new("test", Kind::Kernels) };
        let text = |table: &KernelTable| TableView::new(table, &RowQuery::default()).text();
        assert!(text(&table).contains("does not show whether"), "{}", text(&table));
        table.graphs = Some(false);
        assert!(text(&table).contains("fusing them or CUDA graphs may help"), "{}", text(&table));
        table.graphs = Some(true);
        assert!(text(&table).contains("already launches CUDA graphs"), "{}", text(&table));
        table.graphs = None;
        table.rows[0].graph_calls = Some(9);
        assert!(!text(&table).contains("graphs may help"), "{}", text(&table));
    }

    /// 900 of 1,000 launches are short and take a hundredth of the time.
    #[test]
    fn short_kernels_count_by_their_time_and_not_by_their_launches() {
        let row = |name: &str, calls: u64, mean_ns: f64| KernelRow {
            calls,
            total_ns: Some(calls as f64 * mean_ns),
            mean_ns: Some(mean_ns),
            ..KernelRow::named(name)
        };
        let text = |long_ns: f64| {
            let rows = vec![row("long", 100, long_ns), row("short", 900, 1_000.0)];
            let table = KernelTable { rows, ..KernelTable::new("test", Kind::Kernels) };
            TableView::new(&table, &RowQuery::default()).text()
        };
        let hint = "of the time is in kernels shorter than";
        assert!(!text(1e6).contains(hint), "{}", text(1e6));
        let mostly = text(4_000.0 + SHORT_NS);
        assert!(mostly.contains(hint) && mostly.contains("(90 % of the launches)"), "{mostly}");
    }

    #[test]
    fn the_busy_share_is_stated() {
        let mut table = read_raw("raw", RAW).unwrap();
        assert!(!TableView::new(&table, &RowQuery::default()).text().contains("GPU busy"));
        table.busy = Some(Busy { busy_ns: 2e6, span_ns: 8e6 });
        let shown = TableView::new(&table, &RowQuery::default());
        assert!(
            shown.text().contains("GPU busy 25 % of 8.00 ms: kernels run for 2.00 ms"),
            "{}",
            shown.text()
        );
        assert_eq!(shown.json("raw.csv")["busy"]["share"], 0.25);
    }

    #[test]
    fn a_busy_copy_engine_can_be_the_limit() {
        let row =
            KernelRow { calls: 9, total_ns: Some(900.0), mean_ns: Some(100.0), ..KernelRow::named("k") };
        let mut table = KernelTable {
            rows: vec![row],
            busy: Some(Busy { busy_ns: 0.9e6, span_ns: 39e6 }),
            copying: Some(Busy { busy_ns: 38.8e6, span_ns: 40e6 }),
            ..KernelTable::new("test", Kind::Kernels)
        };
        let text = |table: &KernelTable| TableView::new(table, &RowQuery::default()).text();
        let limits = "Copies can be the bottleneck: they run for 97 % of 40.0 ms, kernels for 0.900 ms.";
        assert!(text(&table).contains(limits), "{}", text(&table));
        assert!(!text(&table).contains("graphs"), "{}", text(&table));
        table.copying = Some(Busy { busy_ns: 4e6, span_ns: 40e6 });
        assert!(!text(&table).contains("Copies can"), "{}", text(&table));
    }

    #[test]
    fn json_has_shares_rules_and_counters() {
        let table = read_raw("raw", RAW).unwrap();
        let json = TableView::new(&table, &RowQuery::default()).json("raw.csv");
        assert_eq!(json["rows"].as_array().unwrap().len(), 16);
        let shares: f64 =
            json["rows"].as_array().unwrap().iter().map(|row| row["share_pct"].as_f64().unwrap()).sum();
        assert!((shares - 100.0).abs() < 1e-6);
        let row = &json["rows"][0];
        assert_eq!(row["class"], "latency");
        assert!(row["rule"].as_str().unwrap().contains("DRAM"));
        assert!(row["counters"]["gpu__time_duration.sum"]["mean"].as_f64().unwrap() > 1000.0);
    }
}
