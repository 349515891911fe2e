//! Steps of synthetic and recorded programs.

mod builder;
mod engines;
mod names;
mod properties;
mod recorded;

use builder::{ARGMAX, FLASH, LOOKUP, Launch, Op, Program, folded, folded_whole};

use super::*;
use llm_cost::Operator;
use llmprof_event::{
    Phase,
    kernels::work::{DeviceActivity, Direction},
};

const MS: u64 = 1_000_000;

/// Steps do not overlap and are in order.
fn steps_of(fold: &mut Fold) -> Vec<Step> {
    let steps = fold.steps();
    for pair in steps.windows(2) {
        assert!(pair[0].end_ns <= pair[1].start_ns, "{pair:?}");
    }
    assert!(steps.iter().all(|step| step.start_ns <= step.end_ns));
    steps
}

fn phases(steps: &[Step]) -> (usize, usize, usize, usize) {
    let count = |phase| steps.iter().filter(|step| step.phase == phase).count();
    (count(StepPhase::Prefill), count(StepPhase::Decode), count(StepPhase::Mixed), count(StepPhase::Other))
}

#[test]
fn an_eager_program_has_prefills_and_decode_steps() {
    let mut program = Program::new(24, Launch::Eager(3_000));
    for _ in 0..2 {
        program.step(512);
        program.steps(20);
        program.now += 30 * MS;
    }
    let mut fold = folded_whole(&program.works);
    fold.request_timelines();
    let steps = steps_of(&mut fold);
    assert_eq!(phases(&steps), (2, 40, 0, 0), "{:?}", fold.finding());
    assert!(steps.iter().all(|step| step.basis == Basis::Sampler && step.layers == Some(24)));
    assert_eq!(steps[0].tokens, Some(Tokens::Estimated(512)));
    assert_eq!(steps[5].tokens, Some(Tokens::Estimated(1)));
    assert_eq!(steps[5].launches, Some(24 * 10 + 3 + 2));
    assert_eq!(steps[5].attention_ns, Some(24 * 6_000));
    assert!(steps.last().unwrap().confidence.share() > 0.9, "{:?}", steps.last());
    assert_eq!(fold.counts().total(), 42);

    let windows = fold.windows();
    let decode = &windows.iter().find(|window| window.phase == StepPhase::Decode).unwrap().window;
    assert_eq!((decode.phase, decode.steps, decode.launches), (Phase::Decode, 40, 40 * 245));
    let ns: f64 = decode.rows.iter().filter_map(|row| row.total_ns).sum();
    assert_eq!(ns, decode.busy_ns as f64, "rows add up to the busy time");
    assert!(decode.busy_ns <= decode.span_ns);
    let of = |operator| {
        decode.rows.iter().filter(|row| row.operator == Some(operator)).map(|row| row.calls).sum::<u64>()
    };
    for operator in
        [Operator::Qkv, Operator::AttentionOutput, Operator::GateUp, Operator::Down, Operator::Attention]
    {
        assert_eq!(of(operator), 40 * 24, "{operator}");
    }
    assert_eq!((of(Operator::LmHead), of(Operator::Embedding), of(Operator::FinalNorm)), (40, 40, 40));
    assert_eq!(
        fold.finding().to_string(),
        "Steps by the sampling kernels: 24 layers, 42 of 42 recent steps confirm it. Between bursts: by a copy that every step \
         has."
    );
}

#[test]
fn timelines_have_the_form_of_our_own() {
    let mut program = Program::new(4, Launch::Eager(1_000));
    program.steps(5);
    let mut fold = builder::fold();
    fold.request_timelines();
    fold.begin_burst(1);
    program.works.iter().for_each(|work| fold.add(*work));
    fold.finish();
    let timelines = fold.timelines();
    assert_eq!(timelines.len(), 1);
    let RecordedTimeline { phase, first_ns, timeline } = &timelines[0];
    assert_eq!(
        (*phase, *first_ns, timeline.phase),
        (StepPhase::Decode, program.works[0].start_ns, Phase::Decode)
    );
    assert_eq!(timeline.spans.len(), 4 * 10 + 3 + 2);
    assert_eq!((timeline.spans[2].operator, timeline.spans[2].layer), (Some(Operator::Qkv), Some(0)));
    assert_eq!((timeline.spans[12].operator, timeline.spans[12].layer), (Some(Operator::Qkv), Some(1)));
    assert!(fold.timelines().is_empty());
}

