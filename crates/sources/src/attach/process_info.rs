//! The system's information about a process of another program.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use llmprof_inject::wire;

use super::{
    door::Door,
    library,
    private_dir::{Dormant, shared_dormant},
};

use llmprof_base::{
    dir::read_file,
    foreign::{line, visible},
    shell::quoted,
};

/// Maximum size of the arguments and variables of a process.
const MAX_BYTES: u64 = 4 << 20;
/// Maximum size of the list of mapped files.
const MAX_MAPS: u64 = 64 << 20;

/// The variables in which launchers give the rank of a worker, and the number of ranks: torchrun, Open MPI, PMIx,
/// MPICH, MVAPICH, Slurm.
const RANKS: [&str; 7] = [
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "LOCAL_RANK",
];
const WORLDS: [&str; 5] =
    ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS"];

/// The library in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Library {
    /// The process was started with the library's variables.
    Dormant(Dormant),
    /// It was loaded into the running process.
    Loaded,
}

/// The visible properties of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    pub pid: u32,
    pub parent: Option<u32>,
    /// Its unmodified arguments.
    pub arguments: Vec<OsString>,
    /// Its working directory.
    pub directory: Option<PathBuf>,
    pub library: Option<Library>,
    /// Whether it has loaded the driver's library.
    pub uses_cuda: bool,
    /// Its rank, if it reports one.
    pub rank: Option<String>,
    /// The number of ranks, if it reports that.
    pub world: Option<u32>,
    /// The GPUs that it may use, by index or UUID: `CUDA_VISIBLE_DEVICES`.
    pub visible_gpus: Option<Vec<String>>,
}

impl ProcessInfo {
    pub fn read(pid: u32) -> Option<ProcessInfo> {
        Self::below(Path::new("/proc"), pid)
    }

    /// The parent of a process; `None` if there is no such process.
    pub(super) fn parent_of(pid: u32) -> Option<u32> {
        parent(&read_file(&Path::new("/proc").join(pid.to_string()).join("stat"), MAX_BYTES).ok()?)
    }

