//! Layers of a TensorRT engine: times from `trtexec --dumpProfile --exportProfile=FILE`, properties from
//! `--exportLayerInfo=FILE` (with `--profilingVerbosity=detailed`).

use std::{fmt, io::Read};

use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};
use serde_json::Value;

use super::{error::KernelsError, tally::MAX_ROWS};
use llmprof_base::foreign;
use llmprof_event::kernels::{KernelRow, KernelTable, Kind, OTHERS};

const REMEDY: &str =
    "record it with trtexec --loadEngine=… --dumpProfile --exportProfile=profile.json --separateProfileRun";
/// Names of fused layers list all their parts.
const MAX_NAME: usize = 300;
/// Engines have some thousand layers; a longer file is truncated, and refused as such.
const MAX_BYTES: u64 = 256 << 20;

/// Whether a JSON file begins like a list of layer times: the first object has only the number of iterations.
pub fn is_profile(head: &[u8]) -> bool {
    begins(head, b"[{\"count\":")
}

/// Whether a JSON file begins like properties of layers.
pub fn is_layer_info(head: &[u8]) -> bool {
    begins(head, b"{\"Layers\":[")
}

fn begins(head: &[u8], with: &[u8]) -> bool {
    head.iter().filter(|byte| !byte.is_ascii_whitespace()).take(with.len()).eq(with)
}

/// An element of a profile: first the number of iterations, then one layer each.
#[derive(Deserialize)]
struct Element {
    count: Option<u64>,
    name: Option<String>,
    #[serde(rename = "timeMs")]
    time_ms: Option<f64>,
    #[serde(rename = "averageMs")]
    average_ms: Option<f64>,
    #[serde(rename = "medianMs")]
    median_ms: Option<f64>,
}

struct Profile {
    table: KernelTable,
    count: u64,
    /// Layers beyond the limit.
    others: KernelRow,
}

impl<'de> Visitor<'de> for &mut Profile {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of layers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while let Some(element) = elements.next_element::<Element>()? {
            self.count = element.count.unwrap_or(self.count);
            let Some(name) = element.name else { continue };
            let ns = |ms: Option<f64>| ms.filter(|ms| ms.is_finite() && *ms >= 0.0).map(|ms| ms * 1e6);
            if self.table.rows.len() >= MAX_ROWS {
                self.others.calls += self.count.max(1);
                self.others.total_ns =
                    Some(self.others.total_ns.unwrap_or(0.0) + ns(element.time_ms).unwrap_or(0.0));
                continue;
            }
            self.table.rows.push(KernelRow {
                calls: self.count.max(1),
                total_ns: ns(element.time_ms),
                mean_ns: ns(element.average_ms),
                median_ns: ns(element.median_ms),
                ..layer(&name)
            });
        }
        Ok(())
    }
}

/// Times by layer.
pub fn read_profile(file: &str, input: impl Read) -> Result<KernelTable, KernelsError> {
    let table = KernelTable::new("trtexec profile", Kind::Layers);
    let mut profile = Profile { table, count: 0, others: KernelRow { calls: 0, ..KernelRow::named(OTHERS) } };
    serde_json::Deserializer::from_reader(input)
        .deserialize_seq(&mut profile)
        .map_err(|e| unread(file, e))?;
    let Profile { mut table, count, others } = profile;
    if table.rows.is_empty() {
        let what = format!("{count} iterations");
        return Err(KernelsError::NoRows { file: file.to_owned(), what, remedy: REMEDY });
    }
    if others.calls > 0 {
        table.rows.push(others);
    }
    table.notes.push(format!(
        "{count} iterations. A layer may launch several kernels; timing each layer slows the engine down."
    ));
    table.sort(Default::default());
    Ok(table)
}

#[derive(Deserialize)]
struct LayerInfo {
    #[serde(rename = "Layers")]
    layers: Layers,
}

/// The first layers, and the number of all.
#[derive(Default)]
struct Layers {
    rows: Vec<KernelRow>,
    count: u64,
}

impl<'de> Deserialize<'de> for Layers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Layers, D::Error> {
        deserializer.deserialize_seq(LayersVisitor)
    }
}

struct LayersVisitor;

