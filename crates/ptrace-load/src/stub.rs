//! The code that runs in the target, and the block of memory that it shares with us.
//!
//! The borrowed thread executes `ptrace_load_borrowed`: it creates the new thread and waits until it is released. The new thread
//! executes `ptrace_load_thread`. Neither uses memory of the program.

#![allow(unsafe_code)] // assembly for another process

use std::mem::offset_of;

pub const NAME: usize = 64;
pub const MESSAGE: usize = 1024;
pub const PATH: usize = 256;

/// The progress of the new thread.
pub mod state {
    pub const NONE: u64 = 0;
    pub const HAS_FILE: u64 = 1;
    pub const FINISHED: u64 = 2;
}

/// Why the new thread did not call the function.
pub mod failure {
    pub const NONE: u64 = 0;
    pub const FILE: u64 = 1;
    pub const LIBRARY: u64 = 2;
    pub const SYMBOL: u64 = 3;
    pub const ABANDONED: u64 = 4;
}

/// Whether the library has been written.
pub mod release {
    pub const WAIT: u64 = 0;
    pub const GO: u64 = 1;
}

/// At the beginning of the shared memory. Everything is written by one side only.
#[repr(C)]
pub struct Block {
    pub pthread_create: u64,
    pub errno_location: u64,
    pub dlopen: u64,
    pub dlsym: u64,
    pub dlerror: u64,
    pub pthread_self: u64,
    pub pthread_detach: u64,
    /// `ptrace_load_thread`.
    pub start: u64,
    pub symbol: u64,
    pub argument: u64,
    /// The function to call, or 0 if the library is still to be loaded.
    pub function: u64,
    pub release: u64,
    /// Seconds and nanoseconds between two looks at `release`.
    pub look: [u64; 2],
    /// Seconds and nanoseconds for which the borrowed thread sleeps at a time after its work.
    pub sleep: [u64; 2],
    /// The `ucontext` with the registers of the borrowed thread.
    pub frame: u64,
    /// Set when the borrowed thread is about to restore its registers itself.
    pub left: u64,
    /// The result of `ptrace_load_borrowed`: whether it has finished, and the result of pthread_create.
    pub done: u64,
    pub created: u64,
    pub pthread: u64,
    pub state: u64,
    pub thread: u64,
    pub file: u64,
    pub result: u64,
    pub failure: u64,
    pub name: [u8; NAME],
    pub message: [u8; MESSAGE],
    pub path: [u8; PATH],
}

