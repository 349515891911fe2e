//! Re-runs under nsys and ncu, with stand-ins for the tools on a fake system, and their failures.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering},
    thread,
};

use crate::common::{
    KilledOnDrop, PATIENCE, PROGRAM, ended, eventually, listed_runs, output, program, said, signal,
    tiny_model,
};
use llmprof::{
    config::{RunConfig, built_in, compose},
    event::{Clock, Event, KernelReport, Outcome, Phase, Tool, ToolState, channel, kernels::Kind},
    kernels::top::{TopKernel, TopList},
    run::rerun::Rerun,
    tools::System,
};
use tempfile::TempDir;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

/// A directory with a system, a tiny model and a run.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        tiny_model(dir.path(), |_| {});
        Bench { dir }
    }

    /// A tool on the PATH.
    fn tool(&self, name: &str, script: &str) {
        self.tool_at(&format!("bin/{name}"), script);
    }

    fn tool_at(&self, path: &str, script: &str) {
        crate::common::script(&self.dir.path().join("root").join(path), script);
    }

    fn config(&self, overrides: &[&str]) -> RunConfig {
        let shape = format!("model.config_json={}", self.dir.path().join("tiny.json").display());
        let fixed = [
            &shape,
            "model.name=tiny",
            "dataset.prompt_tokens=8",
            "infer.max_new_tokens=6",
            "runtime.seed=7",
        ];
        let all: Vec<String> = fixed.iter().chain(overrides).map(|text| (*text).to_owned()).collect();
        compose(&built_in(), &all).unwrap().config
    }

    fn rerun(&self, tool: Tool, device: &str, overrides: &[&str]) -> Rerun {
        let root = self.dir.path().join("root");
        fs::create_dir_all(&root).unwrap();
        Rerun {
            tool,
            config: self.config(overrides),
            device: device.to_owned().into(),
            run_dir: self.dir.path().join("run"),
            kernels: None,
            model_in_memory: false,
            compute_capability: Some(90),
            program: PROGRAM.into(),
            system: System {
                root,
                variables: HashMap::from([("PATH".to_owned(), "/bin".to_owned())]),
                stop: Arc::default(),
            },
        }
    }

    fn text(&self, path: &str) -> String {
        let path = self.dir.path().join("run").join(path);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }
}

/// The events of a re-run.
struct Observed {
    state: ToolState,
    doing: Vec<String>,
    report: Option<KernelReport>,
}

