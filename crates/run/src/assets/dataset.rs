//! Datasets, and variants created from their source data with a record of the transform.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::AssetError;
use super::manifest::{dataset_names, require_known};
use super::paths;
use super::sampling::{Sampling, subset};
use llmprof_base::{
    read::{self, MAX_DOCUMENT},
    shell::quoted,
};
use llmprof_config::{read_yaml, write_yaml};

/// The link to the source data of a dataset.
pub const SOURCE: &str = "source-data";
const METADATA: &str = "metadata.yaml";
/// Maximum size of a line or a text file.
const MAX_SAMPLE: u64 = 100_000_000;

/// The keys of a dataset's `metadata.yaml` that the program reads; other keys are allowed.
#[derive(Debug, Default, Deserialize)]
struct Metadata {
    source: Option<String>,
    license: Option<String>,
}

/// `metadata.yaml` of a variant.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    pub parent: String,
    pub created: String,
    pub transform: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    pub size: Size,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Size {
    pub samples: u64,
    pub disk_mb: f64,
}

/// A dataset in `dataset list`.
#[derive(Debug, Serialize)]
pub struct DatasetInfo {
    pub name: String,
    /// The target of the link to the source data; `None` without a valid link.
    pub source_data: Option<PathBuf>,
    pub source: Option<String>,
    pub license: Option<String>,
    pub variants: Vec<Variant>,
}

#[derive(Debug, Serialize)]
pub struct Variant {
    pub name: String,
    #[serde(flatten)]
    pub provenance: Provenance,
}

/// All datasets under `root` with their variants.
pub fn list(root: &Path) -> Result<Vec<DatasetInfo>, AssetError> {
    let mut listed = Vec::new();
    for name in dataset_names(root)? {
        let dir = root.join("datasets").join(&name);
        let metadata = match dir.join(METADATA) {
            path if path.exists() => read_yaml(&path)?,
            _ => Metadata::default(),
        };
        listed.push(DatasetInfo {
            source_data: dir.join(SOURCE).canonicalize().ok(),
            variants: variants(&dir)?,
            source: metadata.source,
            license: metadata.license,
            name,
        });
    }
    Ok(listed)
}

fn variants(dir: &Path) -> Result<Vec<Variant>, AssetError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(AssetError::io("list", dir))?.flatten() {
        let path = entry.path().join(METADATA);
        if let Ok(name) = entry.file_name().into_string()
            && name != SOURCE
            && !name.starts_with('.')
            && path.exists()
        {
            found.push(Variant { name, provenance: read_yaml(&path)? });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The settings of a new variant.
#[derive(Debug)]
pub struct VariantSpec<'a> {
    pub dataset: &'a str,
    pub variant: &'a str,
    pub samples: u64,
    pub seed: u64,
    /// A list of the files to use.
    pub filelist: Option<&'a Path>,
    /// Replace an existing variant.
    pub force: bool,
}

/// A created variant.
#[derive(Debug, Serialize)]
pub struct Prepared {
    pub schema: u32,
    pub dir: PathBuf,
    /// Number of samples in the source data.
    pub of: u64,
    #[serde(flatten)]
    pub provenance: Provenance,
}

/// A file of the source data and its number of samples.
struct SourceFile {
    name: String,
    path: PathBuf,
    samples: u64,
}

impl SourceFile {
    /// Whether each line is a sample (JSONL); a text file is one sample.
    fn is_lines(&self) -> bool {
        self.name.ends_with(".jsonl")
    }
}

/// Creates a variant from random samples of the JSONL and text files of the source data.
pub fn prepare(root: &Path, spec: &VariantSpec) -> Result<Prepared, AssetError> {
    require_known("dataset", [spec.dataset], &dataset_names(root)?)?;
    paths::plain_name("variant", spec.variant)?;
    let dir = root.join("datasets").join(spec.dataset);
    let target = dir.join(spec.variant);
    if spec.variant == SOURCE {
        let why = "source data is never written to".into();
        return Err(AssetError::BadName { what: "variant", name: spec.variant.into(), why });
    }
    if target.exists() && !spec.force {
        return Err(AssetError::Failed(format!(
            "{} already exists; choose another name, or pass --force to replace it",
            target.display()
        )));
    }
    // Replace only directories that this program created.
    if target.exists() && !target.join(METADATA).exists() {
        return Err(AssetError::Failed(format!("{} is not a variant and is not replaced", target.display())));
    }
    let files = source_files(&dir.join(SOURCE), spec)?;
    let count: u64 = files.iter().map(|file| file.samples).sum();
    let sampling = Sampling { num_epochs: 1, num_samples_per_epoch: Some(spec.samples), randomize: true };
    let mut chosen = sampling.indexes(count, spec.seed).swap_remove(0);
    // In source order, so that one pass over the files finds all samples.
    chosen.sort_unstable();

    let partial = dir.join(format!(".{}.partial-{}", spec.variant, std::process::id()));
    let created = write_variant(&partial, &files, &chosen).and_then(|bytes| {
        let provenance = Provenance {
            parent: SOURCE.into(),
            created: jiff::Zoned::now().strftime("%Y-%m-%d").to_string(),
            transform: describe_transform(spec, count, chosen.len() as u64),
            seed: Some(spec.seed),
            size: Size { samples: chosen.len() as u64, disk_mb: (bytes as f64 / 1e4).round() / 100.0 },
        };
        write_yaml(&partial.join(METADATA), "", &provenance)?;
        if target.exists() {
            fs::remove_dir_all(&target).map_err(AssetError::io("replace", &target))?;
        }
        fs::rename(&partial, &target).map_err(AssetError::io("create", &target))?;
        Ok(provenance)
    });
    if created.is_err() {
        // If this fails, a hidden directory remains. The first error is the one to report.
        let _ = fs::remove_dir_all(&partial);
    }
    Ok(Prepared { schema: 1, dir: target, of: count, provenance: created? })
}

fn describe_transform(spec: &VariantSpec, count: u64, chosen: u64) -> String {
    let from = match spec.filelist {
        Some(list) => format!(" of the files in {}", list.file_name().unwrap_or_default().to_string_lossy()),
        None => String::new(),
    };
    if chosen == count {
        format!("All {count} examples{from}")
    } else {
        format!("Random sample of {chosen} out of {count} examples{from}, seed {}", spec.seed)
    }
}

fn source_files(source: &Path, spec: &VariantSpec) -> Result<Vec<SourceFile>, AssetError> {
    let name = spec.dataset;
    if !source.is_dir() {
        return Err(AssetError::Failed(format!(
            "{} is not a link to a directory; run: llmprof-tui bootstrap datasets {}",
            source.display(),
            quoted(name)
        )));
    }
    let mut files = Vec::new();
    collect(source, "", &mut files)?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(list) = spec.filelist {
        let text = read::text(list, MAX_DOCUMENT).map_err(AssetError::io("read", list))?;
        let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
        let keep =
            subset(&text, &names).map_err(|why| AssetError::Usage(format!("{}: {why}", list.display())))?;
        let mut index = 0;
        files.retain(|_| {
            index += 1;
            keep.contains(&(index - 1))
        });
    }
    for file in &mut files {
        file.samples = match file.is_lines() {
            true => count_lines(&file.path)?,
            false => 1,
        };
    }
    if files.iter().all(|file| file.samples == 0) {
        return Err(AssetError::Failed(format!(
            "{} has no samples in .jsonl or .txt files; see datasets/{name}/README.md",
            source.display()
        )));
    }
    Ok(files)
}

fn collect(dir: &Path, prefix: &str, files: &mut Vec<SourceFile>) -> Result<(), AssetError> {
    for entry in fs::read_dir(dir).map_err(AssetError::io("list", dir))? {
        let entry = entry.map_err(AssetError::io("list", dir))?;
        let Ok(file_name) = entry.file_name().into_string() else { continue };
        let (path, name) = (entry.path(), format!("{prefix}{file_name}"));
        // Linked directories are skipped: they could form a cycle.
        if path.is_dir() {
            if !path.is_symlink() && !file_name.starts_with('.') {
                collect(&path, &format!("{name}/"), files)?;
            }
        } else if name.ends_with(".jsonl") || name.ends_with(".txt") {
            files.push(SourceFile { name, path, samples: 0 });
        }
    }
    Ok(())
}

/// Calls `visit` with the number and the bytes of each line that is not blank, until it returns false.
fn for_each_line(
    path: &Path,
    mut visit: impl FnMut(u64, &[u8]) -> Result<bool, AssetError>,
) -> Result<(), AssetError> {
    let mut reader = BufReader::new(read::open(path).map_err(AssetError::io("read", path))?);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        if !read::line(&mut reader, MAX_SAMPLE, &mut line).map_err(AssetError::io("read", path))? {
            return Ok(());
        }
        number += 1;
        let text = line.trim_ascii();
        if !text.is_empty() && !visit(number, text)? {
            return Ok(());
        }
    }
}

