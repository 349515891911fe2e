//! ELF headers and the dynamic symbols of a module in memory. The input is untrusted: sizes are bounded, and addresses outside of
//! the module are not read.

use std::ops::Range;

use crate::memory::Memory;

const MAX_SYMBOLS: u32 = 1 << 18;
const MAX_CHAIN: u32 = 1 << 14;
const SYMBOL_SIZE: u64 = 24;

/// The name of an ELF file's architecture, if it differs from that of this program.
pub fn other_architecture(header: &[u8]) -> Option<String> {
    let (class, data) = (header.get(4)?, header.get(5)?);
    let machine = u16::from_le_bytes([*header.get(18)?, *header.get(19)?]);
    let machine = if *data == 2 { machine.swap_bytes() } else { machine };
    let ours = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    if header.starts_with(b"\x7fELF") && *class == 2 && *data == 1 && machine == ours {
        return None;
    }
    let bits = if *class == 1 { "32-bit" } else { "64-bit" };
    Some(match machine {
        3 => "32-bit x86".into(),
        40 => "32-bit ARM".into(),
        62 => format!("{bits} x86-64"),
        183 => format!("{bits} aarch64"),
        243 => format!("{bits} RISC-V"),
        other => format!("{bits} ELF machine {other}"),
    })
}

/// A function that a module defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    pub address: u64,
    pub size: u64,
}

impl Symbol {
    pub fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.size.max(1))
    }
}

/// The dynamic symbols of a module.
pub struct Image<'a, M> {
    memory: &'a M,
    range: Range<u64>,
    bias: u64,
    symbols: u64,
    strings: u64,
    hash: Option<u64>,
    gnu_hash: Option<u64>,
}

impl<'a, M: Memory> Image<'a, M> {
    /// `range` begins with the ELF header.
    pub fn open(memory: &'a M, range: Range<u64>) -> Option<Self> {
        let header: [u8; 64] = memory.bytes(range.start)?;
        (header.starts_with(b"\x7fELF") && other_architecture(&header).is_none()).then_some(())?;
        let offset = u64::from_le_bytes(header[32..40].try_into().ok()?);
        let size = u16::from_le_bytes([header[54], header[55]]);
        let count = u16::from_le_bytes([header[56], header[57]]);
        (size == 56 && count <= 128).then_some(())?;
        let (mut first, mut dynamic) = (None::<u64>, None);
        for index in 0..u64::from(count) {
            let address = range.start.checked_add(offset)?.checked_add(index * 56)?;
            let segment: [u8; 56] = within(memory, &range, address)?;
            let field = |at: usize| u64::from_le_bytes(segment[at..at + 8].try_into().unwrap_or_default());
            match u32::from_le_bytes(segment[..4].try_into().ok()?) {
                1 => first = Some(first.unwrap_or(u64::MAX).min(field(16) & !0xfff)),
                2 => dynamic = Some((field(16), field(40))),
                _ => {}
            }
        }
        let bias = range.start.wrapping_sub(first?);
        let (address, size) = dynamic?;
        let mut image = Self { memory, range, bias, symbols: 0, strings: 0, hash: None, gnu_hash: None };
        let start = bias.wrapping_add(address);
        for index in 0..(size / 16).min(1024) {
            let [tag, value] = [0, 8].map(|at| {
                start
                    .checked_add(index * 16 + at)
                    .and_then(|address| within(memory, &image.range, address).map(u64::from_le_bytes))
            });
            let (tag, value) = (tag?, value?);
            match tag {
                0 => break,
                4 => image.hash = Some(image.pointer(value)),
                5 => image.strings = image.pointer(value),
                6 => image.symbols = image.pointer(value),
                0x6fff_fef5 => image.gnu_hash = Some(image.pointer(value)),
                _ => {}
            }
        }
        (image.symbols != 0 && image.strings != 0).then_some(image)
    }

    /// glibc relocates the dynamic section of most modules in place.
    fn pointer(&self, value: u64) -> u64 {
        if self.range.contains(&value) { value } else { self.bias.wrapping_add(value) }
    }