fn observe(rerun: &Rerun) -> Observed {
    let (tx, mut rx) = channel(Clock::wall());
    let state = rerun.run(&tx);
    drop(tx);
    let mut observed = Observed { state, doing: Vec::new(), report: None };
    let mut last = None;
    while let Ok(envelope) = rx.try_recv() {
        match envelope.event {
            Event::ToolRun(run) => {
                assert_eq!(run.tool, rerun.tool.name());
                if let ToolState::Working { doing, .. } = &run.state {
                    observed.doing.push(doing.clone());
                }
                last = Some(run.state);
            }
            Event::KernelReport(report) => observed.report = Some(*report),
            Event::Notice(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(last.as_ref(), Some(&observed.state), "the last state is the outcome");
    assert_eq!(
        observed.report.is_some(),
        observed.state == ToolState::Done,
        "a report comes with the end, or not at all"
    );
    observed
}

/// A stand-in for nsys that runs `body` with `$out`, the report's name without its extension, and `"$@"`, the program.
fn nsys(body: &str) -> String {
    format!(
        "case \"$1\" in
           --version) echo 'NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0'; exit;;
           export) while [ \"$1\" != --output ]; do shift; done; cp {FIXTURES}/nsys/kernels.sqlite \"$2\"; exit;;
         esac
         while [ \"$1\" != -f ]; do [ \"$1\" = -o ] && out=$2; shift; done; shift 2
         {body}"
    )
}

const NSYS_REPORT: &str = "printf 'NVIDIA Tegra Profiler Report 1.' > \"$out.nsys-rep\"";

/// A stand-in for ncu, like that for nsys. It imports a page recorded on an H200.
fn ncu(body: &str) -> String {
    format!(
        "case \"$1\" in
           --version) echo 'Version 2025.3.1.0 (build 36398880) (public-release)'; exit;;
           --import) cat {FIXTURES}/h200_ncu_raw.csv; exit;;
         esac
         all=\"$*\"; while [ \"$1\" != -o ]; do shift; done; out=$2; shift 2
         {body}"
    )
}

const NCU_REPORT: &str = "printf 'NVR\\0report' > \"$out.ncu-rep\"";

#[track_caller]
fn failed(observed: &Observed) -> (&str, &str) {
    match &observed.state {
        ToolState::Failed { reason, remedy } => (reason, remedy),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rerun_under_nsys_becomes_a_report() {
    let bench = Bench::new();
    bench.tool("nsys", &nsys(&format!("\"$@\" || exit; {NSYS_REPORT}")));
    let observed = observe(&bench.rerun(Tool::Nsys, "cpu", &[]));
    assert_eq!(observed.state, ToolState::Done, "{:?}", observed.doing);
    let report = observed.report.unwrap();
    assert_eq!((report.tool.as_str(), report.phase), ("nsys 2025.3.1", Some(Phase::Decode)));
    assert_eq!(report.file, "nsys/report.nsys-rep");
    assert!(report.tables.iter().any(|table| table.kind == Kind::Kernels && !table.rows.is_empty()));
    assert!(observed.doing.iter().any(|doing| doing == "reading the report"), "{:?}", observed.doing);

    let command = bench.text("nsys/cmd.txt");
    for part in
        ["-p decode@llmprof", "nsys 2025.3.1", "exit status: 0 after", "NSYS_NVTX_PROFILER_REGISTER_ONLY=0"]
    {
        assert!(command.contains(part), "{part}: {command}");
    }
    assert!(bench.text("nsys/stdout.log").contains("tiny, bf16, on cpu"));

    let child = bench.dir.path().join("run/nsys/child");
    let metrics: serde_json::Value = serde_json::from_str(&bench.text("nsys/child/metrics.json")).unwrap();
    assert_eq!(metrics["run"]["perturbed"], "nsys");
    assert_eq!((&metrics["run"]["seed"], &metrics["run"]["requests"]), (&7.into(), &1.into()));
    assert_eq!(metrics["trust"]["score"], 0);
    assert!(metrics["trust"]["doubts"][0].as_str().unwrap().contains("it ran under nsys"));
    assert!(bench.text("nsys/child/report.md").contains("**Recorded under nsys"));
    assert_eq!(crate::common::finished(&child).outcome, Outcome::Completed);

    // The next one does not overwrite it.
    let again = observe_again(&bench);
    assert_eq!(again.report.unwrap().file, "nsys-2/report.nsys-rep");
}

fn observe_again(bench: &Bench) -> Observed {
    observe(&bench.rerun(Tool::Nsys, "cpu", &[]))
}

#[test]
fn a_tool_reads_no_settings_from_the_working_directory() {
    let bench = Bench::new();
    let seen = bench.dir.path().join("seen");
    let body = format!("pwd > {}; \"$@\" || exit; {NSYS_REPORT}", seen.display());
    bench.tool("nsys", &nsys(&body));
    let extra = "profiling.nsys.extra=['--gpu-metrics-devices=none']";
    let observed = observe(&bench.rerun(Tool::Nsys, "cpu", &[extra]));
    assert_eq!(observed.state, ToolState::Done, "{:?}", observed.doing);
    assert_eq!(fs::read_to_string(seen).unwrap(), "/\n");
    let command = bench.text("nsys/cmd.txt");
    let here = std::env::current_dir().unwrap();
    assert!(command.contains(&format!("run --quiet --working-dir {}", here.display())), "{command}");
    assert!(
        command.contains("\ncd /\n") && command.contains(" profile --gpu-metrics-devices=none -t "),
        "{command}"
    );
}

#[test]
fn several_requests_are_joined() {
    let bench = Bench::new();
    let body = "for n in 1 2; do printf 'NVIDIA Tegra Profiler Report 1.' > \"$out.$n.nsys-rep\"; done";
    bench.tool("nsys", &nsys(body));
    let calls = |observed: Observed| {
        let report = observed.report.unwrap();
        report.tables.iter().find(|table| table.kind == Kind::Kernels).unwrap().calls()
    };
    let two = calls(observe(&bench.rerun(Tool::Nsys, "cpu", &["profiling.nsys.requests=2"])));
    bench.tool("nsys", &nsys(NSYS_REPORT));
    assert_eq!(two, 2 * calls(observe_again(&bench)));
}

#[test]
fn failures_of_nsys_have_a_reason_and_a_remedy() {
    let cases = [
        ("the range never began", "\"$@\"", "the range decode@llmprof never began", "profiling.nsys.phase"),
        ("the child crashed", "kill -SEGV $$", "ended early (signal: 11", "stderr.log"),
        (
            "out of memory",
            "echo 'error: tiny needs 9 GB as f32, 1 GB free; try another' >&2; exit 1",
            "out of memory: tiny needs 9 GB",
            "smaller model",
        ),
        (
            "an option",
            "echo \"unrecognised option '--cuda-graph-trace=node'\"; exit 1",
            "does not know",
            "newer release",
        ),
        (
            "the run failed",
            "echo 'error: no weights here' >&2; exit 1",
            "failed: no weights here",
            "stderr.log",
        ),
    ];
    for (name, body, reason, remedy) in cases {
        let bench = Bench::new();
        bench.tool("nsys", &nsys(body));
        let observed = observe(&bench.rerun(Tool::Nsys, "cpu", &[]));
        let found = failed(&observed);
        assert!(found.0.contains(reason) && found.1.contains(remedy), "{name}: {found:?}");
    }
}

#[test]
fn a_false_start_of_nsys_is_retried() {
    let bench = Bench::new();
    let once = bench.dir.path().join("once");
    let body = format!(
        "[ -e {0} ] || {{ touch {0}; echo 'End of file' >&2; exit 1; }}; {NSYS_REPORT}",
        once.display()
    );
    bench.tool("nsys", &nsys(&body));
    assert_eq!(observe(&bench.rerun(Tool::Nsys, "cpu", &[])).state, ToolState::Done);
    bench.tool("nsys", &nsys("echo 'End of file' >&2; exit 1"));
    let observed = observe(&bench.rerun(Tool::Nsys, "cpu", &[]));
    assert!(failed(&observed).0.contains("ended early"), "{:?}", observed.state);
}

#[test]
fn a_missing_tool_is_reported_with_the_searched_paths() {
    for (tool, path) in [(Tool::Nsys, "/opt/nvidia/nsight-systems"), (Tool::Ncu, "/usr/local/cuda")] {
        let observed = observe(&Bench::new().rerun(tool, "cuda:0", &[]));
        let (reason, remedy) = failed(&observed);
        assert!(reason.contains("not installed") && reason.contains(path), "{reason}");
        assert!(remedy.contains("https://developer.nvidia.com/nsight-"), "{remedy}");
    }
}

#[test]
fn a_capture_that_cannot_be_imported_is_kept_and_named() {
    let bench = Bench::new();
    let path = "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys";
    bench.tool_at(path, &nsys("printf '12345678NVIDIA Nsight Systems Stream' > \"$out.qdstrm\""));
    // As on a machine without a library.
    let importer = "echo 'QdstrmImporter: error while loading shared libraries: libdw.so.1: cannot open shared object file' \
                    >&2; exit 127";
    bench.tool_at(
        "opt/nvidia/nsight-compute/2025.3.1/host/linux-desktop-glibc_2_11_3-x64/QdstrmImporter",
        importer,
    );
    let observed = observe(&bench.rerun(Tool::Nsys, "cuda:0", &[]));
    let (reason, remedy) = failed(&observed);
    assert!(reason.contains("libdw.so.1") && reason.contains("nsys/report.qdstrm"), "{reason}");
    assert!(remedy.contains("apt install libdw1") && remedy.contains("llmprof-tui kernels"), "{remedy}");
}

#[test]
fn a_gpu_run_without_kernels_fails() {
    let bench = Bench::new();
    let script = nsys(NSYS_REPORT).replace("kernels.sqlite", "nvtx_only_2022_4.sqlite");
    bench.tool("nsys", &script);
    let observed = observe(&bench.rerun(Tool::Nsys, "cuda:0", &[]));
    assert!(failed(&observed).0.contains("ranges and no kernels"), "{:?}", observed.state);
}

fn list(names: &[&str]) -> TopList {
    let kernel = |name: &&str| TopKernel {
        name: (*name).to_owned(),
        family: (*name).to_owned(),
        regex: format!("^{name}$"),
        launches: 1,
        total_ns: None,
        mean_ns: None,
        share_pct: None,
    };
    let kernels = names.iter().map(kernel).collect();
    TopList { from: "nsys".into(), source: "nsys".into(), share_pct: None, kernels }
}

#[test]
fn ncu_runs_once_per_kernel() {
    let bench = Bench::new();
    bench.tool("ncu", &ncu(NCU_REPORT));
    let metrics = "profiling.ncu.metrics=[gpu__time_duration.sum,no__such.sum]";
    let rerun =
        bench.rerun(Tool::Ncu, "cuda:0", &[metrics, "profiling.ncu.top_k=2", "profiling.ncu.launch_skip=4"]);
    let observed = observe(&Rerun { kernels: Some(list(&["rope", "rmsnorm_bf16", "third"])), ..rerun });
    assert_eq!(observed.state, ToolState::Done, "{:?}", observed.doing);
    let report = observed.report.unwrap();
    assert_eq!((report.tool.as_str(), report.file.as_str()), ("ncu 2025.3.1", "ncu"));
    let table = &report.tables[0];
    assert_eq!(table.calls(), 120, "two pages of sixty launches");
    assert!(
        table.notes.iter().any(|note| note.ends_with("not reported by ncu: no__such.sum")),
        "{:?}",
        table.notes
    );
    let command = bench.text("ncu/02-command.yaml");
    for part in
        ["regex:^rmsnorm_bf16$", "'--nvtx-include'", "version: ncu 2025.3.1", "exit: 'exit status: 0'"]
    {
        assert!(
            command.replace('"', "'").contains(part) || command.contains(part.trim_matches('\'')),
            "{part}: {command}"
        );
    }
    assert!(bench.text("ncu/01-conf/config.yaml").contains("cuda_graphs: false"));
    assert!(!bench.dir.path().join("run/ncu/03-command.yaml").exists());
    assert!(observed.doing.iter().any(|doing| doing.starts_with("kernel 2 of 2: ")), "{:?}", observed.doing);
}

#[test]
fn without_a_list_ncu_profiles_the_first_launches() {
    let bench = Bench::new();
    bench.tool("ncu", &ncu(NCU_REPORT));
    let observed = observe(&bench.rerun(Tool::Ncu, "cuda:0", &[]));
    let notes = &observed.report.unwrap().tables[0].notes;
    assert!(notes.iter().any(|note| note.contains("the first 100 launches")), "{notes:?}");
}

#[test]
fn failures_of_ncu_have_a_reason_and_a_remedy() {
    let permission = "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU \
                      Performance Counters on the target device 0.'; exit 1";
    let nothing = "echo '==WARNING== No kernels were profiled.'";
    let cases = [
        (permission, "cuda:0", "ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0"),
        (nothing, "cuda:0", "ncu saw no kernels in decode_step", "profiling.ncu.phase"),
        (nothing, "cpu", "runs on the CPU", "runtime.device=cuda:0"),
        ("true", "cuda:0", "ncu saw no kernels in decode_step", "profiling.ncu.phase"),
        ("echo 'a driver resource was unavailable'; exit 9", "cuda:0", "another program uses", "dcgmi"),
    ];
    for (body, device, reason, remedy) in cases {
        let bench = Bench::new();
        bench.tool("ncu", &ncu(body));
        let observed = observe(&bench.rerun(Tool::Ncu, device, &[]));
        let found = failed(&observed);
        assert!(found.0.contains(reason) && found.1.contains(remedy), "{body}: {found:?}");
    }
}

#[test]
fn a_kernel_that_is_not_launched_does_not_affect_the_others() {
    let bench = Bench::new();
    let body = format!(
        "case $all in *absent*) echo '==WARNING== No kernels were profiled.';; *) {NCU_REPORT};; esac"
    );
    bench.tool("ncu", &ncu(&body));
    let rerun = bench.rerun(Tool::Ncu, "cuda:0", &[]);
    let observe_kernels = |names: &[&str]| observe(&Rerun { kernels: Some(list(names)), ..rerun.clone() });
    let both = observe_kernels(&["absent", "rope"]);
    let notes = &both.report.unwrap().tables[0].notes;
    assert!(notes.iter().any(|note| note.contains("no launch of absent")), "{notes:?}");
    let none = observe_kernels(&["absent", "absent_too"]);
    assert!(failed(&none).0.contains("no launch of absent"), "{:?}", none.state);
}

/// A tool that hangs with a program in a separate session, like nsys. Their pids are in the file `pids`.
fn hangs(bench: &Bench) -> (PathBuf, String) {
    let pids = bench.dir.path().join("pids");
    let body = format!("setsid sleep 600 & echo $! $$ > {0}.new; mv {0}.new {0}; sleep 600", pids.display());
    (pids, body)
}

/// A process that was killed may take a moment to end.
#[track_caller]
fn assert_gone(pids: &Path) {
    for pid in fs::read_to_string(pids).unwrap().split_whitespace() {
        eventually(&format!("the end of process {pid}"), || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let runs =
                stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']));
            (!runs).then_some(())
        });
    }
}

#[test]
fn the_time_limit_leaves_no_process() {
    let bench = Bench::new();
    let (pids, body) = hangs(&bench);
    bench.tool("nsys", &nsys(&body));
    // The limit grows until the tool has time to start its processes, however busy the machine is. Every limit is kept.
    let mut limit_s = 2;
    while !pids.exists() {
        assert!(limit_s < PATIENCE.as_secs(), "the tool starts no processes");
        let limit = format!("profiling.nsys.timeout_s={limit_s}");
        let observed = observe(&bench.rerun(Tool::Nsys, "cpu", &[limit.as_str()]));
        let exceeded = format!("exceeded {limit} and was stopped");
        assert!(failed(&observed).0.contains(&exceeded), "{:?}", observed.state);
        limit_s *= 2;
    }
    assert_gone(&pids);
}

#[test]
fn a_cancel_leaves_no_process() {
    let bench = Bench::new();
    let (pids, body) = hangs(&bench);
    bench.tool("ncu", &ncu(&body));
    let rerun = bench.rerun(Tool::Ncu, "cuda:0", &[]);
    let stop = Arc::clone(&rerun.system.stop);
    let observed = thread::scope(|scope| {
        let observed = scope.spawn(|| observe(&rerun));
        eventually("a running tool", || pids.exists().then_some(()));
        stop.store(true, Ordering::Release);
        observed.join().unwrap()
    });
    assert_eq!(observed.state, ToolState::Cancelled);
    assert_gone(&pids);
    assert!(bench.text("ncu/command.yaml").contains("exit: cancelled"));
}

/// The program with a stand-in for nsys first on the PATH, newer than any installed one.
fn with_nsys(bench: &Bench, body: &str) -> Command {
    bench.tool("nsys", &nsys(body).replace("2025.3.1", "2099.1.1"));
    let path = std::env::var("PATH").unwrap();
    let mut run = program(bench.dir.path());
    run.env("PATH", format!("{}:{path}", bench.dir.path().join("root/bin").display()));
    run.args([
        "run",
        "profiling=nsys",
        "model.config_json=tiny.json",
        "runtime.device=cpu",
        "hydra.run.dir=r",
    ]);
    run.args(["dataset.prompt_tokens=8", "infer.max_new_tokens=6"]);
    run
}

#[test]
fn a_run_only_for_nsys_prints_its_table_and_can_be_replayed() {
    let bench = Bench::new();
    let done = said(output(&mut with_nsys(&bench, &format!("\"$@\" || exit; {NSYS_REPORT}"))));
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.starts_with("nsys 2099.1.1") && done.out.contains("launches"), "{}", done.out);
    assert!(done.out.trim_end().ends_with("recorded in r"), "{}", done.out);
    assert!(!done.out.contains("TTFT"), "there is no other workload: {}", done.out);
    let events = crate::common::events(&bench.dir.path().join("r"));
    assert!(matches!(events[0].event, Event::RunStarted(_)));
    assert!(events.iter().any(|envelope| matches!(envelope.event, Event::KernelReport(_))));
    assert_eq!(crate::common::finished(&bench.dir.path().join("r")).outcome, Outcome::Completed);
    // The child is not listed as a run.
    let listed = listed_runs(bench.dir.path());
    assert_eq!(listed.iter().filter(|run| run.dir.path().starts_with(bench.dir.path().join("r"))).count(), 1);
}

#[test]
fn a_run_only_for_nsys_without_a_table_fails_with_a_message() {
    let bench = Bench::new();
    let done = said(output(with_nsys(&bench, "exit 0").arg("--json")));
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.err.contains("error: nsys: nsys "), "{}", done.err);
    let object: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&object["outcome"], &object["kernel_reports"]), (&"failed".into(), &serde_json::json!([])));
    assert_eq!(crate::common::finished(&bench.dir.path().join("r")).outcome, Outcome::Failed);
}

