//! The page `details`: a row per metric of a launch, with rows of rules in between.

use std::{collections::HashSet, io::BufRead, sync::Arc};

use super::{LaunchColumns, Launches, check_percent, find_header, finish, is_message, keep_message};
use crate::{
    cells::CsvRow,
    dialect,
    error::KernelsError,
    quantity::{Decimal, ThreeDigits, base},
    tally::{Scope, Tally},
};
use llmprof_event::kernels::{
    Advice, KernelRow, KernelTable, Kind,
    counters::{Counter, Counters, DURATION, is_rate},
};

/// The columns of the page.
struct Header {
    /// The number of columns.
    len: usize,
    launch: LaunchColumns,
    id: Option<usize>,
    process: Option<usize>,
    section: Option<usize>,
    metric: usize,
    unit: Option<usize>,
    value: usize,
    rule: Option<usize>,
    rule_kind: Option<usize>,
    rule_text: Option<usize>,
    speedup_of: Option<usize>,
    speedup: Option<usize>,
}

impl Header {
    fn from_titles(titles: &[String]) -> Option<Header> {
        let at = |title: &str| titles.iter().position(|one| one == title);
        Some(Header {
            len: titles.len(),
            launch: LaunchColumns::from_titles(titles),
            id: at("ID"),
            process: at("Process ID"),
            section: at("Section Name"),
            metric: at("Metric Name")?,
            unit: at("Metric Unit"),
            value: at("Metric Value")?,
            rule: at("Rule Name"),
            rule_kind: at("Rule Type"),
            rule_text: at("Rule Description"),
            speedup_of: at("Estimated Speedup Type"),
            speedup: at("Estimated Speedup"),
        })
    }
}

/// A metric's name is unique; a label is unique only within its section.
fn full_name(section: &str, metric: &str) -> String {
    if metric.contains("__") || section.is_empty() {
        metric.to_owned()
    } else {
        format!("{section}: {metric}")
    }
}

/// The launch whose rows are being read.
#[derive(Default)]
struct Current {
    id: Vec<u8>,
    key: Vec<u8>,
    row: KernelRow,
    advice: Vec<Advice>,
    values: Vec<(Arc<str>, Arc<str>, f64)>,
}

/// Names and units, each once.
#[derive(Default)]
struct Interned(HashSet<Arc<str>>);

impl Interned {
    fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = Arc::from(text);
        self.0.insert(Arc::clone(&text));
        text
    }
}

/// More metrics than any version of ncu has.
const MAX_METRICS: usize = 16_384;
/// A launch has a few tens of rules.
const MAX_RULES: usize = 256;

/// Reads the page, one launch in memory at a time. Rows may lack the columns of rules.
pub fn read_details(file: &str, input: impl BufRead) -> Result<KernelTable, KernelsError> {
    let is_header = |row: CsvRow| {
        row.iter().any(|cell| cell == b"Metric Name").then(|| Header::from_titles(&row.texts()))?
    };
    let values =
        |row: CsvRow| is_header(row).map(|header| [header.value].into_iter().chain(header.speedup).collect());
    let (mut rows, decimal) =
        dialect::rows(input, ThreeDigits::Thousands, values).map_err(KernelsError::read(file))?;
    let (header, mut messages) = find_header(file, &mut rows, is_header)?;
    let mut tally = Tally::default();
    let mut current: Option<Current> = None;
    let mut interned = Interned::default();
    let (mut id, mut unread) = (Vec::new(), 0u64);
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        if row.is_empty() || is_message(row) {
            keep_message(row, &mut messages);
            continue;
        }
        if header.launch.name(row).is_none() || row.len() > header.len {
            unread += 1;
            continue;
        }
        id.clear();
        for column in [header.process, header.id].into_iter().flatten() {
            id.extend_from_slice(row.get(column).unwrap_or_default());
            id.push(0);
        }
        if let Some(done) = current.take_if(|current| current.id != id) {
            add(done, &mut tally);
        }
        let current = current.get_or_insert_with(|| {
            let mut key = Vec::new();
            header.launch.key(row, &mut key);
            Current { id: id.clone(), key, row: header.launch.launch(row), ..Current::default() }
        });
        take(file, (&header, row, decimal), current, &mut interned)?;
    }
    if let Some(done) = current {
        add(done, &mut tally);
    }
    let mut table = KernelTable::new("ncu, details of launches", Kind::Kernels);
    table.notes.extend(tally.note());
    table.rows =
        tally.into_rows().into_iter().map(|launches| launches.into_row(|counters| counters)).collect();
    finish(file, "details", table, messages, unread)
}

fn take(
    file: &str,
    (header, row, decimal): (&Header, CsvRow, Decimal),
    current: &mut Current,
    interned: &mut Interned,
) -> Result<(), KernelsError> {
    let text = |column: Option<usize>| column.and_then(|at| row.text(at)).unwrap_or_default();
    let number = |column: usize| row.get(column).and_then(|cell| decimal.number(cell));
    let metric = text(Some(header.metric));
    if !metric.is_empty() {
        let Some(value) = number(header.value) else { return Ok(()) };
        if interned.0.len() >= MAX_METRICS || current.values.len() >= MAX_METRICS {
            return Ok(());
        }
        let scale = base(&text(header.unit));
        let name = interned.get(&full_name(&text(header.section), &metric));
        check_percent(file, &name, &scale.unit, value)?;
        let unit = interned.get(&scale.unit);
        current.values.push((name, unit, value * scale.factor));
        return Ok(());
    }
    let rule = text(header.rule);
    if !rule.is_empty() && current.advice.len() < MAX_RULES {
        current.advice.push(Advice {
            rule: rule.into_owned(),
            kind: text(header.rule_kind).into_owned(),
            text: text(header.rule_text).into_owned(),
            speedup_pct: header.speedup.and_then(number),
            speedup_of: Some(text(header.speedup_of).into_owned()).filter(|of| !of.is_empty()),
        });
    }
    Ok(())
}

