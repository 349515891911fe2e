//! Records of real servers on an H200, beside what their own torch.profiler reported for the same load
//! (`tests/gpu/engine.sh`).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{recorded::recording_at, *};
use llmprof_event::kernels::{KernelRow, live::KernelWindow, work::WorkKind};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/engines").join(name)
}

/// Mean microseconds of the kernels in the profiler's trace, with the number of calls.
fn by_profiler(name: &str) -> BTreeMap<String, (u64, f64)> {
    let text = fs::read_to_string(file(name)).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.splitn(4, '\t').collect();
        (cells[3].to_owned(), (cells[0].parse().unwrap(), cells[2].parse().unwrap()))
    };
    text.lines().map(row).collect()
}

/// When SGLang was ready, by the clock of its recording, which begins with its start.
const SERVES_FROM: u64 = 133_000_000_000;

/// The recording of its requests, and what the profiler reported.
struct Engine {
    fold: Fold,
    profiler: BTreeMap<String, (u64, f64)>,
}

fn engine(name: &str) -> Engine {
    let mut recording = recording_at(&file(&format!("{name}.tsv.gz")));
    recording.played(|fold, now| {
        if name.starts_with("sglang") && now < SERVES_FROM {
            fold.steps();
            fold.windows();
        }
    });
    let fold = recording.into_fold();
    Engine { fold, profiler: by_profiler(&format!("{name}.torch.tsv")) }
}

fn window(windows: &[ProgramWindow], phase: StepPhase) -> &KernelWindow {
    &windows.iter().find(|window| window.phase == phase).unwrap().window
}

/// The operator that has most of a kernel's time, by a part of its name.
fn operator_of(window: &KernelWindow, name: &str) -> Option<Operator> {
    let rows = window.rows.iter().filter(|row| row.name.contains(name));
    rows.max_by(|a, b| a.total_ns.unwrap().total_cmp(&b.total_ns.unwrap())).unwrap().operator
}

/// The share of kernel time in rows that have one of these operators.
fn share(window: &KernelWindow, has: impl Fn(Option<Operator>) -> bool) -> f64 {
    let time = |row: &&KernelRow| row.total_ns.unwrap();
    let fits = window.rows.iter().filter(|row| has(row.operator)).map(|row| time(&row)).sum::<f64>();
    fits / window.busy_ns as f64
}

/// GEMMs have the same duration in every step of a batch: ours and the profiler's are of the same load at
/// other moments.
#[test]
fn kernels_have_the_durations_of_the_engines_own_profiler() {
    for (name, products) in [("vllm_bf16", 8), ("vllm_fp8", 1), ("vllm_eager", 4), ("sglang_bf16", 5)] {
        let Engine { mut fold, profiler } = engine(name);
        let windows = fold.windows();
        let mut times: BTreeMap<&str, (u64, f64)> = BTreeMap::new();
        let decode = window(&windows, StepPhase::Decode);
        for row in &decode.rows {
            let (calls, ns) = times.entry(&row.name).or_default();
            (*calls, *ns) = (*calls + row.calls, *ns + row.total_ns.unwrap());
        }
        let mut compared = 0;
        for (kernel, (calls, ns)) in &times {
            // Some of the steps of a start have other sizes.
            let is_usual = *calls * 2 >= decode.steps && kernel.starts_with("nvjet_");
            let Some((_, theirs_us)) = profiler.get(*kernel).filter(|_| is_usual) else {
                continue;
            };
            let us = ns / *calls as f64 / 1e3;
            assert!(
                (us / theirs_us - 1.0).abs() < 0.03,
                "{name}: {kernel}: {us} µs, by the profiler {theirs_us}"
            );
            compared += 1;
        }
        assert!(compared >= products, "{name}: {compared} products");
    }
}

#[test]
fn nothing_is_longer_than_its_step() {
    for name in ["vllm_bf16", "vllm_fp8", "vllm_eager"] {
        let mut fold = engine(name).fold;
        let longest =
            steps_of(&mut fold).iter().map(|step| step.end_ns - step.start_ns).max().unwrap() as f64;
        let windows = fold.windows();
        for ProgramWindow { phase, window } in &windows {
            for row in window.rows.iter().filter(|_| *phase != StepPhase::Other) {
                assert!(row.max_ns.unwrap() <= longest, "{name}, {phase}: {row:?}");
            }
        }
        let decode = window(&windows, StepPhase::Decode);
        let longest = decode.rows.iter().filter_map(|row| row.max_ns).fold(0.0, f64::max);
        assert!(
            longest < 300_000.0,
            "{name}: the LM head is the longest kernel of a decode step, not {longest} ns"
        );
        let left_out: u64 = windows.iter().map(|window| window.window.unmeasured).sum();
        assert_eq!(
            left_out > 0,
            name != "vllm_eager",
            "{name}: {left_out} nodes of graphs had no true times"
        );
    }
}