    fn below(root: &Path, pid: u32) -> Option<ProcessInfo> {
        let dir = root.join(pid.to_string());
        let bytes = |name: &str| read_file(&dir.join(name), MAX_BYTES).unwrap_or_default();
        let parent = parent(&read_file(&dir.join("stat"), MAX_BYTES).ok()?);
        let words = |bytes: Vec<u8>| -> Vec<OsString> {
            bytes
                .split(|byte| *byte == 0)
                .filter(|word| !word.is_empty())
                .map(|w| OsString::from_vec(w.to_vec()))
                .collect()
        };
        let variables = words(bytes("environ"));
        let variable = |name: &str| {
            let found = variables
                .iter()
                .find_map(|word| Some(word.to_str()?.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
            found.filter(|value: &String| !value.is_empty())
        };
        let maps = read_file(&dir.join("maps"), MAX_MAPS).unwrap_or_default();
        let (has_library, uses_cuda) = (has_library(&maps), uses_cuda(&maps));
        Some(ProcessInfo {
            pid,
            parent,
            arguments: words(bytes("cmdline")),
            directory: fs::read_link(dir.join("cwd")).ok(),
            library: variable(wire::DIRECTORY)
                .zip(variable(wire::TOKEN))
                .filter(|_| variable("CUDA_INJECTION64_PATH").is_some())
                // Variables without the library, in a program that uses CUDA, were inherited in vain.
                .filter(|_| has_library || !uses_cuda)
                .map(|(directory, token)| Dormant { directory: directory.into(), token })
                .or_else(|| has_library.then(shared_dormant).flatten())
                .map(Library::Dormant)
                .or_else(|| Door::find(pid).map(|_| Library::Loaded)),
            uses_cuda,
            rank: RANKS.into_iter().find_map(variable),
            world: WORLDS.into_iter().find_map(variable).and_then(|world| world.parse().ok()),
            visible_gpus: variable("CUDA_VISIBLE_DEVICES")
                .map(|list| list.split(',').take(64).map(|gpu| gpu.trim().to_owned()).collect()),
        })
    }

    /// How to record its kernels.
    pub fn offer(&self) -> String {
        let Self { pid, .. } = self;
        let command = line(&self.command(), 100);
        match self.library {
            Some(_) => format!(
                "process {pid} ({command}) has loaded the library of llmprof-tui: llmprof-tui attach {pid} shows its \
                 kernels and steps"
            ),
            None => match ptrace_load::check(*pid) {
                Ok(_) => format!(
                    "process {pid} ({command}) can be joined: llmprof-tui attach {pid} shows its kernels and steps"
                ),
                Err(refusal) => format!(
                    "process {pid} ({command}) cannot be joined: {}; llmprof-tui exec -- {command} shows kernels and steps",
                    cause(&refusal)
                ),
            },
        }
    }

    /// Its arguments on one line.
    pub fn command(&self) -> String {
        command_text(&self.arguments)
    }
}

/// Why a process cannot be joined, for a longer sentence.
pub fn cause(refusal: &ptrace_load::Refusal) -> String {
    line(refusal.to_string().trim_end_matches('.'), 400)
}

/// Arguments on one line.
pub fn command_text(arguments: &[OsString]) -> String {
    let words = arguments.iter().map(|word| quoted(&word.to_string_lossy()));
    visible(&words.collect::<Vec<_>>().join(" ")).into_owned()
}

/// The parent, from `/proc/PID/stat`. The name, in parentheses, may contain spaces and parentheses.
fn parent(stat: &[u8]) -> Option<u32> {
    let stat = String::from_utf8_lossy(stat);
    stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok())
}

/// The names of the files that a process has mapped.
fn mapped(maps: &[u8]) -> impl Iterator<Item = &str> {
    let lines = maps.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines.filter_map(|line| line.rsplit('/').next())
}

fn uses_cuda(maps: &[u8]) -> bool {
    mapped(maps).any(|file| file.starts_with("libcuda.so"))
}

/// Whether the library is among the files that a process has mapped. A newer version may have replaced the file since
/// then.
fn has_library(maps: &[u8]) -> bool {
    mapped(maps).any(|file| file.trim_end().trim_end_matches(" (deleted)") == library::NAME)
}

/// The processes with this id or name, of a program or of one of its scripts; never this process.
pub fn find_processes(wanted: &str) -> Vec<ProcessInfo> {
    if let Ok(pid) = wanted.parse() {
        return ProcessInfo::read(pid).into_iter().collect();
    }
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // sudo has the name among its arguments, too.
    let above = |pid: &u32| ProcessInfo::parent_of(*pid);
    let ours: Vec<u32> = std::iter::successors(Some(std::process::id()), above).take(64).collect();
    let is_named = |info: &ProcessInfo| is_named(&info.arguments, wanted);
    let mut found: Vec<ProcessInfo> =
        pids.filter(|pid| !ours.contains(pid)).filter_map(ProcessInfo::read).filter(is_named).collect();
    found.sort_by_key(|info| info.pid);
    found
}

/// Whether a command is known by a name: that of its program, its script or its Python module (`python -m vllm.entrypoints…`), or
/// the first part of the title that it gave itself (`VLLM::EngineCore`).
fn is_named(arguments: &[OsString], wanted: &str) -> bool {
    let is_file =
        |word: &OsString| Path::new(word).file_name().is_some_and(|name| name.to_string_lossy() == wanted);
    let modules =
        arguments.iter().zip(arguments.iter().skip(1)).take(4).filter(|(option, _)| *option == "-m");
    let is_module = |module: &OsString| {
        let module = module.to_string_lossy();
        module == wanted || module.split('.').next() == Some(wanted)
    };
    let title = arguments.first().map(|title| title.to_string_lossy()).unwrap_or_default();
    arguments.iter().take(4).any(is_file)
        || modules.into_iter().any(|(_, module)| is_module(module))
        || title.split_once("::").is_some_and(|(first, _)| first.eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_among_mapped_files() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 42    {path}\n");
        for (path, found) in [
            ("/root/.local/share/llmprof-tui/libllmprof_inject.so", true),
            ("/run/user/0/llmprof-0/libllmprof_inject.so (deleted)", true),
            ("/usr/lib/libcuda.so.1", false),
            ("/tmp/libllmprof_inject.so.bak", false),
        ] {
            let maps = line("/usr/lib/libc.so.6") + &line(path);
            assert_eq!(has_library(maps.as_bytes()), found, "{path}");
        }
    }

    #[test]
    fn a_command_has_the_name_of_its_program_its_script_its_module_or_its_title() {
        let named = |command: &str, wanted: &str| {
            is_named(&command.split(' ').map(OsString::from).collect::<Vec<_>>(), wanted)
        };
        for command in [
            "/usr/bin/vllm serve m7",
            "python3 /opt/bin/vllm serve m7",
            "python3 -u -m vllm.entrypoints.cli.main serve m7",
            "VLLM::EngineCore",
        ] {
            assert!(named(command, "vllm"), "{command}");
        }
        assert!(
            named("sglang::scheduler", "sglang")
                && named("python3 -m sglang.launch_server", "sglang.launch_server")
        );
        for command in ["grep vllm.log", "python3 vllm.py", "python3 -m x vllm2", "/home/vllm/run serve"] {
            assert!(!named(command, "vllm"), "{command}");
        }
    }

    #[test]
    fn a_process_is_read_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("42");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("stat"), "42 (a) b) S 7 42 42 0").unwrap();
        fs::write(dir.join("cmdline"), "python\0serve it.py\0").unwrap();
        let info = ProcessInfo::below(root.path(), 42).unwrap();
        assert_eq!(
            (info.parent, info.command().as_str(), &info.library),
            (Some(7), "python 'serve it.py'", &None)
        );
        fs::write(
            dir.join("environ"),
            "SLURM_PROCID=0\0RANK=1\0WORLD_SIZE=4\0CUDA_VISIBLE_DEVICES=2, 3\0LLMPROF_ATTACH=/run/x\0LLMPROF_TOKEN=abc\0CUDA_INJECTION64_PATH=/x.so\0",
        )
        .unwrap();
        let info = ProcessInfo::below(root.path(), 42).unwrap();
        let Some(Library::Dormant(library)) = info.library else { panic!("{info:?}") };
        assert_eq!((library.directory.to_str(), library.token.as_str()), (Some("/run/x"), "abc"));
        assert_eq!((info.rank.as_deref(), info.world), (Some("1"), Some(4)));
        assert_eq!(info.visible_gpus.unwrap(), ["2", "3"]);
        assert_eq!(ProcessInfo::below(root.path(), 43), None);
    }
}
