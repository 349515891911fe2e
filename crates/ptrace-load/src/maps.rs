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
        let continued = modules
            .last()
            .is_some_and(|(inode, module)| *inode == mapping.inode && module.path == mapping.path);
        if !continued
            || (mapping.offset == 0 && !modules.last().is_some_and(|(_, module)| module.text.is_empty()))
        {
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
