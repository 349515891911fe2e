//! `llmprof-tui`: everything is in the library.

use llmprof::profile::heap::CountingHeap;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

fn main() -> std::process::ExitCode {
    llmprof::cli::main()
}
