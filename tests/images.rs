//! The committed CUDA kernels are those that their manifest lists.

use std::{collections::BTreeMap, fs, path::Path};

use llmprof::assets::sha256_hex;

#[test]
fn the_manifest_lists_the_images() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/kernels");
    let mut images: BTreeMap<String, Vec<u8>> = fs::read_dir(assets)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    let manifest: serde_json::Value =
        serde_json::from_slice(&images.remove("manifest.json").unwrap()).unwrap();
    let hashes: BTreeMap<&String, String> =
        images.iter().map(|(name, bytes)| (name, sha256_hex(bytes))).collect();
    assert_eq!(manifest["files"], serde_json::json!(hashes), "run `just release-kernels`");
    assert_eq!(manifest["capabilities"], serde_json::json!([80, 86, 89, 90, 100, 120]));
    let bytes: usize = images.values().map(Vec::len).sum();
    assert!(bytes < 11_500_000, "{bytes} bytes");
}