#[test]
fn operators_are_those_of_the_model() {
    use Operator as O;
    let layers = 28.0;
    for (name, kernels) in [
        (
            "vllm_bf16",
            &[
                ("nvjet_sm90_tst_64x16_64x16_4x1_v_bz_bias_TNT", O::Qkv),
                ("FlashAttnFwdSm90", O::Attention),
                ("FlashAttnFwdCombine", O::Attention),
                ("nvjet_sm90_tst_64x16_64x16_4x1_v_bz_splitK_TNT", O::AttentionOutput),
                ("nvjet_sm90_tst_384x16_64x4_4x1_v_bz_TNT", O::GateUp),
                ("triton_poi_fused_mul_silu_slice_1", O::Activation),
                ("nvjet_sm90_tst_192x16_64x8_4x1_v_bz_splitK_TNT", O::Down),
                ("nvjet_sm90_tst_384x16_64x4_2x1_v_bz_TNT", O::LmHead),
                ("ArgMaxOps", O::Sampling),
                ("triton_red_fused__to_copy_embedding_rms_norm_0", O::Embedding),
            ][..],
        ),
        (
            "vllm_fp8",
            &[("nvjet_sm90_tst_384x16_64x4_2x1_v_bz_TNT", O::LmHead), ("FlashAttnFwdSm90", O::Attention)],
        ),
        (
            "vllm_eager",
            &[("nvjet_sm90_tst_384x16_64x4_2x1_v_bz_TNT", O::LmHead), ("act_and_mul", O::Activation)],
        ),
        (
            "sglang_bf16",
            &[
                ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_bias_TNT", O::Qkv),
                ("_fwd_grouped_kernel_stage1", O::Attention),
                ("_fwd_kernel_stage2", O::Attention),
                ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", O::AttentionOutput),
                ("nvjet_sm90_tst_384x8_64x4_4x1_v_bz_TNT", O::GateUp),
                ("act_and_mul", O::Activation),
                ("nvjet_sm90_tst_256x8_64x6_4x1_v_bz_splitK_TNT", O::Down),
                ("nvjet_sm90_tst_384x8_64x4_2x1_v_bz_TNT", O::LmHead),
                ("ArgMaxOps", O::Sampling),
            ],
        ),
    ] {
        let windows = engine(name).fold.windows();
        let decode = window(&windows, StepPhase::Decode);
        for (kernel, operator) in kernels {
            assert_eq!(operator_of(decode, kernel), Some(*operator), "{name}: {kernel}");
        }
        let calls = |operator: Operator| {
            let products = decode
                .rows
                .iter()
                .filter(|row| row.operator == Some(operator) && Class::from_name(&row.name).is_product());
            products.map(|row| row.calls).sum::<u64>() as f64 / decode.steps as f64
        };
        for (operator, wanted) in [
            (O::Qkv, layers),
            (O::AttentionOutput, layers),
            (O::GateUp, layers),
            (O::Down, layers),
            (O::LmHead, 1.0),
        ] {
            // A burst may begin or end within a step.
            assert!(
                (calls(operator) / wanted - 1.0).abs() < 0.03,
                "{name}: {operator} {} a step",
                calls(operator)
            );
        }
        assert!(share(decode, |operator| operator.is_none()) < 0.02, "{name}");
        let products = share(decode, |operator| {
            matches!(operator, Some(O::Qkv | O::AttentionOutput | O::GateUp | O::Down | O::LmHead))
        });
        assert!((0.6..0.9).contains(&products), "{name}: products have {products} of the time");
    }
}

