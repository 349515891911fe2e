//! What holds for any stream.

use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    builder::{fold, folded_whole},
    *,
};
use llmprof_event::kernels::work::{KernelLaunch, Names, WorkKind};

const NAMES: [&str; 12] = [
    LOOKUP,
    "vllm::rms_norm_kernel",
    "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT",
    "vllm::rotary_embedding_kernel",
    FLASH,
    "flash_attn_combine_results",
    "vllm::act_and_mul_kernel<silu>",
    ARGMAX,
    "void at::native::cunn_SoftMaxForward<4, float>",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "triton_per_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0",
    "something else",
];

prop_compose! {
    /// Any work: times may be missing, overlap or run backwards.
    fn any_work()(
        (start, length) in (0u64..50_000_000, prop_oneof![0u64..50_000, Just(u64::MAX)]), kind in 0u8..8, name in 0usize..NAMES.len(),
        (stream, device, correlation) in (0u32..3, 0u16..2, 0u32..50), graph in proptest::option::of(0u32..3),
        blocks in 0u32..100_000, bytes in prop_oneof![Just(8u64), any::<u64>()],
    ) -> DeviceActivity {
        let launch = KernelLaunch { grid: [blocks, 1, 1], block: [128, 1, 1], registers: 0, shared_bytes: 0 };
        let kind = match kind {
            0 => WorkKind::Copy { direction: Direction::DeviceToHost, bytes },
            1 => WorkKind::Copy { direction: Direction::HostToDevice, bytes },
            2 => WorkKind::Memset { bytes },
            3 => WorkKind::Graph { graph: 1 },
            4 => WorkKind::Sync,
            _ => WorkKind::Kernel { name: llmprof_event::kernels::work::NameId(name as u32 + 1), launch },
        };
        DeviceActivity { start_ns: start, end_ns: start.wrapping_add(length), stream, device, correlation, graph, kind }
    }
}

fn named() -> Fold {
    let mut fold = Fold::default();
    NAMES.iter().for_each(|name| {
        fold.name(name);
    });
    fold
}

/// Steps in order, and windows whose rows add up.
fn check(fold: &mut Fold) -> (Vec<Step>, u64) {
    let steps = steps_of(fold);
    for step in &steps {
        assert!((0.0..=1.0).contains(&step.confidence.share()));
    }
    let windows = fold.windows();
    for ProgramWindow { window, .. } in &windows {
        let overlaps = window.overlaps.as_ref().unwrap();
        assert!(window.busy_ns <= window.span_ns, "{window:?}");
        let ns: f64 = window.rows.iter().filter_map(|row| row.total_ns).sum();
        assert!((ns - window.busy_ns as f64).abs() < 1.0);
        for part in [overlaps.to_device, overlaps.to_host, overlaps.communication] {
            assert!(part.exposed_ns <= part.total_ns);
        }
    }
    (steps, windows.iter().map(|window| window.window.launches + window.window.unmeasured).sum())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_stream_is_folded(
        works in vec(any_work(), 0..400), batch in 1usize..100, bursts in vec((0u64..60_000_000, 0u64..60_000_000), 0..4),
        ranges in vec((0u64..50_000_000, 0u64..60_000_000, 0usize..3), 0..5),
    ) {
        let mut fold = named();
        let mut bursts = bursts.into_iter();
        let texts = ["decode step 1", "[Executor] _forward_step 1: 1 ctx reqs, 2 ctx tokens, 3 gen reqs", "other"];
        for (start_ns, end_ns, text) in ranges {
            fold.add_range(&Range { domain: String::new(), text: texts[text].into(), thread: 0, start_ns, end_ns });
        }
        for (i, works) in works.chunks(batch).enumerate() {
            if let Some((from, to)) = bursts.next() {
                fold.begin_burst(from);
                fold.end_burst(to);
            }
            fold.request_timelines();
            works.iter().for_each(|work| fold.add(*work));
            fold.end_batch(600_000_000 + i as u64 * 1_000_000);
        }
        fold.finish();
        let (_, launches) = check(&mut fold);
        let timed = works.iter().filter(|work| work.is_timed());
        let device = timed.filter(|work| matches!(work.kind, WorkKind::Kernel { .. })).count() as u64;
        prop_assert!(launches >= device || launches == 0, "every kernel is in a window, or was left out");
        let _ = fold.timelines();
    }

    #[test]
    fn the_order_within_a_batch_does_not_matter(
        seeds in vec(any::<Index>(), 300), launch in prop_oneof![Just(Launch::Eager(2_000)), Just(Launch::Graph(4))],
    ) {
        let mut program = Program::new(5, launch);
        program.step(64);
        program.steps(8);
        let mut shuffled = program.works.clone();
        for (i, seed) in seeds.iter().enumerate() {
            let at = i % shuffled.len();
            let other = seed.index(shuffled.len());
            shuffled.swap(at, other);
        }
        let of = |works: &[DeviceActivity]| {
            let mut fold = fold();
            fold.begin_burst(1);
            works.iter().for_each(|work| fold.add(*work));
            fold.finish();
            let steps = fold.steps();
            (steps, fold.windows())
        };
        let (in_order, any_order) = (of(&program.works), of(&shuffled));
        prop_assert_eq!(in_order.0.len(), 9);
        prop_assert_eq!(in_order, any_order);
    }

    #[test]
    fn noise_does_not_change_the_number_of_steps(
        at in vec((0usize..1_000, 0u32..20), 0..40), lost in vec(any::<Index>(), 0..5),
    ) {
        let mut program = Program::new(12, Launch::Eager(2_000));
        program.steps(20);
        let mut works = program.works.clone();
        for (i, name) in at {
            let work = works[i % program.works.len()];
            let names = ["noise_a", "noise_b", "noise_c"];
            let mut noise = Program::new(1, Launch::Eager(0));
            noise.now = work.start_ns + 100;
            noise.stream = 9;
            noise.eager(&[Op::Kernel(names[name as usize % 3], 1, 700)]);
            works.extend(noise.works);
        }
        for index in lost {
            let at = index.index(works.len());
            // Sampling kernels that are lost with the lookups after them lose a step.
            if !matches!(works[at].kind, WorkKind::Kernel { .. }) || at % 2 == 0 {
                works.remove(at);
            }
        }
        let mut fold = folded_whole(&works);
        let found = steps_of(&mut fold).len();
        prop_assert!((18..=20).contains(&found), "{} {}", found, fold.finding());
    }
}

