//! `llmprof-tui`: everything is in the library.

fn main() -> std::process::ExitCode {
    llmprof::cli::main()
}