#[test]
fn a_signal_ends_the_tool_and_its_processes() {
    let bench = Bench::new();
    let (pids, body) = hangs(&bench);
    let mut child = KilledOnDrop(with_nsys(&bench, &body).stderr(Stdio::null()).spawn().unwrap());
    eventually("a running tool", || pids.exists().then_some(()));
    signal(child.0.id(), "INT");
    assert_eq!(ended(&mut child.0).code(), Some(130));
    assert_gone(&pids);
    assert_eq!(crate::common::finished(&bench.dir.path().join("r")).outcome, Outcome::Interrupted);
}

#[test]
fn with_samplers_the_rerun_follows_the_run() {
    let bench = Bench::new();
    let mut run = with_nsys(&bench, &format!("\"$@\" || exit; {NSYS_REPORT}"));
    run.args(["profiling.host.enable=true", "runtime.requests=2", "--json"]);
    let done = said(output(&mut run));
    assert_eq!(done.code, 0, "{}", done.err);
    let object: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&object["requests"], &object["perturbed"]), (&2.into(), &serde_json::Value::Null));
    assert_eq!(object["kernel_reports"].as_array().unwrap().len(), 1);
    let events = crate::common::events(&bench.dir.path().join("r"));
    let position =
        |wanted: fn(&Event) -> bool| events.iter().position(|envelope| wanted(&envelope.event)).unwrap();
    let (finished, report) =
        (position(|e| matches!(e, Event::RunFinished(_))), position(|e| matches!(e, Event::KernelReport(_))));
    assert!(finished < report);
    assert_eq!(events[finished].t, events[report].t, "later events do not prolong the run");
}
