//! The counting heap, installed as a program would.

use std::thread;

use llmprof::{event::Allocator, profile::heap};

#[global_allocator]
static HEAP: heap::CountingHeap = heap::CountingHeap;

const MIB: usize = 1 << 20;

#[test]
fn a_thread_is_told_what_it_asked_for() {
    let outer = heap::mark().unwrap();
    let kept = vec![0u8; MIB];
    let inner = heap::mark().unwrap();
    drop(vec![1u8; 3 * MIB]);
    drop(vec![1u8; 2 * MIB]);
    let within = inner.growth();
    assert_eq!(within.allocated_bytes, 5 * MIB as u64);
    assert_eq!(within.peak_bytes, 3 * MIB as u64, "the two were not there at once");
    // What other threads do is theirs, and what is given back is no growth.
    thread::spawn(|| drop(vec![1u8; 64 * MIB])).join().unwrap();
    drop(kept);
    let around = outer.growth();
    assert!((6 * MIB as u64..7 * MIB as u64).contains(&around.allocated_bytes), "{around:?}");
    assert!((4 * MIB as u64..5 * MIB as u64).contains(&around.peak_bytes), "{around:?}");
}

#[test]
fn growing_in_place_asks_for_the_difference() {
    let mark = heap::mark().unwrap();
    let mut bytes: Vec<u8> = Vec::with_capacity(MIB);
    bytes.reserve_exact(4 * MIB);
    bytes.shrink_to(MIB);
    let grown = mark.growth();
    assert_eq!((grown.allocated_bytes, grown.peak_bytes), (4 * MIB as u64, 4 * MIB as u64));
}

#[test]
fn the_process_is_told_what_it_holds() {
    let held = vec![7u8; 256 * MIB];
    let sample = heap::sample().unwrap();
    assert_eq!(sample.allocator, Allocator::Heap);
    assert!(sample.live_bytes >= held.len() as u64 && sample.peak_bytes >= sample.live_bytes, "{sample:?}");
    if cfg!(target_env = "gnu") {
        assert!(sample.reserved_bytes.is_some_and(|bytes| bytes >= held.len() as u64), "{sample:?}");
        assert!(sample.fragmentation().is_some_and(|share| (0.0..=1.0).contains(&share)), "{sample:?}");
    }
}
