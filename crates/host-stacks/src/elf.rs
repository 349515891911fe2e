//! Exported symbols of a mapped ELF image, read from memory: the file of another process is never opened.

use crate::memory::{Fields, Memory};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const SYMBOL_BYTES: u64 = 24;
const CHAIN_MAX: u32 = 4096;

#[derive(Clone, Copy)]
pub struct Symbol {
    pub address: u64,
    pub size: u64,
}

pub struct Image<'a> {
    memory: &'a Memory,
    bias: u64,
    symbols: u64,
    strings: u64,
    hash: u64,
}

impl<'a> Image<'a> {
    /// `base` is the address of the mapping of the first byte of the file. Only 64-bit images are read.
    pub fn open(memory: &'a Memory, base: u64) -> Option<Image<'a>> {
        let header = memory.bytes(base, 64)?;
        if header.get(..5)? != b"\x7fELF\x02" {
            return None;
        }
        let segments = Segments::read(memory, base, &header)?;
        let dynamic = Dynamic::read(memory, segments.dynamic, segments.bias)?;
        let Dynamic { symbols, strings, hash } = dynamic;
        Some(Image { memory, bias: segments.bias, symbols, strings, hash })
    }

    /// A symbol that this image defines, by its GNU hash table.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        let header = self.memory.bytes(self.hash, 16)?;
        let (buckets, first) = (header.u32_at(0)?, header.u32_at(4)?);
        let bloom_words = u64::from(header.u32_at(8)?);
        let table = self.hash + 16 + bloom_words * 8;
        let wanted = gnu_hash(name);
        let bucket = wanted.checked_rem(buckets)?;
        let start = self.memory.u32(table + 4 * u64::from(bucket))?;
        let chains = table + 4 * u64::from(buckets);
        for index in start.max(first)..start.checked_add(CHAIN_MAX)? {
            let hash = self.memory.u32(chains.checked_add(4 * u64::from(index - first))?)?;
            if hash | 1 == wanted | 1
                && let Some(symbol) = self.defined(index, name)
            {
                return Some(symbol);
            }
            if hash & 1 == 1 {
                return None;
            }
        }
        None
    }

    fn defined(&self, index: u32, name: &str) -> Option<Symbol> {
        let entry =
            self.memory.bytes(self.symbols + SYMBOL_BYTES * u64::from(index), SYMBOL_BYTES as usize)?;
        let text = self.memory.bytes(self.strings + u64::from(entry.u32_at(0)?), name.len() + 1)?;
        let same = text.strip_suffix(b"\0")? == name.as_bytes();
        let defined = entry.u16_at(6)? != 0;
        let address = entry.u64_at(8)?.wrapping_add(self.bias);
        (same && defined).then_some(Symbol { address, size: entry.u64_at(16)? })
    }
}

struct Segments {
    bias: u64,
    dynamic: u64,
}

impl Segments {
    fn read(memory: &Memory, base: u64, header: &[u8]) -> Option<Segments> {
        let (offset, size, count) = (header.u64_at(32)?, header.u16_at(54)?, header.u16_at(56)?);
        let (size, count) = (u64::from(size).max(56), usize::from(count).min(64));
        let table = memory.bytes(base.checked_add(offset)?, size as usize * count)?;
        let (mut bias, mut dynamic) = (None, None);
        for segment in table.chunks_exact(size as usize) {
            let address = segment.u64_at(16)?;
            match segment.u32_at(0)? {
                PT_LOAD if segment.u64_at(8)? == 0 => bias = Some(base.wrapping_sub(address & !0xfff)),
                PT_DYNAMIC => dynamic = Some(address),
                _ => {}
            }
        }
        let bias = bias?;
        Some(Segments { bias, dynamic: dynamic?.wrapping_add(bias) })
    }
}

struct Dynamic {
    symbols: u64,
    strings: u64,
    hash: u64,
}

impl Dynamic {
    fn read(memory: &Memory, address: u64, bias: u64) -> Option<Dynamic> {
        let (mut symbols, mut strings, mut hash) = (None, None, None);
        for index in 0..256 {
            let entry = memory.bytes(address.checked_add(index * 16)?, 16)?;
            // Some loaders relocate these addresses in place, others do not.
            let value = entry.u64_at(8)?;
            let relocated = if value < bias { value.wrapping_add(bias) } else { value };
            match entry.u64_at(0)? {
                0 => break,
                DT_SYMTAB => symbols = Some(relocated),
                DT_STRTAB => strings = Some(relocated),
                DT_GNU_HASH => hash = Some(relocated),
                _ => {}
            }
        }
        let bounded = |value: Option<u64>| value.filter(|value| *value < 1 << 62);
        Some(Dynamic { symbols: bounded(symbols)?, strings: bounded(strings)?, hash: bounded(hash)? })
    }
}

fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}
