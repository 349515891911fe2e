//! Whether a thread is at a place where `pthread_create` can be called on it: it must not hold a lock that this needs.
//!
//! Every word of the stack that could be a return address counts, so that code without unwind tables is not missed. Such a word may
//! be left from an earlier call: the place is then refused although it is safe.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use crate::elf::Image;
use crate::maps::{Mapping, Module};
use crate::memory::{Memory, ProcessMemory};
use crate::process::{is_glibc, is_loader};
use crate::{Busy, stub};

const MAX_STACK: u64 = 8 << 20;
const PAGE: u64 = 4096;
/// Code pages that are cached for reading the instructions before return addresses.
const MAX_PAGES: usize = 1 << 14;

/// The functions of glibc's malloc.o, between which its internal functions lie.
const ALLOCATOR: [&str; 16] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "posix_memalign",
    "malloc_trim",
    "malloc_usable_size",
    "malloc_stats",
    "malloc_info",
    "mallopt",
    "mallinfo",
    "__libc_memalign",
];

/// Functions of glibc that take locks which `pthread_create` takes too.
const THREADS: [&str; 22] = [
    "pthread_create",
    "pthread_exit",
    "pthread_getattr_default_np",
    "pthread_setattr_default_np",
    "fork",
    "_Fork",
    "__libc_fork",
    "vfork",
    "clone",
    "posix_spawn",
    "posix_spawnp",
    "exit",
    "setuid",
    "seteuid",
    "setreuid",
    "setresuid",
    "setgid",
    "setegid",
    "setregid",
    "setresgid",
    "setgroups",
    "initgroups",
];

/// System calls in which a thread may hold a lock of the allocator or of glibc's list of stacks, or that change what is borrowed.
const UNSAFE_CALLS: [i64; 17] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_unshare,
];

/// Calls that glibc's allocator never makes: a thread in one of them is not in the allocator, unless a signal handler has interrupted it.
const FOREIGN_CALLS: [i64; 17] = [
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_pause,
    libc::SYS_rt_sigtimedwait,
];

/// `mov rax, 15; syscall`, in glibc's and in Go's encoding: the return from a signal handler.
pub const SIGNAL_RETURNS: [&[u8]; 2] = [b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05", b"\xb8\x0f\0\0\0\x0f\x05"];

/// The position of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pub instruction: u64,
    pub stack: u64,
    /// The thread pointer, which lies behind the stack of a thread that glibc has created.
    pub thread_pointer: Option<u64>,
    /// The number of the system call that the thread is in.
    pub call: Option<i64>,
}

/// The code of a process at which no thread is borrowed.
pub struct Places {
    unsafe_code: Vec<(Range<u64>, Busy)>,
    libc: Vec<Range<u64>>,
    /// The code of the loader and of glibc's allocator, which is left only by calls while it holds a lock.
    closed: Vec<Range<u64>>,
    /// The code of glibc's allocator.
    allocator: Vec<Range<u64>>,
    /// All code, in the order of addresses.
    code: Vec<Range<u64>>,
    mappings: Vec<Mapping>,
    pages: RefCell<HashMap<u64, Option<Box<[u8; PAGE as usize]>>>>,
}