/// Counts a launch after all of its rows.
fn add(done: Current, tally: &mut Tally<Vec<u8>, Launches<Counters>>) {
    let name = done.row.name.clone();
    let new = |scope: Scope| Launches::new(scope.limit(done.row), Counters::default());
    let launches = tally.row(done.key.as_slice(), name.as_bytes(), new);
    let ns = done.values.iter().find(|(name, ..)| DURATION.contains(&&**name)).map(|(_, _, ns)| *ns);
    let weight = launches.count(ns);
    for (name, unit, value) in &done.values {
        let mut counter = Counter::NONE;
        counter.add(*value, if is_rate(name, unit) { weight } else { 1.0 });
        launches.counters.merge(name, unit, &counter);
    }
    for advice in done.advice {
        if !launches.row.advice.iter().any(|known| known.rule == advice.rule) {
            launches.row.advice.push(advice);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use llmprof_analysis::classify::{self, Class};

    const H200: &[u8] = include_bytes!("../../../../tests/fixtures/h200_ncu_details.csv");
    const HEADER: &str = "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\
                          \"Metric Value\",\"Rule Name\",\"Rule Type\",\"Rule Description\"\n";

    #[test]
    fn twelve_launches_of_a_real_decode() {
        let table = read_details("h200.csv", H200).unwrap();
        assert_eq!(table.calls(), 12);
        let jet =
            table.rows.iter().find(|row| row.name == "nvjet_sm90_tst_96x64_64x10_4x2_h_bz_TNN").unwrap();
        let known = jet.known();
        assert_eq!((jet.grid, jet.block), (Some([8, 13, 1]), Some([384, 1, 1])));
        assert!(
            known.dram_pct.is_some() && known.sm_pct.is_some() && known.memory_pct.is_some(),
            "{known:?}"
        );
        assert!(known.dram_bytes_per_s.unwrap() > 1e11, "{known:?}");
        assert!(jet.registers.unwrap() > 16 && jet.shared_bytes.unwrap() > 100_000, "{jet:?}");
        let copy = table.rows.iter().find(|row| row.name == "copy2d_bf16").unwrap();
        assert_eq!(classify::verdict(copy).unwrap().class, Class::Launch);
        let stall = copy.advice.iter().find(|advice| advice.rule == "CPIStall").unwrap();
        assert!(stall.speedup_pct.is_some() && stall.text.contains("scoreboard"), "{stall:?}");
        assert_eq!(stall.speedup_of.as_deref(), Some("global"));
    }

    #[test]
    fn both_pages_agree_about_the_same_kernel() {
        let raw =
            super::super::read_raw("raw", &include_bytes!("../../../../tests/fixtures/h200_ncu_raw.csv")[..])
                .unwrap();
        let details = read_details("details", H200).unwrap();
        let of = |table: &KernelTable| {
            let row = table.rows.iter().find(|row| row.name == "rmsnorm_bf16").unwrap();
            (row.grid, row.block, row.registers, row.shared_bytes, row.mean_ns.unwrap())
        };
        let (a, b) = (of(&raw), of(&details));
        assert_eq!((a.0, a.1, a.2, a.3), (b.0, b.1, b.2, b.3));
        assert!((a.4 / b.4 - 1.0).abs() < 0.1, "two profiles of one kernel: {a:?} {b:?}");
    }

    #[test]
    fn metrics_of_the_command_line_keep_their_names() {
        let text = format!(
            "==PROF== Connected\n{HEADER}\"0\",\"k\",\"(1,1,1)\",\"(1,1,1)\",\"Command line profiler metrics\",\"gpu__time_duration.sum\",\"us\",\"3.00\",\n\
             \"0\",\"k\",\"(1,1,1)\",\"(1,1,1)\",\"Command line profiler metrics\",\"x__y.pct\",\"%\",\"n/a\",\n"
        );
        let row = read_details("x", text.as_bytes()).unwrap().rows.remove(0);
        assert_eq!((row.total_ns, row.counters.len()), (Some(3000.0), 1));
        assert_eq!(row.counters.mean("gpu__time_duration.sum"), Some(3000.0));
    }

    #[test]
    fn a_decimal_comma_is_detected() {
        let text = |value: &str| {
            format!(
                "{HEADER}\"0\",\"k\",\"(1,1,1)\",\"(1,1,1)\",\"GPU Speed Of Light Throughput\",\"Duration\",\"us\",\"1.003,25\",\n\
                 \"0\",\"k\",\"(1,1,1)\",\"(1,1,1)\",\"GPU Speed Of Light Throughput\",\"DRAM Throughput\",\"%\",\"{value}\",\n"
            )
        };
        let row = read_details("x", text("65,77").as_bytes()).unwrap().rows.remove(0);
        assert_eq!((row.total_ns, row.known().dram_pct), (Some(1_003_250.0), Some(65.77)));
        let e = read_details("x", text("6.577").as_bytes()).unwrap_err().to_string();
        assert!(e.contains("GPU Speed Of Light Throughput: DRAM Throughput at 6577 %"), "{e}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_details("any", bytes.as_slice());
        }

        #[test]
        fn any_rows_below_a_header_are_read_or_rejected(rows in "[0-9k,.\"\n()=%na/-]{0,200}") {
            let _ = read_details("any", format!("{HEADER}{rows}").as_bytes());
        }
    }
}