    fn read<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        within(self.memory, &self.range, address)
    }

    fn u32(&self, table: u64, index: u64) -> Option<u32> {
        self.read(table.checked_add(index.checked_mul(4)?)?).map(u32::from_le_bytes)
    }

    /// A function that the module defines under this name.
    pub fn function(&self, name: &str) -> Option<Symbol> {
        match (self.gnu_hash, self.hash) {
            (Some(table), _) => self.by_gnu_hash(table, name),
            (None, Some(table)) => self.by_hash(table, name),
            (None, None) => None,
        }
    }

    fn by_gnu_hash(&self, table: u64, name: &str) -> Option<Symbol> {
        let hash = name.bytes().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let [buckets, first, bloom] = [0, 1, 2].map(|index| self.u32(table, index));
        let (buckets, first, bloom) = (buckets?, first?, bloom?);
        let starts = table.checked_add(16)?.checked_add(u64::from(bloom) * 8)?;
        let chains = starts.checked_add(u64::from(buckets) * 4)?;
        let start = self.u32(starts, u64::from(hash.checked_rem(buckets)?))?;
        for index in start..start.checked_add(MAX_CHAIN)? {
            let entry = self.u32(chains, u64::from(index.checked_sub(first)?))?;
            if entry | 1 == hash | 1
                && let Some(symbol) = self.named(index, name)
            {
                return Some(symbol);
            }
            if entry & 1 == 1 {
                break;
            }
        }
        None
    }

    fn by_hash(&self, table: u64, name: &str) -> Option<Symbol> {
        let hash = name.bytes().fold(0u32, |hash, byte| {
            let hash = hash.wrapping_shl(4).wrapping_add(byte.into());
            (hash ^ ((hash & 0xf000_0000) >> 24)) & 0x0fff_ffff
        });
        let buckets = self.u32(table, 0)?;
        let mut index = self.u32(table, 2 + u64::from(hash.checked_rem(buckets)?))?;
        for _ in 0..MAX_CHAIN {
            if index == 0 {
                break;
            }
            if let Some(symbol) = self.named(index, name) {
                return Some(symbol);
            }
            index = self.u32(table, 2 + u64::from(buckets) + u64::from(index))?;
        }
        None
    }

    fn named(&self, index: u32, name: &str) -> Option<Symbol> {
        let entry: [u8; 24] = self.read(self.symbols.checked_add(u64::from(index) * SYMBOL_SIZE)?)?;
        let (string, symbol) = self.symbol(&entry)?;
        let address = self.strings.checked_add(string.into())?;
        let end = address.checked_add(name.len() as u64)?.checked_add(1)?;
        (address >= self.range.start && end <= self.range.end && name.len() < 64).then_some(())?;
        let mut buffer = [0; 64];
        self.memory.read(address, &mut buffer[..=name.len()])?;
        (&buffer[..name.len()] == name.as_bytes() && buffer[name.len()] == 0).then_some(symbol)
    }

    /// The name's offset and the symbol, if the module defines it as a function.
    fn symbol(&self, entry: &[u8; 24]) -> Option<(u32, Symbol)> {
        let name = u32::from_le_bytes(entry[..4].try_into().ok()?);
        let section = u16::from_le_bytes(entry[6..8].try_into().ok()?);
        let value = u64::from_le_bytes(entry[8..16].try_into().ok()?);
        let size = u64::from_le_bytes(entry[16..24].try_into().ok()?);
        let address = self.bias.wrapping_add(value);
        let defined = entry[4] & 15 == 2 && section != 0 && value != 0 && self.range.contains(&address);
        defined.then(|| (name, Symbol { address, size: size.min(self.range.end - address) }))
    }

    /// All functions that the module exports, without their names.
    pub fn functions(&self) -> Option<Vec<Symbol>> {
        let count = match (self.hash, self.gnu_hash) {
            (Some(table), _) => self.u32(table, 1)?,
            (None, Some(table)) => self.count_of_gnu_hash(table)?,
            (None, None) => return None,
        };
        let count = count.min(MAX_SYMBOLS);
        let mut functions = Vec::new();
        for index in 0..u64::from(count) {
            let entry: [u8; 24] = self.read(self.symbols.checked_add(index * SYMBOL_SIZE)?)?;
            functions.extend(self.symbol(&entry).map(|(_, symbol)| symbol));
        }
        Some(functions)
    }

    fn count_of_gnu_hash(&self, table: u64) -> Option<u32> {
        let [buckets, first, bloom] = [0, 1, 2].map(|index| self.u32(table, index));
        let (buckets, first, bloom) = (buckets?, first?, bloom?);
        let starts = table.checked_add(16)?.checked_add(u64::from(bloom) * 8)?;
        let chains = starts.checked_add(u64::from(buckets) * 4)?;
        let mut last = 0;
        for bucket in 0..buckets.min(MAX_SYMBOLS) {
            last = last.max(self.u32(starts, bucket.into())?);
        }
        for index in last..last.checked_add(MAX_CHAIN)? {
            if self.u32(chains, u64::from(index.checked_sub(first)?))? & 1 == 1 {
                return index.checked_add(1);
            }
        }
        None
    }
}

