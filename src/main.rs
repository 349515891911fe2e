//! `llmprof-tui`: everything is in the library.

use llmprof::{
    process::abort,
    workload::heap::{self, CountingHeap},
};

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

fn main() -> std::process::ExitCode {
    heap::on_failure(abort::allocation_failed);
    llmprof::cli::main()
}
