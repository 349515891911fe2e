//! The page `raw`: a row of titles, a row of units, then a row for each launch.

use std::{io::BufRead, sync::Arc};

use super::{LaunchColumns, REMEDY, hear, is_noise};
use crate::{
    event::kernels::{
        KernelRow, KernelTable, Kind,
        counters::{Counter, DURATION, Known, is_rate},
        names,
    },
    kernels::{
        cells::{Row, Rows},
        error::KernelsError,
        quantity::{base, number},
        tally::{Durations, OTHERS, Place, Places},
    },
};

/// A column with a number for each launch.
struct Metric {
    column: usize,
    name: Arc<str>,
    unit: Arc<str>,
    factor: f64,
    rate: bool,
}

/// The two rows at the top.
struct Header {
    launch: LaunchColumns,
    metrics: Vec<Metric>,
    duration: Option<(usize, f64)>,
    device: Option<usize>,
}

/// Columns that say which launch it is.
const IDENTITY: [&str; 11] = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
];

impl Header {
    fn of(titles: &[String], units: &[String]) -> Header {
        let unit = |at: usize| base(units.get(at).map_or("", String::as_str));
        // What a device is does not change from launch to launch.
        let counted = |title: &str| {
            title.contains("__") && !title.starts_with("device__attribute") && !IDENTITY.contains(&title)
        };
        let metrics = titles
            .iter()
            .enumerate()
            .filter(|(_, title)| counted(title))
            .map(|(column, title)| {
                let scale = unit(column);
                Metric {
                    column,
                    name: Arc::from(title.as_str()),
                    rate: is_rate(title, &scale.unit),
                    unit: Arc::from(scale.unit),
                    factor: scale.factor,
                }
            })
            .collect();
        let at = |title: &str| titles.iter().position(|one| one == title);
        Header {
            launch: LaunchColumns::of(titles),
            metrics,
            duration: DURATION.iter().find_map(|name| at(name)).map(|at| (at, unit(at).factor)),
            device: at("device__attribute_display_name"),
        }
    }
}

/// The launches of one kernel, grid and range.
struct Launches {
    row: KernelRow,
    durations: Durations,
    counters: Vec<Counter>,
}

/// Reads the page, one launch in memory at a time.
///
/// Values are kept under the names that ncu gives them, in base units by the row of units; what exceeds 100 % stays as it
/// is, and `n/a` and `nan` are not there.
pub fn read_raw(file: &str, input: impl BufRead) -> Result<KernelTable, KernelsError> {
    let mut rows = Rows::new(input);
    let mut table = KernelTable::new("ncu, counters of launches", Kind::Kernels);
    let (titles, mut said) = titles(file, &mut rows)?;
    let mut header: Option<Header> = None;
    let mut places: Places<Box<[u8]>> = Places::default();
    let mut all: Vec<Launches> = Vec::new();
    let (mut key, mut unread) = (Vec::new(), 0u64);
    let name_column = LaunchColumns::of(&titles);
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        if row.is_empty() || is_noise(row) {
            hear(row, &mut said);
            continue;
        }
        // Without a name it is the row of units, which comes once.
        let named = name_column.name(row);
        let header = match &mut header {
            Some(header) => header,
            None if named.is_none() => {
                header = Some(Header::of(&titles, &row.texts()));
                continue;
            }
            None => header.insert(Header::of(&titles, &[])),
        };
        let Some(name) = named else {
            unread += 1;
            continue;
        };
        if table.device.is_none() {
            table.device = header.device.and_then(|at| row.text(at)).map(|name| name.into_owned());
        }
        header.launch.key(row, &mut key);
        let at = match places.known(key.as_slice()) {
            Some(at) => at,
            None => {
                let place = places.find(key.as_slice().into(), name);
                if place.at() == all.len() {
                    all.push(begun(header, row, place, name));
                }
                place.at()
            }
        };
        count(header, row, &mut all[at]);
    }
    if let Some(header) = &header {
        table.rows = all.into_iter().map(|launches| launches.done(header)).collect();
    }
    table.sort(Default::default());
    table.notes.extend(places.remark());
    table.notes.append(&mut said);
    if unread > 0 {
        table.notes.push(format!("{unread} rows could not be read"));
    }
    if table.rows.is_empty() {
        let what = match table.notes.first() {
            Some(said) => format!("the header of ncu's raw page (ncu says: {said})"),
            None => "the header of ncu's raw page".to_owned(),
        };
        return Err(KernelsError::NoRows { file: file.to_owned(), what, remedy: REMEDY });
    }
    Ok(table)
}

