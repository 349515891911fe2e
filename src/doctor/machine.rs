//! The machine as the checks see it: a test can present another.

use std::{
    io::{self, IsTerminal},
    ops::Deref,
    path::PathBuf,
};

use crate::{
    engine::{candle::memory, device},
    event::Device,
    tools::System,
};

/// Files, variables, tools and this build.
#[derive(Debug, Clone)]
pub struct Machine {
    pub system: System,
    /// NVML from this file; `None` looks where drivers put it.
    pub nvml: Option<PathBuf>,
    pub build: Build,
    pub screen: Screen,
    /// Where runs are kept, or why that cannot be told. Not below `root`.
    pub runs: Result<PathBuf, String>,
    /// Memory that can be had without swapping, where the system says.
    pub free_memory: Option<u64>,
}

/// What this binary can do.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    /// The compute capability of its kernels, as 90 for 9.0; `None` without CUDA.
    pub capability: Option<u32>,
    /// Where `runtime.device=auto` goes. Asks CUDA, which takes a while.
    pub auto: fn() -> Device,
}

/// The terminal, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Both stdin and stdout are one.
    pub terminal: bool,
    /// Columns and rows, where stdout tells them.
    pub size: Option<(u16, u16)>,
}

impl Machine {
    /// This machine. `runs` is where runs are kept, or why that cannot be told.
    pub fn here(runs: Result<PathBuf, String>) -> Machine {
        Machine {
            system: System::here(),
            nvml: None,
            build: Build {
                capability: device::built_for(),
                auto: || device::resolve("auto", 0).unwrap_or(Device::Cpu),
            },
            screen: Screen::here(),
            runs,
            free_memory: memory::free_bytes(),
        }
    }
}

/// A machine is asked for files, variables and tools as its system is.
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
