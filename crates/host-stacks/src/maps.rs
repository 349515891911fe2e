//! The mapped files of a process.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

/// A process with CUDA and Python has a few thousand mappings of about 100 bytes.
const MAPS_MAX: u64 = 16 << 20;

pub struct Map {
    pub range: Range<u64>,
    pub offset: u64,
    pub executable: bool,
    pub path: String,
}

pub fn read(pid: u32) -> io::Result<Vec<Map>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MAPS_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Map> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let executable = words.next()?.contains('x');
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let path = words.nth(2)?.trim_start();
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    path.starts_with('/').then(|| Map { range, offset, executable, path: path.to_owned() })
}

pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The code of CUDA's driver library.
pub fn cuda_code(maps: &[Map]) -> Vec<Range<u64>> {
    let cuda = |map: &&Map| map.executable && file_name(&map.path).starts_with("libcuda.so");
    maps.iter().filter(cuda).map(|map| map.range.clone()).take(16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_with_spaces_in_its_path() {
        let map = parse("7f00-7f10 r-xp 00001000 08:01 12      /opt/a b/libpython3.12.so.1.0").unwrap();
        assert_eq!((map.range, map.offset, map.executable), (0x7f00..0x7f10, 0x1000, true));
        assert_eq!(file_name(&map.path), "libpython3.12.so.1.0");
        assert!(parse("7f00-7f10 rw-p 00000000 00:00 0 ").is_none());
        assert!(parse("garbage").is_none());
    }
}