#[test]
fn steps_are_counted_between_bursts() {
    for launch in [Launch::Eager(3_000), Launch::Graph(5)] {
        let mut program = Program::new(16, launch);
        program.steps(3_000);
        let first = program.works[0].start_ns;
        let burst = |i: u64| (first + 100 * MS + i * 2_000 * MS, first + 300 * MS + i * 2_000 * MS);
        let bursts: Vec<(u64, u64)> = (0..3).map(burst).collect();
        let mut fold = folded(&program.works, &bursts);
        let steps = steps_of(&mut fold);
        // Before the first burst nothing is known.
        let unseen =
            program.works.iter().filter(|work| is_token_copy(work) && work.end_ns < bursts[0].0).count();
        assert_eq!(steps.len(), 3_000 - unseen, "{launch:?} {:?}", fold.finding());
        assert_eq!(phases(&steps).1, steps.len(), "{launch:?}");
        let recorded = steps.iter().filter(|step| step.is_recorded()).count();
        assert!(recorded > 100 && recorded < 1_000, "{recorded}");
        assert!(steps.iter().filter(|step| !step.is_recorded()).all(|step| step.basis == Basis::Copy));
    }
}

/// CUPTI gives copies that run while its buffers are collected no times: their steps count, and have no latency of their own.
#[test]
fn copies_without_times_mark_steps() {
    let mut program = Program::new(16, Launch::Graph(5));
    program.steps(600);
    let first = program.works[0].start_ns;
    let burst = (first, first + 100 * MS);
    let after = |work: &&mut DeviceActivity| is_token_copy(work) && work.start_ns > burst.1 + 100 * MS;
    for work in program.works.iter_mut().filter(after).take(2) {
        (work.start_ns, work.end_ns) = (0, 0);
    }
    let mut fold = folded(&program.works, &[burst]);
    let steps = steps_of(&mut fold);
    assert_eq!(steps.len(), 600, "{:?}", fold.finding());
    assert_eq!(phases(&steps).1, 600);
    let estimated: Vec<&Step> =
        steps.iter().filter(|step| step.is_cut && step.start_ns > burst.1 + 90 * MS).collect();
    assert_eq!(estimated.len(), 3, "the two without times and the one after them");
}

fn is_token_copy(work: &DeviceActivity) -> bool {
    use llmprof_event::kernels::work::WorkKind;
    matches!(work.kind, WorkKind::Copy { direction: Direction::DeviceToHost, .. })
}

/// A greedy loop without any copy: `logits.argmax(-1)` is the next input.
fn without_copies(launch: Launch, steps: usize) -> Program {
    let mut program = Program::new(12, launch);
    for _ in 0..steps {
        let model = program.model(1);
        program.run(&model);
        program.eager(&[Op::Kernel(ARGMAX, 1, 4_000)]);
    }
    program
}

#[test]
fn nothing_is_claimed_where_nothing_marks_a_step() {
    let program = without_copies(Launch::Eager(2_000), 400);
    let first = program.works[0].start_ns;
    let mut fold = folded(&program.works, &[(first + 50 * MS, first + 150 * MS)]);
    let steps = steps_of(&mut fold);
    assert!(!steps.is_empty() && steps.iter().all(Step::is_recorded));
    assert!(steps.iter().all(|step| step.start_ns >= first + 50 * MS && step.end_ns <= first + 151 * MS));
    assert!(
        fold.finding().to_string().ends_with("Between bursts nothing marks a step."),
        "{}",
        fold.finding()
    );
}

