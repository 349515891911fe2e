//! The counting heap, installed by `main.rs` as in the program.

use std::thread;

use llmprof::{event::Allocator, workload::heap};

const MIB: usize = 1 << 20;

#[test]
fn a_thread_counts_its_own_allocations() {
    let outer = heap::checkpoint().unwrap();
    let kept = vec![0u8; MIB];
    let inner = heap::checkpoint().unwrap();
    drop(vec![1u8; 3 * MIB]);
    drop(vec![1u8; 2 * MIB]);
    let within = inner.growth();
    assert_eq!(within.allocated_bytes, 5 * MIB as u64);
    assert_eq!(within.peak_bytes, 3 * MIB as u64, "the two were not alive at the same time");
    // Allocations of other threads do not count, and freed memory is no growth.
    thread::spawn(|| drop(vec![1u8; 64 * MIB])).join().unwrap();
    drop(kept);
    let around = outer.growth();
    assert!((6 * MIB as u64..7 * MIB as u64).contains(&around.allocated_bytes), "{around:?}");
    assert!((4 * MIB as u64..5 * MIB as u64).contains(&around.peak_bytes), "{around:?}");
}

#[test]
fn an_allocation_beyond_the_limit_of_a_thread_fails() {
    let reserve = |bytes: usize| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    heap::limited(4 * MIB as u64, || {
        assert!(reserve(3 * MIB) && !reserve(5 * MIB));
        let kept = vec![0u8; 2 * MIB];
        assert!(!reserve(3 * MIB), "what is alive counts");
        drop(kept);
        assert!(reserve(3 * MIB));
        heap::limited(u64::MAX, || assert!(!reserve(5 * MIB), "an inner limit is not above the outer one"));
        thread::spawn(move || assert!(reserve(64 * MIB), "other threads have no limit")).join().unwrap();
    });
    assert!(reserve(64 * MIB));
}

#[test]
fn growing_in_place_counts_the_difference() {
    let checkpoint = heap::checkpoint().unwrap();
    let mut bytes: Vec<u8> = Vec::with_capacity(MIB);
    bytes.reserve_exact(4 * MIB);
    bytes.shrink_to(MIB);
    let grown = checkpoint.growth();
    assert_eq!((grown.allocated_bytes, grown.peak_bytes), (4 * MIB as u64, 4 * MIB as u64));
}

#[test]
fn the_process_reports_its_heap() {
    let buffer = vec![7u8; 256 * MIB];
    let sample = heap::sample().unwrap();
    assert_eq!(sample.allocator, Allocator::Heap);
    assert!(sample.live_bytes >= buffer.len() as u64 && sample.peak_bytes >= sample.live_bytes, "{sample:?}");
    if cfg!(target_env = "gnu") {
        assert!(sample.reserved_bytes.is_some_and(|bytes| bytes >= buffer.len() as u64), "{sample:?}");
        assert!(sample.fragmentation().is_some_and(|share| (0.0..=1.0).contains(&share)), "{sample:?}");
    }
}