impl Places {
    pub fn new(memory: &ProcessMemory, mappings: Vec<Mapping>, modules: &[Module]) -> Self {
        let mut unsafe_code = Vec::new();
        let (mut libc, mut closed, mut glibc_allocator) = (Vec::new(), Vec::new(), Vec::new());
        for module in modules {
            let name = module.name();
            let all = |busy| module.text.iter().map(move |text| (text.clone(), busy));
            if is_loader(name) {
                closed.extend(module.text.iter().cloned());
                unsafe_code.extend(all(Busy::Loader));
                continue;
            }
            if is_cuda(name) {
                unsafe_code.extend(all(Busy::Cuda));
                continue;
            }
            let image = Image::open(memory, module.range.clone());
            if is_glibc(name) || name.starts_with("libpthread") {
                libc.extend(module.text.iter().cloned());
                let Some(image) = image else { continue };
                glibc_allocator.extend(allocator(&image));
                let functions = THREADS.iter().filter_map(|name| image.function(name));
                unsafe_code.extend(functions.map(|function| (function.range(), Busy::Threads)));
            } else if is_allocator(name)
                || image.is_some_and(|image| image.function("malloc").is_some() && is_library(module, name))
            {
                unsafe_code.extend(all(Busy::Allocator));
            }
        }
        closed.extend(glibc_allocator.iter().cloned());
        unsafe_code.extend(glibc_allocator.iter().map(|range| (range.clone(), Busy::Allocator)));
        // In an executable with its own allocator, only the surroundings of the functions are searched, which its compiler has placed together.
        for module in modules.iter().filter(|module| !is_library(module, module.name())) {
            if let Some(image) = Image::open(memory, module.range.clone()) {
                const MARGIN: u64 = 1 << 18;
                let functions = ALLOCATOR.iter().filter_map(|name| image.function(name));
                unsafe_code.extend(functions.map(|function| {
                    let range = function.range();
                    (range.start.saturating_sub(MARGIN)..range.end.saturating_add(MARGIN), Busy::Allocator)
                }));
            }
        }
        let mut places = Self {
            unsafe_code,
            libc,
            closed,
            allocator: glibc_allocator,
            code: Vec::new(),
            mappings: Vec::new(),
            pages: RefCell::default(),
        };
        places.refresh(mappings);
        places
    }

    /// Takes over new mappings. Libraries that were loaded since are not searched: none of them is unsafe to be in.
    pub fn refresh(&mut self, mappings: Vec<Mapping>) {
        let code = mappings.iter().filter(|mapping| mapping.executable);
        self.code = code.map(|mapping| mapping.range.clone()).collect();
        self.mappings = mappings;
    }

    /// Whether the mappings were read before the stack of this thread existed.
    pub fn knows(&self, position: &Position) -> bool {
        self.stack(position).is_some()
    }

    /// Whether the `size` bytes below the stack pointer are unused: the stack is one of glibc or the kernel, and long enough.
    pub fn has_room(&self, position: &Position, size: u64) -> bool {
        let Some(pointer) = position.thread_pointer else { return false };
        self.mappings.iter().any(|mapping| {
            let range = &mapping.range;
            range.contains(&position.stack)
                && (mapping.path == "[stack]" || (position.stack..range.end).contains(&pointer))
                && position.stack - range.start > size
        })
    }

    fn stack(&self, position: &Position) -> Option<Range<u64>> {
        let index = self.mappings.partition_point(|mapping| mapping.range.end <= position.stack);
        let mapping = self.mappings.get(index)?;
        // The stack of the main thread grows downwards.
        let known = mapping.range.contains(&position.stack) || mapping.path == "[stack]";
        let end = match position.thread_pointer {
            Some(pointer) if (position.stack..mapping.range.end).contains(&pointer) => pointer,
            _ => mapping.range.end,
        };
        known.then_some(position.stack & !7..end & !7)
    }

