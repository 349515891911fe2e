//! `kernels`: kernel tables from the files of nsys, ncu, PyTorch and cuBLAS, as text or in the TUI.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum, builder::PossibleValue};
use serde_json::{Value, json};

use super::{
    Failure,
    args::{ConfigArgs, runs_root},
    print, print_data,
    profile::report_exit,
};
use crate::{
    config::yaml_text,
    event::{
        Envelope, Event, KernelReport, Level, Notice, Stamp,
        kernels::{Group, KernelTable, SortBy},
    },
    kernels::{
        KernelsError, open,
        show::{RowQuery, TableView},
        top::top,
    },
    process::{eprint_line, shutdown::Shutdown},
    state::{KEPT_REPORTS, RunState},
    tui::{self, App, ui::KernelsSettings},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui kernels out.sqlite                   from nsys export --type sqlite
  llmprof-tui kernels base_cuda_gpu_kern_sum.csv   from nsys stats, in any format
  llmprof-tui kernels trace.json.gz                from torch.profiler: kernels by operator
  llmprof-tui kernels ncu.csv --group family       from ncu --csv --page raw (or details)
  llmprof-tui kernels cublas.log                   from CUBLAS_LOGINFO_DBG=1: shapes and FLOPs
  llmprof-tui kernels out.sqlite --text            text instead of the TUI
  llmprof-tui kernels out.nsys-rep --filter gemm --sort mean -k 10
  llmprof-tui kernels top --from out.sqlite -k 30 -o top-kernels.yaml

On a terminal this opens the Kernels pane, unless --text, --json or -k is given.

Exit codes: 0 all files were read, 1 a file could not be read.";

/// Rows of a table on a terminal.
const DEFAULT_ROWS: usize = 20;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct KernelsArgs {
    #[command(subcommand)]
    command: Option<KernelsCommand>,
    /// Files written by nsys, ncu, PyTorch's profiler or cuBLAS
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    json: bool,
    /// Print text, on a terminal too
    #[arg(long, conflicts_with = "json")]
    text: bool,
    /// Rows to print of each table (default: 20; all with --json)
    #[arg(short, value_name = "N")]
    k: Option<usize>,
    /// Group the rows (default: name; in the TUI, operator or family)
    #[arg(long, value_name = "BY")]
    group: Option<Group>,
    /// Show only rows with this text in name, family or range
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Sort the rows
    #[arg(long, value_name = "BY", default_value = "time")]
    sort: SortBy,
}

#[derive(Debug, Subcommand)]
enum KernelsCommand {
    /// Write a list of the most expensive kernels, to profile them with ncu
    Top {
        /// A file written by nsys, ncu or PyTorch's profiler
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// Number of kernels
        #[arg(short, value_name = "N", default_value_t = 30)]
        k: usize,
        /// The file to write (default: stdout)
        #[arg(short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

impl ValueEnum for Group {
    fn value_variants<'a>() -> &'a [Group] {
        &[Group::Operator, Group::Family, Group::Name, Group::None]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Group::Operator => ("operator", "Kernels of the same operator, where it is known"),
            Group::Family => ("family", "Kernels with the same function, regardless of tiles and types"),
            Group::Name => ("name", "Kernels with the same full name"),
            Group::None => ("launch", "No grouping: name, grid and range"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for SortBy {
    fn value_variants<'a>() -> &'a [SortBy] {
        &[SortBy::Time, SortBy::Calls, SortBy::Mean]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            SortBy::Time => ("time", "Total time of all calls"),
            SortBy::Calls => ("calls", "Number of calls"),
            SortBy::Mean => ("mean", "Mean time of a call"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

type FileTables = (PathBuf, Vec<KernelTable>);

pub(super) async fn run(args: KernelsArgs) -> Result<u8, Failure> {
    if let Some(KernelsCommand::Top { from, k, output }) = &args.command {
        return write_top(from, *k, output.as_deref());
    }
    let (mut read, mut errors) = (Vec::new(), Vec::new());
    for file in &args.files {
        match open(file) {
            Ok(tables) => read.push((file.clone(), tables)),
            Err(e) => errors.push(e),
        }
    }
    let in_tui = tui::terminal::is_there() && !args.json && !args.text && args.k.is_none();
    let code = match in_tui && !read.is_empty() {
        true => show_in_tui(read, &errors, args).await?,
        false => print_tables(&read, args)?,
    };
    errors.iter().for_each(|e| eprint_line(format_args!("error: {e}")));
    Ok(code.max(u8::from(!errors.is_empty())))
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

fn print_tables(read: &[FileTables], args: KernelsArgs) -> Result<u8, Failure> {
    let asked = RowQuery {
        group: args.group.unwrap_or_default(),
        sort: args.sort,
        filter: args.filter,
        rows: args.k.or((!args.json).then_some(DEFAULT_ROWS)),
    };
    let shown: Vec<(String, Vec<TableView>)> = read
        .iter()
        .map(|(file, tables)| {
            (file.display().to_string(), tables.iter().map(|table| TableView::new(table, &asked)).collect())
        })
        .collect();
    if args.json {
        let tables: Vec<Value> =
            shown.iter().flat_map(|(file, tables)| tables.iter().map(|table| table.json(file))).collect();
        print_data(&json!({ "schema": 1, "tables": tables }).to_string())?;
        return Ok(0);
    }
    let mut parts = Vec::new();
    for (file, tables) in &shown {
        if shown.len() > 1 {
            parts.push(format!("{file}:"));
        }
        parts.extend(tables.iter().map(TableView::text));
    }
    if !parts.is_empty() {
        print(&parts.join("\n\n"))?;
    }
    Ok(0)
}

async fn show_in_tui(
    read: Vec<FileTables>,
    errors: &[KernelsError],
    args: KernelsArgs,
) -> Result<u8, Failure> {
    let composed = ConfigArgs::default().compose()?;
    let mut state = RunState::default();
    let mut add = |event| state.apply(&Envelope { t: Stamp::default(), event });
    let notice = |level, text| Event::Notice(Notice { level, source: "kernels".to_owned(), text });
    if let Some(over) = read.len().checked_sub(KEPT_REPORTS).filter(|over| *over > 0) {
        let text =
            format!("the first {over} files are not shown (at most {KEPT_REPORTS} fit); --text prints all");
        add(notice(Level::Warn, text));
    }
    errors.iter().for_each(|e| add(notice(Level::Error, e.to_string())));
    for (file, tables) in read {
        let source = tables.first().map(|table| table.source.as_str()).unwrap_or_default();
        let tool = source.split(',').next().unwrap_or(source).to_owned();
        let file = file.display().to_string();
        add(Event::KernelReport(Box::new(KernelReport { tool, phase: None, file, tables })));
    }
    let settings = KernelsSettings {
        source: Some(0),
        group: args.group,
        sort: args.sort,
        filter: args.filter.unwrap_or_default(),
        ..KernelsSettings::default()
    };
    let tui = composed.config.output.tui.clone();
    let shutdown = Shutdown::listen()?;
    let app = App::of_files(&tui, state, settings, runs_root(&composed));
    report_exit(app.run(tui.mouse, shutdown).await)
}