#[test]
fn graphs_mark_steps_without_copies() {
    let program = without_copies(Launch::Graph(9), 400);
    let first = program.works[0].start_ns;
    let mut fold = folded(&program.works, &[(first, first + 100 * MS)]);
    let steps = steps_of(&mut fold);
    assert!((399..=400).contains(&steps.len()), "{} {}", steps.len(), fold.finding());
    assert_eq!(steps.last().unwrap().basis, Basis::Graph);
}

#[test]
fn several_graphs_and_a_tail_of_small_kernels() {
    // The layers are two graphs; after the sampler, stopping criteria run and are read by the host.
    let mut program = Program::new(10, Launch::Graph(1));
    for _ in 0..60 {
        let model = program.model(1);
        let (front, back) = model.split_at(51);
        program.launch = Launch::Graph(1);
        program.run(front);
        program.launch = Launch::Graph(2);
        program.run(back);
        program.eager(&[
            Op::Kernel(ARGMAX, 1, 4_000),
            Op::Kernel(
                "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<bool>>",
                1,
                1_500,
            ),
            Op::Kernel(
                "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<long, MaxNanFunctor<long>>>",
                1,
                1_500,
            ),
            Op::Copy(Direction::DeviceToHost, 1),
            Op::Wait,
            Op::Kernel(
                "(anonymous namespace)::elementwise_kernel_with_index<int, arange_cuda_out>",
                1,
                1_500,
            ),
            Op::Copy(Direction::HostToDevice, 8),
        ]);
    }
    let mut fold = folded_whole(&program.works);
    let steps = steps_of(&mut fold);
    assert_eq!(steps.len(), 60, "{}", fold.finding());
    let first = program.works[0].start_ns;
    let mut fold = folded(&program.works, &[(first, first + 20 * MS)]);
    let steps = steps_of(&mut fold);
    assert!((59..=60).contains(&steps.len()), "{} {}", steps.len(), fold.finding());
}

#[test]
fn a_kernel_that_recurs_marks_steps_of_unknown_samplers() {
    let mut program = Program::new(8, Launch::Eager(1_000));
    for _ in 0..30 {
        let mut model = program.model(1);
        model[0] = Op::Kernel("my_token_lookup", 1, 2_000);
        program.run(&model);
        program.eager(&[Op::Kernel("my_choice", 1, 4_000)]);
        program.now += 10_000;
    }
    let mut fold = folded_whole(&program.works);
    let steps = steps_of(&mut fold);
    assert!((29..=30).contains(&steps.len()), "{} {}", steps.len(), fold.finding());
    assert!(steps.iter().all(|step| step.basis == Basis::Repeats && step.layers == Some(8)));
}

#[test]
fn experts_with_a_top_k_in_every_layer_are_not_steps() {
    let mut program = Program::new(6, Launch::Eager(1_000));
    for _ in 0..20 {
        let mut ops = Vec::new();
        for op in program.model(1) {
            let is_norm = matches!(op, Op::Kernel("vllm::fused_add_rms_norm_kernel", ..));
            ops.push(op);
            if is_norm {
                ops.push(Op::Kernel(
                    "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
                    1,
                    2_000,
                ));
            }
        }
        program.run(&ops);
        program.eager(&[Op::Kernel(ARGMAX, 1, 4_000)]);
    }
    let mut fold = folded_whole(&program.works);
    let steps = steps_of(&mut fold);
    assert_eq!(steps.len(), 20, "{}", fold.finding());
    assert!(steps.iter().all(|step| step.layers == Some(6)));
}

#[test]
fn a_compiler_names_several_kernels_after_the_embedding() {
    let mut program = Program::new(6, Launch::Graph(3));
    for _ in 0..20 {
        let mut ops = program.model(1);
        ops[0] = Op::Kernel("triton_per_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0", 1, 2_000);
        ops[7] =
            Op::Kernel("triton_per_fused__to_copy__unsafe_view_add_embedding_mean_mul_pow_rsqrt_7", 1, 2_000);
        ops[11] =
            Op::Kernel("triton_per_fused__to_copy__unsafe_view_add_embedding_mean_mul_pow_rsqrt_9", 1, 2_000);
        program.run(&ops);
        program.eager(&[Op::Kernel(ARGMAX, 1, 4_000)]);
    }
    let mut fold = folded_whole(&program.works);
    let steps = steps_of(&mut fold);
    assert_eq!(steps.len(), 20, "{}", fold.finding());
    assert!(steps.iter().all(|step| step.launches == Some(64)), "{:?}", steps[0]);
}

