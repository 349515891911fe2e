//! Command lines of nsys and ncu, from a configuration.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use llmprof_base::{shell::quoted, tools::under};
use llmprof_config::{NcuConfig, NsysConfig, NvtxDetail, RunConfig, ToolPhase, yaml_text};
use llmprof_event::Device;

/// A command that can be recorded and repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCommand {
    pub program: String,
    pub args: Vec<String>,
    /// Variables in addition to the environment of this program.
    pub environment: BTreeMap<String, String>,
}

impl ToolCommand {
    /// As a shell command.
    pub fn line(&self) -> String {
        let set = self.environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        set.chain([self.words()]).collect::<Vec<_>>().join(" ")
    }

    /// As a shell command, without its environment.
    pub fn words(&self) -> String {
        let words = [&self.program].into_iter().chain(&self.args).map(|word| quoted(word));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// The run that a tool profiles.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// This program.
    pub program: &'a Path,
    /// The directory of its configuration.
    pub conf_dir: &'a Path,
    /// The base of relative paths in the configuration. The tool itself runs elsewhere.
    pub working_dir: &'a Path,
    /// The value of [`under::VARIABLE`].
    pub mark: &'a str,
    /// Whether PyTorch opens the ranges, whose NVTX has no domains.
    pub plain_ranges: bool,
}

impl Target<'_> {
    fn argv(&self) -> Vec<String> {
        let [program, working_dir, conf_dir] =
            [self.program, self.working_dir, self.conf_dir].map(|path| path.display().to_string());
        let options = ["run".into(), "--quiet".into(), "--working-dir".into(), working_dir];
        [program].into_iter().chain(options).chain(["--conf-dir".into(), conf_dir]).collect()
    }

    /// The NVTX domain whose ranges nsys captures: this program's, or any.
    fn domain(&self) -> &'static str {
        if self.plain_ranges { "*" } else { "llmprof" }
    }

    fn environment(&self, more: &[(&str, &str)]) -> BTreeMap<String, String> {
        // Messages are recognised in English.
        let set = [("LC_ALL", "C"), (under::VARIABLE, self.mark)];
        set.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }
}

/// `nsys profile` of `target`, with its report at `output`.
pub fn nsys(tool: &Path, config: &NsysConfig, output: &Path, target: Target<'_>) -> ToolCommand {
    // Additional options come first: the argument before the program is always one of this program's own options.
    let mut args = vec!["profile".to_owned()];
    args.extend(config.extra.iter().cloned());
    args.extend(["-t", &config.trace.join(","), "-s", "none", "--cpuctxsw=none"].map(str::to_owned));
    let range = match config.phase {
        ToolPhase::Decode => "decode",
        ToolPhase::Prefill => "prefill",
        ToolPhase::Both => "request",
    };
    // By default nsys stops the program at the end of the first range.
    let end = match config.requests {
        1 => "stop".to_owned(),
        several => format!("repeat:{several}"),
    };
    args.extend(["-c".into(), "nvtx".into(), "-p".into(), format!("{range}@{}", target.domain())]);
    args.push(format!("--capture-range-end={end}"));
    args.extend(["--cuda-graph-trace=node".into(), "-o".into(), output_name(output)]);
    args.extend(["-f".into(), "true".into()]);
    args.extend(target.argv());
    // Otherwise nsys ignores ranges whose names are not registered.
    let environment = target.environment(&[("NSYS_NVTX_PROFILER_REGISTER_ONLY", "0")]);
    ToolCommand { program: tool.display().to_string(), args, environment }
}

/// A path as both tools read it: `%q{NAME}` would become the value of a variable.
fn output_name(path: &Path) -> String {
    path.display().to_string().replace('%', "%%")
}

/// Launches to profile if no kernels are selected: some layers of a step.
pub const UNFILTERED_LAUNCHES: u32 = 100;

