//! Memory use does not depend on the length of a kernel file.

use std::io::{BufReader, Read};

use llmprof::kernels::ncu::read_raw;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const RAW: &str = include_str!("fixtures/h200_ncu_raw.csv");

/// The fixture with its launches repeated `times` times, generated while it is read.
fn repeated(times: usize) -> impl Read {
    let rows_at = RAW.match_indices('\n').nth(1).map(|(at, _)| at + 1).unwrap();
    let (header, rows) = RAW.split_at(rows_at);
    let launches = (0..times)
        .fold(Box::new(std::io::empty()) as Box<dyn Read>, |all, _| Box::new(all.chain(rows.as_bytes())));
    header.as_bytes().chain(launches)
}

#[test]
fn memory_does_not_grow_with_the_launches() {
    let peak = |times: usize| {
        let input = BufReader::new(repeated(times));
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        let table = read_raw("raw", input).unwrap();
        assert_eq!(table.calls(), 60 * times as u64);
        MEMORY.peak_usage() - before
    };
    let (short, long) = (peak(2), peak(400));
    // The long file has 50 MB; only four bytes per launch are kept, for its duration.
    assert!(long < short + (2 << 20), "{short} and {long} bytes");
}
