//! The page `details`: a row for each metric of each launch, and rows of rules among them.

use std::{collections::HashMap, io::BufRead, sync::Arc};

use super::{LaunchColumns, REMEDY, hear, is_noise};
use crate::{
    event::kernels::{
        Advice, KernelRow, KernelTable, Kind,
        counters::{Counter, Counters, DURATION, Known, is_rate},
        names,
    },
    kernels::{
        cells::{Row, Rows},
        error::KernelsError,
        quantity::{base, number},
        tally::{Durations, OTHERS, Place, Places},
    },
};

/// Where things are.
struct Header {
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
    fn of(titles: &[String]) -> Option<Header> {
        let at = |title: &str| titles.iter().position(|one| one == title);
        Some(Header {
            launch: LaunchColumns::of(titles),
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

/// A metric's name by itself tells what it is; a label only together with its section.
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
    values: Vec<(Arc<str>, Arc<str>, f64)>,
}

struct Launches {
    row: KernelRow,
    durations: Durations,
    counters: Counters,
}

/// Names and units, each once.
#[derive(Default)]
struct Interned(HashMap<String, Arc<str>>);

impl Interned {
    fn get(&mut self, text: String) -> Arc<str> {
        match self.0.get(&text) {
            Some(known) => Arc::clone(known),
            None => {
                let made: Arc<str> = Arc::from(text.as_str());
                self.0.insert(text, Arc::clone(&made));
                made
            }
        }
    }
}

/// More metrics than any version of ncu has.
const MOST_METRICS: usize = 16_384;
/// A launch has some tens of rules.
const MOST_RULES: usize = 256;

/// Reads the page, one launch in memory at a time. Rows may lack the columns of rules.
pub fn read_details(file: &str, input: impl BufRead) -> Result<KernelTable, KernelsError> {
    let mut rows = Rows::new(input);
    let (header, mut said) = header(file, &mut rows)?;
    let mut places: Places<Box<[u8]>> = Places::default();
    let mut all: Vec<Launches> = Vec::new();
    let mut current: Option<Current> = None;
    let mut interned = Interned::default();
    let (mut id, mut unread) = (Vec::new(), 0u64);
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        if row.is_empty() || is_noise(row) {
            hear(row, &mut said);
            continue;
        }
        if header.launch.name(row).is_none() {
            unread += 1;
            continue;
        }
        id.clear();
        for column in [header.process, header.id].into_iter().flatten() {
            id.extend_from_slice(row.get(column).unwrap_or_default());
            id.push(0);
        }
        if current.as_ref().is_none_or(|current| current.id != id) {
            if let Some(done) = current.take() {
                add(done, &mut places, &mut all);
            }
            current = Some(begun(&header, row, &id));
        }
        if let Some(current) = &mut current {
            take(&header, row, current, &mut interned);
        }
    }
    if let Some(done) = current {
        add(done, &mut places, &mut all);
    }
    let mut table = KernelTable::new("ncu, details of launches", Kind::Kernels);
    table.rows = all.into_iter().map(Launches::done).collect();
    table.sort(Default::default());
    table.notes.extend(places.remark());
    table.notes.append(&mut said);
    if unread > 0 {
        table.notes.push(format!("{unread} rows could not be read"));
    }
    if table.rows.is_empty() {
        let what = "the header of ncu's page of details".to_owned();
        return Err(KernelsError::NoRows { file: file.to_owned(), what, remedy: REMEDY });
    }
    Ok(table)
}

fn header(file: &str, rows: &mut Rows<impl BufRead>) -> Result<(Header, Vec<String>), KernelsError> {
    let mut said = Vec::new();
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        if row.iter().any(|cell| cell == b"Metric Name")
            && let Some(header) = Header::of(&row.texts())
        {
            return Ok((header, said));
        }
        hear(row, &mut said);
    }
    let seen = "it has no header of ncu's page of details".to_owned();
    Err(KernelsError::Unknown { file: file.to_owned(), seen })
}

fn begun(header: &Header, row: Row, id: &[u8]) -> Current {
    let name = String::from_utf8_lossy(header.launch.name(row).unwrap_or_default()).into_owned();
    let mut current = Current {
        id: id.to_vec(),
        row: KernelRow {
            grid: header.launch.extent(row, header.launch.grid),
            block: header.launch.extent(row, header.launch.block),
            range: header.launch.range(row),
            name,
            ..KernelRow::default()
        },
        ..Current::default()
    };
    header.launch.key(row, &mut current.key);
    current
}

fn take(header: &Header, row: Row, current: &mut Current, interned: &mut Interned) {
    let text = |column: Option<usize>| column.and_then(|at| row.text(at)).unwrap_or_default();
    let metric = text(Some(header.metric));
    if !metric.is_empty() {
        let Some(value) = row.get(header.value).and_then(number) else { return };
        if interned.0.len() >= MOST_METRICS || current.values.len() >= MOST_METRICS {
            return;
        }
        let scale = base(&text(header.unit));
        let name = interned.get(full_name(&text(header.section), &metric));
        let unit = interned.get(scale.unit);
        current.values.push((name, unit, value * scale.factor));
        return;
    }
    let rule = text(header.rule);
    if !rule.is_empty() && current.row.advice.len() < MOST_RULES {
        current.row.advice.push(Advice {
            rule: rule.into_owned(),
            kind: text(header.rule_kind).into_owned(),
            text: text(header.rule_text).into_owned(),
            speedup_pct: header.speedup.and_then(|at| row.get(at)).and_then(number),
            speedup_of: Some(text(header.speedup_of).into_owned()).filter(|of| !of.is_empty()),
        });
    }
}

/// Counts a launch that was read to its end.
fn add(done: Current, places: &mut Places<Box<[u8]>>, all: &mut Vec<Launches>) {
    let at = match places.known(done.key.as_slice()) {
        Some(at) => at,
        None => {
            let place = places.find(done.key.as_slice().into(), done.row.name.as_bytes());
            if place.at() == all.len() {
                let named = match place {
                    Place::Others { .. } => KernelRow::named(OTHERS),
                    _ => KernelRow::named(names::demangled(&done.row.name).into_owned()),
                };
                let row = match place {
                    Place::Exact { .. } => KernelRow {
                        name: named.name,
                        family: named.family,
                        advice: Vec::new(),
                        ..done.row.clone()
                    },
                    _ => named,
                };
                all.push(Launches { row, durations: Durations::default(), counters: Counters::default() });
            }
            place.at()
        }
    };
    let launches = &mut all[at];
    launches.row.calls += 1;
    let ns = done.values.iter().find(|(name, ..)| DURATION.contains(&&**name)).map(|(_, _, ns)| *ns);
    if let Some(ns) = ns {
        launches.durations.add(ns);
    }
    let by_time = ns.filter(|ns| *ns > 0.0).unwrap_or(1.0);
    for (name, unit, value) in &done.values {
        let mut counter = Counter::NONE;
        counter.add(*value, if is_rate(name, unit) { by_time } else { 1.0 });
        launches.counters.merge(name, unit, &counter);
    }
    for advice in done.row.advice {
        if !launches.row.advice.iter().any(|known| known.rule == advice.rule) {
            launches.row.advice.push(advice);
        }
    }
}

impl Launches {
    fn done(self) -> KernelRow {
        let Launches { mut row, durations, counters } = self;
        durations.fill(&mut row);
        let known = Known::of(&counters);
        row.registers = known.registers.map(|n| n as u32);
        row.shared_bytes = known.shared_bytes.map(|n| n as u64);
        row.counters = counters;
        row
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::analysis::classify::Class;

    const H200: &[u8] = include_bytes!("../../../tests/fixtures/h200_ncu_details.csv");
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
        assert_eq!(copy.verdict().unwrap().class, Class::Launch);
        let stall = copy.advice.iter().find(|advice| advice.rule == "CPIStall").unwrap();
        assert!(stall.speedup_pct.is_some() && stall.text.contains("scoreboard"), "{stall:?}");
        assert_eq!(stall.speedup_of.as_deref(), Some("global"));
    }

    #[test]
    fn both_pages_agree_where_they_tell_the_same() {
        let raw =
            super::super::read_raw("raw", &include_bytes!("../../../tests/fixtures/h200_ncu_raw.csv")[..])
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

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_details("any", bytes.as_slice());
        }

        #[test]
        fn any_rows_below_a_header_are_read_or_refused(rows in "[0-9k,.\"\n()=%na/-]{0,200}") {
            let _ = read_details("any", format!("{HEADER}{rows}").as_bytes());
        }
    }
}
