//! The machine that the checks read; tests substitute their own.

use std::{
    io::{self, IsTerminal},
    ops::Deref,
    path::PathBuf,
};

use llmprof_base::tools::System;
use llmprof_engine::{candle::memory, cuda::Manifest, device};
use llmprof_event::Device;

/// Files, variables, tools and this build.
#[derive(Debug, Clone)]
pub struct Machine {
    pub system: System,
    /// The NVML library; `None` for the one that the driver installed.
    pub nvml: Option<PathBuf>,
    pub build: Build,
    pub screen: Screen,
    /// The directory of runs, or why it is unknown. Not below `root`.
    pub runs: Result<PathBuf, String>,
    /// Memory available without swapping, if the system reports it.
    pub free_memory: Option<u64>,
}

/// The capabilities of this binary.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    /// The lowest compute capability that its kernels run on, as 80 for 8.0.
    pub lowest: u32,
    /// The major version of the CUDA that compiled them.
    pub cuda: u32,
    /// Whether its kernels are older than their sources, and do not run.
    pub is_stale: bool,
    /// What `runtime.device=auto` selects. Queries CUDA, which takes a while.
    pub auto: fn() -> Device,
}

/// The terminal, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Whether both stdin and stdout are a terminal.
    pub terminal: bool,
    /// Columns and rows, if stdout reports them.
    pub size: Option<(u16, u16)>,
}

impl Machine {
    /// This machine. `runs` is the directory of runs, or why it is unknown.
    pub fn here(runs: Result<PathBuf, String>) -> Machine {
        Machine {
            system: System::here(),
            nvml: None,
            build: Build {
                lowest: Manifest::get().lowest(),
                cuda: Manifest::get().cuda_major(),
                is_stale: Manifest::get().is_stale(),
                auto: || device::resolve("auto", 0).unwrap_or(Device::Cpu),
            },
            screen: Screen::here(),
            runs,
            free_memory: memory::free_bytes(),
        }
    }
}

/// Files, variables and tools of the system.
impl Deref for Machine {
    type Target = System;

    fn deref(&self) -> &System {
        &self.system
    }
}

impl Screen {
    fn here() -> Screen {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
        Screen {
            terminal: io::stdin().is_terminal() && io::stdout().is_terminal(),
            size: size
                .map(|size| (size.ws_col, size.ws_row))
                .filter(|(columns, rows)| *columns > 0 && *rows > 0),
        }
    }
}
