//! The course of one load: find a thread, borrow it to create a new one, and hand the library to that.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::offset_of;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use crate::borrow::{Borrowed, Missed, borrow};
use crate::candidates::{Candidate, candidates};
use crate::elf::Image;
use crate::frame;
use crate::maps::Module;
use crate::memory::{Memory, ProcessMemory};
use crate::place::{Places, SIGNAL_RETURNS};
use crate::process::{glibc, inspect, read_mappings};
use crate::stub::{self, Block, failure, release, state};
use crate::sys::pause;
use crate::{Busy, Loaded, Options, Refusal, Stopped};

const PAGE: u64 = 4096;
/// More than the code of glibc.
const MAX_TEXT: u64 = 16 << 20;
/// For pthread_create and the memory allocator that it calls. Only the pages that they use exist.
const STACK: u64 = 256 << 10;
/// Threads of unknown position that are stopped per round.
const MAX_RUNNING: usize = 4;
/// Threads that are looked at per round.
const MAX_LOOKS: usize = 256;
/// Reads of the mappings of a program that changes them, and the time between two.
const MAX_READS: u32 = 10;
const REREAD: Duration = Duration::from_millis(5);
const FILE_PREFIX: &str = "ptrace-load:";

pub fn load(
    pid: u32,
    library: &[u8],
    function: &CStr,
    argument: &[u8],
    options: &Options,
) -> Result<Loaded, Refusal> {
    let mut reads = 1;
    let (memory, mappings, modules, plan) = loop {
        let (_, memory, mappings, modules) = inspect(pid)?;
        match Plan::new(pid, &memory, &modules, library, function, argument) {
            // The kernel does not give all mappings of one moment: those of a library that was loaded earlier may be incomplete.
            Err(Refusal::Symbol { .. }) if reads < MAX_READS => {
                reads += 1;
                std::thread::sleep(REREAD);
            }
            plan => break (memory, mappings, modules, plan?),
        }
    };
    let mut search = Search {
        pid,
        memory: &memory,
        places: Places::new(&memory, mappings, &modules),
        plan: &plan,
        options,
        stopped: Stopped::default(),
        tries: 0,
    };
    let call = search.run()?;
    let (stopped, tries) = (search.stopped, search.tries);
    let (thread, result) = call.complete(pid, &memory, library, function, options)?;
    Ok(Loaded { thread, borrowed: call.thread, stopped, tries, result, again: plan.function.is_some() })
}

/// Everything that is known before a thread is stopped.
struct Plan {
    /// A `syscall` instruction of the program.
    instruction: u64,
    /// The return address of glibc's signal handlers.
    signal_return: Option<u64>,
    functions: Vec<(usize, u64)>,
    /// The function to call, if the library is loaded already.
    function: Option<u64>,
    name: String,
    path: String,
    symbol: Vec<u8>,
    argument: Vec<u8>,
}

