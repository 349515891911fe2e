//! What the targets share: a place for files, whole files of which the input changes some bytes, panics that are contained.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::{LazyLock, Once},
};

use llmprof::process::crash;

/// Lets panics pass that the program contains. libFuzzer would end at every panic.
pub fn contain_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let end = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !crash::is_contained() {
                end(info);
            }
        }));
    });
}

/// A directory of this process, in memory where the system has such a file system.
pub fn scratch() -> &'static Path {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = parent.join(format!("llmprof-fuzz-{}", process::id()));
        fs::create_dir_all(&dir).expect("a directory for files");
        dir
    });
    &DIR
}

/// Writes a file below [`scratch`] and returns its path.
pub fn file(name: &str, content: &[u8]) -> PathBuf {
    let path = scratch().join(name);
    fs::create_dir_all(path.parent().expect("a file")).expect("a directory");
    fs::write(&path, content).expect("a file");
    path
}

/// `whole` with changes: each takes four bytes of `input`, two of them its place. A complete file of most formats is not found
/// by chance.
pub fn changed(whole: &[u8], input: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let step = whole.len() / usize::from(u16::MAX) + 1;
    for change in input.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) * step % bytes.len();
        bytes[at] = change[2];
        if change[3] == 0 {
            bytes.truncate(at.max(1));
        }
    }
    bytes
}
