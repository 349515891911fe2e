//! The page `raw`: a row of titles, a row of units, then a row per launch.

use std::{io::BufRead, sync::Arc};

use super::{LaunchColumns, Launches, check_percent, find_header, finish, is_message, keep_message};
use crate::{
    cells::CsvRow,
    dialect,
    error::KernelsError,
    quantity::{Decimal, ThreeDigits, base},
    tally::Tally,
};
use llmprof_event::kernels::{
    KernelTable, Kind,
    counters::{Counter, Counters, DURATION, is_rate},
};

/// A column with a number per launch.
struct Metric {
    column: usize,
    name: Arc<str>,
    unit: Arc<str>,
    factor: f64,
    rate: bool,
}

/// The two rows at the top.
struct Header {
    metrics: Vec<Metric>,
    duration: Option<(usize, f64)>,
    device: Option<usize>,
}

/// Columns that identify a launch.
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

/// Whether a column has a metric of the launch. Attributes of the device are the same for all launches.
fn is_counted(title: &str) -> bool {
    title.contains("__") && !title.starts_with("device__attribute") && !IDENTITY.contains(&title)
}

impl Header {
    fn from_titles(titles: &[String], units: &[String]) -> Header {
        let unit = |at: usize| base(units.get(at).map_or("", String::as_str));
        let metrics = titles
            .iter()
            .enumerate()
            .filter(|(_, title)| is_counted(title))
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
            metrics,
            duration: DURATION.iter().find_map(|name| at(name)).map(|at| (at, unit(at).factor)),
            device: at("device__attribute_display_name"),
        }
    }

    /// `counters`, in the order of the metrics, under their names.
    fn counters(&self, counters: &[Counter]) -> Counters {
        let mut named = Counters::default();
        for (metric, counter) in self.metrics.iter().zip(counters) {
            named.merge(&metric.name, &metric.unit, counter);
        }
        named
    }
}

/// Reads the page, one launch in memory at a time.
///
/// Values keep the names that ncu gives them, and are converted to base units by the row of units. Percentages above
/// 100 are kept; `n/a` and `nan` are missing values.
pub fn read_raw(file: &str, input: impl BufRead) -> Result<KernelTable, KernelsError> {
    let is_header = |row: CsvRow| row.iter().any(|cell| cell == b"Kernel Name").then(|| row.texts());
    let counted = |row: CsvRow| {
        let titles = is_header(row)?;
        Some((0..titles.len()).filter(|at| is_counted(&titles[*at])).collect())
    };
    let (mut rows, decimal) =
        dialect::rows(input, ThreeDigits::Thousands, counted).map_err(KernelsError::read(file))?;
    let mut table = KernelTable::new("ncu, counters of launches", Kind::Kernels);
    let (titles, mut messages) = find_header(file, &mut rows, is_header)?;
    let launch = LaunchColumns::from_titles(&titles);
    let mut header: Option<Header> = None;
    let mut tally: Tally<Vec<u8>, Launches<Vec<Counter>>> = Tally::default();
    let (mut key, mut unread) = (Vec::new(), 0u64);
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        if row.is_empty() || is_message(row) {
            keep_message(row, &mut messages);
            continue;
        }
        let name = launch.name(row);
        let header = match &mut header {
            Some(header) => header,
            // The first row without a name has the units.
            None if name.is_none() => {
                header = Some(Header::from_titles(&titles, &row.texts()));
                continue;
            }
            None => header.insert(Header::from_titles(&titles, &[])),
        };
        let Some(name) = name.filter(|_| row.len() <= titles.len()) else {
            unread += 1;
            continue;
        };
        if table.device.is_none() {
            table.device = header.device.and_then(|at| row.text(at)).map(|name| name.into_owned());
        }
        launch.key(row, &mut key);
        let launches = tally.row(key.as_slice(), name, |scope| {
            Launches::new(scope.limit(launch.launch(row)), vec![Counter::NONE; header.metrics.len()])
        });
        count(file, header, row, decimal, launches)?;
    }
    table.notes.extend(tally.note());
    if let Some(header) = &header {
        let rows = tally.into_rows().into_iter();
        table.rows = rows.map(|launches| launches.into_row(|counters| header.counters(&counters))).collect();
    }
    finish(file, "raw", table, messages, unread)
}