/// The kernels and metrics that ncu profiles in one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection<'a> {
    /// For `-k regex:`; `None` selects every kernel, up to [`UNFILTERED_LAUNCHES`].
    pub regex: Option<&'a str>,
    pub metrics: &'a [String],
}

/// `ncu` on `target`, with its report at `output`.
pub fn ncu(
    tool: &Path,
    config: &NcuConfig,
    selection: &Selection<'_>,
    output: &Path,
    target: Target<'_>,
) -> ToolCommand {
    let mut args = config.extra.clone();
    args.extend(["--target-processes".into(), "all".into()]);
    // The slash selects push/pop ranges.
    let (decode, prefill) = match target.plain_ranges {
        true => ("decode_step/", "prefill/"),
        false => ("llmprof@decode_step/", "llmprof@prefill/"),
    };
    let ranges = match config.phase {
        ToolPhase::Decode => vec![decode],
        ToolPhase::Prefill => vec![prefill],
        ToolPhase::Both => vec![prefill, decode],
    };
    args.push("--nvtx".into());
    args.extend(ranges.into_iter().flat_map(|range| ["--nvtx-include".to_owned(), range.to_owned()]));
    let count = match selection.regex {
        Some(regex) => {
            args.extend(["-k".into(), format!("regex:{regex}")]);
            config.launch_count
        }
        None => UNFILTERED_LAUNCHES,
    };
    args.extend(["-s".into(), config.launch_skip.to_string(), "-c".into(), count.to_string()]);
    match &config.set {
        Some(set) => args.extend(["--set".into(), set.clone()]),
        None => args.extend(["--metrics".into(), selection.metrics.join(",")]),
    }
    args.extend(["--replay-mode".into(), config.replay.name().into()]);
    args.extend(["--clock-control".into(), config.clock_control.name().into()]);
    args.extend(["-f".into(), "-o".into(), output_name(output)]);
    args.extend(target.argv());
    ToolCommand { program: tool.display().to_string(), args, environment: target.environment(&[]) }
}

/// The metrics from which the bounds, bytes and operations of a kernel are computed.
const METRICS: [&str; 24] = [
    "gpu__time_duration.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes.sum",
    "dram__bytes.sum.per_second",
    "lts__t_sector_hit_rate.pct",
    "l1tex__t_sector_hit_rate.pct",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
    "launch__waves_per_multiprocessor",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_not_selected_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",
];

/// The metrics to request on a GPU of this compute capability, 90 for 9.0. Without one, those that all GPUs have.
pub fn metrics(config: &NcuConfig, compute_capability: Option<u32>) -> Vec<String> {
    if let Some(asked) = &config.metrics {
        return asked.clone();
    }
    let mut metrics: Vec<&str> = METRICS.to_vec();
    match compute_capability {
        Some(120..) => metrics.extend(["dram__bytes_op_read.sum", "dram__bytes_op_write.sum"]),
        Some(80..) => metrics.extend(["dram__bytes_read.sum", "dram__bytes_write.sum"]),
        _ => {}
    }
    if compute_capability.is_some_and(|capability| capability >= 80) {
        metrics.push("sm__ops_path_tensor_src_bf16_dst_fp32.sum");
    }
    metrics.into_iter().map(str::to_owned).collect()
}

/// The configuration of the run under a tool: the same model, lengths and seed, few requests, no sampling and no tools.
pub fn child_config(config: &RunConfig, device: &Device, requests: u32) -> RunConfig {
    let mut child = config.clone();
    child.runtime.device = device.to_string();
    child.runtime.requests = Some(requests);
    child.runtime.until = None;
    child.hardware.isolation.check = false;
    child.output.record = true;
    (child.output.predictions.enable, child.output.trace) = (false, false);
    // The parent follows the recording.
    child.output.flush_ms = 100;
    let profiling = &mut child.profiling;
    (profiling.nvml.enable, profiling.host.enable) = (false, false);
    profiling.cupti.enable = false;
    profiling.operators.enable = false;
    profiling.torch.enable = false;
    (profiling.nsys.enable, profiling.ncu.enable) = (false, false);
    child
}