std::arch::global_asm!(
    ".pushsection .rodata.ptrace_load, \"a\", @progbits",
    ".p2align 4",
    ".globl ptrace_load_begin",
    ".hidden ptrace_load_begin",
    "ptrace_load_begin:",
    // The block is in rbx, its size with the stack in r12, and the stack is aligned. A failure is reported by a fault.
    ".globl ptrace_load_borrowed",
    ".hidden ptrace_load_borrowed",
    "ptrace_load_borrowed:",
    "mov rdi, rbx",
    "mov rsi, r12",
    "mov edx, {writable}",
    "mov eax, {mprotect}",
    "syscall",
    "test eax, eax",
    "jz 2f",
    "ud2",
    "2:",
    "call qword ptr [rbx + {errno_location}]",
    "mov r12d, [rax]",
    "lea rdi, [rbx + {pthread}]",
    "xor esi, esi",
    "mov rdx, [rbx + {start}]",
    "mov rcx, rbx",
    "call qword ptr [rbx + {pthread_create}]",
    "mov [rbx + {created}], rax",
    "call qword ptr [rbx + {errno_location}]",
    "mov [rax], r12d",
    "mov qword ptr [rbx + {done}], 1",
    // ppoll has no restart block: that of the program's call is kept. The thread is released during this sleep. If this process has
    // died, the thread restores its registers itself.
    "xor edi, edi",
    "xor esi, esi",
    "lea rdx, [rbx + {sleep}]",
    "xor r10d, r10d",
    "mov r8d, 8",
    "mov eax, {ppoll}",
    "syscall",
    ".globl ptrace_load_slept",
    ".hidden ptrace_load_slept",
    "ptrace_load_slept:",
    "mov qword ptr [rbx + {left}], 1",
    "mov rsp, [rbx + {frame}]",
    "mov eax, {sigreturn}",
    "syscall",
    "ud2",
    // The block is the argument.
    ".globl ptrace_load_thread",
    ".hidden ptrace_load_thread",
    "ptrace_load_thread:",
    "push rbx",
    "push r12",
    "sub rsp, 8",
    "mov rbx, rdi",
    "mov eax, {gettid}",
    "syscall",
    "mov [rbx + {thread}], rax",
    "cmp qword ptr [rbx + {function}], 0",
    "jne 6f",
    // With vm.memfd_noexec=2, a file must have MFD_NOEXEC_SEAL, which concerns execve only. Before Linux 6.3, it is unknown.
    "lea rdi, [rbx + {name}]",
    "mov esi, {cloexec} | {noexec}",
    "mov eax, {memfd_create}",
    "syscall",
    "cmp rax, -{einval}",
    "jne 2f",
    "lea rdi, [rbx + {name}]",
    "mov esi, {cloexec}",
    "mov eax, {memfd_create}",
    "syscall",
    "2:",
    "mov [rbx + {file}], rax",
    "mov qword ptr [rbx + {state}], {has_file}",
    "mov ecx, {failed_file}",
    "test rax, rax",
    "js 8f",
    // Waits for the library for about ten seconds.
    "mov r12d, 40000",
    "3:",
    "cmp qword ptr [rbx + {release}], {go}",
    "je 4f",
    "lea rdi, [rbx + {look}]",
    "xor esi, esi",
    "mov eax, {nanosleep}",
    "syscall",
    "dec r12d",
    "jnz 3b",
    "mov edi, [rbx + {file}]",
    "mov eax, {close}",
    "syscall",
    "mov ecx, {abandoned}",
    "jmp 8f",
    "4:",
    "lea rdi, [rbx + {path}]",
    "mov esi, {rtld_now}",
    "call qword ptr [rbx + {dlopen}]",
    "mov r12, rax",
    "mov edi, [rbx + {file}]",
    "mov eax, {close}",
    "syscall",
    "mov ecx, {failed_library}",
    "test r12, r12",
    "jz 7f",
    "mov rdi, r12",
    "mov rsi, [rbx + {symbol}]",
    "call qword ptr [rbx + {dlsym}]",
    "mov [rbx + {function}], rax",
    "mov ecx, {failed_symbol}",
    "test rax, rax",
    "jz 7f",
    "6:",
    "mov rdi, [rbx + {argument}]",
    "call qword ptr [rbx + {function}]",
    "cdqe",
    "mov [rbx + {result}], rax",
    "jmp 9f",
    // Keeps the text of dlerror, of which the memory ends with the thread.
    "7:",
    "mov r12d, ecx",
    "call qword ptr [rbx + {dlerror}]",
    "mov ecx, r12d",
    "test rax, rax",
    "jz 8f",
    "xor edx, edx",
    "5:",
    "mov sil, [rax + rdx]",
    "mov [rbx + rdx + {message}], sil",
    "test sil, sil",
    "jz 8f",
    "inc edx",
    "cmp edx, {message_size} - 1",
    "jb 5b",
    "8:",
    "mov [rbx + {failure}], rcx",
    "9:",
    "mov qword ptr [rbx + {state}], {finished}",
    "call qword ptr [rbx + {pthread_self}]",
    "mov rdi, rax",
    "call qword ptr [rbx + {pthread_detach}]",
    "xor eax, eax",
    "add rsp, 8",
    "pop r12",
    "pop rbx",
    "ret",
    ".globl ptrace_load_end",
    ".hidden ptrace_load_end",
    "ptrace_load_end:",
    ".popsection",
    pthread_create = const offset_of!(Block, pthread_create),
    errno_location = const offset_of!(Block, errno_location),
    dlopen = const offset_of!(Block, dlopen),
    dlsym = const offset_of!(Block, dlsym),
    dlerror = const offset_of!(Block, dlerror),
    pthread_self = const offset_of!(Block, pthread_self),
    pthread_detach = const offset_of!(Block, pthread_detach),
    start = const offset_of!(Block, start),
    symbol = const offset_of!(Block, symbol),
    argument = const offset_of!(Block, argument),
    function = const offset_of!(Block, function),
    release = const offset_of!(Block, release),
    look = const offset_of!(Block, look),
    sleep = const offset_of!(Block, sleep),
    frame = const offset_of!(Block, frame),
    left = const offset_of!(Block, left),
    done = const offset_of!(Block, done),
    created = const offset_of!(Block, created),
    pthread = const offset_of!(Block, pthread),
    state = const offset_of!(Block, state),
    thread = const offset_of!(Block, thread),
    file = const offset_of!(Block, file),
    result = const offset_of!(Block, result),
    failure = const offset_of!(Block, failure),
    name = const offset_of!(Block, name),
    message = const offset_of!(Block, message),
    path = const offset_of!(Block, path),
    message_size = const MESSAGE,
    has_file = const state::HAS_FILE,
    finished = const state::FINISHED,
    failed_file = const failure::FILE,
    failed_library = const failure::LIBRARY,
    failed_symbol = const failure::SYMBOL,
    abandoned = const failure::ABANDONED,
    go = const release::GO,
    writable = const libc::PROT_READ | libc::PROT_WRITE,
    mprotect = const libc::SYS_mprotect,
    sigreturn = const libc::SYS_rt_sigreturn,
    ppoll = const libc::SYS_ppoll,
    gettid = const libc::SYS_gettid,
    memfd_create = const libc::SYS_memfd_create,
    nanosleep = const libc::SYS_nanosleep,
    close = const libc::SYS_close,
    einval = const libc::EINVAL,
    cloexec = const libc::MFD_CLOEXEC,
    noexec = const libc::MFD_NOEXEC_SEAL,
    rtld_now = const libc::RTLD_NOW,
);

unsafe extern "C" {
    static ptrace_load_begin: u8;
    static ptrace_load_borrowed: u8;
    static ptrace_load_slept: u8;
    static ptrace_load_thread: u8;
    static ptrace_load_end: u8;
}

/// The code, which runs at any address.
pub fn code() -> &'static [u8] {
    let (begin, end) = (&raw const ptrace_load_begin, &raw const ptrace_load_end);
    // SAFETY: both labels enclose the code above, which is read-only data of this program.
    unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

/// The offset of the code that the borrowed thread executes.
pub fn borrowed_entry() -> u64 {
    ((&raw const ptrace_load_borrowed).addr() - (&raw const ptrace_load_begin).addr()) as u64
}

/// The code that a thread executes next if the process that has borrowed it died.
pub fn slept() -> &'static [u8] {
    let offset = (&raw const ptrace_load_slept).addr() - (&raw const ptrace_load_begin).addr();
    &code()[offset..offset + 16]
}

/// The offset of the code that the new thread executes.
pub fn thread_entry() -> u64 {
    ((&raw const ptrace_load_thread).addr() - (&raw const ptrace_load_begin).addr()) as u64
}