#[test]
fn other_programs_have_no_steps() {
    let layer = [
        Op::Kernel("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", 64, 9_000),
        Op::Kernel(FLASH, 14, 6_000),
        Op::Kernel("nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN", 64, 5_000),
    ];
    let backward = [
        Op::Kernel("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", 64, 9_000),
        Op::Kernel("void at::native::(anonymous namespace)::cunn_SoftMaxBackward<float>", 14, 6_000),
    ];
    let convolution =
        [Op::Kernel("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", 64, 9_000)];
    let gather = [Op::Kernel(LOOKUP, 4, 2_000)];
    let hash = [Op::Kernel("sha256_kernel", 4, 2_000), Op::Kernel("void saxpy<float>", 9, 2_000)];
    for (ops, why) in [
        ([&gather[..], &layer, &layer, &backward, &backward].concat(), NoSteps::Training),
        ([&convolution[..], &layer, &convolution, &layer, &convolution].concat(), NoSteps::Convolution),
        (hash.to_vec(), NoSteps::NoAttention),
    ] {
        let mut program = Program::new(1, Launch::Eager(1_000));
        (0..50).for_each(|_| program.run(&ops));
        let mut fold = folded_whole(&program.works);
        assert_eq!(steps_of(&mut fold), [], "{why}");
        assert_eq!(fold.finding(), Finding::NotFound(why));
        let windows = fold.windows();
        assert_eq!(windows.len(), 1);
        assert_eq!((windows[0].phase, windows[0].window.steps), (StepPhase::Other, 0));
        assert_eq!(windows[0].window.launches, program.works.len() as u64, "its kernels are counted");
    }
    // Attention in no order at all.
    let mut program = Program::new(1, Launch::Eager(1_000));
    let mut seed = 1u64;
    for _ in 0..3_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let op = [&layer[0], &layer[1], &hash[0], &hash[1], &gather[0]][(seed >> 33) as usize % 5].clone();
        program.run(&[op]);
    }
    let mut fold = folded_whole(&program.works);
    assert_eq!(steps_of(&mut fold), [], "{}", fold.finding());
    let mut nothing = folded_whole(&[]);
    assert_eq!(steps_of(&mut nothing), []);
    assert_eq!(nothing.finding().to_string(), "No steps found: no kernels were recorded yet.");
}

#[test]
fn lost_records_do_not_lose_steps() {
    let mut program = Program::new(24, Launch::Eager(3_000));
    program.steps(100);
    // Every 97th record is lost, whatever it is.
    let kept: Vec<DeviceActivity> =
        program.works.iter().enumerate().filter(|(i, _)| i % 97 != 13).map(|(_, work)| *work).collect();
    let mut fold = folded_whole(&kept);
    let found = steps_of(&mut fold).len();
    assert!((98..=100).contains(&found), "{found} {}", fold.finding());
}

#[test]
fn a_second_stream_and_device_do_not_disturb() {
    let mut program = Program::new(12, Launch::Eager(3_000));
    program.steps(50);
    let mut works = program.works.clone();
    // Copies run on another stream all the while, and a second device does the same work a little later.
    for (i, work) in program.works.iter().enumerate() {
        if i % 50 == 0 {
            let kind = llmprof_event::kernels::work::WorkKind::Copy {
                direction: Direction::HostToDevice,
                bytes: 1 << 20,
            };
            works.push(DeviceActivity { stream: 20, end_ns: work.start_ns + 300_000, kind, ..*work });
        }
        works.push(DeviceActivity {
            device: 1,
            start_ns: work.start_ns + 1_700,
            end_ns: work.end_ns + 1_700,
            ..*work
        });
    }
    let mut fold = folded_whole(&works);
    let steps = steps_of(&mut fold);
    assert_eq!(steps.len(), 50, "{}", fold.finding());
    assert!(steps.iter().all(|step| step.phase == StepPhase::Decode));
}

