//! The built-in kernels were compiled from the current sources.

use std::{fs, path::Path};

use llmprof::assets::sha256_hex;

/// As third_party/cuda/kernels.py computes it.
fn hash_of_sources() -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/engine/src/cuda/kernels");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e.to_str().unwrap().starts_with("cu")));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        all.extend(file.file_name().unwrap().to_str().unwrap().as_bytes());
        all.push(0);
        all.extend(fs::read(file).unwrap());
        all.push(0);
    }
    sha256_hex(&all)
}

#[test]
fn the_images_are_of_these_sources() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/kernels");
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(assets.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["sources_sha256"], hash_of_sources(), "the kernels have changed: run `just kernels`");
    assert_eq!(manifest["capabilities"], serde_json::json!([80, 86, 89, 90, 100, 120]));
    let bytes: u64 =
        fs::read_dir(assets).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 11_500_000, "{bytes} bytes");
}