impl Plan {
    fn new(
        pid: u32,
        memory: &ProcessMemory,
        modules: &[Module],
        library: &[u8],
        symbol: &CStr,
        argument: &[u8],
    ) -> Result<Self, Refusal> {
        let libc = glibc(pid, modules)?;
        // Before glibc 2.34, its functions are in several files.
        let parts = modules.iter().filter(|module| {
            let name = module.name();
            name.starts_with("libpthread") || name.starts_with("libdl.so") || name.starts_with("libdl-2.")
        });
        let images: Vec<_> = [libc]
            .into_iter()
            .chain(parts)
            .filter_map(|module| Image::open(memory, module.range.clone()))
            .collect();
        let find = |name: &'static str| {
            let symbol = images.iter().find_map(|image| image.function(name));
            symbol.ok_or(Refusal::Function { pid, name })
        };
        let mut functions = Vec::new();
        for (offset, name) in [
            (offset_of!(Block, pthread_create), "pthread_create"),
            (offset_of!(Block, errno_location), "__errno_location"),
            (offset_of!(Block, dlopen), "dlopen"),
            (offset_of!(Block, dlsym), "dlsym"),
            (offset_of!(Block, dlerror), "dlerror"),
            (offset_of!(Block, pthread_self), "pthread_self"),
            (offset_of!(Block, pthread_detach), "pthread_detach"),
        ] {
            let address = find(name)?.address;
            // A wrong address would harm the program.
            let code = modules.iter().flat_map(|module| &module.text);
            code.into_iter().find(|text| text.contains(&address)).ok_or(Refusal::Function { pid, name })?;
            functions.push((offset, address));
        }
        let syscall = find("syscall")?;
        let mut code = vec![0; syscall.size.min(PAGE) as usize];
        let at = memory
            .read(syscall.address, &mut code)
            .and_then(|()| code.windows(2).position(|pair| pair == [0x0f, 0x05]));
        let at = at.ok_or(Refusal::Function { pid, name: "syscall" })?;
        let signal_return = libc.text.iter().find_map(|text| {
            let mut code = vec![0; (text.end - text.start).min(MAX_TEXT) as usize];
            memory.read(text.start, &mut code)?;
            let mut windows = code.windows(SIGNAL_RETURNS[0].len());
            Some(text.start + windows.position(|code| code == SIGNAL_RETURNS[0])? as u64)
        });
        let name = format!("{FILE_PREFIX}{:016x}", hash(library));
        let earlier = modules.iter().find(|module| module.path.starts_with(&format!("/memfd:{name}")));
        let function = match earlier {
            None => None,
            Some(module) => {
                let image = Image::open(memory, module.range.clone());
                let found = symbol.to_str().ok().and_then(|symbol| image?.function(symbol));
                Some(found.map(|symbol| symbol.address).ok_or_else(|| Refusal::Symbol {
                    name: symbol.to_string_lossy().into_owned(),
                    message: format!("{} does not export it", module.path),
                })?)
            }
        };
        Ok(Self {
            instruction: syscall.address + at as u64,
            signal_return,
            functions,
            function,
            path: directory(hash(library)),
            name,
            symbol: symbol.to_bytes_with_nul().to_vec(),
            argument: [argument, b"\0"].concat(),
        })
    }

    fn size(&self) -> u64 {
        let used = size_of::<Block>() + self.symbol.len() + self.argument.len();
        (used as u64).next_multiple_of(PAGE) + frame::MAX_SIZE + STACK
    }

    /// The offset of the frame: behind the strings, before the stack.
    fn frame(&self, block: u64) -> u64 {
        block + self.size() - STACK - frame::MAX_SIZE
    }

    /// The block as it is at the beginning, and the strings behind it.
    fn data(&self, block: u64, code: u64) -> Vec<u8> {
        const LOOK: u64 = 250_000;
        const SLEEP: u64 = 2;
        let mut data = vec![0; size_of::<Block>()];
        let mut set = |offset: usize, bytes: &[u8]| data[offset..offset + bytes.len()].copy_from_slice(bytes);
        for (offset, address) in &self.functions {
            set(*offset, &address.to_ne_bytes());
        }
        let symbol = block + size_of::<Block>() as u64;
        for (offset, value) in [
            (offset_of!(Block, start), code + stub::thread_entry()),
            (offset_of!(Block, symbol), symbol),
            (offset_of!(Block, argument), symbol + self.symbol.len() as u64),
            (offset_of!(Block, function), self.function.unwrap_or(0)),
            (offset_of!(Block, release), release::WAIT),
            (offset_of!(Block, look) + 8, LOOK),
            (offset_of!(Block, sleep), SLEEP),
            (offset_of!(Block, frame), self.frame(block)),
            (offset_of!(Block, state), state::NONE),
            (offset_of!(Block, failure), failure::NONE),
        ] {
            set(offset, &value.to_ne_bytes());
        }
        set(offset_of!(Block, name), self.name.as_bytes());
        set(offset_of!(Block, path), self.path.as_bytes());
        data.extend_from_slice(&self.symbol);
        data.extend_from_slice(&self.argument);
        data
    }
}

/// FNV-1a. It names a library, also for later versions of this program.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The directory of file descriptors, written differently for each library: the loader does not open a file twice under one name,
/// although the descriptor's number can be that of an earlier library.
fn directory(hash: u64) -> String {
    let mut path = String::from("/proc/self/fd");
    for bit in 0..64 {
        path.push_str(if hash >> bit & 1 == 1 { "/." } else { "/" });
    }
    path.push('/');
    path
}

struct Search<'a> {
    pid: u32,
    memory: &'a ProcessMemory,
    places: Places,
    plan: &'a Plan,
    options: &'a Options,
    stopped: Stopped,
    tries: u32,
}

