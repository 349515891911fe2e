//! Any answer of a Prometheus is read or refused; its series become GPUs, which are judged and drawn.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::{
    analysis::fleet::{Fleet, Order, Snapshot, table},
    fleet::{Collector, NodeLabel, read_answer},
};

fuzz_target!(|bytes: &[u8]| {
    let mut collector = Collector::new(NodeLabel::Usual, None);
    let answer = read_answer(bytes, &mut |one| {
        collector.now(&one);
        collector.before(&one);
        collector.seen(&one);
    });
    if answer.is_ok() {
        let collected = collector.finish();
        let snapshot = Snapshot {
            unix_s: 1.0,
            took_ms: 0.0,
            window_s: 3600.0,
            gpus: collected.gpus,
            remarks: collected.remarks,
        };
        let text = table(&Fleet::new(snapshot), Order::Lost);
        assert!(!text.contains(['\u{1b}', '\u{7}']));
    }
});