/// The row of titles, and what was said before it.
fn titles(file: &str, rows: &mut Rows<impl BufRead>) -> Result<(Vec<String>, Vec<String>), KernelsError> {
    let mut said = Vec::new();
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        if !row.is_empty() && !is_noise(row) && row.iter().any(|cell| cell == b"Kernel Name") {
            return Ok((row.texts(), said));
        }
        hear(row, &mut said);
    }
    Err(match said.first() {
        Some(words) => KernelsError::NoRows {
            file: file.to_owned(),
            what: format!("what ncu says ({words})"),
            remedy: REMEDY,
        },
        None => KernelsError::Empty { file: file.to_owned(), remedy: REMEDY },
    })
}

fn begun(header: &Header, row: Row, place: Place, name: &[u8]) -> Launches {
    let name = String::from_utf8_lossy(name);
    let mut made = match place {
        Place::Others { .. } => KernelRow::named(OTHERS),
        _ => KernelRow::named(names::demangled(&name).into_owned()),
    };
    if let Place::Exact { .. } = place {
        made.grid = header.launch.extent(row, header.launch.grid);
        made.block = header.launch.extent(row, header.launch.block);
        made.range = header.launch.range(row);
    }
    Launches {
        row: made,
        durations: Durations::default(),
        counters: vec![Counter::NONE; header.metrics.len()],
    }
}

fn count(header: &Header, row: Row, launches: &mut Launches) {
    launches.row.calls += 1;
    let ns = header.duration.and_then(|(at, factor)| Some(number(row.get(at)?)? * factor));
    if let Some(ns) = ns {
        launches.durations.add(ns);
    }
    let by_time = ns.filter(|ns| *ns > 0.0).unwrap_or(1.0);
    for (metric, counter) in header.metrics.iter().zip(&mut launches.counters) {
        let Some(value) = row.get(metric.column).and_then(number) else { continue };
        counter.add(value * metric.factor, if metric.rate { by_time } else { 1.0 });
    }
}

