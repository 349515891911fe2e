//! The hashes of a file that the hub and git use, computed incrementally.

use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use llmprof_base::dir::open_file;

/// SHA-256 of the bytes, and the git object id of a blob of `size` bytes.
pub(super) struct Hasher {
    sha256: Sha256,
    git: Sha1,
}

/// The hashes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Digests {
    pub(super) sha256: String,
    /// The git object id of the content.
    pub(super) git_blob: String,
}

impl Hasher {
    /// Git hashes the size first, so it must be known.
    pub(super) fn new(size: u64) -> Hasher {
        let mut git = Sha1::new();
        git.update(format!("blob {size}\0"));
        Hasher { sha256: Sha256::new(), git }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.git.update(bytes);
    }

    pub(super) fn finish(self) -> Digests {
        Digests { sha256: hex(&self.sha256.finalize()), git_blob: hex(&self.git.finalize()) }
    }
}

/// SHA-256 of `bytes` in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Both digests of `bytes`.
pub(super) fn of_bytes(bytes: &[u8]) -> Digests {
    let mut hasher = Hasher::new(bytes.len() as u64);
    hasher.update(bytes);
    hasher.finish()
}

/// The git object id of the LFS pointer of a large file.
///
/// The hub lists this id for large files. The pointer contains the SHA-256 and the size, so equal ids mean equal content.
pub(super) fn lfs_pointer_blob(sha256: &str, size: u64) -> String {
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n");
    of_bytes(pointer.as_bytes()).git_blob
}

/// Hashes up to `length` bytes of the file at `path`; the number of bytes read.
pub(super) fn feed(hasher: &mut Hasher, path: &Path, length: u64) -> io::Result<u64> {
    let mut file = open_file(path)?.take(length);
    let mut buffer = vec![0; 1 << 20];
    let mut fed = 0;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(fed);
        }
        hasher.update(&buffer[..n]);
        fed += n as u64;
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digests() {
        // `git hash-object` and `sha256sum` of the empty file and of "hello\n".
        assert_eq!(of_bytes(b"").git_blob, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        let hello = of_bytes(b"hello\n");
        assert_eq!(hello.git_blob, "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(hello.sha256, "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    }

    #[test]
    fn pointer_id_equals_that_of_the_hub() {
        // Blob id, SHA-256 and size that the hub lists for a file of a public repository.
        let sha256 = "07f700e293baeaf3cd4240c3df1a948c4403f16961ea7979e86c8d6a9f8fd466";
        assert_eq!(lfs_pointer_blob(sha256, 383_865_448), "2414184f64bda500ff7d0997c6a5e1a5bf69f84f");
    }
}