/// Like [`child_config`], for ncu: without CUDA graphs, and without ranges inside those that ncu waits for.
pub fn child_config_for_ncu(config: &RunConfig, device: &Device) -> RunConfig {
    let mut child = child_config(config, device, 1);
    child.runtime.cuda_graphs = false;
    child.profiling.nvtx.detail = NvtxDetail::Phase;
    child
}

/// The `config.yaml` of a directory that composes to exactly `config`, recorded in `run_dir`.
pub fn config_yaml(config: &RunConfig, run_dir: &Path) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        #[serde(flatten)]
        job: &'a RunConfig,
        hydra: Hydra<'a>,
    }
    #[derive(Serialize)]
    struct Hydra<'a> {
        run: BTreeMap<&'a str, String>,
        job: BTreeMap<&'a str, &'a str>,
    }
    let hydra = Hydra {
        run: [("dir", run_dir.display().to_string())].into(),
        job: [("name", config.hydra.job.name.as_str())].into(),
    };
    // Interpolations are resolved already.
    yaml_text(&Document { job: config, hydra }).replace("${", "\\${")
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_config::{ClockControl, Override, Replay, built_in, compose, over_built_in};

    fn target() -> Target<'static> {
        Target {
            program: Path::new("/bin/llmprof-tui"),
            conf_dir: Path::new("/runs/a b/nsys/conf"),
            working_dir: Path::new("/home/me"),
            mark: "nsys/1",
            plain_ranges: false,
        }
    }

    const CHILD: &str =
        "/bin/llmprof-tui run --quiet --working-dir /home/me --conf-dir '/runs/a b/nsys/conf'";

    fn nsys_line(config: &NsysConfig, target: Target<'_>) -> String {
        nsys(Path::new("/usr/bin/nsys"), config, Path::new("out"), target).line()
    }

    #[test]
    fn nsys_is_gated_to_the_phase() {
        let environment = "LC_ALL=C LLMPROF_UNDER=nsys/1 NSYS_NVTX_PROFILER_REGISTER_ONLY=0";
        let begin = format!("{environment} /usr/bin/nsys profile -t cuda,nvtx -s none --cpuctxsw=none");
        let end = format!("--cuda-graph-trace=node -o out -f true {CHILD}");
        let plain = NsysConfig::default();
        for (config, gate) in [
            (plain.clone(), "-c nvtx -p decode@llmprof --capture-range-end=stop "),
            (
                NsysConfig { phase: ToolPhase::Prefill, ..plain.clone() },
                "-c nvtx -p prefill@llmprof --capture-range-end=stop ",
            ),
            (
                NsysConfig { phase: ToolPhase::Both, requests: 3, ..plain.clone() },
                "-c nvtx -p request@llmprof --capture-range-end=repeat:3 ",
            ),
        ] {
            assert_eq!(nsys_line(&config, target()), format!("{begin} {gate}{end}"));
        }
        let more = NsysConfig {
            trace: vec!["cuda".into(), "osrt".into()],
            extra: vec!["--gpu-metrics-device=0".into()],
            ..plain
        };
        let line = nsys_line(&more, target());
        assert!(line.contains(" profile --gpu-metrics-device=0 -t cuda,osrt "), "{line}");
        assert!(line.ends_with(&format!(" -o out -f true {CHILD}")), "{line}");
        let command = nsys(Path::new("nsys"), &more, Path::new("/runs/50%q{HOME}"), target());
        assert!(command.args.contains(&"/runs/50%%q{HOME}".to_owned()), "{:?}", command.args);
    }

    #[test]
    fn ncu_selects_launches_in_ranges() {
        let line = |config: &NcuConfig, regex: Option<&str>| {
            let metrics = ["a.sum".to_owned(), "b.sum".to_owned()];
            let selection = Selection { regex, metrics: &metrics };
            ncu(Path::new("ncu"), config, &selection, Path::new("out"), target()).line()
        };
        let environment = "LC_ALL=C LLMPROF_UNDER=nsys/1";
        let plain = NcuConfig::default();
        assert_eq!(
            line(&plain, Some("^rope$")),
            format!(
                "{environment} ncu --target-processes all --nvtx --nvtx-include llmprof@decode_step/ \
                 -k regex:'^rope$' -s 0 -c 3 --metrics a.sum,b.sum --replay-mode kernel --clock-control none -f -o out {CHILD}"
            )
        );
        let other = NcuConfig {
            phase: ToolPhase::Both,
            launch_skip: 7,
            set: Some("full".into()),
            replay: Replay::Application,
            clock_control: ClockControl::Base,
            extra: vec!["--cache-control=none".into()],
            ..plain
        };
        assert_eq!(
            line(&other, None),
            format!(
                "{environment} ncu --cache-control=none --target-processes all --nvtx --nvtx-include \
                 llmprof@prefill/ --nvtx-include llmprof@decode_step/ -s 7 -c 100 --set full --replay-mode application \
                 --clock-control base -f -o out {CHILD}"
            )
        );
    }

    #[test]
    fn metrics_depend_on_the_compute_capability() {
        let requested = |capability| metrics(&NcuConfig::default(), capability);
        let has = |capability, name: &str| requested(capability).iter().any(|metric| metric == name);
        assert!(has(Some(90), "dram__bytes_read.sum") && !has(Some(90), "dram__bytes_op_read.sum"));
        assert!(has(Some(120), "dram__bytes_op_read.sum") && !has(Some(120), "dram__bytes_read.sum"));
        assert_eq!(requested(None), METRICS.map(str::to_owned));
        let own = NcuConfig { metrics: Some(vec!["x.sum".into()]), ..NcuConfig::default() };
        assert_eq!(metrics(&own, Some(90)), ["x.sum"]);
        // The raw page of an H200 has most of the metrics.
        let page = include_str!("../../../../tests/fixtures/h200_ncu_raw.csv");
        let header = page.lines().find(|line| line.contains("Kernel Name")).unwrap();
        let known = requested(Some(90)).iter().filter(|metric| header.contains(metric.as_str())).count();
        assert!(known >= 15, "{known} of {}", requested(Some(90)).len());
    }

    #[test]
    fn the_child_repeats_the_run_without_profiling() {
        let dir = tempfile::tempdir().unwrap();
        for model in built_in().options("model").iter().filter(|model| *model != "local") {
            let overrides = [
                format!("model={model}"),
                "experiment=42".to_owned(),
                "profiling=full".to_owned(),
                "runtime.seed=7".to_owned(),
                "runtime.batch_size=2".to_owned(),
                "dataset.prompt_tokens=33".to_owned(),
                "infer=sampled".to_owned(),
            ];
            let parent = compose(&built_in(), &overrides).unwrap().config;
            let wanted = child_config(&parent, &Device::Cpu, 2);
            let run_dir = dir.path().join("child ${x}");
            std::fs::write(dir.path().join("config.yaml"), config_yaml(&wanted, &run_dir)).unwrap();
            let tree = over_built_in(dir.path()).unwrap();
            let mut child = compose(&tree, Override::NONE).unwrap().config;
            assert_eq!(child.hydra.run.dir, run_dir.display().to_string());
            child.hydra = wanted.hydra.clone();
            assert_eq!(child, wanted, "{model}");
            assert_eq!(
                (child.model, child.infer, child.dataset),
                (parent.model.clone(), parent.infer.clone(), parent.dataset.clone())
            );
            assert_eq!((child.runtime.seed, child.runtime.batch_size), (7, 2));
            assert!(!child.profiling.nsys.enable && !child.profiling.ncu.enable);
            assert!(!child_config_for_ncu(&parent, &Device::Cuda(0)).runtime.cuda_graphs);
        }
    }
}