/// `operators.tsv` lists by hand what the kernels of decode steps are: by their place in the layer, their
/// launches per step, and the bytes that their time allows (in the 7B model gate_up reads 271 MB, down 136,
/// qkv 33, attn_out 26, lm_head 1,090).
#[test]
fn operators_are_those_found_by_hand() {
    let table = fs::read_to_string(file("operators.tsv")).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
    for name in ["vllm_bf16", "vllm_fp8", "vllm_eager", "sglang_bf16", "vllm_experts"] {
        let windows = engine(name).fold.windows();
        let decode = window(&windows, StepPhase::Decode);
        let is_right = |row: &&KernelRow| {
            let by_hand = rows.iter().find(|known| known[0] == name && row.name.contains(known[2]));
            let operator = row.operator.map_or("none", Operator::name);
            by_hand.is_some_and(|known| known[1].split(',').any(|one| one == operator))
        };
        let time = |row: &KernelRow| row.total_ns.unwrap();
        let right = decode.rows.iter().filter(is_right).map(time).sum::<f64>() / decode.busy_ns as f64;
        println!("{name}: {:.2} % of the kernel time has the operator found by hand", 100.0 * right);
        let others: Vec<_> = decode.rows.iter().filter(|row| !is_right(row)).take(5).collect();
        assert!(right >= 0.98, "{name}: {right}, and not {others:#?}");
    }
}

#[test]
fn prompts_beside_decoding_sequences_are_mixed_steps() {
    let mut fold = engine("vllm_bf16").fold;
    let steps = steps_of(&mut fold);
    let recorded: Vec<Step> = steps.iter().filter(|step| step.is_recorded()).copied().collect();
    let (prefill, _, mixed, _) = phases(&recorded);
    assert_eq!((prefill, mixed), (1, 2), "the first of 16 requests alone, then the others beside it");
    // 16 prompts of 500 words, with a few tokens more each; one of the sequences continues meanwhile.
    let tokens = recorded.iter().filter(|step| step.phase != StepPhase::Decode).map(|step| step.tokens);
    assert_eq!(
        tokens.collect::<Vec<_>>(),
        [496, 6537, 994].map(|tokens| Some(Tokens::Estimated(tokens))),
        "as many as the norms have blocks"
    );
    let (prefill, decode, mixed, _) = phases(&steps);
    assert_eq!((prefill, mixed), (11, 12), "and between bursts, by their lengths and results");
    assert!(decode > 1_200, "{decode}");
}

/// SGLang makes steps of all sizes when it starts: those of its requests are decode steps all the same.
#[test]
fn decode_is_found_after_a_start_with_steps_of_all_sizes() {
    let mut recording = recording_at(&file("sglang_bf16.tsv.gz"));
    let mut served: BTreeMap<StepPhase, (u64, u64, u64)> = BTreeMap::new();
    recording.played(|fold, now| {
        fold.steps();
        let windows = fold.windows();
        for ProgramWindow { phase, window } in windows.into_iter().filter(|_| now > SERVES_FROM) {
            let sums = served.entry(phase).or_default();
            *sums = (sums.0 + window.steps, sums.1 + window.busy_ns, sums.2 + window.span_ns);
        }
    });
    let (decode, busy_ns, span_ns) = served[&StepPhase::Decode];
    let others: u64 = [StepPhase::Prefill, StepPhase::Mixed]
        .iter()
        .filter_map(|phase| served.get(phase))
        .map(|sums| sums.0)
        .sum();
    assert!(decode > 80 && others < 10, "{served:?}");
    // By the profiler of SGLang 1,118.9 of 1,202.3 ms, prompts among them.
    let busy = busy_ns as f64 / span_ns as f64;
    assert!((0.9..0.98).contains(&busy), "{busy}");
}

#[test]
#[ignore = "prints the windows of the recording that LLMPROF_RECORDS names, over time"]
fn windows_of_a_recording() {
    let mut recording = recording_at(Path::new(&std::env::var("LLMPROF_RECORDS").unwrap()));
    let mut printed = 0;
    recording.played(|fold, now| {
        if now < printed + 1_000_000_000 {
            return;
        }
        printed = now;
        let steps = steps_of(fold);
        for ProgramWindow { phase, window } in fold.windows() {
            let per = 1e6 * window.steps.max(1) as f64;
            println!(
                "{:8.2} {phase} {} steps of {:.1} launches, busy {:.3} of {:.3} ms, between {:.3}, unmeasured {}",
                now as f64 / 1e9,
                window.steps,
                window.launches as f64 / window.steps.max(1) as f64,
                window.busy_ns as f64 / per,
                window.span_ns as f64 / per,
                window.between_ns as f64 / per,
                window.unmeasured
            );
        }
        println!("         {} {:?}", fold.finding(), phases(&steps));
    });
}

