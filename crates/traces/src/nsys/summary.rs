//! The output of `nsys stats` as CSV and as JSON.

use std::{
    fmt,
    io::{BufRead, Read},
};

use serde::{
    Deserializer,
    de::{SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{
    header::Cell,
    report::{Report, Reports, skipped},
};
use crate::{cells::CsvRow, dialect, error::KernelsError, quantity::ThreeDigits};
use llmprof_event::kernels::KernelTable;

/// Whether a row is the header of a report, or a message about a skipped one.
pub fn is_report(row: CsvRow) -> bool {
    row.text(0).is_some_and(|first| skipped(&first).is_some()) || Report::from_titles(&row.texts()).is_some()
}

/// Reads the output of `nsys stats -f csv`: one table or several, with messages between them.
pub fn read_csv(file: &str, input: impl BufRead) -> Result<Vec<KernelTable>, KernelsError> {
    let numbers = |row: CsvRow| {
        let report = Report::from_titles(&row.texts())?;
        Some((0..row.len()).filter(|column| report.is_number(*column)).collect())
    };
    let (mut rows, decimal) =
        dialect::rows(input, ThreeDigits::Fraction, numbers).map_err(KernelsError::read(file))?;
    let mut reports = Reports::new(file);
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        if row.is_empty() {
            reports.end();
        } else if row.text(0).is_some_and(|first| skipped(&first).is_some()) {
            reports.line(&row.texts().join(","));
        } else if reports.is_within() {
            reports.add(|at| row.get(at).map(|cell| Cell::Bytes(cell, decimal)));
        } else {
            match Report::from_titles(&row.texts()) {
                Some(report) => reports.begin(report),
                None => reports.line(&row.texts().join(",")),
            }
        }
    }
    reports.finish(file)
}

/// Reads the output of `nsys stats -f json`: a list of objects, one in memory at a time.
pub fn read_json(file: &str, input: impl Read) -> Result<Vec<KernelTable>, KernelsError> {
    let mut rows = JsonRows { reports: Reports::new(file), keys: Vec::new() };
    if let Err(e) = serde_json::Deserializer::from_reader(input).deserialize_seq(&mut rows) {
        let file = file.to_owned();
        return Err(match e.is_io() {
            true => KernelsError::Read { file, source: e.into() },
            false => KernelsError::Unknown { file, seen: format!("it is not a list of rows ({e})") },
        });
    }
    rows.reports.finish(file)
}

struct JsonRows {
    reports: Reports,
    /// The keys of the last report.
    keys: Vec<String>,
}

impl JsonRows {
    fn add(&mut self, row: Map<String, Value>) {
        // All objects of a report have the same keys: its header is made once.
        if !row.keys().eq(&self.keys) {
            let keys: Vec<String> = row.keys().cloned().collect();
            let Some(report) = Report::from_titles(&keys) else {
                self.reports.line("");
                return;
            };
            self.reports.begin(report);
            self.keys = keys;
        }
        let cells: Vec<&Value> = row.values().collect();
        self.reports.add(|at| cells.get(at).copied().map(Cell::Json));
    }
}

impl<'de> Visitor<'de> for &mut JsonRows {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(row) = rows.next_element()? {
            self.add(row);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nsys::header::Header;
    use llmprof_event::kernels::Kind;

    fn csv(text: &str) -> Result<Vec<KernelTable>, KernelsError> {
        read_csv("report.csv", text.as_bytes())
    }

    fn only(text: &str) -> KernelTable {
        let mut tables = csv(text).unwrap();
        assert_eq!(tables.len(), 1, "{tables:?}");
        tables.remove(0)
    }

    #[test]
    fn kernels_with_the_header_of_today() {
        let table = only(
            "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n\
             75.0,3000,3,1000.0,900.0,800,1300,264.6,\"void gemv_kernel<float, 4>(float const*, int)\"\n\
             25.0,1000,1,1000.0,1000.0,1000,1000,0.0,rope_bf16\n",
        );
        assert_eq!((table.kind, table.total(), table.calls()), (Kind::Kernels, Some(4000.0), 4));
        let row = &table.rows[0];
        assert_eq!((row.family.as_str(), row.calls), ("gemv_kernel", 3));
        assert_eq!((row.median_ns, row.stddev_ns, row.grid), (Some(900.0), Some(264.6), None));
    }

    #[test]
    fn kernels_with_the_header_of_2022_and_before() {
        let table = only(
            "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),GridXYZ,BlockXYZ,Name\n\
             100.0,2000,2,1000.0,1000.0,900,1100,141.4,   8   14    1, 384    1    1,nvjet_sm90_tst_64x32_64x16_2x4_h_bz_TNT\n",
        );
        assert_eq!((table.rows[0].grid, table.rows[0].block), (Some([8, 14, 1]), Some([384, 1, 1])));
        let older =
            only("Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n50.0,20,2,10.0,9,11,k\n");
        assert_eq!((older.rows[0].mean_ns, older.rows[0].min_ns), (Some(10.0), Some(9.0)));
        assert_eq!(older.rows[0].median_ns, None);
    }

    #[test]
    fn units_of_the_header_count() {
        let table = only("Time (%),Total Time (ms),Instances,Avg (us),Name\n100.0,1.5,2,750,k\n");
        assert_eq!((table.rows[0].total_ns, table.rows[0].mean_ns), (Some(1.5e6), Some(750_000.0)));
        let sizes = only(
            "Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation\n\
             12.500,4,3.125,3.0,0.5,6.0,2.0,[CUDA memcpy HtoD]\n",
        );
        assert_eq!((sizes.kind, sizes.total()), (Kind::MemorySize, Some(12.5e6)));
        assert_eq!((sizes.rows[0].total_ns, sizes.rows[0].mean_ns), (None, None));
    }

    #[test]
    fn every_report_is_recognised_by_its_header() {
        for (header, kind) in [
            (
                "Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name",
                Kind::ApiCalls,
            ),
            (
                "Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation",
                Kind::MemoryTime,
            ),
            (
                "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Range",
                Kind::Ranges,
            ),
            (
                "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),Proj Med (ns),Proj Min (ns),\
                 Proj Max (ns),Proj StdDev (ns),Total GPU Ops,Avg GPU Ops,Avg Range Lvl,Avg Num Child",
                Kind::Ranges,
            ),
            (
                "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Kernel Name",
                Kind::Kernels,
            ),
        ] {
            let titles: Vec<String> = header.split(',').map(str::to_owned).collect();
            assert_eq!(Header::from_titles(&titles).map(|header| header.kind), Some(kind), "{header}");
        }
        assert!(Header::from_titles(&["a".to_owned(), "b".to_owned()]).is_none());
    }

    #[test]
    fn projections_and_ranges_keep_their_other_columns() {
        let projected = only(
            "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),Total GPU Ops\n\
             :decode,PushPop,8000,9000,2,4000,20\n",
        );
        let row = &projected.rows[0];
        assert_eq!((row.name.as_str(), row.total_ns, row.calls), ("decode", Some(8000.0), 2));
        assert_eq!(row.counters.mean("Total Range Time"), Some(9000.0));
        assert_eq!(row.counters.mean("Total GPU Ops"), Some(20.0));
        let kernels = only(
            "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Kernel Name\n\
             llmprof:decode,PushPop,1,1,5,10,500,50,k\n,,,,,3,90,30,k\n",
        );
        assert_eq!(kernels.rows[0].range.as_deref(), Some("llmprof:decode"));
        assert_eq!((kernels.rows[1].range.as_deref(), kernels.rows[1].calls), (None, 3));
    }

    #[test]
    fn kernels_with_the_times_of_their_launches() {
        let tables = csv(
            "PID,TID,DevId,Count,QCount,TAvg (ns),AAvg (ns),QAvg (ns),KAvg (ns),KMed (ns),KMin (ns),KMax (ns),KStdDev (ns),API Name,Kernel Name\n\
             7,7,0,4000,3999,293413.0,1712.7,290855.5,844.8,833.0,800,900,10.5,cudaLaunchKernel_v7000,tiny(int)\n\
             7,7,1,2,2,100.0,20.0,30.0,50.0,50.0,40,60,14.1,cudaLaunchKernel_v7000,tiny(int)\n",
        )
        .unwrap();
        let of: Vec<(Kind, Option<&str>)> =
            tables.iter().map(|table| (table.kind, table.device.as_deref())).collect();
        assert_eq!(of, [(Kind::Kernels, Some("GPU 0")), (Kind::Kernels, Some("GPU 1"))]);
        let row = &tables[0].rows[0];
        assert_eq!((row.calls, row.mean_ns, row.total_ns), (4000, Some(844.8), Some(844.8 * 4000.0)));
        assert_eq!((row.median_ns, row.max_ns, row.stddev_ns), (Some(833.0), Some(900.0), Some(10.5)));
        assert_eq!(row.counters.mean("wait in the queue"), Some(290_855.5));
        assert_eq!(row.counters.mean("call of the launch"), Some(1712.7));
        assert!(!tables[0].nested);
    }

    #[test]
    fn a_summary_of_several_kinds_is_split() {
        let tables = csv(
            "Time (%),Total Time (ns),Instances,Avg (ns),Category,Operation\n\
             60.0,60,2,30.0,CUDA_KERNEL,k\n30.0,30,1,30.0,MEMORY_OPER,[CUDA memset]\n10.0,10,1,10.0,CUDA_API,cudaFree\n",
        )
        .unwrap();
        let kinds: Vec<Kind> = tables.iter().map(|table| table.kind).collect();
        assert_eq!(kinds, [Kind::Kernels, Kind::MemoryTime, Kind::ApiCalls]);
        assert_eq!((tables[0].total(), tables[0].rows.len()), (Some(60.0), 1));
    }

    #[test]
    fn semicolons_and_decimal_commas() {
        let wanted =
            only("Time (%),Total Time (ns),Instances,Avg (ns),Name\n100.0,3000,3,1000.5,\"f<a, b>\"\n");
        let semicolons =
            only("Time (%);Total Time (ns);Instances;Avg (ns);Name\n100,0;3.000;3;1.000,5;f<a, b>\n");
        assert_eq!(semicolons, wanted);
        let tabs =
            only("Time (%)\tTotal Time (ns)\tInstances\tAvg (ns)\tName\n100.0\t3000\t3\t1000.5\tf<a, b>\n");
        assert_eq!(tabs, wanted);
    }

    #[test]
    fn calls_of_the_operating_system_are_not_calls_of_cuda() {
        let both = csv(
            "Processing [out.sqlite] with [/opt/reports/osrt_sum.py]...\nTime (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,7,1,7.0,poll\n\n\
             Processing [out.sqlite] with [/opt/reports/cuda_api_sum.py]...\nTime (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,7,1,7.0,cudaFree\n",
        )
        .unwrap();
        assert_eq!((both.len(), both[0].rows[0].name.as_str()), (1, "cudaFree"));
        assert!(both[0].notes[0].contains("osrt_sum"), "{:?}", both[0].notes);
        let e =
            read_csv("base_osrt_sum.csv", &b"Total Time (ns),Num Calls,Name\n7,1,poll\n"[..]).unwrap_err();
        assert!(e.to_string().contains("calls of the operating system"), "{e}");
    }

    #[test]
    fn several_reports_in_one_stream() {
        let tables = csv(
            "NOTICE: Existing SQLite export found: out.sqlite\nProcessing [out.sqlite] with [x.py]... \n\n\
             Time (%),Total Time (ns),Instances,Avg (ns),Name\n100.0,10,1,10.0,k\n\n\
             Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,7,1,7.0,cudaLaunchKernel\n",
        )
        .unwrap();
        assert_eq!(
            tables.iter().map(|table| table.kind).collect::<Vec<_>>(),
            [Kind::Kernels, Kind::ApiCalls]
        );
    }

    #[test]
    fn a_file_without_rows_is_an_error() {
        let cases: &[(&str, &str)] = &[
            ("", "report.csv is empty"),
            ("\n\n", "report.csv is empty"),
            ("SKIPPED: out.sqlite does not contain CUDA kernel data.\n", "does not contain CUDA kernel data"),
            ("Processing [a] with [b] to [c]... SKIPPED: no CUDA, at all.\n", "SKIPPED: no CUDA,at all"),
            ("Time (%),Total Time (ns),Instances,Name\n", "no readable row"),
            ("Time (%),Total Time (ns),Instances,Name\n1,2,x,k\n", "no readable row"),
            ("a,b,c\n1,2,3\n", "unknown format"),
        ];
        for (text, words) in cases {
            let e = csv(text).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
        let e = csv(cases[2].0).unwrap_err().to_string();
        assert!(e.contains("nsys profile -t cuda"), "{e}");
    }

    #[test]
    fn json_and_csv_give_the_same_tables() {
        let text = r#"[
          {"Time (%)": 75.0, "Total Time (ns)": 3000, "Instances": 3, "Avg (ns)": 1000.0, "Name": "rope<4>(int)"},
          {"Time (%)": 25.0, "Total Time (ns)": 1000, "Instances": 1, "Avg (ns)": 1000.0, "Name": "k"}
        ]"#;
        let json = read_json("report.json", text.as_bytes()).unwrap();
        let csv = csv(
            "Time (%),Total Time (ns),Instances,Avg (ns),Name\n75.0,3000,3,1000.0,rope<4>(int)\n25.0,1000,1,1000.0,k\n",
        );
        assert_eq!(json, csv.unwrap());
        for (text, words) in [
            ("[]", "is empty"),
            ("{\"a\": 1}", "not a list of rows"),
            ("[{\"a\": 1}]", "no row is the header"),
        ] {
            let e = read_json("report.json", text.as_bytes()).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_csv("any", bytes.as_slice());
            let _ = read_json("any", bytes.as_slice());
        }

        #[test]
        fn any_rows_below_a_header_are_read_or_rejected(rows in "[0-9a-z,.\"\n()<>:%-]{0,200}") {
            let header = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),StdDev (ns),GridXYZ,BlockXYZ,Name\n";
            if let Ok(tables) = read_csv("any", format!("{header}{rows}").as_bytes()) {
                prop_assert!(tables.iter().all(|table| !table.rows.is_empty()));
            }
        }
    }
}
