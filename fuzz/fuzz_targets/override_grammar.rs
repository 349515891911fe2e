//! Any text parses as an override or is refused; what parses is written out and reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use hydra_config::{Override, OverrideValue};

fuzz_target!(|text: &str| {
    if let Ok(Override { value: Some(OverrideValue::Single(element)), .. }) = Override::parse(text) {
        let again = Override::parse(&format!("k={}", element.to_text()));
        assert!(matches!(again, Ok(Override { value: Some(OverrideValue::Single(_)), .. })), "{text:?}");
    }
});