/// The shape of Qwen3-30B-A3B: 48 layers of 128 experts, of which eight are used.
#[test]
fn experts_have_their_router_and_products() {
    use Operator as O;
    let Engine { mut fold, profiler } = engine("vllm_experts");
    let windows = fold.windows();
    let decode = window(&windows, StepPhase::Decode);
    for (kernel, operator) in [
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", O::Qkv),
        ("FlashAttnFwdSm90", O::Attention),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", O::AttentionOutput),
        ("triton_red_fused_fused_add_rms_norm_moe_forward_0", O::MlpNorm),
        ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", O::Router),
        ("topkGating", O::Router),
        ("fused_moe_kernel", O::GateUp),
        ("act_and_mul", O::Activation),
        ("reduce_kernel<128, 4", O::Down),
        ("triton_red_fused_fused_add_rms_norm_1", O::AttentionNorm),
        ("nvjet_sm90_tst_384x8_64x4_2x1_v_bz_TNT", O::LmHead),
    ] {
        assert_eq!(operator_of(decode, kernel), Some(operator), "{kernel}");
        // The batch, and with it the number of experts, differs between the two moments.
        let rows = decode.rows.iter().filter(|row| row.name.contains(kernel) && row.calls > 2 * decode.steps);
        let (calls, ns) = rows.fold((0, 0.0), |(n, ns), row| (n + row.calls, ns + row.total_ns.unwrap()));
        let theirs = profiler.iter().filter(|(name, _)| name.contains(kernel)).max_by_key(|(_, (n, _))| *n);
        if let (true, Some((_, (_, theirs_us)))) = (kernel.starts_with("nvjet") && calls > 0, theirs) {
            let us = ns / calls as f64 / 1e3;
            assert!((us / theirs_us - 1.0).abs() < 0.03, "{kernel}: {us} µs, by the profiler {theirs_us}");
        }
    }
    let experts = decode.rows.iter().filter(|row| row.name.contains("fused_moe_kernel")).map(|row| row.calls);
    let each = experts.sum::<u64>() as f64 / decode.steps as f64;
    assert!((each / 96.0 - 1.0).abs() < 0.03, "{each} products of experts a step");
    let unknown = share(decode, |operator| operator.is_none());
    assert!(unknown < 0.02, "{unknown}");
}

#[test]
#[ignore = "prints the tables of the recordings"]
fn tables_of_engines() {
    // Another recording: the two files without their endings.
    let other = std::env::var("LLMPROF_ENGINE").ok();
    let kept = ["vllm_bf16", "vllm_fp8", "vllm_eager", "sglang_bf16", "vllm_experts"].map(str::to_owned);
    for name in other.map_or(kept.to_vec(), |name| vec![name]) {
        let mut fold = recording_at(&file(&format!("{name}.tsv.gz"))).folded();
        let torch = by_profiler(&format!("{name}.torch.tsv"));
        let steps = steps_of(&mut fold);
        println!("\n== {name}: {} {:?}", fold.finding(), phases(&steps));
        for ProgramWindow { phase, window } in fold.windows() {
            let steps = window.steps.max(1) as f64;
            println!(
                "-- {phase}: {} steps, {:.1} launches, busy {:.3} ms, span {:.3} ms, between {:.3} ms, unmeasured {}",
                window.steps,
                window.launches as f64 / steps,
                window.busy_ns as f64 / steps / 1e6,
                window.span_ns as f64 / steps / 1e6,
                window.between_ns as f64 / steps / 1e6,
                window.unmeasured
            );
            for row in window.rows.iter().take(32) {
                let theirs = torch.get(&row.name).map(|(_, mean)| *mean);
                println!(
                    "{:>12} {:7.2}/step mean {:9.2} µs (min {:.2} max {:.2}) torch {:>9} {:?} {:.60}",
                    row.operator.map_or("-".to_owned(), |operator| operator.to_string()),
                    row.calls as f64 / steps,
                    row.mean_ns.unwrap() / 1e3,
                    row.min_ns.unwrap() / 1e3,
                    row.max_ns.unwrap() / 1e3,
                    theirs.map_or("-".to_owned(), |mean| format!("{mean:.2}")),
                    row.grid.unwrap_or_default(),
                    row.name
                );
            }
        }
    }
}

