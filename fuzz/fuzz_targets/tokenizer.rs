//! Any bytes are read as a `tokenizer.json` or refused; what is read encodes and decodes, or fails with an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::workload::text::Tokenizer;

fuzz_target!(|bytes: &[u8]| {
    llmprof_fuzz::contain_panics();
    let path = llmprof_fuzz::file("tok/tokenizer.json", bytes);
    let Ok(tokenizer) = Tokenizer::from_dir(path.parent().expect("a directory")) else { return };
    let _ = tokenizer.prompt_ids("Hello, wörld 12", true);
    let _ = tokenizer.text(&[0, 1, 2, 7, u32::MAX]);
});