impl<'de> Visitor<'de> for LayersVisitor {
    type Value = Layers;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of layers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Layers, A::Error> {
        let mut layers = Layers::default();
        while let Some(entry) = entries.next_element::<Value>()? {
            layers.count += 1;
            if layers.rows.len() < MAX_ROWS {
                layers.rows.extend(layer_of(&entry));
            }
        }
        Ok(layers)
    }
}

/// Without detailed verbosity a layer is only its name.
fn layer_of(entry: &Value) -> Option<KernelRow> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let name = entry.as_str().or_else(|| text("Name"))?;
    let mut row = KernelRow { calls: 1, ..layer(name) };
    if let Some(kind) = text("LayerType") {
        row.family = foreign::line(kind, MAX_NAME);
    }
    if let Some(tactic) = text("TacticName") {
        row.name = foreign::line(&format!("{name} · {tactic}"), 2 * MAX_NAME);
    }
    Some(row)
}

/// Layers by kind, with the kernel that was chosen for each.
pub fn read_layer_info(file: &str, input: impl Read) -> Result<KernelTable, KernelsError> {
    let info: LayerInfo = serde_json::from_reader(input.take(MAX_BYTES)).map_err(|e| unread(file, e))?;
    let Layers { rows, count } = info.layers;
    if rows.is_empty() {
        let what = format!("{count} layers");
        return Err(KernelsError::NoRows { file: file.to_owned(), what, remedy: REMEDY });
    }
    let mut table = KernelTable::new("trtexec layer information", Kind::Layers);
    table.notes.push("No times: open the file of --exportProfile for them.".to_owned());
    if count > rows.len() as u64 {
        table.notes.push(format!("{} of {count} layers are listed.", rows.len()));
    }
    table.rows = rows;
    Ok(table)
}

/// A row without figures. Layers that differ only in their numbers are a family.
fn layer(name: &str) -> KernelRow {
    let name = foreign::line(name, MAX_NAME);
    let mut family = String::new();
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if family.ends_with('*') => {}
            true => family.push('*'),
            false => family.push(c),
        }
    }
    KernelRow { name, family, ..KernelRow::default() }
}

fn unread(file: &str, e: serde_json::Error) -> KernelsError {
    let file = file.to_owned();
    match e.is_io() {
        true => KernelsError::Read { file, source: e.into() },
        false => KernelsError::Unknown { file, seen: format!("it is not a list of TensorRT layers ({e})") },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PROFILE: &str = r#"[
  { "count" : 100 }
, { "name" : "/layers.0/q_proj/MatMul", "timeMs" : 20.0, "averageMs" : 0.2, "medianMs" : 0.19, "percentage" : 20 }
, { "name" : "/layers.1/q_proj/MatMul", "timeMs" : 80.0, "averageMs" : 0.8, "medianMs" : 0.8, "percentage" : 80 }
]"#;

    #[test]
    fn times_of_layers_are_read() {
        assert!(is_profile(PROFILE.as_bytes()));
        let table = read_profile("p.json", PROFILE.as_bytes()).unwrap();
        assert_eq!((table.total(), table.calls()), (Some(1e8), 200));
        let row = &table.rows[0];
        assert_eq!(
            (row.name.as_str(), row.family.as_str()),
            ("/layers.1/q_proj/MatMul", "/layers.*/q_proj/MatMul")
        );
        assert_eq!((row.calls, row.mean_ns, row.median_ns), (100, Some(8e5), Some(8e5)));
        let error = read_profile("p.json", br#"[{"count": 3}]"#.as_slice()).unwrap_err().to_string();
        assert!(error.contains("--exportProfile"), "{error}");
    }

    #[test]
    fn properties_of_layers_are_read() {
        let text = br#"{"Layers": [{"Name": "a", "LayerType": "gemm", "TacticName": "sm90_xmma"}, "b", 3], "Bindings": []}"#;
        assert!(is_layer_info(text));
        let table = read_layer_info("l.json", text.as_slice()).unwrap();
        let names: Vec<_> = table.rows.iter().map(|row| (row.name.as_str(), row.family.as_str())).collect();
        assert_eq!(names, [("a · sm90_xmma", "gemm"), ("b", "b")]);
        assert_eq!(table.rows[0].total_ns, None);
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..260) {
            let _ = read_profile("any", bytes.as_slice());
            let _ = read_layer_info("any", bytes.as_slice());
            let _ = read_profile("any", &PROFILE.as_bytes()[..cut.min(PROFILE.len())]);
        }
    }
}
