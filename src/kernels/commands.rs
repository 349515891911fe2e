//! The command `kernels`: its arguments and its output.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use thiserror::Error;

use super::{
    KernelsError, open,
    show::{Asked, Shown},
    top::{TopList, top},
};
use crate::event::KernelReport;
use crate::event::kernels::{Group, KernelTable, SortBy};

pub const EXAMPLES: &str = "\
Examples:
  llmprof-tui kernels out.sqlite                       from nsys export --type sqlite: kernels, ranges, calls, copies
  llmprof-tui kernels base_cuda_gpu_kern_sum.csv       from nsys stats -f csv (or json)
  llmprof-tui kernels ncu.csv --group family           from ncu --csv --page raw (or details)
  llmprof-tui kernels out.sqlite --text                print text on a terminal too
  llmprof-tui kernels cublas.log                       from CUBLAS_LOGINFO_DBG=1: shapes and FLOPs
  llmprof-tui kernels out.nsys-rep --filter gemm --sort mean -k 10
  llmprof-tui kernels top --from out.sqlite -k 30 -o top-kernels.yaml

On a terminal it opens the Kernels pane unless --text, --json or -k is given; otherwise it prints text.

Exit codes: 0 all files were read, 1 a file could not be read.";

/// Rows of a table by default.
const DEFAULT_ROWS: usize = 20;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = EXAMPLES)]
pub struct KernelsArgs {
    #[command(subcommand)]
    command: Option<KernelsCommand>,
    /// Files written by nsys, ncu or cuBLAS
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON object on stdout
    #[arg(long)]
    json: bool,
    /// Print text instead of opening the Kernels pane
    #[arg(long, conflicts_with = "json")]
    text: bool,
    /// Rows to print of each table (default: 20, all with --json)
    #[arg(short, value_name = "N")]
    k: Option<usize>,
    /// Group rows by this (default: name; operators or families in the Kernels pane)
    #[arg(long, value_name = "BY")]
    group: Option<GroupBy>,
    /// Only rows with this text in name, family or range
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Sort rows by this
    #[arg(long, value_name = "BY", default_value = "time")]
    sort: Sort,
}

#[derive(Debug, Subcommand)]
enum KernelsCommand {
    /// Write the kernels with the most time as a list to profile
    Top {
        /// A file written by nsys or ncu
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// Number of kernels
        #[arg(short, value_name = "N", default_value_t = 30)]
        k: usize,
        /// Output file (default: stdout)
        #[arg(short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum GroupBy {
    /// Kernels of the same operator, if known
    Operator,
    /// Kernels of the same function, regardless of tile sizes and data types
    Family,
    /// Kernels with the same full name
    Name,
    /// No grouping: one row for each name, grid and range
    Launch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// Total time of all calls
    Time,
    Calls,
    /// Mean time of a call
    Mean,
}

/// The output of the command.
#[derive(Debug)]
pub enum Answer {
    /// For stdout, with the errors of unreadable files.
    Text { text: String, errors: Vec<KernelsError> },
    /// For the Kernels pane: the content of the files, and how to show it first.
    Screen { reports: Vec<KernelReport>, view: InitialView, errors: Vec<KernelsError> },
    /// To be written as YAML.
    List { list: TopList, to: Option<PathBuf> },
}

/// How the Kernels pane shows its rows at first.
#[derive(Debug)]
pub struct InitialView {
    pub group: Option<Group>,
    pub sort: SortBy,
    pub filter: Option<String>,
}

/// Why no list could be made.
#[derive(Debug, Error)]
pub enum ListError {
    #[error(transparent)]
    Read(#[from] KernelsError),
    #[error("{0} has no kernels; pass a kernel report of nsys (cuda_gpu_kern_sum, SQLite) or a page of ncu")]
    NoKernels(PathBuf),
}

/// Runs the command. On a terminal the output may be a screen instead of text.
pub fn run(args: KernelsArgs, on_terminal: bool) -> Result<Answer, ListError> {
    if let Some(KernelsCommand::Top { from, k, output }) = args.command {
        let tables = open(&from)?;
        let list = top(&from.display().to_string(), &tables, k).ok_or(ListError::NoKernels(from))?;
        return Ok(Answer::List { list, to: output });
    }
    let group = args.group.map(|group| match group {
        GroupBy::Operator => Group::Operator,
        GroupBy::Family => Group::Family,
        GroupBy::Name => Group::Name,
        GroupBy::Launch => Group::None,
    });
    let sort = match args.sort {
        Sort::Time => SortBy::Time,
        Sort::Calls => SortBy::Calls,
        Sort::Mean => SortBy::Mean,
    };
    let (mut read, mut errors) = (Vec::new(), Vec::new());
    for file in &args.files {
        match open(file) {
            Ok(tables) => read.push((file.as_path(), tables)),
            Err(e) => errors.push(e),
        }
    }
    if on_terminal && !args.json && !args.text && args.k.is_none() {
        let reports = read.into_iter().map(|(file, tables)| report_of(file, tables)).collect();
        let view = InitialView { group, sort, filter: args.filter };
        return Ok(Answer::Screen { reports, view, errors });
    }
    let asked = Asked {
        group: group.unwrap_or_default(),
        sort,
        filter: args.filter,
        rows: args.k.or((!args.json).then_some(DEFAULT_ROWS)),
    };
    let shown_of = |tables: &[KernelTable]| tables.iter().map(|table| Shown::new(table, &asked)).collect();
    let shown: Vec<(&Path, Vec<Shown>)> =
        read.iter().map(|(file, tables)| (*file, shown_of(tables))).collect();
    let text = if args.json { json_of(&shown).to_string() } else { text_of(&shown) };
    Ok(Answer::Text { text, errors })
}

/// A file as a report of the tool that wrote it.
fn report_of(file: &Path, tables: Vec<KernelTable>) -> KernelReport {
    let source = tables.first().map(|table| table.source.as_str()).unwrap_or_default();
    KernelReport {
        tool: source.split(',').next().unwrap_or(source).to_owned(),
        phase: None,
        file: file.display().to_string(),
        tables,
    }
}

fn text_of(shown: &[(&Path, Vec<Shown>)]) -> String {
    let mut parts = Vec::new();
    for (file, tables) in shown {
        if shown.len() > 1 {
            parts.push(format!("{}:", file.display()));
        }
        parts.extend(tables.iter().map(Shown::text));
    }
    parts.join("\n\n")
}

fn json_of(shown: &[(&Path, Vec<Shown>)]) -> Value {
    let tables: Vec<Value> = shown
        .iter()
        .flat_map(|(file, tables)| {
            let file = file.display().to_string();
            tables.iter().map(move |table| table.json(&file))
        })
        .collect();
    json!({ "schema": 1, "tables": tables })
}