fn within<M: Memory, const N: usize>(memory: &M, range: &Range<u64>, address: u64) -> Option<[u8; N]> {
    (address >= range.start && address.checked_add(N as u64)? <= range.end).then_some(())?;
    memory.bytes(address)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    /// A file that is mapped at an address, as the loader does it, without its relocations.
    struct File {
        start: u64,
        bytes: Vec<u8>,
        reads: Cell<usize>,
    }

    impl File {
        /// Copies the segments of an ELF file to their addresses.
        fn load(path: &str) -> Self {
            let file = fs::read(path).unwrap();
            let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
            let mut bytes = Vec::new();
            for index in 0..usize::from(file[56]) {
                let at = word(32) + index * 56;
                if file[at] == 1 {
                    let (offset, address, size) = (word(at + 8), word(at + 16), word(at + 32));
                    bytes.resize(bytes.len().max(address + size), 0);
                    bytes[address..address + size].copy_from_slice(&file[offset..offset + size]);
                }
            }
            Self { start: 0x7f00_0000_0000, bytes, reads: Cell::new(0) }
        }

        fn range(&self) -> Range<u64> {
            self.start..self.start + self.bytes.len() as u64
        }
    }

    impl Memory for File {
        fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
            self.reads.set(self.reads.get() + 1);
            let at = address.checked_sub(self.start)? as usize;
            buffer.copy_from_slice(self.bytes.get(at..at.checked_add(buffer.len())?)?);
            Some(())
        }
    }

    fn libc() -> String {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .find_map(|line| line.split_whitespace().last().filter(|path| path.ends_with("libc.so.6")))
            .unwrap()
            .into()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn functions_of_glibc_are_found() {
        let file = File::load(&libc());
        let image = Image::open(&file, file.range()).unwrap();
        let functions = image.functions().unwrap();
        assert!(functions.len() > 1000);
        for name in ["malloc", "fork", "__errno_location", "syscall", "pthread_self"] {
            let symbol = image.function(name).unwrap();
            assert!(functions.contains(&symbol), "{name}");
        }
        for name in ["", "no_such_function", "malloc2"] {
            assert_eq!(image.function(name), None);
        }
    }

    #[test]
    fn damaged_modules_are_read_without_panic() {
        let mut file = File::load(&libc());
        let original = file.bytes.clone();
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize
        };
        // Headers, the tables behind them and the dynamic section, which is near the end.
        for round in 0..300 {
            file.bytes.copy_from_slice(&original);
            let (from, length) = match round % 3 {
                0 => (0, 1024),
                1 => (0, 1 << 16),
                _ => (original.len() - (1 << 16), 1 << 16),
            };
            for _ in 0..1 + next() % 2000 {
                file.bytes[from + next() % length] = next() as u8;
            }
            // The identification stays unchanged, because otherwise the rest would not be read.
            file.bytes[..20].copy_from_slice(&original[..20]);
            file.reads.set(0);
            if let Some(image) = Image::open(&file, file.range()) {
                image.function("malloc");
                image.functions();
            }
            assert!(file.reads.get() < 2 * MAX_SYMBOLS as usize, "{}", file.reads.get());
        }
    }

    #[test]
    fn architectures_are_named() {
        let header = |class: u8, data: u8, machine: [u8; 2]| {
            let mut header = [0; 64];
            header[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, data]);
            header[18..20].copy_from_slice(&machine);
            header
        };
        for (header, expected) in [
            (header(1, 1, [3, 0]), Some("32-bit x86")),
            (header(1, 1, [40, 0]), Some("32-bit ARM")),
            (header(1, 1, [62, 0]), Some("32-bit x86-64")),
            (header(2, 2, [0, 22]), Some("64-bit ELF machine 22")),
            (header(2, 1, [243, 0]), Some("64-bit RISC-V")),
        ] {
            assert_eq!(other_architecture(&header).as_deref(), expected);
        }
        let ours = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        assert_eq!(other_architecture(&header(2, 1, [ours, 0])), None);
    }
}