#[test]
fn memory_is_bounded() {
    let mut fold = Fold::default();
    let mut now = 1_000u64;
    let launch = KernelLaunch { grid: [1, 1, 1], block: [128, 1, 1], registers: 0, shared_bytes: 0 };
    fold.begin_burst(1);
    // A program that compiles a kernel for every launch, without end, whose windows are not taken.
    for i in 0..100_000u32 {
        let name = fold.name(&format!("_kernel_of_shape_{i}"));
        let kind = WorkKind::Kernel { name, launch: KernelLaunch { grid: [i, 1, 1], ..launch } };
        fold.add(DeviceActivity {
            start_ns: now,
            end_ns: now + 500,
            stream: 7,
            device: 0,
            correlation: i,
            graph: None,
            kind,
        });
        fold.add_range(&Range {
            domain: "d".into(),
            text: "decode step".into(),
            thread: 0,
            start_ns: now,
            end_ns: now + 400,
        });
        now += 1_000_000;
        if i % 1_000 == 0 {
            fold.end_batch(now);
        }
        if i % 100 == 0 {
            fold.begin_burst(now);
        }
    }
    fold.finish();
    assert!(fold.names().len() <= 1 << 15);
    assert_eq!(fold.name("one more"), Names::OTHERS);
    assert!(fold.steps().len() <= 65_536);
    let rows: usize = fold.windows().iter().map(|window| window.window.rows.len()).sum();
    assert!(rows <= 2 * 8_200, "{rows}");
}

/// Prints the throughput: `cargo test --release -p llmprof-analysis --lib steps:: -- --ignored throughput --nocapture`.
#[test]
#[ignore = "measures"]
fn throughput() {
    for (what, launch, bursts) in [
        ("eager, always recorded", Launch::Eager(2_000), true),
        ("graphs, always recorded", Launch::Graph(1), true),
        ("graphs, between bursts", Launch::Graph(1), false),
    ] {
        let mut program = Program::new(32, launch);
        program.steps(3_000);
        let first = program.works[0].start_ns;
        let bursts = if bursts { vec![(1, u64::MAX)] } else { vec![(first, first + 100 * MS)] };
        let records = builder::recorded(&program.works, &bursts).len();
        let begin = std::time::Instant::now();
        let mut fold = builder::folded(&program.works, &bursts);
        let windows = fold.windows();
        let seconds = begin.elapsed().as_secs_f64();
        let rate = records as f64 / seconds;
        println!(
            "{what}: {records} records in {seconds:.2} s, {rate:.0} records/s, {:?}, {} windows",
            fold.counts(),
            windows.len()
        );
    }
}
