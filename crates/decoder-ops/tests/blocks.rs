//! Blocks of every type have the weights that gguf-py reads from them; `blocks.py` makes the fixture.

use decoder_ops::{Format, Panels, quantised_rows};
use serde_json::Value;

#[test]
fn weights_are_those_of_gguf_py() {
    let all: Value = serde_json::from_str(include_str!("blocks.json")).unwrap();
    for format in Format::ALL {
        let name = format!("{format:?}").to_uppercase().replace("IQ4", "IQ4_");
        let name = if name.contains('_') { name } else { name.replace('K', "_K") };
        let text = all[&name]["bytes"].as_str().unwrap_or_else(|| panic!("no {name}"));
        let bytes: Vec<u8> =
            (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect();
        let row = quantised_rows(&[0], &Panels::new(format, &bytes, 256).unwrap()).unwrap();
        let row: Vec<f32> = row.flatten_all().unwrap().to_vec1().unwrap();
        let expected = all[&name]["weights"].as_array().unwrap();
        assert_eq!(row.len(), expected.len());
        for (i, (found, expected)) in row.iter().zip(expected).enumerate() {
            let expected = expected.as_f64().unwrap();
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-5 + 1e-5 * expected.abs(), "{name}, weight {i}: {found}, not {expected}");
        }
    }
}
