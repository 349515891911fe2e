//! The traces of `nsys stats`: a row per operation of a GPU (`cuda_gpu_trace`) or per call (`cuda_api_trace`).

use std::collections::BTreeMap;

use super::header::{Cell, split_unit};
use crate::{
    gpu::{Gpus, Ran, filled},
    quantity::base,
    tally::{Durations, MAX_ROWS},
};
use llmprof_event::kernels::{Extent, KernelRow, KernelTable, Kind, names};

/// A column with a number, and the factor to its base unit.
type Scaled = (usize, f64);

/// The columns of a trace.
#[derive(Debug)]
struct Columns {
    start: Scaled,
    duration: Scaled,
    name: usize,
    grid: [Option<usize>; 3],
    block: [Option<usize>; 3],
    registers: Option<usize>,
    /// Static and dynamic; only in bytes, because thousandths of a megabyte round most of them away.
    shared: [Option<usize>; 2],
    bytes: Option<Scaled>,
    device: Option<usize>,
    correlation: Option<usize>,
}

/// Operations or calls of a trace, counted.
#[derive(Debug)]
pub struct Trace {
    columns: Columns,
    counted: Counted,
    /// The launch of the last kernel. Kernels of the same launch are nodes of a graph.
    last_launch: Option<f64>,
    graphs: bool,
    unread: u64,
}

#[derive(Debug)]
enum Counted {
    Gpus(Gpus),
    Calls(BTreeMap<String, Durations>),
}

impl Trace {
    /// `None` for a row that is not the header of a trace.
    pub fn from_titles(titles: &[String]) -> Option<Trace> {
        let plain: Vec<(String, &str)> = titles.iter().map(|title| split_unit(title)).collect();
        let at = |name: &str| plain.iter().position(|(title, _)| title == name);
        let scaled = |name: &str| at(name).map(|at| (at, base(plain[at].1).factor));
        let counted = match (at("grdx"), at("result")) {
            (Some(_), _) => Counted::Gpus(Gpus::default()),
            (None, Some(_)) => Counted::Calls(BTreeMap::new()),
            (None, None) => return None,
        };
        let columns = Columns {
            start: scaled("start")?,
            duration: scaled("duration")?,
            name: at("name")?,
            grid: ["grdx", "grdy", "grdz"].map(at),
            block: ["blkx", "blky", "blkz"].map(at),
            registers: at("reg/trd"),
            shared: ["stcsmem", "dymsmem"]
                .map(|name| Some(scaled(name).filter(|(_, factor)| *factor == 1.0)?.0)),
            bytes: scaled("bytes"),
            device: at("device"),
            correlation: at("corrid"),
        };
        Some(Trace { columns, counted, last_launch: None, graphs: false, unread: 0 })
    }

    /// Whether a column has numbers.
    pub fn is_number(&self, column: usize) -> bool {
        column != self.columns.name && Some(column) != self.columns.device
    }

    pub fn add<'c>(&mut self, cell: impl Fn(usize) -> Option<Cell<'c>>) {
        if self.count(cell).is_none() {
            self.unread += 1;
        }
    }

    fn count<'c>(&mut self, cell: impl Fn(usize) -> Option<Cell<'c>>) -> Option<()> {
        let columns = &self.columns;
        let text = |at: usize| cell(at).map(|cell| cell.text()).filter(|text| !text.is_empty());
        let scaled = |(at, factor): Scaled| Some(cell(at)?.number()? * factor);
        let name = text(columns.name)?;
        let start = scaled(columns.start)?;
        let ran =
            Ran { start_ns: start.round() as i64, ns: scaled(columns.duration).filter(|ns| *ns >= 0.0)? };
        let gpus = match &mut self.counted {
            Counted::Gpus(gpus) => gpus,
            Counted::Calls(calls) => {
                let name = if calls.len() < MAX_ROWS { name.as_str() } else { "(other calls)" };
                calls.entry(name.to_owned()).or_default().add(ran.ns);
                return Some(());
            }
        };
        let gpu = gpus.named(&columns.device.and_then(text).unwrap_or_default());
        if name.starts_with("[CUDA mem") {
            gpu.copy(&name, columns.bytes.and_then(scaled), ran);
            return Some(());
        }
        let launch = columns.correlation.and_then(|at| cell(at)?.number()).filter(|id| *id > 0.0);
        self.graphs |= launch.is_some() && launch == self.last_launch;
        self.last_launch = launch;
        let whole =
            |at: usize| cell(at)?.number().filter(|n| (0.0..=4_294_967_295.0).contains(n)).map(|n| n as u32);
        let extent = |at: [Option<usize>; 3]| -> Option<Extent> {
            Some([whole(at[0]?)?, whole(at[1]?)?, whole(at[2]?)?])
        };
        let (grid, block) = (extent(columns.grid), extent(columns.block));
        let mut key = name.as_bytes().to_vec();
        for size in [grid, block].into_iter().flatten().flatten() {
            key.extend(size.to_le_bytes());
        }
        gpu.launch(&key, &name, ran, || {
            let [fixed, dynamic] = columns.shared.map(|column| column.and_then(whole));
            KernelRow {
                grid,
                block,
                registers: columns.registers.and_then(whole),
                shared_bytes: fixed.zip(dynamic).map(|(a, b)| u64::from(a) + u64::from(b)),
                ..KernelRow::named(names::demangled(&name))
            }
        });
        Some(())
    }

    /// Kernels of each GPU, then copies of each.
    pub fn done(self) -> Vec<KernelTable> {
        let mut tables: Vec<KernelTable> = match self.counted {
            Counted::Calls(calls) => {
                let row = |(name, durations): (String, Durations)| {
                    durations.into_row(KernelRow { family: name.clone(), name, ..KernelRow::default() })
                };
                let rows = calls.into_iter().map(row).collect();
                filled("nsys trace, CUDA calls", Kind::ApiCalls, rows, None).into_iter().collect()
            }
            Counted::Gpus(gpus) => gpus.into_tables("nsys trace"),
        };
        tables
            .iter_mut()
            .filter(|table| table.kind == Kind::Kernels)
            .for_each(|table| table.graphs = self.last_launch.map(|_| self.graphs));
        if tables.is_empty() {
            tables.push(KernelTable::new("nsys trace", Kind::Kernels));
        }
        if self.unread > 0 {
            tables[0].notes.push(format!("{} rows could not be read", self.unread));
        }
        tables
    }
}

