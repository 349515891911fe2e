//! `kernels`: kernel tables from the files of nsys, ncu, PyTorch and cuBLAS, as text or in the TUI.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum, builder::PossibleValue};
use serde_json::{Value, json};

use super::{
    Failure,
    args::{ConfigArgs, resolve_run, runs_root},
    outcome::report_exit,
    print, print_data, read_run,
};
use gpu_traces::{
    KernelsError, open, open_all,
    ranks::merge,
    show::{RowQuery, TableView},
    top::top,
};
use llmprof_app as tui;
use llmprof_app::App;
use llmprof_base::process::{eprint_line, shutdown::Shutdown};
use llmprof_config::yaml_text;
use llmprof_event::{
    Envelope, Event, KernelReport, Level, Notice, Phase, Stamp,
    kernels::{Group, KernelTable, SortBy},
};
use llmprof_record::{
    report::{StackFormat, launches_json, launches_text, ranks_json, ranks_text, stacks_file},
    rundir::RunDir,
    state::{KEPT_REPORTS, LaunchGroup, RunState},
};
use llmprof_screen::ui::KernelsSettings;

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui kernels out.sqlite                   from nsys export --type sqlite
  llmprof-tui kernels base_cuda_gpu_kern_sum.csv   from nsys stats, in any format
  llmprof-tui kernels trace.json.gz                from torch.profiler: kernels by operator
  llmprof-tui kernels rank0.json rank1.json        the ranks of one run side by side; a directory of traces too
  llmprof-tui kernels runs/NAME                    the kernels of a recorded run
  llmprof-tui kernels runs/NAME --by line          the Python lines that launched them
  llmprof-tui kernels runs/NAME --stacks a.json    their stacks for speedscope; a.txt: for flamegraph.pl and inferno
  llmprof-tui kernels nccl.log                     from NCCL_DEBUG=INFO: rings, channels, transports, warnings
  llmprof-tui kernels ncu.csv --group family       from ncu --csv --page raw (or details)
  llmprof-tui kernels cublas.log                   from CUBLAS_LOGINFO_DBG=1: shapes and FLOPs
  llmprof-tui kernels out.sqlite --text            text instead of the TUI
  llmprof-tui kernels out.nsys-rep --filter gemm --sort mean -k 10
  llmprof-tui kernels top --from out.sqlite -k 30 -o top-kernels.yaml

On a terminal this opens the Kernels pane, unless --text, --json or -k is given.

Exit codes: 0 all files were read, 1 a file could not be read.";

/// Maximum rows of a table on a terminal.
const DEFAULT_ROWS: usize = 20;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct KernelsArgs {
    #[command(subcommand)]
    command: Option<KernelsCommand>,
    /// Files written by nsys, ncu, PyTorch's profiler, cuBLAS or NCCL, directories with such files, or recorded runs (also latest)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    json: bool,
    /// Print text even on a terminal
    #[arg(long, conflicts_with = "json")]
    text: bool,
    /// Print at most N rows per table (default: 20; all with --json)
    #[arg(short, value_name = "N")]
    k: Option<usize>,
    /// Group the rows (default: name; in the TUI, operator or family)
    #[arg(long, value_name = "BY")]
    group: Option<By<Group>>,
    /// Print the GPU time of recorded runs of Python programs by the line, or the file, that launched it
    #[arg(long, value_name = "BY", conflicts_with_all = ["group", "filter"])]
    by: Option<By<LaunchGroup>>,
    /// Write the Python stacks of a recorded run's launches to FILE: for speedscope (.json), or collapsed (.txt)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["group", "filter"])]
    stacks: Option<PathBuf>,
    /// Show only rows whose name, family or range contains TEXT
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Sort the rows
    #[arg(long, value_name = "BY", default_value = "time")]
    sort: By<SortBy>,
}

