//! The frame of a signal handler, from which a thread restores its registers itself if this process has died.

use crate::sys::Registers;

/// Upper bound of a frame with AVX-512 and AMX registers.
pub const MAX_SIZE: u64 = 16 << 10;

/// The offset of the vector registers, which must be a multiple of 64.
const VECTORS: usize = 320;
const HEADER: usize = 512;
const SOFTWARE: usize = 464;

/// A `struct ucontext` of the kernel for `address`, which is a multiple of 64.
pub fn frame(address: u64, registers: &Registers, vectors: &[u8], mask: u64) -> Option<Vec<u8>> {
    // UC_FP_XSTATE, UC_SIGCONTEXT_SS and UC_STRICT_RESTORE_SS. The alternative stack stays, because one of size 0 is refused.
    const FLAGS: u64 = 7;
    let registers = restarted(registers);
    let mut frame = vec![0; VECTORS];
    let mut set = |at: usize, value: u64| frame[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    set(0, FLAGS);
    let r = &registers;
    let general = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax,
        r.rcx, r.rsp, r.rip, r.eflags,
    ];
    for (at, value) in (40..).step_by(8).zip(general) {
        set(at, value);
    }
    set(184, r.cs & 0xffff | (r.ss & 0xffff) << 48);
    set(224, address + VECTORS as u64);
    set(296, mask);
    frame.extend_from_slice(&extended(vectors)?);
    (frame.len() as u64 <= MAX_SIZE).then_some(frame)
}

/// The registers with which an interrupted system call is executed again.
fn restarted(registers: &Registers) -> Registers {
    const SYSCALL_SIZE: u64 = 2;
    const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
    let mut registers = *registers;
    if registers.orig_rax as i64 >= 0 && RESTARTS.contains(&(registers.rax as i64)) {
        registers.rax = registers.orig_rax;
        registers.rip -= SYSCALL_SIZE;
    }
    registers
}

/// The vector registers as ptrace returns them, with the marks that the kernel expects in a frame.
fn extended(vectors: &[u8]) -> Option<Vec<u8>> {
    const BEGIN: u32 = 0x4650_5853;
    const END: u32 = 0x4650_5845;
    const AMX: u64 = 3 << 17;
    const SIZE_WITHOUT_AMX: usize = 2696;
    let components = u64::from_ne_bytes(vectors.get(HEADER..HEADER + 8)?.try_into().ok()?);
    // A process that has not asked for AMX must not restore as much as ptrace returns.
    let without = components & AMX == 0 && vectors.len() > SIZE_WITHOUT_AMX;
    let size = if without { SIZE_WITHOUT_AMX } else { vectors.len() };
    let mut state = vectors[..size].to_vec();
    let mut set = |at: usize, bytes: &[u8]| state[at..at + bytes.len()].copy_from_slice(bytes);
    set(SOFTWARE, &BEGIN.to_ne_bytes());
    set(SOFTWARE + 4, &(size as u32 + 4).to_ne_bytes());
    set(SOFTWARE + 8, &components.to_ne_bytes());
    set(SOFTWARE + 16, &(size as u32).to_ne_bytes());
    state.extend_from_slice(&END.to_ne_bytes());
    Some(state)
}