fn count_lines(path: &Path) -> Result<u64, AssetError> {
    let mut count = 0;
    for_each_line(path, |_, _| {
        count += 1;
        Ok(true)
    })?;
    Ok(count)
}

/// Writes the samples with the sorted indices `chosen`; the number of bytes written.
fn write_variant(partial: &Path, files: &[SourceFile], chosen: &[u64]) -> Result<u64, AssetError> {
    let data = partial.join("data");
    // Newly created: nothing is written through a link.
    fs::create_dir(partial).and_then(|()| fs::create_dir(&data)).map_err(AssetError::io("create", &data))?;
    let path = data.join("samples.jsonl");
    let file = File::create_new(&path).map_err(AssetError::io("create", &path))?;
    let mut out = BufWriter::new(file);
    let mut bytes = 0;
    let mut put = |text: &[u8]| {
        bytes += text.len() as u64 + 1;
        out.write_all(text).and_then(|()| out.write_all(b"\n")).map_err(AssetError::io("write", &path))
    };
    let mut chosen = chosen.iter().copied().peekable();
    let mut first = 0;
    for file in files {
        let end = first + file.samples;
        if chosen.peek().is_none_or(|next| *next >= end) {
            first = end;
            continue;
        }
        if file.is_lines() {
            let mut index = first;
            for_each_line(&file.path, |number, text| {
                if chosen.next_if_eq(&index).is_some() {
                    serde_json::from_slice::<serde::de::IgnoredAny>(text).map_err(|e| {
                        AssetError::Failed(format!(
                            "{}, line {number}: invalid JSON: {e}",
                            file.path.display()
                        ))
                    })?;
                    put(text)?;
                }
                index += 1;
                Ok(chosen.peek().is_some_and(|next| *next < end))
            })?;
        } else {
            chosen.next();
            let text = read::bytes(&file.path, MAX_SAMPLE).map_err(AssetError::io("read", &file.path))?;
            let sample = serde_json::json!({ "text": String::from_utf8_lossy(&text), "source": file.name });
            put(sample.to_string().as_bytes())?;
        }
        first = end;
    }
    out.flush().map_err(AssetError::io("write", &path))?;
    Ok(bytes)
}