    /// Why the thread cannot be borrowed at this position. In CUDA libraries it can be, but with a lower preference.
    pub fn check(&self, memory: &ProcessMemory, position: &Position, cuda: bool) -> Result<(), Busy> {
        let skip = |busy: Busy| busy == Busy::Cuda && cuda;
        let find = |address: u64| {
            self.unsafe_code
                .iter()
                .find(|(range, busy)| range.contains(&address) && !skip(*busy))
                .map(|(_, busy)| *busy)
        };
        if let Some(busy) = find(position.instruction) {
            return Err(busy);
        }
        match position.call {
            Some(call) if UNSAFE_CALLS.contains(&call) => return Err(Busy::Call),
            // Between the instructions of glibc, a lock could be half taken.
            None if self.libc.iter().any(|range| range.contains(&position.instruction)) => {
                return Err(Busy::Libc);
            }
            _ => {}
        }
        if memory.bytes::<16>(position.instruction).is_some_and(|code| code == stub::slept()) {
            return Err(Busy::Threads);
        }
        if self.is_signal_return(memory, position.instruction) {
            return Err(Busy::Handler);
        }
        // While glibc's allocator is active, the instruction is in it or in a function of glibc that it has called, and both were
        // refused above, or the thread is in one of its system calls. A signal handler is found on the stack.
        let outside = position.call.is_none_or(|call| FOREIGN_CALLS.contains(&call));
        let stack = self.stack(position).ok_or(Busy::Stack)?;
        if stack.end - stack.start > MAX_STACK {
            return Err(Busy::Stack);
        }
        let mut words = vec![0; (stack.end - stack.start) as usize];
        memory.read(stack.start, &mut words).ok_or(Busy::Stack)?;
        for word in words.chunks_exact(8) {
            let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
            if !self.is_code(word) {
                continue;
            }
            if let Some(busy) = find(word)
                && self.code_before(memory, word).is_none_or(|code| follows_call(&code))
                && !self.is_left_over(memory, word)
                && !(outside && self.allocator.iter().any(|range| range.contains(&word)))
            {
                return Err(busy);
            }
            if self.is_signal_return(memory, word) {
                return Err(Busy::Handler);
            }
        }
        Ok(())
    }

    /// Whether a return address in the loader or in glibc's allocator belongs to an earlier call, because it follows a direct call to
    /// another function of the same code: while that is active, either the instruction pointer is in this code, or the code
    /// has called something outside of it, and that return address is on the stack, too. Other allocators are excluded, because they
    /// may leave their code with a jump.
    fn is_left_over(&self, memory: &ProcessMemory, address: u64) -> bool {
        let Some([_, _, 0xe8, offset @ ..]) = self.code_before(memory, address) else { return false };
        let target = address.wrapping_add_signed(i32::from_le_bytes(offset).into());
        let closed = self.closed.iter().any(|range| range.contains(&address) && range.contains(&target));
        closed && !self.jumps_elsewhere(memory, target)
    }

    /// Whether a function is an entry of the procedure linkage table: a jump through a pointer.
    fn jumps_elsewhere(&self, memory: &ProcessMemory, address: u64) -> bool {
        let mut code = [0; 7];
        let mut begins = |address: u64, pattern: &[u8]| {
            let code = &mut code[..pattern.len()];
            self.code_at(memory, address, code).is_none() || code == pattern
        };
        let start = if begins(address, b"\xf3\x0f\x1e\xfa") { address.wrapping_add(4) } else { address };
        begins(start, b"\xff\x25") || begins(start, b"\xf2\xff\x25")
    }

    fn is_code(&self, address: u64) -> bool {
        let index = self.code.partition_point(|range| range.end <= address);
        self.code.get(index).is_some_and(|range| range.contains(&address))
    }

    fn is_signal_return(&self, memory: &ProcessMemory, address: u64) -> bool {
        let mut code = [0; 9];
        SIGNAL_RETURNS.iter().any(|pattern| {
            let code = &mut code[..pattern.len()];
            self.code_at(memory, address, code).is_some() && code == *pattern
        })
    }

    fn code_before(&self, memory: &ProcessMemory, address: u64) -> Option<[u8; 7]> {
        let mut code = [0; 7];
        self.code_at(memory, address.checked_sub(7)?, &mut code)?;
        Some(code)
    }

    fn code_at(&self, memory: &ProcessMemory, address: u64, buffer: &mut [u8]) -> Option<()> {
        let mut pages = self.pages.borrow_mut();
        if pages.len() > MAX_PAGES {
            pages.clear();
        }
        for (at, byte) in (address..).zip(buffer) {
            let start = at & !(PAGE - 1);
            let page = pages.entry(start).or_insert_with(|| {
                let mut page = Box::new([0; PAGE as usize]);
                memory.read(start, &mut page[..]).map(|()| page)
            });
            *byte = page.as_ref()?[(at - start) as usize];
        }
        Some(())
    }
}