#[cfg(test)]
mod tests {
    use crate::nsys::read_csv;
    use llmprof_event::kernels::Kind;

    const TRACE: &str = "\
        Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n\
        100,50,1,8,1,1,32,1,1,40,0.001,0.002,,,,,NVIDIA H200 (0),1,,7,\"void gemv<4>(int)\"\n\
        200,30,1,8,1,1,32,1,1,40,0.001,0.002,,,,,NVIDIA H200 (0),1,,7,\"void gemv<4>(int)\"\n\
        210,90,3,4,1,1,32,1,1,16,0.000,0.000,,,,,NVIDIA H200 (0),1,,8,rope\n\
        210,10,5,4,1,1,32,1,1,16,0.000,0.000,,,,,NVIDIA H200 (1),1,,8,rope\n\
        400,20,4,,,,,,,,,,1.500,75000,Pageable,Device,NVIDIA H200 (0),1,,7,[CUDA memcpy Host-to-Device]\n\
        bad,20,4,,,,,,,,,,1.500,,,,NVIDIA H200 (0),1,,7,x\n";

    #[test]
    fn a_trace_of_two_gpus() {
        let tables = read_csv("trace.csv", TRACE.as_bytes()).unwrap();
        let of: Vec<(Kind, &str)> =
            tables.iter().map(|table| (table.kind, table.device.as_deref().unwrap())).collect();
        assert_eq!(
            of,
            [
                (Kind::Kernels, "NVIDIA H200 (0)"),
                (Kind::Kernels, "NVIDIA H200 (1)"),
                (Kind::MemoryTime, "NVIDIA H200 (0)")
            ]
        );
        let gemv = tables[0].rows.iter().find(|row| row.family == "gemv").unwrap();
        assert_eq!((gemv.calls, gemv.total_ns, gemv.median_ns), (2, Some(80.0), Some(40.0)));
        assert_eq!((gemv.grid, gemv.block), (Some([8, 1, 1]), Some([32, 1, 1])));
        assert_eq!((gemv.registers, gemv.shared_bytes), (Some(40), None));
        // From 100 to 300; between 150 and 200 nothing runs.
        let busy = tables[0].busy.unwrap();
        assert_eq!((busy.busy_ns, busy.span_ns), (150.0, 200.0));
        assert_eq!((tables[2].rows[0].bytes, tables[2].rows[0].total_ns), (Some(1.5e6), Some(20.0)));
        assert_eq!(tables[0].notes, ["1 rows could not be read"]);
        assert_eq!(tables[0].has_graphs(), Some(true), "two kernels of launch 1");
    }

    #[test]
    fn a_trace_with_semicolons_and_seconds() {
        let text = "Start(sec);Duration(nsec);CorrId;GrdX;GrdY;GrdZ;BlkX;BlkY;BlkZ;Reg/Trd;StcSMem (B);DymSMem (B);Device;Name\n\
                    0,000001;1.500;1;8;1;1;32;1;1;40;16;1024;A (0);k\n0,000004;500;1;8;1;1;32;1;1;40;16;1024;A (0);k\n";
        let table = read_csv("trace.csv", text.as_bytes()).unwrap().remove(0);
        assert_eq!((table.rows[0].calls, table.rows[0].total_ns), (2, Some(2000.0)));
        assert_eq!(table.rows[0].shared_bytes, Some(1040));
        let busy = table.busy.unwrap();
        assert_eq!((busy.busy_ns, busy.span_ns), (2000.0, 3500.0));
    }

    #[test]
    fn a_trace_of_calls() {
        let text = "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name\n\
                    10,5,cudaLaunchKernel,0,1,1,1,20,main\n20,7,cudaLaunchKernel,0,2,1,1,20,main\n";
        let table = read_csv("trace.csv", text.as_bytes()).unwrap().remove(0);
        assert_eq!(
            (table.kind, table.rows[0].calls, table.rows[0].total_ns),
            (Kind::ApiCalls, 2, Some(12.0))
        );
    }
}
