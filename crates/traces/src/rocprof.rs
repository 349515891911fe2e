//! Kernel traces of ROCm's rocprofv3, also those that rocpd2csv makes of its database: CSV with a row per launch.

use std::io::BufRead;

use super::{
    cells::{CsvRow, Rows},
    error::KernelsError,
    gpu::{Gpus, Ran},
};
use llmprof_event::kernels::{Extent, KernelRow, KernelTable, Kind, Platform, names};

const REMEDY: &str = "record with rocprofv3 --kernel-trace --output-format csv -- PROGRAM";
/// Longer names are cut in the key of a row.
const MAX_KEY_NAME: usize = 4096;

/// The columns that are read. Their names differ in case between versions, and a kernel's shared memory has had two.
struct Columns {
    name: usize,
    start: usize,
    end: usize,
    agent: Option<usize>,
    workgroup: [Option<usize>; 3],
    /// In threads, not in workgroups.
    grid: [Option<usize>; 3],
    registers: Option<usize>,
    shared: Option<usize>,
}

impl Columns {
    /// `None` for a row that is not the header of a kernel trace. A table of counters has no column `Kind`.
    fn from_titles(row: CsvRow<'_>) -> Option<Columns> {
        let at = |title: &str| {
            row.iter().position(|cell| cell.trim_ascii().eq_ignore_ascii_case(title.as_bytes()))
        };
        at("Kind")?;
        Some(Columns {
            name: at("Kernel_Name")?,
            start: at("Start_Timestamp")?,
            end: at("End_Timestamp")?,
            agent: at("Agent_Id"),
            workgroup: ["Workgroup_Size_X", "Workgroup_Size_Y", "Workgroup_Size_Z"].map(at),
            grid: ["Grid_Size_X", "Grid_Size_Y", "Grid_Size_Z"].map(at),
            registers: at("VGPR_Count"),
            shared: at("LDS_Block_Size").or_else(|| at("Group_Segment_Size")),
        })
    }

    /// Counts a launch; `None` if the row has no name or no times.
    fn count(&self, row: CsvRow<'_>, gpus: &mut Gpus) -> Option<()> {
        let whole = |at: usize| row.text(at)?.trim().parse::<u64>().ok();
        let size = |at: Option<usize>| whole(at?).and_then(|n| u32::try_from(n).ok());
        let extent = |at: [Option<usize>; 3]| -> Option<Extent> {
            let [x, y, z] = at.map(size);
            Some([x?, y?, z?])
        };
        let name = row.text(self.name).filter(|name| !name.is_empty())?;
        let (start, end) = (whole(self.start)?, whole(self.end)?);
        let ran = Ran { start_ns: i64::try_from(start).ok()?, ns: end.checked_sub(start)? as f64 };
        let block = extent(self.workgroup).filter(|block| !block.contains(&0));
        let threads = extent(self.grid);
        let grid =
            threads.zip(block).map(|(threads, block)| [0, 1, 2].map(|i| threads[i].div_ceil(block[i])));
        let agent = self.agent.and_then(|at| row.text(at)).unwrap_or_default();
        let mut key = name.as_bytes()[..name.len().min(MAX_KEY_NAME)].to_vec();
        for size in [grid, block].into_iter().flatten().flatten() {
            key.extend(size.to_le_bytes());
        }
        gpus.named(&agent).launch(&key, &name, ran, || KernelRow {
            grid,
            block,
            registers: size(self.registers),
            shared_bytes: self.shared.and_then(whole),
            // Names that are not demangled have the suffix of a kernel descriptor.
            ..KernelRow::named(names::demangled(name.strip_suffix(".kd").unwrap_or(&name)))
        });
        Some(())
    }
}

/// Whether a row is the header of a kernel trace.
pub(super) fn is_header(row: CsvRow<'_>) -> bool {
    Columns::from_titles(row).is_some()
}