impl Launches {
    fn done(self, header: &Header) -> KernelRow {
        let Launches { mut row, durations, counters } = self;
        durations.fill(&mut row);
        for (metric, counter) in header.metrics.iter().zip(&counters) {
            row.counters.merge(&metric.name, &metric.unit, counter);
        }
        let known = Known::of(&row.counters);
        row.registers = known.registers.map(|n| n as u32);
        row.shared_bytes = known.shared_bytes.map(|n| n as u64);
        row
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{analysis::classify::Class, event::kernels::Group};

    const H200: &[u8] = include_bytes!("../../../tests/fixtures/h200_ncu_raw.csv");
    const HEADER: &str = "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"gpu__time_duration.sum\",\"dram__bytes.sum\",\"x__y.pct\"\n";

    #[test]
    fn sixty_launches_of_a_real_decode() {
        let table = read_raw("h200.csv", H200).unwrap();
        assert_eq!((table.calls(), table.device.as_deref()), (60, Some("NVIDIA H200")));
        assert_eq!(table.rows.len(), 20);
        assert_eq!(table.grouped(Group::Name).rows.len(), 16);
        let copy = table.rows.iter().find(|row| row.name == "copy2d_bf16").unwrap();
        assert_eq!((copy.calls, copy.grid, copy.block), (8, Some([16, 1, 1]), Some([1024, 1, 1])));
        assert_eq!((copy.registers, copy.shared_bytes), (Some(16), Some(0)));
        // Some percents exceed 100, and are kept as they are.
        let hits = copy.counters.get("lts__t_sector_hit_rate.pct").unwrap();
        assert!(hits.max > 110.0, "{hits:?}");
        let slow = table.rows.iter().find(|row| row.name == "rmsnorm_bf16").unwrap();
        assert_eq!(slow.verdict().unwrap().class, Class::Latency);
        assert_eq!(copy.verdict().unwrap().class, Class::Launch);
        let jet =
            table.grouped(Group::Family).rows.into_iter().find(|row| row.name == "nvjet_sm90_tst").unwrap();
        let known = jet.known();
        assert!(known.flops.as_ref().unwrap().tensor.unwrap() > 1e8, "{known:?}");
        assert!(jet.achieved().flop_per_byte.unwrap() > 10.0, "{:?}", jet.achieved());
    }

    #[test]
    fn the_row_of_units_is_followed() {
        let scaled = format!(
            "{HEADER}\"\",\"\",\"\",\"\",\"us\",\"Mbyte\",\"%\"\n\
            \"0\",\"k\",\"(32, 1, 1)\",\"(4, 1, 1)\",\"2.50\",\"1,200.5\",\"104.2\"\n"
        );
        let row = read_raw("x", scaled.as_bytes()).unwrap().rows.remove(0);
        assert_eq!(
            (row.total_ns, row.counters.mean("dram__bytes.sum")),
            (Some(2500.0), Some(1_200_500_000.0))
        );
        let without = format!("{HEADER}\"0\",\"k\",\"(32, 1, 1)\",\"(4, 1, 1)\",\"2500\",\"n/a\",\"nan\"\n");
        let row = read_raw("x", without.as_bytes()).unwrap().rows.remove(0);
        assert_eq!((row.total_ns, row.counters.len()), (Some(2500.0), 1));
    }

    #[test]
    fn noise_before_and_within_is_passed_over() {
        let text = format!(
            "==PROF== Connected to process 537 (/x)\n==PROF== Profiling \"k\" - 0: 0%....100% - 13 passes\nhello, from the program\n\
             {HEADER}\"\",\"\",\"\",\"\",\"ns\",\"byte\",\"%\"\n\"0\",\"k\",\"(1,1,1)\",\"(1,1,1)\",\"10\",\"5\",\"1\"\n\
             ==WARNING== Backing up device memory\n\"1\",\"k\",\"(1,1,1)\",\"(1,1,1)\",\"30\",\"7\",\"3\"\n==PROF== Disconnected\n"
        );
        let table = read_raw("x", text.as_bytes()).unwrap();
        assert_eq!((table.rows[0].calls, table.rows[0].total_ns), (2, Some(40.0)));
        assert_eq!(table.rows[0].counters.mean("x__y.pct"), Some(2.5), "by time");
        assert_eq!(table.rows[0].counters.mean("dram__bytes.sum"), Some(6.0), "by launch");
        assert_eq!(table.notes, ["Backing up device memory"]);
    }

    #[test]
    fn what_ncu_refused_is_said() {
        let text = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n==WARNING== No kernels were profiled.\n";
        let e = read_raw("x.csv", text.as_bytes()).unwrap_err().to_string();
        assert!(e.contains("x.csv") && e.contains("ERR_NVGPUCTRPERM"), "{e}");
        let e = read_raw("x.csv", HEADER.as_bytes()).unwrap_err().to_string();
        assert!(e.contains("not one row"), "{e}");
        assert!(read_raw("x.csv", &b""[..]).unwrap_err().to_string().contains("is empty"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_raw("any", bytes.as_slice());
        }

        #[test]
        fn any_rows_below_a_header_are_read_or_refused(rows in "[0-9k,.\"\n()=%na/-]{0,200}") {
            if let Ok(table) = read_raw("any", format!("{HEADER}{rows}").as_bytes()) {
                prop_assert!(table.rows.iter().all(|row| row.calls > 0));
                for row in &table.rows {
                    let _ = (row.verdict(), row.achieved());
                }
            }
        }
    }
}