fn count(
    file: &str,
    header: &Header,
    row: CsvRow,
    decimal: Decimal,
    launches: &mut Launches<Vec<Counter>>,
) -> Result<(), KernelsError> {
    let ns = header.duration.and_then(|(at, factor)| Some(decimal.number(row.get(at)?)? * factor));
    let weight = launches.count(ns);
    for (metric, counter) in header.metrics.iter().zip(&mut launches.counters) {
        let Some(value) = row.get(metric.column).and_then(|cell| decimal.number(cell)) else { continue };
        check_percent(file, &metric.name, &metric.unit, value)?;
        counter.add(value * metric.factor, if metric.rate { weight } else { 1.0 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use llmprof_analysis::classify::{self, Class};
    use llmprof_event::kernels::Group;

    const H200: &[u8] = include_bytes!("../../../../tests/fixtures/h200_ncu_raw.csv");
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
        // Some percentages exceed 100 and are kept.
        let hits = copy.counters.get("lts__t_sector_hit_rate.pct").unwrap();
        assert!(hits.max > 110.0, "{hits:?}");
        let slow = table.rows.iter().find(|row| row.name == "rmsnorm_bf16").unwrap();
        assert_eq!(classify::verdict(slow).unwrap().class, Class::Latency);
        assert_eq!(classify::verdict(copy).unwrap().class, Class::Launch);
        let jet =
            table.grouped(Group::Family).rows.into_iter().find(|row| row.name == "nvjet_sm90_tst").unwrap();
        let known = jet.known();
        assert!(known.flops.as_ref().unwrap().tensor.unwrap() > 1e8, "{known:?}");
        assert!(classify::achieved(&jet).flop_per_byte.unwrap() > 10.0, "{:?}", classify::achieved(&jet));
    }

    #[test]
    fn values_are_converted_by_the_row_of_units() {
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

    /// The fixture as ncu prints it with a decimal comma.
    fn european(delimiter: char) -> String {
        let swapped = |number: &str| number.replace(',', "'").replace('.', ",").replace('\'', ".");
        let mut csv = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(H200);
        let mut out = String::new();
        for record in csv.records().map(Result::unwrap) {
            let cells: Vec<String> = record
                .iter()
                .enumerate()
                .map(|(column, cell)| match Decimal::Point.number(cell.as_bytes()) {
                    Some(_) if column > 10 => format!("\"{}\"", swapped(cell)),
                    _ => format!("\"{cell}\""),
                })
                .collect();
            out += &(cells.join(&delimiter.to_string()) + "\n");
        }
        out
    }

    #[test]
    fn a_decimal_comma_is_detected() {
        let wanted = read_raw("h200.csv", H200).unwrap();
        for delimiter in [',', ';'] {
            let text = european(delimiter);
            assert!(text.contains("\"115,15\"") && !text.contains("\"115.15\""));
            assert_eq!(read_raw("h200.csv", text.as_bytes()).unwrap(), wanted, "{delimiter}");
        }
    }

    #[test]
    fn thousands_separators_are_not_decimals_if_there_are_only_durations() {
        for (separator, ns) in [(";", "12.345"), (",", "12.345"), (",", "12,345")] {
            let cells = |cells: [&str; 3]| cells.map(|cell| format!("\"{cell}\"")).join(separator) + "\n";
            let rows = [
                ["ID", "Kernel Name", "gpu__time_duration.sum"],
                ["", "", "ns"],
                ["0", "k", ns],
                ["1", "k", "987"],
            ];
            let table = read_raw("x.csv", rows.map(cells).concat().as_bytes()).unwrap();
            assert_eq!(table.rows[0].total_ns, Some(13_332.0), "{separator} {ns}");
        }
    }

    #[test]
    fn percentages_beyond_any_sense_are_refused_with_the_name_of_the_metric() {
        let text = |value: &str| {
            format!(
                "{HEADER}\"\",\"\",\"\",\"\",\"ns\",\"byte\",\"%\"\n\"0\",\"k\",\"(1,1,1)\",\"(1,1,1)\",\"10\",\"5\",\"{value}\"\n"
            )
        };
        // A number of both locales: 6.577 % or 6577 %.
        let e = read_raw("x.csv", text("6,577").as_bytes()).unwrap_err().to_string();
        assert!(e.contains("x.csv") && e.contains("x__y.pct at 6577 %") && e.contains("LC_ALL=C"), "{e}");
        let row = read_raw("x.csv", text("65,77").as_bytes()).unwrap().rows.remove(0);
        assert_eq!(row.counters.mean("x__y.pct"), Some(65.77));
        assert!(read_raw("x.csv", text("808.41").as_bytes()).is_ok());
    }

    #[test]
    fn rows_longer_than_the_header_are_not_read() {
        let text = format!("{HEADER}0,k,1,1,10,5,1,8\n1,k,1,1,10,5,1\n");
        let table = read_raw("x.csv", text.as_bytes()).unwrap();
        assert_eq!(
            (table.calls(), table.notes.as_slice()),
            (1, &["1 rows could not be read".to_owned()][..])
        );
    }

    #[test]
    fn messages_between_the_rows_are_skipped() {
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
    fn errors_of_ncu_are_reported() {
        let text = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n==WARNING== No kernels were profiled.\n";
        let e = read_raw("x.csv", text.as_bytes()).unwrap_err().to_string();
        assert!(e.contains("x.csv") && e.contains("ERR_NVGPUCTRPERM"), "{e}");
        let e = read_raw("x.csv", HEADER.as_bytes()).unwrap_err().to_string();
        assert!(e.contains("no readable row"), "{e}");
        assert!(read_raw("x.csv", &b""[..]).unwrap_err().to_string().contains("is empty"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_raw("any", bytes.as_slice());
        }

        #[test]
        fn any_rows_below_a_header_are_read_or_rejected(rows in "[0-9k,.\"\n()=%na/-]{0,200}") {
            if let Ok(table) = read_raw("any", format!("{HEADER}{rows}").as_bytes()) {
                prop_assert!(table.rows.iter().all(|row| row.calls > 0));
                for row in &table.rows {
                    let _ = (classify::verdict(row), classify::achieved(row));
                }
            }
        }
    }
}
