//! Any bytes in the memory of an injected library are read, folded into steps and shown without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::{
    analysis::steps::Fold,
    attach::{RunClock, Message, Transcript, device_work},
    event::Stamp,
};

fuzz_target!(|bytes: &[u8]| {
    let slots: Vec<[u64; 8]> = bytes
        .chunks_exact(64)
        .map(|slot| std::array::from_fn(|i| u64::from_ne_bytes(slot[i * 8..i * 8 + 8].try_into().expect("eight bytes"))))
        .collect();
    let (mut transcript, mut fold) = (Transcript::default(), Fold::default());
    let run = RunClock::now(Stamp(0));
    for lane in 0..2 {
        let read = transcript.read(lane, &slots, run, &mut |said| match said {
            Message::Work { work, name } => {
                let work = device_work(&mut fold, &work, name);
                fold.add(work);
            }
            Message::Mode { at_ns, .. } => fold.begin_burst(at_ns),
            _ => {}
        });
        assert!(read <= slots.len());
    }
    fold.finish();
    let _ = (fold.steps(), fold.windows(), fold.timelines(), fold.finding().to_string());
});
