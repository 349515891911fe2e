//! Messages about failures of a worker, with remedies.

use thiserror::Error;

use super::protocol::Failure;
use llmprof_base::foreign;

/// Why a run in PyTorch failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WorkerError {
    #[error("cancelled")]
    Cancelled,
    #[error(
        "{python} has no torch; install it (pip install torch), or name another Python: runtime.pytorch.python=PATH"
    )]
    NoTorch { python: String },
    #[error(
        "{python} has no transformers; install it (pip install transformers), or use your own code: \
         runtime.pytorch.script=FILE"
    )]
    NoTransformers { python: String },
    #[error("{package} of {python} cannot be imported: {error}; install it again")]
    Broken { package: &'static str, python: String, error: String },
    #[error("{package} {found} of {python} is too old; version {needed} or newer is needed")]
    Old { package: &'static str, python: String, found: String, needed: &'static str },
    #[error("torch cannot use CUDA ({found}); install a torch for CUDA, or use runtime.device=cpu")]
    NoCuda { found: String },
    #[error(
        "out of memory: {error}; use a smaller runtime.batch_size, dataset.prompt_tokens or model, or model.dtype=bf16"
    )]
    Memory { error: String },
    #[error(
        "model.weights={path} is not a directory; PyTorch reads directories with config.json and safetensors"
    )]
    NoDirectory { path: String },
    #[error(
        "{path} contains code, which is not run by default: review it, then set runtime.pytorch.trust_remote_code=true"
    )]
    Trust { path: String },
    #[error(
        "transformers does not know the model type {found}; install a newer one, or use runtime.pytorch.script=FILE"
    )]
    UnknownModel { found: String },
    #[error(
        "{model} needs the files of its processor to read images; use model.weights=DIRECTORY of a checkpoint, or \
         runtime.pytorch.script=FILE"
    )]
    NoProcessor { model: String },
    #[error("runtime.pytorch.script={path} does not exist")]
    NoScript { path: String },
    #[error(
        "the script has no {missing}; it needs load(config) and generate(model, prompt, on_token), see docs/pytorch.md"
    )]
    ScriptLacks { missing: String },
    #[error("a module is not installed in {python}: {error}; install it")]
    Import { python: String, error: String },
    #[error("{doing} failed: {error}; the traceback is in Log and in events.ndjson")]
    Failed { doing: &'static str, error: String },
    #[error("the worker ended before the run{how}; its output is in Log and in program.log")]
    Ended { how: String },
    #[error(
        "the worker has been silent for {seconds} s while {doing}; runtime.pytorch.timeout_s={seconds} is the limit, \
         and `py-spy dump --pid {pid}` shows where the process is"
    )]
    Silent { seconds: u64, doing: &'static str, pid: String },
    #[error("the worker sent an unexpected message: {what}")]
    OutOfOrder { what: &'static str },
    #[error("the worker could not be started: {0}")]
    NotStarted(String),
}

impl WorkerError {
    /// From the worker's report of a failure.
    pub(super) fn from_failure(failure: &Failure, python: &str) -> WorkerError {
        let text = foreign::line(&failure.error, 400);
        let python = python.to_owned();
        match failure.kind.as_str() {
            "no_torch" => WorkerError::NoTorch { python },
            "no_transformers" => WorkerError::NoTransformers { python },
            "broken_torch" => WorkerError::Broken { package: "torch", python, error: text },
            "broken_transformers" => WorkerError::Broken { package: "transformers", python, error: text },
            "old_torch" => WorkerError::Old { package: "torch", python, found: text, needed: "2.1" },
            "old_transformers" => {
                WorkerError::Old { package: "transformers", python, found: text, needed: "4.48" }
            }
            "no_cuda" => WorkerError::NoCuda { found: text },
            "memory" => WorkerError::Memory { error: text },
            "no_directory" => WorkerError::NoDirectory { path: text },
            "trust" => WorkerError::Trust { path: text },
            "unknown_model" => WorkerError::UnknownModel { found: text },
            "no_processor" => WorkerError::NoProcessor { model: text },
            "no_script" => WorkerError::NoScript { path: text },
            "script_lacks" => WorkerError::ScriptLacks { missing: text },
            "import" => WorkerError::Import { python, error: text },
            _ => WorkerError::Failed { doing: doing(&failure.doing), error: text },
        }
    }
}

/// The worker's activity as text.
fn doing(word: &str) -> &'static str {
    match word {
        "environment" => "starting PyTorch",
        "load" => "loading the model",
        _ => "a request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_a_message_and_a_remedy() {
        for (kind, error, expected) in [
            ("no_torch", "", "/venv/bin/python has no torch; install it"),
            ("old_torch", "1.13.1", "torch 1.13.1 of /venv/bin/python is too old; version 2.1 or newer"),
            ("memory", "CUDA out of memory.", "out of memory: CUDA out of memory.; use a smaller"),
            ("trust", "models/x", "models/x contains code"),
            ("script_lacks", "generate", "the script has no generate; it needs load(config) and"),
            (
                "error",
                "ValueError: \u{1b}[31mno\nyes",
                "loading the model failed: ValueError: \\u001b[31mno yes;",
            ),
            ("never heard of", "KeyError: 'x'", "loading the model failed: KeyError: 'x'; the traceback"),
        ] {
            let failure = Failure {
                doing: "load".to_owned(),
                kind: kind.to_owned(),
                error: error.to_owned(),
                trace: String::new(),
            };
            let text = WorkerError::from_failure(&failure, "/venv/bin/python").to_string();
            assert!(text.starts_with(expected), "{text}");
        }
    }
}
