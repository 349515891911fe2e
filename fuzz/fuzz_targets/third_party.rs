//! Any text is read as a `third_party.yaml` or refused; the fields of what is read are no options and no paths upwards.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::assets::pinned_names;

fuzz_target!(|text: &str| {
    llmprof_fuzz::file("third_party/third_party.yaml", text.as_bytes());
    for name in pinned_names(llmprof_fuzz::scratch()).into_iter().flatten() {
        assert!(!name.starts_with('-') && !name.split('/').any(|part| part == ".."), "{name}");
    }
});