#[derive(Debug, Subcommand)]
enum KernelsCommand {
    /// Write a list of the most expensive kernels, to profile them with ncu
    Top {
        /// File written by nsys, ncu or PyTorch's profiler
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// List N kernels
        #[arg(short, value_name = "N", default_value_t = 30)]
        k: usize,
        /// Write the list to FILE (default: stdout)
        #[arg(short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// A value of an option.
#[derive(Debug, Clone, Copy)]
struct By<T>(T);

impl ValueEnum for By<Group> {
    fn value_variants<'a>() -> &'a [By<Group>] {
        &[By(Group::Operator), By(Group::Family), By(Group::Name), By(Group::None)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            Group::Operator => ("operator", "Kernels of the same operator, if it is known"),
            Group::Family => ("family", "Kernels with the same function, regardless of tiles and types"),
            Group::Name => ("name", "Kernels with the same full name"),
            Group::None => ("launch", "No grouping: name, grid and range"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for By<LaunchGroup> {
    fn value_variants<'a>() -> &'a [By<LaunchGroup>] {
        &[By(LaunchGroup::Line), By(LaunchGroup::Module)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            LaunchGroup::Line => ("line", "The innermost line of the program's own code"),
            LaunchGroup::Module => ("module", "Its file"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for By<SortBy> {
    fn value_variants<'a>() -> &'a [By<SortBy>] {
        &[By(SortBy::Time), By(SortBy::Calls), By(SortBy::Mean)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            SortBy::Time => ("time", "Total time of all calls"),
            SortBy::Calls => ("calls", "Number of calls"),
            SortBy::Mean => ("mean", "Mean time per call"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

/// Tables of one file, or of one phase of a run.
type FileTables = (PathBuf, Option<Phase>, Vec<KernelTable>);

pub(super) async fn run(args: KernelsArgs) -> Result<u8, Failure> {
    if let Some(KernelsCommand::Top { from, k, output }) = &args.command {
        return write_top(from, *k, output.as_deref());
    }
    if args.by.is_some() || args.stacks.is_some() {
        return print_launches(&args);
    }
    let (mut read, mut traces, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    let mut side_by_side = RunState::default();
    let named: Vec<PathBuf> = args.files.iter().map(|file| resolve_run(file)).collect::<Result<_, _>>()?;
    let (runs, given): (Vec<PathBuf>, Vec<PathBuf>) =
        named.into_iter().partition(|path| path.is_dir() && RunDir::open(path).events().is_file());
    for run in runs {
        read.extend(recorded(&run)?);
    }
    let files = files(&given)?;
    for (n, file) in files.iter().enumerate() {
        if files.len() > 1 && tui::terminal::is_there() && !args.json {
            eprint_line(format_args!("reading {} ({} of {})", file.display(), n + 1, files.len()));
        }
        match open_all(file) {
            Ok(opened) => {
                traces.extend(opened.ranks);
                if let Some(nccl) = opened.nccl {
                    side_by_side.ranks.nccl.add(nccl);
                }
                if !opened.tables.is_empty() {
                    read.push((file.clone(), None, opened.tables));
                }
            }
            Err(e) => errors.push(e),
        }
    }
    let merged = merge(traces);
    let notes = merged.as_ref().map(|merged| merged.notes.clone()).unwrap_or_default();
    if let Some(merged) = merged {
        let event = Event::Ranks(Box::new(merged.window));
        side_by_side.apply(&Envelope { t: Stamp::default(), event });
    }
    let in_tui = tui::terminal::is_there() && !args.json && !args.text && args.k.is_none();
    let code = match in_tui && (!read.is_empty() || side_by_side.ranks.is_there()) {
        true => show_in_tui(read, (side_by_side, notes), &errors, args).await?,
        false => print_tables(&read, (&side_by_side, &notes), args)?,
    };
    errors.iter().for_each(|e| eprint_line(format_args!("error: {e}")));
    Ok(code.max(u8::from(!errors.is_empty())))
}

/// The kernels of recorded runs by the lines that launched them.
fn print_launches(args: &KernelsArgs) -> Result<u8, Failure> {
    let mut parts = Vec::new();
    for file in &args.files {
        let run = resolve_run(file)?;
        if !RunDir::open(&run).events().is_file() {
            return Err(Failure::usage(format_args!(
                "{} is not a recorded run: --by and --stacks need one",
                file.display()
            )));
        }
        let (state, _) = read_run(&run)?;
        if !state.launches.is_there() {
            return Err(Failure::work(format_args!(
                "the run in {} recorded no launches of Python lines: they are recorded by exec and attach of a Python program, \
                 unless profiling.stacks=off",
                run.display()
            )));
        }
        if let Some(path) = &args.stacks {
            let is_json = path.extension().is_some_and(|extension| extension == "json");
            let format = if is_json { StackFormat::Speedscope } else { StackFormat::Collapsed };
            fs::write(path, stacks_file(&state, format)).map_err(Failure::cannot_write(path))?;
            eprint_line(format_args!("stacks written to {}", path.display()));
        }
        if let Some(By(group)) = args.by {
            let rows = args.k.unwrap_or(if args.json { usize::MAX } else { DEFAULT_ROWS });
            match args.json {
                true => print_data(&launches_json(&state, group, rows).to_string())?,
                false => parts.push(launches_text(&state, group, rows)),
            }
        }
    }
    if !parts.is_empty() {
        print(&parts.join("\n\n"))?;
    }
    Ok(0)
}

/// The live kernels of a run by phase, and the tables of its reports.
fn recorded(run: &Path) -> Result<Vec<FileTables>, Failure> {
    let (state, skipped) = read_run(run)?;
    if skipped > 0 {
        eprint_line(format_args!("{skipped} unreadable lines of {} skipped", run.display()));
    }
    let kernels = &state.kernels;
    let tool = kernels.trace.as_ref().map_or("CUPTI", |trace| trace.tool.as_str());
    let live = Phase::WORK.into_iter().filter_map(|phase| {
        let live = kernels.live(phase).filter(|live| !live.is_empty())?;
        Some((run.to_owned(), Some(phase), vec![live.table(&format!("{tool}, {}", phase.name()))]))
    });
    let reports = kernels.reports.iter().map(|report| (run.to_owned(), report.phase, report.tables.clone()));
    let all: Vec<FileTables> = live.chain(reports).collect();
    match all.is_empty() {
        false => Ok(all),
        true => Err(Failure::work(format_args!(
            "the run in {} recorded no kernels; run with profiling.cupti.enable=true, or press K while it runs",
            run.display()
        ))),
    }
}

/// Maximum files that are read from a directory.
const MAX_FILES: usize = 1024;

/// The files, and those in directories, in the order of their names.
fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for path in given {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let entries = fs::read_dir(path)
            .map_err(|e| Failure::work(format_args!("cannot list {}: {e}", path.display())))?;
        let wanted = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
            let known = [".json", ".json.gz", ".sqlite", ".log", ".nsys-rep"];
            path.is_file() && known.iter().any(|end| name.ends_with(end))
        };
        let mut found: Vec<PathBuf> =
            entries.flatten().take(64 * MAX_FILES).map(|entry| entry.path()).filter(wanted).collect();
        if found.is_empty() {
            return Err(Failure::work(format_args!(
                "{} has no files of profilers (.json, .json.gz, .sqlite, .nsys-rep, .log)",
                path.display()
            )));
        }
        // Numeric order: rank 10 is after rank 9.
        found.sort_by_key(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            (name.len(), name)
        });
        if found.len() > MAX_FILES {
            eprint_line(format_args!("only the first {MAX_FILES} files of {} are read", path.display()));
            found.truncate(MAX_FILES);
        }
        all.extend(found);
    }
    Ok(all)
}

fn write_top(from: &Path, k: usize, output: Option<&Path>) -> Result<u8, Failure> {
    let tables = open(from).map_err(Failure::work)?;
    let list = top(&from.display().to_string(), &tables, k).ok_or_else(|| {
        Failure::work(format_args!(
            "{} has no kernels to list; use nsys output with kernels (cuda_gpu_kern_sum, SQLite), ncu pages or traces of PyTorch",
            from.display()
        ))
    })?;
    match output {
        None => print_data(yaml_text(&list).trim_end())?,
        Some(path) => {
            fs::write(path, yaml_text(&list)).map_err(Failure::cannot_write(path))?;
            eprint_line(format_args!("{} kernels listed in {}", list.kernels.len(), path.display()));
        }
    }
    Ok(0)
}

fn print_tables(
    read: &[FileTables],
    (side_by_side, notes): (&RunState, &[String]),
    args: KernelsArgs,
) -> Result<u8, Failure> {
    let asked = RowQuery {
        group: args.group.map(|By(group)| group).unwrap_or_default(),
        sort: args.sort.0.into(),
        filter: args.filter,
        rows: args.k.or((!args.json).then_some(DEFAULT_ROWS)),
    };
    let shown: Vec<(String, Vec<TableView>)> = read
        .iter()
        .map(|(file, _, tables)| {
            (file.display().to_string(), tables.iter().map(|table| TableView::new(table, &asked)).collect())
        })
        .collect();
    if args.json {
        let tables: Vec<Value> =
            shown.iter().flat_map(|(file, tables)| tables.iter().map(|table| table.json(file))).collect();
        let mut all = json!({ "schema": 1, "tables": tables });
        if let Some(ranks) = ranks_json(side_by_side) {
            all["ranks"] = ranks;
            all["ranks"]["notes"] = json!(notes);
        }
        print_data(&all.to_string())?;
        return Ok(0);
    }
    let mut parts = Vec::new();
    for (file, tables) in &shown {
        if shown.len() > 1 {
            parts.push(format!("{file}:"));
        }
        parts.extend(tables.iter().map(TableView::text));
    }
    let ranks = ranks_text(side_by_side);
    if !ranks.is_empty() {
        let notes: String = notes.iter().map(|note| format!("\n{note}.")).collect();
        parts.push(ranks + &notes);
    }
    if !parts.is_empty() {
        print(&parts.join("\n\n"))?;
    }
    Ok(0)
}

async fn show_in_tui(
    read: Vec<FileTables>,
    (side_by_side, notes): (RunState, Vec<String>),
    errors: &[KernelsError],
    args: KernelsArgs,
) -> Result<u8, Failure> {
    let composed = ConfigArgs::default().compose()?;
    let mut state = side_by_side;
    let mut add = |event| state.apply(&Envelope { t: Stamp::default(), event });
    let notice = |level, text| Event::Notice(Notice { level, source: "kernels".to_owned(), text });
    if let Some(over) = read.len().checked_sub(KEPT_REPORTS).filter(|over| *over > 0) {
        let text =
            format!("the first {over} files are not shown (at most {KEPT_REPORTS} fit); --text prints all");
        add(notice(Level::Warn, text));
    }
    errors.iter().for_each(|e| add(notice(Level::Error, e.to_string())));
    notes.into_iter().for_each(|note| add(notice(Level::Info, note)));
    for (file, phase, tables) in read {
        let source = tables.first().map(|table| table.source.as_str()).unwrap_or_default();
        let tool = source.split(',').next().unwrap_or(source).to_owned();
        let file = file.display().to_string();
        add(Event::KernelReport(Box::new(KernelReport { tool, phase, file, tables })));
    }
    let settings = KernelsSettings {
        source: Some(0),
        group: args.group.map(|By(group)| group),
        sort: args.sort.0.into(),
        filter: args.filter.unwrap_or_default(),
        ..KernelsSettings::default()
    };
    let tui = composed.config.output.tui.clone();
    let shutdown = Shutdown::listen()?;
    let app = App::of_files(&tui, state, settings, runs_root(&composed));
    report_exit(app.run(tui.mouse, shutdown).await)
}
