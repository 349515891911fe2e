//! The command `kernels`: its arguments, and what it answers.

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
  llmprof-tui kernels out.sqlite                       of nsys export --type sqlite: kernels, ranges, calls, copies
  llmprof-tui kernels base_cuda_gpu_kern_sum.csv       of nsys stats -f csv (or json)
  llmprof-tui kernels ncu.csv --group family           of ncu --csv --page raw (or details)
  llmprof-tui kernels out.sqlite --text                the same in words
  llmprof-tui kernels cublas.log                       of CUBLAS_LOGINFO_DBG=1: shapes and FLOPs
  llmprof-tui kernels out.nsys-rep --filter gemm --sort mean -k 10
  llmprof-tui kernels top --from out.sqlite -k 30 -o top-kernels.yaml

On a terminal it opens the Kernels pane, unless --text, --json or -k is given; elsewhere it prints words.

Exit codes: 0 all files were read, 1 one of them could not be.";

/// Rows for a screen.
const SOME_ROWS: usize = 20;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = EXAMPLES)]
pub struct KernelsArgs {
    #[command(subcommand)]
    command: Option<KernelsCommand>,
    /// What nsys, ncu or cuBLAS wrote
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON object on stdout instead of words
    #[arg(long)]
    json: bool,
    /// Print words, on a terminal too
    #[arg(long, conflicts_with = "json")]
    text: bool,
    /// Print so many rows of each table (default: 20, and all with --json)
    #[arg(short, value_name = "N")]
    k: Option<usize>,
    /// What to put together (default: name; on the screen operators or families)
    #[arg(long, value_name = "BY")]
    group: Option<GroupBy>,
    /// Only rows with this text in name, family or range
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// What comes first
    #[arg(long, value_name = "BY", default_value = "time")]
    sort: Sort,
}

#[derive(Debug, Subcommand)]
enum KernelsCommand {
    /// Write the kernels that take the most time as a list to profile them by
    Top {
        /// What nsys or ncu wrote
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// How many
        #[arg(short, value_name = "N", default_value_t = 30)]
        k: usize,
        /// Where to (default: stdout)
        #[arg(short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum GroupBy {
    /// Kernels that work on the same operator, where that is told
    Operator,
    /// Kernels that do the same, whatever their tiles and types
    Family,
    /// Kernels of the same full name
    Name,
    /// Nothing: by name, grid and range
    Launch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// All calls together
    Time,
    Calls,
    /// One call
    Mean,
}

/// What the command has to say.
#[derive(Debug)]
pub enum Answer {
    /// For stdout, and what could not be read.
    Text { text: String, errors: Vec<KernelsError> },
    /// For the screen: what the files have in them, and how it was asked for.
    Screen { reports: Vec<KernelReport>, wish: Wish, errors: Vec<KernelsError> },
    /// To be written as YAML.
    List { list: TopList, to: Option<PathBuf> },
}

/// How the rows are to be shown at first.
#[derive(Debug)]
pub struct Wish {
    pub group: Option<Group>,
    pub sort: SortBy,
    pub filter: Option<String>,
}

/// Why there is no list.
#[derive(Debug, Error)]
pub enum ListError {
    #[error(transparent)]
    Read(#[from] KernelsError),
    #[error(
        "{0} has no kernels to list; give what nsys wrote of kernels (cuda_gpu_kern_sum, SQLite), or ncu's pages"
    )]
    NoKernels(PathBuf),
}

/// Does what the arguments say. On a terminal there may be a screen rather than words.
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
        let wish = Wish { group, sort, filter: args.filter };
        return Ok(Answer::Screen { reports, wish, errors });
    }
    let asked = Asked {
        group: group.unwrap_or_default(),
        sort,
        filter: args.filter,
        rows: args.k.or((!args.json).then_some(SOME_ROWS)),
    };
    let shown_of = |tables: &[KernelTable]| tables.iter().map(|table| Shown::new(table, &asked)).collect();
    let shown: Vec<(&Path, Vec<Shown>)> =
        read.iter().map(|(file, tables)| (*file, shown_of(tables))).collect();
    let text = if args.json { json_of(&shown).to_string() } else { text_of(&shown) };
    Ok(Answer::Text { text, errors })
}

/// A file as a report of whatever tool wrote it.
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