/// The steps of a recording. Between two times there must be as many as copies to the host that are no nodes of graphs: a server makes one
/// in each step that answers requests.
fn steps_beside_results(name: &str, from_ns: u64, to_ns: u64) -> Vec<Step> {
    let mut recording = recording_at(&file(name));
    let mut steps = Vec::new();
    recording.played(|fold, _| steps.extend(steps_of(fold)));
    let is_result = |work: &&DeviceActivity| {
        matches!(work.kind, WorkKind::Copy { direction: Direction::DeviceToHost, .. })
            && work.graph.is_none()
            && (from_ns..to_ns).contains(&work.start_ns)
    };
    let copies = recording.works().iter().filter(is_result).count();
    let found = steps.iter().filter(|step| (from_ns..to_ns).contains(&step.end_ns)).count();
    assert!(
        copies > 250 && found.abs_diff(copies) * 50 <= copies,
        "{found} steps, {copies} copies of results"
    );
    steps
}

/// With 64 requests at a time, several steps in a row are of prompts alone, and most of them lie between bursts.
#[test]
fn long_steps_between_bursts_have_the_phase_of_those_in_bursts() {
    let mut recording = recording_at(&file("vllm_64.tsv.gz"));
    let mut steps = Vec::new();
    recording.played(|fold, _| steps.extend(steps_of(fold)));
    let ms = |step: &Step| (step.end_ns - step.start_ns) as f64 / 1e6;
    let between: Vec<&Step> = steps.iter().filter(|step| !step.is_recorded()).collect();
    let (long, usual): (Vec<&Step>, Vec<&Step>) = between.iter().partition(|step| ms(step) > 50.0);
    assert!(long.len() >= 12 && usual.len() >= 400, "{} and {}", long.len(), usual.len());
    let has_prompts = |step: &&Step| matches!(step.phase, StepPhase::Prefill | StepPhase::Mixed);
    assert!(long.iter().all(has_prompts), "{long:#?}");
    let decode = usual.iter().filter(|step| step.phase == StepPhase::Decode).count();
    assert!(decode as f64 >= 0.97 * usual.len() as f64, "{decode} of {}", usual.len());
}

/// A burst within long prompts has few steps, which are found in another way: they do not change what marks a step between bursts.
#[test]
fn bursts_of_prompts_alone_do_not_interrupt_the_count() {
    let steps = steps_beside_results("sglang_64.tsv.gz", 1_600_000_000, 7_800_000_000);
    // The results of prompts alone are those of another number of sequences.
    let long = steps.iter().filter(|step| !step.is_recorded() && step.end_ns - step.start_ns > 100_000_000);
    let long: Vec<StepPhase> = long.map(|step| step.phase).collect();
    let prefills = long.iter().filter(|phase| **phase == StepPhase::Prefill).count();
    assert!(long.len() >= 10 && prefills * 10 >= long.len() * 9, "{prefills} of {} are prefills", long.len());
}

/// With speculation the results of a step have a size that depends on how many sequences run and how many tokens were proposed.
#[test]
fn steps_with_speculation_are_found_between_bursts() {
    steps_beside_results("vllm_ngram.tsv.gz", 67_000_000_000, 70_000_000_000);
}

#[test]
#[ignore = "prints the steps of the recording that LLMPROF_RECORDS names beside its copies of results"]
fn steps_of_a_recording() {
    let mut recording = recording_at(Path::new(&std::env::var("LLMPROF_RECORDS").unwrap()));
    let mut steps = Vec::new();
    recording.played(|fold, _| steps.extend(steps_of(fold)));
    for work in recording.works() {
        if let WorkKind::Copy { direction: Direction::DeviceToHost, bytes } = work.kind {
            println!("{:12.3} copy of {bytes} bytes, {:?}", work.end_ns as f64 / 1e6, work.graph);
        }
    }
    for step in &steps {
        let ms = |ns: u64| ns as f64 / 1e6;
        let (length, launches, tokens) = (ms(step.end_ns - step.start_ns), step.launches, step.tokens);
        println!(
            "{:12.3} {} of {length:.3} ms, {launches:?} {tokens:?} {:?} {:?}",
            ms(step.end_ns),
            step.phase,
            step.basis,
            step.is_cut
        );
    }
}
