//! Python frames, and which of them belongs to the program rather than to its libraries.

use std::fmt;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    pub file: Arc<str>,
    /// 0 if unknown.
    pub line: u32,
    pub function: Arc<str>,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {}", shorten(&self.file), self.line, self.function)
    }
}

/// Whose file it is, by its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    User,
    /// An installed package that may be the program itself, e.g. vllm.
    Package,
    /// An installed package that is never the program, e.g. torch.
    Base,
    /// The standard library, generated code, or a script that only starts a package.
    Runtime,
}

const BASES: &[&str] = &[
    "_distutils_hack",
    "accelerate",
    "anyio",
    "certifi",
    "charset_normalizer",
    "cloudpickle",
    "cuda",
    "cupy",
    "fastapi",
    "filelock",
    "flash_attn",
    "flashinfer",
    "fsspec",
    "gevent",
    "grpc",
    "h11",
    "httpcore",
    "httptools",
    "httpx",
    "huggingface_hub",
    "jinja2",
    "jax",
    "jaxlib",
    "msgpack",
    "msgspec",
    "multiprocess",
    "numba",
    "numpy",
    "nvidia",
    "nvtx",
    "orjson",
    "outlines_core",
    "pandas",
    "pydantic",
    "pydantic_core",
    "PIL",
    "pyarrow",
    "pynvml",
    "pytest",
    "_pytest",
    "ray",
    "regex",
    "requests",
    "safetensors",
    "scipy",
    "sentencepiece",
    "setproctitle",
    "simplejson",
    "starlette",
    "tiktoken",
    "tokenizers",
    "torch",
    "torchaudio",
    "torchgen",
    "torchvision",
    "tqdm",
    "triton",
    "urllib3",
    "uvicorn",
    "uvloop",
    "websockets",
    "xformers",
    "xgrammar",
    "zmq",
];

/// The innermost frame of the program itself. A program that is installed as a package (vllm, sglang) has no separate file:
/// then the innermost frame outside of the standard library and of base packages such as torch and numpy.
pub fn fold_to_user(frames: &[Frame]) -> Option<&Frame> {
    let innermost = |owner: Owner| frames.iter().find(move |frame| owner_of(&frame.file) == owner);
    innermost(Owner::User).or_else(|| innermost(Owner::Package))
}

fn owner_of(file: &str) -> Owner {
    if let Some(inside) = installed(file) {
        let package = inside.split(['/', '.']).next().unwrap_or(inside);
        return if BASES.contains(&package) { Owner::Base } else { Owner::Package };
    }
    let script = file.contains("/bin/") && !file.ends_with(".py");
    // torch.compile writes its code into a directory of this name, or of the user's.
    let compiled = file.contains("/inductor_cache/") || file.contains("/torchinductor_");
    let generated = compiled || file.starts_with('<') && !file.starts_with("<ipython");
    let runtime = script || generated || file.is_empty() || standard(file).is_some();
    if runtime { Owner::Runtime } else { Owner::User }
}

fn installed(file: &str) -> Option<&str> {
    let directories = ["/site-packages/", "/dist-packages/"];
    directories.iter().find_map(|directory| file.rsplit_once(directory)).map(|(_, inside)| inside)
}

/// The part of the path inside of the standard library (`lib/python3.12/` or `python312.zip/`).
fn standard(file: &str) -> Option<&str> {
    let (_, inside) = file.split_once("/python3")?;
    let (version, inside) = inside.split_once('/')?;
    let digits = version.trim_end_matches(".zip").trim_start_matches('.');
    let known = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let library =
        file.contains("/lib/python3") || file.contains("/lib64/python3") || version.ends_with(".zip");
    (known && library).then_some(inside)
}

/// The path from its package (`vllm/v1/core/sched/scheduler.py`), or its last three parts if the package is not known.
pub fn shorten(path: &str) -> &str {
    installed(path).or_else(|| standard(path)).or_else(|| checkout(path)).unwrap_or_else(|| tail(path))
}

/// A checkout has its package in a directory of the same name: `/work/vllm/vllm/engine.py`.
fn checkout(path: &str) -> Option<&str> {
    let repeated = |start: usize| {
        let (first, rest) = path[start..].split_once('/')?;
        let second = rest.split('/').next()?;
        (!first.is_empty() && first == second).then_some(rest)
    };
    path.match_indices('/').find_map(|(slash, _)| repeated(slash + 1))
}

fn tail(path: &str) -> &str {
    let third = path.rmatch_indices('/').nth(2);
    third.map_or(path.trim_start_matches('/'), |(slash, _)| &path[slash + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(files: &[&str]) -> Vec<Frame> {
        let frame = |file: &&str| Frame { file: (*file).into(), line: 1, function: "f".into() };
        files.iter().map(frame).collect()
    }

    fn folded(files: &[&str]) -> Option<String> {
        fold_to_user(&frames(files)).map(|frame| frame.file.to_string())
    }

    const TORCH: &str = "/opt/venv/lib/python3.12/site-packages/torch/_tensor.py";
    const VLLM: &str = "/opt/venv/lib/python3.12/site-packages/vllm/v1/core/sched/scheduler.py";
    const STANDARD: &str = "/usr/lib/python3.12/threading.py";

    #[test]
    fn the_program_is_preferred_to_its_packages() {
        assert_eq!(
            folded(&[STANDARD, TORCH, "/home/u/app/serve.py", "/home/u/app/main.py"]).unwrap(),
            "/home/u/app/serve.py"
        );
        assert_eq!(folded(&[STANDARD, TORCH, VLLM, "/opt/venv/bin/vllm"]).unwrap(), VLLM);
        let compiled = "/root/.cache/vllm/torch_compile_cache/x/inductor_cache/mh/cmhd23.py";
        assert_eq!(folded(&[compiled, TORCH, VLLM]).unwrap(), VLLM);
        assert_eq!(folded(&[STANDARD, TORCH, "<frozen runpy>", "<string>"]), None);
        assert_eq!(folded(&[]), None);
    }

    #[test]
    fn a_directory_that_looks_like_a_library_is_the_users() {
        for path in ["/home/u/python3/main.py", "/srv/python3.12-tests/x.py", "/home/u/bin/tool.py"] {
            assert_eq!(owner_of(path), Owner::User, "{path}");
        }
        assert_eq!(owner_of("/usr/lib/python312.zip/json/encoder.py"), Owner::Runtime);
        assert_eq!(owner_of("/usr/lib/python3/dist-packages/numpy/core.py"), Owner::Base);
    }

    #[test]
    fn paths_are_shortened_to_their_package() {
        assert_eq!(shorten(VLLM), "vllm/v1/core/sched/scheduler.py");
        assert_eq!(shorten(STANDARD), "threading.py");
        assert_eq!(shorten("/work/vllm/vllm/engine/core.py"), "vllm/engine/core.py");
        assert_eq!(shorten("/home/u/app/src/main.py"), "app/src/main.py");
        assert_eq!(shorten("main.py"), "main.py");
        assert_eq!(shorten("/é//ü"), "é//ü");
    }
}