impl Search<'_> {
    fn run(&mut self) -> Result<Call, Refusal> {
        let begin = Instant::now();
        let (mut looks, mut last) = (0, (self.pid, Busy::Gone));
        for round in 0u64.. {
            // pthread_create acquires no lock of CUDA. Threads in its libraries are avoided as long as another thread may be safe.
            let cuda = begin.elapsed() > self.options.search / 2;
            let mut running = 0;
            for candidate in candidates(self.pid).iter().take(MAX_LOOKS) {
                looks += 1;
                if let Some(position) = candidate.position {
                    if !self.places.knows(&position)
                        && let Ok(mappings) = read_mappings(self.pid)
                    {
                        self.places.refresh(mappings);
                    }
                    if let Err(busy) = self.places.check(self.memory, &position, cuda) {
                        last = (candidate.thread, busy);
                        continue;
                    }
                } else {
                    running += 1;
                    if running > MAX_RUNNING {
                        continue;
                    }
                }
                match self.attempt(candidate, cuda) {
                    Ok(call) => return Ok(call),
                    Err(Missed::Refused(refusal)) => return Err(refusal),
                    Err(Missed::Busy(busy)) => last = (candidate.thread, busy),
                }
                if begin.elapsed() > self.options.search {
                    break;
                }
            }
            if begin.elapsed() > self.options.search || self.stopped.total > self.options.borrow {
                break;
            }
            if looks == 0 {
                return Err(Refusal::Died { pid: self.pid });
            }
            // Uneven, so that a program with a period is not always met at the same point.
            std::thread::sleep(Duration::from_millis(1 + round * 7 % 11));
            if last.1 == Busy::Stack
                && let Ok(mappings) = read_mappings(self.pid)
            {
                self.places.refresh(mappings);
            }
        }
        let (thread, busy) = last;
        Err(Refusal::NoSafePlace {
            pid: self.pid,
            within: begin.elapsed(),
            tries: self.tries,
            looks,
            thread,
            busy,
        })
    }

    /// Runs in a separate thread, because the end of a tracer detaches a thread that cannot be stopped.
    fn attempt(&mut self, candidate: &Candidate, cuda: bool) -> Result<Call, Missed> {
        self.tries += 1;
        let (pid, memory, plan, limit) = (self.pid, self.memory, self.plan, self.options.borrow);
        let places = &mut self.places;
        let (result, stopped) = std::thread::scope(|scope| {
            let attempt =
                std::thread::Builder::new().name("ptrace-load".into()).spawn_scoped(scope, move || {
                    let mut begin = None;
                    let result = borrow(pid, candidate, memory, places, cuda, &mut begin)
                        .and_then(|borrowed| Ok(create(borrowed, memory, plan, begin, limit)?));
                    (result, begin.map(|begin| begin.elapsed()).unwrap_or_default())
                });
            let system = |error| Refusal::System { pid, action: "Tracing", error };
            match attempt.map(|attempt| attempt.join()) {
                Ok(Ok(attempt)) => attempt,
                Ok(Err(_)) => (Err(system(io::Error::other("a panic")).into()), Duration::ZERO),
                Err(error) => (Err(system(error).into()), Duration::ZERO),
            }
        });
        self.stopped.longest = self.stopped.longest.max(stopped);
        self.stopped.total += stopped;
        result
    }
}

/// Creates the new thread. The borrowed thread is released in any case.
fn create(
    mut borrowed: Borrowed,
    memory: &ProcessMemory,
    plan: &Plan,
    begin: Option<Instant>,
    limit: Duration,
) -> Result<Call, Refusal> {
    borrowed.secure(plan.signal_return);
    // One mapping needs fewer stops than two. The code makes the block and the stack behind it writable and not executable.
    let code_size = (stub::code().len() as u64).next_multiple_of(PAGE);
    let (data_size, size) = (plan.size(), plan.size() + code_size);
    let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let arguments = [0, size, protection, private, u64::MAX, 0];
    let code = borrowed.call(plan.instruction, "mmap", libc::SYS_mmap, arguments)?;
    let block = code + code_size;
    borrowed.write(code, stub::code())?;
    borrowed.write(block, &plan.data(block, code))?;
    borrowed.write_frame(plan.frame(block))?;
    borrowed.left = Some((block + offset_of!(Block, left) as u64, code..block));
    borrowed.start(code + stub::borrowed_entry(), block + data_size - 64, block, data_size)?;
    let limit = begin.unwrap_or_else(Instant::now) + limit;
    borrowed.finish(block + offset_of!(Block, done) as u64, limit)?;
    let created = memory.u64(block + offset_of!(Block, created) as u64);
    match created.map(|created| created as u32 as i32) {
        Some(0) => Ok(Call { block, thread: borrowed.thread }),
        Some(error) => {
            if borrowed.stop().is_ok() {
                // The mapping stays if this fails, which is harmless.
                let arguments = [code, size, 0, 0, 0, 0];
                let _ = borrowed.call(plan.instruction, "munmap", libc::SYS_munmap, arguments);
            }
            let error = io::Error::from_raw_os_error(error);
            Err(Refusal::Call { pid: borrowed.pid, call: "pthread_create", error })
        }
        None => Err(Refusal::Died { pid: borrowed.pid }),
    }
}

/// A new thread of the target that is loading the library.
struct Call {
    block: u64,
    /// The thread that was borrowed.
    thread: u32,
}

