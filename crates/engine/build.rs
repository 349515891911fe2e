//! Chooses the compiled CUDA kernels that are built in: those of the release in `assets/kernels`, or, if their sources have
//! changed since, those that `just kernels` has compiled from the changed sources into `target/kernels`.

use std::{env, error::Error, fs, path::Path};

use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn Error>> {
    let package = Path::new(&env::var("CARGO_MANIFEST_DIR")?).to_owned();
    let sources = package.join("src/cuda/kernels");
    let (released, own) = (package.join("../../assets/kernels"), package.join("../../target/kernels"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-changed={}", released.join("manifest.json").display());
    println!("cargo::rustc-check-cfg=cfg(stale_kernels)");
    let hash = format!("\"sources_sha256\": \"{}\"", hash_of_sources(&sources)?);
    let is_current = |directory: &Path| {
        fs::read_to_string(directory.join("manifest.json")).is_ok_and(|manifest| manifest.contains(&hash))
    };
    let chosen = if is_current(&released) {
        released
    } else {
        // Watched only now: cargo runs this again at every build while a watched file is missing.
        println!("cargo::rerun-if-changed={}", own.join("manifest.json").display());
        if is_current(&own) {
            own
        } else {
            println!(
                "cargo::warning=the CUDA kernels are older than their sources and do not run: `just kernels` compiles them"
            );
            println!("cargo::rustc-cfg=stale_kernels");
            released
        }
    };
    println!("cargo::rustc-env=LLMPROF_KERNELS={}", chosen.display());
    Ok(())
}

/// As third_party/cuda/kernels.py computes it.
fn hash_of_sources(sources: &Path) -> Result<String, Box<dyn Error>> {
    let mut files =
        fs::read_dir(sources)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "cu" || extension == "cuh"));
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        hash.update([0]);
        hash.update(fs::read(file)?);
        hash.update([0]);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