#[test]
fn ranges_of_the_program_are_exact() {
    let mut program = Program::new(8, Launch::Eager(3_000));
    let mut ranges = Vec::new();
    for i in 0..60u64 {
        let start_ns = program.now - 500;
        let prompt = i % 20 == 0;
        program.step(if prompt { 300 } else { 4 });
        let (context, generation) = if prompt { (1, 0) } else { (0, 4) };
        let text = format!(
            "[Executor] _forward_step {i}: {context} ctx reqs, {} ctx tokens, {generation} gen reqs",
            context * 300
        );
        ranges.push(Range { domain: "trtllm".into(), text, thread: 1, start_ns, end_ns: program.now - 600 });
    }
    let (first, last) = (program.works[0].start_ns, program.now);
    for bursts in
        [vec![(1, u64::MAX)], vec![(first + (last - first) / 3, first + (last - first) / 2)], vec![]]
    {
        let mut fold = builder::fold();
        for (from, to) in &bursts {
            fold.begin_burst(*from);
            fold.end_burst(*to);
        }
        ranges.iter().for_each(|range| fold.add_range(range));
        fold.add_range(&Range { thread: 2, ..ranges[3].clone() });
        fold.add_range(&Range { text: "ncclAllReduce".into(), ..ranges[3].clone() });
        builder::recorded(&program.works, &bursts).into_iter().for_each(|work| fold.add(work));
        fold.finish();
        let steps = steps_of(&mut fold);
        assert_eq!(phases(&steps), (3, 57, 0, 0), "{bursts:?}");
        assert!(steps.iter().all(|step| step.basis == Basis::Nvtx && step.confidence == Confidence::EXACT));
        assert_eq!(
            (steps[0].tokens, steps[1].tokens),
            (Some(Tokens::Reported(300)), Some(Tokens::Reported(4)))
        );
        assert_eq!(steps.iter().any(Step::is_recorded), !bursts.is_empty());
    }
}

#[test]
fn a_burst_of_less_than_two_steps_is_not_enough() {
    let mut program = Program::new(24, Launch::Eager(3_000));
    program.steps(1);
    let fold = folded_whole(&program.works[..200]);
    assert_eq!(fold.finding(), Finding::NotFound(NoSteps::TooFew), "{}", fold.finding());
}

#[test]
fn batches_of_requests_are_decode() {
    let mut program = Program::new(12, Launch::Eager(3_000));
    for rows in [1, 1, 1, 4, 4, 4, 4, 32, 32, 32, 1, 1] {
        let model = program.model(rows);
        program.run(&model);
        program.eager(&[
            Op::Kernel(ARGMAX, rows, 4_000),
            Op::Copy(Direction::DeviceToHost, 8 * u64::from(rows)),
        ]);
    }
    let mut fold = folded_whole(&program.works);
    let steps = steps_of(&mut fold);
    assert_eq!(phases(&steps), (0, 12, 0, 0));
    assert_eq!(steps[8].tokens, Some(Tokens::Estimated(32)));
}

#[test]
fn a_server_copies_on_another_stream_and_runs_prompts_without_graphs() {
    // Decode is one graph, of another number for each size of the batch; a prompt is launched kernel by kernel.
    let mut program = Program::new(16, Launch::Graph(1));
    let mut wanted = (0, 0);
    for i in 0..1_500u32 {
        let prompt = i % 50 == 0;
        let batch = 1 + i / 400;
        program.launch = if prompt { Launch::Eager(1_500) } else { Launch::Graph(batch) };
        let model = program.model(if prompt { 700 } else { batch });
        program.run(&model);
        program.eager(&[Op::Kernel("_topk_topp_kernel", batch, 4_000)]);
        program.stream = 21;
        program.eager(&[Op::Copy(Direction::DeviceToHost, 8 * u64::from(batch))]);
        program.stream = 7;
        if prompt { wanted.0 += 1 } else { wanted.1 += 1 }
    }
    let first = program.works[0].start_ns;
    let mut fold = folded(&program.works, &[(1, first + 100 * MS)]);
    let steps = steps_of(&mut fold);
    assert_eq!(phases(&steps), (wanted.0, wanted.1, 0, 0), "{}", fold.finding());
    assert!(steps.iter().filter(|step| step.is_recorded()).count() < 200);
}

