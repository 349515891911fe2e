//! Memory use hardly depends on the length of a kernel file.

use std::io::{BufReader, Read};

use llmprof::{
    kernels::{ncu::read_raw, torch::read_trace},
    workload::heap,
};

const RAW: &str = include_str!("fixtures/h200_ncu_raw.csv");

/// The fixture with its launches repeated `times` times, generated while it is read.
fn repeated(times: usize) -> impl Read {
    let rows_at = RAW.match_indices('\n').nth(1).map(|(at, _)| at + 1).unwrap();
    let (header, rows) = RAW.split_at(rows_at);
    let launches = (0..times)
        .fold(Box::new(std::io::empty()) as Box<dyn Read>, |all, _| Box::new(all.chain(rows.as_bytes())));
    header.as_bytes().chain(launches)
}

/// A trace of `steps` steps: an operator, a call and a kernel of a kilobyte together, generated while it is read.
struct Steps {
    steps: u64,
    done: u64,
    ready: std::io::Cursor<Vec<u8>>,
}

impl Read for Steps {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.ready.read(buffer)? {
                0 if self.done <= self.steps => self.ready = std::io::Cursor::new(self.next().into_bytes()),
                read => return Ok(read),
            }
        }
    }
}

impl Steps {
    fn next(&mut self) -> String {
        let n = self.done;
        self.done += 1;
        if n == self.steps {
            return "{}]}".to_owned();
        }
        let (begin, ts) = (if n == 0 { "{\"traceEvents\": [" } else { "" }, 10 * n);
        let dims = "[[8, 64], [128, 64]], ".repeat(20);
        format!(
            "{begin}{{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::mm\", \"pid\": 1, \"tid\": 1, \"ts\": {ts}, \"dur\": 5, \
             \"args\": {{\"External id\": {n}, \"Input Dims\": [{dims}[]]}}}},
             {{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernel\", \"pid\": 1, \"tid\": 1, \"ts\": {ts}, \"dur\": 2, \
             \"args\": {{\"External id\": {n}, \"correlation\": {n}}}}},
             {{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"gemm\", \"pid\": 0, \"tid\": 7, \"ts\": {ts}.500, \"dur\": 4.250, \
             \"args\": {{\"External id\": {n}, \"device\": 0, \"stream\": 7, \"correlation\": {n}, \"grid\": [8, 1, 1]}}}},\n"
        )
    }
}

#[test]
fn a_trace_keeps_only_the_links_between_its_events() {
    let peak = |steps: u64| {
        let input = BufReader::new(Steps { steps, done: 0, ready: Default::default() });
        let before = heap::checkpoint().unwrap();
        let tables = read_trace("trace", input).unwrap();
        assert_eq!((tables[0].calls(), tables[0].total()), (steps, Some(steps as f64 * 4250.0)));
        before.growth().peak_bytes
    };
    // Links of 16 bytes for the operator and twice for the call, doubled while they are sorted, and times of the kernel for the lanes of several
    // GPUs, of a kilobyte.
    let (short, long) = (peak(1000), peak(16_000));
    assert!(long < short + 16_000 * 320, "{short} and {long} bytes");
}

#[test]
fn memory_does_not_grow_with_the_launches() {
    let peak = |times: usize| {
        let input = BufReader::new(repeated(times));
        let before = heap::checkpoint().unwrap();
        let table = read_raw("raw", input).unwrap();
        assert_eq!(table.calls(), 60 * times as u64);
        before.growth().peak_bytes
    };
    let (short, long) = (peak(2), peak(400));
    // The long file has 50 MB; only four bytes per launch are kept, for its duration.
    assert!(long < short + (2 << 20), "{short} and {long} bytes");
}