/// The kernels of each GPU.
pub fn read_kernel_trace(file: &str, input: impl BufRead) -> Result<Vec<KernelTable>, KernelsError> {
    let mut rows = Rows::new(input, b',');
    let (mut columns, mut gpus, mut unread) = (None, Gpus::default(), 0u64);
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        match (Columns::from_titles(row), &columns) {
            (Some(found), _) => columns = Some(found),
            (None, Some(known)) if !row.is_empty() => {
                unread += u64::from(known.count(row, &mut gpus).is_none())
            }
            _ => {}
        }
    }
    let mut tables = gpus.into_tables("rocprofv3");
    tables.retain(|table| table.kind == Kind::Kernels);
    tables.iter_mut().for_each(|table| table.platform = Platform::Hip);
    match tables.first_mut() {
        Some(first) if unread > 0 => first.notes.push(format!("{unread} rows could not be read")),
        Some(_) => {}
        None => {
            return Err(KernelsError::NoRows {
                file: file.to_owned(),
                what: "the header of a kernel trace".to_owned(),
                remedy: REMEDY,
            });
        }
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "\
\"Kind\",\"Agent_Id\",\"Queue_Id\",\"Stream_Id\",\"Thread_Id\",\"Dispatch_Id\",\"Kernel_Id\",\"Kernel_Name\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\",\"LDS_Block_Size\",\"Scratch_Size\",\"VGPR_Count\",\"Accum_VGPR_Count\",\"SGPR_Count\",\"Workgroup_Size_X\",\"Workgroup_Size_Y\",\"Workgroup_Size_Z\",\"Grid_Size_X\",\"Grid_Size_Y\",\"Grid_Size_Z\"
\"KERNEL_DISPATCH\",\"Agent 4\",1,0,70,1,10,\"void gemv<4>(float*, int)\",1,1000,1060,8192,0,32,0,48,256,1,1,2000,2,1
\"KERNEL_DISPATCH\",\"Agent 4\",1,0,70,2,10,\"void gemv<4>(float*, int)\",2,1100,1140,8192,0,32,0,48,256,1,1,2000,2,1
\"KERNEL_DISPATCH\",\"Agent 5\",1,0,71,3,11,\"_Z4ropePfi.kd\",3,1000,1010,0,0,12,4,16,64,1,1,64,1,1
\"KERNEL_DISPATCH\",\"Agent 4\",1,0,70,4,10,\"torn\",4,12";

    #[test]
    fn launches_are_counted_by_gpu_kernel_and_grid() {
        let tables = read_kernel_trace("x.csv", TRACE.as_bytes()).unwrap();
        let devices: Vec<_> = tables.iter().map(|table| table.device.as_deref().unwrap()).collect();
        assert_eq!(devices, ["Agent 4", "Agent 5"]);
        let (table, gemv) = (&tables[0], &tables[0].rows[0]);
        assert_eq!((gemv.family.as_str(), gemv.calls, gemv.total_ns), ("gemv", 2, Some(100.0)));
        assert_eq!((gemv.grid, gemv.block), (Some([8, 2, 1]), Some([256, 1, 1])), "a grid in workgroups");
        assert_eq!((gemv.registers, gemv.shared_bytes), (Some(32), Some(8192)));
        let busy = table.busy.unwrap();
        assert_eq!((busy.busy_ns, busy.span_ns), (100.0, 140.0));
        assert_eq!(
            (table.platform, &table.notes[..]),
            (Platform::Hip, &["1 rows could not be read".to_owned()][..])
        );
        assert_eq!(tables[1].rows[0].name, "rope(float*, int)");
    }

    #[test]
    fn columns_of_other_versions_are_found() {
        let first = "\"Kind\",\"Agent_Id\",\"Queue_Id\",\"Kernel_Id\",\"Kernel_Name\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\",\"Private_Segment_Size\",\"Group_Segment_Size\"\n\
                     \"KERNEL_DISPATCH\",1,139690710949888,15,\"k\",0,10,30,0,512\n";
        let database = "\"Guid\",\"Kind\",\"Agent_Id\",\"Kernel_Name\",\"Start_Timestamp\",\"End_Timestamp\",\"Lds_Block_Size\",\"Vgpr_Count\"\n\
                        \"00006409-00d1\",\"KERNEL_DISPATCH\",\"Agent 4\",\"k\",10,30,512,16\n";
        for text in [first, database] {
            let table = read_kernel_trace("x.csv", text.as_bytes()).unwrap().remove(0);
            let row = &table.rows[0];
            assert_eq!((row.total_ns, row.shared_bytes, row.grid), (Some(20.0), Some(512), None), "{text}");
        }
        let counters =
            "\"Kernel_Name\",\"Counter_Name\",\"Counter_Value\",\"Start_Timestamp\",\"End_Timestamp\"\n";
        let error = read_kernel_trace("x.csv", counters.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("--kernel-trace"), "{error}");
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0..TRACE.len()) {
            let _ = read_kernel_trace("any", bytes.as_slice());
            let rest = [&TRACE.as_bytes()[..cut], &bytes].concat();
            for table in read_kernel_trace("any", rest.as_slice()).into_iter().flatten() {
                prop_assert!(table.rows.iter().all(|row| row.calls > 0));
            }
        }
    }
}
