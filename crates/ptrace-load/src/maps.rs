//! The mappings of a process, and the modules (executable files and libraries) among them. The input is untrusted.

use std::ops::Range;

/// More lines than vm.max_map_count allows by default.
const MAX_MAPPINGS: usize = 1 << 18;
const MAX_PATH: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<u64>,
    pub executable: bool,
    pub offset: u64,
    pub inode: u64,
    pub path: String,
}

/// A file that the loader has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub path: String,
    pub range: Range<u64>,
    pub text: Vec<Range<u64>>,
}

impl Module {
    /// The name of the file, also if it has been replaced since.
    pub fn name(&self) -> &str {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(&self.path);
        path.rsplit('/').next().unwrap_or(path)
    }
}

/// Lines that are not mappings are skipped.
pub fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|&byte| byte == b'\n').take(MAX_MAPPINGS).filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Mapping> {
    let line = String::from_utf8_lossy(&line[..line.len().min(MAX_PATH + 128)]);
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let (permissions, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (_device, rest) = rest.split_once(' ')?;
    let (inode, path) = rest.split_once(' ').unwrap_or((rest, ""));
    (start < end).then_some(())?;
    Some(Mapping {
        range: start..end,
        executable: permissions.as_bytes().get(2) == Some(&b'x'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        inode: inode.parse().ok()?,
        path: path.trim_start().to_owned(),
    })
}

/// Files of which code is mapped. A file that is mapped twice from its beginning, e.g. by a tool that reads it, is two modules; only
/// those with code are returned.
pub fn modules(mappings: &[Mapping]) -> Vec<Module> {
    let mut modules: Vec<(u64, Module)> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.path.starts_with('/')) {
        let continued = modules.last().is_some_and(|(inode, module)| {
            let same = *inode == mapping.inode && module.path == mapping.path;
            // The data of a small library can begin in the first page of its file.
            let data = !module.text.is_empty() && module.range.end == mapping.range.start;
            same && (mapping.offset != 0 || data)
        });
        if !continued {
            modules.push((
                mapping.inode,
                Module { path: mapping.path.clone(), range: mapping.range.clone(), text: Vec::new() },
            ));
        }
        let Some((_, module)) = modules.last_mut() else { continue };
        module.range.end = module.range.end.max(mapping.range.end);
        if mapping.executable {
            module.text.push(mapping.range.clone());
        }
    }
    modules.into_iter().map(|(_, module)| module).filter(|module| !module.text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 11 /usr/bin/a program\n\
55d0c0001000-55d0c0002000 r-xp 00001000 fe:00 11 /usr/bin/a program\n\
55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0  [heap]\n\
7f0000000000-7f0000100000 r--p 00000000 fe:00 12 /usr/lib/libc.so.6\n\
7f0000f00000-7f0001000000 r--p 00000000 fe:00 12 /usr/lib/libc.so.6 (deleted)\n\
7f0001000000-7f0001026000 r--p 00000000 fe:00 12 /usr/lib/libc.so.6 (deleted)\n\
7f0001026000-7f000117b000 r-xp 00026000 fe:00 12 /usr/lib/libc.so.6 (deleted)\n\
7f000117b000-7f00011d0000 r--p 0017b000 fe:00 12 /usr/lib/libc.so.6 (deleted)\n\
7f00011d0000-7f00011d2000 rw-p 001cf000 fe:00 12 /usr/lib/libc.so.6 (deleted)\n\
7f0002000000-7f0002010000 rw-p 00000000 00:00 0\n\
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";

    #[test]
    fn modules_are_files_with_code() {
        let mappings = parse(MAPS.as_bytes());
        assert_eq!(mappings.len(), 11);
        assert_eq!(mappings[0].path, "/usr/bin/a program");
        let modules = modules(&mappings);
        let names: Vec<_> = modules.iter().map(Module::name).collect();
        assert_eq!(names, ["a program", "libc.so.6"]);
        assert_eq!(modules[1].range, 0x7f00_0100_0000..0x7f00_011d_2000);
        assert_eq!(modules[1].text.len(), 1);
        assert_eq!(modules[1].text[0], 0x7f00_0102_6000..0x7f00_0117_b000);
    }

    #[test]
    fn damaged_maps_are_read_without_panic() {
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            random >> 33
        };
        for _ in 0..5000 {
            let mut text = MAPS.as_bytes().to_vec();
            for _ in 0..next() % 40 {
                let at = next() as usize % text.len();
                match next() % 3 {
                    0 => text[at] = next() as u8,
                    1 => text.truncate(at.max(1)),
                    _ => text[at] = b"0123456789abcdef -/\n"[next() as usize % 20],
                }
            }
            for module in modules(&parse(&text)) {
                assert!(!module.text.is_empty());
                module.name();
            }
        }
        for _ in 0..500 {
            let text: Vec<u8> = (0..next() % 2000).map(|_| next() as u8).collect();
            modules(&parse(&text));
        }
    }
}