impl Call {
    fn complete(
        &self,
        pid: u32,
        memory: &ProcessMemory,
        library: &[u8],
        function: &CStr,
        options: &Options,
    ) -> Result<(u32, i32), Refusal> {
        let died = || Refusal::Died { pid };
        let word = |offset: usize| memory.u64(self.block + offset as u64).ok_or_else(died);
        let begin = Instant::now();
        let mut written = false;
        let no_answer = |thread| Refusal::NoAnswer { pid, thread, within: options.call };
        loop {
            let thread = word(offset_of!(Block, thread))? as u32;
            match word(offset_of!(Block, state))? {
                state::FINISHED => break,
                state::HAS_FILE if !written => {
                    let file = word(offset_of!(Block, file))? as i64;
                    if file >= 0 {
                        self.hand_over(pid, memory, library, file)?;
                        written = true;
                    }
                }
                _ => {}
            }
            if begin.elapsed() > options.call {
                return Err(no_answer(thread));
            }
            pause(begin.elapsed());
        }
        let thread = word(offset_of!(Block, thread))? as u32;
        let failure = word(offset_of!(Block, failure))?;
        if failure == failure::NONE {
            return Ok((thread, word(offset_of!(Block, result))? as i32));
        }
        let message = self.message(memory).ok_or_else(died)?;
        Err(match failure {
            failure::FILE => {
                let number = (word(offset_of!(Block, file))? as i32).wrapping_neg();
                Refusal::Call { pid, call: "memfd_create", error: io::Error::from_raw_os_error(number) }
            }
            failure::SYMBOL => Refusal::Symbol { name: function.to_string_lossy().into_owned(), message },
            failure::LIBRARY => Refusal::Library { pid, message },
            _ => no_answer(thread),
        })
    }

    /// Writes the library into the file that the new thread has created.
    fn hand_over(&self, pid: u32, memory: &ProcessMemory, library: &[u8], file: i64) -> Result<(), Refusal> {
        let system = |error| Refusal::System { pid, action: "Writing the library to a file", error };
        let open = |path: String| {
            OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)
        };
        // The borrowed thread may have ended, and the main thread may have ended before.
        let opened = open(format!("/proc/{pid}/task/{}/fd/{file}", self.thread))
            .or_else(|_| open(format!("/proc/{pid}/fd/{file}")));
        let opened: File = opened.map_err(system)?;
        // We may have more rights than the target: only a new file without a name is written.
        let metadata = opened.metadata().map_err(system)?;
        if !metadata.is_file() || metadata.nlink() != 0 || metadata.len() != 0 {
            return Err(system(io::Error::other("it is not the file that was created for it")));
        }
        (&opened).write_all(library).map_err(system)?;
        let path = offset_of!(Block, path) as u64;
        let directory = self.directory_length(memory).ok_or(Refusal::Died { pid })?;
        let send = |offset: u64, bytes: &[u8]| {
            memory.write(self.block + offset, bytes).map_err(|_| Refusal::Died { pid })
        };
        send(path + directory, format!("{file}\0").as_bytes())?;
        send(offset_of!(Block, release) as u64, &release::GO.to_ne_bytes())
    }

    fn directory_length(&self, memory: &ProcessMemory) -> Option<u64> {
        let path: [u8; stub::PATH] = memory.bytes(self.block + offset_of!(Block, path) as u64)?;
        let length = path.iter().position(|&byte| byte == 0)?;
        (length + 24 < stub::PATH).then_some(length as u64)
    }

    /// The text of dlerror.
    fn message(&self, memory: &ProcessMemory) -> Option<String> {
        let message: [u8; stub::MESSAGE] = memory.bytes(self.block + offset_of!(Block, message) as u64)?;
        let message = message.split(|&byte| byte == 0).next()?;
        let message = String::from_utf8_lossy(message);
        // The loader names its file by a path that helps nobody.
        let message = match message.split_once(": ") {
            Some((path, rest)) if path.starts_with("/proc/self/fd") => rest,
            _ => &message,
        };
        let message = message.trim_end_matches('.').chars();
        Some(message.map(|c| if c.is_control() { ' ' } else { c }).collect())
    }
}

/// For each thread that is blocked in a system call: whether it could be borrowed. Nothing is stopped.
#[doc(hidden)]
pub fn survey(pid: u32) -> Result<Vec<(u32, Option<Busy>)>, Refusal> {
    let (_, memory, mappings, modules) = inspect(pid)?;
    let places = Places::new(&memory, mappings, &modules);
    let blocked =
        candidates(pid).into_iter().filter_map(|candidate| Some((candidate.thread, candidate.position?)));
    Ok(blocked.map(|(thread, position)| (thread, places.check(&memory, &position, false).err())).collect())
}