#[test]
fn a_program_that_samples_on_the_host_copies_its_logits() {
    // llama.cpp: quantised GEMMs, and rows are selected in the last layer as well as at the beginning.
    let mut program = Program::new(8, Launch::Eager(800));
    let step = |rows: u32| {
        let (product, attention) = match rows {
            1 => ("void mul_mat_vec_q<(ggml_type)12, 1, false, false>", "void flash_attn_ext_vec<128, 1>"),
            _ => ("void mul_mat_q<(ggml_type)12, 128, false>", "void flash_attn_ext_f16<128, 128, 8, 8>"),
        };
        let product = || [Op::Kernel("quantize_q8_1", rows, 1_500), Op::Kernel(product, 400, 9_000)];
        let mut ops = vec![Op::Kernel("void k_get_rows_float<float, float>", rows, 1_500)];
        for layer in 0..8 {
            ops.push(Op::Kernel("void rms_norm_f32<1024, true, false>", rows, 2_000));
            (0..3).for_each(|_| ops.extend(product()));
            ops.push(Op::Kernel("void rope_neox<true, false, float, float>", rows, 1_500));
            ops.push(Op::Kernel("void k_set_rows<float, long, __half>", rows, 1_500));
            ops.push(Op::Kernel(attention, rows * 4, 6_000));
            ops.extend(product());
            if layer == 7 {
                ops.push(Op::Kernel("void k_get_rows_float<float, float>", 1, 1_500));
            }
            ops.push(Op::Kernel("void rms_norm_f32<1024, true, false>", rows, 2_000));
            (0..2).for_each(|_| ops.extend(product()));
            ops.push(Op::Kernel("void unary_gated_op_kernel<&(op_silu(float)), float>", rows, 1_500));
            ops.extend(product());
        }
        ops.push(Op::Kernel("void rms_norm_f32<1024, true, false>", 1, 2_000));
        ops.extend(product());
        ops.push(Op::Copy(Direction::DeviceToHost, 4 * 151_936));
        ops
    };
    for _ in 0..3 {
        program.run(&step(200));
        (0..20).for_each(|_| program.run(&step(1)));
    }
    let mut fold = folded_whole(&program.works);
    let steps = steps_of(&mut fold);
    assert_eq!(phases(&steps), (3, 60, 0, 0), "{}", fold.finding());
    let windows = fold.windows();
    let decode = &windows.iter().find(|window| window.phase == StepPhase::Decode).unwrap().window;
    let of = |operator| {
        decode.rows.iter().filter(|row| row.operator == Some(operator)).map(|row| row.calls).sum::<u64>()
    };
    // Each GEMM with the conversion of its operand.
    assert_eq!((of(Operator::Qkv), of(Operator::Down), of(Operator::LmHead)), (60 * 48, 60 * 16, 60 * 2));
}

#[test]
fn tensor_parallel_ranks_communicate_in_every_layer() {
    let mut program = Program::new(10, Launch::Eager(1_000));
    for _ in 0..20 {
        let mut ops = Vec::new();
        for op in program.model(1) {
            let is_norm = matches!(op, Op::Kernel("vllm::fused_add_rms_norm_kernel", ..));
            if is_norm {
                ops.push(Op::Kernel(
                    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                    24,
                    9_000,
                ));
            }
            ops.push(op);
        }
        program.run(&ops);
        program.eager(&[Op::Kernel(ARGMAX, 1, 4_000)]);
    }
    let mut fold = folded_whole(&program.works);
    assert_eq!(steps_of(&mut fold).len(), 20);
    let windows = fold.windows();
    let overlaps = windows[0].window.overlaps.unwrap().communication;
    assert_eq!((overlaps.count, overlaps.total_ns, overlaps.exposed_ns), (220, 220 * 9_000, 220 * 9_000));
}