/// Whether the bytes end with a call instruction.
fn follows_call(code: &[u8; 7]) -> bool {
    let indirect = |back: usize| {
        let [0xff, modrm] = code[7 - back..9 - back] else { return false };
        // The operation is `call`; the length follows from the kind of its operand.
        let length = match (modrm >> 6, modrm & 7) {
            (3, _) => 2,
            (0, 4) => 3,
            (0, 5) => 6,
            (0, _) => 2,
            (1, 4) => 4,
            (1, _) => 3,
            (_, 4) => 7,
            (_, _) => 6,
        };
        // A base of 5 in the SIB byte without displacement has one of four bytes.
        let wide = back == 7 && modrm == 0x14;
        modrm >> 3 & 7 == 2 && (length == back || wide)
    };
    code[2] == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(indirect)
}

/// The code of glibc's malloc.o, from the end of the exported function before it to the beginning of the one after it.
fn allocator<M: Memory>(image: &Image<M>) -> impl Iterator<Item = Range<u64>> {
    const MAX_SIZE: u64 = 1 << 16;
    let named: Vec<_> = ALLOCATOR.iter().filter_map(|name| image.function(name)).collect();
    let start = named.iter().map(|symbol| symbol.address).min();
    let end = named.iter().map(|symbol| symbol.range().end).max();
    // libpthread, which CUDA's libraries load, has none of them.
    let together = start.zip(end).filter(|(start, end)| end - start < MAX_SIZE);
    let whole = together.map(|(start, end)| {
        let functions = image.functions().unwrap_or_default();
        let before = functions.iter().map(|symbol| symbol.range().end).filter(|&address| address <= start);
        let after = functions.iter().map(|symbol| symbol.address).filter(|&address| address >= end);
        before.max().unwrap_or(start)..after.min().unwrap_or(end)
    });
    let single = named.into_iter().map(|symbol| symbol.range());
    whole.into_iter().chain(single)
}

fn is_library(module: &Module, name: &str) -> bool {
    name.contains(".so") && !module.text.is_empty()
}

fn is_allocator(name: &str) -> bool {
    ["libjemalloc", "libtcmalloc", "libmimalloc", "libtbbmalloc", "libhoard", "libsnmalloc", "librpmalloc"]
        .iter()
        .any(|library| name.starts_with(library))
}

fn is_cuda(name: &str) -> bool {
    ["libcuda.so", "libcudart", "libcupti", "libnvidia", "libnvrtc"]
        .iter()
        .any(|library| name.starts_with(library))
}

#[cfg(test)]
mod tests {
    use super::follows_call;

    #[test]
    fn calls_are_recognised() {
        for (code, expected) in [
            (&b"\x90\x90\xe8\x01\x02\x03\x04"[..], true),
            (b"\x90\xff\x15\x01\x02\x03\x04", true),
            (b"\x90\x90\x90\x90\x90\xff\xd0", true),
            (b"\x90\x90\x90\x90\x41\xff\xd4", true),
            (b"\x90\x90\x90\x90\xff\x50\x08", true),
            (b"\x90\x90\x90\xff\x54\x24\x08", true),
            (b"\x90\xff\x90\x01\x02\0\0", true),
            (b"\xff\x94\x24\x01\x02\0\0", true),
            (b"\x90\x90\x90\x90\xff\x14\xc7", true),
            (b"\x90\x90\x90\x90\x90\x90\x90", false),
            (b"\x90\x90\x90\x90\x90\xff\xe0", false),
        ] {
            assert_eq!(follows_call(code.try_into().unwrap()), expected, "{code:x?}");
        }
    }
}
